//! Files and batches on the simulated engine: what one owner may have, and who may have any.

use axum::body::Body;
use http::{Request, header};
use http_body_util::BodyExt;
use loquent_server::{ApiKeys, HttpConfig};
use serde_json::{Value, json};

use crate::streams::harness::{self, Server};

const LINE: &str = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"tokens=2000"}]}}"#;

async fn send(server: &Server, key: &str, request: Request<Body>) -> (u16, Value) {
    let (mut head, body) = request.into_parts();
    head.headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    let response = server.call(Request::from_parts(head, body)).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

async fn upload(server: &Server, key: &str) -> (u16, Value) {
    let part = |rest: &str| format!("--b\r\nContent-Disposition: form-data; {rest}\r\n");
    let purpose = part("name=\"purpose\"\r\n\r\nbatch");
    let file = part(&format!("name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{LINE}"));
    let request = Request::post("/v1/files")
        .header(header::CONTENT_TYPE, "multipart/form-data; boundary=b")
        .body(Body::from(format!("{purpose}{file}--b--\r\n")));
    send(server, key, request.unwrap()).await
}

async fn begin(server: &Server, key: &str, file: &Value) -> (u16, Value) {
    let body = json!({
        "input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h",
    });
    let request = Request::post("/v1/batches").body(Body::from(body.to_string()));
    send(server, key, request.unwrap()).await
}

fn with_keys() -> HttpConfig {
    let keys = ["ann", "bob"].map(str::to_owned);
    HttpConfig { api_keys: ApiKeys::new(keys), ..harness::http_config() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_has_a_bounded_number_of_batches() {
    // Nothing ends while it is paced.
    let server = Server::over_with(harness::paced(), with_keys());
    let (status, file) = upload(&server, "ann").await;
    assert_eq!(status, 200, "{file}");
    let mut statuses = Vec::new();
    for _ in 0..33 {
        statuses.push(begin(&server, "ann", &file).await.0);
    }
    assert_eq!(statuses[..32], [200; 32]);
    assert_eq!(statuses[32], 429);
    let (_, file) = upload(&server, "bob").await;
    assert_eq!(begin(&server, "bob", &file).await.0, 200, "another owner has room");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_token_has_neither_files_nor_batches() {
    let server = Server::with_http(with_keys(), |_| {});
    let request = Request::post("/v1/tokens").body(Body::from("{}")).unwrap();
    let (status, token) = send(&server, "ann", request).await;
    assert_eq!(status, 200, "{token}");
    let token = token["token"].as_str().unwrap();
    assert_eq!(upload(&server, token).await.0, 403);
    assert_eq!(begin(&server, token, &json!({"id": "file-1"})).await.0, 403);
}
