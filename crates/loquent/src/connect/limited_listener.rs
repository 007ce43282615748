//! A listener with a limit on open connections; further ones wait in the system's queue.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Pause after a failed accept: the process may be out of file descriptors, and an immediate retry
/// would only burn CPU.
const PAUSE: Duration = Duration::from_millis(20);

/// A listener that accepts connections while fewer than its limit are open.
pub struct LimitedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    stall_limit: Duration,
}

/// A connection that counts against the limit until it is dropped, and breaks if its client reads
/// nothing for too long.
pub struct LimitedStream {
    stream: TcpStream,
    stall_limit: Duration,
    /// Runs while a write waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl LimitedListener {
    /// Accepts from `listener`, at most `limit` connections at once (at least one). A client that
    /// leaves pending bytes unread for `stall_limit` loses its connection.
    pub fn new(listener: TcpListener, limit: usize, stall_limit: Duration) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(limit.max(1))), stall_limit }
    }

    /// Waits for a permit and a connection.
    pub async fn accept(&self) -> LimitedStream {
        // The permit comes before the connection, so that a client beyond the limit stays in the
        // system's queue instead of holding an accepted socket.
        let permit = self.permits.clone().acquire_owned().await;
        let _permit = permit.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    // Each token is a small write; none may wait for the acknowledgement of
                    // another.
                    let _ = stream.set_nodelay(true);
                    let stall_limit = self.stall_limit;
                    return LimitedStream { stream, stall_limit, stalled: None, _permit };
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl LimitedStream {
    /// Returns the outcome of a write, or an error if the write has waited for too long.
    fn bound<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.stall_limit;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
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
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.bound(context, written)
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
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_beyond_the_limit_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = LimitedListener::new(listener, 2, Duration::from_secs(60));
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

    #[tokio::test]
    async fn a_client_that_reads_nothing_loses_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = LimitedListener::new(listener, 1, Duration::from_millis(100));
        let _client = TcpStream::connect(address).await.unwrap();
        let mut stream = listener.accept().await;
        let writing = async { while stream.write_all(&[0; 65536]).await.is_ok() {} };
        let ended = tokio::time::timeout(Duration::from_secs(30), writing).await;
        ended.expect("the write ends");
    }
}
