//! Clients that send a request too slowly over QUIC, or do not read its response: the limits are
//! those of HTTP, which `connections/time.rs` tests.

use std::sync::Arc;
use std::time::Duration;

use loquent_proto::message::{Code, MessageKind};
use loquent_server::{ALPN, TcpLimits};
use serde_json::{Value, json};
use web_transport_quinn::Session;

use super::harness::*;

/// Longer than a busy machine takes for a head.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

async fn impatient(tcp: fn(&mut TcpLimits)) -> Server {
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

/// A connection whose client has hardly any room on a stream for what it does not read.
async fn connect_narrow(server: &Server) -> (quinn::Endpoint, Session) {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(4096u32.into());
    let mut config = client_config(server.certificate, ALPN, true);
    config.transport_config(Arc::new(transport));
    let connection = endpoint.connect_with(config, server.quic, "localhost").unwrap();
    let session = Session::raw(connection.await.unwrap());
    (endpoint, session)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_nobody_reads_is_broken_off_and_its_connection_goes_on() {
    let token_every = Duration::from_micros(200);
    let tcp = |tcp: &mut TcpLimits| tcp.write_timeout = Duration::from_secs(1);
    let server = start(Setup { tcp, token_every, ..Setup::default() }).await;
    let (_endpoint, connection) = connect_narrow(&server).await;
    let mut unread = say_head(&connection, None).await;
    let body = chat(4_000, json!({"stream": false}));
    unread.say(MessageKind::Body, body.as_bytes()).await;
    unread.send.finish().unwrap();
    let reset = tokio::time::timeout(PATIENCE, unread.reset()).await;
    assert_eq!(reset.expect("the response is given up"), Some(Code::BrokenOff));
    let mut other = Stream::open(&connection).await;
    other.say(MessageKind::Request, br#"{"method":"GET","path":"/health"}"#).await;
    other.send.finish().unwrap();
    let said = other.hear().await;
    assert_eq!(status(&said), Some(&json!(200)), "{said:?}");
}
