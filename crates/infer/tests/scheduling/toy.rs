//! A runner whose every token depends on exactly what its cache holds, and the engine's loop
//! around it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::reading::ReaderReport;
use loquent_infer::request::{Admitted, Finish, Step, Tag, Work};
use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, SavedSpan, Slot};
use loquent_infer::sampling::{SampledToken, Sampler, Sampling};
use loquent_infer::scheduler::{Limits, Scheduler};
use loquent_infer::speculation::Speculation;
use loquent_infer::tenant::{CacheDomain, Tenant, TenantId};
use loquent_infer::token::{RowError, TokenId};

/// Ends a completion.
pub const END: TokenId = 0;
/// In a prompt: the back end fails on any batch that computes this sequence.
pub const POISON: TokenId = 1;
/// In a prompt: this sequence's row fails.
pub const BAD_ROW: TokenId = 2;
/// In a prompt: the sequence's own constraints allow no token.
pub const FORBIDDEN: TokenId = 1_000_000;

/// A runner whose every token depends on exactly what its cache holds (on the last
/// `memory` tokens of it), and which checks what it is asked.
pub struct ToyRunner {
    pub capacity: Capacity,
    /// Per slot, its tokens and the physical cell of each.
    pub slots: Vec<Vec<(TokenId, u64)>>,
    /// Per slot with a sampler, the cache domain of its sequence.
    pub assigned: BTreeMap<Slot, u64>,
    /// The cache domain in which each cell was computed.
    pub domains: Vec<u64>,
    /// Every n-th call reports a full cache though there is room.
    pub full_every: Option<u64>,
    /// Every n-th call gives its batch up if it is spare.
    pub gives_up_every: Option<u64>,
    /// Batches given up so far.
    pub given_up: u64,
    /// Gives no token for this slot, as a last stage that leaves out a row.
    pub silent: Option<Slot>,
    /// A sequence with [`POISON`] does not fail its batch but the whole engine.
    pub is_mortal: bool,
    pub calls: u64,
    pub most_rows: usize,
    pub memory: usize,
    /// Rows of logits for verifying drafts.
    pub verify_rows: Option<u32>,
    /// Every n-th call loses all that no slot's next token depends on, as a sliding window does.
    pub forgets_every: Option<u64>,
    /// Per slot, the oldest position that it still holds.
    oldest: Vec<u32>,
}

impl ToyRunner {
    pub fn new(slots: u16, kv_cells: u32, context_tokens: u32) -> Self {
        let capacity =
            Capacity { slots, kv_cells, context_tokens, batch_tokens: 64, shares_prefix: true };
        Self {
            capacity,
            slots: vec![Vec::new(); usize::from(slots)],
            assigned: BTreeMap::new(),
            domains: Vec::new(),
            gives_up_every: None,
            given_up: 0,
            silent: None,
            full_every: None,
            is_mortal: false,
            calls: 0,
            most_rows: 0,
            memory: usize::MAX,
            verify_rows: None,
            forgets_every: None,
            oldest: vec![0; usize::from(slots)],
        }
    }

    fn push(&mut self, slot: Slot, token: TokenId) {
        self.slots[slot.index()].push((token, self.domains.len() as u64));
        self.domains.push(self.assigned[&slot]);
    }

    fn sample(&self, slot: Slot) -> Result<SampledToken, RowError> {
        let cells = &self.slots[slot.index()];
        let foreign = |cell: u64| self.domains[cell as usize] != self.assigned[&slot];
        assert!(!cells.iter().any(|&(_, cell)| foreign(cell)), "another domain's cells are used");
        if cells.iter().any(|&(token, _)| token == BAD_ROW) {
            return Err(RowError::NonFiniteLogits);
        }
        if cells.iter().any(|&(token, _)| token == FORBIDDEN) {
            return Err(RowError::NothingAllowed);
        }
        let tokens: Vec<TokenId> = cells.iter().map(|&(token, _)| token).collect();
        Ok(SampledToken { token: next_token(&tokens, self.memory), logprobs: None })
    }

    /// Loses all that it holds.
    pub fn die(&mut self) {
        self.slots.iter_mut().for_each(Vec::clear);
        self.oldest.fill(0);
        self.assigned.clear();
    }

    fn forget(&mut self) {
        for (oldest, held) in self.oldest.iter_mut().zip(&self.slots) {
            *oldest = (*oldest).max((held.len() + 1).saturating_sub(self.memory) as u32);
        }
    }

    pub fn used_cells(&self) -> usize {
        self.slots.iter().flatten().map(|&(_, cell)| cell).collect::<BTreeSet<_>>().len()
    }
}

