//! Prometheus metrics. Those that vLLM has too have its names apart from the prefix where possible,
//! so that dashboards port.

mod busy;
mod carrier;
mod engine_load;
mod keys;
mod latency;
mod names;
pub mod sketch;
mod snapshot;
mod stages;
pub mod upstream_stats;
mod upstreams;

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::remote::RemoteStages;
use loquent_infer::request::Step;
use prometheus::core::Collector;
use prometheus::local::{LocalHistogram, LocalIntCounter};
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

use crate::auth::ApiKeys;
use crate::clock::Clock;
use crate::flush::End;
use busy::{BusyGuard, BusyTime};
pub use carrier::{Carriers, StreamCarrier};
pub use engine_load::EngineLoad;
use engine_load::LoadStats;
use keys::KeyCollector;
use latency::{Latency, LocalLatency};
pub use names::MetricNames;
pub use snapshot::{LatencySnapshots, MetricsSnapshot};
use stages::StageCollector;
pub use upstreams::UpstreamSeries;
use upstreams::{RegisteredUpstreams, UpstreamCollector};

/// Buckets for latencies in seconds, 100 µs to 60 s: fine in the range of token gaps (5 to 300 ms).
const LATENCY_S: &[f64] = &[
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Buckets for counts of rows and tokens.
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// Buckets for the tokens of a whole prompt or answer.
const LENGTHS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5];

/// All metrics of a server. Observations are atomic operations without a lock.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    engine: EngineMetrics,
    requests: RequestMetrics,
    streams: StreamMetrics,
    delivery: DeliveryMetrics,
    upstreams: UpstreamCollector,
}

/// Work of the engine thread.
#[derive(Debug)]
struct EngineMetrics {
    load: LoadStats,
    losses: IntCounter,
    recoveries: IntCounter,
    outage_time: Counter,
    generation_tokens: IntCounter,
    embedding_tokens: IntCounter,
    embedding_inputs: IntCounter,
    prefill_tokens: IntCounter,
    prefix_restored: IntCounter,
    prefix_saved: IntCounter,
    steps: IntCounter,
    step_time: Latency,
    step_rows: Histogram,
    step_tokens: Histogram,
    batch_wait: Latency,
    upstream: BusyTime,
}

/// Ends of requests, and durations of their phases.
#[derive(Debug)]
struct RequestMetrics {
    prompt_tokens: IntCounter,
    success: IntCounterVec,
    refused: IntCounterVec,
    batch_lines: IntCounterVec,
    ttft: Latency,
    e2e: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt_length: Histogram,
    answer_length: Histogram,
    forecast_error: Histogram,
}

/// Streams, from the engine's steps to the connections.
#[derive(Debug)]
struct StreamMetrics {
    itl: Latency,
    icl: Latency,
    /// In the order of [`StreamCarrier::ALL`].
    open: [IntGauge; 3],
    hand_over: Histogram,
    flushes: IntCounter,
    flush_tokens: Histogram,
    pauses: IntCounter,
}

/// QUIC and resumable answers.
#[derive(Debug)]
struct DeliveryMetrics {
    quic_connections: IntGauge,
    active_paths: IntGauge,
    kept_bytes: IntGauge,
    resumes: IntCounterVec,
    datagrams: IntCounter,
    datagram_bytes: IntCounter,
    redundant_bytes: IntCounter,
    fallbacks: IntCounter,
    client_ack: Histogram,
}

/// Increments a gauge until dropped.
#[derive(Debug)]
pub struct GaugeGuard(IntGauge);

