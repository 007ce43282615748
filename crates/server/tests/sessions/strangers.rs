//! What somebody without a key may cost over QUIC: little memory, and none for a body.

use std::time::Duration;

use loquent_proto::message::{MessageKind, code};
use serde_json::json;
use tokio::time::timeout;

use crate::harness::*;

/// Streams that a connection has before the server lets a request of it in.
const STRANGER_STREAMS: usize = 16;

fn guarded() -> Setup {
    Setup { keys: vec!["secret".to_owned()], ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_is_checked_before_the_body_comes() {
    let server = start(guarded()).await;
    let (_endpoint, connection) = connect(&server).await;
    let path = "/v1/chat/completions";
    for head in [
        json!({"method": "POST", "path": path, "stream": 1}),
        json!({"method": "POST", "path": path, "stream": 1, "key": "wrong"}),
        json!({"method": "POST", "path": path, "stream": 1, "key": "line\nend"}),
        json!({"method": "POST", "path": path}),
        json!({"method": "POST", "path": path, "headers": {"authorization": "Bearer wrong"}}),
        json!({"method": "POST", "path": "/tokenize"}),
    ] {
        let mut stream = Stream::open(&connection).await;
        // No body, and no end of one: a server that waited for it would not respond.
        stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
        let said = stream.hear().await;
        assert!(matches!(&said, Said::Response(head, _) if head["status"] == 401), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnelled_request_may_have_its_key_among_its_headers() {
    let server = start(guarded()).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut stream = Stream::open(&connection).await;
    let headers = json!({"Authorization": "Bearer secret"});
    let head = json!({"method": "POST", "path": "/v1/completions", "headers": headers});
    stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
    // In pieces of any size, and empty ones.
    for piece in [&b"{\"prompt\":"[..], b"", b"\"tokens=3\"", b"}"] {
        stream.say(MessageKind::Body, piece).await;
    }
    stream.send.finish().unwrap();
    let said = stream.hear().await;
    assert!(matches!(&said, Said::Response(head, _) if head["status"] == 200), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_are_bounded_in_bytes_and_in_values() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let head = |header: String| {
        json!({"method": "GET", "path": "/health", "headers": {"x": header}}).to_string()
    };
    let values = format!(r#"{{"method":"GET","path":"/health","x":[0{}]}}"#, ",0".repeat(2000));
    let deep = format!(r#"{{"method":"GET","path":"/health","x":{}"#, "[".repeat(1000));
    for hostile in [head("a".repeat(64 * 1024)), values, deep] {
        let mut stream = Stream::open(&connection).await;
        stream.say(MessageKind::Request, hostile.as_bytes()).await;
        let _ = stream.send.finish();
        assert_eq!(stream.hear().await, Said::Reset(code::PROTOCOL), "{} bytes", hostile.len());
    }
    let mut stream = Stream::open(&connection).await;
    stream.say(MessageKind::Request, head("a".repeat(60 * 1024)).as_bytes()).await;
    stream.send.finish().unwrap();
    let said = stream.hear().await;
    assert!(matches!(&said, Said::Response(head, _) if head["status"] == 200), "{said:?}");
}

/// A stranger has few streams and little of a window; whoever is let in has all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_may_send_more_once_a_request_of_it_was_let_in() {
    let setup = Setup { quic: |quic| quic.max_streams = 100, ..guarded() };
    let server = start(setup).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut strangers = Vec::new();
    for _ in 0..STRANGER_STREAMS {
        strangers.push(half_a_head(&connection).await);
    }
    let one_more = half_a_head(&connection);
    assert!(timeout(Duration::from_millis(50), one_more).await.is_err(), "as many as anybody");
    // QUIC tells of new room only once there is some.
    for mut stream in strangers.drain(..4) {
        stream.send.reset(code::CANCELLED).unwrap();
    }
    let mut stream = Stream::open(&connection).await;
    let head = json!({"method": "GET", "path": "/v1/models", "key": "secret"});
    stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
    stream.send.finish().unwrap();
    let said = stream.hear().await;
    assert!(matches!(&said, Said::Response(head, _) if head["status"] == 200), "{said:?}");
    let mut friends = Vec::new();
    for _ in 0..3 * STRANGER_STREAMS {
        friends.push(half_a_head(&connection).await);
    }
}

/// A stream with the beginning of a message, for whose rest the server waits.
async fn half_a_head(connection: &web_transport_quinn::Session) -> Stream {
    let mut stream = Stream::open(connection).await;
    stream.send.write_all(&[0, 0x40]).await.unwrap();
    stream
}
