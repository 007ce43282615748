//! The latest tokens of a sequence: the window of its repetition penalty.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use crate::token::TokenId;

/// The latest tokens of a sequence, up to a number of them.
#[derive(Debug, Default)]
pub(super) struct LatestTokens {
    most: usize,
    in_order: VecDeque<TokenId>,
    /// Occurrences of each of them.
    counts: HashMap<TokenId, u32>,
}

impl LatestTokens {
    /// Keeps up to `most` of `tokens` and of those that follow.
    pub(super) fn of(most: u32, tokens: &[TokenId]) -> Self {
        let mut latest = Self { most: most as usize, ..Self::default() };
        let first = tokens.len().saturating_sub(latest.most);
        tokens[first..].iter().for_each(|&token| latest.push(token));
        latest
    }

    /// Adds the next token of the sequence.
    pub(super) fn push(&mut self, token: TokenId) {
        self.in_order.push_back(token);
        *self.counts.entry(token).or_default() += 1;
        if self.in_order.len() <= self.most {
            return;
        }
        let Some(oldest) = self.in_order.pop_front() else { return };
        if let Entry::Occupied(mut count) = self.counts.entry(oldest) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Returns each of the tokens once.
    pub(super) fn distinct(&self) -> impl Iterator<Item = TokenId> {
        self.counts.keys().copied()
    }

    /// Returns the tokens, the oldest first.
    pub(super) fn in_order(&self) -> impl Iterator<Item = TokenId> {
        self.in_order.iter().copied()
    }
}
