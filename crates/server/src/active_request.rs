//! A request under way: its flushes as they come, and the counts and times that go with them.

use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use loquent_infer::reading::ReaderReport;
use loquent_proto::Delta;
use serde_json::{Map, Value, json};

use crate::api::head::{AnswerHead, AnswerName};
use crate::api::request::StreamParams;
use crate::awaited::{AwaitedAnswer, EngineAnswer, WaitEvent};
use crate::clock::Clock;
use crate::flush::{CompletionTimings, End, Flush, FlushObserver};
use crate::flush_channel::FlushReceiver;
use crate::identity::ApiKey;
use crate::metrics::{Carriers, GaugeGuard, Metrics, Phases, StreamCarrier};
use crate::otel::{OpenSpan, Telemetry};
use crate::output::CompletionFlushes;
use crate::request_log::{AnswerLine, RequestId, RequestLog};
use crate::request_spans::Finished;
use crate::trace_context::TraceParent;
use crate::usage::Usage;

/// What a request asks for, and when it came.
pub struct AdmittedRequest {
    /// What all parts of the answer share.
    pub head: AnswerHead,
    /// What the request asks of its stream.
    pub stream: StreamParams,
    /// Prompt tokens of each completion.
    pub prompt_tokens: Vec<usize>,
    /// Completions per prompt.
    pub n: usize,
    /// When the request arrived, on the server's clock.
    pub arrived: Duration,
    /// When it was admitted.
    pub accepted: Duration,
    /// When its prompts were tokenized.
    pub tokenized: Duration,
    /// The caller's place in a trace.
    pub trace_parent: Option<TraceParent>,
    /// Its span, if that had to begin with it.
    pub span: Option<Arc<OpenSpan>>,
    /// Its id in the log; `None` for a request of this process.
    pub id: Option<RequestId>,
    /// The API key that it came with.
    pub key: Option<Arc<ApiKey>>,
}

/// Where requests are counted, traced and logged.
#[derive(Clone)]
pub struct Observers {
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// The server's clock.
    pub clock: Clock,
    /// Where spans go, if anywhere.
    pub telemetry: Option<Arc<Telemetry>>,
    /// Where its line goes when it ends.
    pub request_log: RequestLog,
}

/// How long an answer took.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerTimes {
    /// Until its first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// From the request's arrival to the end.
    pub total: Duration,
}

/// Where an answer's flushes come from.
pub enum FlushSource {
    /// The engine.
    Engine(CompletionFlushes),
    /// An upstream server.
    Upstream(FlushReceiver),
    /// An engine whose model is still to be loaded.
    Awaited(Box<AwaitedAnswer>),
    /// Nothing: it could not begin.
    Nowhere,
}

/// The counts that an upstream server reports.
#[derive(Debug, Clone)]
struct UpstreamCounts {
    usage: Usage,
    /// The members of its usage chunk, as JSON: its own counts and all other members.
    members: Option<String>,
}

/// Counts that grow with the answer.
#[derive(Debug, Clone, Default)]
struct Totals {
    /// An upstream server's own counts; they count instead of ours.
    reported: Option<Box<UpstreamCounts>>,
    /// Why completions have ended, in the order of their ends, by their names in metrics.
    reasons: Vec<&'static str>,
    ended: usize,
    completion_tokens: u64,
    cached_tokens: u64,
    reasoning_tokens: u64,
}

/// The server's side of one request from admission to its last flush.
/// Dropping it cancels what still runs.
pub struct ActiveRequest {
    admitted: AdmittedRequest,
    source: FlushSource,
    observers: Observers,
    /// The first completion's times, once it has ended.
    timings: CompletionTimings,
    totals: Totals,
    /// Sees what is handed on, such as for the store; most requests have none.
    observer: Option<Box<dyn FlushObserver>>,
    /// When the first flush with a token was handed on.
    first_flush: Option<Duration>,
    carriers: Carriers,
    /// Keeps its model in memory, where that may go.
    held: Option<Arc<dyn Send + Sync>>,
    /// Whether it goes on with the answer of a replica that has ended.
    is_takeover: bool,
}

