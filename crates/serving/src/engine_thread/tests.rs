//! Tests that a burst starts in one step: the engine waits for prompts being tokenized, but only
//! while it has nothing else to compute. An idle engine still expires requests that wait too long.

use std::sync::atomic::{AtomicUsize, Ordering};

use loquent_engine::sim::{SimOptions, SimRunner};
use loquent_infer::admission::Bounds;
use loquent_infer::budget::ItlTarget;
use loquent_infer::request::Finish;
use loquent_infer::runner::{Capacity, Pipeline, Slot};
use loquent_infer::sampling::Sampler;
use loquent_infer::speculation::Speculation;
use loquent_infer::tenant::{Tenant, TenantId};

use super::*;
use crate::admission::{AdmissionGate, Permit};
use crate::identity::Identity;

/// Longer than any test runs: a test that waits for it hangs instead of passing late.
const FOREVER: Duration = Duration::from_secs(3600);

fn limits(queue_timeout: Option<Duration>) -> Limits {
    Limits {
        max_batch_size: 8,
        prefill_max_tokens: 512,
        itl_target: ItlTarget::Unbounded,
        prefix_cache: false,
        speculation: Speculation::Off,
        queue_timeout,
    }
}

struct Burst {
    engine: EngineLoop,
    commands: mpsc::UnboundedSender<EngineCommand>,
    permits: Vec<Permit>,
    _steps: mpsc::Receiver<Step>,
}

impl Burst {
    /// Creates an engine, and the permits of `requests` whose prompts are being tokenized.
    fn of(requests: usize, gather_limit: Duration) -> Self {
        let runner = Box::new(SimRunner::new(SimOptions::default()));
        let limits = limits(None);
        let bounds = Bounds {
            max_inflight_requests: 8,
            max_inflight_per_tenant: None,
            max_queued_tokens: 1000,
        };
        let (clock, pending) = (Clock::start(), PendingPrompts::default());
        let gate = AdmissionGate::new(bounds, clock, pending.clone());
        let (commands, inbox) = mpsc::unbounded_channel();
        let (outbox, steps) = mpsc::channel(STEPS_IN_FLIGHT);
        let scheduler = Scheduler::new(runner.capacity(), limits, Vec::new());
        let embeddings = None;
        let metrics = Arc::new(Metrics::new());
        let timer = timer().unwrap();
        let engine = EngineLoop {
            runner,
            scheduler,
            inbox,
            outbox,
            clock,
            load: metrics.engine_load(),
            metrics,
            pending,
            timer,
            gather_limit,
            watch: EngineWatch::default(),
            preemption: Preemption::default(),
            embeddings,
            prefixes: None,
            next_save: Duration::ZERO,
            outage: None,
            last_outage: None,
            outage_limit: FOREVER,
        };
        Self {
            engine,
            commands,
            permits: gate.enter(&Identity::in_process(), requests, 1).unwrap(),
            _steps: steps,
        }
    }

    /// Gathers as the loop does before a step, and returns the next batch.
    fn next_batch(&mut self) -> Batch {
        self.engine.handle_queued();
        self.engine.gather();
        let mut batch = Batch::default();
        self.engine.scheduler.plan(
            self.engine.clock.now(),
            self.engine.runner.as_mut(),
            &mut batch,
        );
        batch
    }
}

/// Simulates the end of tokenizing one prompt: its work goes to the engine.
fn arrive(commands: &mpsc::UnboundedSender<EngineCommand>, permit: &mut Permit, tag: u64) {
    let work = Work {
        tag: Tag(tag),
        prompt: vec![1, 2, 3 + tag as TokenId],
        max_tokens: 5,
        ..Work::default()
    };
    commands.send(EngineCommand::Submit(Box::new(work))).unwrap();
    permit.arrive();
}

#[test]
fn a_burst_whose_prompts_arrive_one_by_one_starts_in_one_step() {
    let mut burst = Burst::of(3, FOREVER);
    arrive(&burst.commands, &mut burst.permits[0], 0);
    let (commands, mut late) = (burst.commands.clone(), burst.permits.split_off(1));
    let tokenizing = thread::spawn(move || {
        for (tag, permit) in (1..).zip(&mut late) {
            thread::yield_now();
            arrive(&commands, permit, tag);
        }
        late
    });
    assert_eq!(burst.next_batch().spans.len(), 3);
    drop(tokenizing.join().unwrap());
}

