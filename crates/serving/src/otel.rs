//! OpenTelemetry: spans that begin and end on the server's clock, and their export to a collector.
//!
//! A thread of the SDK sends them in batches from a bounded queue. If the collector cannot be
//! reached, that is logged once and the spans are dropped. [`crate::request_spans`] describes the
//! spans of a request and, for requests to upstream servers, `upstream/trace.rs`.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use loquent_infer::remote::RemoteStages;
use loquent_openai::BaseUrl;
use loquent_openai::http::HttpClient;
use opentelemetry::trace::{
    SpanBuilder, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, Key, KeyValue, Value};
use opentelemetry_http::HttpError as SendError;
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{ResourceDetector, SdkProvidedResourceDetector};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::trace_context::TraceParent;

/// Path of the collector's traces endpoint under its base URL.
const TRACES_PATH: &str = "/v1/traces";
/// Attribute with the name of the service that exports.
const SERVICE_NAME: &str = "service.name";
/// Time limit for exporting one batch of spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a collector's response body.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Creates and exports spans.
pub struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    clock: Clock,
    /// System time at which the server's clock started.
    epoch: SystemTime,
    /// Stages on other machines, which report the durations of their batches.
    stages: Option<Arc<dyn RemoteStages>>,
}

impl Telemetry {
    /// Exports spans to `endpoint`, a base URL, under the service name `service` unless the
    /// environment has another. Must be called inside a runtime, on which the connections to the
    /// collector run.
    ///
    /// # Errors
    /// When the URL is invalid, or the operating system refuses the thread.
    pub fn start(
        service: &'static str,
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
        // Not the builder's: there the name among the attributes outdoes OTEL_SERVICE_NAME.
        let found = SdkProvidedResourceDetector.detect().get(&Key::from_static_str(SERVICE_NAME));
        let resource = Resource::builder()
            .with_service_name(service_name(found, service))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        // Read once: spans then keep the exact durations of the monotonic clock, even if the system
        // time is set meanwhile.
        let epoch = SystemTime::now() - clock.now();
        let tracer = provider.tracer("loquent");
        Ok(Arc::new(Self { provider, tracer, clock, epoch, stages }))
    }

    /// Exports the remaining spans. Blocks for at most the export timeout.
    pub fn stop(&self) {
        // That a collector does not respond has been logged already.
        let _ = self.provider.shutdown_with_timeout(EXPORT_TIMEOUT);
    }

    /// Begins the span of a request that arrived at `arrived`.
    pub fn serve(
        self: &Arc<Self>,
        name: impl Into<Cow<'static, str>>,
        arrived: Duration,
        caller: Option<&TraceParent>,
    ) -> OpenSpan {
        let caller = caller.map_or_else(Context::new, TraceParent::context);
        self.begin(name, SpanKind::Server, arrived, &caller)
    }

    /// Begins the span of a request to another server, now.
    pub fn ask(
        self: &Arc<Self>,
        name: impl Into<Cow<'static, str>>,
        caller: Option<&TraceParent>,
    ) -> OpenSpan {
        let caller = caller.map_or_else(Context::new, TraceParent::context);
        self.begin(name, SpanKind::Client, self.clock.now(), &caller)
    }

    fn begin(
        self: &Arc<Self>,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        from: Duration,
        parent: &Context,
    ) -> OpenSpan {
        let span = SpanBuilder::from_name(name).with_kind(kind).with_start_time(self.wall(from));
        let context = parent.with_span(self.tracer.build_with_context(span, parent));
        OpenSpan { telemetry: self.clone(), context }
    }

    /// Returns the stages on other machines, which report the durations of their batches.
    pub fn stages(&self) -> Option<&Arc<dyn RemoteStages>> {
        self.stages.as_ref()
    }

    /// Returns the clock on which spans begin and end.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    fn wall(&self, time: Duration) -> SystemTime {
        self.epoch + time
    }
}

/// Returns the service's name: the one `found` in `OTEL_SERVICE_NAME` or else in
/// `OTEL_RESOURCE_ATTRIBUTES`, or `usual` if neither has one and the SDK made it up.
fn service_name(found: Option<Value>, usual: &'static str) -> Value {
    let is_given = |name: &Value| {
        let name = name.as_str();
        !name.is_empty() && !name.starts_with("unknown_service")
    };
    found.filter(is_given).unwrap_or_else(|| usual.into())
}

/// A span that has begun. Dropping it ends it.
pub struct OpenSpan {
    telemetry: Arc<Telemetry>,
    context: Context,
}

impl OpenSpan {
    /// Begins a child span for a request to another server.
    pub fn ask(&self, name: impl Into<Cow<'static, str>>) -> Self {
        let now = self.telemetry.clock.now();
        self.telemetry.begin(name, SpanKind::Client, now, &self.context)
    }

    /// Adds a phase of the span as a child.
    pub fn add_phase(
        &self,
        name: impl Into<Cow<'static, str>>,
        [from, to]: [Duration; 2],
        attributes: Vec<KeyValue>,
    ) {
        let phase = self.telemetry.begin(name, SpanKind::Internal, from, &self.context);
        attributes.into_iter().for_each(|attribute| phase.context.span().set_attribute(attribute));
        phase.end(to);
    }

    /// Returns the span's trace context, to be sent to another server.
    pub fn place(&self) -> Option<TraceParent> {
        TraceParent::of(&self.context)
    }

    /// Renames the span.
    pub fn rename(&self, name: String) {
        self.context.span().update_name(name);
    }

    /// Sets an attribute.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.context.span().set_attribute(KeyValue::new(name, value));
    }

    /// Adds an event at the current time.
    pub fn note(&self, event: &'static str) {
        let now = self.telemetry.wall(self.telemetry.clock.now());
        self.context.span().add_event_with_timestamp(event, now, Vec::new());
    }

    /// Marks the span as failed.
    pub fn fail(&self, why: impl Into<Cow<'static, str>>) {
        self.context.span().set_status(Status::error(why));
    }

    /// Ends the span now, even if there are other references to it.
    pub fn end_now(&self) {
        self.end(self.telemetry.clock.now());
    }

    fn end(&self, at: Duration) {
        self.context.span().end_with_timestamp(self.telemetry.wall(at));
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        // One that has ended stays as it is.
        self.end_now();
    }
}

/// Sends the SDK's requests to the collector with the server's own HTTP client, on the server's
/// runtime.
#[derive(Debug)]
struct Collector {
    client: HttpClient,
    runtime: Handle,
    /// True if the last export failed, which has been logged.
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
    /// Logs the first of several consecutive failures.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_the_name_that_its_operator_gives_it() {
        let name = |found: Option<&'static str>| service_name(found.map(Value::from), "loquent");
        assert_eq!(name(Some("chat-eu")), Value::from("chat-eu"));
        for nothing in [None, Some(""), Some("unknown_service"), Some("unknown_service:loquent")] {
            assert_eq!(name(nothing), Value::from("loquent"), "{nothing:?}");
        }
    }
}
