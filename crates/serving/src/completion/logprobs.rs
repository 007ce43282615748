//! Log-probabilities waiting to be sent: each is sent with its token's text, never earlier, and
//! records the text offset of its token.

use loquent_infer::sampling::{Logprobs, SampledToken};
use loquent_infer::token::TokenId;

use crate::flush::TokenLogprobs;

/// A prompt echoed before its completion, with log-probabilities of its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScoredPrompt {
    /// The prompt's first token, which has no log-probability.
    pub first: TokenId,
    /// Offset of each token in the echoed text, in characters.
    pub offsets: Vec<usize>,
    /// Length of the echoed text in characters.
    pub chars: usize,
}

/// Log-probabilities waiting for their text.
#[derive(Debug, Default)]
pub struct PendingLogprobs {
    held: Vec<TokenLogprobs>,
    /// Offsets of the prompt tokens that have not been scored yet, last one first.
    prompt_offsets: Vec<usize>,
    /// Characters of all tokens so far, including an echoed prompt.
    generated_chars: usize,
    /// Characters already released to the client.
    shown_chars: usize,
}

impl PendingLogprobs {
    /// Returns the log-probabilities of a completion that follows `prompt`, if that is scored.
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

    /// Adds the scores of the prompt's next tokens.
    pub fn push_prompt(&mut self, scores: &[SampledToken]) {
        for SampledToken { token, logprobs } in scores {
            let offset = self.prompt_offsets.pop().unwrap_or(self.generated_chars);
            let logprobs = logprobs.as_deref().cloned();
            self.held.push(TokenLogprobs { token: *token, logprobs, offset });
        }
    }

    /// Adds a generated token, before its text.
    pub fn push(&mut self, token: TokenId, logprobs: Option<Logprobs>) {
        let offset = self.generated_chars;
        self.held.push(TokenLogprobs { token, logprobs, offset });
    }

    /// Notes that tokens became `text`, and that `shown` was released to the client, including text
    /// held back before.
    pub fn on_text(&mut self, text: &str, shown: &str) {
        self.generated_chars += text.chars().count();
        self.shown_chars += shown.chars().count();
    }

    /// Number of log-probabilities that may be sent: their tokens' text begins within the released
    /// text.
    pub fn ready(&self) -> usize {
        self.held.partition_point(|one| one.offset < self.shown_chars)
    }

    /// Bytes of all of them, as they count towards a stream's bound.
    pub fn size_bytes(&self) -> usize {
        self.held.iter().map(TokenLogprobs::size_bytes).sum()
    }

    /// Takes the log-probabilities that may be sent.
    pub fn take_ready(&mut self) -> Vec<TokenLogprobs> {
        // Most flushes of most answers have none: no vector is made for them.
        match self.ready() {
            0 => Vec::new(),
            ready => self.held.drain(..ready).collect(),
        }
    }

    /// Takes all log-probabilities, at the end of the text.
    pub fn take_all(&mut self) -> Vec<TokenLogprobs> {
        std::mem::take(&mut self.held)
    }

    /// Drops the tokens after a stop string, which are not part of the answer.
    pub fn cut(&mut self) {
        self.held.truncate(self.ready());
    }
}