#[test]
fn a_request_that_is_given_up_holds_nobody_up() {
    let mut burst = Burst::of(2, FOREVER);
    arrive(&burst.commands, &mut burst.permits[0], 0);
    // Its tokenizer refused the prompt.
    drop(burst.permits.pop());
    assert_eq!(burst.next_batch().spans.len(), 1);
}

#[test]
fn a_prompt_that_takes_too_long_is_not_waited_for() {
    let mut burst = Burst::of(2, Duration::ZERO);
    arrive(&burst.commands, &mut burst.permits[0], 0);
    assert_eq!(burst.next_batch().spans.len(), 1);
}

#[test]
fn a_running_sequence_never_waits_for_prompts() {
    let mut burst = Burst::of(2, FOREVER);
    arrive(&burst.commands, &mut burst.permits[0], 0);
    let waiting = burst.permits.pop();
    let gathered = std::mem::take(&mut burst.engine.pending);
    let (batch, mut sampled) = (burst.next_batch(), Vec::new());
    let step = burst.engine.step(&batch, &mut sampled);
    assert_eq!(step.events.len(), 1, "it has its first token");
    burst.engine.pending = gathered;
    assert!(burst.engine.pending.any());
    assert_eq!(burst.next_batch().spans.len(), 1, "its next token, at once");
    drop(waiting);
}

#[test]
fn an_engine_without_work_does_not_gather() {
    let mut burst = Burst::of(1, Duration::ZERO);
    assert!(burst.next_batch().is_empty());
}

/// A pipeline that never completes a batch.
struct Stuck {
    runner: SimRunner,
    can_sample: bool,
    /// Times that somebody asked for a completed batch: once in each turn of the loop.
    turns: Arc<AtomicUsize>,
}

impl Stuck {
    fn new(can_sample: bool) -> Self {
        let runner = SimRunner::new(SimOptions::default());
        Self { runner, can_sample, turns: Arc::default() }
    }
}

impl Runner for Stuck {
    fn capacity(&self) -> Capacity {
        self.runner.capacity()
    }

    fn assign(&mut self, _slot: Slot, _sampler: Sampler) {}

    fn is_ready(&mut self, _slot: Slot) -> bool {
        self.can_sample
    }

    fn run(&mut self, _batch: &Batch, _sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        unreachable!("the engine uses the pipeline")
    }

    fn fork(&mut self, _from: Slot, _to: Slot, _len: u32) {}

    fn truncate(&mut self, _slot: Slot, _len: u32) {}

    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        Some(self)
    }
}

impl Pipeline for Stuck {
    fn depth(&self) -> usize {
        1
    }

    fn submit(&mut self, _batch: &Batch) -> Result<(), RunError> {
        Ok(())
    }

    fn try_collect(&mut self, _sampled: &mut Vec<Sampled>) -> Option<Result<(), RunError>> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn on_arrival(&mut self, _wake: Box<dyn Fn() + Send + Sync>) {}
}

/// Services of an engine of its own, without a store of prefixes.
pub(super) fn context() -> EngineContext {
    EngineContext {
        clock: Clock::start(),
        metrics: Arc::new(Metrics::new()),
        pending: PendingPrompts::default(),
        watch: EngineWatch::default(),
        outage_limit: FOREVER,
        prefixes: None,
    }
}

/// Waits for the first `count` ends that `engine` reports.
fn next_ends(engine: &mut EngineHandle, count: usize) -> Vec<(Tag, Option<Finish>)> {
    timer().unwrap().block_on(async {
        let first = async {
            let mut ends = Vec::new();
            while ends.len() < count {
                let step = engine.steps.recv().await.expect("the engine runs");
                let ended = step.events.into_iter().filter(|event| event.finish.is_some());
                ends.extend(ended.map(|event| (event.tag, event.finish)));
            }
            ends
        };
        timeout(Duration::from_secs(60), first).await.expect("the engine says when one expires")
    })
}

/// Starts an engine with a queue timeout and sends it `commands`. Returns the first end that it
/// reports.
fn first_end(runner: Box<dyn Runner>, commands: Vec<EngineCommand>) -> (Tag, Option<Finish>) {
    let limits = limits(Some(Duration::from_millis(20)));
    let mut engine = start(runner, limits, Vec::new(), context()).unwrap();
    commands.into_iter().for_each(|command| engine.commands.send(command).unwrap());
    let end = next_ends(&mut engine, 1).remove(0);
    drop(engine.commands);
    engine.thread.join().unwrap();
    end
}

