//! TCP connections: accepted within limits on number and time, with or without TLS, and served by
//! the router.

mod activity;
mod body;
mod limits;
mod reserve;
mod service;
mod socket;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use loquent_openai::HttpVersion;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::after_ready_tasks::AfterReadyTasks;
use crate::certificate::CertificateSource;
use crate::connection_limits::{ConnectionPermit, ConnectionRefusal, Places};
use crate::https::{self, Https};
use crate::peer_router::PeerRouter;
use activity::{Activity, NextStep};
use limits::is_this_machine;
pub use limits::{BodyPace, TcpLimits};
use loquent_serving::metrics::Metrics;
use loquent_serving::obfuscation::Encrypted;
use loquent_serving::peer::{PeerAddress, TrustedProxies};
use reserve::Reserve;
use service::ConnectionService;
use socket::ClientSocket;
pub use socket::Patience;

/// Pause after an error of `accept`. Chosen by hand: long enough not to spin while the process
/// has no free file descriptor, short enough that no client notices.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Minimum time between two log lines about the same problem.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that hyper buffers per connection, or per HTTP/2 stream. Kept small, because tokens that a
/// slow reader has not taken should wait where they can still be merged into larger flushes.
const CONNECTION_BUFFER_BYTES: usize = 16 * 1024;
/// Limit of unread request bytes per HTTP/2 stream, and per HTTP/2 connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// All TCP connections of a server.
pub struct Connections {
    router: Router,
    limits: Arc<TcpLimits>,
    trusted_proxies: TrustedProxies,
    places: Arc<Places>,
    reserve: Reserve,
    metrics: Arc<Metrics>,
    /// Becomes true when the server shuts down. Each connection holds a receiver, so the channel is
    /// closed once the last connection has ended.
    draining: watch::Sender<bool>,
    tls: Option<Https>,
}

impl Connections {
    /// Returns a set of connections whose requests `router` answers. Those from `trusted_proxies`
    /// have no limit of their own.
    ///
    /// # Errors
    /// If the certificate cannot be used.
    pub fn new(
        router: Router,
        tls: Option<CertificateSource>,
        limits: TcpLimits,
        trusted_proxies: TrustedProxies,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let https = |source: CertificateSource| {
            let every = source.check_every();
            Https::new(source, every)
        };
        Ok(Self {
            // One listener has TLS on all connections, or on none.
            router: if tls.is_some() { router.layer(Extension(Encrypted)) } else { router },
            places: Places::new(limits.max_connections, limits.max_connections_per_address),
            reserve: Reserve::default(),
            limits: Arc::new(limits),
            trusted_proxies,
            metrics,
            draining: watch::Sender::new(false),
            tls: tls.map(https).transpose()?,
        })
    }

