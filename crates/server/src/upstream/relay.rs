//! Relays one answer of an upstream server to a client: a separate task reads it, merges it into
//! flushes and passes them on.
//!
//! The task stops reading while the client is too far behind, so that backpressure reaches the
//! upstream. It ends, and closes the upstream's connection, as soon as the client is gone. An
//! answer is complete only when the finish of each completion was received: any other end, even a
//! clean one, is an error. Before its first token, the request moves to another server instead.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use loquent_openai::causes;
use loquent_openai::chunk::{Chunk, ChunkEnvelope, ChunkError, ChunkEvent, ReportedUsage};
use loquent_openai::http::ResponseBody;
use loquent_proto::backlog::{Backlog, BacklogAction};
use loquent_proto::coalesce::Coalescer;
use loquent_proto::sse::Parser;
use loquent_proto::{Delta, Micros, json};
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::MissedTickBehavior;

use crate::admission::{Permit, TokenAccount};
use crate::clock::Clock;
use crate::completion::reader::{SplitConfig, TextSplitter};
use crate::error::ApiError;
use crate::flush::{CompletionTimings, End, FinishReason, Flush};
use crate::flush_channel::FlushSender;
use crate::metrics::{Metrics, UpstreamGuard};
use crate::output::{BACKLOG_TICK, READER_STALLED, SHUTDOWN, StreamBounds};
use crate::pending_deltas::PendingDeltas;
use crate::upstream::breaker::RequestVerdict;
use crate::upstream::dispatch::Dispatch;
use crate::upstream::passthrough::MAX_RESPONSE_BYTES;
use crate::upstream::pool::UpstreamLease;

/// Maximum size of one event; a hostile or broken upstream may send no line end at all.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Minimum tokens of a completion for a measurement of its server's speed.
const PACED_TOKENS: u64 = 8;
/// Largest error body that is passed on.
const MAX_ERROR_BYTES: usize = 1 << 20;
/// Time limit for the end of a complete answer's body, after which its connection is not reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Receives the first chunk's envelope when the answer begins, or the error if it does not.
pub type AnswerBegun = oneshot::Sender<Result<ChunkEnvelope, ApiError>>;

/// Configuration of the relay of one answer.
pub struct RelayConfig {
    /// Coalescer that is cloned for each completion.
    pub coalescer: Coalescer,
    /// Bounds on the client's unread data.
    pub bounds: StreamBounds,
    /// If true, a slow client pauses the upstream but never ends the answer.
    pub exempt_from_stall_limit: bool,
    /// Maximum silence of the upstream within the answer.
    pub silence_limit: Duration,
    /// True if `<think>…</think>` at the beginning of a text is reasoning.
    pub splits_reasoning: bool,
    /// The server's clock.
    pub clock: Clock,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
}

/// One completion of the upstream's answer.
struct RelayedCompletion {
    coalescer: Coalescer,
    held: PendingDeltas,
    held_tokens: u32,
    /// Splits reasoning off the text, as long as there may be any.
    splitter: Option<TextSplitter>,
    /// Tokens of text passed to the splitter.
    split_tokens: u32,
    /// True if the held content should be sent as soon as the client has caught up.
    due: bool,
    timings: CompletionTimings,
    /// Time of the last flush.
    flushed: Option<Duration>,
    end: Option<Box<End>>,
    ended: bool,
}

/// State of the relay task.
pub struct Relay {
    config: RelayConfig,
    completions: Vec<RelayedCompletion>,
    flushes: FlushSender,
    begun: Option<AnswerBegun>,
    reported: Option<ReportedUsage>,
    tokens: u64,
    /// Arrival times of the first and the latest token.
    token_times: Option<(Duration, Duration)>,
    /// True if the client has, or may have, received part of the answer.
    is_answered: bool,
    /// Bytes of the answer received so far.
    received_bytes: u64,
    /// The client's backlog, shared by all completions because they share one connection.
    backlog: Backlog,
    account: Option<TokenAccount>,
    /// Returned when the answer ends, however slowly the client drains it.
    permits: Vec<(Permit, UpstreamGuard)>,
}