impl GaugeGuard {
    fn count(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts a completion that an upstream server computes, until dropped.
#[derive(Debug)]
pub struct UpstreamGuard {
    _running: GaugeGuard,
    _busy: BusyGuard,
}

/// Token gaps and flushes of many streams, collected without touching the shared metrics, which are
/// updated once per step instead of once per token.
#[derive(Debug)]
pub struct LocalMetrics {
    itl: LocalLatency,
    icl: LocalLatency,
    flushes: LocalIntCounter,
    flush_tokens: LocalHistogram,
}

impl LocalMetrics {
    /// Records the gap between two tokens of one completion.
    pub fn on_token_gap(&mut self, gap: Duration) {
        self.itl.observe(gap.as_secs_f64());
    }

    /// Records a flush of `tokens`, sent `gap` after the completion's previous one.
    pub fn on_flush(&mut self, tokens: u32, gap: Option<Duration>) {
        self.flushes.inc();
        self.flush_tokens.observe(f64::from(tokens));
        gap.into_iter().for_each(|gap| self.icl.observe(gap.as_secs_f64()));
    }

    /// Adds the local observations to the shared metrics.
    pub fn publish(&mut self) {
        self.itl.publish();
        self.icl.publish();
        self.flushes.flush();
        self.flush_tokens.flush();
    }
}

/// Times of a finished request's phases, on the server's clock.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    /// Arrival of the request.
    pub arrived: Duration,
    /// End of tokenizing its prompt.
    pub tokenized: Duration,
    /// Time when its last byte was passed to the connection.
    pub ended: Duration,
}

/// Creates and registers metrics.
struct Registrar(Registry);

impl Registrar {
    fn register<C: prometheus::core::Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<C>,
    ) -> C {
        // Names and options are constants: they are valid in every server or in none.
        let collector = made.expect("metric options are constants");
        self.0.register(Box::new(collector.clone())).expect("metric names are distinct");
        collector
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.register(IntGauge::new(name, help))
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), &[label]))
    }

    /// Creates one gauge per transport.
    fn by_transport(&self, name: &str, help: &str) -> [IntGauge; 3] {
        let gauges = self.register(IntGaugeVec::new(Opts::new(name, help), &["transport"]));
        StreamCarrier::ALL.map(|transport| gauges.with_label_values(&[transport.label()]))
    }

    fn fine_latency(&self, name: &str, help: &str) -> Latency {
        Latency::new(self.latency(name, help))
    }

    fn latency(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(LATENCY_S.into());
        self.register(Histogram::with_opts(options))
    }

    fn length(&self, name: &str, help: &str) -> Histogram {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(LENGTHS.into())))
    }

    fn count(&self, name: &str, help: &str) -> Histogram {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(COUNTS.into())))
    }
}

