//! One answer of an upstream server on its way to a client: read, merged into flushes,
//! handed on, by a task of its own.
//!
//! The task stops reading while the client is too far behind, so that the upstream feels
//! it, and ends the stream with an error after the stall limit. It ends, and with it the
//! upstream's connection, as soon as nobody wants the answer any more. An answer is
//! complete only when each completion's finish was received: whatever else ends it, a
//! clean end included, is an error.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use loquent_openai::causes;
use loquent_openai::http::ResponseBody;
use loquent_proto::Micros;
use loquent_proto::coalesce::Coalescer;
use loquent_proto::sse::Parser;
use tokio::sync::{oneshot, watch};

use super::chunk::{self, Chunk, Envelope, Event};
use crate::admission::Permit;
use crate::api::request::Endpoint;
use crate::clock::Clock;
use crate::delivery::StreamBounds;
use crate::error::ApiError;
use crate::flow::Outflow;
use crate::flush::{CompletionTimings, End, FinishReason, Flush};
use crate::metrics::{ActivePath, Metrics};
use crate::usage::UpstreamUsage;

/// Longest event; a hostile or broken upstream may send no line end at all.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// How often a slow reader is looked at.
const TICK: Duration = Duration::from_millis(10);
/// How long the body of a complete answer may take to end for its connection to be kept.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// What streams that outlive the server are told.
const SHUTDOWN: &str = "the server is shutting down";

/// Told when the answer has begun, or that it will not.
pub type Begun = oneshot::Sender<Result<Envelope, ApiError>>;

/// What a relay needs to know.
pub struct Settings {
    /// Which shape the chunks have.
    pub endpoint: Endpoint,
    /// One for each completion, fresh.
    pub coalescer: Coalescer,
    /// Bounds on the stream.
    pub bounds: StreamBounds,
    /// Its reader may stay away for longer: it is kept for one who comes back.
    pub patient: bool,
    /// The server's clock.
    pub clock: Clock,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
}

/// One completion.
struct Branch {
    coalescer: Coalescer,
    held: Flush,
    record: CompletionTimings,
    ended: bool,
}

/// The task's state.
pub struct Relay {
    settings: Settings,
    branches: Vec<Branch>,
    outflow: Outflow,
    begun: Option<Begun>,
    counted: Option<UpstreamUsage>,
    tokens: u64,
    paused_since: Option<Duration>,
    /// Given back when the answer ends, however slowly the client drains it.
    tickets: Vec<(Permit, ActivePath)>,
}

/// Why the task stopped reading.
enum Stop {
    /// All completions have ended.
    Complete,
    /// An error has been passed on.
    Failed,
    /// The client is gone.
    Left,
}

/// What woke the task.
enum Woken {
    Body(Option<Result<http_body::Frame<bytes::Bytes>, hyper::Error>>),
    Tick,
    Deadline,
    Shutdown,
    Left,
}

impl Relay {
    /// A relay of so many completions as there are tickets.
    pub fn new(settings: Settings, outflow: Outflow, begun: Begun, tickets: Vec<Permit>) -> Self {
        let branch = |index: usize| Branch {
            coalescer: settings.coalescer.clone(),
            held: Flush { choice: index as u32, ..Flush::default() },
            record: CompletionTimings::default(),
            ended: false,
        };
        let branches = (0..tickets.len()).map(branch).collect();
        let running = |ticket| (ticket, settings.metrics.upstream_completion());
        let tickets = tickets.into_iter().map(running).collect();
        Self {
            settings,
            branches,
            outflow,
            begun: Some(begun),
            counted: None,
            tokens: 0,
            paused_since: None,
            tickets,
        }
    }

    /// Waits for the answer and passes it on until it ends, the client leaves, or
    /// `shutdown` is set.
    pub async fn run(
        mut self,
        asking: impl Future<Output = Result<ResponseBody, ApiError>>,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let asked = tokio::select! {
            biased;
            () = self.outflow.closed() => return,
            _ = shutdown.wait_for(|stop| *stop) => Err(ApiError::internal(SHUTDOWN)),
            asked = asking => asked,
        };
        match asked {
            Ok(answer) => self.relay(answer, shutdown).await,
            Err(error) => drop(self.fail(error)),
        }
    }