impl ActiveRequest {
    /// A request whose flushes come from `source`.
    pub fn new(admitted: AdmittedRequest, source: FlushSource, observers: Observers) -> Self {
        if let Some(id) = &admitted.id {
            id.note_answer();
        }
        Self {
            admitted,
            source,
            observers,
            timings: CompletionTimings::default(),
            totals: Totals::default(),
            observer: None,
            first_flush: None,
            carriers: Carriers::default(),
            held: None,
            is_takeover: false,
        }
    }

    /// Notes that it goes on with the answer of a replica that has ended, under the `name` and time
    /// that its readers know.
    pub fn take_over(&mut self, name: Option<AnswerName>) {
        self.is_takeover = true;
        if let Some(AnswerName { id, created_s }) = name {
            (self.admitted.head.id, self.admitted.head.created_s) = (id, created_s);
        }
    }

    /// Shows `observer` every flush from here on.
    pub fn observe(&mut self, observer: Box<dyn FlushObserver>) {
        self.observer = Some(observer);
    }

    /// Counts its stream over HTTP until the guard is dropped.
    pub fn count_stream(&self) -> GaugeGuard {
        self.observers.metrics.open_stream(StreamCarrier::Http)
    }

    /// Notes what carries it to a reader.
    pub fn note_carrier(&mut self, carrier: StreamCarrier) {
        self.carriers.note(carrier);
    }

    /// Tells the scheduler what the reader of an answer with one completion has in hand; `None` if
    /// that is not known any more. Of several completions a reader reads one at a time, and which
    /// is not known.
    pub fn note_reader(&mut self, report: Option<ReaderReport>) {
        let is_one = self.completions() == 1;
        if let (true, FlushSource::Engine(flushes)) = (is_one, &mut self.source) {
            flushes.note_reader(report);
        }
    }

    /// What all parts of the answer share.
    pub fn head(&self) -> &AnswerHead {
        &self.admitted.head
    }

    /// What the request asks of its stream.
    pub fn stream(&self) -> StreamParams {
        self.admitted.stream
    }

    /// Completions of the answer.
    pub fn completions(&self) -> usize {
        self.admitted.prompt_tokens.len()
    }

