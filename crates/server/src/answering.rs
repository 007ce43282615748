//! A request under way: its flushes as they come, and the counts and times that go with them.

use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::api::answer::Head;
use crate::api::request::StreamParams;
use crate::clock::Clock;
use crate::delivery::Inlet;
use crate::flow::Inflow;
use crate::flush::{CompletionTimings, End, Flush};
use crate::metrics::{Metrics, Phases};
use crate::otel::{Finished, Telemetry};
use crate::trace_context::TraceParent;
use crate::usage::{UpstreamUsage, Usage};

/// The server's side of one request from admission to its last flush.
/// Dropping it cancels what still runs.
pub struct Answering {
    /// What all parts of the answer share.
    pub head: Head,
    /// What the request asks of its stream.
    pub stream: StreamParams,
    /// When the request arrived, on the server's clock.
    pub arrived: Duration,
    /// When it was admitted.
    pub accepted: Duration,
    /// When its prompts were tokenized.
    pub tokenized: Duration,
    /// The first completion's times, once it has ended.
    pub record: CompletionTimings,
    /// Flushes of all completions.
    pub source: Source,
    /// Prompt tokens of each completion.
    pub prompts: Vec<usize>,
    /// Completions per prompt.
    pub n: usize,
    /// Where the request is counted.
    pub metrics: Arc<Metrics>,
    /// The server's clock.
    pub clock: Clock,
    /// Where its spans go, if anywhere.
    pub telemetry: Option<Arc<Telemetry>>,
    /// The caller's place in a trace.
    pub trace_parent: Option<TraceParent>,
    /// Tokens delivered so far, and what the prefix cache gave.
    pub progress: Progress,
}

/// Where an answer's flushes come from.
pub enum Source {
    /// The engine.
    Engine(Inlet),
    /// An upstream server.
    Upstream(Inflow),
}

/// Counts that grow with the answer.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// An upstream server's own counts, which stand before ours.
    counted: Option<Box<UpstreamUsage>>,
    /// Why completions have ended, in that order; known to the metrics by these names.
    reasons: Vec<&'static str>,
    ended: usize,
    completion_tokens: u64,
    cached_tokens: u64,
    reasoning_tokens: u64,
}

impl Answering {
    /// The next flush; `None` after the last, or when the engine is gone.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Option<Flush>> {
        let mut flush = ready!(match &mut self.source {
            Source::Engine(inlet) => inlet.poll_recv(context),
            Source::Upstream(inflow) => inflow.poll_recv(context),
        });
        if let Some(flush) = &mut flush {
            self.progress.counted = flush.counted.take().or(self.progress.counted.take());
            self.progress.completion_tokens += u64::from(flush.tokens);
            if let Some(end) = &flush.end {
                self.note_end(flush.choice as usize, end);
            }
        }
        Poll::Ready(flush)
    }

    /// [`Self::poll_flush`] for async callers.
    pub async fn next_flush(&mut self) -> Option<Flush> {
        std::future::poll_fn(|context| self.poll_flush(context)).await
    }

    /// The next flush if it is there already; within, `None` as from [`Self::next_flush`].
    pub fn ready_flush(&mut self) -> Option<Option<Flush>> {
        match self.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flush) => Some(flush),
            Poll::Pending => None,
        }
    }

    /// Whether every completion has ended.
    pub fn is_complete(&self) -> bool {
        self.progress.ended == self.prompts.len()
    }

    /// Token counts so far.
    pub fn usage(&self) -> Usage {
        if let Some(counted) = &self.progress.counted {
            return counted.usage;
        }
        let prompts = self.prompts.iter().step_by(self.n);
        Usage {
            prompt_tokens: prompts.map(|&tokens| tokens as u64).sum(),
            cached_tokens: self.progress.cached_tokens,
            completion_tokens: self.progress.completion_tokens,
            reasoning_tokens: self.progress.reasoning_tokens,
        }
    }

    /// Token counts so far as clients are told, with whatever an upstream server says there.
    pub fn usage_json(&self) -> Value {
        match &self.progress.counted {
            Some(counted) => counted.json.clone(),
            None => self.usage().json(),
        }
    }

    /// What an upstream server said beside its counts.
    pub fn extra(&self) -> Option<&Map<String, Value>> {
        self.progress.counted.as_ref().map(|counted| &counted.extra)
    }

    /// The first completion's times.
    pub fn timings(&self) -> serde_json::Value {
        timings_json(self)
    }

    fn note_end(&mut self, choice: usize, end: &End) {
        self.progress.ended += 1;
        self.progress.reasons.push(end.reason.label());
        self.progress.reasoning_tokens += u64::from(end.reasoning_tokens);
        if choice.is_multiple_of(self.n) {
            let cached = end.record.admitted.map_or(0, |admitted| admitted.cached_tokens);
            self.progress.cached_tokens += u64::from(cached);
        }
        if choice == 0 {
            self.record = end.record.clone();
        }
        let phases =
            Phases { arrived: self.arrived, tokenized: self.tokenized, ended: self.clock.now() };
        self.metrics.on_end(phases, self.prompts[choice], end);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        for _ in self.progress.ended..self.prompts.len() {
            self.progress.reasons.push("abort");
            self.metrics.on_abort();
        }
        if let Some(telemetry) = &self.telemetry {
            telemetry.on_request(&Finished {
                parent: self.trace_parent.as_ref(),
                head: &self.head,
                reasons: &self.progress.reasons,
                usage: self.usage(),
                arrived: self.arrived,
                tokenized: self.tokenized,
                record: &self.record,
            });
        }
    }
}

/// The times of a finished answer for its usage chunk, in µs since the request's arrival.
fn timings_json(answering: &Answering) -> serde_json::Value {
    let since = |time: Duration| time.saturating_sub(answering.arrived).as_micros() as u64;
    let maybe = |time: Option<Duration>| time.map(since);
    let record = &answering.record;
    let admitted = record.admitted.map(|admitted| admitted.at);
    let batch = record.batch();
    let between = |from: Option<Duration>, to: Option<Duration>| {
        from.zip(to).map(|(from, to)| to.saturating_sub(from).as_micros() as u64)
    };
    json!({
        "request_id": answering.head.id,
        "admitted_us": since(answering.accepted),
        "tokenized_us": since(answering.tokenized),
        "scheduled_us": maybe(admitted),
        "first_token_us": maybe(record.first_token),
        "finished_us": maybe(record.last_token),
        "tokenize_us": answering.tokenized.saturating_sub(answering.accepted).as_micros() as u64,
        "queue_us": between(Some(answering.tokenized), admitted),
        "prefill_us": between(admitted, record.first_token),
        "decode_us": between(record.first_token, record.last_token),
        "decode_batch_size_mean": batch.map(|batch| batch.rows_mean),
        "decode_batch_wait_us_mean": batch.map(|batch| batch.wait_mean.as_micros() as u64),
        "decode_batch_wait_us_max": batch.map(|batch| batch.wait_max.as_micros() as u64),
        "emit_us": record.emits.iter().copied().map(since).collect::<Vec<_>>(),
        "flush_us": record.flushes.iter()
            .map(|&(tokens, at)| [u64::from(tokens), since(at)])
            .collect::<Vec<_>>(),
    })
}
