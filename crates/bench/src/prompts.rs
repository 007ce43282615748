//! Sources of prompts: one text, lines of a file, or a JSONL corpus.

use std::path::Path;

use serde::Deserialize;

use crate::BenchError;

/// Maximum number of prompts read from a file.
const MAX_PROMPTS: usize = 100_000;

/// One line of a corpus.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CorpusPrompt {
    /// Unique name of the prompt in its corpus.
    pub prompt_id: String,
    /// Kind of question, for human readers of the corpus.
    #[serde(default)]
    pub category: String,
    /// Length class, such as short or long.
    #[serde(default)]
    pub length_bucket: String,
    /// The text to send.
    pub prompt: String,
}

/// Reads a corpus (`.jsonl`) or one prompt per line (any other extension). Blank lines are skipped.
///
/// # Errors
/// If the file cannot be read, has no prompts or too many, or a line of a corpus is malformed.
pub fn read_file(path: &Path) -> Result<Vec<String>, BenchError> {
    let refuse = |reason: String| BenchError::Prompts { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let is_corpus = path.extension().is_some_and(|extension| extension == "jsonl");
    let prompts = if is_corpus {
        parse_corpus(&text).map(|lines| lines.into_iter().map(|line| line.prompt).collect())
    } else {
        Ok(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
    };
    let prompts: Vec<String> = prompts.map_err(refuse)?;
    match prompts.len() {
        0 => Err(refuse("it holds no prompt".into())),
        1..=MAX_PROMPTS => Ok(prompts),
        count => Err(refuse(format!("{count} prompts are more than {MAX_PROMPTS}"))),
    }
}

/// Parses a corpus.
///
/// # Errors
/// Describes the first malformed line, with its number.
pub fn parse_corpus(text: &str) -> Result<Vec<CorpusPrompt>, String> {
    let mut prompts: Vec<CorpusPrompt> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refuse = |reason: String| format!("line {}: {reason}", number + 1);
        let prompt: CorpusPrompt =
            serde_json::from_str(line).map_err(|error| refuse(error.to_string()))?;
        if !seen.insert(prompt.prompt_id.clone()) {
            return Err(refuse(format!("prompt_id {:?} occurs twice", prompt.prompt_id)));
        }
        if prompt.prompt.is_empty() {
            return Err(refuse("the prompt is empty".into()));
        }
        prompts.push(prompt);
    }
    Ok(prompts)
}

/// Words of [`long_text`]; none is longer than a few tokens, none shorter than one.
const WORDS: [&str; 16] = [
    "river", "window", "seven", "letter", "garden", "under", "simple", "morning", "paper",
    "slowly", "stone", "answer", "north", "silver", "market", "between",
];

/// Generates text of at least `tokens` tokens in any tokenizer that does not join words. `run` and
/// `index` make it differ from its beginning on.
pub fn long_text(tokens: usize, run: usize, index: usize) -> String {
    let mut text = format!("[{run}.{index}]");
    let mut state = (run as u64) << 32 | index as u64 | 1;
    for _ in 0..tokens {
        // A linear congruential step (Knuth's MMIX constants): any mixing will do.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.push(' ');
        text.push_str(WORDS[(state >> 60) as usize]);
    }
    text
}

/// Rule that assigns prompts to requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptSource {
    /// The texts, used in turn; never empty.
    pub texts: Vec<String>,
    /// Number of repetitions of each text (makes longer prompts).
    pub repeats: usize,
    /// Starts each request's prompt with its own number, so that no two share a prefix.
    pub unique: bool,
}

impl PromptSource {
    /// Returns the prompt of request `index` in run `run`.
    pub fn prompt(&self, run: usize, index: usize) -> String {
        let text = self.texts[index % self.texts.len()].repeat(self.repeats);
        if self.unique { format!("[{run}.{index}] {text}") } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = include_str!("../../../bench/corpora/chat.jsonl");
    const VARIED: &str = include_str!("../../../bench/corpora/varied.txt");

    #[test]
    fn our_corpus_is_varied() {
        let corpus = parse_corpus(CHAT).unwrap();
        assert!(corpus.len() >= 40);
        let distinct = |of: fn(&CorpusPrompt) -> &str| {
            corpus.iter().map(of).collect::<std::collections::HashSet<_>>().len()
        };
        assert!(distinct(|prompt| &prompt.category) >= 6);
        assert_eq!(distinct(|prompt| &prompt.length_bucket), 4);
        assert_eq!(distinct(|prompt| &prompt.prompt), corpus.len());
        assert!(VARIED.lines().count() >= 40);
    }

    #[test]
    fn corpus_errors_name_the_line() {
        let bad =
            "{\"prompt_id\":\"a\",\"prompt\":\"x\"}\n\n{\"prompt_id\":\"a\",\"prompt\":\"y\"}";
        assert_eq!(parse_corpus(bad).unwrap_err(), "line 3: prompt_id \"a\" occurs twice");
        assert!(parse_corpus("{").unwrap_err().starts_with("line 1: "));
    }

    #[test]
    fn files_are_read_by_their_kind() {
        let dir = tempfile::tempdir().unwrap();
        let lines = dir.path().join("p.txt");
        std::fs::write(&lines, "one\n\n two\n").unwrap();
        assert_eq!(read_file(&lines).unwrap(), ["one", " two"]);
        std::fs::write(&lines, "\n").unwrap();
        assert!(read_file(&lines).unwrap_err().to_string().contains("no prompt"));
        assert!(read_file(&dir.path().join("none.jsonl")).is_err());
    }

    #[test]
    fn prompts_are_used_in_turn() {
        let mut source =
            PromptSource { texts: vec!["a".into(), "b".into()], repeats: 2, unique: false };
        assert_eq!([source.prompt(0, 0), source.prompt(0, 3)], ["aa", "bb"]);
        source.unique = true;
        assert_eq!(source.prompt(4, 3), "[4.3] bb");
    }
}