    /// The prompt that completion `choice` goes on from, among those of `prompts`.
    pub fn prompt_of<'a>(&self, choice: usize, prompts: &'a [String]) -> &'a str {
        &prompts[choice / self.admitted.n]
    }

    /// The next flush; `None` after the last, or when the engine is gone.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Option<Flush>> {
        let mut flush = ready!(self.poll_source(context));
        if let Some(flush) = &mut flush {
            if let FlushSource::Upstream(_) = self.source {
                self.take_reported_usage(flush);
            }
            if self.totals.completion_tokens == 0 && flush.tokens > 0 {
                self.first_flush = Some(self.observers.clock.now());
            }
            self.totals.completion_tokens += u64::from(flush.tokens);
            if let Some(end) = &flush.end {
                self.note_end(flush.choice as usize, end);
            }
        }
        if self.observer.is_some() {
            ready!(self.poll_observer(context, flush.as_ref()));
        }
        Poll::Ready(flush)
    }

    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Flush>> {
        loop {
            let event = match &mut self.source {
                FlushSource::Engine(flushes) => return flushes.poll_recv(context),
                FlushSource::Upstream(flushes) => return flushes.poll_recv(context),
                FlushSource::Nowhere => return Poll::Ready(None),
                FlushSource::Awaited(awaited) => ready!(awaited.poll_event(context)),
            };
            match event {
                WaitEvent::News(progress) => {
                    let deltas = vec![Delta::Progress(progress)];
                    return Poll::Ready(Some(Flush { deltas, ..Flush::default() }));
                }
                WaitEvent::Begun(begun) => match *begun {
                    Ok(begun) => self.begin(begun),
                    Err(error) => {
                        self.source = FlushSource::Nowhere;
                        return Poll::Ready(Some(Flush::refused(error)));
                    }
                },
            }
        }
    }

    /// Its model is loaded, and its engine has it.
    fn begin(&mut self, begun: EngineAnswer) {
        self.admitted.prompt_tokens = begun.prompt_tokens;
        self.admitted.tokenized = begun.tokenized;
        self.held = begun.held;
        self.source = FlushSource::Engine(begun.flushes);
    }

    /// Keeps `model` in memory until its end.
    pub fn hold(&mut self, model: Option<Arc<dyn Send + Sync>>) {
        self.held = model;
    }

    fn poll_observer(&mut self, context: &mut Context<'_>, flush: Option<&Flush>) -> Poll<()> {
        let (usage, is_complete) = (self.usage(), self.is_complete());
        match (&mut self.observer, flush) {
            (Some(observer), Some(flush)) => observer.on_flush(flush),
            (Some(observer), None) if is_complete => return observer.poll_end(context, usage),
            _ => {}
        }
        Poll::Ready(())
    }

    /// [`Self::poll_flush`] for async callers.
    pub async fn next_flush(&mut self) -> Option<Flush> {
        std::future::poll_fn(|context| self.poll_flush(context)).await
    }

    /// The next flush if there is one already; the inner `None` is that of
    /// [`Self::next_flush`].
    pub fn ready_flush(&mut self) -> Option<Option<Flush>> {
        match self.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flush) => Some(flush),
            Poll::Pending => None,
        }
    }

    /// Whether every completion has ended.
    pub fn is_complete(&self) -> bool {
        self.totals.ended == self.completions()
    }

    /// Token counts so far.
    pub fn usage(&self) -> Usage {
        if let Some(reported) = &self.totals.reported {
            return reported.usage;
        }
        // Completions of one prompt share it, and it counts once.
        let prompts = self.admitted.prompt_tokens.iter().step_by(self.admitted.n);
        Usage {
            prompt_tokens: prompts.map(|&tokens| tokens as u64).sum(),
            cached_tokens: self.totals.cached_tokens,
            completion_tokens: self.totals.completion_tokens,
            reasoning_tokens: self.totals.reasoning_tokens,
        }
    }

    /// The members of the last chunk that carries counts, where they are more than
    /// [`Self::usage`]: an upstream server's own, and the timings if the request asks for them.
    pub fn usage_members(&self) -> Option<Map<String, Value>> {
        let reported = self.totals.reported.as_ref().and_then(|all| all.members.as_deref());
        let timings = self.stream().include_timings.then(|| self.timings());
        if reported.is_none() && timings.is_none() {
            return None;
        }
        let reported = reported.and_then(|json| serde_json::from_str(json).ok());
        let mut members: Map<String, Value> = reported.unwrap_or_default();
        members.entry("usage").or_insert_with(|| self.usage().json());
        members.extend(timings.map(|timings| ("loquent_timings".to_owned(), timings)));
        Some(members)
    }

    /// How long it took, by its first completion.
    pub fn times(&self) -> AnswerTimes {
        let arrived = self.admitted.arrived;
        let first = self.timings.first_token.unwrap_or(arrived);
        let last = self.timings.last_token.unwrap_or(first);
        AnswerTimes {
            prompt: first.saturating_sub(arrived),
            generation: last.saturating_sub(first),
            total: self.observers.clock.now().saturating_sub(arrived),
        }
    }

    /// The first completion's times.
    pub fn timings(&self) -> Value {
        timings_json(&self.admitted, &self.timings)
    }

    /// An upstream's report of its counts is a Usage, with an Other behind it that has the
    /// chunk as it came. Both end here: the records of an answer have counts where the request
    /// asks for them, whether or not the upstream sent them there.
    fn take_reported_usage(&mut self, flush: &mut Flush) {
        let Some(at) = flush.deltas.iter().position(|delta| matches!(delta, Delta::Usage { .. }))
        else {
            return;
        };
        let Some(usage) = Usage::of_delta(&flush.deltas.remove(at)) else { return };
        let members = match flush.deltas.get(at) {
            Some(Delta::Other { .. }) => match flush.deltas.remove(at) {
                Delta::Other { json, .. } => Some(json),
                _ => None,
            },
            _ => None,
        };
        self.totals.reported = Some(Box::new(UpstreamCounts { usage, members }));
    }

    /// Its line in the log, now that it has ended.
    fn take_line(&mut self) -> AnswerLine {
        let (now, arrived) = (self.observers.clock.now(), self.admitted.arrived);
        let first = self.timings.first_token.or(self.first_flush);
        // An answer that was broken off has not told when its last token came.
        let last = self.timings.last_token.unwrap_or(now);
        AnswerLine {
            request: self.admitted.id.take(),
            answer: std::mem::take(&mut self.admitted.head.id),
            model: std::mem::take(&mut self.admitted.head.model),
            key: self.admitted.key.take(),
            usage: self.usage(),
            first_token: first.map(|at| at.saturating_sub(arrived)),
            generation: first.map(|at| last.saturating_sub(at)),
            took: now.saturating_sub(arrived),
            carriers: self.carriers,
            ends: std::mem::take(&mut self.totals.reasons),
        }
    }

    fn note_end(&mut self, choice: usize, end: &End) {
        let totals = &mut self.totals;
        totals.ended += 1;
        totals.reasons.push(end.reason.label());
        totals.reasoning_tokens += u64::from(end.reasoning_tokens);
        if choice.is_multiple_of(self.admitted.n) {
            let cached = end.timings.admitted.map_or(0, |admitted| admitted.cached_tokens);
            totals.cached_tokens += u64::from(cached);
        }
        if choice == 0 {
            self.timings = end.timings.clone();
        }
        let AdmittedRequest { arrived, tokenized, .. } = self.admitted;
        let phases = Phases { arrived, tokenized, ended: self.observers.clock.now() };
        self.observers.metrics.on_end(phases, self.admitted.prompt_tokens[choice], end);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        for _ in self.totals.ended..self.completions() {
            self.totals.reasons.push("abort");
            self.observers.metrics.on_abort();
        }
        let span = self.admitted.span.take();
        if let Some(telemetry) = &self.observers.telemetry {
            let finished = Finished {
                span,
                parent: self.admitted.trace_parent.as_ref(),
                head: &self.admitted.head,
                reasons: &self.totals.reasons,
                usage: self.usage(),
                arrived: self.admitted.arrived,
                tokenized: self.admitted.tokenized,
                record: &self.timings,
                is_takeover: self.is_takeover,
            };
            finished.trace(telemetry);
        }
        let log = self.observers.request_log.clone();
        log.note_answer(|| self.take_line());
    }
}

