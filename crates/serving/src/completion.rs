//! One completion between its source and its client: turns the engine's tokens into text and cuts
//! it at stop strings, takes the deltas of an upstream server as they are, splits the text into
//! reasoning, tool calls and answer, and gathers these into flushes.

pub mod logprobs;
pub mod reader;

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::detok::Detokenizer;
use loquent_infer::request::{Finish, SequenceEvent};
use loquent_infer::sampling::SampledToken;
use loquent_infer::stop::{Match, StopMatcher};
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use loquent_proto::coalesce::{Coalescer, StreamInterval};
use loquent_proto::{Delta, Micros};
use serde_json::json;

use crate::api::request::Endpoint;
use crate::error::ApiError;
use crate::flush::{CompletionTimings, End, FinishReason, Flush};
use crate::pending_deltas::PendingDeltas;
use logprobs::{PendingLogprobs, ScoredPrompt};
use reader::{SplitConfig, TextSplitter};

/// Settings of a completion's text and flushes.
#[derive(Debug, Clone, Default)]
pub struct CompletionConfig {
    /// Stop strings: the text ends before the first one that occurs.
    pub stops: Vec<String>,
    /// Tokens per flush.
    pub interval: StreamInterval,
    /// Maximum time for which content may be held for a larger flush.
    pub max_delay: Option<Duration>,
    /// Records the time of each token and flush, for the answer's timings.
    pub timings: bool,
    /// Parts that the text may contain besides the answer.
    pub split: SplitConfig,
    /// Handling of log-probabilities.
    pub logprobs: LogprobConfig,
    /// Reports which stop string ended the text, in the format of this endpoint's choices.
    pub names_stop: Option<Endpoint>,
}

/// Handling of a completion's log-probabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogprobConfig {
    /// The echoed prompt, if its tokens have log-probabilities too.
    pub prompt: Option<ScoredPrompt>,
    /// True if only the prompt's log-probabilities are requested, and no completion.
    pub only_prompt: bool,
    /// True if the token that ends the text also gets log-probabilities, though it has no text.
    pub keeps_end: bool,
    /// True if tokens are kept for their ids even without log-probabilities.
    pub keeps_ids: bool,
}

/// State of a completion's flush after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushState {
    /// Nothing has to be flushed yet.
    Held,
    /// [`Completion::take_flush`] has content to flush now.
    Due,
    /// The last flush is ready; the engine has ended the completion itself.
    Ended,
    /// The last flush is ready, and the engine must end the completion: only the text shows that it
    /// is over.
    Stopped,
}

/// The state of one completion.
pub struct Completion {
    vocab: Arc<dyn Vocab>,
    detok: Detokenizer,
    stop: StopMatcher,
    coalescer: Coalescer,
    /// Control tokens that are replaced by their names.
    spoken: Arc<[TokenId]>,
    /// `None` if the text has no reasoning or tool calls: most completions then skip a copy.
    splitter: Option<TextSplitter>,
    held: PendingDeltas,
    held_tokens: u32,
    /// Held tokens that no held delta counts: all of the engine's, and of an upstream server's
    /// those of text that passed through the splitter.
    uncounted_tokens: u32,
    logprobs: PendingLogprobs,
    keeps_end_logprobs: bool,
    keeps_ids: bool,
    only_prompt: bool,
    end: Option<Box<End>>,
    /// Buffer for the latest token's text.
    fresh: String,
    /// Buffer for text between the stop strings and the splitter.
    unsplit: String,
    completion_tokens: u32,
    reasoning_tokens: u32,
    names_stop: Option<Endpoint>,
    keeps_timings: bool,
    timings: CompletionTimings,
}

impl Completion {
    /// Returns the completion number `index` of a request.
    pub fn new(index: u32, vocab: Arc<dyn Vocab>, config: CompletionConfig) -> Self {
        let CompletionConfig { stops, interval, max_delay, timings, split, logprobs, names_stop } =
            config;
        Self {
            vocab,
            detok: Detokenizer::default(),
            stop: StopMatcher::new(stops),
            coalescer: Coalescer::new(interval, max_delay.map(Micros::from)),
            spoken: split.spoken.clone(),
            splitter: split.is_needed().then(|| TextSplitter::new(split)),
            held: PendingDeltas::new(index),
            held_tokens: 0,
            uncounted_tokens: 0,
            logprobs: PendingLogprobs::behind(logprobs.prompt),
            keeps_end_logprobs: logprobs.keeps_end,
            keeps_ids: logprobs.keeps_ids,
            only_prompt: logprobs.only_prompt,
            end: None,
            fresh: String::new(),
            unsplit: String::new(),
            completion_tokens: 0,
            reasoning_tokens: 0,
            names_stop,
            keeps_timings: timings,
            timings: CompletionTimings::default(),
        }
    }

