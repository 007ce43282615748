//! The thread that owns the engine: plan, run, commit, hand over; nothing else.
//!
//! It sees token ids only. Work comes over one queue and each step's results leave in
//! one hand-over, so the number of wake-ups and locks per step is the same for one
//! sequence and for two hundred. The queue is bounded by admission: a request sends one
//! message per completion when it starts and at most one when it stops.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use loquent_infer::request::{Step, Tag, Work};
use loquent_infer::runner::{Batch, Runner, Sampled, TokenId};
use loquent_infer::scheduler::{Limits, Scheduler};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::metrics::Metrics;

/// Steps that may wait for delivery before the engine waits for it.
const STEPS_IN_FLIGHT: usize = 64;

/// What delivery asks of the engine.
#[derive(Debug)]
pub enum Command {
    /// Generate a completion.
    Submit(Box<Work>),
    /// Its client is gone: free everything.
    Cancel(Tag),
    /// Its text is complete: stop, and keep the prefix.
    Finish(Tag),
    /// Its reader is slow: keep the KV, compute nothing.
    Pause(Tag),
    /// Its reader has caught up.
    Resume(Tag),
}

/// The way to a running engine thread. It stops when the last command sender is dropped.
#[derive(Debug)]
pub struct Engine {
    /// To the engine.
    pub commands: mpsc::UnboundedSender<Command>,
    /// From the engine.
    pub steps: mpsc::Receiver<Step>,
    /// Joins the thread; it must be joined after the senders are gone.
    pub thread: JoinHandle<()>,
}

/// Starts the engine thread.
///
/// # Errors
/// When the operating system refuses the thread.
pub fn start(
    runner: Box<dyn Runner>,
    limits: Limits,
    end_tokens: Vec<TokenId>,
    clock: Clock,
    metrics: Arc<Metrics>,
) -> std::io::Result<Engine> {
    let (commands, inbox) = mpsc::unbounded_channel();
    let (outbox, steps) = mpsc::channel(STEPS_IN_FLIGHT);
    let scheduler = Scheduler::new(runner.capacity(), limits, end_tokens);
    let driver = Driver { runner, scheduler, inbox, outbox, clock, metrics };
    let thread = thread::Builder::new().name("engine".into()).spawn(move || driver.run())?;
    Ok(Engine { commands, steps, thread })
}

struct Driver {
    runner: Box<dyn Runner>,
    scheduler: Scheduler,
    inbox: mpsc::UnboundedReceiver<Command>,
    outbox: mpsc::Sender<Step>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Driver {
    fn run(mut self) {
        let mut batch = Batch::default();
        let mut sampled = Vec::new();
        loop {
            while let Ok(command) = self.inbox.try_recv() {
                self.handle_command(command);
            }
            let now = self.clock.now();
            let expired = self.scheduler.expire(now);
            self.scheduler.plan(now, self.runner.as_mut(), &mut batch);
            if batch.is_empty() && expired.is_empty() {
                // Only a command can change that.
                self.metrics.on_idle(&self.scheduler.load());
                match self.inbox.blocking_recv() {
                    Some(command) => self.handle_command(command),
                    None => return,
                }
                continue;
            }
            let mut step = self.step(&batch, &mut sampled);
            step.events.extend(expired);
            self.metrics.on_step(&step, &self.scheduler.load());
            if self.outbox.blocking_send(step).is_err() {
                return;
            }
        }
    }

    fn step(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Step {
        let runner = self.runner.as_mut();
        sampled.clear();
        let started = self.clock.now();
        if batch.is_empty() {
            return Step { started, finished: started, ..Step::default() };
        }
        let outcome = runner.run(batch, sampled);
        let now = self.clock.now();
        match outcome {
            Ok(()) => self.scheduler.commit(started, now, runner, batch, sampled),
            Err(error) => {
                tracing::warn!(%error, rows = batch.spans.len(), "a batch failed");
                self.scheduler.recover(started, now, runner, batch, &error)
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        let runner = self.runner.as_mut();
        match command {
            Command::Submit(work) => self.scheduler.submit(self.clock.now(), *work),
            Command::Cancel(tag) => self.scheduler.cancel(runner, tag),
            Command::Finish(tag) => self.scheduler.finish(runner, tag),
            Command::Pause(tag) => self.scheduler.pause(tag, true),
            Command::Resume(tag) => self.scheduler.pause(tag, false),
        }
    }
}
