//! Continuous batching in three steps: [`Scheduler::plan`] a batch, let the runner compute it,
//! [`Scheduler::commit`] its samples. If the runner fails, call [`Scheduler::recover`] instead of
//! commit.
//!
//! Further batches may be planned before the first is committed: a sequence is in at most one of
//! them, and nothing happens to it until that one is committed. A cancellation meanwhile takes
//! effect at the commit.
//!
//! Requests join and leave between steps. Every step carries one token of each decoding sequence
//! first, then chunks of prompts within a token budget that all waiting prompts share, oldest
//! first, so that neither decode nor a short prompt starves behind a long one. When the KV cache is
//! full, kept prefixes are evicted first; then the youngest sequence of the lowest priority is
//! preempted and recomputed later.
//!
//! If readers have text in hand, their sequences rest while others need the engine more (see
//! `readers`).
//!
//! Tenants get their weighted shares of the batch's places and of the prefill budget. A sequence
//! whose place is given to another tenant, or whose reader is behind while others wait, leaves the
//! batch and keeps its KV until the cells are needed.

mod admit;
mod allocation;
mod commit;
mod outage;
mod plan;
mod queue_standing;
mod readers;
mod sequence;
mod shares;
mod store_traffic;
mod stored;
mod waiting;

use std::collections::VecDeque;
use std::time::Duration;

use crate::budget::{ItlTarget, PrefillBudget};
use crate::kv::{KvAccounting, common_prefix};
use crate::request::{Finish, SequenceEvent, Tag, Work};
use crate::runner::{Capacity, Runner, Slot};
use crate::speculation::{Speculation, Speculator};
use crate::token::TokenId;

pub use outage::MOST_LOSSES;
pub use plan::share as share_prefill;
use sequence::Sequence;
use shares::Shares;
pub use store_traffic::{RestoreError, StoreTraffic};
use stored::StoredPrefixes;
use waiting::WaitingQueues;

/// Limits and policies set by the operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Maximum sequences in the batch.
    pub max_batch_size: usize,
    /// Maximum prefill tokens in one step.
    pub prefill_max_tokens: u32,
    /// Limit on the slowdown of decoding sequences by prefill.
    pub itl_target: ItlTarget,
    /// Keep the KV of finished sequences for later prompts with the same prefix.
    pub prefix_cache: bool,
    /// Drafting of tokens.
    pub speculation: Speculation,
    /// Maximum wait of a completion for its first computation; `None` for no limit.
    pub queue_timeout: Option<Duration>,
}

/// Figures for metrics, taken between steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences waiting for a slot.
    pub waiting: usize,
    /// Tokens of the waiting sequences.
    pub waiting_tokens: usize,
    /// KV cells in use by running sequences and kept prefixes.
    pub kv_used_cells: u32,
    /// KV cells of the whole cache.
    pub kv_cells: u32,
    /// Prompt tokens looked up in the prefix cache so far.
    pub prefix_queries: u64,
    /// Prompt tokens found in the prefix cache so far.
    pub prefix_hits: u64,
    /// Searches for a waiting prompt's prefix so far.
    pub prefix_searches: u64,
    /// Sequences put back to be recomputed so far.
    pub preemptions: u64,
    /// Sequences put back for a tenant below its share so far.
    pub displacements: u64,
    /// Sequences in the batch that rest, because their readers have text in hand.
    pub resting: usize,
    /// Draft tokens computed so far.
    pub draft_tokens: u64,
    /// Draft tokens accepted so far.
    pub accepted_tokens: u64,
}

