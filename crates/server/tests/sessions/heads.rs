//! Heads of HTTP requests are bounded, in both versions.

use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::*;

/// No head may be longer, in any version.
const MOST_BYTES: usize = 64 * 1024;

/// Asks for `/health` on a connection that stays open; gives the status line.
async fn health(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"}") {
        assert!(stream.read_buf(&mut response).await.unwrap() > 0, "it is closed");
    }
    String::from_utf8(response).unwrap().lines().next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_of_http_1_is_refused_beyond_its_bound() {
    let server = start(Setup::default()).await;
    let mut other = TcpStream::connect(server.http).await.unwrap();
    assert_eq!(health(&mut other).await, "HTTP/1.1 200 OK");
    let mut stream = TcpStream::connect(server.http).await.unwrap();
    let head = format!("GET /health HTTP/1.1\r\nhost: a\r\nx: {}", "a".repeat(MOST_BYTES));
    // The server may close before all of it is written.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut response = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut response)).await;
    let _ = closed.expect("the server closes the connection");
    let response = String::from_utf8_lossy(&response);
    // A reset because of what the server has not read can take the response with it.
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 431"), "{response}");
    assert_eq!(health(&mut other).await, "HTTP/1.1 200 OK", "others go on");
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
