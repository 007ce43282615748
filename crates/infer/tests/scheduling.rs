//! The scheduler under seeded simulation: whatever joins, leaves, fails or runs out of
//! cache, every completion is what it would have been alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::request::{Finish, Step, Tag, Work};
use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::{SampledToken, Sampler, Sampling};
use loquent_infer::scheduler::{Limits, Scheduler};
use loquent_infer::speculation::Speculation;
use loquent_infer::token::{RowError, TokenId};
use proptest::prelude::*;

/// Ends a completion.
const END: TokenId = 0;
/// In a prompt: the back end fails on any batch that computes this sequence.
const POISON: TokenId = 1;
/// In a prompt: this sequence's row fails.
const BAD_ROW: TokenId = 2;

/// A runner whose every token depends on exactly what its cache holds (on the last
/// `memory` tokens of it), and which checks what it is asked.
struct ToyRunner {
    capacity: Capacity,
    /// Per slot, its tokens and the physical cell of each.
    slots: Vec<Vec<(TokenId, u64)>>,
    assigned: BTreeSet<Slot>,
    next_cell: u64,
    /// Every n-th call reports a full cache though there is room.
    full_every: Option<u64>,
    calls: u64,
    most_rows: usize,
    memory: usize,
    /// Rows of logits for verifying drafts.
    verify_rows: Option<u32>,
}

impl ToyRunner {
    fn new(slots: u16, kv_cells: u32, context_tokens: u32) -> Self {
        let capacity =
            Capacity { slots, kv_cells, context_tokens, batch_tokens: 64, shares_prefix: true };
        Self {
            capacity,
            slots: vec![Vec::new(); usize::from(slots)],
            assigned: BTreeSet::new(),
            next_cell: 0,
            full_every: None,
            calls: 0,
            most_rows: 0,
            memory: usize::MAX,
            verify_rows: None,
        }
    }

    fn push(&mut self, slot: Slot, token: TokenId) {
        self.slots[slot.index()].push((token, self.next_cell));
        self.next_cell += 1;
    }

    fn sample(&self, slot: Slot) -> Result<SampledToken, RowError> {
        let cells = &self.slots[slot.index()];
        if cells.iter().any(|&(token, _)| token == BAD_ROW) {
            return Err(RowError::NonFiniteLogits);
        }
        let tokens: Vec<TokenId> = cells.iter().map(|&(token, _)| token).collect();
        Ok(SampledToken { token: next_token(&tokens, self.memory), logprobs: None })
    }

    fn used_cells(&self) -> usize {
        self.slots.iter().flatten().map(|&(_, cell)| cell).collect::<BTreeSet<_>>().len()
    }
}

