//! Heads of HTTP requests are bounded, in both versions.

use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::*;

/// No head may be longer, in any version.
const MOST_BYTES: usize = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_of_http_1_is_refused_beyond_its_bound() {
    let server = start(Setup::default()).await;
    let mut stream = TcpStream::connect(server.http).await.unwrap();
    let head = format!("GET /health HTTP/1.1\r\nhost: a\r\nx: {}", "a".repeat(MOST_BYTES));
    // The server may close before all of it is written.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    let response = String::from_utf8_lossy(&response);
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 431"), "{response}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_of_http_2_is_refused_beyond_its_bound() {
    let server = start(Setup::default()).await;
    let mut client = Client::builder(TokioExecutor::new());
    let client = client.http2_only(true).build_http::<Empty<bytes::Bytes>>();
    let ask = |length: usize| {
        let request = http::Request::get(format!("http://{}/health", server.http));
        client.request(request.header("x", "a".repeat(length)).body(Empty::new()).unwrap())
    };
    assert_eq!(ask(1000).await.unwrap().status(), 200);
    if let Ok(response) = ask(MOST_BYTES).await {
        assert_eq!(response.status(), 431);
    }
    assert_eq!(ask(1000).await.unwrap().status(), 200, "others go on");
}
