//! The output processor: converts the engine's steps to flushes for the requests.
//!
//! One task owns the state of all running completions, by slab index: it takes a whole [`Step`] at
//! a time, turns tokens into text and passes on what is due. It never waits for a client.
//! [`Backlog`] decides how to treat a slow reader; only that reader's completion is held, paused or
//! ended.

mod progress;

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::reading::ReaderReport;
use loquent_infer::request::{Admitted, QueueStanding, SequenceEvent, Step, Tag, Work};
use loquent_proto::backlog::{Backlog, BacklogAction, BacklogLimits};
use loquent_proto::{Delta, Micros, Progress};
use slab::Slab;
use tokio::sync::{mpsc, oneshot};

use crate::admission::Permit;
use crate::clock::Clock;
use crate::completion::{Completion, FlushState};
use crate::engine_thread::{EmbeddingOrder, EngineCommand, EngineSender};
use crate::error::ApiError;
use crate::flush::Flush;
use crate::flush_channel::{FlushReceiver, FlushSender, flush_channel};
use crate::metrics::{LocalMetrics, Metrics};
pub use progress::ProgressWish;
use progress::{Expected, ProgressBoard, PromptProgress, Turn};

/// Bounds on a reader's unread data.
#[derive(Debug, Clone, Copy)]
pub struct StreamBounds {
    /// Unread bytes of a slow reader at which its generation is paused.
    pub buffer_bytes: usize,
    /// Maximum pause of a generation before its stream is ended with an error.
    pub stall_limit: Duration,
}

impl StreamBounds {
    /// Returns the limits of one reader's backlog. `exempt_from_stall_limit`: the reader may stay
    /// away for longer, because its answer is resumable and has a grace period instead.
    pub fn backlog(&self, exempt_from_stall_limit: bool) -> BacklogLimits {
        let stall_limit = (!exempt_from_stall_limit).then(|| Micros::from(self.stall_limit));
        BacklogLimits { pause_bytes: self.buffer_bytes, stall_limit }
    }
}

/// Interval between checks of held and paused completions. A reader does not report that it has
/// read; a hundred checks a second of slow readers cost nothing measurable and delay a resume by
/// less than one decode step.
pub const BACKLOG_TICK: Duration = Duration::from_millis(10);

/// Error of the streams that are open when the engine fails.
pub const ENGINE_FAILED: &str = "the engine has failed and the server is ending; try again later";
/// Error of the streams that are open when the server stops.
pub const SHUTDOWN: &str = "the server is shutting down";
/// Message to readers when the engine is lost.
pub const ENGINE_LOST: &str =
    "the engine was lost and is starting again; the answer goes on where it stopped";
/// Error of a stream whose reader was paused for too long.
pub const READER_STALLED: &str = "the client stopped reading its stream";

/// A completion to start.
pub struct NewCompletion {
    /// Turns the tokens into flushes.
    pub completion: Completion,
    /// Work for the engine; the tag is set here.
    pub work: Box<Work>,
    /// Permit, returned when the generation ends, however slowly the client reads.
    pub permit: Permit,
    /// If true, a slow reader pauses the completion but never ends it.
    pub exempt_from_stall_limit: bool,
    /// Progress reports for the reader before the first token.
    pub progress: ProgressWish,
}

/// Completions of a request to start.
struct NewRequest {
    completions: Vec<NewCompletion>,
    flushes: FlushSender,
    tags: oneshot::Sender<Vec<Tag>>,
}

enum OutputCommand {
    Start(NewRequest),
    Cancel(Vec<Tag>),
    /// Progress of a completion's reader, if known.
    Reader(Tag, Option<ReaderReport>),
    Embed(EmbeddingOrder),
    /// Ends all completions with this error.
    Stop(Box<ApiError>),
}

/// The request's end of its completions: yields their flushes. Dropping it cancels the completions
/// that still run.
#[derive(Debug)]
pub struct CompletionFlushes {
    flushes: FlushReceiver,
    tags: oneshot::Receiver<Vec<Tag>>,
    /// Tags received from `tags`.
    known_tags: Vec<Tag>,
    /// Latest report on the reader, kept until the tags are known.
    untold: Option<Option<ReaderReport>>,
    processor: OutputHandle,
}

