//! Files and batches on the simulated engine: what one owner may have, and who may have any.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use http::{Request, header};
use http_body_util::BodyExt;
use loquent_server::{ApiKeys, HttpConfig};
use serde_json::{Value, json};

use crate::streams::harness::{self, Server};

/// The input of a batch of `count` lines, each for an answer of `tokens` tokens.
fn lines(count: usize, tokens: usize) -> String {
    let line = |at: usize| {
        let body = json!({"messages": [{"role": "user", "content": format!("tokens={tokens}")}]});
        let url = "/v1/chat/completions";
        let id = at.to_string();
        let line = json!({"custom_id": id, "method": "POST", "url": url, "body": body});
        format!("{line}\n")
    };
    (0..count).map(line).collect()
}

async fn send(server: &Server, key: &str, request: Request<Body>) -> (u16, Value) {
    let (mut head, body) = request.into_parts();
    head.headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    let response = server.call(Request::from_parts(head, body)).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

async fn upload(server: &Server, key: &str, lines: &str) -> (u16, Value) {
    let part = |rest: &str| format!("--b\r\nContent-Disposition: form-data; {rest}\r\n");
    let purpose = part("name=\"purpose\"\r\n\r\nbatch");
    let file = part(&format!("name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{lines}"));
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

/// The batch as it is once it is as `wanted`.
async fn until(server: &Server, key: &str, id: &Value, wanted: impl Fn(&Value) -> bool) -> Value {
    let reached = async {
        loop {
            let path = format!("/v1/batches/{}", id.as_str().unwrap());
            let request = Request::get(path).body(Body::empty()).unwrap();
            let (_, batch) = send(server, key, request).await;
            if wanted(&batch) {
                return batch;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("the batch gets there")
}

/// Keys of a file with the text `text`.
fn keys_of(path: &Path, text: &str) -> HttpConfig {
    std::fs::write(path, text).unwrap();
    let api_keys = ApiKeys::load(&[], Some(path.to_owned()), None).unwrap();
    HttpConfig { api_keys, ..harness::http_config() }
}

fn with_keys() -> HttpConfig {
    let keys = ["ann", "bob"].map(str::to_owned);
    HttpConfig { api_keys: ApiKeys::new(keys), ..harness::http_config() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_has_a_bounded_number_of_batches() {
    // Nothing ends while it is paced.
    let server = Server::over_with(harness::paced(), with_keys());
    let (status, file) = upload(&server, "ann", &lines(1, 2000)).await;
    assert_eq!(status, 200, "{file}");
    let mut statuses = Vec::new();
    for _ in 0..33 {
        statuses.push(begin(&server, "ann", &file).await.0);
    }
    assert_eq!(statuses[..32], [200; 32]);
    assert_eq!(statuses[32], 429);
    let (_, file) = upload(&server, "bob", &lines(1, 2000)).await;
    assert_eq!(begin(&server, "bob", &file).await.0, 200, "another owner has room");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_token_has_neither_files_nor_batches() {
    let server = Server::with_http(with_keys(), |_| {});
    let request = Request::post("/v1/tokens").body(Body::from("{}")).unwrap();
    let (status, token) = send(&server, "ann", request).await;
    assert_eq!(status, 200, "{token}");
    let token = token["token"].as_str().unwrap();
    assert_eq!(upload(&server, token, &lines(1, 5)).await.0, 403);
    assert_eq!(begin(&server, token, &json!({"id": "file-1"})).await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_key_begins_no_further_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let table = |name: &str, key: &str| format!("[[key]]\nname = \"{name}\"\nkey = \"{key}\"\n");
    let bob = table("bob", "bob");
    let http = keys_of(&path, &format!("{}{bob}", table("ann", "old")));
    let watching = tokio::spawn(http.api_keys.clone().keep_current());
    // A line takes half a second, and four run at once: eight seconds in all.
    let server = Server::over_with(harness::paced(), http);
    let (_, file) = upload(&server, "old", &lines(64, 500)).await;
    let (status, batch) = begin(&server, "old", &file).await;
    assert_eq!(status, 200, "{batch}");
    std::fs::write(&path, &bob).unwrap();
    server.until("batch_lines_total{outcome=\"error\"}", |lines| lines >= 1.0).await;
    std::fs::write(&path, format!("{}{bob}", table("ann", "new"))).unwrap();
    let batch = until(&server, "new", &batch["id"], |batch| batch["status"] == "completed").await;
    assert_ne!(batch["request_counts"]["completed"], 64);
    let path = format!("/v1/files/{}/content", batch["error_file_id"].as_str().unwrap());
    let mut request = Request::get(path).body(Body::empty()).unwrap();
    request.headers_mut().insert(header::AUTHORIZATION, "Bearer new".parse().unwrap());
    let bytes = server.call(request).await.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.lines().all(|line| line.contains("\"key_revoked\"")), "{text}");
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_are_refused_leave_their_turn_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let (poor, free) = (["a", "b", "c", "d"], "e");
    let table = |name: &str| format!("[[key]]\nname = \"{name}\"\nkey = \"{name}\"\n");
    let spent = poor.map(|name| format!("{}tokens_per_day = 1\n", table(name)));
    let text = format!("{}{}", spent.concat(), table(free));
    let server = Server::with_http(keys_of(&folder.path().join("keys"), &text), |_| {});
    for key in poor {
        let body = harness::chat(5, false, json!({})).to_string();
        let request = Request::post("/v1/chat/completions").body(Body::from(body)).unwrap();
        let (status, answer) = send(&server, key, request).await;
        assert_eq!(status, 200, "{answer}");
        let (_, file) = upload(&server, key, &lines(6, 5)).await;
        let (_, batch) = begin(&server, key, &file).await;
        until(&server, key, &batch["id"], |batch| batch["status"] == "in_progress").await;
    }
    let (_, file) = upload(&server, free, &lines(6, 5)).await;
    let (_, batch) = begin(&server, free, &file).await;
    let batch = until(&server, free, &batch["id"], |batch| batch["status"] == "completed").await;
    assert_eq!(batch["request_counts"]["completed"], 6);
}
