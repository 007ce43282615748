//! Writes the conversation: the answer as it arrives, notes dimmed, errors in red.

use std::borrow::Cow;
use std::io::{self, Write};

use loquent_proto::printable::printable;

use super::wrap::WordWrap;

/// How to write to where the output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// The output is a terminal, which control characters of the model must not reach.
    pub terminal: bool,
    /// Errors are red and notes are dim.
    pub colour: bool,
    /// Where lines are wrapped.
    pub columns: Columns,
}

/// How wide lines may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// Lines are not wrapped: the output is no terminal, or one that cannot move its cursor.
    Unlimited,
    /// As wide as the terminal, which is asked again for every piece, as users resize windows.
    OfTerminal,
    /// This many columns.
    Fixed(usize),
}

impl Columns {
    fn count(self) -> Option<usize> {
        match self {
            Columns::Unlimited => None,
            Columns::OfTerminal => terminal_size::terminal_size().map(|(width, _)| width.0.into()),
            Columns::Fixed(columns) => Some(columns),
        }
    }
}

impl Style {
    /// The style for a terminal, or for another output. Respects `NO_COLOR` (no-color.org) and
    /// `TERM=dumb`.
    pub fn of_terminal(terminal: bool) -> Style {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let columns = if terminal && !dumb { Columns::OfTerminal } else { Columns::Unlimited };
        Style { terminal, colour: terminal && set("NO_COLOR").is_none() && !dumb, columns }
    }
}

/// Writes a conversation to `out`.
pub struct Screen<W> {
    out: W,
    style: Style,
    /// Whether the current line has text.
    line_open: bool,
    wrap: WordWrap,
}

impl<W: Write> Screen<W> {
    /// A screen that writes to `out`.
    pub fn new(out: W, style: Style) -> Screen<W> {
        Screen { out, style, line_open: false, wrap: WordWrap::default() }
    }

    /// The style that it was made with.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Shows a piece of the answer at once.
    ///
    /// # Errors
    /// Those of writing.
    pub fn answer(&mut self, text: &str) -> io::Result<()> {
        let text = if self.style.terminal { printable(text) } else { Cow::Borrowed(text) };
        // Of the text, not of what is written: erasing and wrapping add line ends of their own.
        if let Some(last) = text.chars().next_back() {
            self.line_open = last != '\n';
        }
        let text = wrapped(&mut self.wrap, self.style.columns, text);
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Ends the answer: what follows begins on a line of its own.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end_line(&mut self) -> io::Result<()> {
        self.wrap = WordWrap::default();
        if std::mem::take(&mut self.line_open) {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    /// Shows a message of the program, dimly.
    ///
    /// # Errors
    /// Those of writing.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        self.painted("\x1b[2m", text)
    }

    /// Shows what went wrong, in red.
    ///
    /// # Errors
    /// Those of writing.
    pub fn error(&mut self, text: &str) -> io::Result<()> {
        self.painted("\x1b[31m", text)
    }

    fn painted(&mut self, colour: &str, text: &str) -> io::Result<()> {
        let text = printable(text);
        let text = wrapped(&mut WordWrap::default(), self.style.columns, text);
        if self.style.colour {
            writeln!(self.out, "{colour}{text}\x1b[0m")?;
        } else {
            writeln!(self.out, "{text}")?;
        }
        self.out.flush()
    }
}

/// What to write so that `text` is wrapped at `columns`.
fn wrapped<'a>(wrap: &mut WordWrap, columns: Columns, text: Cow<'a, str>) -> Cow<'a, str> {
    let Some(columns) = columns.count() else { return text };
    let mut out = String::new();
    wrap.push(&text, columns, &mut out);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let show = |terminal| {
            let mut out = Vec::new();
            let mut screen = Screen::new(
                &mut out,
                Style { terminal, colour: false, columns: Columns::Unlimited },
            );
            screen.answer("a\x1b]52;c;x\x07\tb\u{9b}1m\r").unwrap();
            screen.end_line().unwrap();
            screen.end_line().unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show(true), "a]52;c;x\tb1m\n");
        assert_eq!(show(false), "a\x1b]52;c;x\x07\tb\u{9b}1m\r\n");
    }

    #[test]
    fn a_word_that_does_not_fit_goes_to_the_next_line() {
        let mut out = Vec::new();
        let columns = Columns::Fixed(10);
        let mut screen = Screen::new(&mut out, Style { terminal: true, colour: false, columns });
        screen.answer("was prod").unwrap();
        screen.answer("uced").unwrap();
        screen.end_line().unwrap();
        screen.note("also in notes").unwrap();
        let erased = "\x1b[4G\x1b[K";
        let expected = format!("was prod{erased}\nproduced\nalso in\nnotes\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn colours_only_where_they_are_wanted() {
        let mut out = Vec::new();
        Screen::new(&mut out, Style { terminal: true, colour: true, columns: Columns::Unlimited })
            .note("n")
            .unwrap();
        assert_eq!(out, b"\x1b[2mn\x1b[0m\n");
    }
}
