//! One completion on its way to a client: tokens become text, text is cut at stop
//! strings, told apart (reasoning, calls of tools, what is said) and merged into flushes.

mod call;
pub mod reader;

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::detok::Detokenizer;
use loquent_infer::request::{Admitted, Event, Finish};
use loquent_infer::runner::TokenId;
use loquent_infer::sampling::Logprobs;
use loquent_infer::stop::{Match, StopMatcher};
use loquent_infer::vocab::Vocab;
use loquent_proto::Micros;
use loquent_proto::coalesce::{Coalescer, StreamInterval};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::upstream::chunk::Counted;
use reader::{Reader, Reading};

/// What a client whose request expired in the queue is told to wait, in seconds.
const EXPIRED_RETRY_S: u64 = 10;

/// Why a completion ended, as clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string was found.
    Stop,
    /// The model ended it with calls of tools.
    ToolCalls,
    /// `max_tokens` or the context was used up.
    Length,
    /// It waited too long for its turn.
    Expired,
    /// An upstream server's reason that is none of these.
    Other(String),
    /// It broke; the stream must not end as if complete.
    Error(String),
    /// It broke, with this error.
    Refused(Box<ApiError>),
}

/// A generated token with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: TokenId,
    /// Its log-probability and the best alternatives.
    pub logprobs: Logprobs,
}

/// What leaves for the client at once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flush {
    /// Which of the request's completions.
    pub choice: u32,
    /// Whole characters.
    pub text: String,
    /// Whole characters of reasoning; they come before the text.
    pub reasoning: String,
    /// Calls of tools; they come after the text.
    pub calls: Vec<CallPiece>,
    /// Tokens that this flush covers, those without text included.
    pub tokens: u32,
    /// One for each token, where they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// The same as an upstream server gave them.
    pub raw_logprobs: Option<Value>,
    /// What else an upstream server said.
    pub extra: Option<Box<Extra>>,
    /// An upstream server's count of tokens so far.
    pub counted: Option<Box<Counted>>,
    /// Set on the completion's last flush. Apart, since it is large and flushes move often.
    pub end: Option<Box<End>>,
}

/// Members that an upstream server's chunks carried beside those that are known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extra {
    /// Of the chunk.
    pub chunk: Map<String, Value>,
    /// Of the choice.
    pub choice: Map<String, Value>,
    /// Of the choice's delta.
    pub delta: Map<String, Value>,
}

impl Extra {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunk.is_empty() && self.choice.is_empty() && self.delta.is_empty()
    }

    /// Adds what came later: texts and lists of a delta grow, all else is replaced.
    fn absorb(&mut self, more: Self) {
        self.chunk.extend(more.chunk);
        self.choice.extend(more.choice);
        for (name, value) in more.delta {
            match (self.delta.get_mut(&name), value) {
                (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
                (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                (_, value) => drop(self.delta.insert(name, value)),
            }
        }
    }
}

/// A fragment of a tool call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallPiece {
    /// Which call of this completion.
    pub index: u32,
    /// Its id; empty after its first piece.
    pub id: String,
    /// The function's name; empty after its first piece.
    pub name: String,
    /// The next piece of its arguments.
    pub arguments: String,
}

impl FinishReason {
    /// An upstream server's reason.
    pub fn of_upstream(name: String) -> Self {
        match name.as_str() {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "tool_calls" => Self::ToolCalls,
            _ => Self::Other(name),
        }
    }

    /// OpenAI's name of it; `None` for an unsuccessful end, which has none.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Stop => Some("stop"),
            Self::ToolCalls => Some("tool_calls"),
            Self::Length => Some("length"),
            Self::Other(name) => Some(name),
            Self::Expired | Self::Error(_) | Self::Refused(_) => None,
        }
    }

    /// Its name in metrics and traces.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Other(_) => "other",
            Self::Expired => "expired",
            Self::Error(_) | Self::Refused(_) => "error",
        }
    }

    /// What an unsuccessful end is to the client; `None` for a complete answer.
    pub fn error(&self) -> Option<ApiError> {
        match self {
            Self::Stop | Self::ToolCalls | Self::Length | Self::Other(_) => None,
            Self::Expired => {
                let message = "The request waited too long in the server's queue. Try again later.";
                Some(ApiError::overloaded(message, EXPIRED_RETRY_S))
            }
            Self::Error(message) => Some(ApiError::internal(message.as_str())),
            Self::Refused(error) => Some(ApiError::clone(error)),
        }
    }
}

