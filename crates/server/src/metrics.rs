//! Prometheus metrics, with vLLM's names where vLLM has one, so that dashboards port.

mod stages;

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::remote::RemoteStages;
use loquent_infer::request::Step;
use loquent_infer::scheduler::Load;
use prometheus::local::{LocalHistogram, LocalIntCounter};
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};

use crate::flush::End;
use stages::StageCollector;

/// Buckets for latencies in seconds: 100 µs to 60 s.
const LATENCY_S: &[f64] = &[
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Buckets for counts of rows and tokens.
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// All metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    kv_usage: Gauge,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    preemptions: IntCounter,
    draft_tokens: IntCounter,
    accepted_tokens: IntCounter,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    success: IntCounterVec,
    refused: IntCounterVec,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    steps: IntCounter,
    step_time: Histogram,
    step_rows: Histogram,
    batch_wait: Histogram,
    hand_over: Histogram,
    flushes: IntCounter,
    flush_tokens: Histogram,
    pauses: IntCounter,
    delivery: DeliveryMetrics,
}

/// Of QUIC and of kept answers.
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

/// Counts a path to a reader until it is dropped.
#[derive(Debug)]
pub struct ActivePath(IntGauge);

impl ActivePath {
    fn count(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for ActivePath {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Gaps and flushes of many streams, noted together: what is shared is changed once for a
/// step, not for each of its tokens.
#[derive(Debug)]
pub struct LocalMetrics {
    itl: LocalHistogram,
    flushes: LocalIntCounter,
    flush_tokens: LocalHistogram,
}

impl LocalMetrics {
    /// Notes the gap between two tokens of one completion.
    pub fn on_token_gap(&self, gap: Duration) {
        self.itl.observe(gap.as_secs_f64());
    }

    /// Notes a flush of `tokens`.
    pub fn on_flush(&self, tokens: u32) {
        self.flushes.inc();
        self.flush_tokens.observe(f64::from(tokens));
    }

    /// Adds what was noted to the metrics.
    pub fn publish(&self) {
        self.itl.flush();
        self.flushes.flush();
        self.flush_tokens.flush();
    }
}

/// When a finished request's phases began, on the server's clock.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    /// Arrival of the request.
    pub arrived: Duration,
    /// Its prompt was tokenized.
    pub tokenized: Duration,
    /// Its last byte was handed to the connection.
    pub ended: Duration,
}

struct Maker(Registry);

impl Maker {
    fn keep<C: prometheus::core::Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<C>,
    ) -> C {
        let collector = made.expect("metric options are constants");
        self.0.register(Box::new(collector.clone())).expect("metric names are distinct");
        collector
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.keep(IntGauge::new(name, help))
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.keep(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> IntCounterVec {
        self.keep(IntCounterVec::new(Opts::new(name, help), &[label]))
    }

    fn latency(&self, name: &str, help: &str) -> Histogram {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(LATENCY_S.into())))
    }

    fn count(&self, name: &str, help: &str) -> Histogram {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(COUNTS.into())))
    }
}

impl DeliveryMetrics {
    fn new(make: &Maker) -> Self {
        Self {
            quic_connections: make.gauge("quic_connections", "Open QUIC connections."),
            active_paths: make
                .gauge("delivery_active_paths", "Readers that resumable answers travel to."),
            kept_bytes: make.gauge("delivery_kept_bytes", "Bytes reserved for answers' logs."),
            resumes: make.counters(
                "delivery_resumes_total",
                "Readers that came back for an answer, by what they found.",
                "result",
            ),
            datagrams: make.counter("delivery_datagrams_total", "Datagrams sent."),
            datagram_bytes: make
                .counter("delivery_datagram_bytes_total", "Bytes of frames in datagrams sent."),
            redundant_bytes: make
                .counter("delivery_redundant_bytes_total", "Log bytes that had left before."),
            fallbacks: make.counter(
                "delivery_fallbacks_total",
                "Answers that went over the reliable stream, as datagrams did not arrive.",
            ),
            client_ack: make.latency(
                "delivery_client_ack_seconds",
                "A flush in the log to its acknowledgement by the reader.",
            ),
        }
    }
}

