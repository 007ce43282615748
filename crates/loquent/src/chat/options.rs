//! The options shared by `loquent chat` and `loquent run`.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::files::{self, AttachedFile};

/// Maximum size of standard input; more would not fit into any model's context.
const MAX_STDIN_BYTES: u64 = 16 << 20;

/// Options of a chat with any model.
#[derive(Debug, Clone, clap::Args)]
pub struct TalkArgs {
    /// System message at the start of the conversation
    #[arg(long, short, value_name = "TEXT", env = "LOQUENT_SYSTEM")]
    pub system: Option<String>,
    /// Maximum number of tokens per answer [default: the server's]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// Text file that goes with the first question; repeatable
    #[arg(long, short, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// Show answers as the model wrote them instead of rendering their Markdown
    #[arg(long, env = "LOQUENT_PLAIN")]
    pub plain: bool,
    /// What becomes of the model's reasoning
    #[arg(long, value_name = "HOW", env = "LOQUENT_REASONING", default_value = "fold")]
    pub reasoning: ReasoningDisplay,
}

/// Display of the model's reasoning. Without a terminal there is none, unless shown in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReasoningDisplay {
    /// Show its last lines while it arrives, and its duration afterwards
    Fold,
    /// Leave it on the screen
    Full,
    /// Show its duration only
    Hide,
}

impl TalkArgs {
    /// Reads the files attached to the first question.
    ///
    /// # Errors
    /// If one cannot be read or is not text.
    pub(super) fn attached(&self) -> anyhow::Result<Vec<AttachedFile>> {
        self.file.iter().map(|path| files::read(path)).collect()
    }
}

/// Returns the single question, if there is one: from the words of the command line, else from
/// standard input unless that is a terminal.
pub(super) fn prompt_of(
    words: &[String],
    stdin: impl Read + IsTerminal,
) -> anyhow::Result<Option<String>> {
    let reads_stdin = words.iter().any(|word| word == "-");
    if words.is_empty() && stdin.is_terminal() {
        return Ok(None);
    }
    let mut piped = String::new();
    if words.is_empty() || reads_stdin {
        stdin
            .take(MAX_STDIN_BYTES + 1)
            .read_to_string(&mut piped)
            .context("cannot read standard input")?;
    }
    if piped.len() as u64 > MAX_STDIN_BYTES {
        bail!("standard input is longer than {MAX_STDIN_BYTES} bytes");
    }
    let prompt = match words {
        [] => piped,
        words => {
            let words = words.iter().map(|word| if word == "-" { &piped } else { word });
            words.map(String::as_str).collect::<Vec<_>>().join(" ")
        }
    };
    if prompt.trim().is_empty() {
        bail!("the prompt is empty; give one as an argument or on standard input");
    }
    Ok(Some(prompt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(words: &[&str], stdin: &str) -> anyhow::Result<Option<String>> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), stdin).unwrap();
        prompt_of(&words, file.reopen().unwrap())
    }

    #[test]
    fn the_question_comes_from_words_or_from_standard_input() {
        assert_eq!(prompt(&["one", "two"], "ignored").unwrap().unwrap(), "one two");
        assert_eq!(prompt(&[], "piped\n").unwrap().unwrap(), "piped\n");
        assert_eq!(prompt(&["see:", "-", "?"], "piped").unwrap().unwrap(), "see: piped ?");
        assert!(prompt(&[], " \n").unwrap_err().to_string().contains("empty"));
        assert!(prompt(&[" "], "").is_err());
    }
}
