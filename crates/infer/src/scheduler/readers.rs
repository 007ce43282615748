//! Lets answers rest whose readers still have text in hand.
//!
//! A reader that is slower than its answer accumulates text. When others need the engine more, its
//! sequence *rests*: it keeps its cells, gives up its place, and continues well before its reader
//! runs dry. The gain goes to prompts, whose steps are shorter without its row and may carry more
//! of them, to sequences that wait for a place, and to readers that fall behind. Without any of
//! these no sequence rests: a larger batch computes more tokens per second.
//!
//! A sequence rests only if the server has reported its reader's state. All others are in every
//! step, as if none rested.

use std::time::Duration;

use super::Scheduler;
use crate::reading::{ReaderReport, Reading};
use crate::request::Tag;
use crate::runner::Slot;

/// Time in hand at which a sequence starts to rest, and at which it continues. In between it keeps
/// its state, so that places do not change hands in every step. The time left when it continues
/// covers a slow step and a lost packet; the way to the reader does not count as in hand. Found
/// with `plans/burst.toml`: with twice as much, readers accumulate text too late for a burst larger
/// than the batch.
const RESTS_FROM: Duration = Duration::from_millis(1_000);
const WAKES_AT: Duration = Duration::from_millis(500);
/// A reader with less than this in hand that reads faster than steps come is falling behind.
const ALARM: Duration = Duration::from_millis(300);
/// Percentage that a step with prompts may take of the least time in hand of any reader. The rest
/// is a margin for steps that take longer than expected.
const STEP_PERCENT: u32 = 90;
/// Free cells, in tokens per sequence, required before admitting beyond the batch size: resting
/// sequences keep their cells and will resume.
const GROWTH_TOKENS: u32 = 256;
/// One row of [`Scheduler::row_credit`].
const ROW: u64 = 1 << 16;

impl Scheduler {
    /// Updates the state of a completion's reader; `None` if it is no longer known. Unknown tags
    /// are ignored.
    pub fn note_reader(&mut self, tag: Tag, report: Option<ReaderReport>) {
        let slot = self.slot_of(tag);
        let sequence = match slot {
            Some(slot) => self.active[slot.index()].as_mut(),
            None => self.waiting.find_mut(tag),
        };
        let Some(sequence) = sequence else { return };
        let generated = sequence.generated().len();
        sequence.reading = report.map(|report| Reading::new(report, generated));
    }

    /// Decides at `now` which sequences rest.
    pub(super) fn rest_readers(&mut self, now: Duration) {
        let is_known = |slot: &Slot| self.sequence(*slot).reading.is_some();
        if !self.order.iter().any(|slot| is_known(slot) || self.sequence(*slot).rests) {
            return;
        }
        // Once for all, since it looks at all of them.
        let pressed = self.is_pressed(now);
        for at in 0..self.order.len() {
            let slot = self.order[at];
            let enough = if self.sequence(slot).rests { WAKES_AT } else { RESTS_FROM };
            let has_enough = self.in_hand(now, slot).is_some_and(|hand| hand >= enough);
            self.set_resting(slot, pressed && has_enough);
        }
    }

    /// Returns true if resting sequences would help any other.
    fn is_pressed(&self, now: Duration) -> bool {
        // Who waits for cells gains nothing: a sequence that rests keeps its own for longer.
        let waits = |sequence: &_| !self.is_blocked(sequence);
        let may_start = || self.waiting.iter().filter(|sequence| !sequence.paused).any(waits);
        let computes = |slot: &Slot| self.pending(*slot) > 1 && !self.sequence(*slot).paused;
        self.order.len() > self.limits.max_batch_size
            || self.order.iter().any(computes)
            || self.order.iter().any(|&slot| self.loses_ground(now, slot))
            || may_start()
    }

    /// Returns true if the sequence's reader is about to run dry and reads faster than steps come.
    fn loses_ground(&self, now: Duration, slot: Slot) -> bool {
        let slower = |reading: Reading| {
            self.budget.decode_step().is_some_and(|step| step > reading.token_time())
        };
        let is_short = self.in_hand(now, slot).is_some_and(|hand| hand < ALARM);
        is_short && self.sequence(slot).reading.is_some_and(slower)
    }

    /// Time in hand of the reader of a decoding sequence, if known.
    fn in_hand(&self, now: Duration, slot: Slot) -> Option<Duration> {
        let sequence = self.sequence(slot);
        let reading = sequence.reading.filter(|_| self.decodes(slot));
        reading.map(|reading| reading.in_hand(now))
    }

    /// Returns true if the next step of `slot` gives a token of its answer, not the first.
    fn decodes(&self, slot: Slot) -> bool {
        let sequence = self.sequence(slot);
        !sequence.paused && !sequence.generated().is_empty() && self.pending(slot) == 1
    }

