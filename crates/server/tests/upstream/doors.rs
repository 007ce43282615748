//! What strangers reach of an upstream through this server, and what an upstream reaches of
//! this server's clients.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use http::{Request as HttpRequest, Response};
use http_body_util::{BodyExt, Full};
use loquent_server::ApiKeys;
use serde_json::{Value, json};

use super::stand_in::{Act, StandIn, head, piece, whole};
use super::{Front, json_of, read};

const FIRST: &str = r#"{"id":"a","choices":[{"index":0,"delta":{"content":"Hel"}}]}"#;

fn request(method: &str, path: &str) -> HttpRequest<Body> {
    HttpRequest::builder().method(method).uri(path).body(Body::empty()).unwrap()
}

fn error_text(body: &Value) -> &str {
    body["error"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn only_listed_routes_reach_the_upstream() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", "{}"))).await;
    let front = Front::with(&format!("{}/team-a", up.url), |settings| {
        settings.upstream.pool.api_key = Some("theirs".into());
        settings.upstream.routes = vec!["POST /v1/audio/speech".parse().unwrap()];
    });
    for (method, path, status) in [
        ("DELETE", "/api/delete", 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/slots?action=erase", 404),
        ("GET", "/metrics/../v1/assistants", 400),
        ("GET", "/team-a/../team-b/v1/assistants", 400),
        ("GET", "/v1/models/../../team-b/v1/assistants", 400),
        ("GET", "/v1/models/%2e%2e/%2e%2e/team-b", 400),
        ("GET", "/v1/models/..%2f..%2fteam-b", 400),
        ("GET", "//team-b/v1/models", 400),
        ("TRACE", "/v1/models", 405),
        ("DELETE", "/v1/models", 405),
    ] {
        let response = front.send(request(method, path)).await;
        assert_eq!(response.status().as_u16(), status, "{method} {path}");
        assert!(up.requests.try_recv().is_err(), "{method} {path} reached the upstream");
    }
    let refused = json_of(front.send(request("GET", "/v1/assistants")).await).await;
    assert!(error_text(&refused).contains("--upstream-route"), "{refused}");
    let listed = front.send(request("POST", "/v1/audio/speech")).await;
    assert_eq!(listed.status().as_u16(), 200);
    let seen = up.requests.recv().await.unwrap();
    assert!(seen.starts_with("POST /team-a/v1/audio/speech "), "{seen}");
}

/// A body without a declared length, as it comes in chunks.
fn chunked(text: &'static str) -> Body {
    Body::new(Full::new(Bytes::from_static(text.as_bytes())).map_frame(|frame| frame))
}

#[tokio::test]
async fn only_methods_that_have_a_body_bring_one_to_the_upstream() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", "{}"))).await;
    let front = Front::with(&up.url, |settings| {
        let routes = ["GET", "DELETE", "OPTIONS", "PUT"].map(|it| format!("{it} /v1/assistants/*"));
        settings.upstream.routes = routes.map(|route| route.parse().unwrap()).to_vec();
    });
    let smuggled = "POST /api/delete HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    for (method, path) in [
        ("GET", "/v1/assistants/a"),
        ("HEAD", "/v1/assistants/a"),
        ("GET", "/v1/models"),
        ("OPTIONS", "/v1/assistants/a"),
        ("DELETE", "/v1/assistants/a"),
    ] {
        for body in [Body::from(smuggled), chunked(smuggled)] {
            let request = HttpRequest::builder().method(method).uri(path).body(body).unwrap();
            let refused = front.send(request).await;
            assert_eq!(refused.status().as_u16(), 400, "{method} {path}");
            assert!(up.requests.try_recv().is_err(), "{method} {path} reached the upstream");
        }
    }
    // What ends without a byte is no body, however it was framed.
    for (method, body) in [("GET", chunked("")), ("GET", Body::empty()), ("PUT", chunked("x"))] {
        let request =
            HttpRequest::builder().method(method).uri("/v1/assistants/a").body(body).unwrap();
        assert_eq!(front.send(request).await.status().as_u16(), 200, "{method}");
        let seen = up.requests.recv().await.unwrap();
        assert!(seen.starts_with(&format!("{method} /v1/assistants/a ")), "{seen}");
    }
}