/// Decides what the engine computes next.
#[derive(Debug)]
pub struct Scheduler {
    capacity: Capacity,
    limits: Limits,
    /// Number of batches over which decoding sequences are spread.
    pipeline_depth: usize,
    end_tokens: Vec<TokenId>,
    kv: KvAccounting,
    budget: PrefillBudget,
    speculator: Speculator,
    shares: Shares,
    waiting: WaitingQueues,
    /// Sequences submitted so far.
    arrivals: u64,
    /// Ends of sequences that could never be computed, not yet reported.
    refused: Vec<SequenceEvent>,
    /// Running sequences by slot.
    active: Vec<Option<Sequence>>,
    /// Slots of running sequences, in order of admission.
    order: Vec<Slot>,
    /// Slots that hold KV and no running sequence, least recently used first.
    idle: VecDeque<Slot>,
    /// By slot: arrival number of the waiting sequence that owns the idle slot's KV.
    parked: Vec<Option<u64>>,
    free: Vec<Slot>,
    /// Prefixes that come from a store of prefixes, or could go there.
    stored: StoredPrefixes,
    /// Number of times that cells became free, or became evictable.
    releases: u64,
    /// Sequences of a failed batch, to be computed one by one until the faulty one is found.
    suspects: VecDeque<Suspect>,
    /// Tokens in batches that were planned and not yet committed.
    in_flight: u32,
    /// The last plan left sequences out because the runner could not sample them yet.
    awaits_runner: bool,
    /// True while steps with decode rows must not carry prompts.
    holds_prompts: bool,
    /// True while a step is planned in which spare work has no part.
    spare_stands_back: bool,
    /// Number of decode rows chosen so far.
    rows: u64,
    /// Rows that sequences with unknown readers are owed, if there are too few rows for all.
    row_credit: u64,
    load: Load,
    /// When the latest [`QueueStanding`] was created.
    stood_at: Option<Duration>,
}

/// A sequence of a batch that failed.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    slot: Slot,
    /// Position up to which it must be computed without a failure to be cleared.
    until: u32,
}

impl Scheduler {
    /// Creates a scheduler for a runner of `capacity`; `end_tokens` end a completion.
    ///
    /// # Panics
    /// If the capacity cannot hold one sequence.
    pub fn new(capacity: Capacity, mut limits: Limits, end_tokens: Vec<TokenId>) -> Self {
        assert!(capacity.slots > 0 && capacity.kv_cells >= capacity.context_tokens);
        assert!(capacity.batch_tokens > 0 && capacity.context_tokens > 1);
        // More rows than the runner takes in one call could never all decode in one step.
        let most_rows = usize::from(capacity.slots).min(capacity.batch_tokens as usize);
        limits.max_batch_size = limits.max_batch_size.clamp(1, most_rows);
        limits.prefix_cache &= capacity.shares_prefix;
        Self {
            capacity,
            limits,
            pipeline_depth: 1,
            end_tokens,
            kv: KvAccounting::new(capacity.slots, capacity.kv_cells),
            budget: PrefillBudget::new(limits.prefill_max_tokens, limits.itl_target),
            speculator: Speculator::new(limits.speculation),
            shares: Shares::default(),
            waiting: WaitingQueues::default(),
            arrivals: 0,
            refused: Vec::new(),
            active: (0..capacity.slots).map(|_| None).collect(),
            order: Vec::new(),
            idle: VecDeque::new(),
            parked: vec![None; usize::from(capacity.slots)],
            releases: 0,
            free: (0..capacity.slots).rev().map(Slot).collect(),
            stored: StoredPrefixes::default(),
            suspects: VecDeque::new(),
            in_flight: 0,
            awaits_runner: false,
            holds_prompts: false,
            spare_stands_back: false,
            rows: 0,
            row_credit: 0,
            load: Load { kv_cells: capacity.kv_cells, ..Load::default() },
            stood_at: None,
        }
    }

    /// Queues `work` behind all work of its tenant of the same or a lower priority number. A prompt
    /// that is empty or fills the context fails; [`Scheduler::give_up`] reports it.
    pub fn submit(&mut self, now: Duration, work: Work) {
        let context = self.capacity.context_tokens as usize;
        if work.prompt.is_empty() || work.prompt.len() >= context {
            let tokens = work.prompt.len();
            let refusal = format!(
                "a prompt of {tokens} tokens cannot be computed in a context of {context}: \
                 send at least 1 and at most {}",
                context - 1
            );
            self.refused.push(unserved(work.tag, Finish::Failed(refusal), Duration::ZERO));
            return;
        }
        let account = self.shares.join(work.tenant);
        self.waiting.insert(Sequence::new(work, account, self.arrivals, now));
        self.arrivals += 1;
    }

