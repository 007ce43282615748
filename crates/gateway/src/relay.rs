//! The relay of one answer of an upstream server: merges its chunks into flushes and decides when
//! to flush, when to pause and when to give up. The time and the bytes are arguments, so that a
//! test can step it; `relay_task` supplies them.
//!
//! While the client is too far behind, the relay takes no more bytes, so that backpressure reaches
//! the upstream. An answer is complete only when the finish of each completion was received: any
//! other end, even a clean one, is an error. Before its first token, the request moves to another
//! server instead; behind it, another server continues the answer if that is possible
//! (`crate::continuation`).

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use loquent_openai::chunk::{Chunk, ChunkEnvelope, ChunkError, ChunkEvent, ReportedUsage};
use loquent_proto::backlog::{Backlog, BacklogAction};
use loquent_proto::sse::Parser;
use loquent_proto::{Delta, json};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::continuation::{ArrivedAnswer, Obstacle, Rest, Seam};
use crate::passthrough::MAX_RESPONSE_BYTES;
use loquent_serving::admission::{Permit, TokenAccount};
use loquent_serving::completion::{Completion, CompletionConfig, FlushState};
use loquent_serving::error::ApiError;
use loquent_serving::flush::Flush;
use loquent_serving::flush_channel::FlushSender;
use loquent_serving::metrics::{Metrics, UpstreamGuard};
use loquent_serving::model::unknown_vocab::UnknownVocab;
use loquent_serving::output::{READER_STALLED, SHUTDOWN, StreamBounds};

/// Maximum size of one event; a hostile or broken upstream may send no line end at all.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Minimum tokens of a completion for a measurement of its server's speed.
const PACED_TOKENS: u64 = 8;

/// Receives the first chunk's envelope when the answer begins, or the error if it does not.
pub type AnswerBegun = oneshot::Sender<Result<ChunkEnvelope, ApiError>>;

/// Configuration of the relay of one answer.
pub struct RelayConfig {
    /// Settings of each completion.
    pub completion: CompletionConfig,
    /// Bounds on the client's unread data.
    pub bounds: StreamBounds,
    /// If true, a slow client pauses the upstream but never ends the answer.
    pub exempt_from_stall_limit: bool,
    /// Maximum silence of the upstream within the answer.
    pub silence_limit: Duration,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
    /// The beginning of the answer, if other servers could continue it.
    pub arrived: Option<ArrivedAnswer>,
}

/// One completion of the upstream's answer.
struct RelayedChoice {
    completion: Completion,
    /// True if the held content should be sent as soon as the client has caught up.
    due: bool,
    /// Time of the last flush.
    flushed: Option<Duration>,
    ended: bool,
}

/// State of the relay of one answer.
pub struct Relay {
    config: RelayConfig,
    choices: Vec<RelayedChoice>,
    flushes: FlushSender,
    begun: Option<AnswerBegun>,
    parser: Parser,
    reported: Option<ReportedUsage>,
    /// Tokens of the answer so far, by its chunks.
    tokens: u64,
    /// Counts of the servers that have broken off; `None` while the first one answers.
    earlier: Option<EarlierCounts>,
    /// The latest seam, as long as the text before it matters.
    seam: Option<Seam>,
    /// Arrival times of the first and the latest token.
    token_times: Option<(Duration, Duration)>,
    /// True if the client has, or may have, received part of the answer.
    is_answered: bool,
    /// Bytes of the answer received so far.
    received_bytes: u64,
    /// Time since which the upstream has been silent.
    silent_since: Duration,
    /// The client's backlog, shared by all completions because they share one connection.
    backlog: Backlog,
    account: Option<TokenAccount>,
    /// Returned when the answer ends, however slowly the client drains it.
    permits: Vec<(Permit, UpstreamGuard)>,
}

/// Counts of an answer at its latest seam.
#[derive(Debug, Clone, Copy)]
struct EarlierCounts {
    /// Tokens of the prompt, if a server has reported them.
    prompt_tokens: Option<u64>,
    completion_tokens: u64,
    reasoning_tokens: u64,
}

/// Reason why the relay takes no more bytes.
#[derive(Debug)]
pub enum RelayEnd {
    /// All completions have ended.
    Complete,
    /// The server broke off, and the error was passed on.
    Broken,
    /// The server broke off before the first token: another server may be tried.
    Unanswered(ApiError),
    /// The server broke off within the answer: another server may continue it.
    Interrupted(ApiError),
    /// An error that is not the server's fault was passed on.
    Failed,
    /// The client is gone.
    Left,
}