impl Flush {
    fn is_empty(&self) -> bool {
        !self.has_payload() && self.end.is_none()
    }

    /// Whether it holds anything for the client to see before the end.
    pub fn has_payload(&self) -> bool {
        self.payload() > 0
    }

    /// Grows with everything that a client sees.
    fn payload(&self) -> usize {
        let raw = usize::from(self.raw_logprobs.is_some()) + usize::from(self.extra.is_some());
        self.text_bytes() + self.logprobs.len() + raw
    }

    /// Bytes of text of all kinds.
    pub fn text_bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.name.len() + call.arguments.len());
        self.text.len() + self.reasoning.len() + calls.sum::<usize>()
    }

    /// Adds what came later, before any end.
    pub(crate) fn absorb(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.reasoning.push_str(&more.reasoning);
        for call in more.calls {
            match self.calls.last_mut() {
                Some(last) if last.index == call.index && call.name.is_empty() => {
                    last.arguments.push_str(&call.arguments);
                }
                _ => self.calls.push(call),
            }
        }
        self.tokens += more.tokens;
        self.logprobs.extend(more.logprobs);
        join_logprobs(&mut self.raw_logprobs, more.raw_logprobs);
        match (&mut self.extra, more.extra) {
            (Some(all), Some(more)) => all.absorb(*more),
            (all @ None, more) => *all = more,
            (Some(_), None) => {}
        }
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    fn open_call(&mut self, index: u32, id: String, name: String) {
        self.calls.push(CallPiece { index, id, name, arguments: String::new() });
    }

    fn push_arguments(&mut self, index: u32, text: &str) {
        match self.calls.last_mut() {
            Some(last) if last.index == index => last.arguments.push_str(text),
            _ if text.is_empty() => {}
            _ => {
                let arguments = text.to_owned();
                self.calls.push(CallPiece { index, arguments, ..CallPiece::default() });
            }
        }
    }
}

/// The end of a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// Tokens generated, the ending one included.
    pub completion_tokens: u32,
    /// Of those, reasoning.
    pub reasoning_tokens: u32,
    /// When things happened.
    pub record: Record,
}

/// One completion's times, on the server's clock, for metrics and reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// When and from what prefix it entered the batch.
    pub admitted: Option<Admitted>,
    /// When its first token was committed.
    pub first_token: Option<Duration>,
    /// When its last token was committed.
    pub last_token: Option<Duration>,
    /// Its tokens.
    pub tokens: u32,
    /// Sum over its tokens of the sequences in their batch.
    pub batch_rows: u64,
    /// Sum over its decode tokens of the time from ready to native call.
    pub decode_wait: Duration,
    /// The longest of those.
    pub decode_wait_max: Duration,
    /// Each token's commit, kept only where the request asked for timings.
    pub emits: Vec<Duration>,
    /// Each flush: tokens covered so far and when; kept only where asked for.
    pub flushes: Vec<(u32, Duration)>,
}

/// The company a completion's tokens were computed in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchShare {
    /// Sequences in the batch, mean over its tokens.
    pub rows_mean: f64,
    /// From ready to native call, mean over its decode tokens.
    pub wait_mean: Duration,
    /// The longest of those.
    pub wait_max: Duration,
}

