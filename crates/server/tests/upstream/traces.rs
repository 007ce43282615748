//! A request through this server and on to an upstream one is one trace: the servers continue the
//! spans of being asked, which are children of the request's own.

use axum::body::Body;
use http::{Request as HttpRequest, Response};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};

use super::several::{PROMPTS, settled, total};
use super::stand_in::{Act, StandIn, stream, whole};
use super::{FINISH, FIRST, Front, SECOND, read};
use crate::collector::{Exports, attribute, collector, hex, spans};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn parent() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

/// A front of the servers at `urls`, and the collector that it exports to.
async fn traced(urls: &str) -> (Front, Exports) {
    let (url, exports) = collector().await;
    (Front::with(urls, |settings| settings.otlp_endpoint = Some(url)), exports)
}

impl Front {
    async fn ask_in_trace(&self, path: &str, body: Value) -> Response<Body> {
        let request = HttpRequest::post(path).header("traceparent", parent());
        let request = request.header("tracestate", "a=b");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }
}

/// Ends the export once no server is asked any more.
async fn ended(front: Front, mut exports: Exports) -> Vec<Span> {
    settled(&front).await;
    let telemetry = front.app.models.telemetry().unwrap();
    tokio::task::spawn_blocking(move || telemetry.stop()).await.unwrap();
    spans(&mut exports)
}

fn question(text: &str, streams: bool) -> Value {
    json!({"model": "m", "stream": streams, "messages": [{"role": "user", "content": text}]})
}

/// The header `name` of a request as a stand-in has seen it.
fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let (head, _) = request.split_once("\r\n\r\n").unwrap();
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The request's own span and those of asking servers.
fn own_and_asks(spans: &[Span]) -> (&Span, Vec<&Span>) {
    let of = |kind: SpanKind| spans.iter().filter(move |span| span.kind == kind as i32);
    (of(SpanKind::Server).next().unwrap(), of(SpanKind::Client).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_continues_the_span_of_being_asked() {
    let cases = [
        ("/v1/chat/completions", true, stream(&[FIRST, SECOND, FINISH, "[DONE]"])),
        ("/v1/chat/completions", false, whole("200 OK", "{}")),
        ("/v1/embeddings", false, whole("200 OK", "{}")),
    ];
    for (path, streams, reply) in cases {
        let mut up = StandIn::start(Act::Keep(reply)).await;
        let (front, exports) = traced(&up.url).await;
        let response = front.ask_in_trace(path, question("hi", streams)).await;
        assert_eq!(response.status().as_u16(), 200);
        axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let spans = ended(front, exports).await;
        let (own, asks) = own_and_asks(&spans);
        assert_eq!(
            (hex(&own.trace_id).as_str(), hex(&own.parent_span_id).as_str()),
            (TRACE, CALLER)
        );
        let [ask] = asks[..] else { panic!("{path} was asked {} times", asks.len()) };
        assert_eq!((&ask.trace_id, &ask.parent_span_id), (&own.trace_id, &own.span_id));
        assert_eq!(spans.len(), 2, "the phases are the upstream's to tell");
        let seen = up.requests.recv().await.unwrap();
        let continued = format!("00-{TRACE}-{}-01", hex(&ask.span_id));
        assert_eq!(header(&seen, "traceparent"), Some(continued.as_str()));
        assert_eq!(header(&seen, "tracestate"), Some("a=b"));
        assert_eq!(ask.name, format!("POST {path}"));
        assert_eq!(attribute(ask, "http.response.status_code"), &Attribute::IntValue(200));
        assert_eq!(attribute(ask, "server.address"), &Attribute::StringValue("127.0.0.1".into()));
        let begun: Vec<_> = ask.events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(begun, if streams { vec!["first token"] } else { vec![] });
        assert!(ask.status.clone().unwrap_or_default().code == 0, "{path} succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_that_is_asked_has_a_span_and_a_reason() {
    let busy = StandIn::start(Act::Close(Vec::new())).await;
    let good = stream(&[FIRST, SECOND, FINISH, "[DONE]"]);
    let good = StandIn::start(Act::Keep(good)).await;
    let (front, exports) = traced(&format!("{},{}", busy.url, good.url)).await;
    for number in 0..PROMPTS {
        let question = question(&format!("question {number}"), true);
        let read = read(front.ask_in_trace("/v1/chat/completions", question).await).await;
        assert_eq!(read.text(), "Hello");
        if total(&front, "moved_requests_total") >= 1.0 {
            break;
        }
    }
    let spans = ended(front, exports).await;
    let has = |span: &&Span, name: &str| span.attributes.iter().any(|it| it.key == name);
    let second = spans.iter().find(|span| has(span, "retry_reason")).expect("one was asked again");
    let Attribute::StringValue(reason) = attribute(second, "retry_reason") else {
        panic!("a text")
    };
    assert!(reason.contains("could not be reached"), "{reason}");
    assert_eq!(attribute(second, "http.request.resend_count"), &Attribute::IntValue(1));
    let siblings = spans.iter().filter(|span| span.parent_span_id == second.parent_span_id);
    let first = siblings.into_iter().find(|span| span.span_id != second.span_id).unwrap();
    assert_eq!(first.status.as_ref().unwrap().code, 2, "the first has failed");
    assert!(first.end_time_unix_nano <= second.start_time_unix_nano);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_ends_both_spans_with_its_status() {
    let quoted = r#"{"error": {"message": "you asked: a secret"}}"#;
    let up = StandIn::start(Act::Keep(whole("400 Bad Request", quoted))).await;
    let (front, exports) = traced(&up.url).await;
    let response = front.ask_in_trace("/v1/chat/completions", question("a secret", true)).await;
    assert_eq!(response.status().as_u16(), 400);
    let spans = ended(front, exports).await;
    assert_eq!(spans.len(), 2);
    for span in &spans {
        assert_eq!(attribute(span, "http.response.status_code"), &Attribute::IntValue(400));
        assert_eq!(span.status.as_ref().unwrap().code, 2);
        assert!(!format!("{span:?}").contains("secret"), "what was asked stays out");
    }
}

#[tokio::test]
async fn without_a_collector_the_upstream_continues_the_callers_span() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", "{}"))).await;
    let front = Front::new(&up.url);
    for (path, streams) in [("/v1/chat/completions", true), ("/v1/embeddings", false)] {
        drop(front.ask_in_trace(path, question("hi", streams)).await);
        let seen = up.requests.recv().await.unwrap();
        assert_eq!(header(&seen, "traceparent"), Some(parent().as_str()), "{path}");
        assert_eq!(header(&seen, "tracestate"), Some("a=b"));
    }
    let nonsense = HttpRequest::post("/v1/embeddings").header("traceparent", "nonsense");
    drop(front.send(nonsense.body(Body::from("{}")).unwrap()).await);
    assert_eq!(header(&up.requests.recv().await.unwrap(), "traceparent"), None);
}
