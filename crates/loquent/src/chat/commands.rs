//! The commands of the chat: lines that begin with a slash.

use std::io::{self, Write};

use super::dialogue::Dialogue;
use super::screen::Screen;

const HELP: &str = "\
/help            show this list
/reset           start a new conversation; the system message stays
/system [TEXT]   show or set the system message
/retry           ask the last question again
/quit            leave the chat, as does Ctrl-D
//TEXT           send a message that begins with a slash
A backslash at the end of a line continues the message on the next line.
Ctrl-C stops an answer.";

/// A line that is meant for the chat and not for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlashCommand {
    /// `/help`: list the commands.
    Help,
    /// `/reset`: remove all messages.
    Reset,
    /// `/system`: show the system message, or set it to this text.
    System(Option<String>),
    /// `/retry`: remove the last answer from the conversation and ask its question again.
    Retry,
    /// `/quit`: leave the chat.
    Quit,
    /// `//TEXT`: a message to the model that begins with a slash.
    Say(String),
    /// Another word after the slash.
    Unknown(String),
}

impl SlashCommand {
    /// The command in `line`; `None` if the line is a message.
    pub fn parse(line: &str) -> Option<SlashCommand> {
        let rest = line.strip_prefix('/')?;
        if rest.starts_with('/') {
            return Some(SlashCommand::Say(rest.to_owned()));
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
        Some(match (name, argument) {
            ("help" | "?", None) => SlashCommand::Help,
            ("reset", None) => SlashCommand::Reset,
            ("system", argument) => SlashCommand::System(argument.map(str::to_owned)),
            ("retry", None) => SlashCommand::Retry,
            ("quit" | "exit", None) => SlashCommand::Quit,
            _ => SlashCommand::Unknown(format!("/{name}")),
        })
    }
}

/// Executes a command that needs no answer of the model.
///
/// # Errors
/// Those of writing to the screen.
pub(super) fn obey(
    command: SlashCommand,
    dialogue: &mut Dialogue,
    screen: &mut Screen<impl Write>,
) -> io::Result<()> {
    match command {
        SlashCommand::Help => screen.note(HELP),
        SlashCommand::Reset => {
            dialogue.reset();
            screen.note("The conversation is empty.")
        }
        SlashCommand::System(Some(text)) => {
            dialogue.system = Some(text);
            screen.note("The system message is set.")
        }
        SlashCommand::System(None) => {
            screen.note(dialogue.system.as_deref().unwrap_or("There is no system message."))
        }
        SlashCommand::Unknown(name) => {
            screen.error(&format!("{name} is not a command; /help lists them"))
        }
        SlashCommand::Retry | SlashCommand::Quit | SlashCommand::Say(_) => {
            unreachable!("`converse` handles these itself")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_slash_are_commands() {
        assert_eq!(SlashCommand::parse("hello"), None);
        assert_eq!(SlashCommand::parse(" /quit"), None);
        assert_eq!(SlashCommand::parse("/quit"), Some(SlashCommand::Quit));
        assert_eq!(
            SlashCommand::parse("/system  be brief "),
            Some(SlashCommand::System(Some("be brief".into())))
        );
        assert_eq!(SlashCommand::parse("/system"), Some(SlashCommand::System(None)));
        assert_eq!(SlashCommand::parse("//etc"), Some(SlashCommand::Say("/etc".into())));
        assert_eq!(SlashCommand::parse("/quit now"), Some(SlashCommand::Unknown("/quit".into())));
        assert_eq!(SlashCommand::parse("/"), Some(SlashCommand::Unknown("/".into())));
    }
}