impl Record {
    /// Notes a token at `now`.
    pub(crate) fn note_token(&mut self, now: Duration) {
        self.tokens += 1;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    /// The company its tokens were computed in; `None` without tokens.
    pub fn batch(&self) -> Option<BatchShare> {
        let decoded = self.tokens.saturating_sub(1).max(1);
        (self.tokens > 0).then(|| BatchShare {
            rows_mean: self.batch_rows as f64 / f64::from(self.tokens),
            wait_mean: self.decode_wait / decoded,
            wait_max: self.decode_wait_max,
        })
    }
}

/// Lays the log-probabilities `more` behind `all`: their arrays are joined.
fn join_logprobs(all: &mut Option<Value>, more: Option<Value>) {
    match (all.as_mut().and_then(Value::as_object_mut), more) {
        (_, None) => {}
        (Some(all), Some(Value::Object(more))) => {
            for (name, value) in more {
                match (all.get_mut(&name), value) {
                    (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                    (_, value) => drop(all.insert(name, value)),
                }
            }
        }
        (None, more) => *all = more,
        (Some(_), Some(_)) => {}
    }
}

/// How a completion is turned into text.
#[derive(Debug, Clone)]
pub struct Shape {
    /// End before the first of these.
    pub stops: Vec<String>,
    /// Tokens per flush.
    pub interval: StreamInterval,
    /// Hold content no longer than this.
    pub max_delay: Option<Duration>,
    /// Keep each token's times.
    pub timings: bool,
    /// What the text may hold beside what is said.
    pub reading: Reading,
}

/// What an event did to a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing to send yet.
    Held,
    /// [`Choice::take_flush`] has something that should leave now.
    Due,
    /// The last flush is ready; the engine has ended the completion itself.
    Ended,
    /// The last flush is ready; the engine must be told, as only the text shows the end.
    Stopped,
}

/// The state of one completion between the engine and its client.
pub struct Choice {
    vocab: Arc<dyn Vocab>,
    detok: Detokenizer,
    stop: StopMatcher,
    coalescer: Coalescer,
    timings: bool,
    /// Only where there is anything to tell apart.
    reader: Option<Reader>,
    held: Flush,
    fresh: String,
    /// Text before the reader has seen it.
    unread: String,
    completion_tokens: u32,
    reasoning_tokens: u32,
    record: Record,
}

impl Choice {
    /// The `index`-th completion of a request.
    pub fn new(index: u32, vocab: Arc<dyn Vocab>, shape: Shape) -> Self {
        Self {
            vocab,
            detok: Detokenizer::default(),
            stop: StopMatcher::new(shape.stops),
            coalescer: Coalescer::new(shape.interval, shape.max_delay.map(micros)),
            timings: shape.timings,
            reader: shape.reading.is_needed().then(|| Reader::new(shape.reading)),
            held: Flush { choice: index, ..Flush::default() },
            fresh: String::new(),
            unread: String::new(),
            completion_tokens: 0,
            reasoning_tokens: 0,
            record: Record::default(),
        }
    }

    /// Takes one event of a step that had `rows` sequences and ended at `now`.
    ///
    /// `clear`: the client has taken all earlier flushes; see [`Self::minds_backlog`].
    pub fn on_event(&mut self, now: Duration, rows: u32, event: Event, clear: bool) -> Progress {
        if let Some(admitted) = event.admitted {
            self.record.admitted = Some(admitted);
        }
        let mut stopped = Match::None;
        let mut due = false;
        if let Some(choice) = event.token {
            self.note_token(now, rows, event.wait);
            let before = self.held.payload();
            stopped = self.take_token(choice.token, event.finish == Some(Finish::Stop));
            if let Some(logprobs) = choice.logprobs {
                self.held.logprobs.push(TokenLogprobs { token: choice.token, logprobs: *logprobs });
            }
            let payload = before != self.held.payload();
            due = self.coalescer.on_token(micros(now), payload, clear);
        }
        match (stopped, event.finish) {
            (Match::Stopped, finish) => {
                self.finish_reading();
                self.end(FinishReason::Stop);
                if finish.is_some() { Progress::Ended } else { Progress::Stopped }
            }
            (Match::None, Some(finish)) => {
                self.drain_held_text();
                self.end(reason(finish));
                Progress::Ended
            }
            (Match::None, None) if due => Progress::Due,
            (Match::None, None) => Progress::Held,
        }
    }