fn submit(tag: u64) -> EngineCommand {
    let work = Work { tag: Tag(tag), prompt: vec![1, 2, 3], max_tokens: 5, ..Work::default() };
    EngineCommand::Submit(Box::new(work))
}

#[test]
fn the_queue_timeout_fires_while_nothing_can_be_computed() {
    let mut burst = Burst::of(1, Duration::ZERO);
    burst.engine.scheduler =
        Scheduler::new(burst.engine.runner.capacity(), limits(Some(Duration::ZERO)), Vec::new());
    burst.engine.handle_command(submit(0));
    burst.engine.handle_command(EngineCommand::Pause(Tag(0)));
    assert!(burst.next_batch().is_empty(), "its reader has stopped");
    assert!(burst.engine.wait(), "it does not wait for a command");
    assert_eq!(burst.engine.scheduler.give_up(Duration::ZERO).len(), 1);
}

#[test]
fn the_queue_timeout_fires_while_the_pipeline_is_stuck() {
    let runner = Box::new(Stuck::new(true));
    let mut commands: Vec<_> = (0..8).map(submit).collect();
    commands.push(submit(8));
    let (_, finish) = first_end(runner, commands);
    assert_eq!(finish, Some(Finish::Expired));
}

#[test]
fn a_full_pipeline_is_not_asked_again_and_again_while_a_row_waits_for_its_mask() {
    let runner = Stuck::new(false);
    let turns = runner.turns.clone();
    let engine = start(Box::new(runner), limits(None), Vec::new(), context()).unwrap();
    engine.commands.send(submit(0)).unwrap();
    // In the second turn the command has come at the latest, and its batch is in flight.
    while turns.load(Ordering::Relaxed) < 2 {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(50));
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns < 10, "{turns} turns");
    drop(engine.commands);
    engine.thread.join().unwrap();
}

#[test]
fn a_prompt_that_cannot_be_computed_fails_and_the_engine_goes_on() {
    let runner = Box::new(SimRunner::new(SimOptions::default()));
    let empty = Work { tag: Tag(7), max_tokens: 5, ..Work::default() };
    let (tag, finish) = first_end(runner, vec![EngineCommand::Submit(Box::new(empty))]);
    assert_eq!(tag, Tag(7));
    assert!(matches!(finish, Some(Finish::Failed(_))), "{finish:?}");
}

/// A runner whose first spare batch lasts until it is given up.
struct Patient {
    runner: SimRunner,
    preemption: Preemption,
    /// Told when that batch has begun; `None` afterwards.
    begun: Option<std::sync::mpsc::Sender<()>>,
}

impl Runner for Patient {
    fn capacity(&self) -> Capacity {
        self.runner.capacity()
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        self.runner.assign(slot, sampler);
    }

    fn preemption(&self) -> Option<Preemption> {
        Some(self.preemption.clone())
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        let Some(begun) = self.begun.take_if(|_| batch.is_spare) else {
            return self.runner.run(batch, sampled);
        };
        begun.send(()).unwrap();
        while !self.preemption.is_asked() {
            thread::yield_now();
        }
        Err(RunError::Preempted)
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.runner.fork(from, to, len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.runner.truncate(slot, len);
    }
}

#[test]
fn a_spare_batch_is_given_up_for_whoever_waits_and_computed_afterwards() {
    let spare = Tenant { id: TenantId(1), weight: 1, is_spare: true };
    let command = |tag, tenant| {
        let prompt = vec![1, 2, 3];
        let work = Work { tag: Tag(tag), prompt, max_tokens: 5, tenant, ..Work::default() };
        EngineCommand::Submit(Box::new(work))
    };
    let (begun, has_begun) = std::sync::mpsc::channel();
    let runner = SimRunner::new(SimOptions::default());
    let runner = Patient { runner, preemption: Preemption::default(), begun: Some(begun) };
    let mut engine = start(Box::new(runner), limits(None), Vec::new(), context()).unwrap();
    engine.commands.send(command(0, spare)).unwrap();
    has_begun.recv_timeout(Duration::from_secs(60)).expect("the batch begins");
    // Nobody waits for this one, and for the next somebody does.
    engine.commands.send(command(1, spare)).unwrap();
    engine.commands.send(command(2, Tenant::default())).unwrap();
    let ends = next_ends(&mut engine, 3);
    assert_eq!(ends[0].0, Tag(2), "{ends:?}");
    assert!(ends.iter().all(|(_, end)| !matches!(end, Some(Finish::Failed(_)))), "{ends:?}");
    drop(engine.commands);
    engine.thread.join().unwrap();
}
