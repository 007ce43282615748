//! The thread that owns the engine: it plans, runs, commits and delivers steps, and does nothing
//! else.
//!
//! It handles only token ids. Work arrives over one queue, and each step's results leave in one
//! message, so the number of wake-ups and locks per step is the same for one sequence and for two
//! hundred. The queue is bounded by admission and by the delivery task: a completion sends one
//! message when it starts and one when it is stopped, and meanwhile at most one pause and one
//! resume for each buffer that its reader fills, and a report for each that its reader sends.
//!
//! The engine never waits for a batch to fill, with one exception: when the next batch could hold
//! only work that has just arrived, it waits for the prompts that were admitted and are still being
//! tokenized. A burst of requests then starts in one step; otherwise the first of them would have
//! its own step, and the others would wait for it.
//!
//! A runner with a pipeline gets as many concurrent batches as it asks for. A finished batch is
//! announced by a command like any other, so that the thread has one queue to wait for.
//!
//! Embeddings are computed between two steps, a bounded batch at a time. Beside running answers,
//! embeddings and prompts take turns, so that a step carries either.
//!
//! Keys and values go to the store on disk, and come from there, between two steps as well.

mod embeddings;
mod outage;
mod prefixes;
mod saving;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use loquent_infer::reading::ReaderReport;
use loquent_infer::request::{Step, Tag, Work};
use loquent_infer::runner::{Batch, Preemption, RunError, Runner, Sampled, Span};
use loquent_infer::scheduler::{Limits, Scheduler};
use loquent_infer::token::TokenId;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::time::timeout;

use crate::admission::PendingPrompts;
use crate::clock::Clock;
use crate::engine_watch::EngineWatch;
use crate::metrics::{EngineLoad, Metrics};
pub use embeddings::EmbeddingOrder;
use embeddings::{EmbeddingDesk, StepBefore};
pub use prefixes::EnginePrefixes;
use prefixes::{PrefixDesk, Wake};

/// Steps that may wait for the delivery task before the engine waits for it. Chosen by hand: far
/// more than a healthy task leaves, and still bounded if it hangs.
const STEPS_IN_FLIGHT: usize = 64;

/// Maximum wait of an otherwise idle engine for prompts being tokenized. A longer one would delay a
/// lone request whose neighbour has a huge prompt; a shorter one would split bursts.
const GATHER_LIMIT: Duration = Duration::from_millis(2);
/// Pause between two checks for the end of a burst, or for the mask of a grammar.
const GATHER_PAUSE: Duration = Duration::from_micros(50);

/// Commands to the engine thread.
#[derive(Debug)]
pub enum EngineCommand {
    /// Generate a completion.
    Submit(Box<Work>),
    /// The client disconnected, or the text is complete: stop generating, and keep the KV as a
    /// prefix.
    Cancel(Tag),
    /// The reader is slow: keep the KV, compute nothing.
    Pause(Tag),
    /// The reader has caught up: continue computing.
    Resume(Tag),
    /// Progress of the reader; `None` if it is no longer known.
    Reader(Tag, Option<ReaderReport>),
    /// Turn inputs into vectors.
    Embed(EmbeddingOrder),
    /// From the runner's pipeline, or the store of prefixes: something may be finished.
    Arrived,
}

/// Sender of commands to the engine thread.
#[derive(Debug, Clone)]
pub struct EngineSender {
    queue: mpsc::UnboundedSender<EngineCommand>,
    preemption: Preemption,
}

impl EngineSender {
    /// Creates a sender to a queue that no engine reads.
    #[cfg(test)]
    pub fn to(queue: mpsc::UnboundedSender<EngineCommand>) -> Self {
        Self { queue, preemption: Preemption::default() }
    }

    /// Sends `command`. If it is a completion that somebody waits for, a spare batch under way is
    /// given up.
    ///
    /// # Errors
    /// The command, if the thread has ended.
    pub fn send(&self, command: EngineCommand) -> Result<(), SendError<EngineCommand>> {
        let is_awaited = matches!(&command, EngineCommand::Submit(work) if !work.tenant.is_spare);
        self.queue.send(command)?;
        // After it was queued: the thread looks there once the batch has ended.
        if is_awaited {
            self.preemption.ask();
        }
        Ok(())
    }
}