/// The times of a finished answer for its last chunk, in µs since the request's arrival.
fn timings_json(request: &AdmittedRequest, timings: &CompletionTimings) -> Value {
    let since = |time: Duration| time.saturating_sub(request.arrived).as_micros() as u64;
    let maybe = |time: Option<Duration>| time.map(since);
    let admitted = timings.admitted.map(|admitted| admitted.at);
    let batch = timings.batch();
    let between = |from: Option<Duration>, to: Option<Duration>| {
        from.zip(to).map(|(from, to)| to.saturating_sub(from).as_micros() as u64)
    };
    json!({
        "request_id": request.head.id,
        "admitted_us": since(request.accepted),
        "tokenized_us": since(request.tokenized),
        "scheduled_us": maybe(admitted),
        "first_token_us": maybe(timings.first_token),
        "finished_us": maybe(timings.last_token),
        "tokenize_us": request.tokenized.saturating_sub(request.accepted).as_micros() as u64,
        "queue_us": between(Some(request.tokenized), admitted),
        "prefill_us": between(admitted, timings.first_token),
        "decode_us": between(timings.first_token, timings.last_token),
        "decode_batch_size_mean": batch.map(|batch| batch.rows_mean),
        "decode_batch_wait_us_mean": batch.map(|batch| batch.wait_mean.as_micros() as u64),
        "decode_batch_wait_us_max": batch.map(|batch| batch.wait_max.as_micros() as u64),
        "emit_us": timings.emits.iter().copied().map(since).collect::<Vec<_>>(),
        "flush_us": timings.flushes.iter()
            .map(|&(tokens, at)| [u64::from(tokens), since(at)])
            .collect::<Vec<_>>(),
    })
}
