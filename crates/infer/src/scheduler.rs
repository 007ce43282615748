//! Continuous batching in three verbs: [`Scheduler::plan`] a batch, let the runner
//! compute it, [`Scheduler::commit`] what it sampled.
//!
//! Further batches may be planned before the first is committed: a sequence is in one of
//! them at most, and until that one is committed nothing happens to it. What is asked
//! meanwhile (cancel, finish) waits for the commit.
//!
//! Requests join and leave between steps. Every step carries one token of each
//! decoding sequence first, then chunks of prompts within a token budget that all
//! waiting prompts share, oldest first, so that neither decode nor a short prompt
//! starves behind a long one. When the KV cache runs out, kept prefixes go first, then
//! the youngest sequence is preempted and recomputed later.

use std::collections::VecDeque;
use std::time::Duration;

use crate::budget::{ItlTarget, PrefillBudget};
use crate::kv::{Ledger, Prefix, common_prefix};
use crate::lookup;
use crate::request::{Admitted, Event, Finish, Step, Tag, Work};
use crate::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot, Span, TokenId};
use crate::sampling::{Sampler, Sampling};
use crate::speculation::{Record, Speculation, Speculator};

/// A prompt waits for another that is computing the same prefix only if that saves
/// at least this many tokens.
const WORTH_WAITING_TOKENS: u32 = 8;

/// What the operator sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Sequences in the batch.
    pub max_batch_size: usize,
    /// Prefill tokens in one step.
    pub prefill_max_tokens: u32,
    /// What prefill may do to decoding sequences.
    pub itl_target: ItlTarget,
    /// Keep finished sequences' KV for later prompts that begin alike.
    pub prefix_cache: bool,
    /// Whether tokens are guessed ahead.
    pub speculation: Speculation,
    /// A completion that has not begun after this long is given up.
    pub queue_timeout: Option<Duration>,
}

/// A completion's state wherever it stands.
#[derive(Debug)]
struct Sequence {
    tag: Tag,
    /// Prompt and completion.
    tokens: Vec<TokenId>,
    prompt_len: usize,
    max_tokens: u32,
    sampling: Sampling,
    priority: i32,
    /// When its next computation became possible.
    ready_at: Duration,
    admitted: Option<Admitted>,
    /// Its reader is behind: it keeps its place and its KV, and computes nothing.
    paused: bool,
    /// Its tokens in a batch that was planned and not yet committed.
    in_flight: u32,
    /// What is to become of it when that batch is committed.
    leaving: Option<Leaving>,
    /// How guesses of its tokens fared.
    record: Record,
    /// A guess that it did not pay to compute.
    unchecked: Option<TokenId>,
}

/// How a sequence in flight will leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// Its client is gone.
    Cancelled,
    /// Its text is complete.
    Finished,
}

impl Sequence {
    fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }
}

/// Numbers for metrics, taken between steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences not yet in it.
    pub waiting: usize,
    /// Prompt tokens of those.
    pub waiting_tokens: usize,
    /// KV cells in use by running sequences and kept prefixes.
    pub kv_used_cells: u32,
    /// KV cells in all.
    pub kv_cells: u32,
    /// Prompt tokens looked up in the prefix cache so far.
    pub prefix_queries: u64,
    /// Prompt tokens found there so far.
    pub prefix_hits: u64,
    /// Sequences put back to be recomputed so far.
    pub preemptions: u64,
    /// Guessed tokens computed so far.
    pub guessed_tokens: u64,
    /// Those of them that were right.
    pub agreed_tokens: u64,
}

/// Decides what the engine computes next.
#[derive(Debug)]
pub struct Scheduler {
    capacity: Capacity,
    limits: Limits,
    /// Batches among which decoding sequences are spread.
    groups: usize,
    end_tokens: Vec<TokenId>,
    ledger: Ledger,
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
    /// After the whole batch failed: its slots, to be computed one by one until the bad one is found.
    suspects: VecDeque<Slot>,
    /// Tokens in batches that were planned and not yet committed.
    in_flight: u32,
    load: Load,
}