#[tokio::test]
async fn headers_of_a_client_stay_with_its_own_connection() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", "{}"))).await;
    let front = Front::with(&up.url, |settings| {
        settings.http.api_keys = ApiKeys::new(["own".into()]);
        settings.http.cors_origins = vec!["*".into()];
        settings.upstream.pool.keeps_keys = true;
    });
    for (method, path) in [("POST", "/v1/embeddings"), ("POST", "/v1/chat/completions")] {
        let secrets = [
            ("authorization", "Bearer own"),
            ("x-api-key", "own"),
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "secret"),
            ("cookie", "session=secret"),
            ("expect", "100-continue"),
            ("te", "trailers"),
            ("upgrade", "secret"),
            ("proxy-authorization", "secret"),
            ("x-forwarded-for", "10.secret"),
            ("forwarded", "for=secret"),
            ("origin", "https://secret.example"),
            ("referer", "https://secret.example"),
            ("x-http-method-override", "DELETE-secret"),
            ("x-original-url", "/secret"),
        ];
        let mut builder = HttpRequest::builder().method(method).uri(path).header("x-kept", "1");
        for (name, value) in secrets {
            builder = builder.header(name, value);
        }
        let body = json!({"model": "m", "messages": [], "input": "x"}).to_string();
        let response = front.send(builder.body(Body::from(body)).unwrap()).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        let seen = up.requests.recv().await.unwrap().to_lowercase();
        assert!(seen.contains("x-kept: 1"), "{seen}");
        for unwanted in ["secret", "own", "100-continue", "trailers"] {
            assert!(!seen.contains(unwanted), "{unwanted}: {seen}");
        }
    }
}

#[tokio::test]
async fn keys_reach_the_upstream_only_where_they_are_for_it() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", "{}"))).await;
    let front = Front::new(&up.url);
    let mut asked = request("POST", "/v1/messages");
    asked.headers_mut().insert("x-api-key", "for-them".parse().unwrap());
    asked.headers_mut().insert("authorization", "Bearer for-them".parse().unwrap());
    front.send(asked).await;
    let probe = up.requests.recv().await.unwrap();
    assert!(probe.contains("Bearer for-them"), "whether it speaks the API: {probe}");
    let seen = up.requests.recv().await.unwrap();
    assert_eq!(seen.matches("for-them").count(), 2, "{seen}");
}

