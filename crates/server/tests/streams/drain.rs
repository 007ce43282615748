//! The drain: running streams finish, new work is refused.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use loquent_engine::sim::{SimOptions, SimRunner, StepPace};
use loquent_infer::runner::Runner;
use loquent_server::{Announcement, LoadedEngine, ServerConfig, StoreConfig, TcpLimits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::engine_failure::FaultyRunner;
use super::harness::{self, Ending, Events, Server, chat};
use crate::simulated::service_config;

/// Longest wait for the server; far longer than it takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_service_refuses_new_work_and_finishes_what_runs() {
    let server = Server::start(|config| config.streams.buffer_bytes = 8 * 1024);
    let expected = server.text(4000).await;
    // On a busy machine that reader may have been waited for as well.
    let before = server.metric("stream_pauses_total");
    // Paused for its reader, it is sure to run when the drain begins.
    let mut running = server.stream(4000, json!({})).await;
    server.until("stream_pauses_total", |pauses| pauses > before).await;
    server.service.health().drain();
    for stream in [true, false] {
        let refused = server.post("/v1/chat/completions", &chat(5, stream, json!({}))).await;
        assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        let body = refused.1.collect().await.unwrap().to_bytes();
        let error: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(error["error"]["code"], "service_unavailable");
    }
    assert_eq!(running.finish().await, Ending::Done);
    assert_eq!(running.text(0), expected);
}

/// A server on a port of its own.
pub struct Listening {
    pub address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    pub run: JoinHandle<anyhow::Result<()>>,
}

impl Listening {
    /// A server that takes a millisecond for a token.
    async fn start(drain_limit: Duration) -> Self {
        let pace = StepPace::Fixed { step: Duration::from_millis(1) };
        let runner = SimRunner::new(SimOptions { pace, ..SimOptions::default() });
        Self::over(Box::new(runner), drain_limit).await
    }

    /// A server over `runner`.
    pub async fn over(runner: Box<dyn Runner>, drain_limit: Duration) -> Self {
        Self::with_store(runner, drain_limit, StoreConfig::default()).await
    }

    /// A server over `runner`, which keeps its answers in `store`.
    pub async fn with_store(
        runner: Box<dyn Runner>,
        drain_limit: Duration,
        store: StoreConfig,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, asked) = oneshot::channel::<()>();
        let (announce, announced) = oneshot::channel();
        let config = ServerConfig {
            http: harness::http_config(),
            service: service_config(4),
            kept: harness::limits(),
            store,
            quic: None,
            https: None,
            tcp: TcpLimits { max_connections: 8, ..TcpLimits::default() },
            drain_limit,
            upstreams: Vec::new(),
            extension: Default::default(),
            pages: Vec::new(),
        };
        let load = move || Ok(LoadedEngine { runner, ..harness::loaded() });
        let announce = move |_: &Announcement<'_>| announce.send(()).unwrap();
        let shutdown_asked = async { drop(asked.await) };
        let run = loquent_server::run(listener, config, load, announce, shutdown_asked);
        let run = tokio::spawn(run);
        announced.await.unwrap();
        Self { address, shutdown, run }
    }

    /// The successful response to a request, with its body still to come.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> http::Response<Body> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<bytes::Bytes>>();
        let url = format!("http://{}{path}", self.address);
        let request = http::Request::builder().method(method).uri(url);
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let response = client.request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{method} {path}");
        response.map(Body::new)
    }

    /// A stream of which the first chunk has come.
    pub async fn stream(&self, tokens: usize) -> Events {
        let body = chat(tokens, true, json!({}));
        let response = self.call("POST", "/v1/chat/completions", &body.to_string()).await;
        let mut events = Events::new(response.into_body());
        while events.pieces(0).is_empty() {
            assert_eq!(events.next().await, None);
        }
        events
    }
}

/// Reads from `stream` until `end` has come, or the stream ends.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    let reading = async {
        while !got.ends_with(end.as_bytes()) {
            if stream.read_buf(&mut got).await.unwrap() == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("an end");
    String::from_utf8(got).unwrap()
}

/// Waits until connections to `address` are refused.
async fn until_closed(address: SocketAddr) {
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("the port closes");
}

/// A connection whose request has been answered, and which stays open.
async fn idle(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let answer = read_until(&mut stream, "}").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stream
}

/// A connection with a request whose head is read and whose body has still to come.
async fn half_sent(address: SocketAddr, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue";
    let head = format!("{head}\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_closes_the_port_and_waits_for_running_streams() {
    let expected = Server::start(|_| {}).text(300).await;
    let (runner, hold) = FaultyRunner::hanging();
    let server = Listening::over(runner, harness::FOREVER).await;
    let mut running = server.stream(300).await;
    let mut idle = idle(server.address).await;
    let body = chat(5, true, json!({})).to_string();
    let mut half_sent = half_sent(server.address, &body).await;
    server.shutdown.send(()).unwrap();
    until_closed(server.address).await;
    assert_eq!(read_until(&mut idle, "never").await, "", "an idle connection ends");
    half_sent.write_all(body.as_bytes()).await.unwrap();
    // To the end of the connection.
    let refused = read_until(&mut half_sent, "never").await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.to_lowercase().contains("\r\nconnection: close\r\n"), "{refused}");
    assert!(!server.run.is_finished(), "a stream is still running");
    drop(hold);
    assert_eq!((running.finish().await, running.text(0)), (Ending::Done, expected));
    server.run.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_drain_limit_streams_end_with_an_error() {
    let server = Listening::start(Duration::ZERO).await;
    // Ten seconds of text, of which the limit leaves none.
    let mut running = server.stream(10_000).await;
    server.shutdown.send(()).unwrap();
    let Ending::Error(message) = running.finish().await else { panic!("a complete answer") };
    assert!(message.contains("shutting down"), "{message}");
    server.run.await.unwrap().unwrap();
}
