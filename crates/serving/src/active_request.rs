//! A request in progress: its flushes as they arrive, with their counts and times.

use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use loquent_infer::reading::ReaderReport;
use loquent_infer::tenant::TenantId;
use loquent_proto::Delta;
use serde_json::{Map, Value, json};

use crate::answer_times::AnswerTimes;
use crate::api::head::{AnswerHead, AnswerName};
use crate::api::request::{Request, StreamParams};
use crate::clock::Clock;
use crate::flush::{CompletionTimings, End, Flush, FlushObserver};
use crate::flush_channel::FlushReceiver;
use crate::identity::ApiKey;
use crate::loading_answer::{EngineAnswer, LoadingAnswer, WaitEvent};
use crate::metrics::{Carriers, GaugeGuard, Metrics, Phases, StreamCarrier};
use crate::otel::{OpenSpan, Telemetry};
use crate::output::CompletionFlushes;
use crate::request_log::{AnswerLine, RequestId, RequestLog};
use crate::request_spans::Finished;
use crate::trace_context::TraceParent;
use crate::usage::Usage;

/// Parameters and times of an admitted request.
pub struct AdmittedRequest {
    /// Members common to all parts of the answer.
    pub head: AnswerHead,
    /// Parameters of the stream.
    pub stream: StreamParams,
    /// Prompt tokens of each completion.
    pub prompt_tokens: Vec<usize>,
    /// Completions per prompt.
    pub n: usize,
    /// Arrival of the request, on the server's clock.
    pub arrived: Duration,
    /// Time of the admission.
    pub accepted: Duration,
    /// Time when the prompts were tokenized.
    pub tokenized: Duration,
    /// The caller's trace context.
    pub trace_parent: Option<TraceParent>,
    /// Span of the request, if it had to begin together with it.
    pub span: Option<Arc<OpenSpan>>,
    /// Id of the request in the log; `None` for a request from within this process.
    pub id: Option<RequestId>,
    /// API key of the request.
    pub key: Option<Arc<ApiKey>>,
    /// Tenant of the request.
    pub tenant: TenantId,
}

/// Metrics, traces and logs of requests.
#[derive(Clone)]
pub struct Observers {
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// The server's clock.
    pub clock: Clock,
    /// Exporter of spans, if any.
    pub telemetry: Option<Arc<Telemetry>>,
    /// Log for the request's line when it ends.
    pub request_log: RequestLog,
}

/// Source of an answer's flushes.
pub enum FlushSource {
    /// The engine.
    Engine(CompletionFlushes),
    /// An upstream server.
    Upstream(FlushReceiver),
    /// An engine whose model still has to be loaded.
    Awaited(Box<LoadingAnswer>),
    /// None: the answer could not begin.
    Nowhere,
}

/// Counts reported by an upstream server.
#[derive(Debug, Clone)]
struct UpstreamCounts {
    usage: Usage,
    /// Members of its usage chunk, as JSON: its own counts and all other members.
    members: Option<String>,
}

/// Counts that grow with the answer.
#[derive(Debug, Clone, Default)]
struct Totals {
    /// The upstream server's own counts, which replace those of this server.
    reported: Option<Box<UpstreamCounts>>,
    /// Reasons why completions have ended, in the order of their ends, by their names in metrics.
    reasons: Vec<&'static str>,
    /// Completions that have a token.
    begun: Vec<u32>,
    ended: usize,
    completion_tokens: u64,
    cached_tokens: u64,
    reasoning_tokens: u64,
}

/// The server's side of one request from admission to its last flush. Dropping it cancels the
/// completions that still run.
pub struct ActiveRequest {
    admitted: AdmittedRequest,
    source: FlushSource,
    observers: Observers,
    /// Times of the first completion, once it has ended.
    timings: CompletionTimings,
    totals: Totals,
    /// Observer of the flushes, such as for the store; most requests have none.
    observer: Option<Box<dyn FlushObserver>>,
    /// Time of the first flush with a token.
    first_flush: Option<Duration>,
    carriers: Carriers,
    /// Keeps the model in memory, if it can be unloaded.
    held: Option<Arc<dyn Send + Sync>>,
    /// True if the request continues the answer of a replica that has ended.
    is_takeover: bool,
}