/// The less `memory`, the more a text repeats itself.
fn next_token(tokens: &[TokenId], memory: usize) -> TokenId {
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

    fn assign(&mut self, slot: Slot, _sampler: Sampler) {
        self.assigned.insert(slot);
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
        for span in &batch.spans {
            let held = self.slots[span.slot.index()].iter().map(|&(token, _)| token);
            let fresh = batch.tokens[span.tokens.clone()].iter().copied();
            if held.chain(fresh).any(|token| token == POISON) {
                return Err(RunError::Backend("poisoned".into()));
            }
        }
        self.most_rows = self.most_rows.max(batch.spans.len());
        for span in &batch.spans {
            assert!(self.assigned.contains(&span.slot), "sampling without a sampler");
            let held = self.slots[span.slot.index()].len();
            assert_eq!(held, span.start as usize, "a span continues its sequence");
            let (known, draft) =
                batch.tokens[span.tokens.clone()].split_at(span.tokens.len() - span.draft);
            known.iter().for_each(|&token| self.push(span.slot, token));
            let mut agrees = span.sample;
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

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        assert!(self.slots[to.index()].is_empty());
        self.slots[to.index()] = self.slots[from.index()][..len as usize].to_vec();
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.slots[slot.index()].truncate(len as usize);
    }
}

fn work(tag: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Work {
    Work { tag: Tag(tag), prompt, max_tokens, ..Work::default() }
}

fn limits(max_batch_size: usize) -> Limits {
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
fn alone(work: &Work, context: usize) -> (Vec<TokenId>, Finish) {
    alone_with(work, context, usize::MAX)
}

fn alone_with(work: &Work, context: usize, memory: usize) -> (Vec<TokenId>, Finish) {
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

/// A batch whose outcome the scheduler has not heard yet.
struct BatchInFlight {
    batch: Batch,
    started: Duration,
    outcome: Result<Vec<Sampled>, RunError>,
}

struct Bench {
    scheduler: Scheduler,
    runner: ToyRunner,
    /// Batches in flight at once. The runner computes when a batch is submitted, and
    /// later calls apply in their order, as in a pipeline.
    depth: usize,
    in_flight: VecDeque<BatchInFlight>,
    now: Duration,
    generated: BTreeMap<u64, Vec<TokenId>>,
    ended: BTreeMap<u64, Finish>,
}

impl Bench {
    fn new(runner: ToyRunner, limits: Limits) -> Self {
        let scheduler = Scheduler::new(runner.capacity(), limits, vec![END]);
        let (generated, ended) = Default::default();
        let in_flight = VecDeque::new();
        Self { scheduler, runner, depth: 1, in_flight, now: Duration::ZERO, generated, ended }
    }

    fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self.scheduler.set_pipeline_depth(depth);
        self
    }

    /// Fills the pipeline.
    fn submit_batches(&mut self) {
        while self.in_flight.len() < self.depth {
            let (mut batch, mut sampled) = (Batch::default(), Vec::new());
            self.scheduler.plan(self.now, &mut self.runner, &mut batch);
            let idle = batch.is_empty() && self.in_flight.is_empty();
            assert!(!idle || !self.scheduler.has_work(), "work but nothing planned");
            if batch.is_empty() {
                return;
            }
            for flight in &self.in_flight {
                let taken = |slot| batch.spans.iter().any(|span| span.slot == slot);
                let twice = flight.batch.spans.iter().any(|span| taken(span.slot));
                assert!(!twice, "a sequence is in two batches at once");
            }
            let outcome = self.runner.run(&batch, &mut sampled).map(|()| sampled);
            self.in_flight.push_back(BatchInFlight { batch, started: self.now, outcome });
        }
    }

    fn submit(&mut self, work: &Work) {
        self.scheduler.submit(self.now, work.clone());
    }

    /// One turn of the engine loop.
    fn step(&mut self) -> Step {
        self.submit_batches();
        let Some(BatchInFlight { batch, started, outcome }) = self.in_flight.pop_front() else {
            return Step::default();
        };
        self.now += Duration::from_millis(10 + batch.tokens.len() as u64);
        let (now, runner) = (self.now, &mut self.runner);
        let step = match outcome {
            Ok(sampled) => self.scheduler.commit(started, now, runner, &batch, &sampled),
            Err(error) => self.scheduler.recover(started, now, runner, &batch, &error),
        };
        self.record(&step);
        if self.in_flight.is_empty() {
            let used = self.scheduler.load().kv_used_cells;
            assert_eq!(used as usize, self.runner.used_cells(), "the account is wrong");
        }
        step
    }

    fn record(&mut self, step: &Step) {
        for event in &step.events {
            let tag = event.tag.0;
            assert!(!self.ended.contains_key(&tag), "an event after the end");
            if let Some(choice) = &event.token {
                self.generated.entry(tag).or_default().push(choice.token);
            }
            if let Some(finish) = &event.finish {
                self.ended.insert(tag, finish.clone());
            }
        }
    }

    fn run(&mut self) {
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

#[derive(Debug, Clone)]
enum Act {
    Submit { shared: usize, own: Vec<TokenId>, max_tokens: u32, priority: i32 },
    Cancel(u64),
    Stop(u64),
    Step(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let own = prop::collection::vec(3..40u32, 1..30);
    let submit =
        (0..30usize, own, 1..40u32, 0..3i32).prop_map(|(shared, mut own, max_tokens, priority)| {
            // A few requests are broken, each in its own way.
            match own[0] {
                3 => own.push(POISON),
                4 => own.push(BAD_ROW),
                _ => {}
            }
            Act::Submit { shared, own, max_tokens, priority }
        });
    let act = prop_oneof![
        4 => submit,
        1 => (0..40u64).prop_map(Act::Cancel),
        1 => (0..40u64).prop_map(Act::Stop),
        4 => (1..6u8).prop_map(Act::Step),
    ];
    prop::collection::vec(act, 1..60)
}

#[test]
fn only_waiting_sequences_could_be_next_while_all_others_are_in_flight() {
    let mut bench = Bench::new(ToyRunner::new(10, 400, 96), limits(4)).with_depth(2);
    assert!(!bench.scheduler.only_waiting(), "nobody is there");
    bench.submit(&work(0, [5; 8].to_vec(), 10));
    assert!(bench.scheduler.only_waiting());
    bench.submit_batches();
    assert!(!bench.scheduler.only_waiting(), "nobody waits");
    bench.submit(&work(1, [6; 8].to_vec(), 10));
    assert!(bench.scheduler.only_waiting(), "the first one flies");
    bench.step();
    bench.submit(&work(2, [7; 8].to_vec(), 10));
    assert!(!bench.scheduler.only_waiting(), "the first one could go on");
    bench.run();
}

#[test]
fn a_sequence_that_ends_in_flight_keeps_none_of_its_draft() {
    let mut runner = ToyRunner::new(10, 400, 96);
    (runner.memory, runner.verify_rows) = (1, Some(40));
    let limits = Limits { speculation: Speculation::Fixed(4), ..limits(4) };
    let mut bench = Bench::new(runner, limits).with_depth(2);
    // A text in circles, so that drafts are right.
    bench.submit(&work(0, [5; 20].to_vec(), 40));
    while bench.in_flight.iter().all(|flight| flight.batch.spans[0].draft == 0) {
        bench.step();
        bench.submit_batches();
    }
    bench.scheduler.finish(&mut bench.runner, Tag(0));
    bench.run();
    assert!(!bench.scheduler.has_work());
}

#[test]
fn suspects_of_a_failed_batch_stay_within_a_full_cache() {
    let mut runner = ToyRunner::new(10, 160, 96);
    runner.memory = 1;
    let mut bench = Bench::new(runner, Limits { prefix_cache: false, ..limits(6) });
    let system: Vec<TokenId> = (3..33).collect();
    let mut tag = 0;
    let mut submit = |bench: &mut Bench, shared: usize, own: &[TokenId], max_tokens, priority| {
        let prompt = [&system[..shared], own].concat();
        bench.submit(&Work { priority, ..work(tag, prompt, max_tokens) });
        tag += 1;
    };
    submit(&mut bench, 12, &[&[5][..], &[3; 10]].concat(), 8, 0);
    submit(&mut bench, 2, &[5, 3, 3, 3, 3], 9, 0);
    submit(&mut bench, 15, &[5, 3, 3], 7, 0);
    bench.step();
    bench.step();
    submit(&mut bench, 21, &[3, POISON], 1, 1);
    submit(&mut bench, 23, &[&[4][..], &[3; 28], &[BAD_ROW]].concat(), 1, 0);
    submit(&mut bench, 10, &[&[5][..], &[3; 9]].concat(), 3, 0);
    submit(&mut bench, 0, &[&[3; 15][..], &[POISON]].concat(), 1, 1);
    submit(&mut bench, 0, &[3, POISON], 1, 1);
    submit(&mut bench, 0, &[3, POISON], 1, 1);
    // The runner asserts that its cache never overflows.
    bench.run();
    assert_eq!(bench.ended.len(), 9);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_completion_is_what_it_would_be_alone(
        acts in acts(),
        batch_size in 1..9usize,
        kv_cells in prop::sample::select(vec![96u32, 160, 400]),
        full_every in prop::option::of(3..20u64),
        prefix_cache: bool,
        depth in 1..5usize,
        speculation in speculation(),
        memory in prop::sample::select(vec![1, 2, 3, usize::MAX]),
        verify_rows in prop::option::of(1..40u32),
    ) {
        let mut runner = ToyRunner::new(10, kv_cells, 96);
        (runner.full_every, runner.memory, runner.verify_rows) = (full_every, memory, verify_rows);
        let limits = Limits { prefix_cache, speculation, ..limits(batch_size) };
        let mut bench = Bench::new(runner, limits).with_depth(depth);
        let system: Vec<TokenId> = (3..33).collect();
        let mut submitted = Vec::new();
        let mut dropped = BTreeSet::new();
        for act in acts {
            match act {
                Act::Submit { shared, own, max_tokens, priority } => {
                    let prompt = [&system[..shared], &own].concat();
                    let work = Work { priority, ..work(submitted.len() as u64, prompt, max_tokens) };
                    bench.submit(&work);
                    submitted.push(work);
                }
                Act::Cancel(tag) => {
                    bench.scheduler.cancel(&mut bench.runner, Tag(tag));
                    dropped.insert(tag);
                }
                Act::Stop(tag) => {
                    bench.scheduler.finish(&mut bench.runner, Tag(tag));
                    dropped.insert(tag);
                }
                Act::Step(times) => (0..times).for_each(|_| { bench.step(); }),
            }
        }
        bench.run();
        for work in &submitted {
            let tag = work.tag.0;
            let generated = bench.generated.get(&tag).cloned().unwrap_or_default();
            let broken = work.prompt.iter().any(|token| [POISON, BAD_ROW].contains(token));
            let (expected, finish) = if broken { Default::default() } else { alone_or(work, memory) };
            if dropped.contains(&tag) && !bench.ended.contains_key(&tag) {
                prop_assert!(expected.starts_with(&generated));
            } else if broken {
                let failed = matches!(bench.ended.get(&tag), Some(Finish::Failed(_)));
                prop_assert!(failed, "{:?}", bench.ended.get(&tag));
                prop_assert!(generated.is_empty());
            } else {
                prop_assert_eq!(&generated, &expected);
                prop_assert_eq!(bench.ended.get(&tag), finish.as_ref());
            }
        }
        prop_assert!(bench.runner.most_rows <= batch_size);
    }
}

fn alone_or(work: &Work, memory: usize) -> (Vec<TokenId>, Option<Finish>) {
    let (tokens, finish) = alone_with(work, 96, memory);
    (tokens, Some(finish))
}

fn speculation() -> impl Strategy<Value = Speculation> {
    prop_oneof![
        Just(Speculation::Off),
        Just(Speculation::Auto),
        (0..20u32).prop_map(Speculation::Fixed),
    ]
}

/// One request on a runner whose text goes in circles: the steps it took.
fn steps_of(work: &Work, speculation: Speculation) -> u64 {
    let mut runner = ToyRunner::new(4, 2000, 1000);
    (runner.memory, runner.verify_rows) = (2, Some(16));
    let mut bench = Bench::new(runner, Limits { speculation, ..limits(2) });
    bench.submit(work);
    bench.run();
    let (expected, finish) = alone_with(work, 1000, 2);
    assert_eq!((&bench.generated[&0], &bench.ended[&0]), (&expected, &finish));
    let load = bench.scheduler.load();
    assert_eq!(load.accepted_tokens, expected.len() as u64 - bench.runner.calls);
    assert!(load.draft_tokens >= load.accepted_tokens);
    bench.runner.calls
}

#[test]
fn a_text_in_circles_takes_few_steps_and_is_the_same() {
    // A prompt whose answer circles rather than ends.
    let circling = (3..50).map(|token| work(0, vec![token, token + 1], 200));
    let work = circling.into_iter().find(|work| alone_with(work, 1000, 2).0.len() == 200).unwrap();
    assert_eq!(steps_of(&work, Speculation::Off), 200);
    let fixed = steps_of(&work, Speculation::Fixed(8));
    assert!(fixed < 200 / 3, "{fixed} steps");
    let auto = steps_of(&work, Speculation::Auto);
    assert!(auto < 200 / 3, "{auto} steps");
}

#[test]
fn nothing_is_drafted_while_prompts_want_the_time() {
    let mut runner = ToyRunner::new(4, 2000, 1000);
    (runner.memory, runner.verify_rows) = (1, Some(16));
    let limits = Limits { speculation: Speculation::Fixed(4), ..limits(1) };
    let mut bench = Bench::new(runner, limits);
    bench.submit(&work(0, vec![10, 11, 10, 11], 50));
    bench.submit(&work(1, vec![12], 2));
    (0..10).for_each(|_| _ = bench.step());
    assert_eq!(bench.scheduler.load().draft_tokens, 0, "another one waits");
}

#[test]
fn requests_join_and_leave_between_steps() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 200), limits(4));
    bench.submit(&work(0, vec![10, 11, 12], 30));
    bench.step();
    let before = bench.generated[&0].len();
    bench.submit(&work(1, vec![20, 21], 30));
    let step = bench.step();
    assert_eq!(step.rows, 2, "the second request is computed together with the first");
    assert_eq!(bench.generated[&0].len(), before + 1);
    assert_eq!(bench.generated[&1].len(), 1);
}

#[test]
fn a_long_prompt_starves_neither_decode_nor_a_short_prompt() {
    let mut bench = Bench::new(ToyRunner::new(8, 4000, 2000), limits(4));
    bench.submit(&work(0, vec![10], 100));
    bench.step();
    bench.submit(&work(1, (0..1000).map(|n| 3 + n % 40).collect(), 5));
    bench.step();
    bench.submit(&work(2, (0..8).map(|n| 30 + n).collect(), 5));
    let before = bench.generated[&0].len();
    for _ in 0..2 {
        bench.step();
    }
    assert_eq!(bench.generated[&0].len(), before + 2, "decode advances in every step");
    assert!(bench.generated.contains_key(&2), "the short prompt passes the long one");
    assert!(!bench.generated.contains_key(&1));
}

#[test]
fn equal_prompts_are_computed_once() {
    let limits = Limits { prefill_max_tokens: 64, ..limits(16) };
    let mut bench = Bench::new(ToyRunner::new(32, 4000, 2000), limits);
    let prompt: Vec<TokenId> = (3..63).collect();
    for tag in 0..16 {
        bench.submit(&work(tag, prompt.clone(), 4));
    }
    let mut computed = 0;
    while bench.generated.len() < 16 {
        let step = bench.step();
        computed += step.prefill_tokens;
    }
    assert_eq!(computed, 60, "one prompt's prefill serves all sixteen");
    assert_eq!(bench.scheduler.load().prefix_hits, 15 * 59);
}

#[test]
fn the_next_turn_of_a_chat_starts_from_the_last() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2));
    let first = work(0, (3..40).collect(), 10);
    bench.submit(&first);
    bench.run();
    let mut prompt = first.prompt.clone();
    prompt.extend(&bench.generated[&0]);
    prompt.extend([45, 46]);
    let computed = prompt.len() as u64 - 3; // the last generated token was never computed
    bench.submit(&work(1, prompt, 10));
    bench.run();
    assert_eq!(bench.scheduler.load().prefix_hits, computed);
}

