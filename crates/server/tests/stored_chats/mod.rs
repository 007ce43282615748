//! Stored chat completions on the simulated engine: what is stored, for whom, and how it is found.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::streams::harness::{self, Ending, Server, chat};
use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use loquent_server::{AllowedHosts, ApiKeys, HttpConfig, Store, StoreLimits};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// A server for this machine alone.
fn local() -> HttpConfig {
    let allowed_hosts = AllowedHosts::default().bound_to(Ipv4Addr::LOCALHOST.into());
    HttpConfig { allowed_hosts, ..harness::http_config() }
}

fn server() -> Server {
    Server::with_http(local(), |_| {})
}

async fn call(server: &Server, method: &str, path: &str, key: &str, body: Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("authorization", format!("Bearer {key}"));
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let response = server.call(request.body(body).unwrap()).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

async fn get(server: &Server, path: &str) -> (u16, Value) {
    call(server, "GET", path, "any", Value::Null).await
}

async fn store_one(server: &Server, more: Value) -> Value {
    let mut body = chat(6, false, json!({"store": true}));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.whole(CHAT, &body).await
}

fn path(answer: &Value) -> String {
    format!("{CHAT}/{}", answer["id"].as_str().unwrap())
}

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_completion_is_the_answer_and_what_was_asked() {
    let server = server();
    let metadata = json!({"topic": "tea"});
    let answer =
        store_one(&server, json!({"metadata": metadata, "temperature": 0.5, "n": 2})).await;
    let (status, stored) = get(&server, &path(&answer)).await;
    assert_eq!(status, 200);
    for member in ["id", "object", "created", "model", "choices", "usage"] {
        assert_eq!(stored[member], answer[member], "{member}");
    }
    assert_eq!(stored["metadata"], metadata);
    assert_eq!((&stored["temperature"], &stored["top_p"]), (&json!(0.5), &Value::Null));
    let (status, messages) = get(&server, &format!("{}/messages", path(&answer))).await;
    assert_eq!(status, 200);
    assert_eq!(messages["data"][0]["role"], "user");
    assert_eq!(messages["data"][0]["content"], "tokens=6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_asks_for_it_is_stored() {
    let server = server();
    for more in [json!({}), json!({"store": false}), json!({"metadata": {"a": "b"}})] {
        let answer = server.whole(CHAT, &chat(6, false, more)).await;
        assert_eq!(get(&server, &path(&answer)).await.0, 404);
    }
    let (_, list) = get(&server, CHAT).await;
    assert_eq!((&list["data"], &list["first_id"]), (&json!([]), &Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_stored_when_it_is_complete() {
    let server = server();
    for resumable in [false, true] {
        let more = json!({"store": true, "resumable": resumable, "logprobs": true});
        let mut events = server.stream(50, more).await;
        assert_eq!(events.finish().await, Ending::Done);
        let (status, stored) = get(&server, &path(&events.chunks[0])).await;
        assert_eq!(status, 200, "resumable: {resumable}");
        let choice = &stored["choices"][0];
        assert_eq!(choice["message"]["content"], events.text(0));
        assert_eq!(choice["finish_reason"], "stop");
        let logprobs =
            |choice: &Value| choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
        let streamed: usize = events.chunks.iter().map(|one| logprobs(&one["choices"][0])).sum();
        assert_eq!(logprobs(choice), streamed);
        assert_eq!(streamed, 50);
        // The end token counts, and has neither text nor an entry.
        assert_eq!(stored["usage"]["completion_tokens"], streamed + 1);
        assert_eq!(stored["object"], "chat.completion");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_waited_for_is_not_stored() {
    let server = server();
    let mut events = server.stream(100_000, json!({"store": true})).await;
    while events.pieces(0).is_empty() {
        assert_eq!(events.next().await, None);
    }
    drop(events);
    server.until("num_requests_running", |running| running == 0.0).await;
    assert_eq!(get(&server, CHAT).await.1["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_have_pages_orders_and_filters() {
    let server = server();
    let mut stored = Vec::new();
    for (topic, language) in [("tea", "en"), ("tea", "de"), ("rice", "de")] {
        let metadata = json!({"topic": topic, "language": language});
        stored.push(store_one(&server, json!({"metadata": metadata})).await);
    }
    let all: Vec<&str> = stored.iter().map(|one| one["id"].as_str().unwrap()).collect();
    let (_, list) = get(&server, CHAT).await;
    assert_eq!(ids(&list), all);
    assert_eq!(list["object"], "list");
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!(all[0]), &json!(all[2])));
    assert_eq!(list["has_more"], false);
    let (_, first) = get(&server, &format!("{CHAT}?limit=2&order=desc")).await;
    assert_eq!((ids(&first), &first["has_more"]), (vec![all[2], all[1]], &json!(true)));
    let (_, rest) = get(&server, &format!("{CHAT}?limit=2&order=desc&after={}", all[1])).await;
    assert_eq!((ids(&rest), &rest["has_more"]), (vec![all[0]], &json!(false)));
    for (query, found) in [
        ("metadata%5Btopic%5D=tea", &all[..2]),
        ("metadata[topic]=tea&metadata[language]=de", &all[1..2]),
        ("model=simulated&metadata[language]=de", &all[1..]),
        ("model=other", &[]),
    ] {
        assert_eq!(ids(&get(&server, &format!("{CHAT}?{query}")).await.1), found, "{query}");
    }
    for (query, param) in
        [("limit=0", "limit"), ("order=best", "order"), ("after=chatcmpl-x", "after")]
    {
        let (status, error) = get(&server, &format!("{CHAT}?{query}")).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_can_be_changed_and_completions_deleted() {
    let server = server();
    let answer = store_one(&server, json!({"metadata": {"a": "b"}})).await;
    let path = path(&answer);
    let (status, changed) =
        call(&server, "POST", &path, "any", json!({"metadata": {"c": "d"}})).await;
    assert_eq!((status, &changed["metadata"]), (200, &json!({"c": "d"})));
    assert_eq!(get(&server, &path).await.1, changed);
    for wrong in [json!({}), json!({"metadata": {"c": 1}}), json!({"metadata": "d"})] {
        let (status, error) = call(&server, "POST", &path, "any", wrong).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("metadata")));
    }
    let (status, deleted) = call(&server, "DELETE", &path, "any", Value::Null).await;
    let expected =
        json!({"object": "chat.completion.deleted", "id": answer["id"], "deleted": true});
    assert_eq!((status, deleted), (200, expected));
    for (method, path, body) in [
        ("GET", path.clone(), Value::Null),
        ("DELETE", path.clone(), Value::Null),
        ("POST", path.clone(), json!({"metadata": {}})),
        ("GET", format!("{path}/messages"), Value::Null),
    ] {
        let (status, error) = call(&server, method, &path, "any", body).await;
        assert_eq!(
            (status, &error["error"]["code"]),
            (404, &json!("not_found")),
            "{method} {path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_are_found_under_their_own_key_alone() {
    let api_keys = ApiKeys::new(["ann".to_owned(), "bob".to_owned()]);
    let server = Server::with_http(HttpConfig { api_keys, ..harness::http_config() }, |_| {});
    let body = chat(6, false, json!({"store": true}));
    let (_, answer) = call(&server, "POST", CHAT, "ann", body).await;
    let path = path(&answer);
    for (method, body) in
        [("GET", Value::Null), ("DELETE", Value::Null), ("POST", json!({"metadata": {}}))]
    {
        let (status, error) = call(&server, method, &path, "bob", body.clone()).await;
        let (_, absent) = call(&server, method, &format!("{CHAT}/absent"), "bob", body).await;
        assert_eq!(status, 404);
        let shape =
            |error: &Value| (error["error"]["type"].clone(), error["error"]["code"].clone());
        assert_eq!(shape(&error), shape(&absent));
    }
    assert_eq!(call(&server, "GET", CHAT, "bob", Value::Null).await.1["data"], json!([]));
    assert_eq!(ids(&call(&server, "GET", CHAT, "ann", Value::Null).await.1), [&answer["id"]]);
    assert_eq!(call(&server, "GET", &path, "eve", Value::Null).await.0, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_there_are_no_lists_beyond_loopback() {
    let server = Server::with_http(harness::http_config(), |_| {});
    let answer = store_one(&server, json!({})).await;
    let (status, error) = get(&server, CHAT).await;
    assert_eq!((status, &error["error"]["code"]), (403, &json!("api_keys_required")));
    assert!(error["error"]["message"].as_str().unwrap().contains("--api-key-file"));
    assert_eq!(get(&server, &path(&answer)).await.0, 200, "its random id is the credential");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_keeps_completions_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let store = Store::open(&file, StoreLimits::default()).unwrap();
    let server = Server::with_store(local(), store.clone());
    let answer = store_one(&server, json!({})).await;
    store.close().await;
    let (status, error) = get(&server, &path(&answer)).await;
    assert_eq!((status, &error["error"]["code"]), (503, &json!("service_unavailable")));
    let unstored = store_one(&server, json!({})).await;
    assert_eq!(unstored["choices"][0]["finish_reason"], "stop", "a client gets its answer");
    drop(server);
    let store = Store::open(&file, StoreLimits::default()).unwrap();
    let server = Server::with_store(local(), store);
    let (status, stored) = get(&server, &path(&answer)).await;
    assert_eq!((status, &stored["choices"]), (200, &answer["choices"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_get_errors() {
    let server = server();
    for body in ["[]", "{\"metadata\":{}", "null", &format!("[{}", "[".repeat(10_000))] {
        let request = Request::post(format!("{CHAT}/x")).body(Body::from(body.to_owned())).unwrap();
        assert_eq!(server.call(request).await.status(), StatusCode::BAD_REQUEST, "{body:.20}");
    }
    let long = "x".repeat(5000);
    assert_eq!(get(&server, &format!("{CHAT}/{long}")).await.0, 404);
    assert_eq!(get(&server, &format!("{CHAT}?after={long}")).await.0, 400);
    assert_eq!(get(&server, &format!("{CHAT}?metadata[{long}]=%00%ff")).await.0, 200);
    let body = chat(6, true, json!({"store": "yes"}));
    let (status, body) = server.post(CHAT, &body).await;
    let error: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!((status.as_u16(), &error["error"]["param"]), (400, &json!("store")));
}

/// A body of which this much has come, and then nothing more.
struct Hanging(Option<Bytes>);

impl http_body::Body for Hanging {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_of_the_store_needs_memory_as_a_request_does() {
    const MEMORY: usize = 1 << 20;
    let http = HttpConfig { max_request_memory_bytes: MEMORY, ..local() };
    let server = Server::with_http(http, |_| {});
    // While it is generated it is held twice, for the client and for the store; to be read, it is
    // parsed, which takes all there is.
    let more = json!({"store": true, "logprobs": true, "top_logprobs": 3});
    let answer = server.whole(CHAT, &chat(400, false, more)).await;
    let path = path(&answer);
    assert_eq!(get(&server, &path).await.0, 200);
    let body = Hanging(Some(vec![b' '; MEMORY / 3 * 2].into()));
    let holding = server.call(Request::post(CHAT).body(Body::new(body)).unwrap());
    tokio::select! {
        biased;
        response = holding => panic!("{response:?}"),
        found = get(&server, &path) => assert_eq!(found.0, 503, "{}", found.1),
    }
    assert_eq!(get(&server, &path).await.0, 200);
}
