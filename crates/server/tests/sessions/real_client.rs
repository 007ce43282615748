//! The project's own client against its own server, both as they are shipped.

use http::Method;
use loquent_client::openai::{self, Generate, Prompt};
use loquent_client::{Answer, Asked, Client, ClientError, Config, PathMode, Request, Transport};
use loquent_proto::Delta;
use loquent_server::ResumableLimits;
use serde_json::{Map, json};
use tokio::time::timeout;

use super::harness::*;

/// A client that always waits for QUIC, or never tries it.
fn client(server: &Server, quic: bool, key: Option<&str>) -> Client {
    let url = format!("http://{}", server.http);
    let api_key = key.map(str::to_owned);
    Client::new(Config { quic, api_key, head_start: PATIENCE, ..Config::new(url) }).unwrap()
}

async fn ask(client: &Client, tokens: usize) -> Asked {
    let body = chat(tokens, json!({}));
    let request = Request::new(Method::POST, "/v1/chat/completions", body);
    timeout(PATIENCE, client.ask(&request)).await.unwrap().unwrap()
}

async fn answer(client: &Client, tokens: usize) -> Answer {
    match ask(client, tokens).await {
        Asked::Answer(answer) => answer,
        Asked::Reply(reply) => panic!("refused with {}", reply.status),
    }
}

/// What has been read of an answer.
#[derive(Default)]
struct Read {
    text: String,
    /// Log offset after it.
    offset: u64,
    dones: usize,
    /// The end of the answer was reached.
    complete: bool,
}