#[test]
fn lower_priority_numbers_go_first_and_equals_in_order() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(1));
    for (tag, priority) in [(0, 5), (1, 0), (2, 5), (3, -1)] {
        bench.submit(&Work { priority, ..work(tag, vec![10 + tag as TokenId], 1) });
    }
    let mut ends = Vec::new();
    while bench.scheduler.has_work() {
        ends.extend(bench.step().events.iter().filter(|e| e.finish.is_some()).map(|e| e.tag.0));
    }
    assert_eq!(ends, [3, 1, 0, 2]);
}

#[test]
fn cancelling_frees_the_cache_at_once() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2));
    bench.submit(&work(0, (3..40).collect(), 100));
    bench.step();
    assert!(bench.runner.used_cells() > 0);
    bench.scheduler.cancel(&mut bench.runner, Tag(0));
    assert_eq!(bench.runner.used_cells(), 0);
    assert!(!bench.scheduler.has_work());
}

#[test]
fn a_paused_sequence_keeps_its_cache_and_computes_nothing() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2));
    let paused = work(0, vec![10, 11, 12], 6);
    bench.submit(&paused);
    bench.step();
    bench.scheduler.pause(Tag(0), true);
    bench.submit(&work(1, vec![20, 21], 6));
    while !bench.ended.contains_key(&1) {
        bench.step();
    }
    assert_eq!(bench.generated[&0].len(), 1);
    let mut batch = Batch::default();
    bench.scheduler.plan(bench.now, &mut bench.runner, &mut batch);
    assert!(batch.is_empty(), "nothing runs while all are paused");
    bench.scheduler.pause(Tag(0), false);
    bench.run();
    assert_eq!(bench.generated[&0], alone(&paused, 500).0);
}

