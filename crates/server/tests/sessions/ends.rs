//! How QUIC streams begin and end: which messages are skipped, which channels are refused, and
//! which code says why an answer's path is over (S-2.1, S-2.6, S-4.1).

use std::time::Duration;

use loquent_needs::redis::RedisServer;
use loquent_proto::frame::Frame;
use loquent_proto::message::{Code, MessageKind};
use loquent_server::{ALPN, SharedAddress, StoreConfig, StoreLocation};
use serde_json::{Value, json};

use super::harness::*;
use crate::simulated::FOREVER;
use crate::upstream::stand_in::{Act, StandIn};

/// Writes a message of any type.
async fn say_type(stream: &mut Stream, type_byte: u8, payload: &[u8]) {
    let mut bytes = vec![type_byte];
    loquent_proto::wire::put_bytes(&mut bytes, payload);
    let _ = stream.send.write_all(&bytes).await;
}

fn ask_head(channel: u64, more: Value) -> String {
    let mut head = json!({"method": "POST", "path": "/v1/chat/completions", "channel": channel});
    head.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    head.to_string()
}

/// Asks for the answer to `body` by datagram, and hears nothing yet.
async fn ask_for(connection: &web_transport_quinn::Session, channel: u64, body: &str) -> Stream {
    let mut stream = Stream::open(connection).await;
    stream.say(MessageKind::Request, ask_head(channel, json!({})).as_bytes()).await;
    stream.say(MessageKind::Body, body.as_bytes()).await;
    stream.say(MessageKind::Body, b"").await;
    stream
}

/// A server before an upstream that computes, and does not send the head of its response.
async fn before_a_computing_upstream() -> (Server, StandIn) {
    let upstream = StandIn::start(Act::Slowly(Vec::new(), Duration::ZERO)).await;
    let url = upstream.url.clone();
    (start(Setup { upstream: Some(url), ..Setup::default() }).await, upstream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_whole_log_is_resumed_to_an_end() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(40, json!({}))).await;
    reader.run(usize::MAX).await;
    assert!(reader.complete);
    let (name, end) = (reader.name.unwrap(), reader.receiver.cumulative());
    // It had everything, but did not learn that the server knows.
    let mut again = Reader::resume(&connection, 1, &name, end).await;
    again.failed = true; // it waits for the QUIC stream's end alone
    again.run(usize::MAX).await;
    assert!(again.deltas.is_empty());
    assert!(
        matches!(&again.said[..], [Said::Answer(head), Said::End] if head["offset"] == end),
        "{:?}",
        again.said
    );
    let mut beyond = Reader::resume(&connection, 2, &name, end + 1).await;
    beyond.run(usize::MAX).await;
    assert!(beyond.failed && beyond.said == [Said::End], "{:?}", beyond.said);
}

