//! The commands of the chat: lines that start with a slash.

/// Names of all commands, for completion with the Tab key.
pub(super) const NAMES: [&str; 11] = [
    "copy", "file", "help", "model", "quit", "reset", "retry", "save", "set", "system", "thoughts",
];

/// Text of `/help`.
pub(super) const HELP: &str = "\
/file PATH       send a text file with the next message
/copy [code]     copy the last answer, or its last block of code
/save FILE       write the conversation to a file: Markdown, or JSON if it is called .json
/model [NAME]    list the models, or ask another one from here on
/system [TEXT]   show or set the system message
/set [NAME [N]]  show or set temperature, top_p, seed and other parameters
/retry           ask the last question again
/reset           start a new conversation; the system message stays
/thoughts        show the reasoning of the last answer
/help            show this list
/quit            leave the chat, as does Ctrl-D
//TEXT           send a message that begins with a slash
A backslash at the end of a line continues the message on the next line.
Ctrl-C stops an answer. Tab completes commands and paths.";

/// A line that is addressed to the chat, not to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlashCommand {
    /// `/help`: list the commands.
    Help,
    /// `/reset`: remove all messages.
    Reset,
    /// `/system`: show the system message, or set it to this text.
    System(Option<String>),
    /// `/set`: show the parameters, or the one of this name, or set it to the number after it.
    Set(Option<String>),
    /// `/model`: list the models, or switch to this one.
    Model(Option<String>),
    /// `/file`: send this file with the next message, or list the files to be sent.
    File(Option<String>),
    /// `/save`: write the conversation to this file.
    Save(String),
    /// `/copy`: copy the last answer.
    Copy,
    /// `/copy code`: copy the last block of code of the last answer.
    CopyCode,
    /// `/thoughts`: show the reasoning of the last answer.
    Thoughts,
    /// `/retry`: remove the last answer from the conversation and ask its question again.
    Retry,
    /// `/quit`: leave the chat.
    Quit,
    /// `//TEXT`: a message to the model that starts with a slash.
    Say(String),
    /// An unknown word after the slash.
    Unknown(String),
}

impl SlashCommand {
    /// Parses the command in `line`; returns `None` if the line is a message.
    pub fn parse(line: &str) -> Option<SlashCommand> {
        let rest = line.strip_prefix('/')?;
        if rest.starts_with('/') {
            return Some(SlashCommand::Say(rest.to_owned()));
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
        let owned = argument.map(str::to_owned);
        Some(match (name, argument) {
            ("help" | "?", None) => SlashCommand::Help,
            ("reset" | "clear", None) => SlashCommand::Reset,
            ("system", _) => SlashCommand::System(owned),
            ("set", _) => SlashCommand::Set(owned),
            ("model", _) => SlashCommand::Model(owned),
            ("file", path) => SlashCommand::File(path.map(unescaped)),
            ("save", Some(path)) => SlashCommand::Save(unescaped(path)),
            ("copy", None) => SlashCommand::Copy,
            ("copy", Some("code")) => SlashCommand::CopyCode,
            ("thoughts", None) => SlashCommand::Thoughts,
            ("retry", None) => SlashCommand::Retry,
            ("quit" | "exit" | "bye", None) => SlashCommand::Quit,
            _ => SlashCommand::Unknown(format!("/{name}")),
        })
    }
}

/// Returns a path without the quotes, or the backslashes before spaces, that shells and completion
/// add.
fn unescaped(path: &str) -> String {
    for quote in ['"', '\''] {
        let inner = path.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner.to_owned();
        }
    }
    path.replace("\\ ", " ")
}

/// Returns the last code block in a Markdown text.
pub(super) fn last_code(text: &str) -> Option<String> {
    use pulldown_cmark::{Event, Parser, Tag, TagEnd};
    let (mut last, mut open) = (None, None::<String>);
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => open = Some(String::new()),
            Event::Text(text) => open.iter_mut().for_each(|code| *code += &text),
            Event::End(TagEnd::CodeBlock) => last = open.take(),
            _ => {}
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_slash_are_commands() {
        let parse = SlashCommand::parse;
        assert_eq!(parse("hello"), None);
        assert_eq!(parse(" /quit"), None);
        assert_eq!(parse("/quit"), Some(SlashCommand::Quit));
        assert_eq!(
            parse("/system  be brief "),
            Some(SlashCommand::System(Some("be brief".into())))
        );
        assert_eq!(parse("/system"), Some(SlashCommand::System(None)));
        assert_eq!(parse("/set seed 1"), Some(SlashCommand::Set(Some("seed 1".into()))));
        assert_eq!(parse("/copy code"), Some(SlashCommand::CopyCode));
        assert_eq!(parse("/save a\\ b.md"), Some(SlashCommand::Save("a b.md".into())));
        assert_eq!(parse("/file 'a b'"), Some(SlashCommand::File(Some("a b".into()))));
        assert_eq!(parse("//etc"), Some(SlashCommand::Say("/etc".into())));
        for unknown in ["/quit now", "/", "/save", "/copy all"] {
            assert!(matches!(parse(unknown), Some(SlashCommand::Unknown(_))), "{unknown}");
        }
    }

    #[test]
    fn every_command_is_known_and_explained() {
        for name in NAMES {
            let line = format!("/{name} x");
            let bare = SlashCommand::parse(&format!("/{name}"));
            let known = |command| !matches!(command, Some(SlashCommand::Unknown(_)));
            assert!(known(bare) || known(SlashCommand::parse(&line)), "{name}");
            assert!(
                HELP.contains(&format!("\n/{name} ")) || HELP.starts_with(&format!("/{name} "))
            );
        }
    }

    #[test]
    fn the_last_code_is_found() {
        let text = "```sh\na\n```\n\n- x\n\n  ```\n  b\n  c\n  ```\nend";
        assert_eq!(last_code(text).unwrap(), "b\nc\n");
        assert_eq!(last_code("`a`"), None);
    }
}
