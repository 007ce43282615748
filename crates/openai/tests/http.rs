//! The pooled HTTP client against servers that break connections on purpose.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::Full;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use loquent_openai::http::{ConnectionOptions, HttpClient, json_request};
use loquent_openai::tls::Trust;
use loquent_openai::{BaseUrl, HttpError, WireCounts};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Notify};

/// Bound on waits for an event that must come.
const SOON: Duration = Duration::from_secs(20);

/// What the server does with one request.
#[derive(Clone, Copy)]
enum Act {
    /// A whole answer; the connection stays open.
    Answer,
    /// The same, once as many requests as [`CROWD`] wait for theirs.
    AnswerCrowd,
    /// These bytes, then the connection is closed.
    Break(&'static str),
    /// The connection is closed after the time that a stale one takes to fail.
    BreakLate,
    /// The listener is closed, and then the connection.
    Die,
    /// The beginning of an answer whose rest never comes.
    Stall,
}

const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const HALF_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-le";
const ONE_BYTE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no";

/// Requests that are answered together.
const CROWD: usize = 4;
/// Longer than a stale connection takes to fail.
const LATE: Duration = Duration::from_millis(1200);

/// A server that follows a script: `script(connection, request on it)`.
struct HostileServer {
    base: BaseUrl,
    /// The connection and the path of every request that arrived, in order.
    seen: Arc<Mutex<Vec<(usize, String)>>>,
    /// A client closed a connection.
    left: Arc<Notify>,
}

impl HostileServer {
    async fn start(script: fn(usize, usize) -> Act) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (seen, left) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let server = Self {
            base: BaseUrl::parse(&base).unwrap(),
            seen: Arc::clone(&seen),
            left: Arc::clone(&left),
        };
        let crowd = Arc::new(Barrier::new(CROWD));
        let end = Arc::new(Listening::default());
        tokio::spawn(async move {
            for connection in 0.. {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = end.ending.notified() => break,
                };
                let (stream, _) = accepted.unwrap();
                let (seen, left) = (Arc::clone(&seen), Arc::clone(&left));
                let (crowd, end) = (Arc::clone(&crowd), Arc::clone(&end));
                tokio::spawn(async move {
                    let note = |path| seen.lock().unwrap().push((connection, path));
                    serve(stream, &crowd, &end, |request| script(connection, request), note).await;
                    left.notify_one();
                });
            }
            drop(listener);
            end.ended.notify_one();
        });
        server
    }

    fn client(&self) -> HttpClient {
        HttpClient::new(self.base.clone(), None).unwrap()
    }

    fn seen(&self) -> Vec<(usize, String)> {
        self.seen.lock().unwrap().clone()
    }
}

/// Ends the server's listener.
#[derive(Default)]
struct Listening {
    ending: Notify,
    ended: Notify,
}

async fn serve(
    mut stream: TcpStream,
    crowd: &Barrier,
    listening: &Listening,
    script: impl Fn(usize) -> Act,
    note: impl Fn(String),
) {
    for request in 0.. {
        let Some(path) = read_request(&mut stream).await else { return };
        note(path);
        let bytes = match script(request) {
            Act::Answer => WHOLE,
            Act::AnswerCrowd => {
                crowd.wait().await;
                WHOLE
            }
            Act::Stall => ONE_BYTE,
            Act::BreakLate => return tokio::time::sleep(LATE).await,
            Act::Die => {
                listening.ending.notify_one();
                return listening.ended.notified().await;
            }
            Act::Break(bytes) => return stream.write_all(bytes.as_bytes()).await.unwrap(),
        };
        stream.write_all(bytes.as_bytes()).await.unwrap();
    }
}

/// The path of the next request; `None` once the client has closed. Bodies are `{}`.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    while !text.contains("\r\n\r\n") || (text.starts_with("POST") && !text.ends_with("{}")) {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => text.push(byte[0] as char),
            _ => return None,
        }
    }
    Some(text.split(' ').nth(1).unwrap().to_owned())
}

async fn post(client: &HttpClient, path: &str) -> Result<Bytes, HttpError> {
    client.call(Method::POST, path, Bytes::from_static(b"{}"), 100).await
}