#[test]
fn a_completion_that_waits_too_long_expires_and_a_running_one_does_not() {
    let limits = Limits { queue_timeout: Some(Duration::from_secs(2)), ..limits(1) };
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits);
    bench.submit(&work(0, vec![10], 400));
    bench.step();
    bench.submit(&work(1, vec![20], 4));
    bench.now += Duration::from_secs(1);
    assert!(bench.scheduler.expire(bench.now).is_empty());
    bench.now += Duration::from_secs(1);
    let expired = bench.scheduler.expire(bench.now);
    let tags: Vec<_> = expired.iter().map(|event| (event.tag, event.finish.clone())).collect();
    assert_eq!(tags, [(Tag(1), Some(Finish::Expired))]);
}

#[test]
fn batches_in_flight_share_the_decoding_sequences() {
    let mut bench = Bench::new(ToyRunner::new(8, 4000, 2000), limits(8)).with_depth(2);
    for tag in 0..8 {
        bench.submit(&work(tag, vec![10 + tag as TokenId], 50));
    }
    for _ in 0..4 {
        bench.step();
    }
    bench.submit_batches();
    let rows: Vec<usize> = bench.in_flight.iter().map(|flight| flight.batch.spans.len()).collect();
    assert_eq!(rows, [4, 4]);
}