/// Reason why the task stopped reading.
enum RelayEnd {
    /// All completions have ended.
    Complete,
    /// The server broke off, and the error was passed on.
    Broken,
    /// The server broke off before the first token: another server may be tried.
    Unanswered(ApiError),
    /// An error that is not the server's fault was passed on.
    Failed,
    /// The client is gone.
    Left,
}

/// Event that woke the task.
enum RelayEvent {
    Body(Option<Result<http_body::Frame<bytes::Bytes>, hyper::Error>>),
    Tick,
    Deadline,
    Silence,
    Shutdown,
    Left,
}

impl Relay {
    /// Creates a relay of one completion per permit.
    pub fn new(
        config: RelayConfig,
        flushes: FlushSender,
        begun: AnswerBegun,
        permits: Vec<Permit>,
    ) -> Self {
        let completion = |index: usize| RelayedCompletion {
            coalescer: config.coalescer.clone(),
            held: PendingDeltas::new(index as u32),
            held_tokens: 0,
            splitter: config.splits_reasoning.then(|| TextSplitter::new(SplitConfig::reasoning())),
            split_tokens: 0,
            due: false,
            timings: CompletionTimings::default(),
            flushed: None,
            end: None,
            ended: false,
        };
        let completions = (0..permits.len()).map(completion).collect();
        let account = permits.first().map(Permit::account);
        let running = |mut permit: Permit| {
            permit.begin();
            (permit, config.metrics.upstream_completion(config.clock))
        };
        let permits = permits.into_iter().map(running).collect();
        let backlog = Backlog::new(config.bounds.backlog(config.exempt_from_stall_limit));
        let begun = Some(begun);
        Self {
            config,
            completions,
            flushes,
            begun,
            reported: None,
            tokens: 0,
            token_times: None,
            is_answered: false,
            received_bytes: 0,
            backlog,
            account,
            permits,
        }
    }

    /// Waits for the answer and passes it on until it ends, the client leaves, or `shutdown` is
    /// set.
    pub async fn run(mut self, mut dispatch: Dispatch, mut shutdown: watch::Receiver<bool>) {
        loop {
            let asked = tokio::select! {
                biased;
                () = self.flushes.closed() => return,
                _ = shutdown.wait_for(|stop| *stop) => Err(ApiError::internal(SHUTDOWN)),
                asked = ask(&mut dispatch, self.config.silence_limit) => asked,
            };
            let (mut body, place) = match asked {
                Ok(answer) => answer,
                Err(error) => return drop(self.fail(error)),
            };
            let end = self.relay(&mut body, &place, &mut shutdown).await;
            place.note_tokens(self.all_tokens());
            match end {
                RelayEnd::Unanswered(error) => {
                    place.note_failure(&error.to_string());
                    place.judge(RequestVerdict::Fails);
                    dispatch.note_unheard(error);
                    continue;
                }
                RelayEnd::Broken => place.judge(RequestVerdict::Fails),
                RelayEnd::Complete => {
                    place.judge(RequestVerdict::Works);
                    self.note_tokens();
                    self.pace().into_iter().for_each(|pace| place.note_pace(pace));
                    drop((self, place));
                    return drain(body).await;
                }
                RelayEnd::Failed | RelayEnd::Left => {}
            }
            return self.note_tokens();
        }
    }