/// A running engine thread. It stops when the last command sender is dropped.
#[derive(Debug)]
pub struct EngineHandle {
    /// Sends commands to the thread.
    pub commands: EngineSender,
    /// The results of each step, in order.
    pub steps: mpsc::Receiver<Step>,
    /// Joins the thread. Drop all command senders first, or it never ends.
    pub thread: JoinHandle<()>,
}

/// Settings and services that the engine thread shares with the surrounding server.
#[derive(Debug, Clone)]
pub struct EngineContext {
    /// Clock for the scheduler.
    pub clock: Clock,
    /// Metrics of steps, tokens and load.
    pub metrics: Arc<Metrics>,
    /// Prompts being tokenized, for which an idle engine waits.
    pub pending: PendingPrompts,
    /// Observes the thread's activity and its end.
    pub watch: EngineWatch,
    /// Time limit for answers to wait for a lost engine.
    pub outage_limit: Duration,
    /// Store of prefixes on disk, if there is one. Runners that cannot save do not use it.
    pub prefixes: Option<EnginePrefixes>,
}

/// Starts the engine thread.
///
/// # Errors
/// When the operating system refuses the thread or its timer.
pub fn start(
    mut runner: Box<dyn Runner>,
    limits: Limits,
    end_tokens: Vec<TokenId>,
    context: EngineContext,
) -> std::io::Result<EngineHandle> {
    let (commands, inbox) = mpsc::unbounded_channel();
    let (outbox, steps) = mpsc::channel(STEPS_IN_FLIGHT);
    let scheduler = Scheduler::new(runner.capacity(), limits, end_tokens);
    // A strong sender here would keep the queue open, and the thread would never end.
    let weak = commands.downgrade();
    let wake: Wake = Arc::new(move || {
        if let Some(commands) = weak.upgrade() {
            let _ = commands.send(EngineCommand::Arrived);
        }
    });
    if let Some(pipeline) = runner.pipeline() {
        let wake = wake.clone();
        pipeline.on_arrival(Box::new(move || wake()));
    }
    let preemption = runner.preemption().unwrap_or_default();
    let EngineContext { clock, metrics, pending, watch, outage_limit, prefixes } = context;
    let timer = timer()?;
    let prefixes = prefixes
        .filter(|_| saves_prefixes(runner.as_mut(), &limits))
        .map(|prefixes| PrefixDesk::start(prefixes, metrics.clone(), clock, wake))
        .transpose()?;
    let embeddings = embedding_desk(runner.as_mut(), &limits);
    let mut engine = EngineLoop {
        runner,
        scheduler,
        inbox,
        outbox,
        clock,
        load: metrics.engine_load(),
        metrics,
        pending,
        timer,
        gather_limit: GATHER_LIMIT,
        watch,
        preemption: preemption.clone(),
        embeddings,
        prefixes,
        next_save: Duration::ZERO,
        outage: None,
        last_outage: None,
        outage_limit,
    };
    let thread = thread::Builder::new().name("engine".into()).spawn(move || {
        // The loop is dropped, and its queues close, only after its end has been noted: whoever
        // finds a queue closed finds the reason too.
        engine.watch.clone().run(|| engine.run());
    })?;
    Ok(EngineHandle { commands: EngineSender { queue: commands, preemption }, steps, thread })
}

/// Creates the desk for embeddings if `runner` computes them between its steps.
fn embedding_desk(runner: &mut dyn Runner, limits: &Limits) -> Option<EmbeddingDesk> {
    let capacity = runner.embedder()?.capacity();
    Some(EmbeddingDesk::new(
        capacity,
        limits.prefill_max_tokens,
        limits.itl_target.without_minimum(),
    ))
}

/// Returns true if prefixes of `runner` can go to a store; says so if not.
fn saves_prefixes(runner: &mut dyn Runner, limits: &Limits) -> bool {
    let saves = runner.saves_spans() && runner.pipeline().is_none() && limits.prefix_cache;
    if !saves && runner.abilities().generates {
        tracing::warn!(
            "prefixes of this model are not kept on disk: its keys and values cannot be saved"
        );
    }
    saves
}

