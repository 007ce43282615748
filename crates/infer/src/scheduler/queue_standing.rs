//! Progress of completions whose prompts are not computed yet, for their waiting readers.

use std::time::Duration;

use crate::request::{PrefillProgress, QueueStanding, Step, Tag};
use crate::scheduler::Scheduler;
use crate::scheduler::shares::{AccountId, Shares};
use crate::scheduler::waiting::WaitingQueues;

/// Minimum time between two reports. Readers get one every 500 ms at most; theirs may be this late.
const PERIOD: Duration = Duration::from_millis(100);

impl Scheduler {
    /// Adds the progress of prompts to `step`, the latest one, unless it was reported a moment ago.
    /// No cost while no prompt waits or is being computed.
    pub fn note_standing(&mut self, step: &mut Step) {
        // Checked first: while all sequences decode, nothing below runs.
        if step.prefills == 0 && self.waiting.len() == 0 {
            return;
        }
        let now = step.finished;
        if self.stood_at.is_some_and(|last| now.saturating_sub(last) < PERIOD) {
            return;
        }
        self.stood_at = Some(now);
        step.standing = Some(Box::new(self.standing()));
    }

    fn standing(&self) -> QueueStanding {
        let computing = self.order.iter().map(|&slot| (self.sequence(slot), self.kv.len(slot)));
        let computing = computing.filter(|(sequence, _)| sequence.generated().is_empty());
        let computing = computing.map(|(sequence, known)| PrefillProgress {
            tag: sequence.tag,
            cached: sequence.admitted.map_or(0, |admitted| admitted.cached_tokens),
            known,
        });
        QueueStanding {
            places: self.limits.max_batch_size,
            shared_tokens: self.budget.usual_tokens(self.order.len().max(1)),
            prefill_tokens: self.limits.prefill_max_tokens.min(self.capacity.batch_tokens),
            computing: computing.collect(),
            waiting: in_turn(&self.waiting, &self.shares),
        }
    }
}

/// Returns the waiting completions in the order in which they will get places, if tenants are
/// served as they are now: each in its own order, and between tenants by their shares.
fn in_turn(waiting: &WaitingQueues, shares: &Shares) -> Vec<Tag> {
    // Of each tenant: how many of its sequences have had their turn.
    let mut queues: Vec<(AccountId, usize)> =
        waiting.accounts().map(|account| (account, 0)).collect();
    let mut order = Vec::with_capacity(waiting.len());
    loop {
        let next = queues.iter_mut().filter_map(|(account, taken)| {
            let sequence = waiting.of(*account).get(*taken)?;
            let served = shares.with_more(*account, *taken as u64 + 1);
            let turn = (sequence.is_spare, served);
            Some(((turn, sequence.arrival), sequence.tag, taken))
        });
        let Some((_, tag, taken)) = next.min_by_key(|(turn, ..)| *turn) else {
            return order;
        };
        *taken += 1;
        order.push(tag);
    }
}