    /// Lets a sequence rest, or continue. A resting sequence has no place in the batch.
    pub(super) fn set_resting(&mut self, slot: Slot, rests: bool) {
        let sequence = self.active[slot.index()].as_mut().expect("order lists them");
        if std::mem::replace(&mut sequence.rests, rests) == rests {
            return;
        }
        match rests {
            true => self.shares.give_place(sequence.account),
            false => self.shares.take_place(sequence.account),
        }
    }

    /// Lets all sequences continue; returns true if any rested.
    pub(super) fn wake_all(&mut self) -> bool {
        let resting = |slot: &Slot| self.sequence(*slot).rests;
        let resting: Vec<Slot> = self.order.iter().copied().filter(resting).collect();
        resting.iter().for_each(|&slot| self.set_resting(slot, false));
        !resting.is_empty()
    }

    /// Number of sequences that hold a place in the batch.
    pub(super) fn places_taken(&self) -> usize {
        self.order.iter().filter(|&&slot| !self.sequence(slot).rests).count()
    }

    /// Returns true if one more sequence of `tokens` may be admitted in the place of a resting one:
    /// only if all have room to grow, since resting sequences keep their cells and will continue.
    pub(super) fn has_room_beyond_places(&self, tokens: u32) -> bool {
        if self.order.len() < self.limits.max_batch_size {
            return true;
        }
        let grown = |&slot: &Slot| {
            let sequence = self.sequence(slot);
            let left = sequence.max_tokens.saturating_sub(sequence.generated().len() as u32);
            sequence.tokens.len() as u64 + u64::from(left.min(GROWTH_TOKENS))
        };
        let taken: u64 = self.order.iter().map(grown).sum();
        taken + u64::from(tokens + GROWTH_TOKENS) <= u64::from(self.capacity.kv_cells)
    }

    /// Selects the `most` of `decoding` to compute next, if sequences have resumed and there are
    /// too few places for all. Sequences with unknown readers get their equal share of rows, in
    /// turns; the rest goes to the readers that run dry first.
    pub(super) fn share_rows(&mut self, mut decoding: Vec<Slot>, most: usize) -> Vec<Slot> {
        if decoding.len() > most {
            // Fractions of rows are carried over, so that few are not left out for ever.
            let is_unknown = |slot: &Slot| self.sequence(*slot).reading.is_none();
            let (mut unknown, mut known): (Vec<Slot>, Vec<Slot>) =
                decoding.iter().copied().partition(is_unknown);
            unknown.sort_by_key(|&slot| self.sequence(slot).last_row);
            known.sort_by_key(|&slot| self.sequence(slot).reading.map(|one| one.dry_at()));
            self.row_credit += (most * unknown.len()) as u64 * ROW / decoding.len() as u64;
            let due = (self.row_credit / ROW) as usize;
            let least = most.saturating_sub(known.len());
            let rows = due.clamp(least, most.min(unknown.len()).max(least));
            self.row_credit = self.row_credit.saturating_sub(rows as u64 * ROW).min(ROW);
            unknown.truncate(rows);
            known.truncate(most - rows);
            decoding = [unknown, known].concat();
        }
        for slot in &decoding {
            // Each row has its own number: by one for all of a step, those that come first in the
            // order of admission would be in every step, and the others take turns at the rest.
            self.rows += 1;
            let sequence = self.active[slot.index()].as_mut().expect("decoding slots run");
            sequence.last_row = self.rows;
        }
        decoding
    }

    /// Prompt tokens for a step that also advances `decoding`. While the readers of all running
    /// answers are known, the step may take as long as the reader with the least time in hand can
    /// wait. Prompts of spare work keep to what nobody notices.
    pub(super) fn prefill_budget(&self, now: Duration, decoding: &[Slot]) -> u32 {
        if !self.computes_prompt_of_others() {
            // A step of spare work alone is given up when anybody comes: it need not be short.
            let is_alone = decoding.iter().all(|&slot| self.sequence(slot).is_spare);
            return self.budget.spare_tokens(if is_alone { 0 } else { decoding.len() });
        }
        let usual = self.budget.tokens(decoding.len());
        // One of whom nothing is known keeps the whole step to what is promised to it.
        if decoding.iter().any(|&slot| self.sequence(slot).reading.is_none()) {
            return usual;
        }
        // Those who rest count too: they have to be back in time.
        let hands = self.order.iter().filter_map(|&slot| self.in_hand(now, slot));
        let Some(least) = hands.min() else { return usual };
        let possible = self.budget.tokens_within(decoding.len(), least * STEP_PERCENT / 100);
        match decoding.is_empty() {
            // Everybody rests: the step has only to be over before anybody runs dry.
            true => usual.min(possible),
            false => usual.max(possible),
        }
    }
}
