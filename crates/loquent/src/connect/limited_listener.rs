//! A listener with a limit on the connections that are open at once; further ones wait in the
//! system's queue.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pause after a failed accept: the process may be out of file descriptors, and retrying at once
/// would only burn CPU.
const PAUSE: Duration = Duration::from_millis(20);

/// A listener that accepts while fewer than its limit of connections are open.
pub struct LimitedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

/// A connection that counts against the limit until it is dropped.
pub struct LimitedStream {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl LimitedListener {
    /// Accepts from `listener`, at most `limit` connections at once (at least one).
    pub fn new(listener: TcpListener, limit: usize) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(limit.max(1))) }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (LimitedStream, SocketAddr) {
        // The permit comes before the connection, so that a client beyond the limit stays in the
        // system's queue instead of holding an accepted socket.
        let permit = self.permits.clone().acquire_owned().await;
        let _permit = permit.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // Each token is a small write; none may wait for the acknowledgement of
                    // another.
                    let _ = stream.set_nodelay(true);
                    return (LimitedStream { stream, _permit }, address);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_beyond_the_limit_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = LimitedListener::new(listener, 2);
        let _clients = [
            TcpStream::connect(address).await.unwrap(),
            TcpStream::connect(address).await.unwrap(),
            TcpStream::connect(address).await.unwrap(),
        ];
        let (first, second) = (listener.accept().await, listener.accept().await);
        let full = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(full.is_err(), "a third one got in");
        drop(first);
        listener.accept().await;
        drop(second);
    }
}
