//! Options that choose the prompts.

use std::path::PathBuf;

use clap::Args;

use super::check;
use crate::BenchError;
use crate::preset::PresetValues;
use crate::prompts::{PromptSource, read_file};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prompts")]
pub(super) struct PromptArgs {
    /// Prompt text [default: "Hello"]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// File of prompts: one per line, or a JSONL corpus
    ///
    /// The fields of a JSONL line are prompt_id, category, length_bucket and prompt; only the
    /// last is required.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Use only the first N prompts of the file
    #[arg(long, value_name = "N")]
    prompt_limit: Option<usize>,
    /// Make every prompt differ from its first character on
    ///
    /// No prompt then starts with another one's text, so a prefix cache saves nothing.
    #[arg(long)]
    unique_prompts: bool,
    /// Repeat each prompt's text N times
    #[arg(long, value_name = "N", default_value_t = 1)]
    prompt_repeats: usize,
    /// Tokenize prompts before the run and send token ids
    ///
    /// Uses POST /tokenize, and /v1/completions for the requests.
    #[arg(long)]
    pub(super) pretok: bool,
}

impl PromptArgs {
    pub(super) fn resolve(&self, preset: &PresetValues) -> Result<PromptSource, BenchError> {
        check(
            (1..=100_000).contains(&self.prompt_repeats),
            "--prompt-repeats must be 1 to 100000",
        )?;
        let mut texts = match (&self.prompt_file, &self.prompt) {
            (Some(path), _) => read_file(path)?,
            (None, Some(prompt)) => vec![prompt.clone()],
            (None, None) if preset.prompts.is_empty() => vec!["Hello".into()],
            (None, None) => preset.prompts.clone(),
        };
        if let Some(limit) = self.prompt_limit {
            check(limit > 0, "--prompt-limit must be at least 1")?;
            texts.truncate(limit);
        }
        Ok(PromptSource { texts, repeats: self.prompt_repeats, unique: self.unique_prompts })
    }
}