/// Creates a runtime with timers only.
fn timer() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_time().build()
}

/// A batch in the runner's pipeline.
struct InFlightBatch {
    batch: Batch,
    started: Duration,
}

/// Outcome of one pass of the pipelined loop.
enum LoopOutcome {
    /// Nothing can be computed now.
    Idle,
    /// The pipeline has no room for another batch.
    Full,
    Submitted,
    Step(Step),
}

/// An outage of the engine that has not ended.
#[derive(Debug)]
struct Outage {
    since: Duration,
    /// When the time limit began: at an earlier loss, if no batch has come back since.
    limited_from: Duration,
    /// True once every answer has failed, which is logged only once.
    is_given_up: bool,
}

/// An outage that has ended.
#[derive(Debug)]
struct LastOutage {
    limited_from: Duration,
    ended: Duration,
}

struct EngineLoop {
    runner: Box<dyn Runner>,
    scheduler: Scheduler,
    inbox: mpsc::UnboundedReceiver<EngineCommand>,
    outbox: mpsc::Sender<Step>,
    clock: Clock,
    metrics: Arc<Metrics>,
    load: EngineLoad,
    pending: PendingPrompts,
    /// Bounds waits for commands.
    timer: Runtime,
    /// [`GATHER_LIMIT`], which tests replace.
    gather_limit: Duration,
    watch: EngineWatch,
    /// Asked for by [`EngineSender`], and not looked at by a runner that completes every batch.
    preemption: Preemption,
    /// `None` if the runner computes no embeddings.
    embeddings: Option<EmbeddingDesk>,
    /// `None` without a store on disk, or if the runner cannot save.
    prefixes: Option<PrefixDesk>,
    /// When the next prefix may be saved beside running answers.
    next_save: Duration,
    /// Set while the engine is lost.
    outage: Option<Outage>,
    /// The last outage, until a batch has come back.
    last_outage: Option<LastOutage>,
    outage_limit: Duration,
}

impl EngineLoop {
    fn run(&mut self) {
        if self.runner.pipeline().is_some() {
            self.run_pipelined()
        } else {
            self.run_in_turn()
        }
        self.save_rest();
    }

    fn run_in_turn(&mut self) {
        let (mut batch, mut sampled) = (Batch::default(), Vec::new());
        loop {
            self.watch.begin(0);
            // Before the queue is read: whoever comes later asks again.
            self.preemption.withdraw();
            self.handle_queued();
            if self.outage.is_some() {
                if self.sit_out() {
                    continue;
                }
                return;
            }
            self.restore_stored();
            self.gather();
            let now = self.clock.now();
            let given_up = self.scheduler.give_up(now);
            let embeds = self.share_step();
            self.scheduler.plan(now, self.runner.as_mut(), &mut batch);
            self.order_stored();
            if batch.is_empty() && given_up.is_empty() && !embeds {
                // Nothing can be computed until a command or a mask arrives.
                if !self.save_idle() && !self.wait() {
                    return;
                }
                continue;
            }
            let mut step = self.step(&batch, &mut sampled);
            step.events.extend(given_up);
            // Noted first: the step itself leaves at once, so that no token waits for embeddings.
            let before = step_before(&batch, &step);
            let is_empty = batch.is_empty() && step.events.is_empty();
            if !is_empty && !self.hand_over(step) {
                return;
            }
            if embeds {
                self.embed(before);
            }
            self.save_beside();
        }
    }

    /// Returns true if there are inputs to embed. Prompts are then left out of every second step
    /// that advances answers, so that both make progress and neither delays the next token twice.
    fn share_step(&mut self) -> bool {
        let (Some(desk), Some(embedder)) = (&mut self.embeddings, self.runner.embedder()) else {
            return false;
        };
        let embeds = desk.has_work(embedder);
        self.scheduler.hold_prompts(embeds && desk.take_turn());
        embeds
    }