    /// Handles one event of a step that had `rows` sequences and ended at `now`.
    ///
    /// `clear`: the client has taken all earlier flushes; see [`Self::minds_backlog`].
    pub fn on_event(
        &mut self,
        now: Duration,
        rows: u32,
        event: SequenceEvent,
        clear: bool,
    ) -> FlushState {
        if let Some(admitted) = event.admitted {
            self.timings.admitted = Some(admitted);
        }
        if let Some(scores) = event.scores {
            self.logprobs.push_prompt(&scores);
        }
        if self.only_prompt && event.finish.as_ref().is_some_and(is_complete) {
            // The engine generates a token in any case, which nobody asked for.
            self.end(FinishReason::Length);
            return FlushState::Ended;
        }
        let mut stopped = Match::None;
        let mut due = false;
        if let Some(sampled) = event.token {
            self.note_token(now, rows, event.wait);
            let before = self.payload();
            stopped = self.take_token(sampled, event.finish == Some(Finish::Stop));
            // Half a character, or half a stop string, is a token without payload: the
            // interval counts it, but it never makes a flush due by itself.
            let payload = before != self.payload();
            due = self.coalescer.on_token(Micros::from(now), payload, clear);
        }
        match (stopped, event.finish) {
            // A stop string counts before whatever else ended with the same token: the text
            // after it is gone, so neither the length nor an error behind it is visible.
            (Match::Stopped, finish) => {
                self.logprobs.cut();
                self.finish_splitting();
                self.end(FinishReason::Stop);
                if finish.is_some() { FlushState::Ended } else { FlushState::Stopped }
            }
            (Match::None, Some(finish)) => {
                match is_complete(&finish) {
                    true => {
                        self.drain_held_text();
                        self.end(finish_reason(finish));
                    }
                    false => self.end_unfinished(finish_reason(finish)),
                }
                FlushState::Ended
            }
            (Match::None, None) if due => FlushState::Due,
            (Match::None, None) => FlushState::Held,
        }
    }

    /// Handles a piece of an upstream server's completion, which arrived at `now`. Returns also the
    /// number of its tokens, or 0 for a piece without content.
    ///
    /// `clear`: the client has taken all earlier flushes.
    pub fn on_deltas(
        &mut self,
        now: Duration,
        deltas: Vec<Delta>,
        clear: bool,
    ) -> (FlushState, u32) {
        let (mut tokens, mut finish, before) = (0, None, self.held.bytes());
        for delta in deltas {
            tokens += delta.tokens();
            match delta {
                Delta::Finish { reason, .. } => finish = Some(reason),
                delta => self.take_delta(delta),
            }
        }
        if finish.is_some() {
            self.finish_splitting();
        }
        let payload = self.held.bytes() != before;
        // A piece with only unknown members has no count; they are some token's.
        let tokens = if payload { tokens.max(1) } else { 0 };
        if payload {
            self.completion_tokens += 1;
            self.held_tokens += tokens;
            self.timings.note_token(now);
        }
        let counts = payload || finish.is_some();
        let due = counts && self.coalescer.on_token(Micros::from(now), payload, clear);
        let state = match finish {
            Some(name) => {
                self.end(FinishReason::of_upstream(name));
                FlushState::Ended
            }
            None if due => FlushState::Due,
            None => FlushState::Held,
        };
        (state, tokens)
    }

    /// Index of this completion within the request.
    pub const fn choice(&self) -> u32 {
        self.held.choice()
    }

