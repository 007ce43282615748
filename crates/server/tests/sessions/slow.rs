//! Clients that send a request too slowly over QUIC: the limits are those of HTTP, which
//! `connections/time.rs` tests.

use std::time::Duration;

use loquent_proto::message::{Code, MessageKind};
use serde_json::{Value, json};
use web_transport_quinn::Session;

use super::harness::*;

/// Longer than a busy machine takes for a head.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

async fn impatient(tcp: fn(&mut loquent_server::TcpLimits)) -> Server {
    start(Setup { tcp, ..Setup::default() }).await
}

/// Sends the head of a request for an answer, by datagram or through the tunnel.
async fn say_head(connection: &Session, channel: Option<u64>) -> Stream {
    let mut stream = Stream::open(connection).await;
    let path = "/v1/chat/completions";
    let head = json!({"method": "POST", "path": path, "channel": channel});
    stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
    stream
}

fn status(said: &Said) -> Option<&Value> {
    match said {
        Said::Response(head, _) => Some(&head["status"]),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_stops_is_refused_with_the_status_of_http() {
    let server = impatient(|tcp| tcp.request_timeout = REQUEST_TIMEOUT).await;
    let (_endpoint, connection) = connect(&server).await;
    for channel in [Some(1), None] {
        let mut stream = say_head(&connection, channel).await;
        stream.say(MessageKind::Body, b"{\"messages\": ").await;
        let said = tokio::time::timeout(PATIENCE, stream.hear()).await.expect("a refusal");
        assert_eq!(status(&said), Some(&json!(408)), "{channel:?}: {said:?}");
        let Said::Response(_, body) = said else { unreachable!("it has a status") };
        assert!(String::from_utf8_lossy(&body).contains("--request-timeout-s"), "{channel:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_comes_at_the_least_rate_is_taken_over_quic_too() {
    let server = impatient(|tcp| {
        // Each byte gives its sender a second.
        (tcp.request_timeout, tcp.body_bytes_per_s) = (REQUEST_TIMEOUT, 1);
    })
    .await;
    let (_endpoint, connection) = connect(&server).await;
    let mut stream = say_head(&connection, None).await;
    let body = chat(1, json!({"stream": false}));
    // Twice as long as the limit, in all.
    let pause = 2 * REQUEST_TIMEOUT / body.len() as u32;
    for byte in body.as_bytes() {
        stream.say(MessageKind::Body, &[*byte]).await;
        tokio::time::sleep(pause).await;
    }
    stream.send.finish().unwrap();
    let said = stream.hear().await;
    assert_eq!(status(&said), Some(&json!(200)), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_stops_breaks_off_and_is_not_called_malformed() {
    let server = impatient(|tcp| tcp.request_timeout = REQUEST_TIMEOUT).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut stream = Stream::open(&connection).await;
    stream.send.write_all(&[0, 0x40]).await.unwrap();
    let said = tokio::time::timeout(PATIENCE, stream.hear()).await.expect("an end");
    assert_eq!(said, Said::Reset(Code::BrokenOff));
}
