//! Log-probabilities on their way to the client: each leaves with its token's text, never before
//! it, and knows where in the text that begins.

use loquent_infer::sampling::{Logprobs, SampledToken};
use loquent_infer::token::TokenId;

use crate::flush::TokenLogprobs;

/// A prompt that is repeated before its completion, with its tokens' log-probabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScoredPrompt {
    /// Its first token, which has no log-probability.
    pub first: TokenId,
    /// Where in the repeated text each of its tokens begins, in characters.
    pub offsets: Vec<usize>,
    /// Characters of the repeated text.
    pub chars: usize,
}

/// Log-probabilities that wait for their text.
#[derive(Debug, Default)]
pub struct HeldLogprobs {
    held: Vec<TokenLogprobs>,
    /// Offsets of the prompt's tokens that are still to be scored, the last one first.
    prompt_offsets: Vec<usize>,
    /// Characters of all tokens so far, those of a repeated prompt included.
    generated_chars: usize,
    /// Characters of them that the client may see.
    shown_chars: usize,
}

impl HeldLogprobs {
    /// Those of a completion behind `prompt`, if that is scored.
    pub fn behind(prompt: Option<ScoredPrompt>) -> Self {
        let Some(ScoredPrompt { first, offsets: mut prompt_offsets, chars }) = prompt else {
            return Self::default();
        };
        // Taken from the end, one for each token as it is scored.
        prompt_offsets.reverse();
        let offset = prompt_offsets.pop().unwrap_or(0);
        let held = vec![TokenLogprobs { token: first, logprobs: None, offset }];
        Self { held, prompt_offsets, generated_chars: chars, shown_chars: chars }
    }

    /// Takes in the prompt's next tokens.
    pub fn push_prompt(&mut self, scores: &[SampledToken]) {
        for SampledToken { token, logprobs } in scores {
            let offset = self.prompt_offsets.pop().unwrap_or(self.generated_chars);
            let logprobs = logprobs.as_deref().cloned();
            self.held.push(TokenLogprobs { token: *token, logprobs, offset });
        }
    }

    /// Takes in a generated token, whose text comes next.
    pub fn push(&mut self, token: TokenId, logprobs: Logprobs) {
        let offset = self.generated_chars;
        self.held.push(TokenLogprobs { token, logprobs: Some(logprobs), offset });
    }

    /// Tokens have become `text`; of this and what was held back before, the client may see
    /// `shown`.
    pub fn on_text(&mut self, text: &str, shown: &str) {
        self.generated_chars += text.chars().count();
        self.shown_chars += shown.chars().count();
    }

    /// How many may leave: those whose text begins before the end of what the client may see.
    pub fn ready(&self) -> usize {
        self.held.partition_point(|one| one.offset < self.shown_chars)
    }

    /// Takes those that may leave.
    pub fn take_ready(&mut self) -> Vec<TokenLogprobs> {
        // Most flushes of most answers have none: no vector is made for them.
        match self.ready() {
            0 => Vec::new(),
            ready => self.held.drain(..ready).collect(),
        }
    }

    /// Takes all: no further text comes.
    pub fn take_all(&mut self) -> Vec<TokenLogprobs> {
        std::mem::take(&mut self.held)
    }

    /// A stop string was found: tokens behind the text before it are no part of the answer.
    pub fn cut(&mut self) {
        self.held.truncate(self.ready());
    }
}