impl CompletionFlushes {
    /// Polls for the next flush; `None` when all completions have ended.
    pub fn poll_recv(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Flush>> {
        if let Some(report) = self.untold.take() {
            self.note_reader(report);
        }
        self.flushes.poll_recv(context)
    }

    /// Reports the reader's progress to the scheduler; `None` if it is no longer known.
    pub fn note_reader(&mut self, report: Option<ReaderReport>) {
        self.learn_tags();
        if self.known_tags.is_empty() {
            self.untold = Some(report);
        }
        for &tag in &self.known_tags {
            let _ = self.processor.commands.send(OutputCommand::Reader(tag, report));
        }
    }

    fn learn_tags(&mut self) {
        if let Ok(tags) = self.tags.try_recv() {
            self.known_tags = tags;
        }
    }
}

impl Drop for CompletionFlushes {
    fn drop(&mut self) {
        // Tags of completions that have ended are stale by generation and ignored.
        self.tags.close();
        self.learn_tags();
        let tags = std::mem::take(&mut self.known_tags);
        if !tags.is_empty() {
            let _ = self.processor.commands.send(OutputCommand::Cancel(tags));
        }
    }
}

/// Starts completions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OutputHandle {
    commands: mpsc::UnboundedSender<OutputCommand>,
}

impl OutputHandle {
    /// Ends all completions with the error `why`, and lets the engine stop.
    pub fn stop(&self, why: ApiError) {
        let _ = self.commands.send(OutputCommand::Stop(Box::new(why)));
    }

    /// Submits inputs to be embedded. If the engine has ended, the order's reply is dropped.
    pub fn embed(&self, order: EmbeddingOrder) {
        let _ = self.commands.send(OutputCommand::Embed(order));
    }

    /// Starts a request's completions. Returns the source of their flushes.
    pub fn start(&self, completions: Vec<NewCompletion>) -> CompletionFlushes {
        let (sender, flushes) = flush_channel();
        let (tag_sender, tags) = oneshot::channel();
        let request = NewRequest { completions, flushes: sender, tags: tag_sender };
        // When the processor is gone the flushes end at once, without a finish: the caller
        // reports that.
        let _ = self.commands.send(OutputCommand::Start(request));
        CompletionFlushes {
            flushes,
            tags,
            known_tags: Vec::new(),
            untold: None,
            processor: self.clone(),
        }
    }
}

/// A completion that the engine computes.
struct RunningCompletion {
    completion: Completion,
    permit: Permit,
    flushes: FlushSender,
    backlog: Backlog,
    /// Distinguishes successive completions with the same slab index.
    generation: u32,
    /// Progress before the first token.
    progress: PromptProgress,
    /// Time of its last flush.
    flushed: Option<Duration>,
    /// True if its tag is in [`OutputProcessor::watched`].
    watched: bool,
}

/// State of the task. The time is an argument, so that a test can step it without a runtime.
struct OutputProcessor {
    running: Slab<RunningCompletion>,
    next_generation: u32,
    bounds: StreamBounds,
    engine: EngineSender,
    metrics: Arc<Metrics>,
    local: LocalMetrics,
    /// Forecasts of first tokens.
    board: ProgressBoard,
    /// Tags of completions to check without a new event of the engine: they hold content under a
    /// deadline, wait for their reader, or are paused.
    watched: Vec<Tag>,
}

