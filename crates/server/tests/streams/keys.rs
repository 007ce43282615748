//! Who asks: keys, addresses and proxies, and what each may use.

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use loquent_server::{ApiKeys, HttpConfig, PeerAddress, TrustedProxies};
use serde_json::{Value, json};

use super::harness::{self, Ending, Events, Server, chat};

const CHAT: &str = "/v1/chat/completions";

/// Two owners with a table each, and a key that has none.
const KEYS: &str = r#"
[[key]]
name = "alice"
key = "sk-alice"
requests_per_minute = 2
priority = true

[[key]]
name = "bob"
key = "sk-bob"
tokens_per_minute = 10
max_inflight = 2
"#;

fn http_config(text: &str) -> HttpConfig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, text).unwrap();
    let api_keys = ApiKeys::load(&["sk-flag".into()], Some(path), None).unwrap();
    HttpConfig { api_keys, metrics_by_key: true, ..harness::http_config() }
}

fn server(text: &str) -> Server {
    Server::with_http(http_config(text), |_| {})
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

async fn ask(server: &Server, key: &str, more: Value) -> Reply {
    let request = Request::post(CHAT).header("authorization", format!("Bearer {key}"));
    let body = chat(4, false, more).to_string();
    let (head, body) = server.call(request.body(Body::from(body)).unwrap()).await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap();
    Reply { status: head.status, headers: head.headers, body }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_per_minute_are_refused_as_openai_does() {
    let server = server(KEYS);
    let first = ask(&server, "sk-alice", json!({})).await;
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(first.header("x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"));
    assert_eq!(first.header("x-ratelimit-limit-tokens"), None);
    assert_eq!(ask(&server, "sk-alice", json!({})).await.status, StatusCode::OK);
    let refused = ask(&server, "sk-alice", json!({})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.body["error"]["code"], "rate_limit_exceeded");
    assert_eq!(refused.body["error"]["type"], "requests");
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&retry_after), "{retry_after} s for one of two a minute");
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    // Others are not concerned.
    let other = ask(&server, "sk-flag", json!({})).await;
    assert_eq!(other.status, StatusCode::OK);
    assert_eq!(other.header("x-ratelimit-limit-requests"), None);
    assert_eq!(server.metric("key_requests_total{key=\"alice\"}"), 2.0);
    assert_eq!(server.metric("key_refused_total{key=\"alice\"}"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_prompts_and_answers_are_charged() {
    let server = server(KEYS);
    let first = ask(&server, "sk-bob", json!({})).await;
    assert_eq!(first.status, StatusCode::OK, "a full budget admits any request");
    let used = &first.body["usage"];
    server.until("key_generation_tokens_total{key=\"bob\"}", |tokens| tokens > 0.0).await;
    let counted = |kind| server.metric(&format!("key_{kind}_tokens_total{{key=\"bob\"}}"));
    assert_eq!(counted("prompt"), used["prompt_tokens"].as_f64().unwrap());
    assert_eq!(counted("generation"), used["completion_tokens"].as_f64().unwrap());
    let refused = ask(&server, "sk-bob", json!({})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.body["error"]["type"], "tokens");
    assert_eq!(refused.header("x-ratelimit-remaining-tokens"), Some("0"));
    let many = ask(&server, "sk-bob", json!({"n": 3})).await;
    assert_eq!(many.body["error"]["code"], "rate_limit_exceeded", "{}", many.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_completions_than_a_key_may_ever_have_are_no_matter_of_waiting() {
    let server = server(KEYS);
    let refused = ask(&server, "sk-bob", json!({"n": 3})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.body["error"]["param"], "n");
    assert_eq!(refused.header("retry-after"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priority_is_for_keys_that_may_set_it() {
    let server = server(KEYS);
    let ignored = async |key, priority: i32| {
        let reply = ask(&server, key, json!({"priority": priority})).await;
        assert_eq!(reply.status, StatusCode::OK);
        reply.header("x-loquent-ignored-parameters").map(str::to_owned)
    };
    assert_eq!(ignored("sk-alice", -5).await, None);
    assert_eq!(ignored("sk-flag", -5).await.as_deref(), Some("priority"));
    assert_eq!(ignored("sk-flag", 0).await, None);
    let open = Server::start(|_| {});
    let reply = ask(&open, "any", json!({"priority": i32::MIN})).await;
    assert_eq!(reply.header("x-loquent-ignored-parameters"), Some("priority"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_refuses_other_keys_by_a_code_of_its_own() {
    let server = server(KEYS);
    let request = Request::get("/v1/dashboard/events").header("authorization", "Bearer sk-alice");
    let response = server.call(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let error: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(error["error"]["code"], "admin_key_required", "{error}");
}

/// How many tokens of the prompt had been computed before.
async fn cached(server: &Server, key: &str, more: Value) -> u64 {
    let reply = ask(server, key, more).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    reply.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_are_reused_within_a_key_only() {
    let keys = "sk-one\nsk-two\n";
    let own = server(keys);
    assert_eq!(cached(&own, "sk-one", json!({})).await, 0);
    assert_eq!(cached(&own, "sk-two", json!({})).await, 0, "another's prompt can be guessed");
    assert_ne!(cached(&own, "sk-one", json!({})).await, 0);
    assert_eq!(cached(&own, "sk-one", json!({"cache_salt": "a"})).await, 0);
    assert_ne!(cached(&own, "sk-one", json!({"cache_salt": "a"})).await, 0);
    let shared = |config: &mut loquent_server::ServiceConfig| {
        config.serving.share_prefix_cache = true;
    };
    let shared = Server::with_http(http_config(keys), shared);
    assert_eq!(cached(&shared, "sk-one", json!({})).await, 0);
    assert_ne!(cached(&shared, "sk-two", json!({})).await, 0);
    assert_eq!(cached(&shared, "sk-two", json!({"cache_salt": "a"})).await, 0);
}

/// A stream that came through a proxy at 10.0.0.1 for `client`.
async fn forwarded(server: &Server, client: &str) -> (StatusCode, Events) {
    through_proxy(server, "x-forwarded-for", client).await
}

async fn through_proxy(server: &Server, header: &str, value: &str) -> (StatusCode, Events) {
    let body = chat(100_000, true, json!({})).to_string();
    let mut request = Request::post(CHAT).header(header, value);
    let peer = PeerAddress("10.0.0.1".parse().unwrap());
    request.extensions_mut().unwrap().insert(peer);
    let response = server.call(request.body(Body::from(body)).unwrap()).await;
    (response.status(), Events::new(response.into_body()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_clients_are_addresses_and_only_trusted_proxies_name_them() {
    let one_each = |config: &mut loquent_server::ServiceConfig| {
        config.bounds.max_inflight_per_tenant = Some(1);
    };
    let trusted_proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
    let http = HttpConfig { trusted_proxies, ..harness::http_config() };
    let server = Server::with_http(http, one_each);
    let (first, mut events) = forwarded(&server, "203.0.113.1").await;
    assert_eq!(first, StatusCode::OK);
    assert_eq!(forwarded(&server, "203.0.113.1").await.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(forwarded(&server, "6.6.6.6, 203.0.113.1").await.0, StatusCode::TOO_MANY_REQUESTS);
    let (second, _reading) = forwarded(&server, "203.0.113.2").await;
    assert_eq!(second, StatusCode::OK);
    server.service.stop();
    assert!(matches!(events.finish().await, Ending::Error(_)));

    let believing_nobody = Server::start(one_each);
    let (first, _reading) = forwarded(&believing_nobody, "203.0.113.1").await;
    assert_eq!(first, StatusCode::OK);
    let second = forwarded(&believing_nobody, "203.0.113.2").await.0;
    assert_eq!(second, StatusCode::TOO_MANY_REQUESTS, "both are the proxy's address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_says_whose_share_a_request_uses() {
    let one_each = |config: &mut loquent_server::ServiceConfig| {
        config.bounds.max_inflight_per_tenant = Some(1);
    };
    let trusted_proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
    let http = HttpConfig { trusted_proxies, ..harness::http_config() };
    let server = Server::with_http(http, one_each);
    let header = "x-llm-d-inference-fairness-id";
    let (first, mut events) = through_proxy(&server, header, "team-a").await;
    assert_eq!(first, StatusCode::OK);
    let again = through_proxy(&server, header, "team-a").await.0;
    assert_eq!(again, StatusCode::TOO_MANY_REQUESTS);
    let (second, _reading) = through_proxy(&server, header, "team-b").await;
    assert_eq!(second, StatusCode::OK);
    server.service.stop();
    assert!(matches!(events.finish().await, Ending::Error(_)));
}

/// `POST /v1/tokens` with a key and `wish`.
async fn minted(server: &Server, key: &str, wish: Value) -> Reply {
    let request = Request::post("/v1/tokens").header("authorization", format!("Bearer {key}"));
    reply(server, request.body(Body::from(wish.to_string())).unwrap()).await
}

async fn reply(server: &Server, request: Request<Body>) -> Reply {
    let (head, body) = server.call(request).await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    Reply { status: head.status, headers: head.headers, body }
}

/// A new token's text.
async fn token(server: &Server, key: &str, wish: Value) -> String {
    let made = minted(server, key, wish).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.body);
    assert_eq!(made.header("cache-control"), Some("no-store"));
    made.body["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_asks_in_its_owners_name_within_the_owners_limits() {
    let server = server(KEYS);
    let token = token(&server, "sk-alice", json!({"expires_in": 60})).await;
    let first = ask(&server, &token, json!({"priority": -5})).await;
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(first.header("x-loquent-ignored-parameters"), Some("priority"));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"), "of its owner's two");
    assert_eq!(server.metric("key_requests_total{key=\"alice\"}"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_for_asking_alone() {
    let server = server(KEYS);
    let token = token(&server, "sk-flag", json!({})).await;
    let bearer = format!("Bearer {token}");
    for (request, status) in [
        (Request::get("/v1/models"), StatusCode::OK),
        (Request::post("/v1/tokens"), StatusCode::FORBIDDEN),
        (Request::get("/v1/chat/completions"), StatusCode::FORBIDDEN),
        (Request::post("/v1/responses"), StatusCode::FORBIDDEN),
        (Request::get("/v1/anything"), StatusCode::NOT_FOUND),
    ] {
        let request = request.header("authorization", &bearer).body(Body::from("{}")).unwrap();
        let path = request.uri().path().to_owned();
        let reply = reply(&server, request).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
        if status == StatusCode::FORBIDDEN {
            assert_eq!(reply.body["error"]["code"], "token_scope");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_stores_nothing_in_its_owners_name() {
    let server = server(KEYS);
    let token = token(&server, "sk-flag", json!({})).await;
    for resumable in [false, true] {
        let more = json!({"store": true, "metadata": {"a": "b"}, "resumable": resumable});
        let refused = ask(&server, &token, more).await;
        let error = &refused.body["error"];
        assert_eq!((refused.status, &error["param"]), (StatusCode::FORBIDDEN, &json!("store")));
        assert_eq!(error["code"], "token_scope");
    }
    let list = Request::get(CHAT).header("authorization", "Bearer sk-flag");
    let list = reply(&server, list.body(Body::empty()).unwrap()).await;
    assert_eq!((list.status, &list.body["data"]), (StatusCode::OK, &json!([])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_end_by_their_limits_and_are_never_another_servers() {
    let server = server(KEYS);
    let once = token(&server, "sk-flag", json!({"max_requests": 1})).await;
    assert_eq!(ask(&server, &once, json!({})).await.status, StatusCode::OK);
    let refused = ask(&server, &once, json!({})).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let other = self::server(KEYS);
    let foreign = token(&other, "sk-flag", json!({})).await;
    assert_eq!(ask(&server, &foreign, json!({})).await.status, StatusCode::UNAUTHORIZED);
    for wish in [
        json!({"expires_in": 0}),
        json!({"expires_in": 3601}),
        json!({"max_requests": 0}),
        json!({"max_request": 1}),
        json!({"user": "x".repeat(257)}),
    ] {
        let refused = minted(&server, "sk-flag", wish.clone()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wish}");
    }
    assert_eq!(minted(&server, "sk-wrong", json!({})).await.status, StatusCode::UNAUTHORIZED);
    let open = Server::start(|_| {});
    assert_eq!(minted(&open, "any", json!({})).await.body["error"]["code"], "api_keys_required");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_different_tokens_share_no_prefixes_and_one_shares_its_own() {
    let server = server(KEYS);
    let ann = token(&server, "sk-flag", json!({"user": "ann"})).await;
    let ann_again = token(&server, "sk-flag", json!({"user": "ann"})).await;
    let bob = token(&server, "sk-flag", json!({"user": "bob"})).await;
    assert_eq!(cached(&server, "sk-flag", json!({})).await, 0);
    assert_eq!(cached(&server, &ann, json!({})).await, 0);
    assert_ne!(cached(&server, &ann_again, json!({})).await, 0);
    assert_eq!(cached(&server, &bob, json!({})).await, 0);
}