impl ActiveRequest {
    /// Creates a request whose flushes come from `source`.
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

    /// Records that the request continues the answer of a replica that has ended, under the `name`
    /// and creation time that its readers know.
    pub fn take_over(&mut self, name: Option<AnswerName>) {
        self.is_takeover = true;
        if let Some(AnswerName { id, created_s }) = name {
            (self.admitted.head.id, self.admitted.head.created_s) = (id, created_s);
        }
    }

    /// Passes every flush from now on to `observer`.
    pub fn observe(&mut self, observer: Box<dyn FlushObserver>) {
        self.observer = Some(observer);
    }

    /// Counts the request's stream over HTTP until the guard is dropped.
    pub fn count_stream(&self) -> GaugeGuard {
        self.observers.metrics.open_stream(StreamCarrier::Http)
    }

    /// Records the carrier of the answer to a reader.
    pub fn note_carrier(&mut self, carrier: StreamCarrier) {
        self.carriers.note(carrier);
    }

    /// Reports the reader's buffered tokens to the scheduler, for an answer with one completion;
    /// `None` if they are no longer known. For several completions the report is ignored: a reader
    /// reads one at a time, and which one is unknown.
    pub fn note_reader(&mut self, report: Option<ReaderReport>) {
        let is_one = self.completions() == 1;
        if let (true, FlushSource::Engine(flushes)) = (is_one, &mut self.source) {
            flushes.note_reader(report);
        }
    }

    /// Returns the tenant whose request it is.
    pub fn tenant(&self) -> TenantId {
        self.admitted.tenant
    }

    /// Returns the members common to all parts of the answer.
    pub fn head(&self) -> &AnswerHead {
        &self.admitted.head
    }

    /// Returns the parameters of the stream.
    pub fn stream(&self) -> StreamParams {
        self.admitted.stream
    }

    /// Returns the number of completions of the answer.
    pub fn completions(&self) -> usize {
        self.admitted.prompt_tokens.len()
    }