    /// Computes a batch of embeddings after the step `before`.
    fn embed(&mut self, before: StepBefore) {
        let (Some(desk), Some(embedder)) = (&mut self.embeddings, self.runner.embedder()) else {
            return;
        };
        desk.plan(before);
        let tokens = desk.batch.tokens.len();
        if tokens == 0 {
            return;
        }
        self.watch.begin(tokens);
        let (started, mut vectors) = (self.clock.now(), Vec::new());
        let outcome = embedder.embed(&desk.batch, &mut vectors);
        let took = self.clock.now().saturating_sub(started);
        self.watch.end(tokens, took);
        self.metrics.on_embeddings(tokens, vectors.len());
        desk.complete(embedder, before, took, outcome.map(|()| vectors));
    }

    /// Waits until the prompts of a burst have arrived, within [`GATHER_LIMIT`]. Does not wait
    /// while a sequence is computing, whose next token would be late.
    fn gather(&mut self) {
        let began = self.clock.now();
        while self.pending.any()
            && self.scheduler.only_waiting()
            && self.clock.now().saturating_sub(began) < self.gather_limit
        {
            thread::sleep(GATHER_PAUSE);
            self.handle_queued();
        }
    }

    fn step(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Step {
        sampled.clear();
        let started = self.clock.now();
        if batch.is_empty() {
            return Step { started, finished: started, ..Step::default() };
        }
        self.watch.begin(batch.tokens.len());
        let outcome = self.runner.run(batch, sampled);
        match outcome {
            // How long one that was lost or given up took says nothing of the next.
            Err(RunError::Lost(_) | RunError::Preempted) => self.watch.begin(0),
            _ => {
                let took = self.clock.now().saturating_sub(started);
                self.watch.end(batch.tokens.len(), took);
            }
        }
        self.complete(started, batch, sampled, outcome)
    }

    /// Passes the outcome of a batch to the scheduler.
    fn complete(
        &mut self,
        started: Duration,
        batch: &Batch,
        sampled: &[Sampled],
        outcome: Result<(), RunError>,
    ) -> Step {
        let (now, runner) = (self.clock.now(), self.runner.as_mut());
        match outcome {
            Ok(()) => {
                self.last_outage = None;
                self.scheduler.commit(started, now, runner, batch, sampled)
            }
            Err(error) => {
                if error != RunError::Preempted {
                    tracing::warn!(%error, rows = batch.spans.len(), "a batch failed");
                }
                let step = self.scheduler.recover(started, now, runner, batch, &error);
                if let RunError::Lost(why) = &error {
                    self.begin_outage(why);
                }
                step
            }
        }
    }

    fn run_pipelined(&mut self) {
        let mut in_flight = VecDeque::new();
        loop {
            self.watch.begin(0);
            self.handle_queued();
            if self.outage.is_some() {
                if self.sit_out() {
                    continue;
                }
                return;
            }
            let now = self.clock.now();
            let events = self.scheduler.give_up(now);
            if !self.hand_over_events(now, events) {
                return;
            }
            // Collect before submitting: the sequences of a finished batch can be in the next
            // one at once.
            let outcome = match self.collect(&mut in_flight) {
                Some(step) => LoopOutcome::Step(step),
                None => self.submit(&mut in_flight),
            };
            let goes_on = match outcome {
                LoopOutcome::Idle => self.wait(),
                // Whatever is ready meanwhile has to wait for the oldest batch.
                LoopOutcome::Full => self.wait_for_news(),
                LoopOutcome::Submitted => true,
                LoopOutcome::Step(step) => self.hand_over(step),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Starts the next batch if the pipeline has room and there is work for it.
    fn submit(&mut self, in_flight: &mut VecDeque<InFlightBatch>) -> LoopOutcome {
        let pipeline = self.runner.pipeline().expect("only runners with one come here");
        let depth = pipeline.depth();
        if in_flight.len() >= depth {
            return LoopOutcome::Full;
        }
        self.gather();
        self.scheduler.set_pipeline_depth(depth);
        let (started, mut batch) = (self.clock.now(), Batch::default());
        self.scheduler.plan(started, self.runner.as_mut(), &mut batch);
        if batch.is_empty() {
            return LoopOutcome::Idle;
        }
        let pipeline = self.runner.pipeline().expect("only runners with one come here");
        match pipeline.submit(&batch) {
            Ok(()) => {
                in_flight.push_back(InFlightBatch { batch, started });
                LoopOutcome::Submitted
            }
            Err(error) => {
                if let RunError::Lost(_) = error {
                    in_flight.clear();
                }
                LoopOutcome::Step(self.complete(started, &batch, &[], Err(error)))
            }
        }
    }

    /// Completes the oldest batch if it is finished.
    fn collect(&mut self, in_flight: &mut VecDeque<InFlightBatch>) -> Option<Step> {
        let mut sampled = Vec::new();
        let pipeline = self.runner.pipeline().expect("only runners with one come here");
        let outcome = pipeline.try_collect(&mut sampled)?;
        let oldest = in_flight.pop_front();
        if let Err(RunError::Lost(_)) = outcome {
            in_flight.clear();
        }
        let idle = || InFlightBatch { batch: Batch::default(), started: self.clock.now() };
        let InFlightBatch { batch, started } = oldest.unwrap_or_else(idle);
        Some(self.complete(started, &batch, &sampled, outcome))
    }

    /// Handles the queued commands.
    fn handle_queued(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            self.handle_command(command);
        }
    }

    /// Waits for a command, or for a moment while the runner cannot sample yet. Returns false when
    /// all senders are gone.
    fn wait(&mut self) -> bool {
        if self.scheduler.awaits_runner() {
            thread::sleep(GATHER_PAUSE);
            return true;
        }
        self.wait_for_news()
    }

    /// Waits for a command, until the next expiry in the queue or the limit of the store. Returns
    /// false when all senders are gone.
    fn wait_for_news(&mut self) -> bool {
        let stored = self.prefixes.as_ref().and_then(PrefixDesk::deadline);
        let expiry = [self.scheduler.next_expiry(), stored].into_iter().flatten().min();
        self.wait_for_command(expiry.map(|expiry| expiry.saturating_sub(self.clock.now())))
    }

    /// Waits for a command, at most for `limit`. Returns false when all senders are gone.
    fn wait_for_command(&mut self, limit: Option<Duration>) -> bool {
        self.load.note(&self.scheduler.load());
        self.watch.idle();
        let command = match limit {
            None => Ok(self.inbox.blocking_recv()),
            Some(left) => {
                // The timer is made inside, where the runtime is entered.
                self.timer.block_on(async { timeout(left, self.inbox.recv()).await })
            }
        };
        self.watch.begin(0);
        let Ok(command) = command else { return true };
        let open = command.is_some();
        command.into_iter().for_each(|command| self.handle_command(command));
        open
    }

    /// Sends a step to the delivery task. Returns false when that task has ended.
    fn hand_over(&mut self, mut step: Step) -> bool {
        self.scheduler.note_standing(&mut step);
        self.metrics.on_step(&step);
        self.load.note(&self.scheduler.load());
        // Almost always there is room. Otherwise the engine waits, since steps must not be lost.
        match self.outbox.try_send(step) {
            Err(TrySendError::Full(step)) => self.outbox.blocking_send(step).is_ok(),
            sent => sent.is_ok(),
        }
    }

    fn handle_command(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Submit(mut work) => {
                self.look_up_stored(&mut work);
                self.scheduler.submit(self.clock.now(), *work);
            }
            EngineCommand::Cancel(tag) => self.scheduler.cancel(self.runner.as_mut(), tag),
            EngineCommand::Pause(tag) => self.scheduler.pause(tag, true),
            EngineCommand::Resume(tag) => self.scheduler.pause(tag, false),
            EngineCommand::Reader(tag, report) => self.scheduler.note_reader(tag, report),
            // Without an embedder the order is dropped, which its sender notices.
            EngineCommand::Embed(order) => {
                if let Some(desk) = &mut self.embeddings {
                    desk.submit(order);
                }
            }
            // It only wakes the loop, which asks the pipeline or the store itself.
            EngineCommand::Arrived => {}
        }
    }
}

/// Summarizes `step` for the batch of embeddings that follows it.
fn step_before(batch: &Batch, step: &Step) -> StepBefore {
    let decodes = |span: &&Span| span.tokens.len() - span.draft == 1;
    StepBefore {
        decode_rows: batch.spans.iter().filter(decodes).count(),
        had_prompts: step.prefill_tokens > 0,
        took: step.finished.saturating_sub(step.started),
    }
}

#[cfg(test)]
mod tests;
