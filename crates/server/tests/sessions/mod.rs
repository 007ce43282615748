//! Sessions over real sockets: answers by datagram, resume over either way, hostile clients.

mod ends;
mod flood;
mod harness;
mod heads;
mod load;
mod mute;
mod readers;
mod real_client;
mod repeats;
mod slow;
mod strangers;

use std::time::Duration;

use harness::*;
use loquent_proto::Delta;
use loquent_proto::message::{Code, MessageKind};
use loquent_server::ALPN;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_by_datagram_is_the_answer() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let usage = json!({"stream_options": {"include_usage": true}});
    let mut reader = Reader::ask(&connection, 4, &chat(60, usage)).await;
    assert_eq!(reader.run(usize::MAX).await, Ended::Over);
    assert!(reader.complete);
    assert_eq!(reader.text(), expected(&server, 60).await);
    assert!(
        matches!(&reader.deltas[0], Delta::Open { meta } if meta.contains("\"usage\":\"null\""))
    );
    let end = &reader.deltas[reader.deltas.len() - 3..];
    assert_eq!(end[0], Delta::Finish { choice: 0, reason: "stop".into() });
    assert!(matches!(end[1], Delta::Usage { completion: 61, .. }), "{end:?}");
    assert!(
        matches!(&reader.said[..], [Said::Answer(head), Said::End] if head["channel"] == 4 && head["offset"] == 0),
        "{:?}",
        reader.said
    );
    assert_eq!(reader.frames[1], 0, "datagrams got through, and yet it came by the stream");
    let asked = quinn::Connection::stats(&connection).frame_rx.ack_frequency;
    assert!(asked > 0, "QUIC acknowledges what we acknowledge, in packets of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_reads_by_web_transport() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 150).await;
    let page = format!("http://{}", server.http);
    let (_endpoint, session) = web_connect(&server, "/loquent/1", &page).await.unwrap();
    let mut reader = Reader::ask(&session, 0, &chat(150, json!({}))).await.losing(0.2, 5);
    reader.run(text.len() / 2).await;
    let name = reader.name.unwrap();
    reader.migrate(&session, 1).await;
    assert_eq!(reader.run(usize::MAX).await, Ended::Over);
    assert!(reader.complete && reader.frames[0] > 0);
    assert_eq!(reader.text(), text);
    let mut stream = Stream::open(&session).await;
    stream.say(MessageKind::Request, br#"{"method":"GET","path":"/health"}"#).await;
    stream.send.finish().unwrap();
    assert!(matches!(stream.hear().await, Said::Response(head, _) if head["status"] == 200));
    // The reload of the page, as a native client this time.
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::resume(&connection, 0, &name, 0).await;
    reader.run(usize::MAX).await;
    assert_eq!(reader.text(), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_others_get_no_session() {
    let server = start(Setup::default()).await;
    let page = format!("http://{}", server.http);
    for (path, origin, status) in
        [("/loquent/1", "http://evil.example", 403), ("/elsewhere", page.as_str(), 404)]
    {
        let refused = web_connect(&server, path, origin).await.err();
        // The page hears why, and not just that the connection is gone.
        let told = format!("{refused:?}").contains(&status.to_string());
        assert!(told, "{path} for {origin}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_to_a_rebound_name_is_refused() {
    let server = start(Setup::default()).await;
    for (name, is_served) in [("localhost", true), ("evil.example", false)] {
        let authority = format!("{name}:{}", server.quic.port());
        // The page's own name and port, as a browser would have it.
        let origin = format!("http://{authority}");
        let session = web_connect_as(&server, &authority, "/loquent/1", &origin).await;
        assert_eq!(session.is_ok(), is_served, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_page_is_served_seldom_and_whole() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 400).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut seen = [0, 0];
    for (number, hidden) in [false, true].into_iter().enumerate() {
        let body = chat(400, json!({"stream_interval": "auto"}));
        let mut reader = Reader::ask(&connection, number as u64, &body).await;
        reader.run(40).await;
        let now = reader.now();
        reader.receiver.set_hidden(now, hidden);
        reader.run(usize::MAX).await;
        assert_eq!(reader.text(), text);
        seen[number] = reader.frames[0];
    }
    assert!(seen[1] * 4 < seen[0], "datagrams shown and hidden: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_survive_heavy_loss() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 150).await;
    let mut tasks = Vec::new();
    for seed in 0..8 {
        let (endpoint, connection) = connect(&server).await;
        tasks.push(tokio::spawn(async move {
            let reader = Reader::ask(&connection, seed, &chat(150, json!({}))).await;
            let mut reader = reader.losing(0.3, seed);
            reader.run(usize::MAX).await;
            drop(endpoint);
            assert!(reader.complete);
            reader.text()
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_resumed_where_it_ended() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 200).await;
    let (endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(200, json!({}))).await.losing(0.1, 3);
    assert_eq!(reader.run(text.len() / 3).await, Ended::Enough);
    connection.close(0, b"gone");
    endpoint.wait_idle().await;
    let (_endpoint, connection) = connect(&server).await;
    reader.migrate(&connection, 9).await;
    reader.run(usize::MAX).await;
    assert!(reader.complete);
    assert_eq!(reader.text(), text, "each token once");
    assert_eq!(metric(&server, "delivery_resumes_total{result=\"found\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_forgot_everything_gets_everything() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 60).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(60, json!({}))).await;
    reader.run(usize::MAX).await;
    // Even after its end, for the grace period.
    let mut again = Reader::resume(&connection, 1, &reader.name.unwrap(), 0).await;
    again.run(usize::MAX).await;
    assert!(again.complete);
    assert_eq!(again.text(), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_changes_its_address_in_mid_answer() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 200).await;
    let (endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(200, json!({}))).await;
    assert_eq!(reader.run(text.len() / 3).await, Ended::Enough);
    let before = endpoint.local_addr().unwrap();
    endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    assert_ne!(endpoint.local_addr().unwrap(), before);
    reader.run(usize::MAX).await;
    assert!(reader.complete);
    assert_eq!(reader.text(), text);
    assert_eq!(reader.said.len(), 2, "one answer and its end, no resume: {:?}", reader.said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_is_lost_for_good_and_events_finish_the_answer() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 200).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(200, json!({}))).await;
    assert_eq!(reader.run(text.len() / 3).await, Ended::Enough);
    let name = reader.name.unwrap();
    let path = format!(
        "/v1/streams/{}?token={}&from={}",
        name.id_hex(),
        name.token_hex(),
        reader.receiver.shown()
    );
    let (status, _, mut body) = open(server.http, "GET", &path, &[], "").await;
    assert_eq!(status, 200);
    let events = Events::read(&mut body, usize::MAX).await;
    assert!(events.done && !events.broken);
    assert_eq!(reader.text() + &events.text, text);
    // Had the loss not been for good, it would read on (S-5.4).
    reader.run(usize::MAX).await;
    assert!(reader.complete, "{:?}", reader.said);
    assert_eq!(reader.text(), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_resumed_by_id_and_then_by_quic() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 200).await;
    let body = chat(200, json!({"resumable": true}));
    let (status, headers, mut body) =
        open(server.http, "POST", "/v1/chat/completions", &[], &body).await;
    assert_eq!(status, 200);
    let first = Events::read(&mut body, text.len() / 4).await;
    drop(body);
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (id, token) = (header("x-loquent-stream-id"), header("x-loquent-stream-token"));
    let path = format!("/v1/streams/{id}");
    let last = first.last_id.unwrap().to_string();
    let given = [("x-loquent-stream-token", token.as_str()), ("last-event-id", last.as_str())];
    let (status, _, mut body) = open(server.http, "GET", &path, &given, "").await;
    assert_eq!(status, 200);
    let second = Events::read(&mut body, text.len() / 4).await;
    let (_endpoint, connection) = connect(&server).await;
    let name = name(&json!({"id": id, "token": token}));
    let mut reader = Reader::resume(&connection, 3, &name, second.last_id.unwrap()).await;
    reader.run(usize::MAX).await;
    assert!(reader.complete);
    assert_eq!(first.text + &second.text + &reader.text(), text);
    let rest = Events::read(&mut body, usize::MAX).await;
    assert!(rest.done && !rest.broken, "the events went on beside it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_is_as_good_as_an_unknown_id() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(200, json!({}))).await;
    reader.run(20).await;
    let name = reader.name.unwrap();
    let mut wrong = [name, name];
    wrong[0].token[15] ^= 1;
    wrong[1].id[15] ^= 1;
    let mut answers = Vec::new();
    for (name, number) in wrong.iter().zip(1..) {
        let mut thief = Reader::resume(&connection, number, name, 0).await;
        thief.run(usize::MAX).await;
        assert!(thief.failed && thief.deltas.is_empty());
        let path = format!("/v1/streams/{}", name.id_hex());
        let token = name.token_hex();
        let given = [("x-loquent-stream-token", token.as_str())];
        for method in ["GET", "DELETE"] {
            answers.push(request(server.http, method, &path, &given, "").await);
        }
    }
    answers.push(request(server.http, "GET", "/v1/streams/x", &[], "").await);
    for (status, _, body) in &answers {
        assert_eq!((*status, body), (404, &answers[0].2));
    }
    reader.run(usize::MAX).await;
    assert!(reader.complete, "the owner was not disturbed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_that_are_no_places_are_unknown() {
    let server = start(Setup::default()).await;
    let body = chat(60, json!({"resumable": true}));
    let (_, headers, mut body) =
        open(server.http, "POST", "/v1/chat/completions", &[], &body).await;
    let events = Events::read(&mut body, usize::MAX).await;
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let path = format!("/v1/streams/{}", header("x-loquent-stream-id"));
    let token = header("x-loquent-stream-token");
    let last = events.last_id.unwrap();
    for (from, status) in [("0", 200), ("1", 404), ("-1", 404), ("x", 404)] {
        let given = [("x-loquent-stream-token", token.as_str()), ("last-event-id", from)];
        assert_eq!(request(server.http, "GET", &path, &given, "").await.0, status, "from {from}");
    }
    let beyond = format!("{path}?token={token}&from={}", last + 1);
    assert_eq!(request(server.http, "GET", &beyond, &[], "").await.0, 404);
    let (status, _, rest) =
        request(server.http, "GET", &format!("{path}?token={token}&from={last}"), &[], "").await;
    assert_eq!((status, rest.contains("data:")), (200, false), "all was there already");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_frees_the_engine_at_once() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    for (number, how) in ["stop", "reset", "delete"].iter().enumerate() {
        let mut reader = Reader::ask(&connection, number as u64, &chat(10_000, json!({}))).await;
        reader.run(20).await;
        assert_eq!(metric(&server, "num_requests_running").await, 1.0, "{how}");
        let name = reader.name.unwrap();
        let path = format!("/v1/streams/{}?token={}", name.id_hex(), name.token_hex());
        match *how {
            "stop" => {
                reader.receiver.stop();
                reader.run(usize::MAX / 2).await;
            }
            "reset" => drop(reader.stream.send.reset(Code::Cancelled.number())),
            _ => assert_eq!(request(server.http, "DELETE", &path, &[], "").await.0, 204),
        }
        settle(&server, "num_requests_running", 0.0).await;
        settle(&server, "delivery_kept_bytes", 0.0).await;
        assert_eq!(request(server.http, "GET", &path, &[], "").await.0, 404, "{how}");
        if *how != "stop" {
            reader.run(usize::MAX / 2).await;
        }
        assert_eq!(reader.said.last(), Some(&Said::Reset(Code::Stopped)), "{how}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_nobody_comes_back_for_is_stopped_and_forgotten() {
    let setup = Setup { grace: Duration::from_millis(300), ..Setup::default() };
    let server = start(setup).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(10_000, json!({}))).await;
    reader.run(20).await;
    connection.close(0, b"gone");
    settle(&server, "num_requests_running", 0.0).await;
    settle(&server, "delivery_kept_bytes", 0.0).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut late = Reader::resume(&connection, 0, &reader.name.unwrap(), 0).await;
    late.run(usize::MAX).await;
    assert!(late.failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_travels_by_the_stream_where_datagrams_do_not() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 300).await;
    // All datagrams are lost, though the connection works.
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(300, json!({}))).await.losing(1.0, 1);
    // Acknowledgements by the stream: this reader has no other way.
    assert_eq!(reader.run(text.len()).await, Ended::Enough);
    assert_eq!(reader.text(), text);
    assert_eq!(reader.frames[0], 0);
    assert!(reader.frames[1] > 0);
    assert!(metric(&server, "delivery_fallbacks_total").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_datagrams_is_served_by_the_stream() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 60).await;
    let (_endpoint, connection) = try_connect(&server, ALPN, false).await.unwrap();
    let mut reader = Reader::ask(&connection, 0, &chat(60, json!({}))).await;
    assert_eq!(reader.run(text.len()).await, Ended::Enough);
    assert_eq!(reader.text(), text);
    assert_eq!(reader.frames[0], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_requests_are_tunnelled() {
    let server = start(Setup { keys: vec!["k".into()], ..Setup::default() }).await;
    let (_endpoint, connection) = connect(&server).await;
    let ask = async |head: serde_json::Value, body: &str| {
        let mut stream = Stream::open(&connection).await;
        stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
        let (one, two) = body.split_at(body.len() / 2);
        stream.say(MessageKind::Body, one.as_bytes()).await;
        stream.say(MessageKind::Body, two.as_bytes()).await;
        stream.send.finish().unwrap();
        match stream.hear().await {
            Said::Response(head, body) => {
                (head["status"].as_u64().unwrap(), String::from_utf8(body).unwrap())
            }
            other => panic!("{other:?}"),
        }
    };
    let models = json!({"method": "GET", "path": "/v1/models", "key": "k"});
    let (status, body) = ask(models, "").await;
    assert!(status == 200 && body.contains("simulated"), "{status} {body}");
    assert_eq!(ask(json!({"method": "GET", "path": "/v1/models"}), "").await.0, 401);
    assert_eq!(ask(json!({"method": "GET", "path": "/nowhere"}), "").await.0, 404);
    let post = json!({"method": "POST", "path": "/v1/chat/completions", "key": "k",
                      "headers": {"content-type": "application/json"}});
    let (status, body) = ask(post.clone(), &chat(20, json!({}))).await;
    assert!(status == 200 && body.ends_with("data: [DONE]\n\n"), "{status} {body}");
    assert_eq!(ask(post, "{").await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_come_as_over_http() {
    let server = start(Setup { keys: vec!["k".into()], ..Setup::default() }).await;
    let (_endpoint, connection) = connect(&server).await;
    let cases = [(None, chat(5, json!({})), 401), (Some("k"), "[]".to_owned(), 400)];
    for (number, (key, body, status)) in cases.into_iter().enumerate() {
        let mut reader = Reader::ask_with_key(&connection, number as u64, &body, key).await;
        reader.run(usize::MAX).await;
        match &reader.said[..] {
            [Said::Response(head, body)] => {
                assert_eq!(head["status"], status);
                assert!(String::from_utf8_lossy(body).contains("\"error\""));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_messages_reset_their_stream_and_nothing_else() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask(&connection, 0, &chat(200, json!({}))).await;
    reader.run(20).await;
    let request = br#"{"method":"GET","path":"/health"}"#;
    let taken = br#"{"method":"POST","path":"/v1/chat/completions","channel":0}"#;
    let hostile: [&[(u8, &[u8])]; 8] = [
        &[(9, b"")],
        &[(1, b"body first")],
        &[(0, b"no json")],
        &[(0, br#"{"method":"GET"}"#)],
        &[(0, br#"{"method":"G T","path":"/"}"#)],
        &[(0, request), (4, b"a frame")],
        &[(4, b"\x10garbage")],
        &[(0, taken), (1, b"{}"), (1, b"")],
    ];
    for messages in hostile {
        let mut stream = Stream::open(&connection).await;
        let mut bytes = Vec::new();
        for (kind, payload) in messages {
            bytes.extend([*kind, payload.len() as u8]);
            bytes.extend(*payload);
        }
        let _ = stream.send.write_all(&bytes).await;
        let _ = stream.send.finish();
        assert_eq!(stream.hear().await, Said::Reset(Code::Malformed), "{messages:?}");
    }
    let mut stream = Stream::open(&connection).await;
    stream.send.write_all(&[0, 0xbf, 0xff, 0xff, 0xff]).await.unwrap(); // 1 GiB announced
    assert_eq!(stream.hear().await, Said::Reset(Code::Malformed));
    for datagram in [&b""[..], b"\x10", b"\xff\xff\xff", b"\x11\x00\x00\x00\xff", &[0x11; 1000]] {
        connection.send_datagram(bytes::Bytes::copy_from_slice(datagram)).unwrap();
    }
    reader.run(usize::MAX).await;
    assert!(reader.complete, "the answer beside them went on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_are_kept() {
    let setup = Setup {
        kept: |kept| kept.answers_per_key = 2,
        quic: |quic| quic.max_connections_per_address = 2,
        ..Setup::default()
    };
    let server = start(setup).await;
    let (_one, connection) = connect(&server).await;
    let (_two, second) = connect(&server).await;
    // A connection counts from when the server, too, has seen the end of the handshake.
    for counted in [&connection, &second] {
        let mut stream = Stream::open(counted).await;
        stream.say(MessageKind::Request, br#"{"method":"GET","path":"/health"}"#).await;
        stream.send.finish().unwrap();
        assert!(matches!(stream.hear().await, Said::Response(head, _) if head["status"] == 200));
    }
    assert!(try_connect(&server, ALPN, true).await.is_err(), "a third connection of one address");
    let mut readers = Vec::new();
    for number in 0..2 {
        let mut reader = Reader::ask(&connection, number, &chat(10_000, json!({}))).await;
        while reader.name.is_none() {
            let said = reader.stream.hear().await;
            assert!(matches!(said, Said::Answer(_)), "{said:?}");
            reader.name = Some(name(match &said {
                Said::Answer(head) => head,
                _ => unreachable!(),
            }));
        }
        readers.push(reader);
    }
    let mut third = Stream::open(&connection).await;
    let head = json!({"method": "POST", "path": "/v1/chat/completions", "channel": 7});
    third.say(MessageKind::Request, head.to_string().as_bytes()).await;
    third.say(MessageKind::Body, chat(5, json!({})).as_bytes()).await;
    third.say(MessageKind::Body, b"").await;
    assert!(matches!(third.hear().await, Said::Response(head, _) if head["status"] == 429));
    drop(readers);
}