/// Starts the output processor on the current runtime; it ends with the engine.
pub fn start(
    mut steps: mpsc::Receiver<Step>,
    engine: EngineSender,
    bounds: StreamBounds,
    clock: Clock,
    metrics: Arc<Metrics>,
) -> OutputHandle {
    let (commands, mut inbox) = mpsc::unbounded_channel();
    let mut processor = OutputProcessor::new(engine, bounds, metrics);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(BACKLOG_TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                step = steps.recv() => match step {
                    Some(step) => processor.handle_step(clock.now(), step),
                    None => {
                        let failed = ApiError::engine_failed(ENGINE_FAILED);
                        return processor.fail_all(clock.now(), &failed);
                    }
                },
                command = inbox.recv() => match command {
                    Some(OutputCommand::Start(request)) => {
                        processor.start_request(clock.now(), request);
                    }
                    Some(OutputCommand::Cancel(tags)) => processor.cancel(tags),
                    Some(OutputCommand::Reader(tag, report)) => {
                        processor.send(EngineCommand::Reader(tag, report));
                    }
                    Some(OutputCommand::Embed(order)) => {
                        processor.send(EngineCommand::Embed(order));
                    }
                    Some(OutputCommand::Stop(why)) => {
                        return processor.fail_all(clock.now(), &why);
                    }
                    None => {
                        let over = ApiError::internal(SHUTDOWN);
                        return processor.fail_all(clock.now(), &over);
                    }
                },
                _ = tick.tick(), if processor.is_watching() => {
                    processor.handle_tick(clock.now());
                }
            }
        }
    });
    OutputHandle { commands }
}

impl OutputProcessor {
    fn new(engine: EngineSender, bounds: StreamBounds, metrics: Arc<Metrics>) -> Self {
        Self {
            running: Slab::new(),
            next_generation: 0,
            bounds,
            engine,
            local: metrics.local(),
            metrics,
            board: ProgressBoard::default(),
            watched: Vec::new(),
        }
    }

