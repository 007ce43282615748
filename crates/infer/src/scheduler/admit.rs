//! Admits sequences to the batch, and takes places from others for them.

use std::cmp::Reverse;
use std::time::Duration;

use super::Scheduler;
use super::sequence::{Sequence, WaitReason};
use super::shares::AccountId;
use crate::kv::common_prefix;
use crate::runner::{Runner, Slot};

/// Minimum tokens that a prompt must save to wait for another that is computing the same prefix:
/// for fewer, waiting a step costs more than recomputing them. Chosen by hand.
const WORTH_WAITING_TOKENS: u32 = 8;

impl Scheduler {
    /// Moves waiting sequences into the batch while there is room, and replaces sequences of
    /// tenants that have more than their share.
    pub(super) fn admit(&mut self, now: Duration, runner: &mut dyn Runner) {
        if self.waiting.ready() == 0 {
            return;
        }
        self.park_paused();
        self.shares.settle();
        // Tenants of whom nothing can start in this step.
        let mut passed = Vec::new();
        while let Some(account) = self.next_account(&passed) {
            if self.is_full() && !self.shares.is_owed(account) {
                return;
            }
            match self.first_to_start(account) {
                // Without room for the first, none behind it is admitted: it would starve
                // otherwise.
                Some(index) if !self.start(now, runner, account, index) => return,
                Some(_) => {}
                None => passed.push(account),
            }
        }
    }

    fn is_full(&self) -> bool {
        self.places_taken() >= self.limits.max_batch_size
    }

    /// Returns the least served tenant among those that wait; among equals the first to arrive.
    /// Those that take only what others leave come last.
    fn next_account(&self, passed: &[AccountId]) -> Option<AccountId> {
        let waiting = self.waiting.first_ready().filter(|(account, _)| !passed.contains(account));
        let first = waiting.min_by_key(|&(account, arrival)| {
            (self.shares.is_spare(account), self.shares.with_one_more(account), arrival)
        });
        first.map(|(account, _)| account)
    }

    /// Returns the first of the tenant's waiting sequences that need not wait for another's prefix.
    fn first_to_start(&mut self, account: AccountId) -> Option<usize> {
        // Those that do are passed over, but at most a batch of them: each may cost a search of
        // all slots.
        let mut most = self.limits.max_batch_size;
        for index in 0..self.waiting.of(account).len() {
            let sequence = &self.waiting.of(account)[index];
            if sequence.paused {
                continue;
            }
            if self.is_blocked(sequence) {
                return Some(index);
            }
            if !self.still_waits(sequence) {
                self.load.prefix_searches += 1;
                let Some(reason) = self.coming_prefix(sequence) else {
                    return Some(index);
                };
                self.waiting.get_mut(account, index).waits_for = Some(reason);
            }
            most -= 1;
            if most == 0 {
                break;
            }
        }
        None
    }

    /// Returns the running prompt that is about to compute a missing prefix of `waiting`.
    fn coming_prefix(&self, waiting: &Sequence) -> Option<WaitReason> {
        let searches = self.limits.prefix_cache && !waiting.is_to_be_scored();
        if !searches || self.kept_slot(waiting).is_some() {
            return None;
        }
        // The last token is always computed: its logits give the first token of the answer.
        let useful = waiting.tokens.len() as u32 - 1;
        let shared = |slot: &Slot| {
            let tokens = &self.sequence(*slot).tokens;
            common_prefix(tokens, &waiting.tokens).min(useful)
        };
        let own = |slot: &&Slot| {
            let sequence = self.sequence(**slot);
            // Spare work stands back for others, which must not wait for it in turn.
            let comes = !sequence.paused && (!sequence.is_spare || waiting.is_spare);
            comes && sequence.cache_domain == waiting.cache_domain
        };
        let coming = self.order.iter().filter(own).filter(|&&slot| self.pending(slot) > 1);
        let best = coming.map(|&slot| (shared(&slot), Reverse(slot))).max();
        let (len, Reverse(slot)) = best.filter(|&(len, _)| len >= WORTH_WAITING_TOKENS)?;
        let asked = &waiting.tokens[..useful as usize];
        let computed = self.kv.longest_prefix(asked, waiting.cache_domain, |_| true);
        let computed = computed.map_or(0, |prefix| prefix.len);
        let arrival = self.sequence(slot).arrival;
        let reason = WaitReason::Prefix { slot, arrival, len };
        (len >= computed + WORTH_WAITING_TOKENS).then_some(reason)
    }

    /// Returns true if the prefix that `waiting` was found to wait for is still being computed.
    fn still_waits(&self, waiting: &Sequence) -> bool {
        let Some(WaitReason::Prefix { slot, arrival, len }) = waiting.waits_for else {
            return false;
        };
        let computes = self.active[slot.index()]
            .as_ref()
            .is_some_and(|sequence| sequence.arrival == arrival && !sequence.paused);
        computes && self.pending(slot) > 1 && self.kv.len(slot) + WORTH_WAITING_TOKENS <= len
    }

