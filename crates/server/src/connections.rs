//! TCP connections: accepted within a limit, with TLS or without, each served by the router.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::https::Https;
use crate::obfuscation::Encrypted;
use crate::peer::{PeerAddress, PeerRouter};
use crate::quic::{CHECK_EVERY, CertificateSource};

/// How long a client may take for its TLS handshake, and for a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after an error of `accept` that may pass. Chosen by hand: long enough not to spin
/// while the process has no free file descriptor, short enough that no client notices.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Bytes that hyper buffers per connection. It is small, because tokens that a slow reader
/// leaves should wait where they can still be merged into larger flushes.
const CONNECTION_BUFFER_BYTES: usize = 16 * 1024;

/// All TCP connections of a server.
pub struct Connections {
    router: Router,
    graceful: GracefulShutdown,
    permits: Arc<Semaphore>,
    tls: Option<Https>,
}

impl Connections {
    /// Connections whose requests `router` answers, at most `max_connections` at once.
    ///
    /// # Errors
    /// When the certificate cannot be used.
    pub fn new(
        router: Router,
        tls: Option<CertificateSource>,
        max_connections: usize,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            // One listener has TLS on all connections, or on none.
            router: if tls.is_some() { router.layer(Extension(Encrypted)) } else { router },
            graceful: GracefulShutdown::new(),
            permits: Arc::new(Semaphore::new(max_connections.max(1))),
            tls: tls.map(Https::new).transpose()?,
        })
    }

    /// Accepts connections for ever; returns only when the listener fails.
    pub async fn accept(&self, listener: &TcpListener) -> io::Error {
        let keep_current = async {
            match &self.tls {
                Some(tls) => tls.keep_current(CHECK_EVERY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.accept_all(listener) => error,
            () = keep_current => unreachable!("a certificate is renewed for ever"),
        }
    }

    /// Closes idle connections and waits until all others have sent their responses.
    pub async fn shutdown(self) {
        self.graceful.shutdown().await;
    }

    async fn accept_all(&self, listener: &TcpListener) -> io::Error {
        loop {
            // First a permit, then a connection: clients over the limit wait in the kernel's
            // queue instead of in a connection that nobody serves.
            let permit = self.permits.clone().acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, peer)) => self.serve(stream, PeerAddress(peer.ip()), permit),
                Err(error) if is_transient(&error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                Err(error) => return error,
            }
        }
    }

    fn serve(&self, stream: TcpStream, peer: PeerAddress, permit: OwnedSemaphorePermit) {
        // Every flush is one write and should leave at once.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(PeerRouter::new(self.router.clone(), peer));
        let (watcher, tls) = (self.graceful.watcher(), self.tls.as_ref().map(Https::acceptor));
        tokio::spawn(async move {
            let _permit = permit;
            let Some(tls) = tls else {
                return serve_connection(stream, service, watcher).await;
            };
            match tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => serve_connection(stream, service, watcher).await,
                _ => tracing::debug!("a TLS handshake failed"),
            }
        });
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: TowerToHyperService<PeerRouter>,
    watcher: Watcher,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        // A chunk is three small pieces: one copy and `send` is cheaper than `writev`.
        .writev(false)
        .max_buf_size(CONNECTION_BUFFER_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Whether the next `accept` may succeed: the client left already, or a file descriptor is
/// missing that another connection will free.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    /// `EMFILE` and `ENFILE`: too many open files, in the process or the system.
    const TOO_MANY_FILES: [i32; 2] = [24, 23];
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}
