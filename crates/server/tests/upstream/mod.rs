//! Another server in the engine's place: everything it says passes, and however it breaks,
//! no answer looks whole that is not.

mod dialects;
mod doors;
mod held;
mod several;
mod speaking;
pub mod stand_in;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request as HttpRequest, Response, header};
use http_body_util::BodyExt;
use loquent_infer::admission::Bounds;
use loquent_proto::sse::Parser;
use loquent_server::{
    ApiKeys, App, Clock, HttpConfig, Metrics, PoolConfig, ResumableLimits, ServiceConfig,
    StreamBounds, UpstreamConfig, router, start_upstream,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::simulated;
use stand_in::{Act, StandIn, head, piece, stream, whole};

const FIRST: &str = r#"{"id":"up-1","object":"chat.completion.chunk","created":5,"model":"theirs","system_fingerprint":"fp","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}]}"#;
const SECOND: &str = r#"{"id":"up-1","object":"chat.completion.chunk","created":5,"model":"theirs","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}"#;
const FINISH: &str =
    r#"{"id":"up-1","choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":9}]}"#;
const USAGE: &str = r#"{"id":"up-1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"cost":1},"timings":{"ms":4}}"#;

/// No test waits longer for anything, and none that passes waits nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Our server in front of `url`.
struct Front {
    app: Arc<App>,
}

impl Front {
    fn new(url: &str) -> Self {
        Self::with(url, |_| ())
    }

    fn with(url: &str, adjust: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            upstream: UpstreamConfig {
                pool: PoolConfig {
                    urls: url.split(',').map(str::to_owned).collect(),
                    silence_limit: Duration::from_secs(60),
                    ..PoolConfig::default()
                },
                ..UpstreamConfig::default()
            },
            http: HttpConfig { heartbeat: Duration::from_secs(5), ..simulated::http_config() },
            bounds: Bounds {
                max_inflight_requests: 4,
                max_inflight_per_tenant: Some(4),
                max_queued_tokens: 1000,
            },
            streams: StreamBounds { buffer_bytes: 1 << 20, stall_limit: PATIENCE },
            otlp_endpoint: None,
        };
        adjust(&mut settings);
        let Settings { upstream, http, bounds, streams, otlp_endpoint } = settings;
        let limits = ResumableLimits {
            log_bytes: 1 << 20,
            unacked_bytes: 1 << 16,
            kept_bytes: 8 << 20,
            answers_per_key: 8,
            ..simulated::limits()
        };
        let app = Arc::new(App::new(http, limits, Clock::start(), Arc::new(Metrics::new())));
        let (service, tokenize_workers) = (simulated::service_config(1), 1);
        let config = ServiceConfig { bounds, streams, otlp_endpoint, tokenize_workers, ..service };
        app.open(start_upstream(&config, &upstream, &app).unwrap());
        Self { app }
    }

    async fn send(&self, request: HttpRequest<Body>) -> Response<Body> {
        router(self.app.clone()).oneshot(request).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Response<Body> {
        let request = HttpRequest::post(path).header(header::AUTHORIZATION, "Bearer own");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    /// Asks for a stream.
    async fn ask(&self, extra: Value) -> Response<Body> {
        let mut body =
            json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        self.post("/v1/chat/completions", body).await
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.app.metrics.render();
        let line = text.lines().find(|line| line.starts_with(&format!("loquent_{name} ")));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

struct Settings {
    upstream: UpstreamConfig,
    http: HttpConfig,
    bounds: Bounds,
    streams: StreamBounds,
    otlp_endpoint: Option<String>,
}

/// How a stream came out.
struct Read {
    events: Vec<Value>,
    done: bool,
    /// The connection was broken off.
    broken: bool,
}

impl Read {
    fn text(&self) -> String {
        self.events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect()
    }

    fn finish(&self) -> Option<&str> {
        self.events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str())
    }
}

async fn read(response: Response<Body>) -> Read {
    let (mut parser, mut body) = (Parser::new(1 << 20), response.into_body());
    let mut read = Read { events: Vec::new(), done: false, broken: false };
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            read.broken = true;
            break;
        };
        let take = |event: loquent_proto::sse::Event<'_>| match event.data {
            b"[DONE]" => read.done = true,
            data => read.events.push(serde_json::from_slice(data).unwrap()),
        };
        parser.push(frame.data_ref().unwrap(), take).unwrap();
    }
    read
}