    /// Returns true if too few cells could be freed for `waiting`, and none have become free since.
    pub(super) fn is_blocked(&self, waiting: &Sequence) -> bool {
        waiting.waits_for == Some(WaitReason::Cells { releases: self.releases })
    }

    /// Gives a place to the waiting sequence `index` of `account`; returns false if there is none.
    fn start(
        &mut self,
        now: Duration,
        runner: &mut dyn Runner,
        account: AccountId,
        index: usize,
    ) -> bool {
        let sequence = &self.waiting.of(account)[index];
        let tokens = sequence.tokens.len() as u32;
        if (self.is_blocked(sequence) || self.is_full()) && !self.displace(account, tokens) {
            return false;
        }
        let has_room = self.has_room_beyond_places(tokens);
        let mut place = has_room.then(|| self.find_place(runner, account, index)).flatten();
        if place.is_none() && self.displace(account, tokens) {
            place = self.find_place(runner, account, index);
        }
        match place {
            Some((slot, prefix)) => {
                let sequence = self.waiting.take(account, index);
                self.enter(now, runner, sequence, slot, prefix);
            }
            None => {
                let blocked = WaitReason::Cells { releases: self.releases };
                self.waiting.get_mut(account, index).waits_for = Some(blocked);
            }
        }
        place.is_some()
    }

    /// Puts back sequences of tenants above their share until there are a place and cells for
    /// `tokens` of `account`. Returns false, and puts none back, if that is not enough.
    fn displace(&mut self, account: AccountId, tokens: u32) -> bool {
        let mut victims: Vec<Slot> = Vec::new();
        let suffices = |scheduler: &Self, victims: &[Slot]| {
            let room = scheduler.places_taken() - victims.len() < scheduler.limits.max_batch_size;
            room && scheduler.could_hold(tokens + 1, victims)
        };
        while !suffices(self, &victims) {
            let Some(victim) = self.debtor(account, &victims) else {
                break;
            };
            self.shares.give_place(self.sequence(victim).account);
            victims.push(victim);
        }
        let enough = suffices(self, &victims);
        for &victim in &victims {
            self.shares.take_place(self.sequence(victim).account);
        }
        if enough {
            self.load.displacements += victims.len() as u64;
            victims.into_iter().for_each(|victim| self.put_back(victim));
        }
        enough
    }

    /// Returns true if `cells` would be free without `victims` and all kept KV.
    fn could_hold(&self, cells: u32, victims: &[Slot]) -> bool {
        let stays = self.order.iter().filter(|slot| !victims.contains(slot));
        let taken: usize = stays.map(|&slot| self.sequence(slot).tokens.len()).sum();
        taken + cells as usize <= self.capacity.kv_cells as usize
    }

    /// Returns the sequence that must give its place to `account`: of the tenant most above its
    /// share, the youngest sequence of the lowest priority.
    fn debtor(&self, account: AccountId, taken: &[Slot]) -> Option<Slot> {
        if !self.shares.contended() {
            return None;
        }
        let owes = |slot: &Slot| {
            let sequence = self.sequence(*slot);
            !sequence.keeps_place
                && !sequence.rests
                && !taken.contains(slot)
                && self.shares.owes(sequence.account, account)
        };
        self.least_entitled(owes)
    }

    /// Returns the first sequence to leave among the running ones outside batches in flight for
    /// which `may_go` is true: a paused one first, then a spare one, then by tenant, priority and
    /// age.
    pub(super) fn least_entitled(&self, may_go: impl Fn(&Slot) -> bool) -> Option<Slot> {
        let at_hand = |slot: &Slot| self.sequence(*slot).in_flight == 0;
        let candidates = self.order.iter().copied().filter(|slot| at_hand(slot) && may_go(slot));
        // Of equals the last is taken, which is the youngest.
        candidates.max_by_key(|&slot| {
            let sequence = self.sequence(slot);
            let served = self.shares.now(sequence.account);
            (sequence.paused, sequence.is_spare, served, sequence.priority)
        })
    }

    /// Removes paused sequences, whose readers are behind, from the batch, because others wait.
    pub(super) fn park_paused(&mut self) {
        let idles = |slot: &Slot| {
            let sequence = self.sequence(*slot);
            sequence.paused && sequence.in_flight == 0
        };
        let paused: Vec<Slot> = self.order.iter().copied().filter(idles).collect();
        paused.into_iter().for_each(|slot| self.park(slot));
    }

    fn put_back(&mut self, slot: Slot) {
        let computed = self.kv.len(slot);
        let sequence = self.active[slot.index()].as_mut().expect("victims run");
        sequence.charged_from = sequence.charged_from.max(computed);
        self.park(slot);
    }

    /// Takes a sequence out of the batch. Its KV stays until the cells are needed, so that it can
    /// continue where it stopped.
    fn park(&mut self, slot: Slot) {
        let mut sequence = self.remove(slot);
        sequence.parked = Some(slot);
        sequence.waits_for = None;
        self.parked[slot.index()] = Some(sequence.arrival);
        self.keep_idle(slot);
        self.waiting.insert(sequence);
    }
}