fn paths(seen: &[(usize, &str)]) -> Vec<(usize, String)> {
    seen.iter().map(|(connection, path)| (*connection, (*path).to_owned())).collect()
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = HostileServer::start(|_, _| Act::Answer).await;
    let client = server.client();
    for _ in 0..3 {
        assert_eq!(post(&client, "/a").await.unwrap(), "ok");
    }
    assert_eq!(server.seen(), paths(&[(0, "/a"), (0, "/a"), (0, "/a")]));
}

#[tokio::test]
async fn a_request_on_an_idle_connection_that_closes_is_sent_again() {
    let server = HostileServer::start(|connection, request| match (connection, request) {
        (0, 1) => Act::Break(""),
        _ => Act::Answer,
    })
    .await;
    let client = server.client();
    post(&client, "/a").await.unwrap();
    assert_eq!(post(&client, "/b").await.unwrap(), "ok");
    assert_eq!(server.seen(), paths(&[(0, "/a"), (0, "/b"), (1, "/b")]));
}

#[tokio::test]
async fn a_request_on_a_fresh_connection_is_not_sent_again() {
    let server = HostileServer::start(|_, _| Act::Break("")).await;
    let error = post(&server.client(), "/a").await.unwrap_err();
    assert!(matches!(error, HttpError::Broken { .. }), "{error}");
    assert_eq!(server.seen(), paths(&[(0, "/a")]));
}

#[tokio::test]
async fn a_request_whose_connection_breaks_later_is_not_sent_again() {
    let server = HostileServer::start(|connection, request| match (connection, request) {
        (0, 1) => Act::BreakLate,
        _ => Act::Answer,
    })
    .await;
    let client = server.client();
    post(&client, "/a").await.unwrap();
    let error = post(&client, "/b").await.unwrap_err();
    assert!(matches!(error, HttpError::Broken { .. }), "{error}");
    assert_eq!(server.seen(), paths(&[(0, "/a"), (0, "/b")]));
}

#[tokio::test]
async fn a_request_that_its_server_dies_of_counts_as_received() {
    let server = HostileServer::start(|_, request| [Act::Answer, Act::Die][request.min(1)]).await;
    let client = server.client();
    post(&client, "/a").await.unwrap();
    let error = post(&client, "/b").await.unwrap_err();
    assert!(matches!(error, HttpError::Broken { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "it was to be sent again: {error}");
    let error = post(&client, "/c").await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. }), "this one was not sent: {error}");
}

