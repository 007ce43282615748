//! What the user sees: the answer as it comes, notes dimly, errors in red.

use std::borrow::Cow;
use std::io::{self, Write};

/// How to write to where the output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Somebody watches: control characters of the model must not reach the terminal.
    pub terminal: bool,
    /// Colours and dim text.
    pub colour: bool,
}

impl Style {
    /// The style for a terminal or none; `NO_COLOR` (no-color.org) and `TERM=dumb` are heeded.
    pub fn of_terminal(terminal: bool) -> Style {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        Style { terminal, colour: terminal && set("NO_COLOR").is_none() && !dumb }
    }
}

/// Writes a conversation.
pub struct Screen<W> {
    out: W,
    style: Style,
    /// Whether text stands on the current line.
    line_open: bool,
}

impl<W: Write> Screen<W> {
    /// A screen that writes to `out`.
    pub fn new(out: W, style: Style) -> Screen<W> {
        Screen { out, style, line_open: false }
    }

    /// How it writes.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Shows a piece of the answer at once.
    ///
    /// # Errors
    /// Those of writing, here and in the other methods.
    pub fn answer(&mut self, text: &str) -> io::Result<()> {
        let text = if self.style.terminal { harmless(text) } else { Cow::Borrowed(text) };
        if let Some(last) = text.chars().next_back() {
            self.line_open = last != '\n';
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Ends the line if one is open.
    pub fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.line_open) {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    /// Shows words of the program's own.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        self.painted("\x1b[2m", text)
    }

    /// Shows what went wrong.
    pub fn error(&mut self, text: &str) -> io::Result<()> {
        self.painted("\x1b[31m", text)
    }

    fn painted(&mut self, colour: &str, text: &str) -> io::Result<()> {
        let text = harmless(text);
        if self.style.colour {
            writeln!(self.out, "{colour}{text}\x1b[0m")?;
        } else {
            writeln!(self.out, "{text}")?;
        }
        self.out.flush()
    }
}

/// The text without control characters, by which a model or a server could rewrite the screen,
/// set the clipboard or answer queries in the user's name.
fn harmless(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(harmful) {
        Cow::Owned(text.chars().filter(|c| !harmful(*c)).collect())
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let show = |terminal| {
            let mut out = Vec::new();
            let mut screen = Screen::new(&mut out, Style { terminal, colour: false });
            screen.answer("a\x1b]52;c;x\x07\tb\u{9b}1m\r").unwrap();
            screen.end_line().unwrap();
            screen.end_line().unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show(true), "a]52;c;x\tb1m\n");
        assert_eq!(show(false), "a\x1b]52;c;x\x07\tb\u{9b}1m\r\n");
    }

    #[test]
    fn colours_only_where_they_are_wanted() {
        let mut out = Vec::new();
        Screen::new(&mut out, Style { terminal: true, colour: true }).note("n").unwrap();
        assert_eq!(out, b"\x1b[2mn\x1b[0m\n");
    }
}