fn page() -> Vec<u8> {
    let body = "<script>alert(1)</script>";
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nset-cookie: a=b\r\nx-kept: 1\r\n\
         content-security-policy: default-src *\r\naccess-control-allow-origin: *\r\n\
         connection: x-mine\r\nx-mine: 1\r\nx-accel-redirect: /etc\r\nservice-worker-allowed: /\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn is_confined(response: &Response<Body>) -> bool {
    let policy = response.headers()["content-security-policy"].to_str().unwrap();
    policy.starts_with("sandbox;") && response.headers()["x-content-type-options"] == "nosniff"
}

#[tokio::test]
async fn a_page_of_the_upstream_is_none_of_this_origin() {
    let up = StandIn::start(Act::Keep(page())).await;
    let response = Front::new(&up.url).send(request("GET", "/v1/models")).await;
    assert!(is_confined(&response), "{:?}", response.headers());
    assert_eq!(response.headers()["x-kept"], "1");
    for name in
        ["set-cookie", "access-control-allow-origin", "x-mine", "connection", "x-accel-redirect"]
    {
        assert!(!response.headers().contains_key(name), "{name}");
    }
    let error = whole("500 Oops", "<script>alert(1)</script>");
    let up = StandIn::start(Act::Keep(error)).await;
    assert!(is_confined(&Front::new(&up.url).ask(json!({})).await), "errors of streams too");
}

#[tokio::test]
async fn redirects_of_the_upstream_end_here() {
    let away = "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://evil.example/\r\n\
                content-length: 0\r\n\r\n";
    let mut up = StandIn::start(Act::Keep(away.into())).await;
    let front = Front::new(&up.url);
    for stream in [true, false] {
        let response = front.ask(json!({"stream": stream})).await;
        assert_eq!(response.status().as_u16(), 502);
        assert!(!response.headers().contains_key("location"));
        assert!(error_text(&json_of(response).await).contains("redirects"));
        up.requests.recv().await.unwrap();
    }
    assert!(up.requests.try_recv().is_err(), "nothing is asked twice");
}

#[tokio::test]
async fn stream_options_that_are_no_object_are_refused() {
    let up = StandIn::start(Act::Close(Vec::new())).await;
    let front = Front::new(&up.url);
    for options in [json!(1), json!("x"), json!([1]), json!(true)] {
        for extra in [json!({"stream": true}), json!({"stream": false, "resumable": true})] {
            let mut body = extra.clone();
            body["stream_options"] = options.clone();
            let response = front.ask(body).await;
            assert_eq!(response.status().as_u16(), 400, "{options} {extra}");
            assert_eq!(json_of(response).await["error"]["param"], "stream_options");
        }
    }
}

#[tokio::test]
async fn many_calls_of_ready_ask_the_upstream_once() {
    let up = StandIn::start(Act::Slowly(vec![whole("200 OK", "{}")], Duration::from_millis(20)));
    let mut up = up.await;
    let (front, began) = (Front::new(&up.url), Instant::now());
    // Callers that hang up before the answer begin nothing of their own.
    for _ in 0..20 {
        let calling = front.send(request("GET", "/ready"));
        let _ = tokio::time::timeout(Duration::from_micros(100), calling).await;
    }
    for _ in 0..20 {
        let ready = front.send(request("GET", "/ready")).await;
        assert_eq!(ready.status().as_u16(), 200);
    }
    let mut asked: u64 = 0;
    while up.requests.try_recv().is_ok() {
        asked += 1;
    }
    // One more for each second that a slow machine takes.
    let most = 2 + began.elapsed().as_secs();
    assert!((1..=most).contains(&asked), "{asked} requests");
}

#[tokio::test]
async fn a_silent_upstream_is_given_up() {
    let silent = StandIn::start(Act::Slowly(Vec::new(), Duration::ZERO)).await;
    let short = |front: &mut super::Settings| {
        front.upstream.pool.silence_limit = Duration::from_secs(1);
    };
    let front = Front::with(&silent.url, short);
    for stream in [true, false] {
        let response = front.ask(json!({"stream": stream})).await;
        assert_eq!(response.status().as_u16(), 502);
        assert!(error_text(&json_of(response).await).contains("silent"));
    }
    let begins = vec![head(), piece(&format!("data: {FIRST}\n\n"))];
    let mut begun = StandIn::start(Act::Slowly(begins, Duration::ZERO)).await;
    let front = Front::with(&begun.url, short);
    let answer = read(front.ask(json!({})).await).await;
    assert!(answer.broken && !answer.done, "a stream that stops is no whole answer");
    begun.left.recv().await.unwrap();
    let passed = front.send(request("POST", "/v1/embeddings")).await;
    assert!(passed.into_body().collect().await.is_err(), "nor is a body that stops");
    begun.left.recv().await.unwrap();
}

#[tokio::test]
async fn work_that_passes_through_takes_places_until_it_ends() {
    let pieces = vec![head(), piece("{}")];
    let mut up = StandIn::start(Act::Slowly(pieces, Duration::ZERO)).await;
    let front = Front::with(&up.url, |settings| settings.bounds.max_inflight_requests = 1);
    let first = front.send(request("POST", "/v1/embeddings")).await;
    assert_eq!(first.status().as_u16(), 200);
    let second = front.send(request("POST", "/v1/embeddings")).await;
    assert_eq!(second.status().as_u16(), 429);
    drop(first);
    up.left.recv().await.unwrap();
    let third = front.send(request("POST", "/v1/embeddings")).await;
    assert_eq!(third.status().as_u16(), 200);
}