#[tokio::test]
async fn after_one_byte_of_an_answer_a_request_is_not_sent_again() {
    for bytes in ["H", HALF_HEAD, ONE_BYTE] {
        // A function pointer captures nothing, so each answer has a script of its own.
        let script: fn(usize, usize) -> Act = match bytes {
            HALF_HEAD => |_, request| [Act::Answer, Act::Break(HALF_HEAD)][request],
            ONE_BYTE => |_, request| [Act::Answer, Act::Break(ONE_BYTE)][request],
            _ => |_, request| [Act::Answer, Act::Break("H")][request],
        };
        let server = HostileServer::start(script).await;
        let client = server.client();
        post(&client, "/a").await.unwrap();
        let error = post(&client, "/b").await.unwrap_err();
        assert!(matches!(error, HttpError::Broken { .. }), "{bytes:?}: {error}");
        assert_eq!(server.seen(), paths(&[(0, "/a"), (0, "/b")]), "{bytes:?}");
        // The client itself is as good as new.
        assert_eq!(post(&client, "/c").await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn with_many_stale_connections_a_request_is_sent_twice_at_most() {
    // Each connection becomes idle after one answer, and closes instead of giving another.
    let server = HostileServer::start(|connection, request| match (connection, request) {
        (0..CROWD, 0) => Act::AnswerCrowd,
        (0..CROWD, 1) => Act::Break(""),
        _ => Act::Answer,
    })
    .await;
    let client = server.client();
    let (one, two, three, four) = tokio::join!(
        post(&client, "/a"),
        post(&client, "/a"),
        post(&client, "/a"),
        post(&client, "/a"),
    );
    assert!([one, two, three, four].iter().all(Result::is_ok));
    assert_eq!(post(&client, "/b").await.unwrap(), "ok");
    let seen = server.seen();
    assert_eq!(seen.iter().filter(|(_, path)| path == "/b").count(), 2, "{seen:?}");
}

#[tokio::test]
async fn dropping_an_answer_closes_its_connection_though_the_server_is_silent() {
    let server = HostileServer::start(|_, _| Act::Stall).await;
    let request = json_request(Method::GET, "/a", Bytes::new()).unwrap();
    let mut body = server.client().send(request).await.unwrap().into_body();
    assert_eq!(body.piece().await.unwrap().unwrap(), "o");
    drop(body);
    tokio::time::timeout(SOON, server.left.notified()).await.unwrap();
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection_though_the_server_is_silent() {
    let server = HostileServer::start(|_, _| Act::Break("")).await;
    let quiet = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}", quiet.local_addr().unwrap())).unwrap();
    let client = HttpClient::new(base, None).unwrap();
    let request = json_request(Method::GET, "/a", Bytes::new()).unwrap();
    let sending = tokio::spawn(async move { client.send(request).await.map(drop) });
    let (mut stream, _) = quiet.accept().await.unwrap();
    assert!(read_request(&mut stream).await.is_some());
    sending.abort();
    let closed = tokio::time::timeout(SOON, stream.read(&mut [0])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)));
    drop(server);
}

#[tokio::test]
async fn what_an_answer_costs_on_the_wire_is_counted_for_it_alone() {
    let server = HostileServer::start(|_, _| Act::Answer).await;
    let client = server.client();
    for _ in 0..2 {
        let request = json_request(Method::GET, "/a", Bytes::new()).unwrap();
        let mut body = client.send(request).await.unwrap().into_body();
        body.read_all(100).await.unwrap();
        assert_eq!(body.wire().bytes, WHOLE.len() as u64);
        assert!(body.wire().reads >= 1);
    }
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_connection_with_a_receive_buffer_of_its_own_is_not_kept() {
    let server = HostileServer::start(|_, _| Act::Answer).await;
    let client = server.client();
    let options = ConnectionOptions { recv_buffer_bytes: Some(4096) };
    for _ in 0..2 {
        let request = json_request(Method::GET, "/a", Bytes::new()).unwrap();
        let response = client.send_with(request, options).await.unwrap();
        assert_eq!(response.into_body().read_all(100).await.unwrap(), "ok");
    }
    assert_eq!(server.seen(), paths(&[(0, "/a"), (1, "/a")]));
}

#[tokio::test]
async fn a_dead_server_is_named_with_the_systems_reason() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client =
        HttpClient::new(BaseUrl::parse(&format!("http://{free}/v1")).unwrap(), None).unwrap();
    let error = client.get("/v1/models", 100).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot connect to {free}: ")), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[tokio::test]
async fn of_two_certificates_only_the_pinned_one_is_accepted() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.unwrap())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            stream.write_all(WHOLE.as_bytes()).await.unwrap();
        }
    });
    let hash: [u8; 32] = Sha256::digest(&certificate).into();
    let client =
        |trust| HttpClient::with_trust(BaseUrl::parse(&base).unwrap(), None, trust).unwrap();
    assert_eq!(client(Trust::Pinned(hash)).get("/a", 100).await.unwrap(), "ok");
    for trust in [Trust::Pinned([0; 32]), Trust::System] {
        let error = client(trust).get("/a", 100).await.unwrap_err();
        assert!(matches!(error, HttpError::Connect { .. }), "{error}");
    }
}

#[tokio::test]
async fn all_requests_share_one_connection_of_http2() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (connections, crowd) = (Arc::new(Mutex::new(0)), Arc::new(Barrier::new(CROWD)));
    let accepted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            *accepted.lock().unwrap() += 1;
            let crowd = crowd.clone();
            // None is answered before all have come.
            let answer = service_fn(move |_| {
                let crowd = crowd.clone();
                async move {
                    crowd.wait().await;
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
                }
            });
            let server = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
        }
    });
    let client = HttpClient::over_http2(base, None, Trust::System).unwrap();
    let ask = || async {
        let request = json_request(Method::GET, "/", Bytes::new()).unwrap();
        let mut body = client.send(request).await.unwrap().into_body();
        assert_eq!(body.read_all(100).await.unwrap(), "ok");
        assert_eq!(body.wire(), WireCounts::default(), "the connection is not one answer's");
    };
    let all = async { tokio::join!(ask(), ask(), ask(), ask()) };
    tokio::time::timeout(SOON, all).await.expect("four answers");
    assert_eq!(*connections.lock().unwrap(), 1);
}