    /// Ends a completion early: its client left, or a stop string was found in its text. What is
    /// computed stays as a prefix until the cells are needed, like that of any other end: a prompt
    /// that was not complete when its client gave up is often sent again, whole after a time-out
    /// and longer by a few tokens from an editor. Unknown tags are ignored.
    pub fn cancel(&mut self, runner: &mut dyn Runner, tag: Tag) {
        if let Some(slot) = self.slot_of(tag) {
            return self.end_or_mark(runner, slot);
        }
        let Some(sequence) = self.waiting.take_where(|sequence| sequence.tag == tag) else {
            return;
        };
        self.shares.leave(sequence.account, sequence.paused);
        if let Some(slot) = self.kept_slot(&sequence) {
            self.take_idle(slot);
            self.release(runner, slot);
        }
    }

    /// Ends a sequence at once, or when its batch is committed.
    fn end_or_mark(&mut self, runner: &mut dyn Runner, slot: Slot) {
        let sequence = self.active[slot.index()].as_mut().expect("only running sequences end");
        if sequence.in_flight > 0 {
            sequence.is_ending = true;
        } else {
            self.end(runner, slot);
        }
    }

    /// Sets the number of batches over which decoding sequences are spread (at least 1).
    pub fn set_pipeline_depth(&mut self, depth: usize) {
        self.pipeline_depth = depth.max(1);
    }

    /// While `held`, leaves prompts out of steps that advance running answers: other work of the
    /// engine has its turn, and both together would exceed the target inter-token latency.
    pub fn hold_prompts(&mut self, held: bool) {
        self.holds_prompts = held;
    }

    /// Pauses or resumes a completion. A paused one gives up its place in the batch when others
    /// wait, and its KV when the cells are needed; lost KV is recomputed on resume. Unknown tags
    /// are ignored.
    pub fn pause(&mut self, tag: Tag, paused: bool) {
        let changed = match self.slot_of(tag) {
            Some(slot) => {
                let sequence = self.active[slot.index()].as_mut().expect("order lists them");
                let before = std::mem::replace(&mut sequence.paused, paused);
                Some(sequence.account).filter(|_| before != paused)
            }
            None => self.waiting.pause(tag, paused),
        };
        match changed {
            Some(account) if paused => self.shares.pause(account),
            Some(account) => self.shares.resume(account),
            None => {}
        }
    }

    /// Ends completions that cannot be computed, or that have waited too long for their first
    /// computation.
    pub fn give_up(&mut self, now: Duration) -> Vec<SequenceEvent> {
        let mut ended = std::mem::take(&mut self.refused);
        let Some(timeout) = self.limits.queue_timeout else {
            return ended;
        };
        let late = |sequence: &Sequence| {
            sequence.not_begun() && now.saturating_sub(sequence.ready_at) >= timeout
        };
        while let Some(sequence) = self.waiting.take_where(late) {
            self.shares.leave(sequence.account, sequence.paused);
            let waited = now.saturating_sub(sequence.ready_at);
            ended.push(unserved(sequence.tag, Finish::Expired, waited));
        }
        ended
    }

    /// When [`Scheduler::give_up`] will next have something to report, if nothing else happens.
    pub fn next_expiry(&self) -> Option<Duration> {
        let timeout = self.limits.queue_timeout?;
        let waiting = self.waiting.iter().filter(|sequence| sequence.not_begun());
        waiting.map(|sequence| sequence.ready_at + timeout).min()
    }

    /// Returns true if the last plan left out sequences that the runner could not sample yet; the
    /// next plan must then be made without waiting for anything.
    pub fn awaits_runner(&self) -> bool {
        self.awaits_runner
    }

