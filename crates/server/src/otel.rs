//! OpenTelemetry: a span for each request, with its queue, prefill and decode as children, and
//! one for each stage of a split model below the decode.
//!
//! Spans are made when a request has ended, from times that are recorded for the metrics
//! anyway: they cost nothing per token, and nothing at all without a collector. A thread of the
//! SDK sends them in batches from a bounded queue. If the collector cannot be reached, that is
//! logged once and the spans are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use loquent_infer::remote::RemoteStages;
use loquent_openai::BaseUrl;
use loquent_openai::http::HttpClient;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::HttpError as SendError;
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::api::head::AnswerHead;
use crate::api::request::Endpoint;
use crate::clock::Clock;
use crate::flush::CompletionTimings;
use crate::trace_context::TraceParent;
use crate::usage::Usage;

/// Path of the collector's traces endpoint under its base URL.
const TRACES_PATH: &str = "/v1/traces";
/// How long the export of one batch of spans may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest response body that is read from a collector.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// A request that has ended, as its spans show it.
pub struct Finished<'a> {
    /// The caller's span, which becomes the parent.
    pub parent: Option<&'a TraceParent>,
    /// The answer's endpoint, id and model.
    pub head: &'a AnswerHead,
    /// Finish reasons of its completions; `abort` for those whose client disconnected.
    pub reasons: &'a [&'static str],
    /// Token counts of the answer.
    pub usage: Usage,
    /// When the request arrived, on the server's clock.
    pub arrived: Duration,
    /// When its prompts were tokenized.
    pub tokenized: Duration,
    /// The first completion's times.
    pub record: &'a CompletionTimings,
}

/// Makes spans of ended requests and exports them.
pub struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    clock: Clock,
    /// The time of day at which the server's clock started.
    epoch: SystemTime,
    /// Stages on other machines, asked how long their batches took.
    stages: Option<Arc<dyn RemoteStages>>,
}

impl Telemetry {
    /// Exports spans to the collector at `endpoint`, a base URL. Must be called inside a
    /// runtime, on which the connections to the collector run.
    ///
    /// # Errors
    /// When the URL is invalid, or the operating system refuses the thread.
    pub fn start(
        endpoint: &str,
        clock: Clock,
        stages: Option<Arc<dyn RemoteStages>>,
    ) -> anyhow::Result<Arc<Self>> {
        let base = BaseUrl::parse(endpoint)?.without_suffix(TRACES_PATH);
        let url = format!("http://collector{TRACES_PATH}");
        let client = HttpClient::new(base, None)?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(url)
            .with_timeout(EXPORT_TIMEOUT)
            .with_http_client(Collector {
                client,
                runtime: Handle::current(),
                silent: AtomicBool::new(false),
            })
            .build()?;
        let service = Resource::builder()
            .with_service_name("loquent")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(service)
            .build();
        // Read once: spans then keep the exact durations of the monotonic clock, even if the system
        // time is set meanwhile.
        let epoch = SystemTime::now() - clock.now();
        let tracer = provider.tracer("loquent");
        Ok(Arc::new(Self { provider, tracer, clock, epoch, stages }))
    }

    /// Exports the spans that are left. Blocks for at most the export timeout.
    pub fn stop(&self) {
        // That a collector does not respond has been logged already.
        let _ = self.provider.shutdown_with_timeout(EXPORT_TIMEOUT);
    }

    /// Makes the spans of a request that has ended.
    pub fn on_request(&self, request: &Finished<'_>) {
        let caller = match request.parent {
            Some(parent) => {
                TraceContextPropagator::new().extract_with_context(&Context::new(), &parent.0)
            }
            None => Context::new(),
        };
        let AnswerHead { model, .. } = request.head;
        let span = SpanBuilder::from_name(format!("{} {model}", operation(request.head)))
            .with_kind(SpanKind::Server)
            .with_start_time(self.wall(request.arrived))
            .with_attributes(attributes(request));
        let mut span = self.tracer.build_with_context(span, &caller);
        // An abort is not an error: the client left.
        if request.reasons.iter().any(|reason| ["error", "expired"].contains(reason)) {
            span.set_status(Status::error("the answer is not complete"));
        }
        let context = caller.with_span(span);
        let record = request.record;
        let admitted = record.admitted.map(|admitted| admitted.at);
        self.phase(&context, "tokenize", Some(request.arrived), Some(request.tokenized));
        self.phase(&context, "queue", Some(request.tokenized), admitted);
        self.phase(&context, "prefill", admitted, record.first_token);
        self.phase(&context, "decode", record.first_token, record.last_token);
        if let Some((from, to)) = record.first_token.zip(record.last_token) {
            self.stages(&context, from, to);
        }
        context.span().end_with_timestamp(self.wall(self.clock.now()));
    }

