//! The user's input: lines from the terminal, joined to messages.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};

use super::completion::CommandCompleter;
use super::quiet_input::QuietInput;
use crate::shutdown;
use crate::user_folder::user_folder;

/// Maximum number of lines in the history file.
const HISTORY_LINES: usize = 1000;
/// Values of `TERM` for which the line editor only reads lines, and leaves Ctrl-C a signal.
const TERMS_WITHOUT_EDITING: [&str; 3] = ["dumb", "cons25", "emacs"];

/// The result of waiting for a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A line, without its end.
    Line(String),
    /// Ctrl-C: the text typed so far is discarded.
    Interrupted,
    /// Ctrl-D, or the end of the input.
    End,
}

/// A source of input lines: the terminal, or a test.
pub trait Lines {
    /// Waits for the next line; `continued` asks for a further line of the same message.
    ///
    /// # Errors
    /// If the input cannot be read.
    fn line(&mut self, continued: bool) -> anyhow::Result<Input>;

    /// Adds a complete message to the history, which the arrow keys recall in later sessions.
    fn remember(&mut self, _message: &str) {}

    /// Suppresses the echo of typed text until the guard is dropped.
    fn while_answering(&self) -> Option<QuietInput> {
        None
    }
}

/// Returns the next non-empty message, or `None` at the end of the input. A backslash at the end of
/// a line continues the message on the next one.
pub(super) fn message(lines: &mut impl Lines) -> anyhow::Result<Option<String>> {
    let mut message = String::new();
    let mut continued = false;
    loop {
        match lines.line(continued)? {
            Input::Line(line) => {
                message += line.strip_suffix('\\').unwrap_or(&line);
                continued = line.ends_with('\\');
            }
            Input::Interrupted => {
                message.clear();
                continued = false;
            }
            Input::End => return Ok(None),
        }
        if continued {
            message.push('\n');
        } else if !message.trim().is_empty() {
            lines.remember(&message);
            return Ok(Some(message));
        } else {
            message.clear();
        }
    }
}

/// The terminal, with line editing and a history shared by all sessions.
pub(super) struct Terminal {
    editor: Editor<CommandCompleter, FileHistory>,
    history: Option<PathBuf>,
    /// Set while a line is read on a terminal without editing, where Ctrl-C could not discard it:
    /// it ends the program.
    interrupt_ends: Option<Arc<AtomicBool>>,
}

impl Terminal {
    pub(super) fn new() -> anyhow::Result<Terminal> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)?
            .auto_add_history(false)
            .completion_type(CompletionType::List)
            .build();
        let mut editor = Editor::with_config(config).context("this terminal cannot be used")?;
        editor.set_helper(Some(CommandCompleter::new()));
        let history = history_file();
        if let Some(file) = &history {
            // There is none before the first conversation.
            let _ = editor.load_history(file);
        }
        let term = std::env::var("TERM").unwrap_or_default();
        let is_plain = TERMS_WITHOUT_EDITING.iter().any(|name| name.eq_ignore_ascii_case(&term));
        let interrupt_ends = is_plain.then(shutdown::interruptible).transpose()?;
        Ok(Terminal { editor, history, interrupt_ends })
    }
}

impl Lines for Terminal {
    fn line(&mut self, continued: bool) -> anyhow::Result<Input> {
        // Blocks the task on purpose: nothing else happens while the user types, and idle
        // connections need no attention.
        let is_reading = |reading| {
            if let Some(ends) = &self.interrupt_ends {
                ends.store(reading, Ordering::Release);
            }
        };
        is_reading(true);
        let read = self.editor.readline(if continued { "… " } else { "> " });
        is_reading(false);
        match read {
            Ok(line) => Ok(Input::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(error).context("the terminal cannot be read"),
        }
    }

    fn remember(&mut self, message: &str) {
        let added = self.editor.add_history_entry(message);
        if let (Ok(true), Some(file)) = (added, &self.history) {
            // The history is a comfort: a full disk is no reason to end a conversation.
            let _ = self.editor.append_history(file);
        }
    }

    fn while_answering(&self) -> Option<QuietInput> {
        QuietInput::start()
    }
}

/// Returns `$XDG_STATE_HOME/loquent/chat_history`, after creating its folder.
fn history_file() -> Option<PathBuf> {
    let dir = user_folder("XDG_STATE_HOME", ".local/state")?.join("loquent");
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("chat_history"))
}
