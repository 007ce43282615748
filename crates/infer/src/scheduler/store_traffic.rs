//! Prefixes in a store outside the engine, such as files: the beginning of a prompt can come from
//! there, and finished sequences can go there.
//!
//! The scheduler knows neither the store nor its time. A sequence that gets a place while the store
//! has more of its prompt than the cache has is not computed until its [`RestoreOrder`] is ended.
//! Until then its keys and values come in parts between steps, so that other sequences go on.

use thiserror::Error;

use super::Scheduler;
use crate::request::{RestoreId, RestoreOrder};
use crate::runner::{Runner, SavedSpan, Slot};
use crate::tenant::CacheDomain;
use crate::token::TokenId;

/// Reason why a part of a stored prefix was not added to its sequence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The part does not continue the sequence.
    #[error("a part before it is missing")]
    Gap,
    /// Too few cells are free.
    #[error("the KV cache is full")]
    NoRoom,
    /// The runner cannot use the part, with the reason.
    #[error("the engine cannot use it: {0}")]
    Unusable(String),
}

/// Access to a scheduler for the owner of a store of prefixes, between two steps.
#[derive(Debug)]
pub struct StoreTraffic<'a>(&'a mut Scheduler);

impl<'a> StoreTraffic<'a> {
    /// Creates access to `scheduler`.
    pub fn of(scheduler: &'a mut Scheduler) -> Self {
        Self(scheduler)
    }

    /// Returns new orders. Each must be ended, or its sequence is never computed.
    pub fn take_orders(&mut self) -> Vec<RestoreOrder> {
        std::mem::take(&mut self.0.stored.orders)
    }

    /// Returns true if any sequence can be computed now.
    pub fn others_run(&self) -> bool {
        self.0.runnable().next().is_some()
    }

    /// Returns true if a sequence waits for the order `id`.
    pub fn awaits(&self, id: RestoreId) -> bool {
        self.slot_of(id).is_some()
    }

    /// Adds a part of the order `id` to its sequence; returns the number of tokens that it has more
    /// now. Parts of a sequence that has left are ignored.
    ///
    /// # Errors
    /// [`RestoreError`]. End the order then: the rest is computed.
    pub fn restore(
        &mut self,
        runner: &mut dyn Runner,
        id: RestoreId,
        part: &SavedSpan,
    ) -> Result<u32, RestoreError> {
        let Some(slot) = self.slot_of(id) else { return Ok(0) };
        let scheduler = &mut *self.0;
        let (from, sequence) = (scheduler.kv.len(slot), scheduler.sequence(slot));
        // The last token is computed in any case: its logits are needed.
        let to = part.positions.end.min(sequence.tokens.len() as u32 - 1);
        if to <= from {
            return Ok(0);
        }
        if part.positions.start > from {
            return Err(RestoreError::Gap);
        }
        // The runner may need cells for all of it for a moment.
        if scheduler.free_cells() < part.positions.len() as u32 {
            return Err(RestoreError::NoRoom);
        }
        let tokens = sequence.tokens[from as usize..to as usize].to_vec();
        runner.restore(slot, from..to, part).map_err(RestoreError::Unusable)?;
        scheduler.kv.append(slot, &tokens);
        scheduler.load.prefix_hits += u64::from(to - from);
        let sequence = scheduler.active[slot.index()].as_mut().expect("it was found");
        // One that was preempted reports what its first admission found.
        if let Some(admitted) = sequence.admitted.as_mut().filter(|_| !sequence.keeps_place) {
            admitted.cached_tokens += to - from;
        }
        Ok(to - from)
    }

    /// Ends an order: the rest of the prompt is computed.
    pub fn end(&mut self, id: RestoreId) {
        if let Some(slot) = self.slot_of(id) {
            let sequence = self.0.active[slot.index()].as_mut().expect("it was found");
            sequence.restoring = None;
        }
    }

    /// Ends all orders.
    pub fn end_all(&mut self) {
        self.0.active.iter_mut().flatten().for_each(|sequence| sequence.restoring = None);
    }

    /// Returns the next slot in which an ended sequence left its keys and values.
    pub fn next_kept(&mut self) -> Option<Slot> {
        self.0.stored.kept.pop_front()
    }

    /// Returns the domain and the tokens of the keys and values that are kept in `slot`; `None` if
    /// they are gone or a sequence uses them.
    pub fn kept(&self, slot: Slot) -> Option<(CacheDomain, &[TokenId])> {
        let is_kept = self.0.idle.contains(&slot);
        is_kept.then(|| (self.0.kv.domain(slot), self.0.kv.tokens(slot)))
    }

    fn slot_of(&self, id: RestoreId) -> Option<Slot> {
        let restores = |slot: &Slot| self.0.sequence(*slot).restoring == Some(id);
        self.0.order.iter().copied().find(restores)
    }
}