    async fn relay(
        &mut self,
        body: &mut ResponseBody,
        place: &UpstreamLease,
        shutdown: &mut watch::Receiver<bool>,
    ) -> RelayEnd {
        let mut parser = Parser::new(MAX_EVENT_BYTES);
        let mut tick = tokio::time::interval(BACKLOG_TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = self.config.clock.now();
        loop {
            let deadline = self.deadline();
            let silent_at = Micros::from(heard + self.config.silence_limit);
            let event = tokio::select! {
                biased;
                () = self.flushes.closed() => RelayEvent::Left,
                _ = shutdown.wait_for(|stop| *stop) => RelayEvent::Shutdown,
                // Not reading is what the upstream feels: its own buffers fill up.
                frame = body.frame(), if !self.backlog.is_paused() => RelayEvent::Body(frame),
                () = sleep_until(self.config.clock, deadline), if deadline.is_some() => {
                    RelayEvent::Deadline
                }
                _ = tick.tick(), if self.backlog.is_behind() => RelayEvent::Tick,
                () = sleep_until(self.config.clock, Some(silent_at)) => RelayEvent::Silence,
            };
            let now = self.config.clock.now();
            // While nothing is read, the silence is ours.
            if matches!(event, RelayEvent::Body(_)) || self.backlog.is_paused() {
                heard = now;
            }
            let was_answered = self.is_answered;
            let handled = self.handle(now, event, &mut parser);
            let begins = self.is_answered && !was_answered;
            // A short answer comes as a whole, and has ended by now.
            if begins {
                place.note_first_token();
            }
            if let Err(end) = handled {
                return end;
            }
            if begins {
                place.note_begun();
            }
        }
    }

    fn handle(
        &mut self,
        now: Duration,
        event: RelayEvent,
        parser: &mut Parser,
    ) -> Result<(), RelayEnd> {
        match event {
            RelayEvent::Left => Err(RelayEnd::Left),
            RelayEvent::Shutdown => self.fail(ApiError::internal(SHUTDOWN)),
            RelayEvent::Body(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => self.handle_bytes(now, parser, &data),
                Err(_trailers) => Ok(()),
            },
            RelayEvent::Body(Some(Err(error))) => {
                self.break_off(&format!("the upstream server broke off: {}", causes(&error)))
            }
            RelayEvent::Body(None) => self.handle_end(),
            RelayEvent::Deadline => self.flush_overdue(now),
            RelayEvent::Silence if self.backlog.is_paused() => Ok(()),
            RelayEvent::Silence => self.break_off("the upstream server has fallen silent"),
            RelayEvent::Tick => self.flush_due(now),
        }
    }

    fn handle_bytes(
        &mut self,
        now: Duration,
        parser: &mut Parser,
        bytes: &[u8],
    ) -> Result<(), RelayEnd> {
        self.received_bytes += bytes.len() as u64;
        if self.received_bytes > MAX_RESPONSE_BYTES {
            return self.break_off("the upstream server's answer does not end");
        }
        let mut outcome = Ok(());
        let parsed = parser.push(bytes, |event| {
            if outcome.is_ok() {
                outcome = self.handle_event(now, ChunkEvent::parse(event.data));
            }
        });
        outcome?;
        match parsed {
            Ok(()) => Ok(()),
            Err(error) => self.break_off(&format!("the upstream server's stream: {error}")),
        }
    }

    fn handle_event(
        &mut self,
        now: Duration,
        event: Result<ChunkEvent, ChunkError>,
    ) -> Result<(), RelayEnd> {
        match event {
            Ok(ChunkEvent::Chunk(chunk)) => self.handle_chunk(now, *chunk),
            Ok(ChunkEvent::Done) => self.handle_end(),
            Ok(ChunkEvent::Failed(error)) => self.fail(ApiError::of_upstream(&error)),
            Err(error) => self.break_off(&format!("the upstream server's stream: {error}")),
        }
    }

    fn handle_chunk(&mut self, now: Duration, chunk: Chunk) -> Result<(), RelayEnd> {
        let Chunk { envelope, mut deltas, usage } = chunk;
        if let Some(begun) = self.begun.take() {
            let _ = begun.send(Ok(envelope));
        }
        // An upstream's progress is passed on at once: it is no part of a completion.
        if let Some(Delta::Progress(_)) = deltas.first() {
            let deltas = vec![deltas.remove(0)];
            self.pass_on(Flush { deltas, ..Flush::default() })?;
        }
        self.is_answered |= !deltas.is_empty() && !deltas.iter().all(is_empty_text);
        let alone = matches!(&*deltas, [Delta::Other { json, .. }] if !has_choices(json));
        let members = if alone { deltas.pop() } else { None };
        match (usage, members) {
            (Some(usage), members) => {
                self.pass_on(usage_flush(&usage, members))?;
                self.reported = Some(usage);
            }
            (None, Some(members)) => {
                self.pass_on(Flush { deltas: vec![members], ..Flush::default() })?;
            }
            (None, None) => {}
        }
        let mut deltas = deltas.into_iter().peekable();
        while let Some(choice) = deltas.peek().map(|delta| delta.choice().unwrap_or_default()) {
            let of_choice = |delta: &Delta| delta.choice().is_none_or(|other| other == choice);
            let piece = std::iter::from_fn(|| deltas.next_if(of_choice)).collect();
            self.handle_piece(now, choice as usize, piece)?;
        }
        Ok(())
    }

    /// Adds one chunk's part of one completion.
    fn handle_piece(
        &mut self,
        now: Duration,
        index: usize,
        piece: Vec<Delta>,
    ) -> Result<(), RelayEnd> {
        let clear = self.flushes.unread_bytes() == 0;
        let Some(completion) = self.completions.get_mut(index) else {
            let many = self.completions.len();
            return self.break_off(&format!("the upstream server sent choice {index} of {many}"));
        };
        if completion.ended {
            return Ok(());
        }
        let (mut tokens, mut reason) = (0, None);
        let before = completion.held.bytes();
        for delta in piece {
            tokens += delta.tokens();
            match delta {
                Delta::Finish { reason: name, .. } => reason = Some(name),
                delta => completion.take(delta),
            }
        }
        if reason.is_some() {
            completion.finish_splitting();
        }
        let payload = completion.held.bytes() != before;
        if payload || reason.is_some() {
            if payload {
                // A chunk with only unknown members has no count; they are some token's.
                let tokens = tokens.max(1);
                completion.held_tokens += tokens;
                self.tokens += u64::from(tokens);
                self.token_times = Some((self.token_times.map_or(now, |(first, _)| first), now));
                if let Some(last) = completion.timings.last_token {
                    self.config.metrics.on_token_gap(now.saturating_sub(last));
                }
                completion.timings.note_token(now);
            }
            completion.due |= completion.coalescer.on_token(now.into(), payload, clear);
        }
        if let Some(reason) = reason {
            completion.end(FinishReason::of_upstream(reason));
            return self.flush(index);
        }
        // However long the interval, what is held stays within the stream's bound.
        let full = completion.held.bytes() >= self.config.bounds.buffer_bytes;
        completion.due |= full;
        if completion.due { self.flush_due(now) } else { Ok(()) }
    }

    /// Handles a clean end of the stream, which by itself does not prove that the answer is
    /// complete.
    fn handle_end(&mut self) -> Result<(), RelayEnd> {
        if self.completions.iter().all(|completion| completion.ended) {
            return Err(RelayEnd::Complete);
        }
        self.break_off("the upstream server ended the stream before the answer was complete")
    }

    fn break_off(&mut self, message: &str) -> Result<(), RelayEnd> {
        tracing::warn!("{message}");
        let error = ApiError::bad_gateway(message);
        if !self.is_answered {
            return Err(RelayEnd::Unanswered(error));
        }
        match self.fail(error) {
            Err(RelayEnd::Failed) => Err(RelayEnd::Broken),
            other => other,
        }
    }

    /// Ends the unfinished completions with `error`; complete ones stay complete.
    fn fail(&mut self, error: ApiError) -> Result<(), RelayEnd> {
        // Before the first chunk the response has no status yet: the error becomes one.
        let begun = self.begun.take().map(|begun| begun.send(Err(error.clone())));
        if let Some(Ok(())) = begun {
            return Err(RelayEnd::Failed);
        }
        for index in 0..self.completions.len() {
            if !self.completions[index].ended {
                self.completions[index].finish_splitting();
                self.completions[index].end(FinishReason::Refused(Box::new(error.clone())));
                self.flush(index)?;
            }
        }
        Err(RelayEnd::Failed)
    }

    /// Passes on what is due, or takes the action that the client's backlog requires instead.
    fn flush_due(&mut self, now: Duration) -> Result<(), RelayEnd> {
        let held: usize = self.completions.iter().map(|completion| completion.held.bytes()).sum();
        match self.backlog.handle(now.into(), self.flushes.unread_bytes(), held) {
            BacklogAction::Flush | BacklogAction::Resume => {
                for index in 0..self.completions.len() {
                    if self.completions[index].due {
                        self.flush(index)?;
                    }
                }
                Ok(())
            }
            BacklogAction::Hold => Ok(()),
            BacklogAction::Pause => {
                self.config.metrics.on_pause();
                Ok(())
            }
            BacklogAction::End => self.fail(ApiError::internal(READER_STALLED)),
        }
    }

    fn flush(&mut self, index: usize) -> Result<(), RelayEnd> {
        let completion = &mut self.completions[index];
        let flush = completion.take_flush();
        let now = self.config.clock.now();
        let last = completion.flushed.replace(now);
        let gap = last.map(|last| now.saturating_sub(last));
        self.config.metrics.on_flush(flush.tokens, gap);
        if flush.end.is_some() {
            self.permits.pop();
        }
        self.pass_on(flush)
    }

    fn pass_on(&self, flush: Flush) -> Result<(), RelayEnd> {
        if self.flushes.send(flush) { Ok(()) } else { Err(RelayEnd::Left) }
    }

    /// Returns when held content must be sent; while the client is behind, only the tick can send
    /// it.
    fn deadline(&self) -> Option<Micros> {
        let waiting = self.completions.iter().filter(|completion| !completion.due);
        waiting.filter_map(|completion| completion.coalescer.deadline()).min()
    }

    fn flush_overdue(&mut self, now: Duration) -> Result<(), RelayEnd> {
        for completion in &mut self.completions {
            let deadline = completion.coalescer.deadline();
            completion.due |= deadline.is_some_and(|at| Micros::from(now) >= at);
        }
        self.flush_due(now)
    }

    /// Returns the server's mean time between two tokens of a completion.
    fn pace(&self) -> Option<Duration> {
        let (first, last) = self.token_times?;
        let tokens = self.reported.as_ref().map_or(self.tokens, |counts| counts.completion_tokens);
        let completions = self.completions.len() as u64;
        let gaps = (tokens / completions).checked_sub(1).filter(|gaps| *gaps >= PACED_TOKENS)?;
        Some((last - first) / u32::try_from(gaps).ok()?)
    }

    /// Returns the number of tokens of the prompt, if known, and of the answer.
    fn all_tokens(&self) -> u64 {
        let counts = self.reported.as_ref();
        counts.map_or(self.tokens, |counts| {
            counts.prompt_tokens.saturating_add(counts.completion_tokens)
        })
    }

    fn note_tokens(&self) {
        let counts = self.reported.as_ref();
        let prompt = counts.map_or(0, |counts| counts.prompt_tokens);
        let completion = counts.map_or(self.tokens, |counts| counts.completion_tokens);
        self.config.metrics.on_upstream_tokens(prompt, completion);
        if let Some(account) = &self.account {
            account.charge(counts.map(|counts| counts.prompt_tokens), completion);
        }
    }
}

impl RelayedCompletion {
    fn take(&mut self, delta: Delta) {
        match (delta, &mut self.splitter) {
            (Delta::Text { text, tokens, .. }, Some(splitter)) => {
                self.split_tokens += tokens;
                splitter.push(&text, &mut self.held);
                if splitter.is_plain() {
                    self.splitter = None;
                }
            }
            (delta, splitter) => {
                // A server that splits its reasoning off, or calls tools, leaves nothing to find.
                let is_split = matches!(delta, Delta::Reasoning { .. } | Delta::ToolCall { .. });
                if splitter.is_some() && is_split {
                    self.finish_splitting();
                }
                self.held.push(delta);
            }
        }
    }

