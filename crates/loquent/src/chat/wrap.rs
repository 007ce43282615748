//! Word wrap for text that arrives in pieces, as answers do.
//!
//! A terminal breaks a line after its last column, in the middle of a word. Here every piece is
//! still shown at once: when a word turns out not to fit, the part of it that is already on the
//! screen is erased, and the word moves to the next line. `textwrap` decides where a line may break
//! (Unicode's line breaking algorithm) and how wide characters are.

use std::fmt::Write;

use textwrap::WordSeparator;
use textwrap::core::{Word, break_words, display_width};
use textwrap::wrap_algorithms::wrap_first_fit;

/// Start of a line that opens or closes a code block in Markdown.
const FENCE: &str = "```";
/// Columns from one tab stop to the next.
const TAB_COLUMNS: usize = 8;

/// Wraps one text.
#[derive(Debug, Default)]
pub(super) struct WordWrap {
    /// The text of the terminal's current row.
    row: String,
    /// Bytes of `row` that are on the screen: all but spaces beyond the last column.
    shown_bytes: usize,
    /// Start of the current line of the text, which may be a fence.
    beginning: String,
    /// True within code, which is not wrapped, so that a copy of it from the screen keeps the
    /// model's line breaks.
    in_code: bool,
}

impl WordWrap {
    /// Appends to `out` the output that shows `piece` after the text so far on a terminal with
    /// `columns` columns.
    pub(super) fn push(&mut self, piece: &str, columns: usize, out: &mut String) {
        for line in piece.split_inclusive('\n') {
            let text = line.strip_suffix('\n');
            self.extend_line(text.unwrap_or(line), columns, out);
            if text.is_some() {
                out.push('\n');
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        self.in_code ^= self.beginning.trim_start().starts_with(FENCE);
        self.beginning.clear();
        self.row.clear();
        self.shown_bytes = 0;
    }

    fn extend_line(&mut self, text: &str, columns: usize, out: &mut String) {
        // Only as much as shows whether the line is a fence: a line may be very long.
        let missing = (2 * FENCE.len()).saturating_sub(self.beginning.len());
        self.beginning.extend(text.chars().take(missing));
        if self.in_code {
            out.push_str(text);
            return;
        }
        for (index, part) in text.split('\t').enumerate() {
            if index > 0 {
                // Spaces, because `textwrap` cannot know how wide a tab is.
                let used = display_width(&self.row) % TAB_COLUMNS;
                self.row.extend(std::iter::repeat_n(' ', TAB_COLUMNS - used));
            }
            self.row.push_str(part);
        }
        self.show(columns, out);
    }

    /// Updates the screen from the first `shown_bytes` of the row to the whole row.
    fn show(&mut self, columns: usize, out: &mut String) {
        let words = WordSeparator::UnicodeBreakProperties.find_words(&self.row);
        let words = break_words(words, columns);
        let rows = wrap_first_fit(&words, &[columns as f64]);
        let mut row_start = 0;
        for (index, words) in rows.iter().enumerate() {
            let is_last = index + 1 == rows.len();
            let row_end = row_start + words.iter().map(word_bytes).sum::<usize>();
            let row = &self.row[row_start..row_end];
            let visible = if is_last { fitting(row, columns) } else { row.trim_end() };
            if index > 0 {
                out.push('\n');
                self.shown_bytes = 0;
            } else if self.shown_bytes > visible.len() {
                // The column is absolute: a terminal that has just filled its last column still
                // stands on it, so that a relative move would go one too far.
                let _ = write!(out, "\x1b[{}G\x1b[K", display_width(visible) + 1);
                self.shown_bytes = visible.len();
            }
            out.push_str(&visible[self.shown_bytes..]);
            self.shown_bytes = visible.len();
            if is_last {
                self.row = row.to_owned();
                return;
            }
            row_start = row_end;
        }
    }
}

fn word_bytes(word: &Word<'_>) -> usize {
    word.word.len() + word.whitespace.len()
}

/// Returns the row without trailing spaces beyond the last column.
fn fitting(row: &str, columns: usize) -> &str {
    let mut row = row;
    while display_width(row) > columns {
        match row.strip_suffix(' ') {
            Some(shorter) => row = shorter,
            None => break,
        }
    }
    row
}

#[cfg(test)]
mod tests {
    //! Checks that a small terminal shows the text as `textwrap` wraps it whole, however it is cut
    //! into pieces.
    use proptest::prelude::*;

    use super::*;

    /// Returns the rows of a terminal that has received `output`; supports the sequences that
    /// [`WordWrap`] sends.
    fn screen(output: &str) -> Vec<String> {
        let mut rows = vec![String::new()];
        let mut rest = output;
        while let Some(c) = rest.chars().next() {
            let row = rows.last_mut().unwrap();
            if let Some(after) = rest.strip_prefix("\x1b[") {
                let (column, after) = after.split_once('G').unwrap();
                let columns = column.parse::<usize>().unwrap() - 1;
                while display_width(row) > columns {
                    row.pop();
                }
                assert_eq!(display_width(row), columns, "the cursor does not jump ahead");
                rest = after.strip_prefix("\x1b[K").unwrap();
                continue;
            }
            match c {
                '\n' => rows.push(String::new()),
                c => row.push(c),
            }
            rest = &rest[c.len_utf8()..];
        }
        rows
    }

    fn shown(pieces: &[&str], columns: usize) -> Vec<String> {
        let (mut wrap, mut out) = (WordWrap::default(), String::new());
        pieces.iter().for_each(|piece| wrap.push(piece, columns, &mut out));
        screen(&out)
    }

    #[test]
    fn words_move_to_the_next_line_whole() {
        assert_eq!(shown(&["it was prod", "uced here"], 12), ["it was", "produced", "here"]);
        assert_eq!(shown(&["one two", " three"], 7), ["one two", "three"]);
        assert_eq!(shown(&["one two ", " ", "x\n", "y"], 7), ["one two", "x", "y"]);
        assert_eq!(shown(&["extraordinary"], 5), ["extra", "ordin", "ary"]);
        assert_eq!(shown(&["a\tb"], 20), ["a       b"]);
        assert_eq!(shown(&["日本語のテキスト"], 6), ["日本語", "のテキ", "スト"]);
        assert_eq!(shown(&["", "\n", "\n"], 5), ["", "", ""]);
    }

    #[test]
    fn code_is_left_to_the_terminal() {
        let code = "```sh\nls --all --human\n```\nand so on";
        let rows = ["```sh", "ls --all --human", "```", "and so", "on"];
        assert_eq!(shown(&[code], 8), rows);
        assert_eq!(shown(&["``", "`sh\nls --all --human\n`", "``\nand so on"], 8), rows);
    }

    /// Returns `text` in pieces, cut after each of these numbers of characters.
    fn pieces<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        for &cut in cuts {
            let at = rest.char_indices().nth(cut).map_or(rest.len(), |(at, _)| at);
            let (piece, after) = rest.split_at(at);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        pieces
    }

    proptest! {
        #[test]
        fn words_are_wrapped_as_in_a_text_that_is_there_at_once(
            words in prop::collection::vec("[a-zä]{1,8}", 1..30),
            cuts in prop::collection::vec(0usize..40, 0..30),
            columns in 8usize..30,
        ) {
            let text = words.join(" ");
            let options = textwrap::Options::new(columns)
                .word_separator(WordSeparator::UnicodeBreakProperties)
                .word_splitter(textwrap::WordSplitter::NoHyphenation)
                .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit);
            prop_assert_eq!(shown(&pieces(&text, &cuts), columns), textwrap::wrap(&text, &options));
        }

        /// Without a good place to break, the cuts may determine which bad one is taken.
        #[test]
        fn no_row_is_too_long_and_no_character_is_lost(
            words in prop::collection::vec("[a-zä,.日-]{1,9}", 1..30),
            cuts in prop::collection::vec(0usize..40, 0..30),
            columns in 4usize..30,
        ) {
            let text = words.join(" ");
            let rows = shown(&pieces(&text, &cuts), columns);
            for row in &rows {
                prop_assert!(display_width(row) <= columns, "{:?} in {} columns", row, columns);
            }
            let letters = |text: &str| text.replace(' ', "");
            prop_assert_eq!(letters(&rows.concat()), letters(&text));
        }
    }
}