/// Reads until `enough` bytes of text have come, or to the end.
async fn read(answer: &mut Answer, enough: usize) -> Read {
    let mut read = Read::default();
    while read.text.len() < enough {
        let step = timeout(PATIENCE, answer.next()).await.expect("a step").unwrap();
        let Some(step) = step else {
            read.complete = true;
            break;
        };
        read.offset = step.offset;
        for delta in step.into_deltas().unwrap() {
            match delta {
                Delta::Text { text, .. } => read.text.push_str(&text),
                Delta::Done => read.dones += 1,
                _ => {}
            }
        }
    }
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_transports_bring_the_same_complete_answer() {
    let server = start(Setup::default()).await;
    let expected = expected(&server, 80).await;
    for (quic, transport) in [(true, Transport::Quic), (false, Transport::Http)] {
        let client = client(&server, quic, None);
        let mut answer = answer(&client, 80).await;
        let all = read(&mut answer, usize::MAX).await;
        assert_eq!((all.complete, all.dones), (true, 1), "{transport:?}");
        assert_eq!(all.text, expected, "{transport:?}");
        assert_eq!((answer.transport(), answer.resumes()), (transport, 0));
    }
}

/// A client that has a connection over each of two networks.
fn on_two_networks(server: &Server, via_mode: PathMode) -> Client {
    let via = ["127.0.0.3", "127.0.0.4"].map(|address| address.parse().unwrap()).to_vec();
    let config = Config::new(format!("http://{}", server.http));
    Client::new(Config { via, via_mode, head_start: PATIENCE, ..config }).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_networks_bring_the_same_complete_answer() {
    let server = start(Setup::default()).await;
    let expected = expected(&server, 200).await;
    for via_mode in [PathMode::Backup, PathMode::Redundant] {
        let client = on_two_networks(&server, via_mode);
        for _ in 0..2 {
            let mut answer = answer(&client, 200).await;
            let all = read(&mut answer, usize::MAX).await;
            assert_eq!((all.complete, all.dones), (true, 1), "{via_mode:?}");
            assert_eq!(all.text, expected, "{via_mode:?}");
            assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0));
        }
        client.close(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_room_for_one_reader_serves_a_client_on_two_networks() {
    for via_mode in [PathMode::Backup, PathMode::Redundant, PathMode::Backup] {
        // Room for one answer, and for less than a further reader.
        let kept = |kept: &mut ResumableLimits| kept.kept_bytes = kept.log_bytes + 9 * 1024;
        let server = start(Setup { kept, ..Setup::default() }).await;
        let expected = expected(&server, 200).await;
        let client = on_two_networks(&server, via_mode);
        let mut answer = answer(&client, 200).await;
        let all = read(&mut answer, usize::MAX).await;
        assert_eq!((all.complete, all.dones), (true, 1), "{via_mode:?}");
        assert_eq!(all.text, expected, "{via_mode:?}");
        client.close(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_takes_two_networks_at_most() {
    let via = vec!["127.0.0.3".parse().unwrap(); 3];
    let refused = Client::new(Config { via, ..Config::new("http://127.0.0.1:1") });
    assert_eq!(refused.err(), Some(ClientError::Networks { given: 3, most: 2 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_client_goes_on_where_one_has_left_over_either_transport() {
    let server = start(Setup::default()).await;
    let expected = expected(&server, 120).await;
    for (from_quic, to_quic) in [(true, true), (true, false), (false, true), (false, false)] {
        let first = client(&server, from_quic, None);
        let mut answer = answer(&first, 120).await;
        let seen = read(&mut answer, expected.len() / 3).await;
        let handle = answer.handle();
        answer.leave();
        let second = client(&server, to_quic, None);
        second.warm_up().await;
        let resumed = timeout(PATIENCE, second.resume(handle, seen.offset)).await.unwrap();
        let rest = read(&mut resumed.unwrap(), usize::MAX).await;
        assert!(rest.complete, "QUIC {from_quic}, then {to_quic}");
        assert_eq!(seen.text + &rest.text, expected, "QUIC {from_quic}, then {to_quic}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_with_another_token_is_refused() {
    let server = start(Setup::default()).await;
    let client = client(&server, true, None);
    let mut answer = answer(&client, 200).await;
    read(&mut answer, 20).await;
    let mut wrong = answer.handle();
    wrong.token[0] ^= 1;
    let refused = timeout(PATIENCE, client.resume(wrong, 0)).await.unwrap();
    assert!(matches!(refused, Err(ClientError::Gone)));
    // Whoever guessed has not disturbed the reader.
    assert!(read(&mut answer, usize::MAX).await.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_refusals_come_through_the_tunnel() {
    let server = start(Setup { keys: vec!["right".into()], ..Setup::default() }).await;
    let stranger = client(&server, true, Some("wrong"));
    let Asked::Reply(reply) = ask(&stranger, 5).await else { panic!("it was not refused") };
    assert_eq!((reply.status, reply.transport()), (401, Transport::Quic));
    let known = client(&server, true, Some("right"));
    assert_eq!(known.warm_up().await, Transport::Quic);
    let models = Request::new(Method::GET, "/v1/models", "");
    let mut reply = timeout(PATIENCE, known.request(&models)).await.unwrap().unwrap();
    assert_eq!((reply.status, reply.transport()), (200, Transport::Quic));
    let body = reply.read_all(10_000).await.unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["data"].is_array());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chunk_reader_understands_a_plain_stream() {
    let server = start(Setup::default()).await;
    let expected = expected(&server, 40).await;
    let client = client(&server, false, None);
    let request = Generate {
        model: "simulated".into(),
        prompt: Prompt::Chat("tokens=40".into()),
        max_tokens: 1000,
        temperature: None,
        seed: None,
        ignore_eos: false,
        stream_interval: None,
        include_timings: true,
        extra: Map::new(),
    };
    let answering = openai::generate(client.http(), &request, Default::default());
    let mut stream = timeout(PATIENCE, answering).await.unwrap().unwrap();
    let (mut text, mut finish, mut usage, mut timings) = (String::new(), None, None, None);
    while let Some(arrival) = timeout(PATIENCE, stream.next()).await.unwrap().unwrap() {
        text.push_str(&arrival.delta.text);
        finish = arrival.delta.finish_reason.or(finish);
        usage = arrival.delta.usage.or(usage);
        timings = arrival.delta.timings.or(timings);
    }
    assert_eq!((text, finish.as_deref()), (expected, Some("stop")));
    assert_eq!(usage.unwrap().completion_tokens, 41);
    assert!(timings.unwrap().first_token_us.is_some());
    assert!(stream.wire().bytes > 0);
}