    fn finish_splitting(&mut self) {
        if let Some(mut splitter) = self.splitter.take() {
            splitter.finish(&mut self.held);
        }
    }

    fn end(&mut self, reason: FinishReason) {
        self.ended = true;
        self.end = Some(Box::new(End {
            reason,
            completion_tokens: self.timings.tokens,
            reasoning_tokens: 0,
            timings: std::mem::take(&mut self.timings),
        }));
    }

    fn take_flush(&mut self) -> Flush {
        self.coalescer.on_flush();
        self.due = false;
        let choice = self.held.choice();
        // The deltas have their tokens already: those of the chunks that they came in; but for
        // texts that were split.
        let mut deltas = self.held.take(std::mem::take(&mut self.split_tokens));
        let end = self.end.take();
        let reason = end.as_ref().and_then(|end| end.reason.name()).map(str::to_owned);
        deltas.extend(reason.map(|reason| Delta::Finish { choice, reason }));
        let tokens = std::mem::take(&mut self.held_tokens);
        Flush { choice, tokens, deltas, logprobs: Vec::new(), end }
    }
}

/// Builds a separate flush of the upstream's counts: a record of them, followed by an Other with
/// the counts as they came and the `others` of the chunk.
fn usage_flush(usage: &ReportedUsage, others: Option<Delta>) -> Flush {
    let mut members = Map::new();
    members.insert("usage".into(), usage.json.clone());
    if let Some(Delta::Other { json, .. }) = others {
        members.extend(serde_json::from_str::<Map<String, Value>>(&json).unwrap_or_default());
    }
    let as_it_came = Delta::Other { choice: 0, json: Value::from(members).to_string() };
    Flush { deltas: vec![usage.to_delta(), as_it_came], ..Flush::default() }
}

/// Returns true if an Other belongs to a choice rather than to its chunk.
fn has_choices(json: &str) -> bool {
    json::members(json).is_some_and(|members| members.iter().any(|(name, _)| *name == "choices"))
}

/// Returns true if a delta is the empty text with which a server announces its answer.
fn is_empty_text(delta: &Delta) -> bool {
    matches!(delta, Delta::Text { text, .. } if text.is_empty())
}

/// Sends a request until a server responds. A response that is not a success becomes an error.
async fn ask(
    dispatch: &mut Dispatch,
    silence_limit: Duration,
) -> Result<(ResponseBody, UpstreamLease), ApiError> {
    let (response, place) = dispatch.send().await?;
    let (head, body) = response.into_parts();
    if head.status.is_success() {
        return Ok((body, place));
    }
    let lost =
        |why: &str| ApiError::bad_gateway(format!("The upstream server's error is lost: {why}."));
    let body = Limited::new(body, MAX_ERROR_BYTES).collect();
    let body = tokio::time::timeout(silence_limit, body).await;
    let body = body.map_err(|_| lost("it takes too long"))?;
    let body = body.map_err(|error| lost(&error.to_string()))?;
    if head.status.is_client_error() {
        place.judge(RequestVerdict::Works);
    }
    Err(ApiError::passed_on(&head, body.to_bytes()))
}

/// Reads the rest of the body after a complete answer, so that its connection can be reused.
async fn drain(mut body: ResponseBody) {
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

async fn sleep_until(clock: Clock, at: Option<Micros>) {
    let left = Duration::from(at.unwrap_or_default()).saturating_sub(clock.now());
    tokio::time::sleep(left).await;
}
