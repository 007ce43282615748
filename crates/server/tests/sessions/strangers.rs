//! What somebody without a key may cost over QUIC: little memory, and none for a body.

use std::time::{Duration, Instant};

use loquent_proto::message::{Code, MessageKind};
use serde_json::json;
use tokio::time::timeout;

use super::harness::*;

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
        json!({"method": "POST", "path": path, "channel": 1}),
        json!({"method": "POST", "path": path, "channel": 2, "key": "wrong"}),
        json!({"method": "POST", "path": path, "channel": 3, "key": "line\nend"}),
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
async fn so_may_a_request_for_an_answer_and_its_member_key_counts_first() {
    let server = start(guarded()).await;
    let (_endpoint, connection) = connect(&server).await;
    let (right, wrong) = ("Bearer secret", "Bearer wrong");
    for (channel, header, key, is_let_in) in [
        (0, Some(right), None, true),
        (1, Some(wrong), Some("secret"), true),
        (2, Some(wrong), None, false),
        (3, Some(right), Some("wrong"), false),
        (4, None, None, false),
    ] {
        let headers = header.map(|header| json!({"authorization": header}));
        let more = json!({"key": key, "headers": headers});
        let body = chat(3, json!({}));
        let mut reader = Reader::ask_with(&connection, channel, &body, more).await;
        reader.run(usize::MAX).await;
        assert_eq!(reader.complete, is_let_in, "{header:?}, {key:?}: {:?}", reader.said);
        if !is_let_in {
            let refused =
                matches!(&reader.said[..], [Said::Response(head, _)] if head["status"] == 401);
            assert!(refused, "{:?}", reader.said);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_counts_once_however_it_is_sent() {
    /// Wrong keys of one address within a minute before it is told to wait.
    const WRONG_KEYS: usize = 60;
    let server = start(guarded()).await;
    let (_endpoint, connection) = connect(&server).await;
    let began = Instant::now();
    let mut statuses = Vec::new();
    for channel in 0..=WRONG_KEYS {
        let mut head = json!({"method": "POST", "path": "/v1/chat/completions", "key": "wrong"});
        if channel % 2 == 1 {
            head["channel"] = json!(channel);
        }
        let mut stream = Stream::open(&connection).await;
        stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
        let Said::Response(head, _) = stream.hear().await else { panic!("no response") };
        statuses.push(head["status"].as_u64().unwrap());
    }
    // The budget refills by one each second.
    let refilled = began.elapsed().as_secs() as usize + 1;
    let told_to_wait = statuses.iter().filter(|status| **status == 429).count();
    let expected: Vec<u64> = [401].repeat(WRONG_KEYS);
    assert_eq!(statuses[..WRONG_KEYS], expected, "each counts once");
    assert!(told_to_wait == 1 || refilled > 1, "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_and_refusals_tell_what_is_left_of_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let owner = "[[key]]\nname = \"alice\"\nkey = \"secret\"\nrequests_per_minute = 2\n";
    std::fs::write(&file, owner).unwrap();
    let server = start(Setup { key_file: Some(file), ..Setup::default() }).await;
    let (_endpoint, connection) = connect(&server).await;
    for (channel, remaining) in [(0, "1"), (1, "0"), (2, "0")] {
        let body = chat(3, json!({}));
        let mut reader = Reader::ask_with_key(&connection, channel, &body, Some("secret")).await;
        reader.run(usize::MAX).await;
        let (Said::Answer(head) | Said::Response(head, _)) = &reader.said[0] else {
            panic!("{:?}", reader.said);
        };
        assert_eq!(head["headers"]["x-ratelimit-limit-requests"], "2", "{head}");
        assert_eq!(head["headers"]["x-ratelimit-remaining-requests"], remaining, "{head}");
        assert_eq!(head["status"] == 429, channel == 2, "{head}");
    }
    let mut stream = Stream::open(&connection).await;
    let head = json!({"method": "GET", "path": "/v1/models", "key": "secret"});
    stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
    stream.send.finish().unwrap();
    let Said::Response(head, _) = stream.hear().await else { panic!("no response") };
    assert_eq!(head["headers"]["x-ratelimit-limit-requests"], "2", "{head}");
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
        assert_eq!(stream.hear().await, Said::Reset(Code::Malformed), "{} bytes", hostile.len());
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
        stream.send.reset(Code::Cancelled.number()).unwrap();
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
