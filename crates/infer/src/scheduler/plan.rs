//! Plans the next batch: decode rows with their drafts first, then chunks of prompts.

use std::time::Duration;

use super::Scheduler;
use super::shares::AccountId;
use crate::prompt_lookup;
use crate::runner::{Batch, Runner, Slot};
use crate::token::TokenId;

impl Scheduler {
    /// Fills `batch` with the next step's work. The batch stays empty if nothing can be computed
    /// until something is submitted, resumed or dropped, or a batch in flight is committed.
    pub fn plan(&mut self, now: Duration, runner: &mut dyn Runner, batch: &mut Batch) {
        batch.clear();
        self.awaits_runner = false;
        // After a whole batch failed, its sequences are computed one by one: one that fails alone
        // is at fault. Nothing else runs meanwhile, since the culprit could fail that too.
        // A paused one is not computed for that. If it is at fault, it will show again.
        while self.suspects.front().is_some_and(|suspect| self.sequence(suspect.slot).paused) {
            self.suspects.pop_front();
        }
        if !self.suspects.is_empty() {
            self.make_room_for_decode(runner);
        }
        match self.suspects.front().map(|suspect| suspect.slot) {
            Some(slot) if self.sequence(slot).in_flight > 0 => {}
            Some(slot) => self.plan_alone(runner, batch, slot),
            None => self.plan_step(now, runner, batch),
        }
        for span in &batch.spans {
            let sequence = self.active[span.slot.index()].as_mut().expect("planned slots run");
            sequence.in_flight = span.tokens.len() as u32;
        }
        self.in_flight += batch.tokens.len() as u32;
    }

    /// Fills `batch` with only the next tokens of `slot`.
    fn plan_alone(&self, runner: &dyn Runner, batch: &mut Batch, slot: Slot) {
        let most = self.limits.prefill_max_tokens.min(self.free_cells());
        let most = match self.sequence(slot).is_to_be_scored() {
            true => most.min(runner.score_rows().unwrap_or(1)),
            false => most,
        };
        self.plan_chunk(batch, slot, most);
    }

    /// Fills `batch` with decode rows, which cannot wait, and with prompts for the rest. New
    /// sequences are admitted before, because a fully cached prompt decodes at once.
    fn plan_step(&mut self, now: Duration, runner: &mut dyn Runner, batch: &mut Batch) {
        // Before cells are sought: who goes on needs one.
        self.rest_readers(now);
        self.make_room_for_decode(runner);
        self.admit(now, runner);
        while let Some(slot) = self.suspicious() {
            // Alone in the engine too: not beside a batch in flight.
            if self.in_flight > 0 {
                return;
            }
            self.set_resting(slot, false);
            // One that rested was not counted among those that need a cell.
            self.make_room_for_decode(runner);
            if self.suspicious() == Some(slot) {
                return self.plan_alone(runner, batch, slot);
            }
        }
        self.spare_stands_back = self.computes_prompt_of_others();
        self.plan_work(now, runner, batch);
        let stood_back = std::mem::take(&mut self.spare_stands_back);
        // What rests or stands back only does so for others.
        if batch.is_empty() && (self.wake_all() | stood_back) {
            self.make_room_for_decode(runner);
            self.plan_work(now, runner, batch);
        }
        batch.is_spare = batch.spans.iter().all(|span| self.sequence(span.slot).is_spare);
    }

    /// Fills `batch` with decode rows, and with prompts for the rest.
    fn plan_work(&mut self, now: Duration, runner: &mut dyn Runner, batch: &mut Batch) {
        let decoding = self.decode_rows(runner);
        let drafts = self.drafts(runner, &decoding);
        for (i, &slot) in decoding.iter().enumerate() {
            self.plan_chunk(batch, slot, 1);
            if let Some(draft) = drafts.get(i) {
                batch.push_draft(draft);
            }
        }
        // Without answers to delay, prompts and the engine's other work both get on.
        if self.holds_prompts && !batch.is_empty() {
            return;
        }
        // Drafts are never in one step with prompts.
        let room = self.capacity.batch_tokens - batch.tokens.len() as u32;
        self.plan_prefill(runner, batch, self.prefill_budget(now, &decoding).min(room));
    }

    /// Returns true if a prompt of somebody who waits for it is being computed.
    pub(super) fn computes_prompt_of_others(&self) -> bool {
        self.runnable().any(|slot| self.pending(slot) > 1 && !self.sequence(slot).is_spare)
    }

