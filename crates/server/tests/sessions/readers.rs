//! Several readers of one answer, over all transports: none holds, disturbs or evicts another
//! (S-5.4).

use std::time::Duration;

use loquent_proto::AnswerHandle;
use loquent_proto::message::Code;
use serde_json::json;

use super::harness::*;

/// An event stream of the answer `name` from `offset` on.
async fn events(server: &Server, name: &AnswerHandle, offset: u64) -> hyper::body::Incoming {
    let (id, token) = (name.id_hex(), name.token_hex());
    let path = format!("/v1/streams/{id}?token={token}&from={offset}");
    let (status, _, body) = open(server.http, "GET", &path, &[], "").await;
    assert_eq!(status, 200);
    body
}

/// A reader of `name` from `offset` on, over a connection of its own.
async fn resume(server: &Server, name: &AnswerHandle, offset: u64) -> (quinn::Endpoint, Reader) {
    let (endpoint, connection) = connect(server).await;
    let reader = Reader::resume(&connection, 0, name, offset).await;
    (endpoint, reader)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_on_all_transports_get_the_whole_answer_that_is_generated_once() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 400).await;
    let before = metric(&server, "generation_tokens_total").await;
    let (_endpoint, connection) = connect(&server).await;
    let mut first = Reader::ask(&connection, 0, &chat(400, json!({}))).await;
    first.run(text.len() / 4).await;
    let (name, seen) = (first.name.unwrap(), first.receiver.cumulative());
    let begun = first.text();
    let mut tasks = Vec::new();
    for number in 0..12 {
        let offset = if number % 2 == 0 { 0 } else { seen };
        let (endpoint, reader) = resume(&server, &name, offset).await;
        let mut reader = reader.losing(0.02 * f64::from(number), number as u64);
        tasks.push(tokio::spawn(async move {
            reader.run(usize::MAX).await;
            drop(endpoint);
            (offset, reader.complete, reader.text())
        }));
    }
    let page = format!("http://{}", server.http);
    for _ in 0..2 {
        let (endpoint, session) = web_connect(&server, "/loquent/1", &page).await.unwrap();
        let mut reader = Reader::resume(&session, 0, &name, 0).await;
        tasks.push(tokio::spawn(async move {
            reader.run(usize::MAX).await;
            drop(endpoint);
            (0, reader.complete, reader.text())
        }));
    }
    for number in 0..12 {
        let offset = if number % 2 == 0 { 0 } else { seen };
        let mut body = events(&server, &name, offset).await;
        tasks.push(tokio::spawn(async move {
            let events = Events::read(&mut body, usize::MAX).await;
            (offset, events.done && !events.broken, events.text)
        }));
    }
    first.run(usize::MAX).await;
    assert!(first.complete, "{:?}", first.said);
    assert_eq!(first.text(), text);
    for task in tasks {
        let (offset, complete, read) = task.await.unwrap();
        assert!(complete);
        assert_eq!(if offset == 0 { read } else { begun.clone() + &read }, text, "from {offset}");
    }
    let generated = metric(&server, "generation_tokens_total").await - before;
    assert_eq!(generated, 401.0, "tokens of one answer and its end");
    settle(&server, "delivery_active_paths", 0.0).await;
}

