//! No client holds a connection for longer than the limits allow by doing nothing, or too little.

use std::time::Duration;

use bytes::Bytes;
use loquent_server::TcpLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::harness::*;

/// The beginning of an HTTP/2 connection (RFC 9113 §3.4), with empty SETTINGS.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_request_is_closed() {
    let server = Server::start(TcpLimits { request_timeout: SOON, ..limits() }).await;
    let half_a_head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx: ";
    for beginning in [&b""[..], b"P", b"PRI ", &HTTP2[..20], HTTP2, half_a_head] {
        let mut connection = server.connect().await;
        connection.write_all(beginning).await.unwrap();
        closed(connection).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_trickles_in_is_not_waited_for() {
    let server = Server::start(TcpLimits { request_timeout: SOON, ..limits() }).await;
    let (mut reader, mut writer) = server.connect().await.into_split();
    let trickle = tokio::spawn(async move {
        writer.write_all(b"GET /health HTTP/1.1\r\nx: ").await.unwrap();
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    closed(&mut reader).await;
    trickle.await.unwrap();
}

/// Many clients read a response only after they have sent all of the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_is_read_before_it_is_refused() {
    /// Twenty times what the sockets hold of it.
    const PIECES: usize = 512;
    let server = Server::start(limits()).await;
    let mut connection = server.connect_narrow().await;
    let piece = [b' '; 1 << 16];
    let head = |bytes: usize| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n"
        )
    };
    connection.write_all(head(PIECES * piece.len()).as_bytes()).await.unwrap();
    for _ in 0..PIECES {
        connection.write_all(&piece).await.unwrap();
    }
    let mut status = [0; 12];
    connection.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
    // One that is larger than the server reads is refused at once.
    let mut connection = server.connect().await;
    connection.write_all(head(1 << 40).as_bytes()).await.unwrap();
    connection.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_handshake_that_does_not_end_is_closed() {
    let certificate = Certificate::new("handshake");
    let server = Server::start_with(|config| {
        config.https = Some(certificate.source());
        config.tcp.request_timeout = SOON;
    })
    .await;
    // Nothing, and the beginning of a ClientHello.
    for beginning in [&b""[..], &[22, 3, 1, 2, 0, 1, 0]] {
        let mut connection = server.connect().await;
        connection.write_all(beginning).await.unwrap();
        closed(connection).await;
    }
    // After the handshake, silence; where the machine is so slow that it takes too long, before.
    if let Ok(stream) = certificate.connect(&server, &[b"h2"]).await {
        closed(stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_is_closed_after_a_request_too() {
    let server = Server::start(TcpLimits { idle_timeout: SOON, ..limits() }).await;
    let mut first = server.connect().await;
    first.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(closed(first).await.starts_with(b"HTTP/1.1 200"));
    let (client, connection) = h2::client::handshake(server.connect().await).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::get("http://localhost/health").body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    // The client stays and would send more.
    let _ = tokio::time::timeout(PATIENCE, driver).await.expect("closed by the server");
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_client_that_does_not_answer_pings_is_given_up() {
    let limits = TcpLimits { ping_interval: SOON, ..limits() };
    let server = Server::start(limits).await;
    let mut connection = server.connect().await;
    connection.write_all(HTTP2).await.unwrap();
    // It reads, and never acknowledges.
    closed(connection).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_bounds_the_requests_at_once() {
    let server = Server::start(TcpLimits { max_streams: 7, ..limits() }).await;
    let (client, connection) = h2::client::handshake(server.connect().await).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::get("http://localhost/health").body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    response.await.unwrap();
    assert_eq!(client.current_max_send_streams(), 7);
}

/// Sends a request's head, and its body byte by byte, until the server answers.
async fn trickle(server: &Server, bytes: usize, every: Duration) -> (u16, String) {
    let (reader, mut writer) = server.connect().await.into_split();
    let body = format!("{:<bytes$}", r#"{"prompt": "x"}"#);
    let request = request("POST", "/tokenize", &[], &body).into_bytes();
    tokio::spawn(async move {
        // The first byte comes with the head, so that no pause between them counts.
        let (beginning, rest) = request.split_at(request.len() - bytes + 1);
        writer.write_all(beginning).await.unwrap();
        for &byte in rest {
            if writer.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(every).await;
        }
        std::future::pending::<()>().await;
    });
    response(reader).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_trickles_in_is_refused() {
    // Longer than a busy machine takes for the head.
    let limits = TcpLimits { request_timeout: 10 * SOON, ..limits() };
    let server = Server::start(limits).await;
    let (status, text) = trickle(&server, 60_000, Duration::from_millis(5)).await;
    assert_eq!(status, 408, "{text}");
    assert!(text.contains("request_timeout") && text.contains("--request-timeout-s"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_comes_at_the_least_rate_is_taken() {
    // Each byte gives its sender ten seconds.
    let limits = TcpLimits { request_timeout: 10 * SOON, body_bytes_per_s: 1, ..limits() };
    let server = Server::start(limits).await;
    let (status, text) = trickle(&server, 150, SOON / 10).await;
    assert_eq!(status, 200, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_came_fast_and_stops_is_refused_as_soon_as_any_other() {
    // By its rate alone each of its bytes would give its sender a second: over an hour.
    let limits = TcpLimits { request_timeout: 10 * SOON, body_bytes_per_s: 1, ..limits() };
    let server = Server::start(limits).await;
    let (reader, mut writer) = server.connect().await.into_split();
    let body = format!("{:<5000}", r#"{"prompt": "x"}"#);
    let request = request("POST", "/tokenize", &[], &body).into_bytes();
    writer.write_all(&request[..request.len() - 1]).await.unwrap();
    let (status, text) = response(reader).await;
    assert_eq!(status, 408, "{text}");
}

/// More than the kernel holds for a reader that reads nothing: some 16 MB of events.
fn large_answer(more: serde_json::Value) -> String {
    let mut body = serde_json::from_str(&chat(8_000, json!({"n": 12}))).unwrap();
    let serde_json::Value::Object(fields) = &mut body else { unreachable!("an object") };
    fields.extend(more.as_object().unwrap().clone());
    body.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_nobody_reads_gives_its_place_back() {
    let limits = TcpLimits { max_connections: 1, write_timeout: SOON, ..limits() };
    let server = Server::start(limits).await;
    let mut unread = server.connect_narrow().await;
    let body = large_answer(json!({}));
    let asked = request("POST", "/v1/chat/completions", &[], &body);
    unread.write_all(asked.as_bytes()).await.unwrap();
    unread.readable().await.unwrap();
    server.until_free().await;
    // What had left before is followed by the end of the connection, never by a clean one.
    let sent = closed(unread).await;
    assert!(sent.starts_with(b"HTTP/1.1 200") && !sent.ends_with(b"0\r\n\r\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_nobody_reads_over_http2_gives_its_place_back() {
    let limits = TcpLimits { max_connections: 1, write_timeout: SOON, ..limits() };
    let server = Server::start(limits).await;
    let (client, connection) = h2::client::handshake(server.connect().await).await.unwrap();
    // The connection lives: it answers pings and takes settings. Only the window stays shut.
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::post("http://localhost/v1/chat/completions").body(()).unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    body.send_data(Bytes::from(large_answer(json!({}))), true).unwrap();
    let unread = response.await.unwrap();
    assert_eq!(unread.status(), 200);
    server.until_free().await;
    drop(unread);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumable_answer_outlives_its_connection() {
    let server = Server::start_with(|config| {
        // The rest of the answer is read within it, on a busy machine too.
        config.tcp.write_timeout = 20 * SOON;
        config.tcp.max_connections = 1;
        config.kept.log_bytes = 8 * 1024 * 1024;
        config.kept.unacked_bytes = 8 * 1024 * 1024;
    })
    .await;
    let mut unread = server.connect_narrow().await;
    let body = large_answer(json!({"resumable": true}));
    let asked = request("POST", "/v1/chat/completions", &[], &body);
    unread.write_all(asked.as_bytes()).await.unwrap();
    let mut head = vec![0; 1024];
    let read = unread.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..read]).to_lowercase();
    let header = |name: &str| {
        let rest = head.split_once(&format!("{name}: ")).unwrap_or_else(|| panic!("{head}")).1;
        rest.split("\r\n").next().unwrap().to_owned()
    };
    let (id, token) = (header("x-loquent-stream-id"), header("x-loquent-stream-token"));
    let path = format!("/v1/streams/{id}");
    let headers = [("x-loquent-stream-token", token.as_str())];
    let (status, text) = server.get_when_free(&path, &headers).await;
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("data: [DONE]"), "the whole answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_body_does_not_hold_up_a_shutdown() {
    let server = Server::start(limits()).await;
    let mut slow = server.connect().await;
    let head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{";
    slow.write_all(head).await.unwrap();
    let mut silent = server.connect().await;
    silent.write_all(b"GET /health HTT").await.unwrap();
    // Answered, so that the other connections have been accepted before.
    assert_eq!(server.get("/health", &[]).await.0, 200);
    server.shutdown.send(()).unwrap();
    let ended = tokio::time::timeout(PATIENCE, server.run).await;
    ended.expect("long before the drain limit").unwrap().unwrap();
    closed(slow).await;
    closed(silent).await;
}
