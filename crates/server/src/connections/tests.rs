//! Listener errors and connection limits.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::*;

fn connections() -> Connections {
    connections_of(Router::new().route("/health", get(async || "well")), TcpLimits::default())
}

fn connections_of(router: Router, limits: TcpLimits) -> Connections {
    let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
    Connections::new(router, None, limits, proxies, Arc::new(Metrics::new())).unwrap()
}

#[tokio::test]
async fn errors_of_accept_are_survived_unless_the_listener_is_broken() {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, ECONNABORTED, EPROTO, ENETDOWN, ETIMEDOUT.
    let passing = [24, 23, 105, 12, 1, 103, 71, 100, 110];
    let errors = Mutex::new(VecDeque::from(passing));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connections = connections();
    let accept = || async {
        let error = errors.lock().unwrap().pop_front();
        match error {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => listener.accept().await,
        }
    };
    let served = async {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        response
    };
    tokio::select! {
        error = connections.accept_all(accept) => panic!("{error}"),
        response = served => assert!(response.ends_with("well"), "{response}"),
    }
    for broken in [9, 22, 88] {
        let accept = || async { Err(io::Error::from_raw_os_error(broken)) };
        assert_eq!(connections.accept_all(accept).await.raw_os_error(), Some(broken));
    }
}

#[test]
fn a_trusted_proxy_is_not_counted_as_one_client() {
    let limits = TcpLimits { max_connections_per_address: 1, ..TcpLimits::default() };
    let connections = connections_of(Router::new(), limits);
    for (peer, is_counted) in [
        ("10.0.0.1", false),
        ("::ffff:10.0.0.1", false), // by a socket of `::`
        ("203.0.113.5", true),
        ("::ffff:203.0.113.6", true),
    ] {
        let peer = PeerAddress(peer.parse().unwrap());
        let held = connections.place(peer);
        assert!(held.is_ok(), "{peer:?}");
        assert_eq!(connections.place(peer).is_err(), is_counted, "{peer:?}");
    }
}

#[test]
fn a_trouble_that_repeats_itself_is_logged_once_a_second() {
    let mut log = RareLog::default();
    let mut logged = Vec::new();
    for _ in 0..1000 {
        log.log(|unsaid| logged.push(unsaid));
    }
    assert_eq!(logged, [0]);
    log.last = log.last.map(|last| last - LOG_INTERVAL);
    log.log(|unsaid| logged.push(unsaid));
    assert_eq!(logged, [0, 999], "what was left out is counted");
}

/// A socket that counts what is written to it.
struct CountedWrites<S>(S, Arc<AtomicUsize>);

impl<S: AsyncRead + Unpin> AsyncRead for CountedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(context, bytes);
        self.1.fetch_add(usize::from(written.is_ready()), Ordering::Relaxed);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// A body made of the pieces sent to it.
struct Pieces(UnboundedReceiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// An HTTP/2 connection to a server whose every answer is a body of [`Pieces`].
struct Streams {
    client: h2::client::SendRequest<Bytes>,
    /// Senders for the pieces of each answer.
    answers: Arc<Mutex<Vec<UnboundedSender<Bytes>>>>,
    writes: Arc<AtomicUsize>,
}

impl Streams {
    async fn open() -> Self {
        let (answers, writes) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicUsize>::default());
        let begun = answers.clone();
        let answer = async move || {
            let (sender, pieces) = mpsc::unbounded_channel();
            begun.lock().unwrap().push(sender);
            Body::new(Pieces(pieces))
        };
        let router = Router::new().route("/", get(answer));
        let connections = connections_of(router, TcpLimits::default());
        let (near, far) = tokio::io::duplex(1 << 20);
        let socket = CountedWrites(far, writes.clone());
        tokio::spawn(async move {
            let task = connections.task(PeerAddress([127, 0, 0, 1].into()), None);
            task.serve(std::future::ready(Ok(socket))).await;
        });
        let mut client = h2::client::Builder::new();
        client.initial_connection_window_size(1 << 20);
        let (client, connection) = client.handshake(near).await.unwrap();
        tokio::spawn(connection);
        Self { client, answers, writes }
    }

    async fn begin(&mut self) -> h2::RecvStream {
        let request = http::Request::get("http://localhost/").body(()).unwrap();
        let (response, _) = self.client.send_request(request, true).unwrap();
        response.await.unwrap().into_body()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_a_step_gives_the_streams_of_a_connection_leaves_in_one_write() {
    const STREAMS: usize = 64;
    const STEPS: usize = 10;
    let mut streams = Streams::open().await;
    let mut bodies = Vec::new();
    for _ in 0..STREAMS {
        bodies.push(streams.begin().await);
    }
    let before = streams.writes.load(Ordering::Relaxed);
    for _ in 0..STEPS {
        let answers = streams.answers.clone();
        // On the thread that runs the streams, as steps are handed on.
        let step = tokio::spawn(async move {
            let piece = Bytes::from_static(&[b'x'; 100]);
            answers.lock().unwrap().iter().for_each(|one| one.send(piece.clone()).unwrap());
        });
        step.await.unwrap();
        for body in &mut bodies {
            assert_eq!(body.data().await.unwrap().unwrap().len(), 100);
        }
    }
    let writes = streams.writes.load(Ordering::Relaxed) - before;
    assert!(writes <= 2 * STEPS, "{writes} writes for {STEPS} steps of {STREAMS} streams");
}
