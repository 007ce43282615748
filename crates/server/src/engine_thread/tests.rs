//! A burst starts in one step: the engine waits for prompts being tokenized, but only while it
//! has nothing else to compute.

use loquent_engine::sim::{SimOptions, SimRunner};
use loquent_infer::admission::Bounds;
use loquent_infer::budget::ItlTarget;
use loquent_infer::speculation::Speculation;

use super::*;
use crate::admission::{AdmissionGate, Permit};
use crate::identity::Identity;

/// Longer than any test runs: a test that waits for it hangs instead of passing late.
const FOREVER: Duration = Duration::from_secs(3600);

struct Burst {
    engine: EngineLoop,
    commands: mpsc::UnboundedSender<EngineCommand>,
    permits: Vec<Permit>,
    _steps: mpsc::Receiver<Step>,
}

impl Burst {
    /// An engine, and the permits of `requests` whose prompts are being tokenized.
    fn of(requests: usize, gather_limit: Duration) -> Self {
        let runner = Box::new(SimRunner::new(SimOptions::default()));
        let limits = Limits {
            max_batch_size: 8,
            prefill_max_tokens: 512,
            itl_target: ItlTarget::Unbounded,
            prefix_cache: false,
            speculation: Speculation::Off,
            queue_timeout: None,
        };
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
        let metrics = Arc::new(Metrics::new());
        let engine = EngineLoop {
            runner,
            scheduler,
            inbox,
            outbox,
            clock,
            metrics,
            pending,
            gather_limit,
            watch: EngineWatch::default(),
        };
        Self {
            engine,
            commands,
            permits: gate.enter(&Identity::in_process(), requests, 1).unwrap(),
            _steps: steps,
        }
    }

    /// Gathers as the loop does before a step, and gives the sequences of the next batch.
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

/// One prompt has been tokenized: its work goes to the engine.
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
