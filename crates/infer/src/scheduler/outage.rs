//! Handles the loss of the engine's state, for a time or for good.
//!
//! No answer is lost with the engine: its prompt, its tokens so far, its seed and its grammar are
//! known here. All sequences are put back, as if preempted, and recomputed when the engine is back.
//!
//! A sequence may be the cause. One that was in the lost batches twice without a new token is then
//! computed alone, so that it affects no other; one that was in [`MOST_LOSSES`] of them fails.

use std::time::Duration;

use super::Scheduler;
use super::sequence::Sequence;
use super::unserved;
use crate::request::{Finish, SequenceEvent};
use crate::runner::{RunError, Runner, Slot};

/// Losses of the engine since a sequence's last token after which the sequence is computed alone. A
/// single loss is no reason: everything that runs is affected.
const SUSPICIOUS_LOSSES: u8 = 2;
/// Losses of the engine since a sequence's last token after which the sequence fails. At least two
/// of them occurred while it was alone, so a single unrelated loss does not fail it.
pub const MOST_LOSSES: u8 = 4;

impl Sequence {
    /// Returns true if the engine was lost during this sequence often enough that it may be the
    /// cause.
    pub(super) fn is_suspicious(&self) -> bool {
        self.losses >= SUSPICIOUS_LOSSES
    }
}

impl Scheduler {
    /// Puts all running sequences back, since the engine lost everything. Sequences that have ended
    /// meanwhile end, and a sequence that was lost with the engine too often fails.
    pub(super) fn lose(
        &mut self,
        at: Duration,
        runner: &mut dyn Runner,
        error: &RunError,
    ) -> Vec<SequenceEvent> {
        let mut events = Vec::new();
        for slot in self.order.clone() {
            let sequence = self.active[slot.index()].as_mut().expect("order lists them");
            sequence.losses += u8::from(sequence.in_flight > 0);
            let (losses, is_ending) = (sequence.losses, sequence.is_ending);
            self.complete(slot);
            if is_ending {
                self.end(runner, slot);
            } else if losses >= MOST_LOSSES {
                events.push(self.fail(at, runner, slot, error.into()));
            } else {
                self.compute_again(runner, slot);
            }
        }
        while self.evict(runner, None) {}
        debug_assert!(self.kv.is_empty() && self.suspects.is_empty());
        events
    }

    /// Ends every sequence because of `why`: the engine did not come back in time.
    pub fn abandon(
        &mut self,
        now: Duration,
        runner: &mut dyn Runner,
        why: &str,
    ) -> Vec<SequenceEvent> {
        let abandoned = || Finish::Abandoned(why.to_owned());
        let mut events = self.give_up(now);
        for slot in self.order.clone() {
            self.complete(slot);
            let failed = self.fail(now, runner, slot, Finish::Failed(why.to_owned()));
            events.push(SequenceEvent { finish: Some(abandoned()), ..failed });
        }
        while let Some(sequence) = self.waiting.take_where(|_| true) {
            self.shares.leave(sequence.account, sequence.paused);
            let waited = now.saturating_sub(sequence.ready_at);
            events.push(unserved(sequence.tag, abandoned(), waited));
        }
        while self.evict(runner, None) {}
        events
    }

    /// Returns the running sequence that must be computed alone, if any.
    pub(super) fn suspicious(&self) -> Option<Slot> {
        let suspicious = |&slot: &Slot| {
            let sequence = self.sequence(slot);
            sequence.is_suspicious() && !sequence.paused
        };
        self.order.iter().copied().find(suspicious)
    }
}