/// Input of the relay.
pub enum RelayEvent {
    /// Bytes of the answer's body.
    Bytes(Bytes),
    /// A clean end of the body.
    End,
    /// A failure of the connection, with its description.
    Broken(String),
    /// Time to look at the client's backlog again.
    Tick,
    /// The time [`Relay::deadline`].
    Deadline,
    /// The time [`Relay::silent_at`].
    Silence,
    /// The end of this server.
    Shutdown,
    /// The client is gone.
    Left,
}

/// Result of a step: goes on, or ends for a reason.
type Step = ControlFlow<RelayEnd>;

impl Relay {
    /// Creates a relay of one completion per permit.
    pub fn new(
        config: RelayConfig,
        flushes: FlushSender,
        begun: AnswerBegun,
        permits: Vec<(Permit, UpstreamGuard)>,
    ) -> Self {
        let vocab = Arc::new(UnknownVocab);
        let choice = |index: usize| {
            let config = config.completion.clone();
            let completion = Completion::new(index as u32, vocab.clone(), config);
            RelayedChoice { completion, due: false, flushed: None, ended: false }
        };
        Self {
            choices: (0..permits.len()).map(choice).collect(),
            backlog: Backlog::new(config.bounds.backlog(config.exempt_from_stall_limit)),
            account: permits.first().map(|(permit, _)| permit.account()),
            config,
            flushes,
            begun: Some(begun),
            parser: Parser::new(MAX_EVENT_BYTES),
            reported: None,
            tokens: 0,
            earlier: None,
            seam: None,
            token_times: None,
            is_answered: false,
            received_bytes: 0,
            silent_since: Duration::ZERO,
            permits,
        }
    }

    /// Prepares for the body of a server that has responded at `now`.
    pub fn begin(&mut self, now: Duration) {
        self.parser = Parser::new(MAX_EVENT_BYTES);
        self.silent_since = now;
    }

    /// Returns the request for the rest of the answer to the request with the members `body`.
    ///
    /// # Errors
    /// The reason why no server can continue it.
    pub fn rest(&self, body: &Map<String, Value>) -> Result<Rest, Obstacle> {
        let arrived = self.config.arrived.as_ref().ok_or(Obstacle::TooLong)?;
        arrived.rest(body, self.completion_tokens())
    }

    /// Goes on at `now` with the rest of the answer to the request with the members `body`, from
    /// another server; `model` is its name if it is another model. The client is told where.
    pub fn go_on(&mut self, now: Duration, body: &Map<String, Value>, model: Option<&str>) -> Step {
        let tokens = self.completion_tokens();
        let reported = self.reported.take();
        self.earlier = Some(EarlierCounts {
            prompt_tokens: reported.as_ref().map(|counts| counts.prompt_tokens),
            completion_tokens: tokens,
            reasoning_tokens: reported.map_or(0, |counts| counts.reasoning_tokens),
        });
        self.tokens = tokens;
        self.seam = self.config.arrived.as_ref().map(|arrived| arrived.seam(body));
        // What came before the seam, then the mark.
        self.flush(now, 0)?;
        let mut mark = json!({"continued": {"after_tokens": tokens}});
        if let Some(model) = model {
            mark["continued"]["model"] = model.into();
        }
        let mark = Delta::Other { choice: 0, json: mark.to_string() };
        self.pass_on(Flush { deltas: vec![mark], ..Flush::default() })
    }

    /// Ends an answer at `now` of which nothing is left to generate.
    pub fn end_at_limit(&mut self, now: Duration) -> Step {
        let reason = "length".to_owned();
        self.handle_piece(now, 0, vec![Delta::Finish { choice: 0, reason }])?;
        Break(RelayEnd::Complete)
    }

    fn completion_tokens(&self) -> u64 {
        self.reported.as_ref().map_or(self.tokens, |counts| counts.completion_tokens)
    }