/// Both texts are long, and their difference is not.
fn assert_same(got: &str, expected: &str) {
    let same = got.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    let lengths = (got.len(), expected.len());
    assert_eq!((same, got.len()), (expected.len(), expected.len()), "{lengths:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generation_pauses_only_when_all_readers_are_behind() {
    let setup = Setup {
        token_every: Duration::from_micros(200),
        kept: |kept| kept.unacked_bytes = 1024,
        ..Setup::default()
    };
    let server = start(setup).await;
    // More than the engine's buffer for a stream has room for.
    let text = expected(&server, 9000).await;
    let before = metric(&server, "generation_tokens_total").await;
    let (_endpoint, connection) = connect(&server).await;
    let mut first = Reader::ask(&connection, 0, &chat(9000, json!({}))).await;
    first.run(20).await;
    // It takes nothing before the other one stops.
    let (_endpoint, mut slow) = resume(&server, &first.name.unwrap(), 0).await;
    first.run(8 * 1024).await;
    // Neither of them reads now.
    until(&server, "stream_pauses_total", |pauses| pauses >= 1.0).await;
    let made = metric(&server, "generation_tokens_total").await - before;
    assert!(made < 9000.0, "{made} tokens: it was never paused");
    slow.run(usize::MAX).await;
    assert!(slow.complete, "the slow one is the fast one now: {:?}", slow.said);
    assert_same(&slow.text(), &text);
    first.run(usize::MAX).await;
    assert!(first.complete, "{:?}", first.said);
    assert_same(&first.text(), &text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_falls_past_the_logs_bound_ends_with_an_error() {
    let setup = Setup {
        token_every: Duration::from_millis(1),
        kept: |kept| (kept.log_bytes, kept.unacked_bytes) = (8 * 1024, 4 * 1024),
        ..Setup::default()
    };
    let server = start(setup).await;
    let text = expected(&server, 3000).await;
    assert!(text.len() > 12 * 1024);
    let (_endpoint, connection) = connect(&server).await;
    let mut first = Reader::ask(&connection, 0, &chat(3000, json!({}))).await;
    first.run(20).await;
    let (_endpoint, mut slow) = resume(&server, &first.name.unwrap(), 0).await;
    slow.run(10).await;
    first.run(usize::MAX).await;
    assert!(first.complete, "the slow one did not hold it: {:?}", first.said);
    assert_eq!(first.text(), text);
    slow.run(usize::MAX).await;
    assert!(slow.failed && !slow.complete, "{:?}", slow.said);
    assert_eq!(slow.said.last(), Some(&Said::End), "GONE came before it");
    assert!(text.starts_with(&slow.text()) && slow.text().len() < text.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_readers_stop_is_everybodys() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut first = Reader::ask(&connection, 0, &chat(10_000, json!({}))).await;
    first.run(20).await;
    let name = first.name.unwrap();
    let (_endpoint, mut second) = resume(&server, &name, 0).await;
    second.run(20).await;
    let mut body = events(&server, &name, 0).await;
    second.receiver.stop();
    second.run(usize::MAX / 2).await;
    settle(&server, "num_requests_running", 0.0).await;
    first.run(usize::MAX / 2).await;
    for reader in [&first, &second] {
        assert_eq!(reader.said.last(), Some(&Said::Reset(Code::Stopped)));
    }
    let events = Events::read(&mut body, usize::MAX).await;
    assert!(!events.done && events.broken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_leaves_is_no_reader_any_more() {
    let setup = Setup { grace: Duration::from_millis(300), ..Setup::default() };
    let server = start(setup).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut first = Reader::ask(&connection, 0, &chat(10_000, json!({}))).await;
    first.run(20).await;
    let name = first.name.unwrap();
    let (_first_endpoint, ended) = resume(&server, &name, 0).await;
    let (_second_endpoint, mut reset) = resume(&server, &name, 0).await;
    let (_third_endpoint, closed) = resume(&server, &name, 0).await;
    let body = events(&server, &name, 0).await;
    settle(&server, "delivery_active_paths", 5.0).await;
    // Both directions of the QUIC stream end, though its connection lives.
    let still_connected = ended.connection.clone();
    drop(ended.stream);
    settle(&server, "delivery_active_paths", 4.0).await;
    assert!(quinn::Connection::close_reason(&still_connected).is_none());
    reset.stream.send.reset(Code::BrokenOff.number()).unwrap();
    settle(&server, "delivery_active_paths", 3.0).await;
    closed.connection.close(0, b"gone");
    settle(&server, "delivery_active_paths", 2.0).await;
    drop(body);
    settle(&server, "delivery_active_paths", 1.0).await;
    assert_eq!(metric(&server, "num_requests_running").await, 1.0, "the first one reads on");
    connection.close(0, b"gone");
    settle(&server, "num_requests_running", 0.0).await;
    settle(&server, "delivery_kept_bytes", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_a_new_reader_takes_the_place_of_the_most_silent_one() {
    // Room for one answer and two readers beside its first.
    let setup = Setup {
        kept: |kept| kept.kept_bytes = kept.log_bytes + 8 * 1024 + 2 * 8 * 1024,
        ..Setup::default()
    };
    let server = start(setup).await;
    let text = expected(&server, 600).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut first = Reader::ask(&connection, 0, &chat(600, json!({}))).await;
    first.run(20).await;
    let name = first.name.unwrap();
    let (_silent_endpoint, mut silent) = resume(&server, &name, 0).await;
    silent.run(20).await;
    let lively = resume(&server, &name, 0).await;
    // All but the silent one acknowledge.
    let (_lively_endpoint, mut lively) = lively;
    lively.run(text.len() / 4).await;
    first.run(text.len() / 4).await;
    let (_endpoint, mut newest) = resume(&server, &name, 0).await;
    newest.run(20).await;
    silent.run(usize::MAX).await;
    assert_eq!(silent.said.last(), Some(&Said::Reset(Code::Superseded)), "{:?}", silent.said);
    for reader in [&mut first, &mut lively, &mut newest] {
        reader.run(usize::MAX).await;
        assert!(reader.complete, "{:?}", reader.said);
        assert_eq!(reader.text(), text);
    }
}
