//! What reading from the store may cost: what is read is charged until its client has taken it, and
//! a network thread writes nothing long.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use loquent_server::{Kind, Owner, Progress, Store, StoreLimits, StoredObject, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::shapes::MIB;
use super::{
    BODY_BYTES, MEMORY_BYTES, Peak, REST_BYTES, Server, TURN, held, least_time,
    most_of_network_thread, until_held,
};

/// Long texts in a stored object: the answer's own, and one of many messages.
const ANSWER_BYTES: usize = 4 * MIB;
const MESSAGES: usize = 100;
const MESSAGE_BYTES: usize = 40 * 1024;
/// Readers at once, whose responses together are longer than all that requests may hold.
const READERS: usize = 40;

const READS: [(Method, &str); 6] = [
    (Method::GET, "/v1/responses/resp_1"),
    (Method::POST, "/v1/responses/resp_1/cancel"),
    (Method::GET, "/v1/responses/resp_1/input_items?limit=100"),
    (Method::GET, "/v1/chat/completions/chat_1"),
    (Method::GET, "/v1/chat/completions/chat_1/messages?limit=100"),
    (Method::GET, "/v1/chat/completions"),
];

fn message(at: usize) -> Value {
    json!({"id": at.to_string(), "role": "user", "content": "x".repeat(MESSAGE_BYTES)})
}

/// A response and a chat completion, as the store keeps them.
async fn store() -> Store {
    let store = Store::in_memory(StoreLimits::default());
    let messages: Vec<Value> = (0..MESSAGES).map(message).collect();
    let long = "x".repeat(ANSWER_BYTES);
    let response = json!({
        "object": {"id": "resp_1", "object": "response", "instructions": long},
        "background": true, "input": messages,
    });
    let completion = json!({"id": "chat_1", "object": "chat.completion", "x": long});
    let created_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    for (kind, id, json) in [
        (Kind::Response, "resp_1", format!("{response}\n")),
        (Kind::ChatCompletion, "chat_1", format!("{completion}\n{}", Value::from(messages))),
    ] {
        let (id, json) = (id.to_owned(), Bytes::from(json));
        let object = StoredObject { id, created_s, progress: Progress::Ended, json };
        store.put(kind, Owner::NOBODY, object).await.unwrap();
    }
    store
}

/// The response to a request, whose body is not read.
async fn ask(server: &Server, (method, path): (Method, &str)) -> Response<Body> {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    router(server.app.clone()).oneshot(request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_hold_no_more_than_the_memory_of_requests() {
    let _turn = TURN.lock().await;
    let server = Arc::new(Server::with_store(&[], store().await));
    server.health().await;
    for (method, path) in READS {
        let free = server.app.request_memory_free_bytes();
        let (before, peak) = (held(), Peak::watch());
        let asked = (0..READERS).map(|_| {
            let (server, read) = (server.clone(), (method.clone(), path));
            tokio::spawn(async move { ask(&server, read).await })
        });
        let mut responses = Vec::new();
        for asked in asked.collect::<Vec<_>>() {
            responses.push(asked.await.unwrap());
        }
        let most = peak.end().saturating_sub(before);
        let bound = MEMORY_BYTES + MEMORY_BYTES / 4 + REST_BYTES;
        assert!(most <= bound, "{path}: {} MiB of {}", most / MIB, bound / MIB);
        let [read, refused] = [200, 503].map(|status| {
            responses.iter().filter(|response| response.status().as_u16() == status).count()
        });
        assert_eq!(read + refused, READERS, "{path}");
        assert!(read > 0 && refused > 0, "{path}: {read} read, {refused} refused");
        drop(responses);
        assert!(until_held(before + REST_BYTES).await, "{path} left {}", held() - before);
        assert_eq!(server.app.request_memory_free_bytes(), free, "{path}");
    }
}

#[tokio::test]
async fn what_is_stored_is_parsed_and_written_elsewhere() {
    let _turn = TURN.lock().await;
    let server = Server::with_store(&[], store().await);
    // Such an object has as many bytes as the largest body; counting its values alone takes more.
    let most = most_of_network_thread(BODY_BYTES).await / 2;
    for (method, path) in READS {
        let request = async || {
            let response = ask(&server, (method.clone(), path)).await;
            assert_eq!(response.status().as_u16(), 200, "{path}");
            // Piece by piece, as a connection takes it.
            let (mut body, mut bytes) = (response.into_body(), 0);
            while let Some(frame) = body.frame().await {
                bytes += frame.unwrap().data_ref().map_or(0, Bytes::len);
            }
            assert!(bytes >= MESSAGES * MESSAGE_BYTES, "{path}: {bytes} bytes");
        };
        let busy = least_time(most, request).await;
        println!("{path} takes {busy:?}");
        assert!(busy <= most, "{path}: {busy:?}");
    }
}
