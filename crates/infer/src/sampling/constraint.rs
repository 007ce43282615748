//! Grammars as constraints on the next token.
//!
//! This crate is independent of grammar languages: a grammar is a mask over the vocabulary that is
//! applied to the logits and advanced by the chosen token. Rows without a grammar have no overhead.

use std::fmt;
use std::sync::Arc;

use crate::token::{RowError, TokenId};

/// A compiled grammar, shared by all completions that follow it.
pub trait Grammar: Send + Sync {
    /// Starts the constraint on a completion that has generated `generated` so far. Does not block:
    /// slow work may continue in another thread until [`Constraint::allowed`] is called.
    fn start(&self, generated: &[TokenId]) -> Box<dyn Constraint>;
}

/// The state of one completion in its grammar.
pub trait Constraint: Send {
    /// Returns true if [`Self::allowed`] can be called without a long wait. Does not block.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// Returns the tokens that may come next: bit `i % 32` of word `i / 32` stands for token `i`;
    /// tokens beyond the last word are forbidden. At the grammar's end only end tokens are allowed.
    ///
    /// # Errors
    /// [`RowError::Constraint`] if the grammar exceeds its limits, [`RowError::TooSlow`] if the
    /// tokens are not known in time.
    fn allowed(&mut self) -> Result<&[u32], RowError>;

    /// Advances by `token`, one of those that [`Self::allowed`] returned last.
    fn accept(&mut self, token: TokenId);
}

/// A grammar as part of [`super::Sampling`]; equal only to itself.
#[derive(Clone)]
pub struct SharedGrammar(pub Arc<dyn Grammar>);

impl PartialEq for SharedGrammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for SharedGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedGrammar")
    }
}

/// Forbids the tokens outside `allowed`. Returns true if any logit was finite before.
///
/// # Errors
/// [`RowError::NonFiniteLogits`] if one is NaN, which a mask would hide.
pub(super) fn apply(allowed: &[u32], logits: &mut [f32]) -> Result<bool, RowError> {
    let (mut has_nan, mut has_finite) = (false, false);
    // A short mask forbids the tokens beyond its end: vocabularies are padded with unused rows.
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (group, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
        for (bit, logit) in group.iter_mut().enumerate() {
            has_nan |= logit.is_nan();
            has_finite |= logit.is_finite();
            // Without a branch, so that the loop becomes vector code.
            *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
        }
    }
    if has_nan { Err(RowError::NonFiniteLogits) } else { Ok(has_finite) }
}