impl Metrics {
    /// Fresh metrics, all at zero.
    pub fn new() -> Self {
        let make = Maker(Registry::new_custom(Some("loquent".into()), None).expect("constant"));
        Self {
            running: make.gauge("num_requests_running", "Completions in the batch."),
            waiting: make
                .gauge("num_requests_waiting", "Completions waiting for a place in the batch."),
            kv_usage: make
                .keep(Gauge::new("kv_cache_usage_perc", "Share of KV cells in use, 0 to 1.")),
            prefix_queries: make
                .counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
            prefix_hits: make
                .counter("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
            preemptions: make.counter(
                "num_preemptions_total",
                "Completions put back because the KV cache was full.",
            ),
            draft_tokens: make
                .counter("spec_decode_num_draft_tokens_total", "Draft tokens computed."),
            accepted_tokens: make
                .counter("spec_decode_num_accepted_tokens_total", "Draft tokens accepted."),
            prompt_tokens: make
                .counter("prompt_tokens_total", "Prompt tokens of finished completions."),
            generation_tokens: make.counter("generation_tokens_total", "Tokens generated."),
            success: make.counters(
                "request_success_total",
                "Completions by how they ended.",
                "finished_reason",
            ),
            refused: make.counters(
                "request_refused_total",
                "Requests answered with an error, by status.",
                "status",
            ),
            ttft: make
                .latency("time_to_first_token_seconds", "Request's arrival to its first token."),
            itl: make.latency("inter_token_latency_seconds", "Between two tokens of a completion."),
            e2e: make.latency("e2e_request_latency_seconds", "Request's arrival to its last byte."),
            queue: make
                .latency("request_queue_time_seconds", "Tokenized to admitted to the batch."),
            prefill: make.latency(
                "request_prefill_time_seconds",
                "Admitted to the batch to the first token.",
            ),
            decode: make.latency("request_decode_time_seconds", "First token to last token."),
            steps: make.counter("engine_steps_total", "Native decodes."),
            step_time: make
                .latency("engine_step_seconds", "Duration of a native decode with its sampling."),
            step_rows: make.count("decode_batch_size", "Sequences in a native decode."),
            batch_wait: make.latency(
                "decode_batch_wait_seconds",
                "A sequence's work ready to its native decode.",
            ),
            hand_over: make.latency("hand_over_seconds", "A step's commit to its delivery."),
            flushes: make.counter("stream_flushes_total", "Pieces handed to connections."),
            flush_tokens: make.count("stream_flush_tokens", "Tokens in one flush."),
            pauses: make.counter("stream_pauses_total", "Completions paused for a slow reader."),
            delivery: DeliveryMetrics::new(&make),
            registry: make.0,
        }
    }

    /// Adds the figures of `stages` to what [`Self::render`] gives.
    pub fn watch_stages(&self, stages: Arc<dyn RemoteStages>) {
        let collector = StageCollector::new(stages);
        self.registry.register(Box::new(collector)).expect("a server has one engine");
    }

    /// The text exposition of everything.
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    /// Notes one step of the engine and the load after it.
    pub fn on_step(&self, step: &Step, load: &Load) {
        let took = step.finished.saturating_sub(step.started);
        self.steps.inc();
        self.step_time.observe(took.as_secs_f64());
        self.step_rows.observe(f64::from(step.rows));
        let tokens = step.events.iter().filter(|event| event.token.is_some()).count();
        self.generation_tokens.inc_by(tokens as u64);
        let waits = self.batch_wait.local();
        step.events.iter().for_each(|event| waits.observe(event.wait.as_secs_f64()));
        waits.flush();
        self.on_idle(load);
    }

    /// Notes the load when the engine has nothing to compute.
    pub fn on_idle(&self, load: &Load) {
        self.running.set(load.running as i64);
        self.waiting.set(load.waiting as i64);
        self.kv_usage.set(f64::from(load.kv_used_cells) / f64::from(load.kv_cells.max(1)));
        raise(&self.prefix_queries, load.prefix_queries);
        raise(&self.prefix_hits, load.prefix_hits);
        raise(&self.preemptions, load.preemptions);
        raise(&self.draft_tokens, load.draft_tokens);
        raise(&self.accepted_tokens, load.accepted_tokens);
    }

    /// For one who delivers many streams.
    pub fn local(&self) -> LocalMetrics {
        LocalMetrics {
            itl: self.itl.local(),
            flushes: self.flushes.local(),
            flush_tokens: self.flush_tokens.local(),
        }
    }

    /// Notes how long a step's results took to reach delivery.
    pub fn on_hand_over(&self, took: Duration) {
        self.hand_over.observe(took.as_secs_f64());
    }

    /// Notes the gap between two tokens of one completion.
    pub fn on_token_gap(&self, gap: Duration) {
        self.itl.observe(gap.as_secs_f64());
    }

    /// Notes a flush of `tokens`.
    pub fn on_flush(&self, tokens: u32) {
        self.flushes.inc();
        self.flush_tokens.observe(f64::from(tokens));
    }

    /// Notes the tokens of an answer that an upstream server has computed.
    pub fn on_upstream_tokens(&self, prompt: u64, completion: u64) {
        self.prompt_tokens.inc_by(prompt);
        self.generation_tokens.inc_by(completion);
    }

    /// Counts a completion that an upstream server computes, until it is dropped.
    pub fn upstream_completion(&self) -> ActivePath {
        ActivePath::count(&self.running)
    }

    /// Notes a completion paused for its reader.
    pub fn on_pause(&self) {
        self.pauses.inc();
    }

    /// Counts an open QUIC connection.
    pub fn quic_connection(&self) -> ActivePath {
        ActivePath::count(&self.delivery.quic_connections)
    }

    /// Counts a reader of a resumable answer.
    pub fn active_path(&self) -> ActivePath {
        ActivePath::count(&self.delivery.active_paths)
    }

    /// Notes that so many more bytes (or fewer) are reserved for logs.
    pub fn on_kept_bytes(&self, more: i64) {
        self.delivery.kept_bytes.add(more);
    }

    /// Notes a reader that came back, and whether its answer was there.
    pub fn on_resume(&self, found: bool) {
        self.delivery.resumes.with_label_values(&[if found { "found" } else { "gone" }]).inc();
    }

    /// Notes a datagram of `bytes`, of which `redundant` log bytes had left before.
    pub fn on_datagram(&self, bytes: usize, redundant: u64) {
        self.delivery.datagrams.inc();
        self.delivery.datagram_bytes.inc_by(bytes as u64);
        self.delivery.redundant_bytes.inc_by(redundant);
    }

    /// Notes an answer that goes over the reliable stream as well.
    pub fn on_fallback(&self) {
        self.delivery.fallbacks.inc();
    }

    /// Notes how long a flush took to its acknowledgement.
    pub fn on_client_ack(&self, took: Duration) {
        self.delivery.client_ack.observe(took.as_secs_f64());
    }

    /// Notes a refused request.
    pub fn on_refusal(&self, status: u16) {
        self.refused.with_label_values(&[&status.to_string()]).inc();
    }

    /// Notes a completion whose client left.
    pub fn on_abort(&self) {
        self.success.with_label_values(&["abort"]).inc();
    }

    /// Notes a completion's end.
    pub fn on_end(&self, phases: Phases, prompt_tokens: usize, end: &End) {
        self.prompt_tokens.inc_by(prompt_tokens as u64);
        self.success.with_label_values(&[end.reason.label()]).inc();
        let observe = |histogram: &Histogram, from: Duration, to: Option<Duration>| {
            if let Some(to) = to {
                histogram.observe(to.saturating_sub(from).as_secs_f64());
            }
        };
        observe(&self.e2e, phases.arrived, Some(phases.ended));
        observe(&self.ttft, phases.arrived, end.timings.first_token);
        if let Some(admitted) = end.timings.admitted {
            observe(&self.queue, phases.tokenized, Some(admitted.at));
            observe(&self.prefill, admitted.at, end.timings.first_token);
        }
        if let Some(first) = end.timings.first_token {
            observe(&self.decode, first, end.timings.last_token);
        }
    }
}

/// Brings a counter to a total that only one thread, the engine's, reports.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total - counter.get());
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