    /// Takes the content to flush; `None` if there is none.
    pub fn take_flush(&mut self, now: Duration) -> Option<Flush> {
        let logprobs = match self.end {
            Some(_) => self.logprobs.take_all(),
            None => self.logprobs.take_ready(),
        };
        if self.held.is_empty() && logprobs.is_empty() && self.end.is_none() {
            return None;
        }
        self.coalescer.on_flush();
        if self.keeps_timings {
            self.timings.flushes.push((self.completion_tokens, now));
        }
        let (choice, tokens) = (self.held.choice(), std::mem::take(&mut self.held_tokens));
        let mut deltas = self.held.take(std::mem::take(&mut self.uncounted_tokens));
        let mut end = self.end.take();
        if let Some(end) = &mut end {
            // Moved here and not when the end was noted, so that this flush is in it.
            end.timings = std::mem::take(&mut self.timings);
            let named = self.names_stop.zip(self.stop.found());
            deltas.extend(named.map(|(endpoint, stop)| stop_reason(endpoint, choice, stop)));
            let reason = end.reason.name().map(str::to_owned);
            deltas.extend(reason.map(|reason| Delta::Finish { choice, reason }));
        }
        Some(Flush { choice, tokens, deltas, logprobs, end })
    }

    /// Time when the latest token was committed.
    pub fn last_token(&self) -> Option<Duration> {
        self.timings.last_token
    }

    /// Time by which held content must be flushed regardless of the interval.
    pub fn deadline(&self) -> Option<Duration> {
        self.coalescer.deadline().map(Duration::from)
    }

    /// Returns true if [`Self::on_event`] depends on its argument `clear`.
    pub fn minds_backlog(&self) -> bool {
        self.coalescer.minds_backlog()
    }

    /// Returns true if text is waiting for the client to take earlier flushes.
    pub fn wants_clear(&mut self) -> bool {
        self.coalescer.on_clear()
    }

    /// Bytes of content and log-probabilities held here.
    pub fn held_bytes(&self) -> usize {
        let unsplit = self.splitter.as_ref().map_or(0, TextSplitter::held_bytes);
        self.held.bytes() + unsplit + self.logprobs.size_bytes()
    }

    /// Ends the completion with an error.
    pub fn fail(&mut self, message: &str) {
        self.end_unfinished(FinishReason::Error(message.to_owned()));
    }

    /// Ends the completion with an error that has more than a message.
    pub fn refuse(&mut self, error: ApiError) {
        self.end_unfinished(FinishReason::Refused(Box::new(error)));
    }

    /// Ends the completion before its text is complete. Anything held back as an incomplete
    /// character, stop string or tag is dropped, with its log-probabilities: nobody knows what it
    /// would have become.
    fn end_unfinished(&mut self, reason: FinishReason) {
        self.logprobs.cut();
        self.end(reason);
    }

    fn note_token(&mut self, now: Duration, rows: u32, wait: Duration) {
        self.completion_tokens += 1;
        let thinks = self.splitter.as_ref().is_some_and(TextSplitter::is_thinking);
        self.reasoning_tokens += u32::from(thinks);
        self.held_tokens += 1;
        self.uncounted_tokens += 1;
        let timings = &mut self.timings;
        timings.batch_rows += u64::from(rows);
        // The first token's wait is the prompt's, which the queue's and prefill's times cover.
        if timings.first_token.is_some() {
            timings.decode_wait += wait;
            timings.decode_wait_max = timings.decode_wait_max.max(wait);
        }
        timings.note_token(now);
        if self.keeps_timings {
            timings.emits.push(now);
        }
    }

    /// Bytes of content and log-probabilities that could be flushed now.
    fn payload(&self) -> usize {
        self.held.bytes() + self.logprobs.ready()
    }

    fn take_token(&mut self, sampled: SampledToken, ends: bool) -> Match {
        let SampledToken { token, logprobs } = sampled;
        let is_kept = logprobs.is_some() || self.keeps_ids;
        if is_kept && (!ends || self.keeps_end_logprobs) {
            self.logprobs.push(token, logprobs.map(|logprobs| *logprobs));
        }
        if ends {
            return Match::None; // an end token has no text, whatever its piece
        }
        self.fresh.clear();
        let piece = match self.vocab.piece(token) {
            // A tag of the model's format; most tokens have text, and cost nothing here.
            [] if self.spoken.binary_search(&token).is_ok() => self.vocab.name(token),
            piece => piece,
        };
        self.detok.push(piece, &mut self.fresh);
        match is_kept {
            true => self.take_fresh_with_logprobs(),
            false => self.take_fresh(),
        }
    }

