//! Writes the conversation: the answer as it arrives, notes dimmed, errors in red. [`RichAnswer`]
//! renders Markdown if the output is a terminal that can move its cursor.

use std::borrow::Cow;
use std::io::{self, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use loquent_client::openai::shown_call;
use loquent_proto::printable::printable;
use tokio::time::Instant;

use super::arriving::AnswerPart;
use super::options::ReasoningDisplay;
use super::rich::{Canvas, RichAnswer, duration_line};
use super::wrap::WordWrap;

/// Maximum text sent to a clipboard, in bytes of Base64: the limit of xterm and tmux.
const LONGEST_COPY_BYTES: usize = 100_000;
/// Rows assumed for a screen of which only the columns are known.
const PAGE_ROWS: usize = 24;

/// Properties of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// True if the output is a terminal, which must not receive control characters from the model.
    pub terminal: bool,
    /// Shows errors in red and notes dimmed.
    pub colour: bool,
    /// Width at which lines are wrapped.
    pub columns: Columns,
}

/// Maximum width of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// Lines are not wrapped: the output is not a terminal, or one that cannot move its cursor.
    Unlimited,
    /// The terminal's width, queried again for every piece, as users resize windows.
    OfTerminal,
    /// A fixed number of columns.
    Fixed(usize),
}

impl Columns {
    fn count(self) -> Option<usize> {
        self.screen_size().map(|(columns, _)| columns)
    }

    /// Returns columns and rows.
    fn screen_size(self) -> Option<(usize, usize)> {
        match self {
            Columns::Unlimited => None,
            Columns::OfTerminal => {
                let (columns, rows) = terminal_size::terminal_size()?;
                Some((columns.0.into(), rows.0.into()))
            }
            Columns::Fixed(columns) => Some((columns, PAGE_ROWS)),
        }
    }
}

impl Style {
    /// Returns the style for a terminal, or for another output. Respects `NO_COLOR` (no-color.org)
    /// and `TERM=dumb`.
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
    reasoning: ReasoningDisplay,
    /// The rendered answer, if the screen renders Markdown.
    rich: Option<RichAnswer>,
    /// Time at which the model started reasoning; unused with `rich`.
    thinking: Option<Instant>,
    /// True if the current line has text.
    line_open: bool,
    wrap: WordWrap,
}

impl<W: Write> Screen<W> {
    /// Creates a screen that writes unrendered answers to `out`.
    pub fn new(out: W, style: Style) -> Screen<W> {
        Screen {
            out,
            style,
            reasoning: ReasoningDisplay::Fold,
            rich: None,
            thinking: None,
            line_open: false,
            wrap: WordWrap::default(),
        }
    }

    /// Sets the display of the model's reasoning.
    pub fn with_reasoning(self, reasoning: ReasoningDisplay) -> Screen<W> {
        Screen { reasoning, ..self }
    }

    /// Enables Markdown rendering if the output is a terminal that can move its cursor.
    pub fn with_markdown(self) -> Screen<W> {
        let rich = self.canvas().map(|_| RichAnswer::new(self.reasoning));
        Screen { rich, ..self }
    }

    /// Returns the style of the screen.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Returns the size of the screen, if it has one.
    fn canvas(&self) -> Option<Canvas> {
        let (columns, rows) = self.style.columns.screen_size()?;
        Some(Canvas { columns, rows, colour: self.style.colour })
    }

    /// Shows a part of the answer at once.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn show(&mut self, part: AnswerPart<'_>) -> io::Result<()> {
        let canvas = self.canvas();
        let (Some(rich), Some(canvas)) = (&mut self.rich, canvas) else {
            return self.show_plainly(part);
        };
        let mut out = String::new();
        rich.show(part, Instant::now(), canvas, &mut out);
        self.write(&out)
    }

    fn write(&mut self, out: &str) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        self.out.write_all(out.as_bytes())?;
        self.out.flush()
    }

    fn show_plainly(&mut self, part: AnswerPart<'_>) -> io::Result<()> {
        match part {
            AnswerPart::Tick | AnswerPart::Progress(_) => Ok(()),
            AnswerPart::Reasoning(text) => self.think_plainly(text),
            AnswerPart::Text(text) => {
                self.end_thinking()?;
                self.answer(text)
            }
            AnswerPart::Call { name, arguments, .. } => {
                self.end_thinking()?;
                let call = shown_call(name, arguments.to_owned());
                // A call begins on a line of its own, which this may be already.
                self.answer(if self.line_open { &call } else { call.trim_start_matches('\n') })
            }
        }
    }

    fn think_plainly(&mut self, text: &str) -> io::Result<()> {
        if self.thinking.is_none() {
            self.thinking = Some(Instant::now());
            if self.style.terminal {
                self.note("Thinking…")?;
            }
        }
        if self.reasoning == ReasoningDisplay::Full { self.answer(text) } else { Ok(()) }
    }

    /// Separates the answer from the reasoning before it, if there was any.
    fn end_thinking(&mut self) -> io::Result<()> {
        let Some(since) = self.thinking.take() else { return Ok(()) };
        self.end_row()?;
        if self.style.terminal { self.note(&duration_line(since.elapsed())) } else { Ok(()) }
    }

    /// Shows a piece of text unrendered, at once.
    ///
    /// # Errors
    /// Errors of writing.
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

    /// Ends the answer: later output starts on a new line.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn end_line(&mut self) -> io::Result<()> {
        let canvas = self.canvas();
        if let (Some(rich), Some(canvas)) = (&mut self.rich, canvas) {
            let mut out = String::new();
            rich.end(Instant::now(), canvas, &mut out);
            *rich = RichAnswer::new(self.reasoning);
            return self.write(&out);
        }
        self.end_thinking()?;
        self.end_row()
    }

    fn end_row(&mut self) -> io::Result<()> {
        self.wrap = WordWrap::default();
        if std::mem::take(&mut self.line_open) {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    /// Leaves a blank line before the next question.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn space(&mut self) -> io::Result<()> {
        if self.rich.is_some() { self.write("\n") } else { Ok(()) }
    }

    /// Copies `text` to the clipboard, if the terminal lets programs do that (OSC 52).
    ///
    /// # Errors
    /// If the output is not a terminal, the text is too long for most terminals, or it cannot be
    /// written.
    pub fn copy(&mut self, text: &str) -> anyhow::Result<()> {
        anyhow::ensure!(self.style.terminal, "the output is no terminal, so it has no clipboard");
        let encoded = BASE64_STANDARD.encode(text);
        let limit = LONGEST_COPY_BYTES;
        anyhow::ensure!(encoded.len() <= limit, "this is too long for a clipboard; /save it");
        self.write(&format!("\x1b]52;c;{encoded}\x07"))?;
        Ok(())
    }

    /// Shows a message of the program, dimmed.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        self.painted("\x1b[2m", text)
    }

    /// Shows an error, in red.
    ///
    /// # Errors
    /// Errors of writing.
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

/// Returns the output that wraps `text` at `columns`.
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