    fn phase(
        &self,
        parent: &Context,
        name: &'static str,
        from: Option<Duration>,
        to: Option<Duration>,
    ) {
        if let Some((from, to)) = from.zip(to) {
            let span = SpanBuilder::from_name(name).with_start_time(self.wall(from));
            self.tracer.build_with_context(span, parent).end_with_timestamp(self.wall(to));
        }
    }

    /// A span for each stage while the request was decoding. Its attributes cover all batches
    /// of that time, those of other requests too, since batches are shared.
    fn stages(&self, parent: &Context, from: Duration, to: Duration) {
        let now = self.clock.now();
        let ago = |time: Duration| now.saturating_sub(time);
        let remote = self.stages.as_ref();
        let Some(window) = remote.and_then(|remote| remote.batch_times(ago(from), ago(to))) else {
            return;
        };
        for (index, stage) in window.stages.iter().enumerate() {
            let mut all = vec![KeyValue::new("batches", window.batches as i64)];
            let times =
                [("wait", stage.wait), ("busy", stage.busy), ("link_delay", window.link_delay)];
            for (name, time) in times {
                let ms = |time: Duration| time.as_secs_f64() * 1e3;
                all.push(KeyValue::new(format!("{name}_ms"), ms(time.mean)));
                all.push(KeyValue::new(format!("{name}_ms_max"), ms(time.max)));
            }
            let span = SpanBuilder::from_name(format!("stage {}", index + 1))
                .with_start_time(self.wall(from))
                .with_attributes(all);
            self.tracer.build_with_context(span, parent).end_with_timestamp(self.wall(to));
        }
    }

    fn wall(&self, time: Duration) -> SystemTime {
        self.epoch + time
    }
}

fn operation(head: &AnswerHead) -> &'static str {
    match head.endpoint {
        Endpoint::Chat => "chat",
        Endpoint::Text => "text_completion",
    }
}

/// Attributes under the names of OpenTelemetry's conventions for generative AI, where those
/// define one.
fn attributes(request: &Finished<'_>) -> Vec<KeyValue> {
    let Finished { head, record, usage, .. } = request;
    let reasons = request.reasons.iter().map(|&reason| StringValue::from(reason)).collect();
    let mut all = vec![
        KeyValue::new("gen_ai.operation.name", operation(head)),
        KeyValue::new("gen_ai.response.id", head.id.clone()),
        KeyValue::new("gen_ai.response.model", head.model.clone()),
        KeyValue::new("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons))),
        KeyValue::new("gen_ai.usage.input_tokens", usage.prompt_tokens as i64),
        KeyValue::new("gen_ai.usage.cached_input_tokens", usage.cached_tokens as i64),
        KeyValue::new("gen_ai.usage.output_tokens", usage.completion_tokens as i64),
    ];
    if let Some(batch) = record.batch() {
        all.push(KeyValue::new("decode_batch_size", batch.rows_mean));
        all.push(KeyValue::new("decode_batch_wait_ms", batch.wait_mean.as_secs_f64() * 1e3));
        all.push(KeyValue::new("decode_batch_wait_ms_max", batch.wait_max.as_secs_f64() * 1e3));
    }
    all
}

/// Sends the SDK's requests to the collector with this project's HTTP client, on the server's
/// runtime.
#[derive(Debug)]
struct Collector {
    client: HttpClient,
    runtime: Handle,
    /// Whether the last export failed, and that has been logged.
    silent: AtomicBool,
}

#[async_trait::async_trait]
impl opentelemetry_http::HttpClient for Collector {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, SendError> {
        let client = self.client.clone();
        // The SDK calls this on a plain thread: without a runtime neither sockets nor timeouts
        // work there.
        let sending =
            async move { tokio::time::timeout(EXPORT_TIMEOUT, send(client, request)).await };
        let sent = self.runtime.spawn(sending).await;
        let outcome = match sent {
            Ok(Ok(Ok(response))) if response.status().is_success() => Ok(response),
            Ok(Ok(Ok(response))) => Err(format!("the collector answered {}", response.status())),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(_)) => Err("the collector did not answer in time".to_owned()),
            Err(_) => Err("the server is shutting down".to_owned()),
        };
        self.report(outcome.as_ref().err());
        outcome.map_err(SendError::from)
    }
}

impl Collector {
    /// Logs the first of several failures in a row.
    fn report(&self, failure: Option<&String>) {
        let was_silent = self.silent.swap(failure.is_some(), Ordering::Relaxed);
        if let Some(error) = failure.filter(|_| !was_silent) {
            tracing::warn!(
                error,
                "traces cannot be exported; further failures are not logged until one succeeds"
            );
        }
    }
}

async fn send(
    client: HttpClient,
    mut request: http::Request<Bytes>,
) -> Result<http::Response<Bytes>, SendError> {
    // The client has the collector's host already; it takes only a path.
    *request.uri_mut() = http::Uri::from_static(TRACES_PATH);
    let (head, body) = client.send(request).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?;
    Ok(http::Response::from_parts(head, body.to_bytes()))
}