async fn json_of(response: Response<Body>) -> Value {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn a_stream_passes_with_everything_in_it() {
    let mut up = StandIn::start(Act::Keep(stream(&[FIRST, SECOND, FINISH, USAGE, "[DONE]"]))).await;
    let front = Front::new(&format!("{}/v1/", up.url));
    let response = front.ask(json!({"stream_options": {"include_usage": true}, "top_secret": 1, "stream_interval": 2})).await;
    let read = read(response).await;
    assert!(read.done && !read.broken);
    assert_eq!((read.text().as_str(), read.finish()), ("Hello", Some("stop")));
    assert!(read.events.iter().all(|event| event["id"] == "up-1" && event["model"] == "theirs"));
    assert!(read.events.iter().all(|event| event["system_fingerprint"] == "fp"));
    assert!(read.events.iter().any(|event| event["choices"][0]["stop_reason"] == 9));
    let usage = read.events.last().unwrap();
    assert_eq!((&usage["usage"]["cost"], &usage["timings"]["ms"]), (&json!(1), &json!(4)));
    let request = up.requests.recv().await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("POST /v1/chat/completions ") && head.contains("Bearer own"),
        "{head}"
    );
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["top_secret"], &body["stream_interval"]), (&json!(1), &Value::Null));
    assert_eq!(front.metric("generation_tokens_total"), 2.0);
    assert_eq!(front.metric("prompt_tokens_total"), 3.0);
}

