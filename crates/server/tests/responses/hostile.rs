//! What is refused: wrong and hostile requests, and other clients' responses.

use std::time::Duration;

use axum::body::Body;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use loquent_server::{ApiKeys, HttpConfig};
use serde_json::{Value, json};

use super::harness::{Server, http_config, paced};
use super::reading::{ask, call, delete, get, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_refused_by_name() {
    let server = Server::start(|_| {});
    let long = "x".repeat(600);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "x", "temperature": 3}), "temperature"),
        (json!({"input": "x", "metadata": {"a": 1}}), "metadata"),
        (json!({"input": "x", "metadata": {"a": long}}), "metadata"),
        (json!({"input": "x", "metadata": {"é".repeat(65): "b"}}), "metadata"),
        (json!({"input": "x", "include": ["everything"]}), "include"),
        (json!({"input": "x", "truncation": "some"}), "truncation"),
        (json!({"input": "x", "background": true, "store": false}), "background"),
        (json!({"input": "x", "conversation": "conv_1"}), "conversation"),
        (json!({"input": "x", "prompt": {"id": "p"}}), "prompt"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"input": "x", "text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
        (
            json!({"input": "x", "text": {"format": {"type": "json_schema", "name": "n",
            "schema": {"type": "object", "unevaluatedProperties": false}}}}),
            "text.format",
        ),
        (json!({"input": "x", "tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"input": "x", "tools": [{"type": "function", "name": "a b"}]}), "tools[0].name"),
        (json!({"input": "x", "tool_choice": "required"}), "tool_choice"),
        (json!({"input": "x", "tool_choice": {"type": "web_search"}}), "tool_choice.type"),
        (json!({"input": "x", "stream_options": 1}), "stream_options"),
        (json!({"input": "x", "previous_response_id": 1}), "previous_response_id"),
        (json!({"input": "x", "top_k": "many"}), "top_k"),
        (json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), "input[0].id"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
    ] {
        for streams in [false, true] {
            let mut body = body.clone();
            body["stream"] = streams.into();
            let (status, error) = post(&server, "/v1/responses", &body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {error}");
            assert_eq!(error["error"]["param"], param, "{body}: {error}");
        }
    }
    assert_eq!(server.service.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_bodies_are_refused_and_the_server_goes_on() {
    let server = Server::start(|_| {});
    let deep = format!("{{\"input\":{}}}", "[".repeat(100_000));
    let many = json!({"input": vec![json!({"role": "user", "content": "x"}); 5000]}).to_string();
    let references: Vec<Value> = (0..40)
        .map(|at| json!({"type": "item_reference", "id": format!("msg_{at:032x}0000")}))
        .collect();
    let references = json!({"input": references}).to_string();
    let nul = json!({"input": "\0", "previous_response_id": "\0\u{ffff}"}).to_string();
    for body in ["", "[]", "null", "{\"input\"", "\"x\"", &deep, &many, &references, &nul] {
        let request = http::Request::post("/v1/responses");
        let response = server.call(request.body(body.to_owned().into()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{:.60}", body);
    }
    for id in ["resp_1", "%00", "..", "resp_%F0%9F%92%A9", &"x".repeat(5000)] {
        let (status, _) = get(&server, &format!("/v1/responses/{id}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{id:.60}");
    }
    let stored = ask(&server, json!({"input": "tokens=5"})).await;
    let path = format!("/v1/responses/{}", stored["id"].as_str().unwrap());
    for query in ["stream=maybe", "starting_after=-1", "starting_after=x&stream=true"] {
        let (status, _) = get(&server, &format!("{path}?{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn references_do_not_multiply_what_they_name() {
    let server = Server::start(|_| {});
    let filler = "x".repeat(200_000);
    let long = json!({"role": "user", "content": "tokens=5", "id": "mine"});
    let mut long = vec![long, json!({"role": "user", "content": filler, "id": "long"})];
    let reference = |id: &Value| json!({"type": "item_reference", "id": id});
    // Of the same request, then of a stored one: both may be used some times, and not many.
    for (times, refused) in [(4, false), (4000, true)] {
        let mut items = long.clone();
        items.extend(vec![reference(&json!("long")); times]);
        let items = json!({"input": items, "store": false});
        let (status, reply) = post(&server, "/v1/responses/input_tokens", &items).await;
        check_references(status, &reply, refused);
    }
    long.truncate(1);
    long[0]["content"] = format!("say={}", "word ".repeat(1000)).into();
    let stored = ask(&server, json!({"input": long})).await;
    let said = &stored["output"][0]["id"];
    for (times, refused) in [(2, false), (4000, true)] {
        let body = json!({"input": vec![reference(said); times]});
        let (status, reply) = post(&server, "/v1/responses/input_tokens", &body).await;
        check_references(status, &reply, refused);
    }
}

fn check_references(status: StatusCode, reply: &Value, refused: bool) {
    let message = reply["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(message.contains("refers to"), refused, "{status}: {reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_is_measured_in_characters() {
    let server = Server::start(|_| {});
    let metadata = json!({"é".repeat(64): "é".repeat(512)});
    let response = ask(&server, json!({"input": "tokens=2", "metadata": metadata})).await;
    assert_eq!(response["metadata"], metadata);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_of_a_request_stays_charged_as_long() {
    let server = Server::over(paced(), |_| {});
    let stored = ask(&server, json!({"input": "tokens=5"})).await;
    let free = server.request_memory_free_bytes();
    for kind in ["background", "stream"] {
        let body = json!({"input": "tokens=100000", kind: true});
        let (_, reader) = server.post("/v1/responses", &body).await;
        server.until("num_requests_running", |running| running == 1.0).await;
        assert!(server.request_memory_free_bytes() < free, "{kind}");
        if kind == "background" {
            let bytes = reader.collect().await.unwrap().to_bytes();
            let begun: Value = serde_json::from_slice(&bytes).unwrap();
            let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
            assert_eq!(delete(&server, &path).await.0, StatusCode::OK);
        } else {
            drop(reader);
        }
        until_free(&server, free).await;
    }
    // One that is read from the store.
    let path = format!("/v1/responses/{}?stream=true", stored["id"].as_str().unwrap());
    let reader = server.call(http::Request::get(path).body(Body::empty()).unwrap()).await;
    assert!(server.request_memory_free_bytes() < free);
    drop(reader);
    until_free(&server, free).await;
}

async fn until_free(server: &Server, wanted: usize) {
    let reached = async {
        while server.request_memory_free_bytes() != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("the charge comes back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_keys_response_is_not_there() {
    let api_keys = ApiKeys::load(&["sk-alice".into(), "sk-bob".into()], None, None).unwrap();
    let server = Server::with_http(HttpConfig { api_keys, ..http_config() }, |_| {});
    let create = (Method::POST, "/v1/responses");
    for background in [false, true] {
        let tokens = if background { 100_000 } else { 5 };
        let body = json!({"input": format!("tokens={tokens}"), "background": background});
        let (status, mine) = call(&server, create.clone(), Some("sk-alice"), Some(&body)).await;
        assert_eq!(status, StatusCode::OK, "{mine}");
        let path = format!("/v1/responses/{}", mine["id"].as_str().unwrap());
        let unknown = format!("/v1/responses/resp_{:032x}", 1);
        for (method, rest) in [
            (Method::GET, ""),
            (Method::GET, "?stream=true"),
            (Method::GET, "/input_items"),
            (Method::POST, "/cancel"),
            (Method::DELETE, ""),
        ] {
            let ask = async |path: &str| {
                let path = format!("{path}{rest}");
                call(&server, (method.clone(), &path), Some("sk-bob"), None).await
            };
            let (status, theirs) = ask(&path).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{method} {rest}");
            let (_, nobodys) = ask(&unknown).await;
            let message = |error: &Value| error["error"]["message"].as_str().map(str::len);
            assert_eq!(message(&theirs), message(&nobodys), "an id cannot be probed");
        }
        let next = json!({"input": "x", "previous_response_id": mine["id"]});
        let (status, error) = call(&server, create.clone(), Some("sk-bob"), Some(&next)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(error["error"]["code"], "previous_response_not_found");
        let (status, _) = call(&server, (Method::DELETE, &path), Some("sk-alice"), None).await;
        assert_eq!(status, StatusCode::OK);
    }
}