#[test]
fn a_sequence_cancelled_in_flight_ends_with_its_batch() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2)).with_depth(2);
    bench.submit(&work(0, (3..40).collect(), 100));
    bench.submit_batches();
    bench.scheduler.cancel(&mut bench.runner, Tag(0));
    assert!(bench.scheduler.has_work(), "its batch is still out");
    let step = bench.step();
    assert!(step.events.is_empty(), "no event is reported");
    assert_eq!((bench.runner.used_cells(), bench.scheduler.has_work()), (0, false));
}

#[test]
fn when_the_engine_is_lost_everything_running_fails_and_nothing_is_kept() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 500), limits(2)).with_depth(2);
    bench.submit(&work(7, (3..20).collect(), 1));
    bench.run();
    for tag in 0..3 {
        bench.submit(&work(tag, vec![10 + tag as TokenId, 50], 100));
    }
    bench.step();
    bench.submit_batches();
    let lost = RunError::Lost("a stage died".into());
    let flight = bench.in_flight.pop_front().unwrap();
    bench.in_flight.clear();
    let (now, runner) = (bench.now, &mut bench.runner);
    let step = bench.scheduler.recover(now, now, runner, &flight.batch, &lost);
    let failed: Vec<_> = step.events.iter().map(|event| event.tag.0).collect();
    assert_eq!(failed, [0, 1], "the third was not running");
    assert_eq!(bench.scheduler.load().kv_used_cells, 0, "kept prefixes are gone too");
    bench.run();
    assert!(bench.generated.contains_key(&2), "the one that waited is served");
}
