//! Draws the columns: continuously on a terminal, otherwise once at the end.

use std::io::{self, IsTerminal, Write};

use super::layout::{Line, TextStyle};
use crate::chat::Style;

/// Size assumed for an output that is not a terminal, in columns and rows.
const PAGE: (usize, usize) = (100, 0);

/// The output for the columns.
pub struct DemoScreen<W: Write> {
    out: W,
    colour: bool,
    /// True for a terminal that can move its cursor, which shows the run live.
    is_live: bool,
    is_alternate: bool,
}

impl DemoScreen<io::Stdout> {
    /// Creates a screen on the standard output.
    pub fn stdout() -> Self {
        let style = Style::of_terminal(io::stdout().is_terminal());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_live = style.terminal && !dumb;
        Self { out: io::stdout(), colour: style.colour, is_live, is_alternate: false }
    }
}

impl<W: Write> DemoScreen<W> {
    /// Returns the columns and rows of the screen.
    pub fn size(&self) -> (usize, usize) {
        let size = self.is_live.then(terminal_size::terminal_size).flatten();
        size.map_or(PAGE, |(columns, rows)| (columns.0.into(), rows.0.into()))
    }

    /// Draws a frame over the last one.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        if !self.is_live {
            return Ok(());
        }
        let mut frame = String::new();
        if !self.is_alternate {
            // A screen of its own, so that what was there comes back; without a cursor.
            frame.push_str("\x1b[?1049h\x1b[?25l");
            self.is_alternate = true;
        }
        frame.push_str("\x1b[H");
        for (number, line) in lines.iter().enumerate() {
            frame.push_str(if number > 0 { "\x1b[K\r\n" } else { "" });
            frame.push_str(&self.painted(line));
        }
        frame.push_str("\x1b[K\x1b[J");
        self.out.write_all(frame.as_bytes())?;
        self.out.flush()
    }

    /// Restores the screen and prints `lines` below.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn print(&mut self, lines: &[Line]) -> io::Result<()> {
        self.leave();
        for line in lines {
            writeln!(self.out, "{}", self.painted(line).trim_end())?;
        }
        self.out.flush()
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_alternate) {
            // Nothing can be done for a terminal that is gone.
            let _ = self.out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| self.out.flush());
        }
    }

    fn painted(&self, line: &Line) -> String {
        let piece = |(paint, text): &(TextStyle, String)| match code(*paint) {
            Some(code) if self.colour => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.clone(),
        };
        line.iter().map(piece).collect()
    }
}

impl<W: Write> Drop for DemoScreen<W> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns the terminal's code for a style.
fn code(paint: TextStyle) -> Option<u8> {
    match paint {
        TextStyle::Plain => None,
        TextStyle::Bold => Some(1),
        TextStyle::Dim => Some(2),
        TextStyle::Red => Some(31),
        TextStyle::Green => Some(32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(is_live: bool, colour: bool) -> DemoScreen<Vec<u8>> {
        DemoScreen { out: Vec::new(), colour, is_live, is_alternate: false }
    }

    fn written(screen: &DemoScreen<Vec<u8>>) -> &str {
        std::str::from_utf8(&screen.out).unwrap()
    }

    #[test]
    fn a_terminal_gets_its_screen_back() {
        let mut screen = screen(true, true);
        let line = vec![(TextStyle::Red, "still".to_owned())];
        screen.draw(std::slice::from_ref(&line)).unwrap();
        screen.draw(&[]).unwrap();
        assert_eq!(written(&screen).matches("\x1b[?1049h").count(), 1);
        screen.print(&[line]).unwrap();
        assert!(written(&screen).ends_with("\x1b[?25h\x1b[?1049l\x1b[31mstill\x1b[0m\n"));
    }

    #[test]
    fn a_file_gets_text_alone() {
        let mut screen = screen(false, false);
        let line = vec![(TextStyle::Red, "still  ".to_owned())];
        screen.draw(std::slice::from_ref(&line)).unwrap();
        screen.print(&[line]).unwrap();
        assert_eq!(written(&screen), "still\n");
        assert_eq!(screen.size(), PAGE);
    }
}
