//! Continuous batching in three verbs: [`Scheduler::plan`] a batch, let the runner
//! compute it, [`Scheduler::commit`] what it sampled. If the runner fails, [`Scheduler::recover`]
//! takes the place of commit.
//!
//! Further batches may be planned before the first is committed: a sequence is in at most one
//! of them, and nothing happens to it until that one is committed. Calls meanwhile (cancel,
//! finish) take effect at the commit.
//!
//! Requests join and leave between steps. Every step carries one token of each
//! decoding sequence first, then chunks of prompts within a token budget that all
//! waiting prompts share, oldest first, so that neither decode nor a short prompt
//! starves behind a long one. When the KV cache runs out, kept prefixes go first, then
//! the youngest sequence is preempted and recomputed later.

mod commit;
mod plan;
mod room;

use std::collections::VecDeque;
use std::time::Duration;

use crate::budget::{ItlTarget, PrefillBudget};
use crate::kv::{KvAccounting, common_prefix};
use crate::request::{Admitted, Finish, SequenceEvent, Tag, Work};
use crate::runner::{Capacity, Runner, Slot};
use crate::sampling::Sampling;
use crate::speculation::{AcceptanceStats, Speculation, Speculator};
use crate::token::TokenId;

/// Bounds and policies that the operator sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Most sequences in the batch.
    pub max_batch_size: usize,
    /// Most prefill tokens in one step.
    pub prefill_max_tokens: u32,
    /// How much prefill may slow down decoding sequences.
    pub itl_target: ItlTarget,
    /// Keep finished sequences' KV for later prompts that begin alike.
    pub prefix_cache: bool,
    /// Whether to draft tokens.
    pub speculation: Speculation,
    /// Longest wait of a completion for its first computation; `None` for no limit.
    pub queue_timeout: Option<Duration>,
}

/// A completion, from its submission to its end: waiting, running or preempted.
#[derive(Debug)]
struct Sequence {
    tag: Tag,
    /// The prompt, then the completion so far.
    tokens: Vec<TokenId>,
    prompt_len: usize,
    max_tokens: u32,
    sampling: Sampling,
    priority: i32,
    /// When its next computation became possible.
    ready_at: Duration,
    admitted: Option<Admitted>,
    /// Its reader is behind: it keeps its slot and its KV, and computes nothing.
    paused: bool,
    /// Its tokens in a batch that was planned and not yet committed; 0 if it is in none.
    in_flight: u32,
    /// How it ends when that batch is committed, if that was asked for.
    ending: Option<KvAfterEnd>,
    /// How its draft tokens fared.
    acceptance: AcceptanceStats,
    /// A draft token that it did not pay to compute.
    unverified: Option<TokenId>,
}

/// How to treat the KV of a sequence that ends. If a sequence in flight is ended twice, the greater
/// value counts: once its client has left, nobody needs the KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KvAfterEnd {
    /// It stays as a prefix for later prompts, if the prefix cache is on.
    KeepPrefix,
    /// Its cells are freed at once.
    Free,
}

impl Sequence {
    fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }
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
    /// Prompt tokens found there so far.
    pub prefix_hits: u64,
    /// Sequences put back to be recomputed so far.
    pub preemptions: u64,
    /// Draft tokens computed so far.
    pub draft_tokens: u64,
    /// Those of them that were accepted.
    pub accepted_tokens: u64,
}

/// Decides what the engine computes next.
#[derive(Debug)]
pub struct Scheduler {
    capacity: Capacity,
    limits: Limits,
    /// Batches among which decoding sequences are spread.
    pipeline_depth: usize,
    end_tokens: Vec<TokenId>,
    kv: KvAccounting,
    budget: PrefillBudget,
    speculator: Speculator,
    waiting: VecDeque<Sequence>,
    /// Running sequences by slot.
    active: Vec<Option<Sequence>>,
    /// Their slots in order of admission.
    order: Vec<Slot>,
    /// Slots that hold only a prefix, least recently used first.
    idle: VecDeque<Slot>,
    free: Vec<Slot>,
    /// After the whole batch failed: its slots, to be computed one by one until the bad one is
    /// found.
    suspects: VecDeque<Slot>,
    /// Tokens in batches that were planned and not yet committed.
    in_flight: u32,
    /// The last plan left sequences out because the runner could not sample them yet.
    awaits_runner: bool,
    load: Load,
}

