//! Traces of requests, read back by a stand-in for a collector.

use std::sync::Arc;
use std::time::Duration;

use crate::collector::{attribute, collector, hex, spans};
use crate::simulated::{model, service_config};
use loquent_engine::sim::{SimOptions, SimRunner};
use loquent_infer::remote::{BatchTimes, MeanMax, RemoteStages, RemoteStats, StageTimes};
use loquent_server::{
    Clock, Endpoint, LoadedEngine, Metrics, Request, Service, ServiceConfig, Telemetry,
    TraceParent, start_engine,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;

/// Two stages that always tell the same.
struct TwoStages;

impl RemoteStages for TwoStages {
    fn outage(&self) -> Option<String> {
        None
    }

    fn figures(&self) -> RemoteStats {
        RemoteStats::default()
    }

    fn batch_times(&self, from_ago: Duration, to_ago: Duration) -> Option<BatchTimes> {
        assert!(to_ago <= from_ago && from_ago < Duration::from_secs(60));
        let ms = |mean, max| MeanMax {
            mean: Duration::from_millis(mean),
            max: Duration::from_millis(max),
        };
        let stage = |busy| StageTimes { wait: ms(1, 2), busy: ms(busy, 20) };
        Some(BatchTimes { batches: 7, stages: vec![stage(10), stage(15)], link_delay: ms(5, 6) })
    }
}

fn service(otlp_endpoint: Option<String>) -> (Arc<Service>, std::thread::JoinHandle<()>) {
    service_over(otlp_endpoint, None)
}

fn service_over(
    otlp_endpoint: Option<String>,
    stages: Option<Arc<dyn RemoteStages>>,
) -> (Arc<Service>, std::thread::JoinHandle<()>) {
    let config = ServiceConfig { otlp_endpoint, ..service_config(8) };
    let runner = Box::new(SimRunner::new(SimOptions::default()));
    let loaded = LoadedEngine { runner, model: model(), description: "simulated".into(), stages };
    start_engine(&config, loaded, Clock::start(), Arc::new(Metrics::new())).unwrap()
}

/// Asks for `tokens` tokens and reads the answer.
async fn ask(service: &Arc<Service>, tokens: u32, headers: &[(&'static str, &str)]) {
    let headers =
        headers.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let body = format!(r#"{{"messages": [{{"role": "user", "content": "tokens={tokens}"}}]}}"#);
    let request = Request::parse(Endpoint::Chat, body.as_bytes()).unwrap();
    let trace_parent = TraceParent::from_headers(&headers.collect());
    let mut active = service
        .start(Request { trace_parent, ..request }, service.clock().now())
        .await
        .unwrap()
        .active;
    while active.next_flush().await.is_some() {}
    assert!(active.is_complete());
}

async fn stop(service: Arc<Service>, engine: std::thread::JoinHandle<()>) {
    service.stop();
    let telemetry = service.telemetry();
    tokio::task::spawn_blocking(move || {
        engine.join().unwrap();
        telemetry.inspect(|telemetry| telemetry.stop());
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_becomes_a_span_with_its_phases() {
    let (url, mut requests) = collector().await;
    let (service, engine) = service(Some(url));
    let (trace, caller) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let parent = format!("00-{trace}-{caller}-01");
    ask(&service, 20, &[("traceparent", &parent), ("tracestate", "a=b")]).await;
    stop(service, engine).await;
    let spans = spans(&mut requests);
    let of = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let root = of("chat simulated");
    assert_eq!((hex(&root.trace_id).as_str(), hex(&root.parent_span_id).as_str()), (trace, caller));
    assert_eq!(root.trace_state, "a=b");
    assert_eq!(attribute(root, "gen_ai.usage.output_tokens"), &Value::IntValue(21));
    assert_eq!(attribute(root, "gen_ai.usage.cache_read.input_tokens"), &Value::IntValue(0));
    assert_eq!(attribute(root, "gen_ai.provider.name"), &Value::StringValue("loquent".into()));
    assert_eq!(attribute(root, "gen_ai.request.model"), &Value::StringValue("simulated".into()));
    assert_eq!(attribute(root, "gen_ai.response.model"), &Value::StringValue("simulated".into()));
    assert_eq!(attribute(root, "decode_batch_size"), &Value::DoubleValue(1.0));
    for name in ["decode_batch_wait_ms", "decode_batch_wait_ms_max"] {
        let Value::DoubleValue(wait) = attribute(root, name) else { panic!("a number") };
        assert!((0.0..1000.0).contains(wait), "{name} is {wait}");
    }
    let Value::ArrayValue(reasons) = attribute(root, "gen_ai.response.finish_reasons") else {
        panic!("a list")
    };
    assert_eq!(reasons.values[0].value, Some(Value::StringValue("stop".into())));
    let mut end = root.start_time_unix_nano;
    for name in ["tokenize", "queue", "prefill", "decode"] {
        let phase = of(name);
        assert_eq!(phase.parent_span_id, root.span_id, "{name}");
        assert_eq!(phase.start_time_unix_nano, end, "{name} begins where the one before ended");
        end = phase.end_time_unix_nano;
    }
    assert!(end <= root.end_time_unix_nano && spans.len() == 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_stage_of_a_split_model_is_a_span_beside_the_decode() {
    let (url, mut requests) = collector().await;
    let (service, engine) = service_over(Some(url), Some(Arc::new(TwoStages)));
    ask(&service, 20, &[]).await;
    stop(service, engine).await;
    let spans = spans(&mut requests);
    let of = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let decode = of("decode");
    for (name, busy_ms) in [("stage 1", 10.0), ("stage 2", 15.0)] {
        let stage = of(name);
        assert_eq!(stage.parent_span_id, of("chat simulated").span_id);
        assert_eq!(stage.start_time_unix_nano, decode.start_time_unix_nano);
        assert_eq!(stage.end_time_unix_nano, decode.end_time_unix_nano);
        assert_eq!(attribute(stage, "batches"), &Value::IntValue(7));
        let numbers = [("busy_ms", busy_ms), ("busy_ms_max", 20.0), ("wait_ms", 1.0)];
        for (name, expected) in
            numbers.into_iter().chain([("link_delay_ms", 5.0), ("link_delay_ms_max", 6.0)])
        {
            assert_eq!(attribute(stage, name), &Value::DoubleValue(expected), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_caller_a_trace_begins_here() {
    let (url, mut requests) = collector().await;
    let (service, engine) = service(Some(url));
    ask(&service, 1, &[]).await;
    ask(&service, 1, &[("traceparent", "nonsense")]).await;
    stop(service, engine).await;
    let roots: Vec<Span> =
        spans(&mut requests).into_iter().filter(|span| span.name.starts_with("chat")).collect();
    assert_eq!(roots.len(), 2);
    assert!(roots.iter().all(|span| span.parent_span_id.is_empty()));
    assert_ne!(roots[0].trace_id, roots[1].trace_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_changes_nothing() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (service, engine) = service(Some(format!("http://{unused}")));
    for _ in 0..3 {
        ask(&service, 5, &[]).await;
    }
    stop(service, engine).await;
}

#[tokio::test]
async fn a_useless_url_is_refused_at_the_start() {
    for url in ["localhost:4318", "ftp://a", "http://", "http://user@host"] {
        let started = Telemetry::start("loquent", url, Clock::start(), None);
        assert!(started.is_err(), "{url}");
    }
}