    async fn relay(mut self, answer: ResponseBody, mut shutdown: watch::Receiver<bool>) {
        let mut parser = Parser::new(MAX_EVENT_BYTES);
        let mut body = answer;
        let mut tick = tokio::time::interval(TICK);
        loop {
            let deadline = self.deadline();
            let paused = self.is_paused();
            let woken = tokio::select! {
                biased;
                () = self.outflow.closed() => Woken::Left,
                _ = shutdown.wait_for(|stop| *stop) => Woken::Shutdown,
                frame = body.frame(), if !paused => Woken::Body(frame),
                () = sleep_until(self.settings.clock, deadline), if deadline.is_some() => Woken::Deadline,
                _ = tick.tick(), if paused => Woken::Tick,
            };
            match self.handle(woken, &mut parser) {
                Ok(()) => {}
                Err(Stop::Complete) => break,
                Err(Stop::Failed | Stop::Left) => return self.note_tokens(),
            }
        }
        self.note_tokens();
        drop(self);
        drain(body).await;
    }

    fn handle(&mut self, woken: Woken, parser: &mut Parser) -> Result<(), Stop> {
        match woken {
            Woken::Left => Err(Stop::Left),
            Woken::Shutdown => self.fail(ApiError::internal(SHUTDOWN)),
            Woken::Body(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => self.handle_bytes(parser, &data),
                Err(_trailers) => Ok(()),
            },
            Woken::Body(Some(Err(error))) => {
                self.break_off(&format!("the upstream server broke off: {}", causes(&error)))
            }
            Woken::Body(None) => self.handle_end(),
            Woken::Deadline => self.flush_overdue(),
            Woken::Tick => self.look_after_reader(),
        }
    }

    fn handle_bytes(&mut self, parser: &mut Parser, bytes: &[u8]) -> Result<(), Stop> {
        let endpoint = self.settings.endpoint;
        let mut outcome = Ok(());
        let parsed = parser.push(bytes, |event| {
            if outcome.is_ok() {
                outcome = self.handle_event(chunk::read(endpoint, event.data));
            }
        });
        outcome?;
        match parsed {
            Ok(()) => Ok(()),
            Err(error) => self.break_off(&format!("the upstream server's stream: {error}")),
        }
    }

    fn handle_event(&mut self, event: Result<Event, chunk::NoChunk>) -> Result<(), Stop> {
        match event {
            Ok(Event::Chunk(chunk)) => self.handle_chunk(*chunk),
            Ok(Event::Done) => self.handle_end(),
            Ok(Event::Error(error)) => self.fail(ApiError::of_upstream(&error)),
            Err(error) => self.break_off(&error.to_string()),
        }
    }

    fn handle_chunk(&mut self, chunk: Chunk) -> Result<(), Stop> {
        let Chunk { envelope, pieces, usage, extra } = chunk;
        if let Some(begun) = self.begun.take() {
            let _ = begun.send(Ok(envelope));
        }
        let mut extra = Some(extra).filter(|extra| !extra.is_empty());
        if let Some(mut counted) = usage {
            if pieces.is_empty() {
                counted.extra = extra.take().unwrap_or_default();
            }
            self.counted = Some(counted.clone());
            let counted = Some(Box::new(counted));
            self.pass_on(Flush { counted, ..Flush::default() })?;
        }
        if pieces.is_empty() && extra.is_some() {
            let mut alone = Flush::default();
            alone.extra_mut().chunk = extra.take().unwrap_or_default();
            self.pass_on(alone)?;
        }
        for (mut piece, reason) in pieces {
            if let Some(extra) = extra.take() {
                piece.extra_mut().chunk = extra;
            }
            self.handle_piece(piece, reason)?;
        }
        Ok(())
    }

    fn handle_piece(&mut self, piece: Flush, reason: Option<String>) -> Result<(), Stop> {
        let now = self.settings.clock.now();
        let index = piece.choice as usize;
        let clear = self.outflow.unread_bytes() == 0;
        let Some(branch) = self.branches.get_mut(index) else {
            let many = self.branches.len();
            return self.break_off(&format!("the upstream server sent choice {index} of {many}"));
        };
        if branch.ended || !(piece.has_payload() || reason.is_some()) {
            return Ok(());
        }
        if piece.tokens > 0 {
            self.tokens += u64::from(piece.tokens);
            if let Some(last) = branch.record.last_token {
                self.settings.metrics.on_token_gap(now.saturating_sub(last));
            }
            branch.record.note_token(now);
        }
        let payload = piece.has_payload();
        branch.held.absorb(piece);
        let due = branch.coalescer.on_token(micros(now), payload, clear);
        if let Some(reason) = reason {
            branch.end(FinishReason::of_upstream(reason));
        }
        if due || branch.ended { self.flush(index) } else { Ok(()) }
    }