    /// Returns the prompt of completion `choice`, among `prompts`.
    pub fn prompt_of<'a>(&self, choice: usize, prompts: &'a [String]) -> &'a str {
        &prompts[choice / self.admitted.n]
    }

    /// Polls for the next flush; `None` after the last, or when the engine is gone.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Option<Flush>> {
        let mut flush = ready!(self.poll_source(context));
        if let Some(flush) = &mut flush {
            if let FlushSource::Upstream(_) = self.source {
                self.take_reported_usage(flush);
            }
            if flush.tokens > 0 && !self.totals.begun.contains(&flush.choice) {
                self.note_begin(flush);
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

    /// Switches to the engine that has begun the answer, once the model is loaded.
    fn begin(&mut self, begun: EngineAnswer) {
        self.admitted.prompt_tokens = begun.prompt_tokens;
        self.admitted.tokenized = begun.tokenized;
        self.held = begun.held;
        self.source = FlushSource::Engine(begun.flushes);
    }

    /// Keeps `model` in memory until the request ends.
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

    /// Returns the next flush if it is already available; the inner `None` is that of
    /// [`Self::next_flush`].
    pub fn ready_flush(&mut self) -> Option<Option<Flush>> {
        match self.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flush) => Some(flush),
            Poll::Pending => None,
        }
    }

    /// Returns true if every completion has ended.
    pub fn is_complete(&self) -> bool {
        self.totals.ended == self.completions()
    }

    /// Returns the token counts so far.
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

    /// Returns the members of the last chunk with counts if they are more than [`Self::usage`]: an
    /// upstream server's own, and the timings if the request asks for them.
    pub fn usage_members(&self) -> Option<Map<String, Value>> {
        let reported = self.totals.reported.as_ref().and_then(|all| all.members.as_deref());
        let timings = self.timing_members();
        if reported.is_none() && timings.is_empty() {
            return None;
        }
        let reported = reported.and_then(|json| serde_json::from_str(json).ok());
        let mut members: Map<String, Value> = reported.unwrap_or_default();
        members.entry("usage").or_insert_with(|| self.usage().json());
        members.extend(timings);
        Some(members)
    }

    /// Returns the timings that the request asks for, by the names of their members: this server's,
    /// as part of the counts, and llama-server's.
    pub fn timing_members(&self) -> Map<String, Value> {
        let asked = self.stream();
        let own = asked.include_timings.then(|| ("loquent_timings".to_owned(), self.timings()));
        let llama = || ("timings".to_owned(), self.times().llama_timings(&self.usage()));
        let llama = asked.timings.then(llama);
        own.into_iter().chain(llama).collect()
    }

    /// Returns the durations of the answer, measured on its first completion.
    pub fn times(&self) -> AnswerTimes {
        self.times_of(&self.timings)
    }

    /// Returns the token counts of completion `choice`, which has ended.
    pub fn usage_of(&self, choice: usize, end: &End) -> Usage {
        let cached = end.timings.admitted.map_or(0, |admitted| admitted.cached_tokens);
        Usage {
            prompt_tokens: self.admitted.prompt_tokens[choice] as u64,
            cached_tokens: cached.into(),
            completion_tokens: end.completion_tokens.into(),
            reasoning_tokens: end.reasoning_tokens.into(),
        }
    }

    /// Returns the durations of the answer, measured on the completion with these `timings`.
    pub fn times_of(&self, timings: &CompletionTimings) -> AnswerTimes {
        let arrived = self.admitted.arrived;
        let first = timings.first_token.unwrap_or(arrived);
        let last = timings.last_token.unwrap_or(first);
        AnswerTimes {
            prompt: first.saturating_sub(arrived),
            generation: last.saturating_sub(first),
            total: self.observers.clock.now().saturating_sub(arrived),
        }
    }

    /// Returns the times of the first completion.
    pub fn timings(&self) -> Value {
        timings_json(&self.admitted, &self.timings)
    }

    /// Removes an upstream's report of its counts from a flush: a Usage, followed by an Other with
    /// the chunk as it came. Both are consumed here: the records of an answer have counts where the
    /// request asks for them, whether or not the upstream sent them there.
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

    /// Builds the request's log line, now that it has ended.
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

    /// Records the first token of a completion.
    fn note_begin(&mut self, flush: &Flush) {
        self.totals.begun.push(flush.choice);
        let now = self.observers.clock.now();
        self.first_flush.get_or_insert(now);
        // A completion that comes at once has told when its first token came.
        let told = flush.end.as_ref().and_then(|end| end.timings.first_token);
        let ttft = told.unwrap_or(now).saturating_sub(self.admitted.arrived);
        self.observers.metrics.on_first_token(ttft);
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

/// Returns the times of a finished answer for its last chunk, in µs since the request's arrival.
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

/// Returns the description of an answer to `request` before its prompts are tokenized.
pub fn admitted_request(
    request: &Request,
    head: AnswerHead,
    arrived: Duration,
    accepted: Duration,
) -> AdmittedRequest {
    AdmittedRequest {
        head,
        stream: request.stream.unwrap_or_default(),
        prompt_tokens: vec![0; request.choices()],
        n: request.n as usize,
        arrived,
        accepted,
        tokenized: accepted,
        trace_parent: request.trace_parent.clone(),
        span: None,
        id: request.id.clone(),
        key: request.identity.key.clone(),
        tenant: request.identity.tenant,
    }
}