    /// Returns true while any completion is unfinished.
    pub fn has_work(&self) -> bool {
        !self.order.is_empty() || self.waiting.len() > 0 || !self.refused.is_empty()
    }

    /// Returns true if all work for the next batch is still waiting for a slot.
    pub fn only_waiting(&self) -> bool {
        self.waiting.ready() > 0 && self.runnable().next().is_none()
    }

    /// Current figures of the scheduler.
    pub fn load(&self) -> Load {
        let (draft_tokens, accepted_tokens) = self.speculator.totals();
        Load {
            draft_tokens,
            accepted_tokens,
            running: self.order.len(),
            resting: self.order.len() - self.places_taken(),
            waiting: self.waiting.len(),
            waiting_tokens: self.waiting.tokens(),
            kv_used_cells: self.kv.used_cells(),
            ..self.load
        }
    }

    fn sequence(&self, slot: Slot) -> &Sequence {
        self.active[slot.index()].as_ref().expect("a running slot has a sequence")
    }

    fn slot_of(&self, tag: Tag) -> Option<Slot> {
        self.order.iter().copied().find(|&slot| self.sequence(slot).tag == tag)
    }

    /// Slots that may be computed, in order of admission.
    fn runnable(&self) -> impl Iterator<Item = Slot> {
        let may_run = |sequence: &Sequence| {
            sequence.may_run() && !(sequence.is_spare && self.spare_stands_back)
        };
        self.order.iter().copied().filter(move |&slot| may_run(self.sequence(slot)))
    }

    /// Cells that are neither filled nor reserved by a batch in flight.
    fn free_cells(&self) -> u32 {
        self.kv.free_cells().saturating_sub(self.in_flight)
    }

    /// Number of known tokens of `slot` that are not computed yet.
    fn pending(&self, slot: Slot) -> u32 {
        self.sequence(slot).tokens.len() as u32 - self.kv.len(slot)
    }

    /// Removes a sequence from the batch for good.
    fn end(&mut self, runner: &mut dyn Runner, slot: Slot) {
        let sequence = self.remove(slot);
        self.shares.leave(sequence.account, sequence.paused);
        self.release(runner, slot);
    }

    /// Keeps the KV that an ended sequence left in `slot`, if it can be of use.
    fn release(&mut self, runner: &mut dyn Runner, slot: Slot) {
        if self.kv.len(slot) == 0 || !self.limits.prefix_cache {
            return self.free_slot(runner, slot);
        }
        // Kept prefixes that this sequence begins with are of no further use: it is longer and
        // would be found instead. Freeing them keeps a chat of many turns at one slot.
        let (computed, domain) = (self.kv.tokens(slot), self.kv.domain(slot));
        let covered = |idle: &Slot| {
            self.parked[idle.index()].is_none()
                && self.kv.domain(*idle) == domain
                && common_prefix(self.kv.tokens(*idle), computed) == self.kv.len(*idle)
        };
        let covered: Vec<Slot> = self.idle.iter().copied().filter(covered).collect();
        for idle in covered {
            self.take_idle(idle);
            self.free_slot(runner, idle);
        }
        self.keep_idle(slot);
        self.stored.note_kept(slot);
    }

    /// Removes the sequence from the batch; its cells stay with the slot.
    fn remove(&mut self, slot: Slot) -> Sequence {
        self.order.retain(|&other| other != slot);
        self.suspects.retain(|other| other.slot != slot);
        self.set_resting(slot, false);
        let mut sequence = self.active[slot.index()].take().expect("only running sequences end");
        assert_eq!(sequence.in_flight, 0, "a sequence ends between batches");
        sequence.restoring = None;
        self.shares.give_place(sequence.account);
        sequence
    }
}

/// Creates the end event of a completion that was never computed.
fn unserved(tag: Tag, finish: Finish, wait: Duration) -> SequenceEvent {
    SequenceEvent { tag, token: None, scores: None, finish: Some(finish), admitted: None, wait }
}
