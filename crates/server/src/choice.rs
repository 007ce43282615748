//! One completion on its way to a client: tokens become text, text is cut at stop
//! strings, told apart (reasoning, calls of tools, what is said) and merged into flushes.

mod call;
pub mod reader;

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::detok::Detokenizer;
use loquent_infer::request::{Finish, SequenceEvent};
use loquent_infer::stop::{Match, StopMatcher};
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use loquent_proto::Micros;
use loquent_proto::coalesce::{Coalescer, StreamInterval};

use crate::flush::{CompletionTimings, End, FinishReason, Flush, TokenLogprobs};
use reader::{Reader, Reading};

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
    record: CompletionTimings,
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
            record: CompletionTimings::default(),
        }
    }

    /// Takes one event of a step that had `rows` sequences and ended at `now`.
    ///
    /// `clear`: the client has taken all earlier flushes; see [`Self::minds_backlog`].
    pub fn on_event(
        &mut self,
        now: Duration,
        rows: u32,
        event: SequenceEvent,
        clear: bool,
    ) -> Progress {
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
            record: CompletionTimings::default(),
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
