//! One completion on its way to a client: tokens become text, text is cut at stop
//! strings and merged into flushes.

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

use crate::error::ApiError;

/// What a client whose request expired in the queue is told to wait, in seconds.
const EXPIRED_RETRY_S: u64 = 10;

/// Why a completion ended, as clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string was found.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
    /// It waited too long for its turn.
    Expired,
    /// It broke; the stream must not end as if complete.
    Error(String),
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
    /// Tokens that this flush covers, those without text included.
    pub tokens: u32,
    /// One for each token, where they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the completion's last flush. Apart, since it is large and flushes move often.
    pub end: Option<Box<End>>,
}

impl FinishReason {
    /// OpenAI's name of it; `None` for an unsuccessful end, which has none.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Stop => Some("stop"),
            Self::Length => Some("length"),
            Self::Expired | Self::Error(_) => None,
        }
    }

    /// What an unsuccessful end is to the client; `None` for a complete answer.
    pub fn error(&self) -> Option<ApiError> {
        match self {
            Self::Stop | Self::Length => None,
            Self::Expired => {
                let message = "The request waited too long in the server's queue. Try again later.";
                Some(ApiError::overloaded(message, EXPIRED_RETRY_S))
            }
            Self::Error(message) => Some(ApiError::internal(message.as_str())),
        }
    }
}

impl Flush {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty() && self.end.is_none()
    }
}

/// The end of a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// Tokens generated, the ending one included.
    pub completion_tokens: u32,
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
    held: Flush,
    fresh: String,
    completion_tokens: u32,
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
            held: Flush { choice: index, ..Flush::default() },
            fresh: String::new(),
            completion_tokens: 0,
            record: Record::default(),
        }
    }

    /// Takes one event of a step that had `rows` sequences and ended at `now`.
    ///
    /// `clear`: the client has taken all earlier flushes.
    pub fn on_event(&mut self, now: Duration, rows: u32, event: Event, clear: bool) -> Progress {
        if let Some(admitted) = event.admitted {
            self.record.admitted = Some(admitted);
        }
        let mut stopped = Match::None;
        let mut due = false;
        if let Some(choice) = event.token {
            self.note_token(now, rows, event.wait);
            let before = (self.held.text.len(), self.held.logprobs.len());
            stopped = self.take_token(choice.token, event.finish == Some(Finish::Stop));
            if let Some(logprobs) = choice.logprobs {
                self.held.logprobs.push(TokenLogprobs { token: choice.token, logprobs: *logprobs });
            }
            let payload = before != (self.held.text.len(), self.held.logprobs.len());
            due = self.coalescer.on_token(micros(now), payload, clear);
        }
        match (stopped, event.finish) {
            (Match::Stopped, finish) => {
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
        let next = Flush { choice: self.held.choice, ..Flush::default() };
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

    /// Whether text waits for the backlog to clear.
    pub fn wants_clear(&mut self) -> bool {
        self.coalescer.on_clear()
    }

    /// Bytes of text held here.
    pub fn held_bytes(&self) -> usize {
        self.held.text.len()
    }

    /// Breaks the completion off with an error.
    pub fn fail(&mut self, message: &str) {
        self.drain_held_text();
        self.end(FinishReason::Error(message.to_owned()));
    }

    fn note_token(&mut self, now: Duration, rows: u32, wait: Duration) {
        self.completion_tokens += 1;
        self.held.tokens += 1;
        self.record.last_token = Some(now);
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
        self.stop.push(&self.fresh, &mut self.held.text)
    }

    /// The text is over: half characters and half stop strings are what they look like.
    fn drain_held_text(&mut self) {
        self.fresh.clear();
        self.detok.finish(&mut self.fresh);
        if self.stop.push(&self.fresh, &mut self.held.text) == Match::None {
            self.stop.finish(&mut self.held.text);
        }
    }

    fn end(&mut self, reason: FinishReason) {
        let completion_tokens = self.completion_tokens;
        let record = Record::default();
        self.held.end = Some(Box::new(End { reason, completion_tokens, record }));
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
