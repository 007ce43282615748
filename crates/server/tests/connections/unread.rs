//! Requests over HTTP/1.1 that are refused by their heads: the rest of the body is read, or the
//! client is told that the connection ends (RFC 9112, section 9.3).

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::*;

/// The head of a request that comes from a page of another host, which is refused by its head.
fn refused_head(length: usize, more: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\norigin: http://other.example\r\n\
         {more}content-length: {length}\r\n\r\n"
    )
}

/// One response with a length, in lower case, from a connection that goes on.
async fn next_response(connection: &mut TcpStream) -> String {
    let mut text = String::new();
    let head_length = |text: &str| text.find("\r\n\r\n").map(|end| end + 4);
    loop {
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.parse::<usize>().ok());
        if let (Some(head), Some(length)) = (head_length(&text), length)
            && text.len() >= head + length
        {
            return text;
        }
        let mut bytes = [0; 4096];
        let read = tokio::time::timeout(PATIENCE, connection.read(&mut bytes)).await;
        let read = read.expect("a response comes").unwrap();
        assert_ne!(read, 0, "the connection ended after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]).to_lowercase());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_body_that_nobody_reads_leaves_the_connection_open() {
    let server = Server::start(limits()).await;
    let mut connection = server.connect().await;
    // More than the server reads with the head.
    let length = 60_000;
    let whole = refused_head(length, "") + &" ".repeat(length);
    for _ in 0..2 {
        connection.write_all(whole.as_bytes()).await.unwrap();
        let refusal = next_response(&mut connection).await;
        assert!(refusal.starts_with("http/1.1 403"), "{refusal}");
        assert!(!refusal.contains("connection: close"), "{refusal}");
    }
    connection.write_all(request("GET", "/health", &[], "").as_bytes()).await.unwrap();
    assert_eq!(response(connection).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_because_of_an_unread_body_says_so() {
    let server = Server::start(limits()).await;
    let never_sent = refused_head(10, "");
    let too_large = refused_head(1_000_000, "");
    let waits_for_word = refused_head(10, "expect: 100-continue\r\n");
    for head in [never_sent, too_large, waits_for_word] {
        let mut connection = server.connect().await;
        connection.write_all(head.as_bytes()).await.unwrap();
        let (status, refusal) = response(connection).await;
        assert_eq!(status, 403, "{refusal}");
        assert!(refusal.to_lowercase().contains("connection: close"), "{head}: {refusal}");
    }
}
