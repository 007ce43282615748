//! Rows of styled text, their wrapping, and their output to a terminal.

use std::ops::Range;

use textwrap::WordSeparator;
use textwrap::core::{Word, break_words, display_width};
use textwrap::wrap_algorithms::wrap_first_fit;

/// Columns from one tab stop to the next.
const TAB_COLUMNS: usize = 4;

/// Properties of the terminal needed to lay out rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) struct Canvas {
    /// Columns of the screen.
    pub(in crate::chat) columns: usize,
    /// Rows of the screen; rows scrolled off cannot be changed any more.
    pub(in crate::chat) rows: usize,
    /// True if colours are available, besides bold, italics and the like.
    pub(in crate::chat) colour: bool,
}

/// Style of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Look {
    pub(super) bold: bool,
    pub(super) dim: bool,
    pub(super) italic: bool,
    pub(super) underline: bool,
    pub(super) struck: bool,
    pub(super) hue: Hue,
}

/// Colour of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Hue {
    /// The terminal's default.
    #[default]
    Own,
    /// Colour of code.
    Code,
    /// Colour of tools.
    Tool,
}

impl Look {
    pub(super) const PLAIN: Look = Look {
        bold: false,
        dim: false,
        italic: false,
        underline: false,
        struck: false,
        hue: Hue::Own,
    };
    pub(super) const DIM: Look = Look { dim: true, ..Look::PLAIN };
    #[cfg(test)]
    pub(super) const BOLD: Look = Look { bold: true, ..Look::PLAIN };
    pub(super) const CODE: Look = Look { hue: Hue::Code, ..Look::PLAIN };
    pub(super) const TOOL: Look = Look { hue: Hue::Tool, bold: true, ..Look::PLAIN };

    /// Returns the parameters of the escape sequence, each preceded by a semicolon.
    fn parameters(self, colour: bool) -> String {
        // From the sixteen colours that users choose themselves, so that they suit the background.
        let hue = match self.hue {
            Hue::Own => "",
            Hue::Code => ";36",
            Hue::Tool => ";35",
        };
        let parts = [
            (self.bold, ";1"),
            (self.dim, ";2"),
            (self.italic, ";3"),
            (self.underline, ";4"),
            (self.struck, ";9"),
            (colour, hue),
        ];
        parts.iter().filter(|(is_on, _)| *is_on).map(|(_, code)| *code).collect()
    }
}

/// Text with one style.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StyledText {
    look: Look,
    text: String,
}

/// A row of the screen, or a text that is wrapped to several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Row(Vec<StyledText>);

impl Row {
    /// Creates a row with one style.
    pub(super) fn of(look: Look, text: &str) -> Row {
        let mut row = Row::default();
        row.push(look, text);
        row
    }