    /// Accepts connections forever; returns only if the listener fails.
    pub async fn accept(&self, listener: &TcpListener) -> io::Error {
        let keep_current = async {
            match &self.tls {
                Some(tls) => tls.keep_current().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.accept_all(|| listener.accept()) => error,
            () = keep_current => unreachable!("a certificate is renewed for ever"),
        }
    }

    /// Closes idle connections and waits until all others have sent their responses.
    pub async fn shutdown(self) {
        self.draining.send_replace(true);
        self.draining.closed().await;
    }

    async fn accept_all<F>(&self, mut accept: impl FnMut() -> F) -> io::Error
    where
        F: Future<Output = io::Result<(TcpStream, SocketAddr)>>,
    {
        let mut warnings = RareLog::default();
        loop {
            match accept().await {
                Ok((stream, peer)) => self.admit(stream, PeerAddress(peer.ip())).await,
                Err(error) if is_fatal(&error) => return error,
                Err(error) => {
                    warnings.log(|unsaid| {
                        tracing::warn!(%error, unsaid, "cannot accept a connection");
                    });
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves a connection. Clients beyond the limit are not left waiting in the kernel's queue:
    /// they get an error, and health checks among them are answered.
    async fn admit(&self, stream: TcpStream, peer: PeerAddress) {
        // Every flush is one write and should leave at once.
        let _ = stream.set_nodelay(true);
        match self.place(peer) {
            Ok(place) => {
                let task = self.task(peer, None);
                tokio::spawn(async move {
                    let _place = place;
                    task.run(stream).await;
                });
            }
            Err(no_place) => {
                let task = self.task(peer, Some(no_place));
                let limit = self.limits.reserve_timeout;
                let task = tokio::spawn(async move {
                    let _ = timeout(limit, task.run(stream)).await;
                });
                self.reserve.hold(task).await;
            }
        }
    }

    fn place(&self, peer: PeerAddress) -> Result<ConnectionPermit, ConnectionRefusal> {
        let is_proxy = is_this_machine(peer.0) || self.trusted_proxies.trusts(peer.0);
        match is_proxy {
            true => self.places.enter_uncounted(),
            false => self.places.enter(peer.0),
        }
    }

    fn task(&self, peer: PeerAddress, no_place: Option<ConnectionRefusal>) -> ConnectionTask {
        let activity = Arc::new(Activity::new(Instant::now()));
        ConnectionTask {
            service: ConnectionService {
                router: PeerRouter::new(self.router.clone(), peer),
                activity: activity.clone(),
                limits: self.limits.clone(),
                metrics: self.metrics.clone(),
                no_place,
            },
            activity,
            limits: self.limits.clone(),
            tls: self.tls.as_ref().map(Https::acceptor),
            draining: self.draining.subscribe(),
        }
    }
}

/// The task that serves one connection.
struct ConnectionTask {
    service: ConnectionService,
    activity: Arc<Activity>,
    limits: Arc<TcpLimits>,
    tls: Option<TlsAcceptor>,
    draining: watch::Receiver<bool>,
}

impl ConnectionTask {
    async fn run(mut self, stream: TcpStream) {
        match self.tls.take() {
            None => self.serve(std::future::ready(Ok(stream))).await,
            Some(tls) => self.serve(https::accept(tls, stream)).await,
        }
    }

    async fn serve<S>(mut self, accepted: impl Future<Output = io::Result<S>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let begin = async {
            let stream = accepted.await?;
            let write_timeout = self.limits.write_timeout;
            let mut socket = ClientSocket::new(stream, write_timeout, self.activity.clone());
            let version = socket.version().await?;
            Ok::<_, io::Error>((socket, version))
        };
        let begun = tokio::select! {
            begun = timeout(self.limits.request_timeout, begin) => begun,
            () = begins(&mut self.draining) => return,
        };
        let Ok(Ok((socket, version))) = begun else {
            return tracing::debug!("a connection brought no request");
        };
        let builder = builder(version, &self.limits);
        let connection = builder.serve_connection(TokioIo::new(socket), self.service.clone());
        let connection = pin!(connection);
        let watched = pin!(self.watch(connection));
        match version {
            HttpVersion::One => watched.await,
            // What the step of an engine gives all streams of it leaves in one write.
            HttpVersion::Two => AfterReadyTasks::new(watched).await,
        }
    }

    /// Runs the connection until it ends or exceeds a time limit.
    async fn watch<C: HttpConnection>(mut self, mut connection: Pin<&mut C>) {
        let mut shuts_down = false;
        loop {
            let check_at = match self.activity.next_step(Instant::now(), &self.limits) {
                NextStep::CheckAt(at) => at,
                NextStep::Close => {
                    self.activity.close(Instant::now(), false);
                    connection.as_mut().close();
                    continue;
                }
                NextStep::Abandon => return tracing::debug!("a connection was given up"),
            };
            tokio::select! {
                biased;
                // First, so that the response to a request that arrives meanwhile says that the
                // connection closes.
                () = begins(&mut self.draining), if !shuts_down => {
                    shuts_down = true;
                    self.activity.close(Instant::now(), true);
                    connection.as_mut().close();
                }
                error = connection.as_mut() => {
                    return tracing::debug!(?error, "a connection ended");
                }
                () = tokio::time::sleep_until(check_at.into()) => {}
            }
        }
    }
}

/// Resolves when the shutdown begins.
async fn begins(draining: &mut watch::Receiver<bool>) {
    let _ = draining.wait_for(|draining| *draining).await;
}

/// An HTTP/1 or HTTP/2 connection that can be told to accept no more requests.
trait HttpConnection: Future<Output = Result<(), Self::Error>> {
    type Error: std::fmt::Debug;

    fn close(self: Pin<&mut Self>);
}

impl<S> HttpConnection
    for auto::Connection<'_, TokioIo<ClientSocket<S>>, ConnectionService, TokioExecutor>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

fn builder(version: HttpVersion, limits: &TcpLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    match version {
        HttpVersion::One => {
            builder
                .http1()
                // `Activity` bounds the time of a head, by the same rule for both versions.
                .header_read_timeout(None)
                // A chunk is three small pieces: one copy and `send` is cheaper than `writev`.
                .writev(false)
                .max_buf_size(CONNECTION_BUFFER_BYTES);
            builder.http1_only()
        }
        HttpVersion::Two => {
            builder
                .http2()
                .timer(TokioTimer::new())
                .keep_alive_interval(limits.ping_interval)
                .keep_alive_timeout(limits.ping_interval)
                .max_concurrent_streams(limits.max_streams)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_send_buf_size(CONNECTION_BUFFER_BYTES);
            builder.http2_only()
        }
    }
}

/// Returns true if the listener itself is broken, so that no later `accept` can succeed. All other
/// errors are temporary: the client has left, or there is a shortage of descriptors or memory.
fn is_fatal(error: &io::Error) -> bool {
    /// `EBADF`, `EINVAL`, and `ENOTSOCK` on Linux and on BSD.
    const BROKEN: [i32; 4] = [9, 22, 88, 38];
    error.raw_os_error().is_some_and(|code| BROKEN.contains(&code))
}

/// Keeps a recurring problem from filling the log.
#[derive(Default)]
struct RareLog {
    last: Option<Instant>,
    unsaid: u64,
}

impl RareLog {
    /// Calls `log` with the number of calls skipped since the last one, unless that was just now.
    fn log(&mut self, log: impl FnOnce(u64)) {
        if self.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            self.unsaid += 1;
            return;
        }
        log(std::mem::take(&mut self.unsaid));
        self.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests;