/// The less `memory`, the more a text repeats itself.
pub fn next_token(tokens: &[TokenId], memory: usize) -> TokenId {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for &token in &tokens[tokens.len().saturating_sub(memory)..] {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x100_0000_01b3);
    }
    match hash >> 33 {
        value if value % 23 == 0 => END,
        value => 3 + (value % 50) as TokenId,
    }
}

impl Runner for ToyRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn verify_rows(&self) -> Option<u32> {
        self.verify_rows
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        // The tests write the domain where the sampler shows it to the runner.
        self.assigned.insert(slot, sampler.sampling().seed);
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        self.calls += 1;
        assert!(batch.tokens.len() <= self.capacity.batch_tokens as usize);
        let distinct: BTreeSet<_> = batch.spans.iter().map(|span| span.slot).collect();
        assert_eq!(distinct.len(), batch.spans.len(), "a slot occurs once in a batch");
        let alone = batch.spans.len() == 1;
        if !alone && self.full_every.is_some_and(|n| self.calls.is_multiple_of(n)) {
            return Err(RunError::CacheFull);
        }
        if batch.is_spare && self.gives_up_every.is_some_and(|n| self.calls.is_multiple_of(n)) {
            self.given_up += 1;
            return Err(RunError::Preempted);
        }
        for span in &batch.spans {
            let held = self.slots[span.slot.index()].iter().map(|&(token, _)| token);
            let fresh = batch.tokens[span.tokens.clone()].iter().copied();
            let is_poisoned = held.chain(fresh).any(|token| token == POISON);
            if is_poisoned && self.is_mortal {
                self.die();
                return Err(RunError::Lost("killed".into()));
            }
            if is_poisoned {
                // What stands before it in the batch was computed, and has to be cut off.
                for span in batch.spans.iter().take_while(|before| before.slot != span.slot) {
                    let tokens = &batch.tokens[span.tokens.clone()];
                    tokens.iter().for_each(|&token| self.push(span.slot, token));
                }
                return Err(RunError::Backend("poisoned".into()));
            }
        }
        if self.forgets_every.is_some_and(|n| self.calls.is_multiple_of(n)) {
            self.forget();
        }
        self.most_rows = self.most_rows.max(batch.spans.len());
        for span in &batch.spans {
            assert!(self.assigned.contains_key(&span.slot), "sampling without a sampler");
            let held = self.slots[span.slot.index()].len();
            assert_eq!(held, span.start as usize, "a span continues its sequence");
            let (known, draft) =
                batch.tokens[span.tokens.clone()].split_at(span.tokens.len() - span.draft);
            known.iter().for_each(|&token| self.push(span.slot, token));
            let mut agrees = span.sample && self.silent != Some(span.slot);
            for next in draft.iter().map(Some).chain([None]) {
                if agrees {
                    let outcome = self.sample(span.slot);
                    agrees = outcome.as_ref().is_ok_and(|choice| Some(&choice.token) == next);
                    sampled.push(Sampled { slot: span.slot, outcome });
                }
                next.into_iter().for_each(|&token| self.push(span.slot, token));
            }
        }
        let rows: usize = batch.spans.iter().map(|span| 1 + span.draft).sum();
        assert!(rows == batch.spans.len() || Some(rows as u32) <= self.verify_rows);
        assert!(self.used_cells() <= self.capacity.kv_cells as usize, "the cache overflows");
        Ok(())
    }

    fn holds(&self, slot: Slot, len: u32) -> bool {
        let oldest = self.oldest[slot.index()] as usize;
        oldest == 0 || oldest + self.memory <= len as usize + 1
    }

    fn save(&mut self, slot: Slot, positions: Range<u32>) -> Result<SavedSpan, String> {
        let held =
            self.slots[slot.index()][positions.start as usize..positions.end as usize].iter();
        let state = held.flat_map(|(token, _)| token.to_le_bytes()).collect();
        Ok(SavedSpan { positions, state })
    }

    fn restore(
        &mut self,
        slot: Slot,
        positions: Range<u32>,
        span: &SavedSpan,
    ) -> Result<(), String> {
        assert_eq!(self.slots[slot.index()].len() as u32, positions.start, "it goes on there");
        let words = span.state.chunks_exact(4);
        let tokens = words.map(|word| TokenId::from_le_bytes(word.try_into().unwrap()));
        let tokens: Vec<_> = (span.positions.clone()).zip(tokens).collect();
        if tokens.len() != span.positions.len() {
            return Err("damaged".into());
        }
        let wanted = tokens.into_iter().filter(|(position, _)| positions.contains(position));
        wanted.for_each(|(_, token)| self.push(slot, token));
        Ok(())
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        assert!(self.capacity.shares_prefix && self.slots[to.index()].is_empty());
        assert!(self.holds(from, len), "a part of the prefix is gone");
        self.oldest[to.index()] = self.oldest[from.index()];
        self.slots[to.index()] = self.slots[from.index()][..len as usize].to_vec();
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        let partial = len > 0 && (len as usize) < self.slots[slot.index()].len();
        assert!(self.capacity.shares_prefix || !partial, "this model's past cannot be cut");
        assert!(!partial || self.holds(slot, len), "a part of what is kept is gone");
        self.slots[slot.index()].truncate(len as usize);
        if len == 0 {
            self.oldest[slot.index()] = 0;
            self.assigned.remove(&slot);
        }
    }
}

