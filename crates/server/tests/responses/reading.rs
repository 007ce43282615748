//! Requests to `/v1/responses`, and its event streams as a client reads them.

use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

use super::harness::Server;

/// The reply to any request: its status and its JSON.
pub async fn call(
    server: &Server,
    (method, path): (Method, &str),
    key: Option<&str>,
    body: Option<&Value>,
) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
    let response = server.call(request.body(body).unwrap()).await;
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// The reply to a POST.
pub async fn post(server: &Server, path: &str, body: &Value) -> (StatusCode, Value) {
    call(server, (Method::POST, path), None, Some(body)).await
}

/// The reply to a GET.
pub async fn get(server: &Server, path: &str) -> (StatusCode, Value) {
    call(server, (Method::GET, path), None, None).await
}

/// The reply to a DELETE.
pub async fn delete(server: &Server, path: &str) -> (StatusCode, Value) {
    call(server, (Method::DELETE, path), None, None).await
}

/// A response in one body.
pub async fn ask(server: &Server, body: Value) -> Value {
    let (status, response) = post(server, "/v1/responses", &body).await;
    assert_eq!(status, StatusCode::OK, "{response}");
    response
}

/// All events of a response.
pub async fn stream(server: &Server, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let (status, body) = server.post("/v1/responses", &body).await;
    assert_eq!(status, StatusCode::OK);
    let mut events = EventReader::new(body);
    let all = events.all().await;
    assert!(events.ended_cleanly, "{all:?}");
    all
}

/// All events of a GET.
pub async fn reread(server: &Server, path: &str) -> Vec<Value> {
    let response = server.call(Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    EventReader::new(response.into_body()).all().await
}

/// The text of a response's messages.
pub fn text_of(response: &Value) -> String {
    let output = response["output"].as_array().unwrap();
    let parts =
        output.iter().flat_map(|item| item["content"].as_array().cloned().unwrap_or_default());
    parts.filter_map(|part| part["text"].as_str().map(str::to_owned)).collect()
}

/// Asserts that the events are numbered one by one from `first` on.
pub fn is_numbered(events: &[Value], first: u64) {
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], first + at as u64, "{event}");
    }
}

/// Reads an event stream.
pub struct EventReader {
    body: Body,
    buffer: Vec<u8>,
    /// Whether the body has ended, and without an error.
    pub ended_cleanly: bool,
}

impl EventReader {
    pub fn new(body: Body) -> Self {
        Self { body, buffer: Vec::new(), ended_cleanly: false }
    }

    /// The events up to the end.
    pub async fn all(&mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }

    /// The next event; its name is that in its data.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).unwrap();
                let Some(rest) = event.strip_prefix("event: ") else { continue }; // a comment
                let (name, data) = rest.split_once("\ndata: ").unwrap();
                let data: Value = serde_json::from_str(data).unwrap();
                assert_eq!(data["type"], name);
                return Some(data);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap()),
                Some(Err(_)) => return None,
                None => {
                    self.ended_cleanly = true;
                    return None;
                }
            }
        }
    }
}