    /// Handles `event`, which occurred at `now`; breaks when the answer is over.
    pub fn handle(&mut self, now: Duration, event: RelayEvent) -> ControlFlow<RelayEnd> {
        let is_heard =
            matches!(event, RelayEvent::Bytes(_) | RelayEvent::End | RelayEvent::Broken(_));
        // While nothing is read, the silence is ours.
        if is_heard || self.backlog.is_paused() {
            self.silent_since = now;
        }
        match event {
            RelayEvent::Left => Break(RelayEnd::Left),
            RelayEvent::Shutdown => self.fail(now, ApiError::internal(SHUTDOWN)),
            RelayEvent::Bytes(bytes) => self.handle_bytes(now, &bytes),
            RelayEvent::Broken(why) => {
                self.break_off(now, &format!("the upstream server broke off: {why}"))
            }
            RelayEvent::End => self.handle_end(now),
            RelayEvent::Deadline => self.flush_overdue(now),
            RelayEvent::Silence if self.backlog.is_paused() => Continue(()),
            RelayEvent::Silence => self.break_off(now, "the upstream server has fallen silent"),
            RelayEvent::Tick => self.flush_due(now),
        }
    }

    /// Ends the unfinished completions with `error`; complete ones stay complete.
    pub fn fail(&mut self, now: Duration, error: ApiError) -> ControlFlow<RelayEnd> {
        // Before the first chunk the response has no status yet: the error becomes one.
        let begun = self.begun.take().map(|begun| begun.send(Err(error.clone())));
        if let Some(Ok(())) = begun {
            return Break(RelayEnd::Failed);
        }
        for index in 0..self.choices.len() {
            if !self.choices[index].ended {
                self.choices[index].completion.refuse(error.clone());
                self.flush(now, index)?;
            }
        }
        Break(RelayEnd::Failed)
    }

    /// Returns true if the relay takes bytes now. Not reading is what the upstream feels: its own
    /// buffers fill up.
    pub fn takes_bytes(&self) -> bool {
        !self.backlog.is_paused()
    }

    /// Returns true if the client is behind, so that its backlog is to be looked at again.
    pub fn is_behind(&self) -> bool {
        self.backlog.is_behind()
    }

    /// Returns true if the client has, or may have, received part of the answer.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Returns the time by which held content must be sent; while the client is behind, only a tick
    /// can send it.
    pub fn deadline(&self) -> Option<Duration> {
        let waiting = self.choices.iter().filter(|choice| !choice.due);
        waiting.filter_map(|choice| choice.completion.deadline()).min()
    }

    /// Returns the time at which the upstream has been silent for too long.
    pub fn silent_at(&self) -> Duration {
        self.silent_since + self.config.silence_limit
    }

    /// Returns the maximum silence of the upstream.
    pub fn silence_limit(&self) -> Duration {
        self.config.silence_limit
    }

    /// Resolves when the client is gone.
    pub async fn closed(&mut self) {
        self.flushes.closed().await;
    }

    /// Returns the server's mean time between two tokens of a completion.
    pub fn pace(&self) -> Option<Duration> {
        if self.earlier.is_some() {
            return None; // the times of several servers, and of the gaps between them
        }
        let (first, last) = self.token_times?;
        let tokens = self.reported.as_ref().map_or(self.tokens, |counts| counts.completion_tokens);
        let completions = self.choices.len() as u64;
        let gaps = (tokens / completions).checked_sub(1).filter(|gaps| *gaps >= PACED_TOKENS)?;
        Some((last - first) / u32::try_from(gaps).ok()?)
    }

    /// Returns the number of tokens of the prompt, if known, and of the answer.
    pub fn all_tokens(&self) -> u64 {
        let counts = self.reported.as_ref();
        counts.map_or(self.tokens, |counts| {
            counts.prompt_tokens.saturating_add(counts.completion_tokens)
        })
    }

    /// Adds the answer's tokens to the metrics and to its client's account.
    pub fn note_tokens(&self) {
        let counts = self.reported.as_ref();
        let prompt = counts.map_or(0, |counts| counts.prompt_tokens);
        let completion = counts.map_or(self.tokens, |counts| counts.completion_tokens);
        self.config.metrics.on_upstream_tokens(prompt, completion);
        if let Some(account) = &self.account {
            account.charge(counts, completion);
        }
    }

