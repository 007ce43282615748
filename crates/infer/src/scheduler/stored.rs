//! The scheduler's record of prefixes that come from a store outside the engine, or could go there.

use std::collections::VecDeque;

use super::sequence::Sequence;
use crate::request::{RestoreId, RestoreOrder};
use crate::runner::Slot;

/// Minimum tokens that the store must have beyond the cache: fewer are computed about as soon as
/// they are read. Chosen by hand.
const WORTH_RESTORING_TOKENS: u32 = 64;

/// The scheduler's record of what it wants from the store, and has for it.
#[derive(Debug, Default)]
pub(super) struct StoredPrefixes {
    /// Number of orders so far.
    ordered: u64,
    /// Orders that nobody has taken yet.
    pub orders: Vec<RestoreOrder>,
    /// Slots whose sequences have ended, oldest first; at most one entry for each.
    pub kept: VecDeque<Slot>,
}

impl StoredPrefixes {
    /// Orders the beginning of a sequence that has got a place, if the store has enough of it.
    pub fn order(&mut self, sequence: &mut Sequence, cached: u32) {
        let worth = sequence.stored_tokens >= cached + WORTH_RESTORING_TOKENS;
        if !worth || sequence.is_to_be_scored() {
            return;
        }
        let id = RestoreId(self.ordered);
        self.ordered += 1;
        sequence.restoring = Some(id);
        let tokens = sequence.tokens[..sequence.stored_tokens as usize].to_vec();
        self.orders.push(RestoreOrder { id, domain: sequence.cache_domain, tokens, cached });
    }

    /// Records that `slot` holds what an ended sequence left.
    pub fn note_kept(&mut self, slot: Slot) {
        if !self.kept.contains(&slot) {
            self.kept.push_back(slot);
        }
    }
}
