//! What a line that begins with a slash does.

use std::io::{self, Write};

use super::dialogue::Dialogue;
use super::screen::Screen;

const HELP: &str = "\
/help            this list
/reset           begin a new conversation (the system message stays)
/system [TEXT]   show or set the system message
/retry           ask the last question again
/quit            end (as does Ctrl-D)
//TEXT           a message that begins with a slash
A backslash at the end of a line continues the message on the next. Ctrl-C stops an answer.";

/// A line that is not a message to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// List the commands.
    Help,
    /// Forget the conversation.
    Reset,
    /// Show the system message, or set it.
    System(Option<String>),
    /// Ask the last question again, without its answer in the conversation.
    Retry,
    /// End.
    Quit,
    /// A message after all, which begins with a slash.
    Say(String),
    /// None of the above.
    Unknown(String),
}

impl Command {
    /// The command that `line` is, or none if it is a message.
    pub fn parse(line: &str) -> Option<Command> {
        let rest = line.strip_prefix('/')?;
        if rest.starts_with('/') {
            return Some(Command::Say(rest.to_owned()));
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
        Some(match (name, argument) {
            ("help" | "?", None) => Command::Help,
            ("reset", None) => Command::Reset,
            ("system", argument) => Command::System(argument.map(str::to_owned)),
            ("retry", None) => Command::Retry,
            ("quit" | "exit", None) => Command::Quit,
            _ => Command::Unknown(format!("/{name}")),
        })
    }
}

/// Does what needs no answer of the model.
pub(super) fn obey(
    command: Command,
    dialogue: &mut Dialogue,
    screen: &mut Screen<impl Write>,
) -> io::Result<()> {
    match command {
        Command::Help => screen.note(HELP),
        Command::Reset => {
            dialogue.reset();
            screen.note("A new conversation.")
        }
        Command::System(Some(text)) => {
            dialogue.system = Some(text);
            screen.note("The system message is set.")
        }
        Command::System(None) => {
            screen.note(dialogue.system.as_deref().unwrap_or("There is no system message."))
        }
        Command::Unknown(name) => screen.error(&format!("{name} is no command; /help lists them")),
        Command::Retry | Command::Quit | Command::Say(_) => {
            unreachable!("the conversation handles it itself")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_slash_are_commands() {
        assert_eq!(Command::parse("hello"), None);
        assert_eq!(Command::parse(" /quit"), None);
        assert_eq!(Command::parse("/quit"), Some(Command::Quit));
        assert_eq!(
            Command::parse("/system  be brief "),
            Some(Command::System(Some("be brief".into())))
        );
        assert_eq!(Command::parse("/system"), Some(Command::System(None)));
        assert_eq!(Command::parse("//etc"), Some(Command::Say("/etc".into())));
        assert_eq!(Command::parse("/quit now"), Some(Command::Unknown("/quit".into())));
        assert_eq!(Command::parse("/"), Some(Command::Unknown("/".into())));
    }
}