    fn handle_bytes(&mut self, now: Duration, bytes: &[u8]) -> Step {
        self.received_bytes += bytes.len() as u64;
        if self.received_bytes > MAX_RESPONSE_BYTES {
            return self.break_off(now, "the upstream server's answer does not end");
        }
        let mut parser = std::mem::replace(&mut self.parser, Parser::new(MAX_EVENT_BYTES));
        let mut step = Continue(());
        let parsed = parser.push(bytes, |event| {
            if step.is_continue() {
                step = self.handle_event(now, ChunkEvent::parse(event.data));
            }
        });
        self.parser = parser;
        step?;
        match parsed {
            Ok(()) => Continue(()),
            Err(error) => self.break_off(now, &format!("the upstream server's stream: {error}")),
        }
    }

    fn handle_event(&mut self, now: Duration, event: Result<ChunkEvent, ChunkError>) -> Step {
        match event {
            Ok(ChunkEvent::Chunk(chunk)) => self.handle_chunk(now, *chunk),
            Ok(ChunkEvent::Done) => self.handle_end(now),
            Ok(ChunkEvent::Failed(_)) if self.has_ended() => Break(RelayEnd::Complete),
            Ok(ChunkEvent::Failed(error)) if self.is_continuable() && is_servers_fault(&error) => {
                Break(RelayEnd::Interrupted(ApiError::of_upstream(&error)))
            }
            Ok(ChunkEvent::Failed(error)) => self.fail(now, ApiError::of_upstream(&error)),
            Err(error) => self.break_off(now, &format!("the upstream server's stream: {error}")),
        }
    }

