//! Completes commands and their paths with the Tab key.

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::commands::NAMES;

/// Completes commands and paths for the line editor.
pub(super) struct CommandCompleter {
    files: FilenameCompleter,
}

impl CommandCompleter {
    pub(super) fn new() -> CommandCompleter {
        CommandCompleter { files: FilenameCompleter::new() }
    }
}

impl Completer for CommandCompleter {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..at];
        if ["/file ", "/save "].iter().any(|command| typed.starts_with(command)) {
            return self.files.complete(line, at, context);
        }
        let pair =
            |name: &str| Pair { display: format!("/{name}"), replacement: format!("/{name}") };
        let fits = |name: &&&str| typed.strip_prefix('/').is_some_and(|it| name.starts_with(it));
        Ok((0, NAMES.iter().filter(fits).map(|name| pair(name)).collect()))
    }
}

impl Helper for CommandCompleter {}
impl Hinter for CommandCompleter {
    type Hint = String;
}
impl Highlighter for CommandCompleter {}
impl Validator for CommandCompleter {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_completed() {
        let history = rustyline::history::DefaultHistory::new();
        let complete = |line: &str| {
            let (_, pairs) = CommandCompleter::new()
                .complete(line, line.len(), &Context::new(&history))
                .unwrap();
            pairs.into_iter().map(|pair| pair.replacement).collect::<Vec<_>>()
        };
        assert_eq!(complete("/sy"), ["/system"]);
        assert_eq!(complete("/"), NAMES.map(|name| format!("/{name}")));
        assert!(complete("sy").is_empty() && complete("/system be").is_empty());
    }
}