    /// Selects the sequences to advance by a token.
    fn decode_rows(&mut self, runner: &mut dyn Runner) -> Vec<Slot> {
        let decoding = self.runnable().filter(|&slot| self.pending(slot) == 1).collect();
        let most = self.rows_per_batch();
        let decoding = self.share_rows(decoding, most);
        self.ready(runner, decoding)
    }

    /// Returns those of `slots` that can be sampled now. The others are left out of this step, so
    /// that none waits for them, and checked again in the next.
    fn ready(&mut self, runner: &mut dyn Runner, mut slots: Vec<Slot>) -> Vec<Slot> {
        let all = slots.len();
        slots.retain(|&slot| runner.is_ready(slot));
        self.awaits_runner |= slots.len() < all;
        slots
    }

    /// Returns a draft for each of `decoding`, or none at all: prompts that wait or are in progress
    /// go first, and a full cache leaves no room.
    fn drafts(&mut self, runner: &dyn Runner, decoding: &[Slot]) -> Vec<Vec<TokenId>> {
        let most = self.speculator.max_draft_tokens();
        let Some(rows) = runner.verify_rows().filter(|_| most > 0 && !decoding.is_empty()) else {
            return Vec::new();
        };
        let computing = |&&slot: &&Slot| self.pending(slot) > 1 && !self.sequence(slot).paused;
        if self.order.iter().any(|slot| computing(&slot)) || self.waiting.ready() > 0 {
            return Vec::new();
        }
        let room = rows.min(self.capacity.batch_tokens).min(self.free_cells());
        // One row of each sequence is taken already; the rest in equal parts.
        let share = (room as usize).saturating_sub(decoding.len()) / decoding.len();
        let mut drafts: Vec<Vec<TokenId>> =
            decoding.iter().map(|&slot| self.look_up_draft(slot, most.min(share))).collect();
        let stats = decoding.iter().map(|&slot| self.sequence(slot).acceptance);
        let found = drafts.iter().map(Vec::len).zip(stats).filter(|(len, _)| *len > 0);
        let most = self.speculator.limit(decoding.len(), &found.collect::<Vec<_>>());
        for (draft, &slot) in drafts.iter_mut().zip(decoding) {
            let sequence = self.active[slot.index()].as_mut().expect("decoding slots run");
            // Not computed, but compared with the next token: otherwise a sequence whose drafts
            // were once rejected would never get another chance.
            sequence.unverified = draft.first().copied().filter(|_| most == 0);
            draft.truncate(most);
        }
        drafts
    }

    /// Returns at most `most` draft tokens for `slot`, without end tokens: tokens after the end are
    /// useless.
    fn look_up_draft(&self, slot: Slot, most: usize) -> Vec<TokenId> {
        let sequence = self.sequence(slot);
        // A grammar's mask depends on the previous token, so masks for drafts do not exist yet.
        if sequence.sampling.grammar.is_some() {
            return Vec::new();
        }
        let answer_room = (sequence.max_tokens as usize).saturating_sub(sequence.generated().len());
        let context_room = self.capacity.context_tokens as usize - sequence.tokens.len();
        // The step samples one token beyond the draft.
        let useful = answer_room.min(context_room).saturating_sub(1);
        let mut draft = prompt_lookup::draft(&sequence.tokens, most.min(useful));
        let ends = draft.iter().position(|token| self.end_tokens.contains(token));
        draft.truncate(ends.unwrap_or(draft.len()));
        draft
    }

    /// Decode rows of one batch: an equal part of all decoding sequences.
    fn rows_per_batch(&self) -> usize {
        let decoding = |&&slot: &&Slot| {
            let sequence = self.sequence(slot);
            self.pending(slot) == 1 && !sequence.paused && !sequence.rests
        };
        let rows = self.order.iter().filter(decoding).count().min(self.limits.max_batch_size);
        rows.div_ceil(self.pipeline_depth)
    }

    /// Adds the next `most` uncomputed tokens of `slot`; the span samples if it reaches the last
    /// known token.
    fn plan_chunk(&self, batch: &mut Batch, slot: Slot, most: u32) {
        let sequence = self.sequence(slot);
        let start = self.kv.len(slot) as usize;
        let most = most.min(self.capacity.batch_tokens) as usize;
        let end = sequence.scorable_end(start, (start + most).min(sequence.tokens.len()));
        let sample = end == sequence.tokens.len();
        batch.push(slot, start as u32, &sequence.tokens[start..end], sample);
        if let Some((top, targets)) = sequence.score_targets(start, end) {
            batch.push_scores(top, targets);
        }
    }

