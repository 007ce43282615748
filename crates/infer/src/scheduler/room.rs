//! Slots and KV cells: who gets them, and who gives them back when they run out.

use std::time::Duration;

use super::Scheduler;
use crate::kv::Prefix;
use crate::request::Admitted;
use crate::runner::{Runner, Slot};
use crate::sampling::Sampler;

impl Scheduler {
    /// A slot with cells for the waiting sequence `index`, and the prefix to start it from.
    pub(super) fn find_place(
        &mut self,
        runner: &mut dyn Runner,
        index: usize,
    ) -> Option<(Slot, Option<Prefix>)> {
        let tokens = &self.waiting[index].tokens;
        // The last token is computed in any case: its logits are needed.
        let (len, useful) = (tokens.len() as u32, tokens.len() as u32 - 1);
        let prefix = if self.limits.prefix_cache { self.kv.longest_prefix(tokens) } else { None };
        let prefix = prefix.map(|found| Prefix { len: found.len.min(useful), ..found });
        let prefix = prefix.filter(|found| found.len > 0);
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

    /// Evicts idle slots other than `keep` until `cells` are free beyond those promised.
    fn make_room(&mut self, runner: &mut dyn Runner, cells: u32, keep: Option<Slot>) -> bool {
        let needed = cells + self.promised_cells();
        while self.kv.free_cells() < needed {
            if !self.evict(runner, keep) {
                return false;
            }
        }
        true
    }

    /// Uncomputed tokens of all running sequences: cells already promised.
    fn promised_cells(&self) -> u32 {
        self.order.iter().map(|&slot| self.pending(slot)).sum()
    }

    /// A free slot, or the least recently used idle one, or the idle `donor` itself.
    fn take_slot(&mut self, runner: &mut dyn Runner, donor: Option<Slot>) -> Option<Slot> {
        if self.free.is_empty() && !self.evict(runner, donor) {
            let donor = donor.filter(|slot| self.idle.contains(slot))?;
            self.idle.retain(|&slot| slot != donor);
            return Some(donor);
        }
        self.free.pop()
    }

    /// Frees the least recently used idle slot other than `keep`; false if no other slot is idle.
    pub(super) fn evict(&mut self, runner: &mut dyn Runner, keep: Option<Slot>) -> bool {
        let Some(at) = self.idle.iter().position(|&slot| Some(slot) != keep) else {
            return false;
        };
        let slot = self.idle.remove(at).expect("position is inside");
        self.free_slot(runner, slot);
        true
    }

    /// Moves the waiting sequence `index` into `slot`, which starts from `prefix`.
    pub(super) fn enter(
        &mut self,
        now: Duration,
        runner: &mut dyn Runner,
        index: usize,
        slot: Slot,
        prefix: Option<Prefix>,
    ) {
        let mut sequence = self.waiting.remove(index).expect("the caller found it");
        let cached_tokens = prefix.map_or(0, |found| found.len);
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
            None => {}
        }
        debug_assert_eq!(self.kv.len(slot), cached_tokens);
        self.load.prefix_queries += sequence.tokens.len() as u64;
        self.load.prefix_hits += u64::from(cached_tokens);
        // A preempted sequence that comes back keeps the time of its first admission.
        sequence.admitted.get_or_insert(Admitted { at: now, cached_tokens });
        let (prompt, generated) = sequence.tokens.split_at(sequence.prompt_len);
        runner.assign(slot, Sampler::new(sequence.sampling.clone(), prompt, generated));
        self.active[slot.index()] = Some(sequence);
        self.order.push(slot);
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
            if !self.evict(runner, None) {
                // When all are in flight, the next commit completes one of them.
                let Some(youngest) = self.youngest_not_in_flight() else { return };
                self.preempt(runner, youngest);
            }
        }
    }

    /// Cells that the next step needs to make progress: one per decoding sequence, and one if
    /// only prompts are in progress.
    fn next_cells(&self) -> u32 {
        let free = self.order.iter().filter(|&&slot| self.sequence(slot).in_flight == 0);
        let (mut any, mut rows) = (false, 0);
        for &slot in free {
            any = true;
            rows += u32::from(self.pending(slot) == 1);
        }
        rows.max(u32::from(any))
    }

    /// Preempts `slot` if another sequence can go on without it.
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

    /// Puts a running sequence back at the head of the queue, to be recomputed.
    fn preempt(&mut self, runner: &mut dyn Runner, slot: Slot) {
        self.load.preemptions += 1;
        let sequence = self.remove(slot);
        self.free_slot(runner, slot);
        let at = self.waiting.partition_point(|other| other.priority < sequence.priority);
        self.waiting.insert(at, sequence);
    }
}
