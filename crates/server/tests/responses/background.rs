//! Background responses: generated without a reader, read by any number of them from any event on,
//! each event with one number for ever, cancelled and deleted.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode};
use serde_json::{Value, json};

use super::harness::{self, Server};
use super::reading::{EventReader, ask, delete, get, is_numbered, post, reread, text_of};

/// Waits until a response has the status `wanted`.
async fn until(server: &Server, id: &str, wanted: &str) -> Value {
    let reached = async {
        loop {
            let (status, response) = get(server, &format!("/v1/responses/{id}")).await;
            assert_eq!(status, StatusCode::OK);
            if response["status"] == wanted {
                return response;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("the status")
}

fn background(tokens: usize) -> Value {
    json!({"input": format!("tokens={tokens}"), "background": true})
}

/// The events of a response from a GET, read one by one.
async fn reader(server: &Server, path: &str) -> EventReader {
    let response = server.call(Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    EventReader::new(response.into_body())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_response_is_generated_without_a_reader() {
    let server = Server::over(harness::paced(), |_| {});
    let begun = ask(&server, background(1000)).await;
    assert!(matches!(begun["status"].as_str(), Some("queued" | "in_progress")), "{begun}");
    assert_eq!(begun["background"], true);
    let done = until(&server, begun["id"].as_str().unwrap(), "completed").await;
    assert_eq!(text_of(&done), text_of(&ask(&server, json!({"input": "tokens=1000"})).await));
    server.until("num_requests_running", |running| running == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_delivered_once_wherever_the_connection_broke() {
    let server = Server::start(|_| {});
    let mut body = background(3000);
    body["stream"] = true.into();
    let (_, first) = server.post("/v1/responses", &body).await;
    let mut connection = EventReader::new(first);
    let mut seen = vec![connection.next().await.unwrap()];
    let id = seen[0]["response"]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/responses/{id}");
    // Connections that break after more and more events, while the response is generated and later.
    let mut length = 1;
    while seen.last().unwrap()["type"] != "response.completed" {
        for _ in 0..length {
            seen.extend(connection.next().await);
        }
        length *= 2;
        drop(connection);
        let last = seen.last().unwrap()["sequence_number"].as_u64().unwrap();
        connection = reader(&server, &format!("{path}?stream=true&starting_after={last}")).await;
    }
    assert_eq!(connection.next().await, None);
    assert!(connection.ended_cleanly);
    is_numbered(&seen, 0);
    let kinds: Vec<&Value> = seen[..3].iter().map(|event| &event["type"]).collect();
    assert_eq!(kinds, ["response.created", "response.queued", "response.in_progress"]);
    let text: String = seen.iter().filter_map(|event| event["delta"].as_str()).collect();
    let done = until(&server, &id, "completed").await;
    assert_eq!(text, text_of(&done));
    assert_eq!(seen.last().unwrap()["response"], done);
    // From the store, each event is the same under the same number.
    assert_eq!(reread(&server, &format!("{path}?stream=true")).await, seen);
    for after in [0, 1, seen.len() / 2, seen.len() - 2, seen.len() - 1] {
        let rest = reread(&server, &format!("{path}?stream=true&starting_after={after}")).await;
        assert_eq!(rest, seen[after + 1..], "after {after}");
    }
    for after in [seen.len(), usize::MAX] {
        let path = format!("{path}?stream=true&starting_after={after}");
        let response = server.call(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::GONE, "after {after}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_read_one_response_and_the_slowest_holds_nobody() {
    let server = Server::start(|_| {});
    let begun = ask(&server, background(2000)).await;
    let id = begun["id"].as_str().unwrap();
    let path = format!("/v1/responses/{id}?stream=true");
    let mut slow = reader(&server, &path).await;
    let first = slow.next().await.unwrap();
    let (one, two) = tokio::join!(reread(&server, &path), reread(&server, &path));
    assert_eq!(one, two);
    assert_eq!(one.last().unwrap()["type"], "response.completed");
    let mut late = vec![first];
    late.extend(slow.all().await);
    assert_eq!(late, one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_sees_the_end_of_a_response_can_go_on_from_it() {
    let server = Server::start(|_| {});
    for _ in 0..20 {
        let mut body = background(500);
        body["stream"] = true.into();
        let (_, first) = server.post("/v1/responses", &body).await;
        let mut reader = EventReader::new(first);
        let mut event = reader.next().await.unwrap();
        while event["type"] != "response.completed" {
            event = reader.next().await.unwrap();
        }
        let response = &event["response"];
        let reference = json!({"type": "item_reference", "id": response["output"][0]["id"]});
        ask(&server, json!({"input": "tokens=3", "previous_response_id": response["id"]})).await;
        ask(&server, json!({"input": [reference, {"role": "user", "content": "tokens=3"}]})).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_response_stays_as_far_as_it_came() {
    let server = Server::over(harness::paced(), |_| {});
    let begun = ask(&server, background(100_000)).await;
    let id = begun["id"].as_str().unwrap();
    let mut reader = reader(&server, &format!("/v1/responses/{id}?stream=true")).await;
    while reader.next().await.unwrap()["type"] != "response.output_text.delta" {}
    let next = json!({"input": "x", "previous_response_id": id});
    let (status, error) = post(&server, "/v1/responses", &next).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{error}");
    let item = format!("msg_{}i0000", id.trim_start_matches("resp_"));
    let next = json!({"input": [{"type": "item_reference", "id": item}]});
    let (status, error) = post(&server, "/v1/responses", &next).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{error}");
    assert_eq!(error["error"]["param"], "input[0].id");
    assert!(error["error"]["message"].as_str().unwrap().contains("still being generated"));
    let (status, cancelled) =
        post(&server, &format!("/v1/responses/{id}/cancel"), &json!({})).await;
    assert_eq!((status, &cancelled["status"]), (StatusCode::OK, &json!("cancelled")));
    assert!(!text_of(&cancelled).is_empty());
    server.until("num_requests_running", |running| running == 0.0).await;
    let last = reader.all().await.pop().unwrap();
    assert_eq!(last["response"], cancelled);
    assert!(reader.ended_cleanly);
    // Again, from the store: it changes nothing.
    let (_, again) = post(&server, &format!("/v1/responses/{id}/cancel"), &json!({})).await;
    assert_eq!(again, cancelled);
    let (_, stored) = get(&server, &format!("/v1/responses/{id}")).await;
    assert_eq!(stored, cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_background_responses_are_cancelled_and_all_are_deleted() {
    let server = Server::start(|_| {});
    let plain = ask(&server, json!({"input": "tokens=5"})).await;
    let path = format!("/v1/responses/{}", plain["id"].as_str().unwrap());
    let (status, _) = post(&server, &format!("{path}/cancel"), &json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, deleted) = delete(&server, &path).await;
    assert_eq!((status, &deleted["deleted"]), (StatusCode::OK, &json!(true)));
    let running = ask(&server, background(100_000)).await;
    let path_of_running = format!("/v1/responses/{}", running["id"].as_str().unwrap());
    assert_eq!(delete(&server, &path_of_running).await.0, StatusCode::OK);
    server.until("num_requests_running", |running| running == 0.0).await;
    for gone in [path, path_of_running] {
        assert_eq!(get(&server, &gone).await.0, StatusCode::NOT_FOUND);
        assert_eq!(delete(&server, &gone).await.0, StatusCode::NOT_FOUND);
        assert_eq!(get(&server, &format!("{gone}/input_items")).await.0, StatusCode::NOT_FOUND);
        let (status, _) = post(&server, &format!("{gone}/cancel"), &json!({})).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_fails_says_so_and_never_ends_cleanly() {
    let server = Server::over(harness::paced(), |_| {});
    let begun = ask(&server, background(100_000)).await;
    let id = begun["id"].as_str().unwrap();
    let mut reader = reader(&server, &format!("/v1/responses/{id}?stream=true")).await;
    while reader.next().await.unwrap()["type"] != "response.output_text.delta" {}
    server.service.stop();
    let last = reader.all().await.pop().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert!(!reader.ended_cleanly);
    let failed = until(&server, id, "failed").await;
    assert_eq!(failed, last["response"]);
    assert!(!text_of(&failed).is_empty());
}
