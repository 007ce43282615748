//! An engine in virtual time: the server's scheduler, and a runner that computes the duration of
//! each step and always samples the same token.

use std::time::Duration;

use loquent_infer::request::{Step, Tag, Work};
use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot, Span};
use loquent_infer::sampling::{SampledToken, Sampler};
use loquent_infer::scheduler::{Limits, Scheduler};

use super::plan::Machine;

/// Requests served before a burst.
const WARM_UP_REQUESTS: u64 = 8;
const WARM_UP_TOKENS: u32 = 32;

/// An engine whose time is virtual.
pub struct VirtualEngine<'a> {
    /// The server's scheduler.
    pub scheduler: Scheduler,
    /// Time since the start.
    pub now: Duration,
    runner: TimedRunner,
    machine: &'a Machine,
}

impl<'a> VirtualEngine<'a> {
    /// Creates an engine on `machine`.
    pub fn new(machine: &'a Machine, runner: TimedRunner, limits: Limits) -> Self {
        let scheduler = Scheduler::new(runner.capacity(), limits, Vec::new());
        Self { scheduler, now: Duration::ZERO, runner, machine }
    }

    /// Serves some requests in turn before the burst, from which the scheduler learns step
    /// durations: a server's first requests are not its largest burst.
    pub fn warm_up(&mut self, prompt_tokens: u32, answer_tokens: u32) {
        for number in 0..WARM_UP_REQUESTS {
            // Nobody reads these.
            let tag = Tag(u64::MAX - number);
            self.submit(tag, prompt_tokens, WARM_UP_TOKENS.min(answer_tokens));
            (0..WARM_UP_TOKENS / 4).for_each(|_| drop(self.step()));
        }
        while self.scheduler.has_work() {
            self.step();
        }
    }

    /// Submits a request whose prompt shares nothing with that of any other tag.
    pub fn submit(&mut self, tag: Tag, prompt_tokens: u32, max_tokens: u32) {
        let prompt = vec![tag.0 as u32; prompt_tokens as usize];
        self.scheduler.submit(self.now, Work { tag, prompt, max_tokens, ..Work::default() });
    }

    /// Computes a step; `None` if there is no work.
    pub fn step(&mut self) -> Option<Step> {
        let mut batch = Batch::default();
        self.scheduler.plan(self.now, &mut self.runner, &mut batch);
        if batch.is_empty() {
            assert!(!self.scheduler.has_work(), "there is work, and not all are paused");
            return None;
        }
        let (started, mut sampled) = (self.now, Vec::new());
        self.now += step_time(self.machine, &batch);
        self.runner.run(&batch, &mut sampled).expect("it never fails");
        Some(self.scheduler.commit(started, self.now, &mut self.runner, &batch, &sampled))
    }
}

/// A runner whose steps take no real time; see the module's documentation.
pub struct TimedRunner {
    capacity: Capacity,
}

impl TimedRunner {
    /// Creates a runner with the slots that the server has for `batch_size`, and with cells for
    /// `sequences` of `context_tokens`.
    pub fn new(sequences: usize, context_tokens: u32, batch_size: usize) -> Self {
        // Enough for all to their ends: bursts are to be limited by time, not by memory.
        let kv_cells = sequences as u32 * context_tokens + context_tokens;
        let batch_size = u16::try_from(batch_size).expect("plans bound it");
        let slots = Capacity::shared_slots(batch_size, kv_cells);
        let batch_tokens = 2_048.max(u32::from(slots));
        let capacity =
            Capacity { slots, kv_cells, context_tokens, batch_tokens, shares_prefix: true };
        Self { capacity }
    }
}

impl Runner for TimedRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn assign(&mut self, _slot: Slot, _sampler: Sampler) {}

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        let samples = batch.spans.iter().filter(|span| span.sample);
        sampled.extend(samples.map(|span| Sampled {
            slot: span.slot,
            outcome: Ok(SampledToken { token: 0, logprobs: None }),
        }));
        Ok(())
    }

    fn fork(&mut self, _from: Slot, _to: Slot, _len: u32) {}

    fn truncate(&mut self, _slot: Slot, _len: u32) {}
}

/// Returns the duration of `batch` on `machine`.
fn step_time(machine: &Machine, batch: &Batch) -> Duration {
    let is_row = |span: &&Span| span.tokens.len() == 1;
    let rows = batch.spans.iter().filter(is_row).count();
    // A prompt's last token alone costs what a row does, or little less.
    let prompt_tokens = batch.tokens.len() - rows;
    Duration::from_secs_f64(machine.step_ms(rows, prompt_tokens) / 1_000.0)
}