    /// Appends text; tabs become spaces, whose width is known.
    pub(super) fn push(&mut self, look: Look, text: &str) {
        if text.contains('\t') {
            let spaces = " ".repeat(TAB_COLUMNS);
            return self.push(look, &text.replace('\t', &spaces));
        }
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last.look == look => last.text += text,
            _ => self.0.push(StyledText { look, text: text.to_owned() }),
        }
    }

    pub(super) fn append(&mut self, other: Row) {
        other.0.iter().for_each(|part| self.push(part.look, &part.text));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|part| part.text.as_str()).collect()
    }

    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|part| display_width(&part.text)).sum()
    }

    /// Returns the number of screen rows that the row takes on a terminal, which breaks it at its
    /// last column.
    pub(super) fn height(&self, columns: usize) -> usize {
        if self.width() <= columns {
            return 1;
        }
        let (mut height, mut used) = (1, 0);
        for part in &self.0 {
            for c in part.text.chars() {
                let width = display_width(c.encode_utf8(&mut [0; 4]));
                if used + width > columns {
                    (height, used) = (height + 1, 0);
                }
                used += width;
            }
        }
        height
    }

    /// Returns the row without trailing spaces and line ends.
    pub(super) fn trim_end(mut self) -> Row {
        while let Some(last) = self.0.last_mut() {
            last.text.truncate(last.text.trim_end().len());
            if !last.text.is_empty() {
                break;
            }
            self.0.pop();
        }
        self
    }

    /// Returns the part after `begun`, if this row starts with it.
    pub(super) fn after(&self, begun: &Row) -> Option<Row> {
        let Some((last, whole)) = begun.0.split_last() else { return Some(self.clone()) };
        let rest = self.0.strip_prefix(whole)?;
        let (first, more) = rest.split_first()?;
        let tail = first.text.strip_prefix(&last.text).filter(|_| first.look == last.look)?;
        let mut after = Row::of(first.look, tail);
        after.append(Row(more.to_vec()));
        Some(after)
    }

    /// Writes the row with escape sequences.
    pub(super) fn put(&self, colour: bool, out: &mut String) {
        for StyledText { look, text } in &self.0 {
            match look.parameters(colour).strip_prefix(';') {
                None => *out += text,
                Some(parameters) => *out += &format!("\x1b[{parameters}m{text}\x1b[0m"),
            }
        }
    }

    /// Returns the part of the row between two byte offsets of its text.
    fn slice(&self, range: Range<usize>) -> Row {
        let (mut row, mut at) = (Row::default(), 0);
        for part in &self.0 {
            let end = at + part.text.len();
            let (from, to) = (range.start.clamp(at, end), range.end.clamp(at, end));
            row.push(part.look, &part.text[from - at..to - at]);
            at = end;
        }
        row
    }

    /// Wraps the text into rows of at most `columns` columns; breaks only words that are longer.
    pub(super) fn wrap(&self, columns: usize) -> Vec<Row> {
        let text = self.text();
        let (mut rows, mut at) = (Vec::new(), 0);
        for line in text.split('\n') {
            let words = WordSeparator::UnicodeBreakProperties.find_words(line);
            let words = break_words(words, columns.max(1));
            for words in wrap_first_fit(&words, &[columns as f64]) {
                let bytes = words.iter().map(word_bytes).sum::<usize>();
                let shown = text[at..at + bytes].trim_end().len();
                rows.push(self.slice(at..at + shown));
                at += bytes;
            }
            at += 1; // the end of the line
        }
        rows
    }
}

fn word_bytes(word: &Word<'_>) -> usize {
    word.word.len() + word.whitespace.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(parts: &[(Look, &str)]) -> Row {
        let mut row = Row::default();
        parts.iter().for_each(|(look, text)| row.push(*look, text));
        row
    }

    #[test]
    fn looks_survive_the_wrap() {
        let text = row(&[(Look::PLAIN, "one "), (Look::BOLD, "two three"), (Look::PLAIN, "\n4")]);
        let rows = [
            row(&[(Look::PLAIN, "one "), (Look::BOLD, "two")]),
            row(&[(Look::BOLD, "three")]),
            row(&[(Look::PLAIN, "4")]),
        ];
        assert_eq!(text.wrap(8), rows);
        assert_eq!(Row::default().wrap(8), [Row::default()]);
    }

    #[test]
    fn only_the_new_end_of_a_row_is_written() {
        let begun = row(&[(Look::PLAIN, "a "), (Look::BOLD, "b")]);
        let grown = row(&[(Look::PLAIN, "a "), (Look::BOLD, "bc"), (Look::PLAIN, "d")]);
        let rest = row(&[(Look::BOLD, "c"), (Look::PLAIN, "d")]);
        assert_eq!(grown.after(&begun), Some(rest.clone()));
        assert_eq!(begun.after(&grown), None);
        assert_eq!(grown.after(&Row::default()), Some(grown.clone()));
        let mut out = String::new();
        rest.put(true, &mut out);
        assert_eq!(out, "\x1b[1mc\x1b[0md");
    }

    #[test]
    fn a_long_row_takes_the_rows_that_a_terminal_makes_of_it() {
        let heights = |text: &str| Row::of(Look::CODE, text).height(4);
        assert_eq!(["", "1234", "12345", "12345678", "日本語"].map(heights), [1, 1, 2, 2, 2]);
        assert_eq!(Row::of(Look::CODE, "1日本").height(4), 2, "no half character at the edge");
    }
}