    /// What should leave now; `None` when there is nothing to show.
    pub fn take_flush(&mut self, now: Duration) -> Option<Flush> {
        if self.held.is_empty() {
            return None;
        }
        self.coalescer.on_flush();
        // The next flush is about as long.
        let text = String::with_capacity(self.held.text.len());
        let next = Flush { choice: self.held.choice, text, ..Flush::default() };
        let mut flush = std::mem::replace(&mut self.held, next);
        if self.timings {
            self.record.flushes.push((self.completion_tokens, now));
        }
        if let Some(end) = &mut flush.end {
            end.record = std::mem::take(&mut self.record);
        }
        Some(flush)
    }

    /// When its latest token was committed.
    pub fn last_token(&self) -> Option<Duration> {
        self.record.last_token
    }

    /// When held content must leave, whatever the interval.
    pub fn deadline(&self) -> Option<Duration> {
        self.coalescer.deadline().map(|at| Duration::from_micros(at.0))
    }

    /// Whether [`Self::on_event`] minds if the client has taken all flushes.
    pub fn minds_backlog(&self) -> bool {
        self.coalescer.minds_backlog()
    }

    /// Whether text waits for the backlog to clear.
    pub fn wants_clear(&mut self) -> bool {
        self.coalescer.on_clear()
    }

    /// Bytes of text held here.
    pub fn held_bytes(&self) -> usize {
        self.held.text_bytes() + self.reader.as_ref().map_or(0, Reader::held_bytes)
    }

    /// Breaks the completion off with an error.
    pub fn fail(&mut self, message: &str) {
        self.drain_held_text();
        self.end(FinishReason::Error(message.to_owned()));
    }

    fn note_token(&mut self, now: Duration, rows: u32, wait: Duration) {
        self.completion_tokens += 1;
        self.reasoning_tokens += u32::from(self.reader.as_ref().is_some_and(Reader::is_thinking));
        self.held.tokens += 1;
        self.record.last_token = Some(now);
        self.record.tokens += 1;
        self.record.batch_rows += u64::from(rows);
        if self.record.first_token.is_some() {
            self.record.decode_wait += wait;
            self.record.decode_wait_max = self.record.decode_wait_max.max(wait);
        } else {
            self.record.first_token = Some(now);
        }
        if self.timings {
            self.record.emits.push(now);
        }
    }

    fn take_token(&mut self, token: TokenId, ends: bool) -> Match {
        if ends {
            return Match::None; // an end token has no text, whatever its piece
        }
        self.fresh.clear();
        self.detok.push(self.vocab.piece(token), &mut self.fresh);
        self.take_fresh()
    }

    /// Passes fresh text through the stop strings and, where there is one, the reader.
    fn take_fresh(&mut self) -> Match {
        let Some(reader) = &mut self.reader else {
            return self.stop.push(&self.fresh, &mut self.held.text);
        };
        self.unread.clear();
        let found = self.stop.push(&self.fresh, &mut self.unread);
        reader.push(&self.unread, &mut self.held);
        found
    }

    /// The text is over: half characters and half stop strings are what they look like.
    fn drain_held_text(&mut self) {
        self.fresh.clear();
        self.detok.finish(&mut self.fresh);
        if self.take_fresh() == Match::None {
            self.unread.clear();
            match &mut self.reader {
                None => self.stop.finish(&mut self.held.text),
                Some(reader) => {
                    self.stop.finish(&mut self.unread);
                    reader.push(&self.unread, &mut self.held);
                }
            }
        }
        self.finish_reading();
    }

    fn finish_reading(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.finish(&mut self.held);
        }
    }

    fn end(&mut self, reason: FinishReason) {
        let has_called = self.reader.as_ref().is_some_and(Reader::has_called);
        let reason = match reason {
            FinishReason::Stop if has_called => FinishReason::ToolCalls,
            other => other,
        };
        self.held.end = Some(Box::new(End {
            reason,
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.reasoning_tokens,
            record: Record::default(),
        }));
    }
}

fn reason(finish: Finish) -> FinishReason {
    match finish {
        Finish::Stop => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
        Finish::Expired => FinishReason::Expired,
        Finish::Failed(message) => FinishReason::Error(message),
    }
}

fn micros(time: Duration) -> Micros {
    Micros(time.as_micros() as u64)
}