impl Scheduler {
    /// A scheduler for a runner of `capacity`; `end_tokens` end a completion.
    ///
    /// # Panics
    /// When the capacity cannot hold one sequence.
    pub fn new(capacity: Capacity, mut limits: Limits, end_tokens: Vec<TokenId>) -> Self {
        assert!(capacity.slots > 0 && capacity.kv_cells >= capacity.context_tokens);
        assert!(capacity.batch_tokens > 0 && capacity.context_tokens > 1);
        let most_rows = usize::from(capacity.slots).min(capacity.batch_tokens as usize);
        limits.max_batch_size = limits.max_batch_size.clamp(1, most_rows);
        limits.prefix_cache &= capacity.shares_prefix;
        Self {
            capacity,
            limits,
            groups: 1,
            end_tokens,
            ledger: Ledger::new(capacity.slots, capacity.kv_cells),
            budget: PrefillBudget::new(limits.prefill_max_tokens, limits.itl_target),
            speculator: Speculator::new(limits.speculation),
            waiting: VecDeque::new(),
            active: (0..capacity.slots).map(|_| None).collect(),
            order: Vec::new(),
            idle: VecDeque::new(),
            free: (0..capacity.slots).rev().map(Slot).collect(),
            suspects: VecDeque::new(),
            in_flight: 0,
            load: Load { kv_cells: capacity.kv_cells, ..Load::default() },
        }
    }

