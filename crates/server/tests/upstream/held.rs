//! Answers of an upstream that are held whole are charged to the memory of requests, and what does
//! not fit is refused.

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::speaking::Upstream;
use super::stand_in::stream;
use super::{FINISH, Front, Settings, read};

const CHAT: &str = "POST /v1/chat/completions";
/// Memory of all requests together.
const MEMORY: usize = 4 << 20;
/// Pieces of an endless answer.
const PIECE: usize = 256 << 10;

fn little_memory(settings: &mut Settings) {
    settings.http.max_request_memory_bytes = MEMORY;
}

/// An upstream whose answer is `pieces` long.
async fn upstream(pieces: usize) -> Upstream {
    let text = "a".repeat(PIECE);
    let piece = json!({"id": "up-1", "choices": [{"index": 0, "delta": {"content": text}}]});
    let piece = piece.to_string();
    let mut events = vec![piece.as_str(); pieces];
    events.extend([FINISH, "[DONE]"]);
    Upstream::start([(CHAT, stream(&events))]).await
}

fn requests() -> [(&'static str, Value); 3] {
    let messages = json!([{"role": "user", "content": "hi"}]);
    [
        ("/v1/messages", json!({"model": "m", "max_tokens": 5, "messages": messages})),
        ("/v1/responses", json!({"model": "m", "input": "hi", "store": false})),
        ("/v1/responses", json!({"model": "m", "input": "hi", "store": false, "stream": true})),
    ]
}

#[tokio::test]
async fn an_answer_that_does_not_fit_into_memory_is_refused() {
    let up = upstream(2 * MEMORY / PIECE).await;
    let front = Front::with(&up.url, little_memory);
    let free = front.app.request_memory_free_bytes();
    for (path, body) in requests() {
        let response = front.post(path, body.clone()).await;
        match body["stream"] == true {
            false => assert_eq!(response.status().as_u16(), 503, "{path}"),
            true => {
                // It fails with the error as an event, or is broken off behind it.
                let mut text = Vec::new();
                let mut body = response.into_body();
                while let Some(Ok(frame)) = body.frame().await {
                    text.extend_from_slice(frame.data_ref().unwrap());
                }
                let text = String::from_utf8_lossy(&text);
                assert!(text.contains("response.failed"), "{path} ends as it should not");
                assert!(!text.contains("response.completed"));
            }
        }
        assert_eq!(front.app.request_memory_free_bytes(), free, "{path}: the charge is returned");
    }
}

#[tokio::test]
async fn an_answer_that_fits_passes() {
    let up = upstream(MEMORY / PIECE / 4).await;
    let front = Front::with(&up.url, little_memory);
    for (path, body) in requests() {
        let response = front.post(path, body).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.into_body().collect().await.expect("the answer is whole");
    }
}

#[tokio::test]
async fn a_stream_too_long_for_the_store_is_not_stored_and_passes_whole() {
    for (pieces, status) in [(2 * MEMORY / PIECE, 404), (1, 200)] {
        let up = upstream(pieces).await;
        let front = Front::with(&up.url, little_memory);
        let read = read(front.ask(json!({"store": true})).await).await;
        assert!(read.done && read.text().len() == pieces * PIECE, "{pieces} pieces");
        let path = format!("/v1/chat/completions/{}", read.events[0]["id"].as_str().unwrap());
        let stored_one = Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(front.send(stored_one).await.status().as_u16(), status, "{pieces} pieces");
    }
}