    /// Like [`Self::take_fresh`], and counts the characters so that log-probabilities are sent with
    /// their text.
    fn take_fresh_with_logprobs(&mut self) -> Match {
        let from = match self.splitter {
            Some(_) => 0,
            None => self.held.text_mut().len(),
        };
        let found = self.take_fresh();
        let shown = match self.splitter {
            Some(_) => &self.unsplit,
            None => &*self.held.text_mut(),
        };
        self.logprobs.on_text(&self.fresh, &shown[from..]);
        found
    }

    /// Passes fresh text through the stop strings and the splitter, if there is one.
    fn take_fresh(&mut self) -> Match {
        let Some(splitter) = &mut self.splitter else {
            return self.stop.push(&self.fresh, self.held.text_mut());
        };
        self.unsplit.clear();
        let found = self.stop.push(&self.fresh, &mut self.unsplit);
        splitter.push(&self.unsplit, &mut self.held);
        found
    }

    /// Holds a delta of an upstream server. Text passes through the splitter as long as there may
    /// be reasoning in it.
    fn take_delta(&mut self, delta: Delta) {
        match (delta, &mut self.splitter) {
            (Delta::Text { text, tokens, .. }, Some(splitter)) => {
                self.uncounted_tokens += tokens;
                splitter.push(&text, &mut self.held);
                self.splitter.take_if(|splitter| splitter.is_plain());
            }
            (delta, splitter) => {
                // A server that splits its reasoning off, or calls tools, leaves nothing to find.
                let is_split = matches!(delta, Delta::Reasoning { .. } | Delta::ToolCall { .. });
                if let Some(mut splitter) = splitter.take_if(|_| is_split) {
                    splitter.finish(&mut self.held);
                }
                self.held.push(delta);
            }
        }
    }

    /// Ends the text. Anything held back as an incomplete character, stop string or tag turns out
    /// to be text, and is released in order.
    fn drain_held_text(&mut self) {
        self.fresh.clear();
        self.detok.finish(&mut self.fresh);
        if self.take_fresh() == Match::None {
            self.unsplit.clear();
            match &mut self.splitter {
                None => self.stop.finish(self.held.text_mut()),
                Some(splitter) => {
                    self.stop.finish(&mut self.unsplit);
                    splitter.push(&self.unsplit, &mut self.held);
                }
            }
        }
        self.finish_splitting();
    }

    fn finish_splitting(&mut self) {
        if let Some(splitter) = &mut self.splitter {
            splitter.finish(&mut self.held);
        }
    }

    fn end(&mut self, reason: FinishReason) {
        let has_called = self.splitter.as_ref().is_some_and(TextSplitter::has_called);
        let reason = match reason {
            // OpenAI's name for an answer that the model ended after calls.
            FinishReason::Stop if has_called => FinishReason::ToolCalls,
            other => other,
        };
        self.end = Some(Box::new(End {
            reason,
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.reasoning_tokens,
            timings: CompletionTimings::default(),
        }));
    }
}

/// Returns true if the engine completed the computation.
fn is_complete(finish: &Finish) -> bool {
    matches!(finish, Finish::Stop | Finish::Length)
}

/// Returns the stop string that ended a choice, in vLLM's format.
fn stop_reason(endpoint: Endpoint, choice: u32, stop: &str) -> Delta {
    let json = match endpoint {
        Endpoint::Chat => json!({"index": choice, "delta": {}, "stop_reason": stop}),
        Endpoint::Text => json!({"index": choice, "text": "", "stop_reason": stop}),
    };
    Delta::Other { choice, json: json!({"choices": [json]}).to_string() }
}

fn finish_reason(finish: Finish) -> FinishReason {
    match finish {
        Finish::Stop => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
        Finish::Expired => FinishReason::Expired,
        Finish::Failed(message) => FinishReason::Error(message),
        Finish::Unsatisfiable(why) => {
            FinishReason::Refused(Box::new(ApiError::unsatisfiable(&why)))
        }
        Finish::Abandoned(why) => FinishReason::Refused(Box::new(ApiError::engine_away(&why))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_is_invited_only_where_it_may_help() {
        for (finish, status) in [
            (Finish::Unsatisfiable("every token is forbidden".into()), 400),
            (Finish::Failed("the model has no usable probabilities".into()), 500),
            (Finish::Abandoned("the engine is gone".into()), 503),
        ] {
            let error = finish_reason(finish).error().expect("it has failed");
            assert_eq!(error.status(), status, "{error}");
        }
    }
}