    /// Queues `work` behind all work of the same or a lower priority number.
    ///
    /// # Panics
    /// When the prompt is empty or fills the context: whoever submits has checked.
    pub fn submit(&mut self, now: Duration, work: Work) {
        assert!(
            !work.prompt.is_empty() && work.prompt.len() < self.capacity.context_tokens as usize
        );
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
            leaving: None,
            record: Record::default(),
            unchecked: None,
        };
        self.waiting.insert(at, sequence);
    }

    /// Drops a completion and frees its KV at once. Unknown tags are ignored.
    pub fn cancel(&mut self, runner: &mut dyn Runner, tag: Tag) {
        self.waiting.retain(|sequence| sequence.tag != tag);
        if let Some(slot) = self.slot_of(tag) {
            self.depart(runner, slot, Leaving::Cancelled);
        }
    }

    /// Ends a completion early (a stop string was found in its text); its KV stays as a prefix.
    pub fn finish(&mut self, runner: &mut dyn Runner, tag: Tag) {
        self.waiting.retain(|sequence| sequence.tag != tag);
        if let Some(slot) = self.slot_of(tag) {
            self.depart(runner, slot, Leaving::Finished);
        }
    }

    /// Takes a sequence out of the batch, at once or when its batch is committed.
    fn depart(&mut self, runner: &mut dyn Runner, slot: Slot, leaving: Leaving) {
        let sequence = self.active[slot.index()].as_mut().expect("only running sequences leave");
        if sequence.in_flight > 0 {
            // A client that left is gone, whatever was asked before.
            sequence.leaving =
                sequence.leaving.filter(|_| leaving == Leaving::Finished).or(Some(leaving));
            return;
        }
        match leaving {
            Leaving::Cancelled => self.release(runner, slot),
            Leaving::Finished => self.retire(runner, slot),
        }
    }

    /// Spreads decoding sequences over so many batches from now on (at least 1).
    pub fn set_groups(&mut self, groups: usize) {
        self.groups = groups.max(1);
    }

    /// Stops computing a completion, or goes on with it, keeping its KV meanwhile.
    pub fn pause(&mut self, tag: Tag, paused: bool) {
        let running = self.active.iter_mut().flatten();
        for sequence in running.chain(&mut self.waiting).filter(|sequence| sequence.tag == tag) {
            sequence.paused = paused;
        }
    }

    /// Gives up completions that have waited too long for their first computation.
    pub fn expire(&mut self, now: Duration) -> Vec<Event> {
        let Some(timeout) = self.limits.queue_timeout else {
            return Vec::new();
        };
        let (mut kept, mut expired) = (VecDeque::new(), Vec::new());
        for sequence in self.waiting.drain(..) {
            let waited = now.saturating_sub(sequence.ready_at);
            if waited < timeout || sequence.admitted.is_some() {
                kept.push_back(sequence);
            } else {
                expired.push(Event {
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

    /// Whether any completion is unfinished.
    pub fn has_work(&self) -> bool {
        !self.order.is_empty() || !self.waiting.is_empty()
    }

    /// Whether there is work for the next batch, none of which has been begun.
    pub fn only_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.runnable().next().is_none()
    }

    /// The present load.
    pub fn load(&self) -> Load {
        let (guessed_tokens, agreed_tokens) = self.speculator.totals();
        Load {
            guessed_tokens,
            agreed_tokens,
            running: self.order.len(),
            waiting: self.waiting.len(),
            waiting_tokens: self.waiting.iter().map(|sequence| sequence.tokens.len()).sum(),
            kv_used_cells: self.ledger.used_cells(),
            ..self.load
        }
    }

    /// Fills `batch` with the next step's work; it stays empty when nothing can be computed
    /// until something is submitted, resumed or dropped, or a batch in flight is committed.
    pub fn plan(&mut self, now: Duration, runner: &mut dyn Runner, batch: &mut Batch) {
        batch.clear();
        if !self.suspects.is_empty() {
            self.make_room_for_decode(runner);
        }
        match self.suspects.front() {
            Some(&slot) if self.sequence(slot).in_flight > 0 => {}
            Some(&slot) => {
                let most = self.limits.prefill_max_tokens.min(self.free_cells());
                self.plan_chunk(batch, slot, most);
            }
            None => self.plan_step(now, runner, batch),
        }
        for span in &batch.spans {
            let sequence = self.active[span.slot.index()].as_mut().expect("planned slots run");
            sequence.in_flight = span.tokens.len() as u32;
        }
        self.in_flight += batch.tokens.len() as u32;
    }

    fn plan_step(&mut self, now: Duration, runner: &mut dyn Runner, batch: &mut Batch) {
        self.make_room_for_decode(runner);
        let decoding = self.runnable().filter(|&slot| self.pending(slot) == 1);
        let decoding: Vec<Slot> = decoding.take(self.group_rows()).collect();
        let guesses = self.guesses(runner, &decoding);
        for (i, &slot) in decoding.iter().enumerate() {
            self.plan_chunk(batch, slot, 1);
            if let Some(guess) = guesses.get(i) {
                batch.guess(guess);
            }
        }
        self.admit(now, runner, batch);
        let room = self.capacity.batch_tokens - batch.tokens.len() as u32;
        self.plan_prefill(batch, self.budget.tokens(batch.spans.len()).min(room));
    }

    /// Guesses of what follows each of `decoding`, or none at all: prompts that are in
    /// progress or wait have the first call on the time, and a full cache leaves no room.
    fn guesses(&mut self, runner: &dyn Runner, decoding: &[Slot]) -> Vec<Vec<TokenId>> {
        let most = self.speculator.most_guesses();
        let Some(rows) = runner.checked_rows().filter(|_| most > 0 && !decoding.is_empty()) else {
            return Vec::new();
        };
        let prompts = self.order.iter().any(|&slot| self.pending(slot) > 1);
        if prompts || !self.waiting.is_empty() {
            return Vec::new();
        }
        let room = rows.min(self.capacity.batch_tokens).min(self.free_cells());
        let share = (room as usize).saturating_sub(decoding.len()) / decoding.len();
        let mut guesses: Vec<Vec<TokenId>> =
            decoding.iter().map(|&slot| self.look_up(slot, most.min(share))).collect();
        let records = decoding.iter().map(|&slot| self.sequence(slot).record);
        let found = guesses.iter().map(Vec::len).zip(records).filter(|(len, _)| *len > 0);
        let most = self.speculator.cut(decoding.len(), &found.collect::<Vec<_>>());
        for (guess, &slot) in guesses.iter_mut().zip(decoding) {
            let sequence = self.active[slot.index()].as_mut().expect("decoding slots run");
            sequence.unchecked = guess.first().copied().filter(|_| most == 0);
            guess.truncate(most);
        }
        guesses
    }

    /// At most `most` guesses of what follows `slot`, none of which could end it: what comes
    /// after the end is of no use.
    fn look_up(&self, slot: Slot, most: usize) -> Vec<TokenId> {
        let sequence = self.sequence(slot);
        // The next mask follows from the token before it: a step ahead there is none.
        if sequence.sampling.grammar.is_some() {
            return Vec::new();
        }
        let answer_room = (sequence.max_tokens as usize).saturating_sub(sequence.generated().len());
        let context_room = self.capacity.context_tokens as usize - sequence.tokens.len();
        let useful = answer_room.min(context_room).saturating_sub(1);
        let mut guess = lookup::guess(&sequence.tokens, most.min(useful));
        let ends = guess.iter().position(|token| self.end_tokens.contains(token));
        guess.truncate(ends.unwrap_or(guess.len()));
        guess
    }

    /// Decode rows of one batch: an equal part of all decoding sequences.
    fn group_rows(&self) -> usize {
        let decoding = |&&slot: &&Slot| self.pending(slot) == 1 && !self.sequence(slot).paused;
        self.order.iter().filter(decoding).count().div_ceil(self.groups)
    }

    /// Takes in what the runner sampled for `batch` and tells each completion in `step`.
    pub fn commit(
        &mut self,
        started: Duration,
        now: Duration,
        runner: &mut dyn Runner,
        batch: &Batch,
        sampled: &[Sampled],
    ) -> Step {
        let mut step = self.open_step(started, now, batch);
        let guessed: usize = batch.spans.iter().map(|span| span.guessed).sum();
        if self.suspects.front() == batch.spans.first().map(|span| &span.slot) {
            self.suspects.pop_front();
        }
        for span in &batch.spans {
            self.land(span.slot);
            self.ledger.append(span.slot, &batch.tokens[span.tokens.clone()]);
            if span.guessed > 0 {
                self.check_guesses(runner, span, sampled);
            }
        }
        for one in sampled {
            if self.sequence(one.slot).leaving.is_none() {
                step.events.push(self.take_sample(started, now, runner, one));
            }
        }
        self.let_leave(runner, batch);
        let (decode_rows, took) =
            (batch.spans.len() - prefill_spans(batch).count(), now.saturating_sub(started));
        // A step with guesses tells nothing of one without.
        if guessed == 0 {
            self.budget.observe(decode_rows, step.prefill_tokens, took);
        }
        if step.prefill_tokens == 0 {
            self.speculator.observe_step(batch.tokens.len(), took);
        }
        step
    }

    /// Cuts off what was guessed wrong: of n sampled tokens all but the last were guessed. Who
    /// is leaving takes no more tokens, so all its guesses go.
    fn check_guesses(&mut self, runner: &mut dyn Runner, span: &Span, sampled: &[Sampled]) {
        let stays = self.sequence(span.slot).leaving.is_none();
        let tokens = sampled.iter().filter(|one| stays && one.slot == span.slot).count();
        let agreed = tokens.saturating_sub(1).min(span.guessed);
        let known = span.start + (span.tokens.len() - span.guessed) as u32;
        self.ledger.truncate(span.slot, known + agreed as u32);
        runner.truncate(span.slot, known + agreed as u32);
        if let Some(sequence) = &mut self.active[span.slot.index()] {
            let record = &mut sequence.record;
            self.speculator.observe_guesses(record, span.guessed as u32, agreed as u32);
        }
    }

    /// The runner failed on `batch`: makes room, or isolates the sequence at fault.
    pub fn recover(
        &mut self,
        started: Duration,
        now: Duration,
        runner: &mut dyn Runner,
        batch: &Batch,
        error: &RunError,
    ) -> Step {
        let mut step = self.open_step(started, now, batch);
        if let RunError::Lost(_) = error {
            step.events = self.lose(started, runner, error);
            return step;
        }
        batch.spans.iter().for_each(|span| self.land(span.slot));
        match error {
            RunError::Lost(_) => unreachable!("handled before"),
            RunError::CacheFull => match self.youngest_on_ground() {
                Some(youngest) if !self.yield_cells(runner, youngest) => {
                    step.events.push(self.fail(started, runner, youngest, error.to_string()));
                }
                _ => {}
            },
            RunError::Backend(_) => match batch.spans.as_slice() {
                [only] => {
                    step.events.push(self.fail(started, runner, only.slot, error.to_string()))
                }
                spans => {
                    self.suspects.extend(spans.iter().map(|span| span.slot));
                    for span in spans {
                        runner.truncate(span.slot, span.start);
                    }
                }
            },
        }
        self.let_leave(runner, batch);
        step
    }

    /// The engine lost everything: every running sequence fails, nothing is kept.
    fn lose(&mut self, at: Duration, runner: &mut dyn Runner, error: &RunError) -> Vec<Event> {
        let mut events = Vec::new();
        for slot in self.order.clone() {
            self.land(slot);
            match self.sequence(slot).leaving {
                None => events.push(self.fail(at, runner, slot, error.to_string())),
                Some(_) => self.release(runner, slot),
            }
        }
        while self.evict(runner, None) {}
        debug_assert!(self.ledger.is_empty() && self.suspects.is_empty());
        events
    }

    /// The sequence's batch is no longer in flight.
    fn land(&mut self, slot: Slot) {
        if let Some(sequence) = &mut self.active[slot.index()] {
            self.in_flight -= std::mem::take(&mut sequence.in_flight);
        }
    }

    /// Does to the batch's sequences what was asked while it was in flight.
    fn let_leave(&mut self, runner: &mut dyn Runner, batch: &Batch) {
        for span in &batch.spans {
            let sequence = self.active[span.slot.index()].as_ref();
            if let Some(leaving) = sequence.and_then(|sequence| sequence.leaving) {
                self.depart(runner, span.slot, leaving);
            }
        }
    }

    /// The youngest sequence to which something can be done.
    fn youngest_on_ground(&self) -> Option<Slot> {
        self.order.iter().copied().rev().find(|&slot| self.sequence(slot).in_flight == 0)
    }

    fn open_step(&self, started: Duration, now: Duration, batch: &Batch) -> Step {
        Step {
            started,
            finished: now,
            rows: batch.spans.len() as u32,
            prefill_tokens: prefill_spans(batch).map(|span| span.tokens.len() as u32).sum(),
            events: Vec::with_capacity(batch.spans.len()),
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

    /// Cells that neither hold anything nor wait for a batch in flight.
    fn free_cells(&self) -> u32 {
        self.ledger.free_cells().saturating_sub(self.in_flight)
    }

    /// Tokens of `slot` that are known but not computed.
    fn pending(&self, slot: Slot) -> u32 {
        self.sequence(slot).tokens.len() as u32 - self.ledger.len(slot)
    }

    /// Uncomputed tokens of all running sequences: cells already promised.
    fn promised_cells(&self) -> u32 {
        self.order.iter().map(|&slot| self.pending(slot)).sum()
    }

    fn plan_chunk(&self, batch: &mut Batch, slot: Slot, most: u32) {
        let sequence = self.sequence(slot);
        let start = self.ledger.len(slot);
        let end = (start + most.min(self.capacity.batch_tokens)).min(sequence.tokens.len() as u32);
        let sample = end as usize == sequence.tokens.len();
        batch.push(slot, start, &sequence.tokens[start as usize..end as usize], sample);
    }

    /// Spends `budget` on prompts in progress: half on the oldest, which keeps first come
    /// first served, the other half in equal parts, which lets short prompts pass a long one.
    fn plan_prefill(&self, batch: &mut Batch, budget: u32) {
        let on_ground = |slot: &Slot| self.sequence(*slot).in_flight == 0;
        let prompts: Vec<Slot> = self
            .order
            .iter()
            .copied()
            .filter(|slot| self.pending(*slot) > 1 && on_ground(slot))
            .collect();
        let free = self.free_cells().saturating_sub(batch.tokens.len() as u32);
        let pending = prompts.iter().map(|&slot| self.pending(slot)).collect::<Vec<_>>();
        for (slot, chunk) in prompts.into_iter().zip(share(budget.min(free), &pending)) {
            if chunk > 0 {
                self.plan_chunk(batch, slot, chunk);
            }
        }
    }

    /// Moves waiting sequences into the batch while there is room for them.
    fn admit(&mut self, now: Duration, runner: &mut dyn Runner, batch: &mut Batch) {
        let mut next = 0;
        // Those that wait for another's prefix are passed over, but no more than a batch of them.
        while next < self.waiting.len().min(self.limits.max_batch_size)
            && self.order.len() < self.limits.max_batch_size
        {
            if self.worth_waiting(&self.waiting[next].tokens) {
                next += 1;
                continue;
            }
            let Some((slot, prefix)) = self.find_place(runner, next) else {
                break;
            };
            self.enter(now, runner, next, slot, prefix);
            if self.pending(slot) == 1 && !self.sequence(slot).paused {
                self.plan_chunk(batch, slot, 1);
            }
        }
    }

    /// Whether a running prompt is about to compute a prefix of `tokens` that is not computed yet.
    fn worth_waiting(&self, tokens: &[TokenId]) -> bool {
        if !self.limits.prefix_cache {
            return false;
        }
        let useful = tokens.len() as u32 - 1;
        let computed =
            self.ledger.longest_prefix(tokens).map_or(0, |prefix| prefix.len).min(useful);
        let coming = self.order.iter().filter(|&&slot| self.pending(slot) > 1);
        let best =
            coming.map(|&slot| common_prefix(&self.sequence(slot).tokens, tokens).min(useful));
        best.max().unwrap_or(0) >= computed + WORTH_WAITING_TOKENS
    }

    /// A slot with cells for the waiting sequence `index`, and the prefix to start it from.
    fn find_place(
        &mut self,
        runner: &mut dyn Runner,
        index: usize,
    ) -> Option<(Slot, Option<Prefix>)> {
        let tokens = &self.waiting[index].tokens;
        let (len, useful) = (tokens.len() as u32, tokens.len() as u32 - 1);
        let prefix =
            if self.limits.prefix_cache { self.ledger.longest_prefix(tokens) } else { None };
        let prefix = prefix.map(|found| Prefix { len: found.len.min(useful), ..found });
        let prefix = prefix.filter(|found| found.len > 0);
        let cached = prefix.map_or(0, |found| found.len);
        let donor = prefix.map(|found| found.slot);
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
        while self.ledger.free_cells() < needed {
            if !self.evict(runner, keep) {
                return false;
            }
        }
        true
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

    fn evict(&mut self, runner: &mut dyn Runner, keep: Option<Slot>) -> bool {
        let Some(at) = self.idle.iter().position(|&slot| Some(slot) != keep) else {
            return false;
        };
        let slot = self.idle.remove(at).expect("position is inside");
        self.vacate(runner, slot);
        true
    }

    fn enter(
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
            Some(Prefix { slot: donor, len }) if donor == slot => {
                self.ledger.truncate(slot, len);
                runner.truncate(slot, len);
            }
            Some(Prefix { slot: donor, len }) => {
                self.ledger.fork(donor, slot, len);
                runner.fork(donor, slot, len);
                self.touch(donor);
            }
            None => {}
        }
        debug_assert_eq!(self.ledger.len(slot), cached_tokens);
        self.load.prefix_queries += sequence.tokens.len() as u64;
        self.load.prefix_hits += u64::from(cached_tokens);
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
    fn make_room_for_decode(&mut self, runner: &mut dyn Runner) {
        while self.free_cells() < self.next_cells() {
            if !self.evict(runner, None) {
                // When all are in flight, the next commit brings one to the ground.
                let Some(youngest) = self.youngest_on_ground() else { return };
                self.preempt(runner, youngest);
            }
        }
    }

    /// Cells without which the next step would stand still.
    fn next_cells(&self) -> u32 {
        let on_ground = self.order.iter().filter(|&&slot| self.sequence(slot).in_flight == 0);
        let (mut any, mut rows) = (false, 0);
        for &slot in on_ground {
            any = true;
            rows += u32::from(self.pending(slot) == 1);
        }
        rows.max(u32::from(any))
    }

    /// Preempts `slot` if another sequence can go on without it.
    fn yield_cells(&mut self, runner: &mut dyn Runner, slot: Slot) -> bool {
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
        let sequence = self.leave(slot);
        self.vacate(runner, slot);
        let at = self.waiting.partition_point(|other| other.priority < sequence.priority);
        self.waiting.insert(at, sequence);
    }

    fn take_sample(
        &mut self,
        started: Duration,
        now: Duration,
        runner: &mut dyn Runner,
        sampled: &Sampled,
    ) -> Event {
        let slot = sampled.slot;
        let choice = match &sampled.outcome {
            Ok(choice) => choice.clone(),
            Err(error) => return self.fail(started, runner, slot, error.to_string()),
        };
        let ends = self.end_tokens.contains(&choice.token);
        let context = self.capacity.context_tokens as usize;
        let sequence = self.active[slot.index()].as_mut().expect("sampled slots run");
        if let Some(guess) = sequence.unchecked.take() {
            self.speculator.observe_unchecked(&mut sequence.record, guess == choice.token);
        }
        sequence.tokens.push(choice.token);
        let full = sequence.generated().len() as u32 >= sequence.max_tokens
            || sequence.tokens.len() >= context;
        let first = sequence.generated().len() == 1;
        let event = Event {
            tag: sequence.tag,
            token: Some(choice),
            finish: if ends { Some(Finish::Stop) } else { full.then_some(Finish::Length) },
            admitted: sequence.admitted.filter(|_| first),
            wait: started.saturating_sub(sequence.ready_at),
        };
        sequence.ready_at = now;
        if event.finish.is_some() {
            self.retire(runner, slot);
        }
        event
    }

    fn fail(
        &mut self,
        started: Duration,
        runner: &mut dyn Runner,
        slot: Slot,
        message: String,
    ) -> Event {
        let sequence = self.leave(slot);
        self.vacate(runner, slot);
        Event {
            tag: sequence.tag,
            token: None,
            finish: Some(Finish::Failed(message)),
            admitted: sequence.admitted.filter(|_| sequence.generated().is_empty()),
            wait: started.saturating_sub(sequence.ready_at),
        }
    }

    /// A completion ended well: its KV stays as a prefix where that is wanted.
    fn retire(&mut self, runner: &mut dyn Runner, slot: Slot) {
        let sequence = self.leave(slot);
        if !self.limits.prefix_cache {
            return self.vacate(runner, slot);
        }
        let computed = &sequence.tokens[..self.ledger.len(slot) as usize];
        let covered: Vec<Slot> = self
            .idle
            .iter()
            .copied()
            .filter(|&idle| {
                common_prefix(self.ledger.tokens(idle), computed) == self.ledger.len(idle)
            })
            .collect();
        for idle in covered {
            self.idle.retain(|&other| other != idle);
            self.vacate(runner, idle);
        }
        self.idle.push_back(slot);
    }

    fn release(&mut self, runner: &mut dyn Runner, slot: Slot) {
        self.leave(slot);
        self.vacate(runner, slot);
    }

    /// Takes the sequence out of the batch; its cells stay with the slot.
    fn leave(&mut self, slot: Slot) -> Sequence {
        self.order.retain(|&other| other != slot);
        self.suspects.retain(|&other| other != slot);
        let sequence = self.active[slot.index()].take().expect("only running sequences leave");
        assert_eq!(sequence.in_flight, 0, "a sequence leaves between batches");
        sequence
    }

    /// Empties a slot that nobody uses.
    fn vacate(&mut self, runner: &mut dyn Runner, slot: Slot) {
        self.ledger.truncate(slot, 0);
        runner.truncate(slot, 0);
        self.free.push(slot);
    }
}

/// Parts of `budget` for prompts with `pending` tokens, oldest first; never more than pending.
fn share(budget: u32, pending: &[u32]) -> Vec<u32> {
    let Some((&oldest, others)) = pending.split_first() else {
        return Vec::new();
    };
    let mut parts = vec![oldest.min(budget.div_ceil(2))];
    let part = ((budget - parts[0]) / others.len().max(1) as u32).max(1);
    let mut left = budget - parts[0];
    for &tokens in others {
        let chunk = tokens.min(part).min(left);
        left -= chunk;
        parts.push(chunk);
    }
    for (part, &tokens) in parts.iter_mut().zip(pending) {
        let more = (tokens - *part).min(left);
        left -= more;
        *part += more;
    }
    parts
}

/// The spans that compute more than a decode row.
fn prefill_spans(batch: &Batch) -> impl Iterator<Item = &Span> {
    batch.spans.iter().filter(|span| span.tokens.len() - span.guessed > 1)
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