impl Scheduler {
    /// A scheduler for a runner of `capacity`; `end_tokens` end a completion.
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
            waiting: VecDeque::new(),
            active: (0..capacity.slots).map(|_| None).collect(),
            order: Vec::new(),
            idle: VecDeque::new(),
            free: (0..capacity.slots).rev().map(Slot).collect(),
            suspects: VecDeque::new(),
            in_flight: 0,
            awaits_runner: false,
            load: Load { kv_cells: capacity.kv_cells, ..Load::default() },
        }
    }

    /// Queues `work` behind all work of the same or a lower priority number.
    ///
    /// # Panics
    /// If the prompt is empty or fills the context: the caller has to check that before.
    pub fn submit(&mut self, now: Duration, work: Work) {
        assert!(
            !work.prompt.is_empty() && work.prompt.len() < self.capacity.context_tokens as usize
        );
        // The queue is ordered by priority, so equals keep their order of arrival.
        let at = self.waiting.partition_point(|other| other.priority <= work.priority);
        let sequence = Sequence {
            tag: work.tag,
            prompt_len: work.prompt.len(),
            tokens: work.prompt,
            max_tokens: work.max_tokens.max(1),
            sampling: work.sampling,
            priority: work.priority,
            ready_at: now,
            admitted: None,
            paused: false,
            in_flight: 0,
            ending: None,
            acceptance: AcceptanceStats::default(),
            unverified: None,
        };
        self.waiting.insert(at, sequence);
    }

    /// Drops a completion and frees its KV at once. Unknown tags are ignored.
    pub fn cancel(&mut self, runner: &mut dyn Runner, tag: Tag) {
        self.waiting.retain(|sequence| sequence.tag != tag);
        if let Some(slot) = self.slot_of(tag) {
            self.end_or_mark(runner, slot, KvAfterEnd::Free);
        }
    }

    /// Ends a completion early (a stop string was found in its text); its KV stays as a prefix.
    pub fn finish(&mut self, runner: &mut dyn Runner, tag: Tag) {
        self.waiting.retain(|sequence| sequence.tag != tag);
        if let Some(slot) = self.slot_of(tag) {
            self.end_or_mark(runner, slot, KvAfterEnd::KeepPrefix);
        }
    }

    /// Ends a sequence, at once or when its batch is committed.
    fn end_or_mark(&mut self, runner: &mut dyn Runner, slot: Slot, kv: KvAfterEnd) {
        let sequence = self.active[slot.index()].as_mut().expect("only running sequences end");
        if sequence.in_flight > 0 {
            sequence.ending = sequence.ending.max(Some(kv));
        } else {
            self.end(runner, slot, kv);
        }
    }

    /// Spreads decoding sequences over this many batches from now on (at least 1).
    pub fn set_pipeline_depth(&mut self, depth: usize) {
        self.pipeline_depth = depth.max(1);
    }

    /// Stops computing a completion, keeping its KV, or goes on with it. Unknown tags are ignored.
    pub fn pause(&mut self, tag: Tag, paused: bool) {
        let running = self.active.iter_mut().flatten();
        for sequence in running.chain(&mut self.waiting).filter(|sequence| sequence.tag == tag) {
            sequence.paused = paused;
        }
    }

    /// Gives up completions that have waited too long for their first computation.
    pub fn expire(&mut self, now: Duration) -> Vec<SequenceEvent> {
        let Some(timeout) = self.limits.queue_timeout else {
            return Vec::new();
        };
        let (mut kept, mut expired) = (VecDeque::new(), Vec::new());
        for sequence in self.waiting.drain(..) {
            let waited = now.saturating_sub(sequence.ready_at);
            // A preempted sequence has begun: its client already has a part of the answer.
            if waited < timeout || sequence.admitted.is_some() {
                kept.push_back(sequence);
            } else {
                expired.push(SequenceEvent {
                    tag: sequence.tag,
                    token: None,
                    finish: Some(Finish::Expired),
                    admitted: None,
                    wait: waited,
                });
            }
        }
        self.waiting = kept;
        expired
    }

    /// Whether the last plan left sequences out because the runner could not sample them yet, so
    /// that the next plan has to be made without waiting for anything.
    pub fn awaits_runner(&self) -> bool {
        self.awaits_runner
    }

    /// Whether any completion is unfinished.
    pub fn has_work(&self) -> bool {
        !self.order.is_empty() || !self.waiting.is_empty()
    }

    /// Whether all work for the next batch is still waiting for a slot.
    pub fn only_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.runnable().next().is_none()
    }

    /// The scheduler's figures as of now.
    pub fn load(&self) -> Load {
        let (draft_tokens, accepted_tokens) = self.speculator.totals();
        Load {
            draft_tokens,
            accepted_tokens,
            running: self.order.len(),
            waiting: self.waiting.len(),
            waiting_tokens: self.waiting.iter().map(|sequence| sequence.tokens.len()).sum(),
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
        let may_run = |slot: &Slot| {
            let sequence = self.sequence(*slot);
            !sequence.paused && sequence.in_flight == 0
        };
        self.order.iter().copied().filter(may_run)
    }

    /// Cells that neither hold anything nor are taken by a batch in flight.
    fn free_cells(&self) -> u32 {
        self.kv.free_cells().saturating_sub(self.in_flight)
    }

    /// Tokens of `slot` that are known but not computed.
    fn pending(&self, slot: Slot) -> u32 {
        self.sequence(slot).tokens.len() as u32 - self.kv.len(slot)
    }

    /// Takes a sequence out of the batch for good.
    fn end(&mut self, runner: &mut dyn Runner, slot: Slot, kv: KvAfterEnd) {
        let sequence = self.remove(slot);
        if kv == KvAfterEnd::Free || !self.limits.prefix_cache {
            return self.free_slot(runner, slot);
        }
        // Kept prefixes that this sequence begins with are of no further use: it is longer and
        // would be found instead. Freeing them keeps a chat of many turns at one slot.
        let computed = &sequence.tokens[..self.kv.len(slot) as usize];
        let covered: Vec<Slot> = self
            .idle
            .iter()
            .copied()
            .filter(|&idle| common_prefix(self.kv.tokens(idle), computed) == self.kv.len(idle))
            .collect();
        for idle in covered {
            self.idle.retain(|&other| other != idle);
            self.free_slot(runner, idle);
        }
        self.idle.push_back(slot);
    }

    /// Takes the sequence out of the batch; its cells stay with the slot.
    fn remove(&mut self, slot: Slot) -> Sequence {
        self.order.retain(|&other| other != slot);
        self.suspects.retain(|&other| other != slot);
        let sequence = self.active[slot.index()].take().expect("only running sequences end");
        assert_eq!(sequence.in_flight, 0, "a sequence ends between batches");
        sequence
    }

    /// Frees a slot that no sequence uses, and its cells.
    fn free_slot(&mut self, runner: &mut dyn Runner, slot: Slot) {
        self.kv.truncate(slot, 0);
        runner.truncate(slot, 0);
        self.free.push(slot);
    }
}
