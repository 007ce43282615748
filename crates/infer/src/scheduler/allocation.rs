//! Allocates slots and KV cells, and reclaims them when they run out.

use std::time::Duration;

use crate::kv::Prefix;
use crate::request::Admitted;
use crate::runner::{Runner, Slot};
use crate::scheduler::Scheduler;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::shares::AccountId;

impl Scheduler {
    /// Finds a slot with cells for the `index`th waiting sequence of `account`, and the prefix to
    /// start it from.
    pub(super) fn find_place(
        &mut self,
        runner: &mut dyn Runner,
        account: AccountId,
        index: usize,
    ) -> Option<(Slot, Option<Prefix>)> {
        let sequence = &self.waiting.of(account)[index];
        let tokens = &sequence.tokens;
        let len = tokens.len() as u32;
        if let Some(slot) = self.kept_slot(sequence) {
            let cells = len - self.kv.len(slot) + 1;
            return self.make_room(runner, cells, Some(slot)).then_some((slot, None));
        }
        let search = self.limits.prefix_cache && !sequence.is_to_be_scored();
        // The last token is computed in any case: its logits are needed.
        let useful = &tokens[..tokens.len() - 1];
        let holds = |found: Prefix| runner.holds(found.slot, found.len);
        let prefix = search.then(|| self.kv.longest_prefix(useful, sequence.cache_domain, holds));
        let prefix = prefix.flatten();
        let cached = prefix.map_or(0, |found| found.len);
        let donor = prefix.map(|found| found.slot);
        // The donor is spared at first, since evicting it would free cells that are then needed
        // again for the same tokens. Only if that leaves too little room does it go as well.
        // One cell more than the prompt: the first token of the answer.
        if self.make_room(runner, len - cached + 1, donor) {
            return self.take_slot(runner, donor).map(|slot| (slot, prefix));
        }
        if self.make_room(runner, len + 1, None) {
            return self.take_slot(runner, None).map(|slot| (slot, None));
        }
        None
    }

    /// Evicts idle slots other than `keep` until `cells` are free beyond the reserved ones.
    fn make_room(&mut self, runner: &mut dyn Runner, cells: u32, keep: Option<Slot>) -> bool {
        let needed = cells + self.promised_cells();
        while self.kv.free_cells() < needed {
            if !self.evict(runner, keep) {
                return false;
            }
        }
        true
    }

    /// Uncomputed tokens of all running sequences: cells already reserved.
    fn promised_cells(&self) -> u32 {
        self.order.iter().map(|&slot| self.pending(slot)).sum()
    }

    /// Takes a free slot, or the least recently used idle one, or the idle `donor` itself.
    fn take_slot(&mut self, runner: &mut dyn Runner, donor: Option<Slot>) -> Option<Slot> {
        if self.free.is_empty() && !self.evict(runner, donor) {
            let donor = donor.filter(|slot| self.idle.contains(slot))?;
            self.take_idle(donor);
            return Some(donor);
        }
        self.free.pop()
    }

    /// Frees the least recently used idle slot other than `keep`; returns false if no other slot is
    /// idle.
    pub(super) fn evict(&mut self, runner: &mut dyn Runner, keep: Option<Slot>) -> bool {
        let Some(at) = self.idle.iter().position(|&slot| Some(slot) != keep) else {
            return false;
        };
        let slot = self.idle[at];
        self.take_idle(slot);
        self.free_slot(runner, slot);
        true
    }

    /// Returns the idle slot that still holds the computed KV of the waiting `sequence`.
    pub(super) fn kept_slot(&self, sequence: &Sequence) -> Option<Slot> {
        sequence.parked.filter(|slot| self.parked[slot.index()] == Some(sequence.arrival))
    }

    /// Keeps the KV of a slot without a sequence until the cells are needed.
    pub(super) fn keep_idle(&mut self, slot: Slot) {
        self.idle.push_back(slot);
        self.releases += 1;
    }

    /// Takes an idle slot, regardless of the owner of its KV.
    pub(super) fn take_idle(&mut self, slot: Slot) {
        self.idle.retain(|&other| other != slot);
        self.parked[slot.index()] = None;
    }

    /// Frees a slot that no sequence uses, and its cells.
    pub(super) fn free_slot(&mut self, runner: &mut dyn Runner, slot: Slot) {
        self.kv.truncate(slot, 0);
        runner.truncate(slot, 0);
        self.free.push(slot);
        self.releases += 1;
    }