    /// Returns true if [`Self::handle_tick`] has completions to check.
    fn is_watching(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Cancels the completions of a client that left. Those that have ended are already unknown.
    fn cancel(&mut self, tags: Vec<Tag>) {
        for tag in tags {
            if self.remove(tag).is_some() {
                self.send(EngineCommand::Cancel(tag));
            }
        }
    }

    fn start_request(&mut self, now: Duration, request: NewRequest) {
        let NewRequest { completions, flushes, tags: reply } = request;
        let mut tags = Vec::with_capacity(completions.len());
        let mut works = Vec::with_capacity(completions.len());
        for new in completions {
            let NewCompletion { completion, mut work, permit, exempt_from_stall_limit, progress } =
                new;
            self.next_generation = self.next_generation.wrapping_add(1);
            let generation = self.next_generation;
            let (prompt, answer) = (work.prompt.len(), work.max_tokens);
            let index = self.running.insert(RunningCompletion {
                completion,
                permit,
                flushes: flushes.clone(),
                backlog: Backlog::new(self.bounds.backlog(exempt_from_stall_limit)),
                generation,
                progress: PromptProgress::new(progress, prompt, answer, generation, now),
                flushed: None,
                watched: false,
            });
            // The engine gives the tag back with every event. The generation keeps events that
            // are still on their way from the next completion with this index.
            work.tag = tag(generation, index);
            tags.push(work.tag);
            works.push(work);
        }
        if reply.send(tags.clone()).is_err() {
            // The client left before the engine knew of it.
            tags.into_iter().for_each(|tag| drop(self.remove(tag)));
            return;
        }
        works.into_iter().for_each(|work| self.send(EngineCommand::Submit(work)));
        // Only after all were submitted: an engine at rest waits for requests that are on
        // their way, and starts a request's completions in one step.
        for &tag in &tags {
            if let Some(running) = self.find(tag) {
                running.permit.arrive();
            }
        }
        // After the engine has its work: what is said of it costs it nothing.
        tags.into_iter().for_each(|tag| self.greet(now, tag));
    }

    /// Sends a request that has just started its first progress report.
    fn greet(&mut self, now: Duration, tag: Tag) {
        if self.find(tag).is_none_or(|running| !running.progress.is_wanted()) {
            return;
        }
        let rest = self.board.rest_of_step(now);
        let all = self.expect(rest);
        all.iter().filter(|news| news.tag == tag).for_each(|news| self.tell(now, news));
    }

    /// Records the progress of prompts, and sends the reports that are due.
    fn handle_standing(&mut self, now: Duration, standing: &QueueStanding) {
        for (at, &tag) in standing.waiting.iter().enumerate() {
            if let Some(running) = self.find(tag) {
                running.progress.take_turn(Turn::Waiting(at));
            }
        }
        for (at, prompt) in standing.computing.iter().enumerate() {
            if let Some(running) = self.find(prompt.tag) {
                running.progress.take_turn(Turn::Computing(at));
                running.progress.note_known(prompt.cached, prompt.known);
            }
        }
        if self.board.note_standing(now, standing) {
            self.expect(Duration::ZERO).iter().for_each(|news| self.tell(now, news));
        }
    }

    fn expect(&self, rest: Duration) -> Vec<Expected> {
        let all = self.running.iter();
        self.board.expect(rest, all.map(|(index, one)| (tag(one.generation, index), &one.progress)))
    }

    fn tell(&mut self, now: Duration, news: &Expected) {
        let Some(running) = self.find(news.tag) else { return };
        let is_read = running.flushes.unread_bytes() == 0;
        let progress = running.progress.tell(now, news, is_read);
        progress.into_iter().for_each(|progress| running.send_progress(progress));
    }

    fn handle_step(&mut self, now: Duration, step: Step) {
        self.metrics.on_hand_over(now.saturating_sub(step.finished));
        self.board.note_step(&step);
        for event in step.events {
            self.handle_event(now, step.finished, step.rows, event);
        }
        if let Some(standing) = step.standing {
            self.handle_standing(now, &standing);
        }
        if step.was_lost {
            self.running.iter().for_each(|(_, running)| running.send_pause());
        }
        self.local.publish();
    }

    /// Handles an event of a step that had `rows` sequences and has just `finished`.
    fn handle_event(&mut self, now: Duration, finished: Duration, rows: u32, event: SequenceEvent) {
        let tag = event.tag;
        let Some(running) = find(&mut self.running, tag) else {
            return;
        };
        running.permit.dequeue();
        if event.token.is_some() {
            running.permit.count_generated(1);
            if running.progress.note_token() {
                let cached = event.admitted.map_or(0, |admitted| admitted.cached_tokens);
                running.permit.count_cached(cached.into());
                running.note_first_token(now, event.admitted);
                self.board.note_prompt(&running.progress);
                let error = running.progress.forecast_error(now);
                error.into_iter().for_each(|error| self.metrics.on_forecast_error(error));
            }
        }
        let completion = &mut running.completion;
        let clear = completion.minds_backlog() && running.flushes.unread_bytes() == 0;
        let last = completion.last_token().filter(|_| event.token.is_some());
        let state = completion.on_event(finished, rows, event, clear);
        let waits = completion.deadline().is_some() || completion.wants_clear();
        if let Some(last) = last {
            self.local.on_token_gap(finished.saturating_sub(last));
        }
        match state {
            FlushState::Held if waits => self.watch(tag),
            FlushState::Held => {}
            FlushState::Due => self.flush(now, tag),
            FlushState::Ended => self.end(now, tag),
            FlushState::Stopped => {
                self.end(now, tag);
                self.send(EngineCommand::Cancel(tag));
            }
        }
    }

    /// Passes on the held content, or takes the action that the reader's backlog requires instead.
    fn flush(&mut self, now: Duration, tag: Tag) {
        let Some(running) = self.find(tag) else {
            return;
        };
        let (unread, held) = (running.flushes.unread_bytes(), running.completion.held_bytes());
        match running.backlog.handle(now.into(), unread, held) {
            BacklogAction::Flush => self.pass_on(now, tag),
            BacklogAction::Resume => {
                self.send(EngineCommand::Resume(tag));
                self.pass_on(now, tag);
            }
            BacklogAction::Hold => self.watch(tag),
            BacklogAction::Pause => {
                self.metrics.on_pause();
                self.send(EngineCommand::Pause(tag));
                self.watch(tag);
            }
            BacklogAction::End => {
                running.completion.fail(READER_STALLED);
                self.end(now, tag);
                self.send(EngineCommand::Cancel(tag));
            }
        }
    }

    fn pass_on(&mut self, now: Duration, tag: Tag) {
        let Some(running) = find(&mut self.running, tag) else { return };
        let Some(flush) = running.completion.take_flush(now) else { return };
        self.local.on_flush(flush.tokens, running.gap(now));
        let gone = !running.flushes.send(flush);
        if gone {
            self.remove(tag);
            self.send(EngineCommand::Cancel(tag));
        }
    }

    /// Passes on a completion's last flush, however much its reader has left unread: no flush
    /// follows it, so it cannot grow the backlog without bound.
    fn end(&mut self, now: Duration, tag: Tag) {
        let Some(mut running) = self.remove(tag) else {
            return;
        };
        self.board.note_end(&running.progress);
        if let Some(flush) = running.completion.take_flush(now) {
            self.local.on_flush(flush.tokens, running.gap(now));
            running.flushes.send(flush);
        }
    }

    /// Checks completions that hold content without a new token to flush it.
    fn handle_tick(&mut self, now: Duration) {
        for tag in std::mem::take(&mut self.watched) {
            self.look_after(now, tag);
        }
        self.local.publish();
    }

    fn look_after(&mut self, now: Duration, tag: Tag) {
        let Some(running) = self.find(tag) else {
            return;
        };
        running.watched = false;
        let completion = &mut running.completion;
        let overdue = completion.deadline().is_some_and(|at| now >= at);
        let clear = completion.wants_clear() && running.flushes.unread_bytes() == 0;
        if overdue || clear || running.backlog.is_behind() {
            self.flush(now, tag);
        } else if completion.held_bytes() > 0 {
            self.watch(tag);
        }
    }

    fn fail_all(&mut self, now: Duration, error: &ApiError) {
        for mut running in self.running.drain() {
            running.completion.refuse(error.clone());
            if let Some(flush) = running.completion.take_flush(now) {
                running.flushes.send(flush);
            }
        }
    }

    fn watch(&mut self, tag: Tag) {
        let Some(running) = self.find(tag) else {
            return;
        };
        if !std::mem::replace(&mut running.watched, true) {
            self.watched.push(tag);
        }
    }

    fn find(&mut self, tag: Tag) -> Option<&mut RunningCompletion> {
        find(&mut self.running, tag)
    }

    fn remove(&mut self, tag: Tag) -> Option<RunningCompletion> {
        self.find(tag)?;
        Some(self.running.remove(split(tag).0))
    }

    fn send(&self, command: EngineCommand) {
        // A dead engine closes the step queue, which ends this task with an error to all.
        let _ = self.engine.send(command);
    }
}

fn find(running: &mut Slab<RunningCompletion>, tag: Tag) -> Option<&mut RunningCompletion> {
    let (index, generation) = split(tag);
    running.get_mut(index).filter(|running| running.generation == generation)
}

impl RunningCompletion {
    fn note_first_token(&mut self, now: Duration, admitted: Option<Admitted>) {
        if let Some(progress) = self.progress.complete(now, admitted) {
            self.send_progress(progress);
        }
    }