    fn handle_chunk(&mut self, now: Duration, chunk: Chunk) -> Step {
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
        if let Some(arrived) = &mut self.config.arrived {
            arrived.add(&deltas);
        }
        let alone = matches!(&*deltas, [Delta::Other { json, .. }] if !has_choices(json));
        let members = if alone { deltas.pop() } else { None };
        match (usage, members) {
            (Some(usage), members) => {
                let usage = match self.earlier {
                    Some(earlier) => earlier.with(usage),
                    None => usage,
                };
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
        Continue(())
    }

    /// Adds one chunk's part of one completion.
    fn handle_piece(&mut self, now: Duration, index: usize, piece: Vec<Delta>) -> Step {
        let clear = self.flushes.unread_bytes() == 0;
        let Some(choice) = self.choices.get_mut(index) else {
            let many = self.choices.len();
            let message = format!("the upstream server sent choice {index} of {many}");
            return self.break_off(now, &message);
        };
        if choice.ended {
            return Continue(());
        }
        let last = choice.completion.last_token();
        let (piece, is_stopped) = match &mut self.seam {
            Some(seam) => across(seam, piece),
            None => (piece, false),
        };
        self.seam.take_if(|seam| !seam.is_open());
        let (state, tokens) = choice.completion.on_deltas(now, piece, clear);
        if tokens > 0 {
            self.tokens += u64::from(tokens);
            self.token_times = Some((self.token_times.map_or(now, |(first, _)| first), now));
            if let Some(last) = last {
                self.config.metrics.on_token_gap(now.saturating_sub(last));
            }
        }
        if state == FlushState::Ended {
            self.flush(now, index)?;
            // The server does not know that it has reached a stop string.
            return if is_stopped { Break(RelayEnd::Complete) } else { Continue(()) };
        }
        // However long the interval, what is held stays within the stream's bound.
        let full = choice.completion.held_bytes() >= self.config.bounds.buffer_bytes;
        choice.due |= full || state == FlushState::Due;
        if choice.due { self.flush_due(now) } else { Continue(()) }
    }

    /// Returns true if another server may be able to continue the answer.
    fn is_continuable(&self) -> bool {
        self.is_answered && self.config.arrived.is_some()
    }

    /// Handles a clean end of the stream, which by itself does not prove that the answer is
    /// complete.
    fn handle_end(&mut self, now: Duration) -> Step {
        let message = "the upstream server ended the stream before the answer was complete";
        self.break_off(now, message)
    }

    /// Returns true if every completion has its finish: whatever the server does then, nothing of
    /// the answer is missing.
    fn has_ended(&self) -> bool {
        self.choices.iter().all(|choice| choice.ended)
    }

    fn break_off(&mut self, now: Duration, message: &str) -> Step {
        if self.has_ended() {
            return Break(RelayEnd::Complete);
        }
        tracing::warn!("{message}");
        let error = ApiError::bad_gateway(message);
        if !self.is_answered {
            return Break(RelayEnd::Unanswered(error));
        }
        if self.is_continuable() {
            return Break(RelayEnd::Interrupted(error));
        }
        match self.fail(now, error) {
            Break(RelayEnd::Failed) => Break(RelayEnd::Broken),
            other => other,
        }
    }

    /// Passes on what is due, or takes the action that the client's backlog requires instead.
    fn flush_due(&mut self, now: Duration) -> Step {
        let held: usize = self.choices.iter().map(|choice| choice.completion.held_bytes()).sum();
        match self.backlog.handle(now.into(), self.flushes.unread_bytes(), held) {
            BacklogAction::Flush | BacklogAction::Resume => {
                for index in 0..self.choices.len() {
                    if self.choices[index].due {
                        self.flush(now, index)?;
                    }
                }
                Continue(())
            }
            BacklogAction::Hold => Continue(()),
            BacklogAction::Pause => {
                self.config.metrics.on_pause();
                Continue(())
            }
            BacklogAction::End => self.fail(now, ApiError::internal(READER_STALLED)),
        }
    }

    fn flush_overdue(&mut self, now: Duration) -> Step {
        for choice in &mut self.choices {
            choice.due |= choice.completion.deadline().is_some_and(|at| now >= at);
        }
        self.flush_due(now)
    }

    fn flush(&mut self, now: Duration, index: usize) -> Step {
        let choice = &mut self.choices[index];
        choice.due = false;
        let Some(flush) = choice.completion.take_flush(now) else { return Continue(()) };
        let gap = choice.flushed.replace(now).map(|last| now.saturating_sub(last));
        self.config.metrics.on_flush(flush.tokens, gap);
        if flush.end.is_some() {
            choice.ended = true;
            self.permits.pop();
        }
        self.pass_on(flush)
    }

    fn pass_on(&self, flush: Flush) -> Step {
        if self.flushes.send(flush) { Continue(()) } else { Break(RelayEnd::Left) }
    }
}

impl EarlierCounts {
    /// Adds these counts to those of the server that continues the answer, whose prompt contains
    /// the tokens so far.
    fn with(self, rest: ReportedUsage) -> ReportedUsage {
        let grown = rest.prompt_tokens.saturating_sub(self.completion_tokens);
        let prompt_tokens = self.prompt_tokens.unwrap_or(grown);
        let completion_tokens = self.completion_tokens.saturating_add(rest.completion_tokens);
        let mut json = rest.json;
        if let Some(members) = json.as_object_mut() {
            members.insert("prompt_tokens".into(), prompt_tokens.into());
            members.insert("completion_tokens".into(), completion_tokens.into());
            let total = prompt_tokens.saturating_add(completion_tokens);
            members.insert("total_tokens".into(), total.into());
        }
        ReportedUsage {
            prompt_tokens,
            cached_tokens: rest.cached_tokens.min(prompt_tokens),
            completion_tokens,
            reasoning_tokens: self.reasoning_tokens.saturating_add(rest.reasoning_tokens),
            json,
        }
    }
}

/// Takes a piece of an answer behind a seam; returns what may be sent of it, and true if a stop
/// string across the seam has ended the answer.
fn across(seam: &mut Seam, piece: Vec<Delta>) -> (Vec<Delta>, bool) {
    let mut sent = Vec::with_capacity(piece.len());
    for delta in piece {
        match delta {
            Delta::Text { choice, tokens, mut text } => {
                let ends = seam.push(&mut text);
                sent.push(Delta::Text { choice, tokens, text });
                if ends {
                    sent.push(Delta::Finish { choice, reason: "stop".into() });
                    return (sent, true);
                }
            }
            Delta::Finish { choice, reason } => {
                let mut text = String::new();
                seam.finish(&mut text);
                sent.push(Delta::Text { choice, tokens: 0, text });
                sent.push(Delta::Finish { choice, reason });
            }
            other => sent.push(other),
        }
    }
    (sent, false)
}

/// Returns true if an error inside a stream is the server's own, such as an engine that has died:
/// vLLM and SGLang write the status as its code, OpenAI and Loquent a type.
fn is_servers_fault(error: &Value) -> bool {
    let code = error.get("code").and_then(Value::as_u64);
    code.is_some_and(|code| (500..600).contains(&code))
        || error.get("type").is_some_and(|kind| kind == "server_error")
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

#[cfg(test)]
mod tests;
