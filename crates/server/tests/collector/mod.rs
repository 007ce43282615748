//! A stand-in for an OpenTelemetry collector, and what tests ask of the spans that it gets.

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// What a collector is sent.
pub type Exports = mpsc::UnboundedReceiver<ExportTraceServiceRequest>;

/// A collector on a free port: its base URL and what it is sent.
pub async fn collector() -> (String, Exports) {
    let (sender, requests) = mpsc::unbounded_channel();
    let take = move |body: Bytes| {
        let request = ExportTraceServiceRequest::decode(body).expect("OTLP protobuf");
        sender.send(request).unwrap();
        async {}
    };
    let app = Router::new().route("/v1/traces", post(take));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, requests)
}

/// The spans that have arrived.
pub fn spans(requests: &mut Exports) -> Vec<Span> {
    let received = std::iter::from_fn(|| requests.try_recv().ok());
    let resources = received.flat_map(|request| request.resource_spans);
    resources.flat_map(|one| one.scope_spans).flat_map(|one| one.spans).collect()
}

/// The value of an attribute that the span must have.
pub fn attribute<'a>(span: &'a Span, name: &str) -> &'a Value {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    let value = found.unwrap_or_else(|| panic!("{name} is missing in {span:?}")).value.as_ref();
    value.unwrap().value.as_ref().unwrap()
}

/// An id as headers have it.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