#[tokio::test]
async fn usage_is_hidden_where_it_was_not_asked_for() {
    let up = StandIn::start(Act::Keep(stream(&[FIRST, FINISH, USAGE, "[DONE]"]))).await;
    let read = read(Front::new(&up.url).ask(json!({})).await).await;
    assert!(read.done && read.events.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn calls_reasoning_and_logprobs_are_the_same_at_every_interval() {
    let delta = |delta: Value, logprobs: Value| {
        json!({"id": "a", "choices": [{"index": 0, "delta": delta, "logprobs": logprobs}]})
            .to_string()
    };
    let call =
        |fragment: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": fragment}}]});
    let opening = json!({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]});
    let mut events = vec![
        delta(json!({"reasoning_content": "Hm", "reasoning": "Hm"}), json!({"content": [1]})),
        delta(json!({"reasoning_content": "m.", "reasoning": "m."}), json!({"content": [2]})),
        delta(json!({"content": "So: "}), json!({"content": [3]})),
        delta(opening, Value::Null),
    ];
    events.extend(["{\"a\"", ": [1,", " 2]}"].map(|fragment| delta(call(fragment), Value::Null)));
    events.push(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#.into());
    events.push("[DONE]".into());
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let up = StandIn::start(Act::Keep(stream(&events))).await;
    let front = Front::new(&up.url);
    for interval in [json!(1), json!(3), json!(8), json!("auto")] {
        let read = read(front.ask(json!({"stream_interval": interval})).await).await;
        let joined = |name: &str| -> String {
            read.events
                .iter()
                .filter_map(|event| event["choices"][0]["delta"][name].as_str())
                .collect()
        };
        let calls: Vec<&Value> = read
            .events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array())
            .flatten()
            .collect();
        let arguments: String =
            calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        let logprobs: Vec<Value> = read
            .events
            .iter()
            .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(
            (joined("reasoning_content").as_str(), joined("reasoning").as_str()),
            ("Hmm.", ""),
            "once, under one name"
        );
        assert_eq!((joined("content").as_str(), arguments.as_str()), ("So: ", "{\"a\": [1, 2]}"));
        assert_eq!((&calls[0]["id"], &calls[0]["function"]["name"]), (&json!("c"), &json!("f")));
        assert_eq!(logprobs, [1, 2, 3]);
        assert_eq!(read.finish(), Some("tool_calls"));
    }
}

#[tokio::test]
async fn errors_pass_with_status_and_body() {
    let body = r#"{"error":{"message":"no such model","type":"NotFoundError","param":"model","code":404,"x":1}}"#;
    let up = StandIn::start(Act::Keep(whole("404 Not Found", body))).await;
    let front = Front::new(&up.url);
    for stream in [true, false] {
        let response = front.ask(json!({"stream": stream})).await;
        assert_eq!(
            (response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()),
            (404, "7")
        );
        assert_eq!(json_of(response).await.to_string(), body);
    }
    let up = StandIn::start(Act::Keep(stream(&[r#"{"error":{"message":"too long","code":400}}"#])))
        .await;
    let response = Front::new(&up.url).ask(json!({})).await;
    assert_eq!(response.status().as_u16(), 400);
    assert_eq!(json_of(response).await["error"]["message"], "too long");
}

#[tokio::test]
async fn whatever_breaks_is_no_whole_answer() {
    let begun = || [head(), piece(&format!("data: {FIRST}\n\n"))].concat();
    let ended = |more: &str| [begun(), piece(more), b"0\r\n\r\n".to_vec()].concat();
    let cases = [
        ("dies", Act::Close(begun())),
        ("dies within a chunk", Act::Close([begun(), b"ff\r\ndata: {".to_vec()].concat())),
        ("ends cleanly without a finish", Act::Keep(ended(""))),
        ("says it is done without a finish", Act::Keep(ended("data: [DONE]\n\n"))),
        ("sends garbage", Act::Keep(ended("data: {\"choices\": 7}\n\n"))),
        ("sends no JSON", Act::Keep(ended("data: <html>\n\n"))),
        (
            "sends a choice nobody asked for",
            Act::Keep(ended(
                "data: {\"choices\":[{\"index\":3,\"delta\":{}, \"finish_reason\":\"stop\"}]}\n\n",
            )),
        ),
        ("tells an error", Act::Keep(ended("data: {\"error\":{\"message\":\"m\",\"x\":1}}\n\n"))),
        (
            "sends an endless line",
            Act::Close([begun(), piece(&format!("data: {}", "x".repeat(5 << 20)))].concat()),
        ),
    ];
    for (what, act) in cases {
        let up = StandIn::start(act).await;
        let front = Front::new(&up.url);
        let read = read(front.ask(json!({})).await).await;
        assert!(read.broken && !read.done, "an upstream that {what}");
        assert_eq!((read.text().as_str(), read.finish()), ("Hel", None), "an upstream that {what}");
        let error = &read.events.last().unwrap()["error"];
        assert!(error["message"].is_string(), "an upstream that {what}");
        if what == "tells an error" {
            assert_eq!(*error, json!({"message": "m", "x": 1}), "it passes unchanged");
        }
    }
}

#[tokio::test]
async fn all_is_complete_with_the_last_finish() {
    // Usage and [DONE] are lost, the answer is not.
    let up = StandIn::start(Act::Keep(stream(&[FIRST, SECOND, FINISH]))).await;
    let read = read(Front::new(&up.url).ask(json!({})).await).await;
    assert!(read.done && read.text() == "Hello");
}

#[tokio::test]
async fn idle_connections_that_the_upstream_closes_lose_nothing() {
    let up = StandIn::start(Act::CloseWhenReused(stream(&[FIRST, FINISH, "[DONE]"]))).await;
    let front = Front::new(&up.url);
    for _ in 0..40 {
        let read = read(front.ask(json!({})).await).await;
        assert!(read.done && !read.broken);
    }
    assert_eq!(up.connections(), 40, "every reused connection was closed under our feet");
}

#[tokio::test]
async fn connections_are_used_again() {
    let up = StandIn::start(Act::Keep(stream(&[FIRST, FINISH, "[DONE]"]))).await;
    let front = Front::new(&up.url);
    for _ in 0..10 {
        assert!(read(front.ask(json!({})).await).await.done);
    }
    assert_eq!(up.connections(), 1);
}

#[tokio::test]
async fn nothing_is_asked_twice_once_an_answer_has_begun() {
    let mut up = StandIn::start(Act::Close(head())).await;
    let response = Front::new(&up.url).ask(json!({})).await;
    assert_eq!(response.status().as_u16(), 502);
    assert!(up.requests.recv().await.is_some() && up.requests.try_recv().is_err());
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_said_in_openais_shape() {
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let front = Front::new(&format!("http://{unused}"));
    for stream in [true, false] {
        let response = front.ask(json!({"stream": stream})).await;
        assert_eq!(response.status().as_u16(), 502);
        assert_eq!(json_of(response).await["error"]["type"], "server_error");
    }
    let ready = front.send(HttpRequest::get("/ready").body(Body::empty()).unwrap()).await;
    assert_eq!(ready.status().as_u16(), 503);
    let health = front.send(HttpRequest::get("/health").body(Body::empty()).unwrap()).await;
    assert_eq!(health.status().as_u16(), 200);
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_upstream() {
    let pieces = vec![head(), piece(&format!("data: {FIRST}\n\n"))];
    let mut up = StandIn::start(Act::Slowly(pieces, Duration::from_millis(1))).await;
    let front = Front::new(&up.url);
    let mut body = front.ask(json!({})).await.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    tokio::time::timeout(PATIENCE, up.left.recv()).await.expect("cancelled").unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_stops_the_upstream() {
    let mut up = StandIn::start(Act::Slowly(Vec::new(), Duration::ZERO)).await;
    let front = Front::new(&up.url);
    {
        let mut asking = Box::pin(front.ask(json!({})));
        tokio::select! {
            _ = &mut asking => panic!("nothing was answered"),
            request = up.requests.recv() => assert!(request.is_some()),
        }
    }
    tokio::time::timeout(PATIENCE, up.left.recv()).await.expect("cancelled").unwrap();
}

#[tokio::test]
async fn a_queued_client_hears_of_us() {
    let pieces = vec![
        [head(), piece(&format!("data: {FIRST}\n\n")), piece(&format!("data: {FINISH}\n\n"))]
            .concat(),
    ];
    let up = StandIn::start(Act::Slowly(pieces, PATIENCE)).await;
    let front =
        Front::with(&up.url, |settings| settings.http.heartbeat = Duration::from_millis(50));
    let response = front.ask(json!({})).await;
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let first = std::str::from_utf8(&first).unwrap();
    let is_chunk = first.starts_with("data: ") && first.contains("\"delta\":{}");
    assert!(is_chunk, "a heartbeat comes before the upstream's word: {first}");
}

#[tokio::test]
async fn places_are_bounded_and_given_back() {
    let up = StandIn::start(Act::Slowly(
        vec![head(), piece(&format!("data: {FIRST}\n\n"))],
        Duration::ZERO,
    ))
    .await;
    let front = Front::with(&up.url, |settings| settings.bounds.max_inflight_requests = 1);
    let first = front.ask(json!({})).await;
    let refused = front.ask(json!({})).await;
    assert_eq!(refused.status().as_u16(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    drop(first);
    let again = async {
        while front.ask(json!({})).await.status().as_u16() == 429 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("the place is free again");
}

#[tokio::test]
async fn a_reader_that_stops_reading_is_ended_and_holds_little() {
    let text = "y".repeat(2000);
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}]}).to_string();
    let mut bytes = head();
    (0..2000).for_each(|_| bytes.extend(piece(&format!("data: {chunk}\n\n"))));
    let mut up = StandIn::start(Act::Slowly(vec![bytes], Duration::ZERO)).await;
    let front = Front::with(&up.url, |settings| {
        settings.streams =
            StreamBounds { buffer_bytes: 20_000, stall_limit: Duration::from_millis(200) };
    });
    let response = front.ask(json!({})).await;
    tokio::time::timeout(PATIENCE, up.left.recv()).await.expect("given up").unwrap();
    let read = read(response).await;
    assert!(read.broken && !read.done && read.text().len() < 400_000, "{}", read.text().len());
}

#[tokio::test]
async fn other_routes_pass_as_they_are() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", r#"{"data": ["b"], "x": 1}"#))).await;
    let front =
        Front::with(&up.url, |settings| settings.upstream.pool.api_key = Some("theirs".into()));
    for (method, path) in [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/a/b"),
        ("POST", "/v1/embeddings?a=b"),
        ("POST", "/tokenize"),
    ] {
        let request = HttpRequest::builder().method(method).uri(path);
        let request = request.header("authorization", "Bearer own").header("x-own", "1");
        let body = if method == "POST" { Body::from("{}") } else { Body::empty() };
        let response = front.send(request.body(body).unwrap()).await;
        assert_eq!(json_of(response).await, json!({"data": ["b"], "x": 1}));
        let seen = up.requests.recv().await.unwrap();
        assert!(seen.starts_with(&format!("{method} {path} ")), "{seen}");
        assert!(
            seen.contains("Bearer theirs")
                && seen.contains("x-own: 1")
                && !seen.contains("own\r\nBearer"),
            "{seen}"
        );
        assert!(!seen.contains("Bearer own"), "{seen}");
    }
}

#[tokio::test]
async fn our_keys_stay_ours() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", "{}"))).await;
    let front = Front::with(&up.url, |settings| {
        settings.http.api_keys = ApiKeys::load(&["own".into()], None, None).unwrap();
        settings.upstream.pool.keeps_keys = true;
    });
    front.post("/v1/embeddings", json!({})).await;
    assert!(!up.requests.recv().await.unwrap().contains("Bearer"), "our key is none of theirs");
    let request = HttpRequest::post("/v1/embeddings").body(Body::from("{}")).unwrap();
    assert_eq!(front.send(request).await.status().as_u16(), 401);
}

#[tokio::test]
async fn kept_answers_come_from_upstream_too() {
    let up = StandIn::start(Act::Keep(stream(&[FIRST, SECOND, FINISH, USAGE, "[DONE]"]))).await;
    let front = Front::new(&up.url);
    let response = front.ask(json!({"resumable": true})).await;
    let id = response.headers()["x-loquent-stream-id"].to_str().unwrap().to_owned();
    let token = response.headers()["x-loquent-stream-token"].to_str().unwrap().to_owned();
    let first = read(response).await;
    assert!(first.done && first.text() == "Hello");
    let uri = format!("/v1/streams/{id}?token={token}&from=0");
    let again = front.send(HttpRequest::get(uri).body(Body::empty()).unwrap()).await;
    let again = read(again).await;
    assert_eq!((again.done, again.text().as_str(), again.finish()), (true, "Hello", Some("stop")));
}

#[tokio::test]
async fn reasoning_in_an_upstreams_text_is_split_off() {
    let chunk =
        |delta: Value| json!({"id": "u", "choices": [{"index": 0, "delta": delta}]}).to_string();
    let texts = ["<thi", "nk>\nHm", ".</thin", "k>\n\nYes", "."];
    let mut events: Vec<String> =
        texts.iter().map(|text| chunk(json!({"content": text}))).collect();
    events.extend([FINISH.to_owned(), USAGE.to_owned(), "[DONE]".to_owned()]);
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let stand_in = StandIn::start(Act::Close(stream(&events))).await;
    let answer = Front::new(&stand_in.url).ask(json!({})).await;
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let chunks = body.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks: Vec<Value> =
        chunks.map(|json| serde_json::from_str(&format!("{{{json}")).unwrap()).collect();
    let joined = |name: &str| -> String {
        let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str());
        deltas.collect()
    };
    assert_eq!((joined("reasoning_content"), joined("content")), ("Hm.".into(), "Yes.".into()));
    // The same without a stream.
    let message = json!({"role": "assistant", "content": "<think>Hm.</think>Yes."});
    let whole_answer = json!({"choices": [{"index": 0, "message": message}]}).to_string();
    let stand_in = StandIn::start(Act::Close(whole("200 OK", &whole_answer))).await;
    let answer = Front::new(&stand_in.url).ask(json!({"stream": false})).await;
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&body).unwrap();
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("Hm."), &json!("Yes."))
    );
}