/// A request for a whole answer of 4,000 tokens through the tunnel.
async fn ask_whole(connection: &web_transport_quinn::Session) -> Stream {
    let mut stream = Stream::open(connection).await;
    let head = json!({"method": "POST", "path": "/v1/chat/completions"});
    stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
    let body = chat(4_000, json!({"stream": false}));
    stream.say(MessageKind::Body, body.as_bytes()).await;
    stream.send.finish().unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_no_longer_waits_for_a_whole_answer_cancels_it() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let stream = ask_whole(&connection).await;
    settle(&server, "num_requests_running", 1.0).await;
    // It stops reading, while its connection lives.
    drop(stream);
    settle(&server, "num_requests_running", 0.0).await;
    assert!(quinn::Connection::close_reason(&connection).is_none());
    let _stream = ask_whole(&connection).await;
    settle(&server, "num_requests_running", 1.0).await;
    connection.close(0, b"gone");
    settle(&server, "num_requests_running", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_cancelled_before_its_answer_begins() {
    let (server, mut upstream) = before_a_computing_upstream().await;
    let (_endpoint, connection) = connect(&server).await;
    for (channel, by_reset) in [(1, true), (2, false)] {
        let body = chat(5, json!({"model": UPSTREAM_MODEL}));
        let mut stream = ask_for(&connection, channel, &body).await;
        let arrives =
            async { while !upstream.requests.recv().await.unwrap().starts_with("POST") {} };
        tokio::time::timeout(PATIENCE, arrives).await.expect("the upstream has the request");
        if by_reset {
            stream.send.reset(Code::Cancelled.number()).unwrap();
        } else {
            let mut stop = Vec::new();
            Frame::Stop { channel }.encode(false, &mut stop);
            stream.say(MessageKind::Frame, &stop).await;
        }
        tokio::time::timeout(PATIENCE, upstream.left.recv()).await.expect("cancelled").unwrap();
        assert_eq!(stream.hear().await, Said::Reset(Code::Stopped));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_answer_takes_long_to_begin_hears_that_its_path_works() {
    let (server, mut upstream) = before_a_computing_upstream().await;
    let (_endpoint, connection) = connect(&server).await;
    let body = chat(5, json!({"model": UPSTREAM_MODEL}));
    let mut stream = ask_for(&connection, 1, &body).await;
    // Within the 10 s after which a page takes its path for lost, and again (S-4.12).
    for _ in 0..2 {
        let heard = tokio::time::timeout(Duration::from_secs(8), stream.bytes()).await;
        assert!(heard.expect("a sign of life") > 0);
    }
    stream.send.reset(Code::Cancelled.number()).unwrap();
    tokio::time::timeout(PATIENCE, upstream.left.recv()).await.expect("cancelled").unwrap();
    // What came before was to be skipped.
    assert_eq!(stream.hear().await, Said::Reset(Code::Stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_cancelled_while_the_store_keeps_its_answer_waiting() {
    let Some(redis) = RedisServer::start() else { return };
    let location = StoreLocation::Shared(SharedAddress::parse(&redis.url()).unwrap());
    let store = StoreConfig { location, ..StoreConfig::default() };
    let server = start(Setup { store, grace: FOREVER, ..Setup::default() }).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut first = Reader::ask(&connection, 0, &chat(3, json!({}))).await;
    first.run(usize::MAX).await;
    assert!(first.complete, "the store works: {:?}", first.said);
    redis.mute(true);
    let mut stream = ask_for(&connection, 1, &chat(10_000, json!({}))).await;
    settle(&server, "num_requests_running", 1.0).await;
    // The answer is generated, and its ANSWER waits for the store, for a second in all.
    tokio::time::sleep(Duration::from_millis(200)).await;
    stream.send.reset(Code::Cancelled.number()).unwrap();
    settle(&server, "num_requests_running", 0.0).await;
    redis.mute(false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_that_comes_after_the_end_of_reading_counts() {
    let server = start(Setup { grace: FOREVER, ..Setup::default() }).await;
    // Without datagrams, so that the log is written on the QUIC stream.
    let (_endpoint, connection) = try_connect(&server, ALPN, false).await.unwrap();
    let reader = Reader::ask(&connection, 0, &chat(10_000, json!({}))).await;
    let mut reader = reader.with_upstream(Upstream::Frames);
    reader.run(20).await;
    reader.stream.stop();
    tokio::time::sleep(Duration::from_millis(100)).await;
    reader.stream.send.reset(Code::Cancelled.number()).unwrap();
    settle(&server, "num_requests_running", 0.0).await;
}

/// Stops the server, and waits until it drains: the port of TCP is closed first.
async fn begin_shutdown(server: &mut Server) {
    server.stop();
    let closed = async {
        while tokio::net::TcpStream::connect(server.http).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("the port closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_shuts_down_refuses_requests_on_open_connections() {
    let mut server = start(Setup { drain_limit: PATIENCE, ..Setup::default() }).await;
    let text = expected(&server, 400).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut running = Reader::ask(&connection, 0, &chat(400, json!({}))).await;
    running.run(20).await;
    begin_shutdown(&mut server).await;
    let mut late = Reader::ask(&connection, 1, &chat(5, json!({}))).await;
    late.run(usize::MAX).await;
    let refusal = late.said.last();
    assert!(
        matches!(refusal, Some(Said::Response(head, _)) if head["status"] == 503),
        "{refusal:?}"
    );
    running.run(usize::MAX).await;
    assert!(running.complete, "{:?}", running.said);
    assert_eq!(running.text(), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_waits_for_the_reader_of_an_answer_that_has_ended() {
    let mut server = start(Setup { drain_limit: PATIENCE, ..Setup::default() }).await;
    // More than the first packets hold.
    let text = expected(&server, 2000).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(2000, json!({}))).await;
    reader.run(usize::MAX).await;
    assert!(reader.complete);
    // It has nothing of it any more, and takes its time.
    let mut again = Reader::resume(&connection, 1, &reader.name.unwrap(), 0).await;
    again.run(1).await;
    begin_shutdown(&mut server).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(quinn::Connection::close_reason(&connection).is_none(), "it is waited for");
    again.run(usize::MAX).await;
    assert!(again.complete, "{:?}", again.said);
    assert_eq!(again.text(), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_is_used_once() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 4, &chat(3, json!({}))).await;
    reader.run(usize::MAX).await;
    assert_eq!(reader.said.last(), Some(&Said::End));
    let name = reader.name.unwrap();
    for mut again in [
        Reader::ask(&connection, 4, &chat(3, json!({}))).await,
        Reader::resume(&connection, 4, &name, 0).await,
    ] {
        again.run(usize::MAX).await;
        assert_eq!(again.said, [Said::Reset(Code::Malformed)], "its answer has ended");
    }
    for channel in [3, 2000] {
        let mut other = Reader::ask(&connection, channel, &chat(3, json!({}))).await;
        other.run(usize::MAX).await;
        assert!(other.complete, "{channel}");
    }
    let mut old = Reader::ask(&connection, 5, &chat(3, json!({}))).await;
    old.run(usize::MAX).await;
    assert_eq!(old.said, [Said::Reset(Code::Malformed)], "nobody remembers so far back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_later_extensions_are_skipped_wherever_they_stand() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let text = expected(&server, 60).await;
    let mut reader = Reader::resume(&connection, 0, &name_of(7), 0).await;
    reader.run(usize::MAX).await; // a number gone, so that the next stream is its own
    let mut reader = Reader::listening(&connection, 1).await;
    say_type(&mut reader.stream, 89, b"before the request").await;
    say_type(&mut reader.stream, 0, ask_head(1, json!({"grease": [1]})).as_bytes()).await;
    let body = chat(60, json!({}));
    for (at, piece) in body.as_bytes().chunks(20).enumerate() {
        say_type(&mut reader.stream, 64 + at as u8, &vec![1; 9_000 * (at % 3)]).await;
        say_type(&mut reader.stream, 1, piece).await;
    }
    say_type(&mut reader.stream, 1, b"").await;
    say_type(&mut reader.stream, 255, &[0; 60_000]).await;
    reader.run(usize::MAX).await;
    assert!(reader.complete, "{:?}", reader.said);
    assert_eq!(reader.text(), text);
    for (type_byte, bytes) in [(63, 0), (5, 3), (89, 65_537)] {
        let mut stream = Stream::open(&connection).await;
        say_type(&mut stream, type_byte, &vec![0; bytes]).await;
        assert_eq!(stream.hear().await, Said::Reset(Code::Malformed), "{type_byte}, {bytes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_within_a_message_is_an_error_and_one_instead_of_the_empty_body_is_not() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let text = expected(&server, 30).await;
    let mut reader = Reader::listening(&connection, 0).await;
    reader.stream.say(MessageKind::Request, ask_head(0, json!({})).as_bytes()).await;
    reader.stream.say(MessageKind::Body, chat(30, json!({})).as_bytes()).await;
    reader.stream.send.finish().unwrap();
    reader.run(usize::MAX).await;
    assert!(reader.complete, "{:?}", reader.said);
    assert_eq!(reader.text(), text);
    let request = |channel: u64, body: &[u8]| {
        let mut bytes = vec![0];
        loquent_proto::wire::put_bytes(&mut bytes, ask_head(channel, json!({})).as_bytes());
        [&bytes, body].concat()
    };
    let in_length = request(1, b"")[..1].to_vec();
    let in_head = request(2, b"")[..20].to_vec();
    let in_body = request(3, &[1, 9, b'{']);
    let in_skipped = request(4, &[1, 1, b'{', 89, 9, 0]);
    for bytes in [in_length, in_head, in_body, in_skipped] {
        let mut stream = Stream::open(&connection).await;
        stream.send.write_all(&bytes).await.unwrap();
        stream.send.finish().unwrap();
        assert_eq!(stream.hear().await, Said::Reset(Code::Malformed), "{bytes:?}");
    }
    let mut reader = Reader::ask(&connection, 7, &chat(200, json!({}))).await;
    reader.run(20).await;
    reader.stream.send.write_all(&[4, 9, 0x13]).await.unwrap();
    reader.stream.send.finish().unwrap();
    reader.run(usize::MAX).await;
    assert_eq!(reader.said.last(), Some(&Said::Reset(Code::Malformed)), "within a FRAME");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_with_another_code_than_cancelled_keeps_the_answer() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let text = expected(&server, 100).await;
    for (channel, number) in [(0, 0), (2, 2), (4, 77)] {
        let mut reader = Reader::ask(&connection, channel, &chat(100, json!({}))).await;
        reader.run(text.len() / 4).await;
        reader.stream.send.reset(number).unwrap();
        reader.migrate(&connection, channel + 1).await;
        reader.run(usize::MAX).await;
        assert!(reader.complete, "code {number}: {:?}", reader.said);
        assert_eq!(reader.text(), text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_learn_that_the_server_shuts_down() {
    let setup = Setup { drain_limit: Duration::from_millis(50), ..Setup::default() };
    let mut server = start(setup).await;
    let (_endpoint, connection) = connect(&server).await;
    let reader = Reader::ask(&connection, 0, &chat(10_000, json!({}))).await;
    let mut reader = reader.with_upstream(Upstream::Mute);
    reader.run(20).await;
    server.stop();
    reader.run(usize::MAX).await;
    let code = match quinn::Connection::close_reason(&connection) {
        Some(quinn::ConnectionError::ApplicationClosed(close)) => close.error_code.into_inner(),
        // Its QUIC stream was reset before the connection was closed.
        _ => match reader.said.last() {
            Some(Said::Reset(code)) => code.number().into(),
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(Code::of(code), Code::ShuttingDown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_learns_that_the_server_shuts_down() {
    let setup = Setup { drain_limit: Duration::from_millis(50), ..Setup::default() };
    let mut server = start(setup).await;
    let page = format!("http://{}", server.http);
    let (_endpoint, session) = web_connect(&server, "/loquent/1", &page).await.unwrap();
    let reader = Reader::ask(&session, 0, &chat(10_000, json!({}))).await;
    let mut reader = reader.with_upstream(Upstream::Mute);
    reader.run(20).await;
    server.stop();
    // What the session's end does not say, its answers' QUIC streams do.
    reader.run(usize::MAX).await;
    let reset = reader.said.contains(&Said::Reset(Code::ShuttingDown));
    let closed = tokio::time::timeout(PATIENCE, session.closed()).await.expect("an end");
    let told = matches!(
        &closed,
        web_transport_quinn::SessionError::WebTransportError(
            web_transport_quinn::WebTransportError::Closed(6, _)
        )
    );
    assert!(reset || told, "{:?}, {closed:?}", reader.said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn now_and_then_an_answer_comes_with_what_is_to_be_skipped() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut greased = 0;
    for channel in 0..80 {
        let mut reader = Reader::ask(&connection, channel, &chat(1, json!({}))).await;
        reader.run(usize::MAX).await;
        assert!(reader.complete);
        let Said::Answer(head) = &reader.said[0] else { panic!("{:?}", reader.said) };
        greased += usize::from(head.get("grease").is_some());
    }
    // One in four; none of 80, or all, would be chance in less than one in 10^9 runs.
    assert!((1..80).contains(&greased), "{greased} of 80");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_has_two_names() {
    let server = start(Setup { keys: vec!["k".into()], ..Setup::default() }).await;
    let mut documents = Vec::new();
    for path in ["/.well-known/loquent", "/v1/delivery"] {
        let (status, _, body) = request(server.http, "GET", path, &[], "").await;
        assert_eq!(status, 200, "without a key: {body}");
        let mut document: Value = serde_json::from_str(&body).unwrap();
        document.as_object_mut().unwrap().remove("grease");
        documents.push(document);
    }
    assert_eq!(documents[0], documents[1]);
    assert_eq!(
        (&documents[0]["version"], &documents[0]["path"]),
        (&json!(1), &json!("/loquent/1"))
    );
}

/// A name that no answer has.
fn name_of(byte: u8) -> loquent_proto::AnswerHandle {
    loquent_proto::AnswerHandle { id: [byte; 16], token: [byte; 16] }
}