    /// Returns the time since its last flush, and sets that to now.
    fn gap(&mut self, now: Duration) -> Option<Duration> {
        self.flushed.replace(now).map(|last| now.saturating_sub(last))
    }

    /// Sends a notice that the engine was lost. Readers without progress reports, and those with a
    /// full backlog, get none: unread data stays bounded, however often this happens.
    fn send_pause(&self) {
        if self.progress.is_wanted() && !self.backlog.is_paused() {
            let choice = self.completion.choice();
            let deltas = vec![Delta::Pause { why: ENGINE_LOST.to_owned() }];
            self.flushes.send(Flush { choice, deltas, ..Flush::default() });
        }
    }

    /// Sends a progress report ahead of the held content: it is not part of the text, and precedes
    /// all of it.
    fn send_progress(&self, progress: Progress) {
        let (choice, deltas) = (self.completion.choice(), vec![Delta::Progress(progress)]);
        self.flushes.send(Flush { choice, deltas, ..Flush::default() });
    }
}

fn tag(generation: u32, index: usize) -> Tag {
    Tag((u64::from(generation) << 32) | index as u64)
}

/// Returns a tag's slab index and generation.
fn split(tag: Tag) -> (usize, u32) {
    (tag.0 as u32 as usize, (tag.0 >> 32) as u32)
}

#[cfg(test)]
mod tests;