pub fn work(tag: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Work {
    Work { tag: Tag(tag), prompt, max_tokens, ..Work::default() }
}

/// The same for `tenant` of `weight`.
pub fn work_of(tenant: u64, weight: u32, work: Work) -> Work {
    Work { tenant: Tenant { id: TenantId(tenant), weight, is_spare: false }, ..work }
}

/// The same for a tenant that takes only what others leave.
pub fn spare(work: Work) -> Work {
    Work { tenant: Tenant { is_spare: true, ..work.tenant }, ..work }
}

/// The same in a cache domain.
pub fn work_in(domain: u64, work: Work) -> Work {
    let sampling = Sampling { seed: domain, ..work.sampling };
    Work { cache_domain: CacheDomain(domain), sampling, ..work }
}

pub fn limits(max_batch_size: usize) -> Limits {
    Limits {
        max_batch_size,
        prefill_max_tokens: 16,
        itl_target: ItlTarget::Unbounded,
        prefix_cache: true,
        speculation: Speculation::Off,
        queue_timeout: None,
    }
}

/// What `work` generates when nothing else runs.
pub fn alone(work: &Work, context: usize) -> (Vec<TokenId>, Finish) {
    alone_with(work, context, usize::MAX)
}

pub fn alone_with(work: &Work, context: usize, memory: usize) -> (Vec<TokenId>, Finish) {
    let mut tokens = work.prompt.clone();
    loop {
        let token = next_token(&tokens, memory);
        tokens.push(token);
        let generated = tokens.len() - work.prompt.len();
        if token == END {
            return (tokens.split_off(work.prompt.len()), Finish::Stop);
        }
        if generated == work.max_tokens as usize || tokens.len() == context {
            return (tokens.split_off(work.prompt.len()), Finish::Length);
        }
    }
}

/// An answer of `max_tokens` tokens on a runner that sees but the last token, so that its texts go
/// in circles.
pub fn circling(tag: u64, prompt_tokens: usize, max_tokens: u32, context: usize) -> Work {
    let works =
        (0..).map(|n| work(tag, vec![3 + 50 * tag as TokenId + n; prompt_tokens], max_tokens));
    let lasts = |work: &Work| alone_with(work, context, 1).0.len() == max_tokens as usize;
    works.take(50).find(lasts).expect("half of all tokens lead into a circle")
}

/// A batch whose outcome the scheduler has not heard yet.
pub struct BatchInFlight {
    pub batch: Batch,
    /// How many batches were planned before it.
    pub number: u64,
    pub started: Duration,
    pub outcome: Result<Vec<Sampled>, RunError>,
}

pub struct Bench {
    pub scheduler: Scheduler,
    pub runner: ToyRunner,
    /// Batches in flight at once. The runner computes when a batch is submitted, and
    /// later calls apply in their order, as in a pipeline.
    pub depth: usize,
    pub in_flight: VecDeque<BatchInFlight>,
    pub now: Duration,
    pub generated: BTreeMap<u64, Vec<TokenId>>,
    pub ended: BTreeMap<u64, Finish>,
    /// How each completion entered the batch.
    pub admitted: BTreeMap<u64, Admitted>,
    /// Losses of the engine since each completion's last token, or since it was submitted.
    pub losses: BTreeMap<u64, u8>,
    /// Completions that were submitted and neither ended nor dropped.
    pub live: BTreeSet<u64>,
    /// Of paused ones, how many batches had been planned by then.
    pub paused: BTreeMap<u64, u64>,
    pub planned: u64,
    /// Makes all steps so many times as long.
    pub slowness: u32,
}

impl Bench {
    pub fn new(runner: ToyRunner, limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(runner.capacity(), limits, vec![END]),
            runner,
            depth: 1,
            in_flight: VecDeque::new(),
            now: Duration::ZERO,
            generated: BTreeMap::new(),
            ended: BTreeMap::new(),
            admitted: BTreeMap::new(),
            losses: BTreeMap::new(),
            live: BTreeSet::new(),
            paused: BTreeMap::new(),
            planned: 0,
            slowness: 1,
        }
    }

    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self.scheduler.set_pipeline_depth(depth);
        self
    }

    /// Fills the pipeline.
    pub fn submit_batches(&mut self) {
        while self.in_flight.len() < self.depth {
            let (mut batch, mut sampled) = (Batch::default(), Vec::new());
            self.scheduler.plan(self.now, &mut self.runner, &mut batch);
            let idle = batch.is_empty() && self.in_flight.is_empty();
            let mut wanting = self.live.iter().filter(|tag| !self.paused.contains_key(tag));
            assert!(!idle || wanting.next().is_none(), "work but nothing planned");
            if batch.is_empty() {
                return;
            }
            for flight in &self.in_flight {
                let taken = |slot| batch.spans.iter().any(|span| span.slot == slot);
                let twice = flight.batch.spans.iter().any(|span| taken(span.slot));
                assert!(!twice, "a sequence is in two batches at once");
            }
            let outcome = self.runner.run(&batch, &mut sampled).map(|()| sampled);
            let (number, started) = (self.planned, self.now);
            self.planned += 1;
            self.in_flight.push_back(BatchInFlight { batch, number, started, outcome });
        }
    }

    pub fn submit(&mut self, work: &Work) {
        self.live.insert(work.tag.0);
        self.scheduler.submit(self.now, work.clone());
    }

    pub fn cancel(&mut self, tag: u64) {
        self.live.remove(&tag);
        self.scheduler.cancel(&mut self.runner, Tag(tag));
    }

    pub fn pause(&mut self, tag: u64) {
        if self.live.contains(&tag) {
            self.paused.entry(tag).or_insert(self.planned);
        }
        self.scheduler.pause(Tag(tag), true);
    }

    pub fn resume(&mut self, tag: u64) {
        self.paused.remove(&tag);
        self.scheduler.pause(Tag(tag), false);
    }

    /// The reader has so many ms of text in hand, and takes so many for a token.
    pub fn note_reader(&mut self, tag: u64, reader: Option<(u64, u64)>) {
        let tokens = self.generated.get(&tag).map_or(0, Vec::len) as u32;
        let report = reader.map(|(hand, token)| ReaderReport {
            tokens,
            lasts_until: self.now + Duration::from_millis(hand),
            token_time: Duration::from_millis(token),
        });
        self.scheduler.note_reader(Tag(tag), report);
    }

    /// One turn of the engine loop.
    pub fn step(&mut self) -> Step {
        self.submit_batches();
        let front = self.in_flight.pop_front();
        let Some(BatchInFlight { batch, number, started, outcome }) = front else {
            return Step::default();
        };
        self.now += Duration::from_millis(10 + batch.tokens.len() as u64) * self.slowness;
        let (now, runner) = (self.now, &mut self.runner);
        let step = match outcome {
            Ok(sampled) => self.scheduler.commit(started, now, runner, &batch, &sampled),
            Err(error) => self.scheduler.recover(started, now, runner, &batch, &error),
        };
        self.record(&step, number);
        if self.in_flight.is_empty() {
            let used = self.scheduler.load().kv_used_cells;
            assert_eq!(used as usize, self.runner.used_cells(), "the account is wrong");
        }
        step
    }

    /// The engine is lost with everything in flight, and back at once.
    pub fn lose(&mut self) -> Step {
        self.submit_batches();
        let batch = self.in_flight.pop_front().map(|front| front.batch).unwrap_or_default();
        self.in_flight.clear();
        self.runner.die();
        self.live.iter().for_each(|&tag| *self.losses.entry(tag).or_default() += 1);
        let (now, lost) = (self.now, RunError::Lost("a stage died".into()));
        let step = self.scheduler.recover(now, now, &mut self.runner, &batch, &lost);
        self.record(&step, self.planned);
        assert_eq!(self.scheduler.load().kv_used_cells, 0, "kept prefixes are gone too");
        step
    }

    pub fn record(&mut self, step: &Step, number: u64) {
        for event in &step.events {
            let tag = event.tag.0;
            assert!(!self.ended.contains_key(&tag), "an event after the end");
            if let Some(admitted) = event.admitted {
                assert!(self.admitted.insert(tag, admitted).is_none(), "admitted twice");
            }
            if let Some(choice) = &event.token {
                let paused = self.paused.get(&tag);
                assert!(paused.is_none_or(|&at| number < at), "a paused sequence is computed");
                self.generated.entry(tag).or_default().push(choice.token);
                self.losses.remove(&tag);
            }
            if let Some(finish) = &event.finish {
                self.ended.insert(tag, finish.clone());
                self.live.remove(&tag);
            }
        }
    }

    /// Resumes whatever is paused and goes on to the end.
    pub fn run(&mut self) {
        self.paused
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|tag| self.resume(tag));
        for _ in 0..20_000 {
            if !self.scheduler.has_work() {
                assert!(self.in_flight.is_empty(), "a sequence in flight is work");
                return;
            }
            self.step();
        }
        panic!("the scheduler does not come to an end");
    }
}
