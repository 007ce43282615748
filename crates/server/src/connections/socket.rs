//! A connection's socket: detects the HTTP version from the first bytes, and limits how long a
//! write may wait for its reader.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use loquent_openai::HttpVersion;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::activity::Activity;

/// Beginning of an HTTP/2 connection (RFC 9113 §3.4). No method of HTTP/1 begins like this, so
/// these bytes suffice to tell the versions apart.
const PREFACE: &[u8] = b"PRI ";

/// Number of bytes that a reader must take to gain one second. A slower reader loses its connection
/// when [`Patience`] runs out, however it spreads its reads.
const LEAST_BYTES_PER_S: u64 = 128;

/// A connection's socket, plain or with TLS.
pub struct ClientSocket<S> {
    stream: S,
    /// Bytes read to detect the version, and how many of them have been read again.
    beginning: [u8; PREFACE.len()],
    begun: usize,
    reread: usize,
    patience: Patience,
    /// Timer that runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
    activity: Arc<Activity>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientSocket<S> {
    /// Wraps `stream`, whose reader may keep a write waiting for `write_timeout`.
    pub fn new(stream: S, write_timeout: Duration, activity: Arc<Activity>) -> Self {
        let (beginning, patience) = ([0; PREFACE.len()], Patience::new(write_timeout));
        Self { stream, beginning, begun: 0, reread: 0, patience, timer: None, activity }
    }

    /// Reads until the version is known. Hyper can do this too, but without a time limit.
    ///
    /// # Errors
    /// If the connection ends first.
    pub async fn version(&mut self) -> io::Result<HttpVersion> {
        while self.begun < PREFACE.len() {
            let read = self.stream.read(&mut self.beginning[self.begun..]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.begun += read;
            if self.beginning[..self.begun] != PREFACE[..self.begun] {
                return Ok(HttpVersion::One);
            }
        }
        Ok(HttpVersion::Two)
    }

    /// Returns the outcome of a write, or an error if the reader has kept it waiting for too long.
    fn within_limit<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
        moved: impl FnOnce(&mut Patience, &T),
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(outcome) = outcome {
            if self.timer.take().is_some() {
                let _ = outcome.as_ref().map(|taken| moved(&mut self.patience, taken));
                self.activity.note_unread(None);
            }
            return Poll::Ready(outcome);
        }
        let timer = self.timer.get_or_insert_with(|| {
            let now = Instant::now();
            self.activity.note_unread(Some(now));
            Box::pin(tokio::time::sleep_until(self.patience.blocked(now).into()))
        });
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.reread < this.begun {
            let left = &this.beginning[this.reread..this.begun];
            let taken = left.len().min(buffer.remaining());
            buffer.put_slice(&left[..taken]);
            this.reread += taken;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within_limit(context, outcome, |patience, bytes| {
            patience.moved(Instant::now(), *bytes);
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        // With TLS it is the flush that waits for the reader.
        self.within_limit(context, outcome, |patience, ()| patience.renew())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within_limit(context, outcome, |patience, ()| patience.renew())
    }
}

/// Remaining time for which a reader may keep writes waiting, over TCP or on a QUIC stream.
/// Waiting uses it up, and bytes taken by the reader restore it.
pub struct Patience {
    limit: Duration,
    left: Duration,
    blocked_since: Option<Instant>,
}

impl Patience {
    /// Returns the full time, `limit`.
    pub fn new(limit: Duration) -> Self {
        Self { limit, left: limit, blocked_since: None }
    }

    /// Notes that a write is waiting; returns the time at which patience runs out.
    pub fn blocked(&mut self, now: Instant) -> Instant {
        *self.blocked_since.get_or_insert(now) + self.left
    }

    /// Notes that the write has continued, with `bytes` taken.
    pub fn moved(&mut self, now: Instant, bytes: usize) {
        let Some(since) = self.blocked_since.take() else { return };
        let gained = Duration::from_millis(bytes as u64 * 1000 / LEAST_BYTES_PER_S);
        self.left = (self.left.saturating_sub(now - since) + gained).min(self.limit);
    }

    /// Restores the full time when no write waits any more.
    fn renew(&mut self) {
        *self = Self::new(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_takes_little_by_little_wears_out_patience() {
        const S: Duration = Duration::from_secs(1);
        let mut now = Instant::now();
        let mut patience = Patience::new(60 * S);
        // A byte every 50 seconds.
        assert_eq!(patience.blocked(now), now + 60 * S);
        now += 50 * S;
        patience.moved(now, 1);
        assert!(patience.blocked(now) < now + 11 * S, "the second wait is over much sooner");
        // A slow link that takes 1 KiB in two seconds keeps its connection for ever.
        for _ in 0..1000 {
            now += 2 * S;
            patience.moved(now, 1024);
            assert!(patience.blocked(now) > now + 8 * S);
        }
    }

    async fn version_of(pieces: &'static [&'static str]) -> io::Result<HttpVersion> {
        let (mut client, stream) = tokio::io::duplex(1024);
        let activity = Arc::new(Activity::new(Instant::now()));
        let mut socket = ClientSocket::new(stream, Duration::from_secs(60), activity);
        let written = tokio::spawn(async move {
            for piece in pieces {
                tokio::io::AsyncWriteExt::write_all(&mut client, piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let version = socket.version().await;
        written.await.unwrap();
        let mut read = String::new();
        socket.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, pieces.concat(), "what told the version is read again");
        version
    }

    #[tokio::test]
    async fn the_first_bytes_tell_the_version() {
        use HttpVersion::{One, Two};
        assert_eq!(version_of(&["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]).await.unwrap(), Two);
        assert_eq!(version_of(&["P", "R", "I", " * HTTP/2.0"]).await.unwrap(), Two);
        assert_eq!(version_of(&["GET / HTTP/1.1\r\n\r\n"]).await.unwrap(), One);
        assert_eq!(version_of(&["P", "OST / HTTP/1.1\r\n\r\n"]).await.unwrap(), One);
        assert_eq!(version_of(&["PRINT / HTTP/1.1\r\n\r\n"]).await.unwrap(), One);
        assert!(version_of(&["PR"]).await.is_err());
    }
}