    /// Moves `sequence` into `slot`, which holds its own KV or will start from `prefix`.
    pub(super) fn enter(
        &mut self,
        now: Duration,
        runner: &mut dyn Runner,
        mut sequence: Sequence,
        slot: Slot,
        prefix: Option<Prefix>,
    ) {
        if self.kept_slot(&sequence) == Some(slot) {
            self.take_idle(slot);
        } else {
            self.begin(runner, &sequence, slot, prefix);
            // One that was computed before and lost its KV.
            sequence.keeps_place = sequence.admitted.is_some();
            let cached_tokens = prefix.map_or(0, |found| found.len);
            self.load.prefix_queries += sequence.tokens.len() as u64;
            self.load.prefix_hits += u64::from(cached_tokens);
            // One that comes back keeps the time of its first admission.
            sequence.admitted.get_or_insert(Admitted { at: now, cached_tokens });
            self.stored.order(&mut sequence, cached_tokens);
        }
        (sequence.parked, sequence.waits_for) = (None, None);
        self.shares.take_place(sequence.account);
        self.active[slot.index()] = Some(sequence);
        self.order.push(slot);
    }

    /// Prepares `slot` for `sequence`: its prefix, its domain, its sampler.
    fn begin(
        &mut self,
        runner: &mut dyn Runner,
        sequence: &Sequence,
        slot: Slot,
        prefix: Option<Prefix>,
    ) {
        match prefix {
            // The only slot left is the donor's own: its prefix is cut to what is shared, instead
            // of being forked.
            Some(Prefix { slot: donor, len }) if donor == slot => {
                self.kv.truncate(slot, len);
                runner.truncate(slot, len);
            }
            Some(Prefix { slot: donor, len }) => {
                self.kv.fork(donor, slot, len);
                runner.fork(donor, slot, len);
                self.touch(donor);
            }
            None => self.kv.claim(slot, sequence.cache_domain),
        }
        debug_assert_eq!(self.kv.len(slot), prefix.map_or(0, |found| found.len));
        runner.assign(slot, sequence.sampler());
    }

    /// Marks an idle slot as just used.
    fn touch(&mut self, slot: Slot) {
        if let Some(at) = self.idle.iter().position(|&idle| idle == slot) {
            self.idle.remove(at);
            self.idle.push_back(slot);
        }
    }

    /// Frees one cell for every decoding sequence, by eviction and then by preemption.
    pub(super) fn make_room_for_decode(&mut self, runner: &mut dyn Runner) {
        while self.free_cells() < self.next_cells() {
            if self.evict(runner, None) {
                continue;
            }
            // When all are in flight, the next commit completes one of them.
            let Some(victim) = self.victim() else { return };
            self.preempt(runner, victim);
        }
    }

    /// Returns the sequence to preempt when cells run out; none while all are in flight.
    pub(super) fn victim(&mut self) -> Option<Slot> {
        self.shares.settle();
        self.least_entitled(|_| true)
    }

    /// Cells that the next step needs to make progress: one per decoding sequence, or one if only
    /// prompts are in progress.
    fn next_cells(&self) -> u32 {
        let (mut any, mut rows) = (false, 0);
        for slot in self.runnable() {
            any = true;
            rows += u32::from(self.pending(slot) == 1);
        }
        rows.max(u32::from(any))
    }

    /// Preempts `slot` if another sequence can continue without it.
    pub(super) fn yield_cells(&mut self, runner: &mut dyn Runner, slot: Slot) -> bool {
        if self.evict(runner, None) {
            return true;
        }
        let alone = self.order.len() == 1;
        if !alone {
            self.preempt(runner, slot);
        }
        !alone
    }

    /// Puts a running sequence back to be recomputed.
    fn preempt(&mut self, runner: &mut dyn Runner, slot: Slot) {
        self.load.preemptions += 1;
        self.compute_again(runner, slot);
    }

    /// Takes a running sequence out of the batch and frees its KV. Recomputed tokens are not
    /// charged to its tenant again.
    pub(super) fn compute_again(&mut self, runner: &mut dyn Runner, slot: Slot) {
        let mut sequence = self.remove(slot);
        sequence.charged_from = sequence.charged_from.max(self.kv.len(slot));
        self.free_slot(runner, slot);
        self.waiting.insert(sequence);
    }
}