    /// Spends `budget` on prompts in progress. Each tenant gets its share; half of it goes to its
    /// oldest prompt, which keeps first come first served, the other half in equal parts to its
    /// others, which lets short prompts pass a long one.
    fn plan_prefill(&mut self, runner: &mut dyn Runner, batch: &mut Batch, budget: u32) {
        let prompts: Vec<Slot> = self.runnable().filter(|&slot| self.pending(slot) > 1).collect();
        let free = self.free_cells().saturating_sub(batch.tokens.len() as u32);
        let chunks = self.prefill_chunks(&prompts, budget.min(free));
        // Rows of logits for scored prompts, beyond the one that every span has.
        let taken = (batch.spans.len() + prompts.len()) as u32;
        let mut rows = runner.score_rows().unwrap_or(0).saturating_sub(taken);
        for (slot, mut chunk) in prompts.into_iter().zip(chunks) {
            if chunk > 0 && self.sequence(slot).is_to_be_scored() {
                chunk = chunk.min(1 + rows);
                rows -= chunk - 1;
            }
            // The prompt's last token samples: it can wait for the mask while the others cannot.
            if chunk == self.pending(slot) && self.ready(runner, vec![slot]).is_empty() {
                chunk -= 1;
            }
            if chunk > 0 {
                self.plan_chunk(batch, slot, chunk);
            }
        }
    }

    /// Splits `budget` between `prompts`, which are in order of admission.
    fn prefill_chunks(&self, prompts: &[Slot], budget: u32) -> Vec<u32> {
        let pending: Vec<u32> = prompts.iter().map(|&slot| self.pending(slot)).collect();
        if !self.shares.contended() {
            return share(budget, &pending);
        }
        let account = |at: usize| self.sequence(prompts[at]).account;
        let mut wanted: Vec<(AccountId, u32)> = Vec::new();
        for (at, &tokens) in pending.iter().enumerate() {
            match wanted.iter_mut().find(|(tenant, _)| *tenant == account(at)) {
                Some((_, sum)) => *sum += tokens,
                None => wanted.push((account(at), tokens)),
            }
        }
        let mut chunks = vec![0; prompts.len()];
        for (&(tenant, _), part) in wanted.iter().zip(self.shares.split(budget, &wanted)) {
            let own: Vec<usize> = (0..prompts.len()).filter(|&at| account(at) == tenant).collect();
            let parts = share(part, &own.iter().map(|&at| pending[at]).collect::<Vec<_>>());
            own.into_iter().zip(parts).for_each(|(at, part)| chunks[at] = part);
        }
        chunks
    }
}

/// Splits `budget` between prompts with `pending` tokens, oldest first; no part exceeds the pending
/// tokens.
pub fn share(budget: u32, pending: &[u32]) -> Vec<u32> {
    let Some((&oldest, others)) = pending.split_first() else {
        return Vec::new();
    };
    // Half to the oldest keeps first come first served: it finishes at no less than half of
    // full speed, whatever comes after it.
    let mut parts = vec![oldest.min(budget.div_ceil(2))];
    let part = ((budget - parts[0]) / others.len().max(1) as u32).max(1);
    let mut left = budget - parts[0];
    for &tokens in others {
        let chunk = tokens.min(part).min(left);
        left -= chunk;
        parts.push(chunk);
    }
    // What short prompts left over goes to the oldest that can use it.
    for (part, &tokens) in parts.iter_mut().zip(pending) {
        let more = (tokens - *part).min(left);
        left -= more;
        *part += more;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn half_the_budget_goes_to_the_oldest_and_nothing_is_wasted() {
        assert_eq!(share(512, &[4000, 50, 50]), [412, 50, 50]);
        assert_eq!(share(512, &[4000, 4000, 4000]), [256, 128, 128]);
        assert_eq!(share(512, &[10, 4000]), [10, 502]);
        assert_eq!(share(3, &[9, 9, 9, 9]), [2, 1, 0, 0]);
        assert_eq!(share(0, &[9]), [0]);
        assert_eq!(share(512, &[]), [0u32; 0]);
    }
}