impl EngineMetrics {
    fn new(to: &Registrar) -> Self {
        let kv_usage = Gauge::new("kv_cache_usage_perc", "Share of KV cells in use, 0 to 1.");
        let preempted = "Completions preempted because the KV cache was full.";
        let resting = "Completions that rest because their readers have text in hand.";
        let step_time = "Duration of a native decode with its sampling.";
        let shown = [
            to.gauge("num_requests_running", "Completions in the batch."),
            to.gauge("num_requests_resting", resting),
            to.gauge("num_requests_waiting", "Completions queued for the batch."),
            to.gauge("kv_cells", "KV cells, one per token position, used or not."),
        ];
        let counters = [
            ("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
            ("prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
            ("num_preemptions_total", preempted),
            ("spec_decode_num_draft_tokens_total", "Draft tokens computed."),
            ("spec_decode_num_accepted_tokens_total", "Draft tokens accepted."),
        ];
        let counters = counters.map(|(name, help)| to.counter(name, help));
        let lost = "Times that the engine, or a stage, was lost with all it held.";
        let recovered = "Times that it came back, and answers went on.";
        let restored = "Prompt tokens read from the prefix cache on disk.";
        let saved = "Tokens written to the prefix cache on disk.";
        let outage_time = Counter::new("engine_outage_seconds_total", "Time without the engine.");
        Self {
            load: LoadStats::new(shown, to.register(kv_usage), counters),
            losses: to.counter("engine_losses_total", lost),
            recoveries: to.counter("engine_recoveries_total", recovered),
            outage_time: to.register(outage_time),
            generation_tokens: to.counter("generation_tokens_total", "Tokens generated."),
            embedding_tokens: to.counter("embedding_tokens_total", "Tokens of embedded inputs."),
            embedding_inputs: to.counter("embedding_inputs_total", "Inputs embedded."),
            prefill_tokens: to.counter("prefill_tokens_total", "Prompt tokens computed."),
            prefix_restored: to.counter("prefix_cache_restored_tokens_total", restored),
            prefix_saved: to.counter("prefix_cache_saved_tokens_total", saved),
            steps: to.counter("engine_steps_total", "Native decodes."),
            step_time: to.fine_latency("engine_step_seconds", step_time),
            step_rows: to.count("decode_batch_size", "Sequences in a native decode."),
            step_tokens: to.length("engine_step_tokens", "Tokens in a native decode."),
            batch_wait: to
                .fine_latency("decode_batch_wait_seconds", "Sequence ready to its native decode."),
            upstream: BusyTime::default(),
        }
    }
}

impl RequestMetrics {
    fn new(to: &Registrar) -> Self {
        let (success, refused) =
            ("Completions by finish reason.", "Requests answered with an error, by status.");
        let lines = "Lines of batches, by whether they got an answer or an error.";
        let first_token = "Request's arrival to its first token.";
        let wrong = "First forecast of a first token, earlier or later than that came.";
        Self {
            prompt_tokens: to
                .counter("prompt_tokens_total", "Prompt tokens of finished completions."),
            success: to.counters("request_success_total", success, "finished_reason"),
            refused: to.counters("request_refused_total", refused, "status"),
            batch_lines: to.counters("batch_lines_total", lines, "outcome"),
            ttft: to.fine_latency("time_to_first_token_seconds", first_token),
            e2e: to.latency("e2e_request_latency_seconds", "Request's arrival to its last byte."),
            queue: to.latency("request_queue_time_seconds", "Tokenized to admitted to the batch."),
            prefill: to
                .latency("request_prefill_time_seconds", "Admitted to the batch to first token."),
            decode: to.latency("request_decode_time_seconds", "First token to last token."),
            prompt_length: to.length("request_prompt_tokens", "Prompt tokens of a completion."),
            answer_length: to.length("request_generation_tokens", "Tokens of an answer."),
            forecast_error: to.latency("time_to_first_token_forecast_error_seconds", wrong),
        }
    }
}

impl StreamMetrics {
    fn new(to: &Registrar) -> Self {
        let (tokens, flushes) =
            ("Between two tokens of a completion.", "Between two flushes of a completion.");
        Self {
            itl: to.fine_latency("inter_token_latency_seconds", tokens),
            icl: to.fine_latency("inter_chunk_latency_seconds", flushes),
            open: to.by_transport("open_streams", "Streamed answers being read, by transport."),
            hand_over: to.latency("hand_over_seconds", "A step's commit to its delivery."),
            flushes: to.counter("stream_flushes_total", "Flushes handed to connections."),
            flush_tokens: to.count("stream_flush_tokens", "Tokens in one flush."),
            pauses: to.counter("stream_pauses_total", "Completions paused for a slow reader."),
        }
    }
}

impl DeliveryMetrics {
    fn new(to: &Registrar) -> Self {
        let resumes = "Readers that resumed an answer, by whether it was found.";
        let redundant = "Log bytes in datagrams that had been sent before.";
        let fallbacks = "Answers sent over the reliable stream, as datagrams did not arrive.";
        let acknowledged = "A flush in the log to its acknowledgement by the reader.";
        Self {
            quic_connections: to.gauge("quic_connections", "Open QUIC connections."),
            active_paths: to.gauge("delivery_active_paths", "Readers of resumable answers."),
            kept_bytes: to.gauge("delivery_kept_bytes", "Bytes reserved for answers' logs."),
            resumes: to.counters("delivery_resumes_total", resumes, "result"),
            datagrams: to.counter("delivery_datagrams_total", "Datagrams sent."),
            datagram_bytes: to
                .counter("delivery_datagram_bytes_total", "Bytes of frames in datagrams sent."),
            redundant_bytes: to.counter("delivery_redundant_bytes_total", redundant),
            fallbacks: to.counter("delivery_fallbacks_total", fallbacks),
            client_ack: to.latency("delivery_client_ack_seconds", acknowledged),
        }
    }
}

impl Metrics {
    /// Creates metrics without any counts.
    pub fn new() -> Self {
        let registry = Registry::new_custom(Some("loquent".into()), None);
        let registrar = Registrar(registry.expect("the prefix is a constant"));
        Self {
            engine: EngineMetrics::new(&registrar),
            requests: RequestMetrics::new(&registrar),
            streams: StreamMetrics::new(&registrar),
            delivery: DeliveryMetrics::new(&registrar),
            upstreams: UpstreamCollector::default(),
            registry: registrar.0,
        }
    }

    /// Adds the statistics of a split model's stages to the output of [`Self::render`].
    pub fn watch_stages(&self, stages: Arc<dyn RemoteStages>) {
        let collector = StageCollector::new(stages);
        self.registry.register(Box::new(collector)).expect("a server has one engine");
    }

    /// Adds the statistics of an upstream's servers to the output of [`Self::render`].
    pub fn watch_upstream(&self, upstream: Arc<dyn UpstreamSeries>) {
        if self.upstreams.add(upstream) {
            let registered = RegisteredUpstreams::new(self.upstreams.clone());
            self.registry.register(Box::new(registered)).expect("they are registered once");
        }
    }

    /// Adds the usage by the owners of `keys`, by name, to the output of [`Self::render`].
    pub fn watch_keys(&self, keys: ApiKeys) {
        let collector = KeyCollector::new(keys);
        self.registry.register(Box::new(collector)).expect("a server has one set of keys");
    }

    /// Adds the series that `models` collects per model to the output of [`Self::render`].
    pub fn watch_models(&self, models: Box<dyn Collector>) {
        self.registry.register(models).expect("a server has one list of models");
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.render_as(MetricNames::Loquent, "")
    }

    /// Returns all metrics under `names`; `model` is the name of the server's model.
    pub fn render_as(&self, names: MetricNames, model: &str) -> String {
        let families = names.apply(self.registry.gather(), model);
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }

    /// Returns the load of a new engine.
    pub fn engine_load(&self) -> EngineLoad {
        EngineLoad::new(self.engine.load.clone())
    }

    /// Records prompt tokens whose keys and values came from the prefix cache on disk.
    pub fn on_prefix_restored(&self, tokens: u32) {
        self.engine.prefix_restored.inc_by(tokens.into());
    }

    /// Records tokens whose keys and values were written to the prefix cache on disk.
    pub fn on_prefix_saved(&self, tokens: u32) {
        self.engine.prefix_saved.inc_by(tokens.into());
    }

    /// Records one step of an engine.
    pub fn on_step(&self, step: &Step) {
        let took = step.finished.saturating_sub(step.started);
        self.engine.steps.inc();
        self.engine.prefill_tokens.inc_by(step.prefill_tokens.into());
        self.engine.step_time.observe(took.as_secs_f64());
        self.engine.step_rows.observe(f64::from(step.rows));
        let tokens = step.events.iter().filter(|event| event.token.is_some()).count();
        self.engine.generation_tokens.inc_by(tokens as u64);
        self.engine.step_tokens.observe(f64::from(step.rows - step.prefills + step.prefill_tokens));
        // One update of the shared histogram for the whole step, however many sequences it has.
        let mut waits = self.engine.batch_wait.local();
        step.events.iter().for_each(|event| waits.observe(event.wait.as_secs_f64()));
        waits.publish();
    }

    /// Records that the engine and its state were lost.
    pub fn on_engine_lost(&self) {
        self.engine.losses.inc();
    }

    /// Records that the engine returned after `gone`.
    pub fn on_engine_back(&self, gone: Duration) {
        self.engine.recoveries.inc();
        self.engine.outage_time.inc_by(gone.as_secs_f64());
    }

    /// Records a batch of embeddings: its tokens, and the inputs that it finished.
    pub fn on_embeddings(&self, tokens: usize, inputs: usize) {
        self.engine.embedding_tokens.inc_by(tokens as u64);
        self.engine.embedding_inputs.inc_by(inputs as u64);
    }

    /// Returns local metrics for the task that delivers all streams.
    pub fn local(&self) -> LocalMetrics {
        LocalMetrics {
            itl: self.streams.itl.local(),
            icl: self.streams.icl.local(),
            flushes: self.streams.flushes.local(),
            flush_tokens: self.streams.flush_tokens.local(),
        }
    }

    /// Records the time a step's results took to reach delivery.
    pub fn on_hand_over(&self, took: Duration) {
        self.streams.hand_over.observe(took.as_secs_f64());
    }

    /// Records the gap between two tokens of one completion.
    pub fn on_token_gap(&self, gap: Duration) {
        self.streams.itl.observe(gap.as_secs_f64());
    }

    /// Records a flush of `tokens`, sent `gap` after the completion's previous one.
    pub fn on_flush(&self, tokens: u32, gap: Option<Duration>) {
        self.streams.flushes.inc();
        self.streams.flush_tokens.observe(f64::from(tokens));
        gap.into_iter().for_each(|gap| self.streams.icl.observe(gap.as_secs_f64()));
    }

    /// Records the tokens of an answer that an upstream server has computed.
    pub fn on_upstream_tokens(&self, prompt: u64, completion: u64) {
        self.requests.prompt_tokens.inc_by(prompt);
        self.engine.generation_tokens.inc_by(completion);
    }

    /// Counts a completion that an upstream server computes, until the guard is dropped.
    pub fn upstream_completion(&self, clock: Clock) -> UpstreamGuard {
        let running = GaugeGuard::count(&self.engine.load.running);
        UpstreamGuard { _running: running, _busy: self.engine.upstream.begin(clock) }
    }

    /// Returns the time during which an upstream server computed anything until `now`.
    pub fn upstream_busy(&self, now: Duration) -> Duration {
        self.engine.upstream.until(now)
    }

    /// Records the error of the first forecast of a completion's first token.
    pub fn on_forecast_error(&self, error: Duration) {
        self.requests.forecast_error.observe(error.as_secs_f64());
    }

    /// Records a completion paused for its reader.
    pub fn on_pause(&self) {
        self.streams.pauses.inc();
    }

    /// Counts an open QUIC connection until the guard is dropped.
    pub fn quic_connection(&self) -> GaugeGuard {
        GaugeGuard::count(&self.delivery.quic_connections)
    }

    /// Counts a reader of a resumable answer until the guards are dropped.
    pub fn active_path(&self, transport: StreamCarrier) -> [GaugeGuard; 2] {
        [GaugeGuard::count(&self.delivery.active_paths), self.open_stream(transport)]
    }

    /// Counts a streamed answer that is being read, until the guard is dropped.
    pub fn open_stream(&self, transport: StreamCarrier) -> GaugeGuard {
        GaugeGuard::count(&self.streams.open[transport as usize])
    }

    /// Records that `more` bytes (fewer, if negative) are reserved for logs.
    pub fn on_kept_bytes(&self, more: i64) {
        self.delivery.kept_bytes.add(more);
    }

    /// Records a reader that resumes an answer, and whether the answer was found.
    pub fn on_resume(&self, found: bool) {
        self.delivery.resumes.with_label_values(&[if found { "found" } else { "gone" }]).inc();
    }

    /// Records a datagram of `bytes`, of which `redundant` log bytes had been sent before.
    pub fn on_datagram(&self, bytes: usize, redundant: u64) {
        self.delivery.datagrams.inc();
        self.delivery.datagram_bytes.inc_by(bytes as u64);
        self.delivery.redundant_bytes.inc_by(redundant);
    }

    /// Records an answer that falls back to the reliable stream (S-4.4).
    pub fn on_fallback(&self) {
        self.delivery.fallbacks.inc();
    }

    /// Records the time from a flush to its acknowledgement by the reader.
    pub fn on_client_ack(&self, took: Duration) {
        self.delivery.client_ack.observe(took.as_secs_f64());
    }

    /// Records a request that was answered with the error `status`.
    pub fn on_refusal(&self, status: u16) {
        self.requests.refused.with_label_values(&[&status.to_string()]).inc();
    }

    /// Records a line of a batch that has got its answer, or an error.
    pub fn on_batch_line(&self, is_answered: bool) {
        let outcome = if is_answered { "answer" } else { "error" };
        self.requests.batch_lines.with_label_values(&[outcome]).inc();
    }

    /// Records a completion whose client left.
    pub fn on_abort(&self) {
        self.requests.success.with_label_values(&["abort"]).inc();
    }

    /// Records the first token of a completion, `ttft` after its request arrived.
    pub fn on_first_token(&self, ttft: Duration) {
        self.requests.ttft.observe(ttft.as_secs_f64());
    }

    /// Records the end of a completion, with the latencies of its phases.
    pub fn on_end(&self, phases: Phases, prompt_tokens: usize, end: &End) {
        self.requests.prompt_tokens.inc_by(prompt_tokens as u64);
        self.requests.success.with_label_values(&[end.reason.label()]).inc();
        self.requests.prompt_length.observe(prompt_tokens as f64);
        self.requests.answer_length.observe(f64::from(end.completion_tokens));
        let observe = |histogram: &Histogram, from: Duration, to: Option<Duration>| {
            if let Some(to) = to {
                histogram.observe(to.saturating_sub(from).as_secs_f64());
            }
        };
        observe(&self.requests.e2e, phases.arrived, Some(phases.ended));
        if let Some(admitted) = end.timings.admitted {
            observe(&self.requests.queue, phases.tokenized, Some(admitted.at));
            observe(&self.requests.prefill, admitted.at, end.timings.first_token);
        }
        if let Some(first) = end.timings.first_token {
            observe(&self.requests.decode, first, end.timings.last_token);
        }
    }

    /// Returns the current values of the metrics.
    pub fn read(&self) -> MetricsSnapshot {
        let Self { engine, requests, streams, delivery, .. } = self;
        let resumes = |result| delivery.resumes.with_label_values(&[result]).get();
        let (steps, step_seconds) = engine.step_time.count_and_sum();
        MetricsSnapshot {
            running: engine.load.running.get(),
            waiting: engine.load.waiting.get(),
            kv_usage: engine.load.kv_usage.get(),
            streams: streams.open.each_ref().map(IntGauge::get),
            delivered_tokens: streams.flush_tokens.get_sample_sum(),
            prefill_tokens: engine.prefill_tokens.get(),
            steps,
            step_seconds,
            step_rows: engine.step_rows.get_sample_sum(),
            prefix_queries: engine.load.prefix_queries.get(),
            prefix_hits: engine.load.prefix_hits.get(),
            ended: sum(&requests.success),
            refused: sum(&requests.refused),
            pauses: streams.pauses.get(),
            preemptions: engine.load.preemptions.get(),
            resumes: [resumes("found"), resumes("gone")],
            fallbacks: delivery.fallbacks.get(),
            datagram_bytes: delivery.datagram_bytes.get(),
            redundant_bytes: delivery.redundant_bytes.get(),
            latencies: self.read_latencies(),
        }
    }

    fn read_latencies(&self) -> LatencySnapshots {
        LatencySnapshots {
            ttft: self.requests.ttft.read(),
            itl: self.streams.itl.read(),
            icl: self.streams.icl.read(),
            step: self.engine.step_time.read(),
            wait: self.engine.batch_wait.read(),
        }
    }
}

/// Returns the sum of a counter's series.
fn sum(counters: &IntCounterVec) -> u64 {
    let families = counters.collect();
    let series = families.iter().flat_map(|family| family.get_metric());
    series.map(|metric| metric.get_counter().get_value() as u64).sum()
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