    /// The stream has ended cleanly, which says nothing by itself.
    fn handle_end(&mut self) -> Result<(), Stop> {
        if self.branches.iter().all(|branch| branch.ended) {
            return Err(Stop::Complete);
        }
        self.break_off("the upstream server ended the stream before the answer was complete")
    }

    fn break_off(&mut self, message: &str) -> Result<(), Stop> {
        tracing::warn!("{message}");
        self.fail(ApiError::bad_gateway(message))
    }

    /// Ends what has not ended with `error`; whole completions stay whole.
    fn fail(&mut self, error: ApiError) -> Result<(), Stop> {
        // Whoever waits for the beginning answers with a real status.
        let told = self.begun.take().map(|begun| begun.send(Err(error.clone())));
        if let Some(Ok(())) = told {
            return Err(Stop::Failed);
        }
        for index in 0..self.branches.len() {
            if !self.branches[index].ended {
                self.branches[index].end(FinishReason::Refused(Box::new(error.clone())));
                self.flush(index)?;
            }
        }
        Err(Stop::Failed)
    }

    fn flush(&mut self, index: usize) -> Result<(), Stop> {
        let branch = &mut self.branches[index];
        branch.coalescer.on_flush();
        let next = Flush { choice: branch.held.choice, ..Flush::default() };
        let flush = std::mem::replace(&mut branch.held, next);
        self.settings.metrics.on_flush(flush.tokens);
        if flush.end.is_some() {
            self.tickets.pop();
        }
        self.pass_on(flush)
    }

    fn pass_on(&self, flush: Flush) -> Result<(), Stop> {
        if self.outflow.send(flush) { Ok(()) } else { Err(Stop::Left) }
    }

    fn deadline(&self) -> Option<Duration> {
        let deadlines = self.branches.iter().filter_map(|branch| branch.coalescer.deadline());
        deadlines.min().map(|at| Duration::from_micros(at.0))
    }

    fn flush_overdue(&mut self) -> Result<(), Stop> {
        let now = micros(self.settings.clock.now());
        for index in 0..self.branches.len() {
            if self.branches[index].coalescer.deadline().is_some_and(|at| now >= at) {
                self.flush(index)?;
            }
        }
        Ok(())
    }

    /// Whether the reader is too far behind to read on; notes since when.
    fn is_paused(&mut self) -> bool {
        let held: usize = self.branches.iter().map(|branch| branch.held.text_bytes()).sum();
        let full = self.outflow.unread_bytes() + held >= self.settings.bounds.buffer_bytes;
        if full && self.paused_since.is_none() {
            self.paused_since = Some(self.settings.clock.now());
            self.settings.metrics.on_pause();
        }
        self.paused_since.is_some()
    }

    fn look_after_reader(&mut self) -> Result<(), Stop> {
        let Some(since) = self.paused_since else { return Ok(()) };
        let Settings { bounds, clock, patient, .. } = &self.settings;
        if self.outflow.unread_bytes() < bounds.buffer_bytes / 2 {
            self.paused_since = None;
        } else if !patient && clock.now().saturating_sub(since) >= bounds.stall_limit {
            return self.fail(ApiError::internal("the client stopped reading its stream"));
        }
        Ok(())
    }

    fn note_tokens(&self) {
        let counted = self.counted.as_ref().map(|counted| counted.usage);
        let prompt = counted.map_or(0, |usage| usage.prompt_tokens);
        let completion = counted.map_or(self.tokens, |usage| usage.completion_tokens);
        self.settings.metrics.on_upstream_tokens(prompt, completion);
    }
}

impl Branch {
    fn end(&mut self, reason: FinishReason) {
        self.ended = true;
        self.held.end = Some(Box::new(End {
            reason,
            completion_tokens: self.record.tokens,
            reasoning_tokens: 0,
            record: std::mem::take(&mut self.record),
        }));
    }
}

/// Reads what may stand behind a complete answer, the body's end at best: its connection can
/// then be used again.
async fn drain(mut body: ResponseBody) {
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

async fn sleep_until(clock: Clock, at: Option<Duration>) {
    let left = at.unwrap_or_default().saturating_sub(clock.now());
    tokio::time::sleep(left).await;
}

/// A time as the protocol's crate counts it.
pub fn micros(time: Duration) -> Micros {
    Micros(time.as_micros() as u64)
}
