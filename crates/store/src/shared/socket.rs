//! The socket to a shared store. The client library parses replies of any length; the socket
//! breaks a connection off whose store sends more than any reply needs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use loquent_openai::Io;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, ScriptInvocation, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::address::SharedAddress;

/// An open connection. Clones share it.
#[derive(Clone)]
pub struct StoreSocket {
    calls: MultiplexedConnection,
    unanswered: Arc<AtomicUsize>,
}

impl StoreSocket {
    /// Connects and logs in. Between two answers the store may send `most_bytes`; a call waits for
    /// `call_limit`.
    ///
    /// # Errors
    /// Those of the operating system, and of a store that refuses the login.
    pub async fn open(
        address: &SharedAddress,
        most_bytes: usize,
        call_limit: Duration,
    ) -> Result<Self, RedisError> {
        let unanswered = Arc::<AtomicUsize>::default();
        let stream = address.dial.dial(None).await?;
        let stream = BoundedStream { stream, most_bytes, unanswered: unanswered.clone() };
        let login = address.client.get_connection_info().redis_settings();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(call_limit));
        let (calls, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        // It ends with the last clone, or with the connection.
        tokio::spawn(driver);
        Ok(Self { calls, unanswered })
    }

    /// Runs a script.
    ///
    /// # Errors
    /// Those of the connection and of the script.
    pub async fn run(&mut self, script: &ScriptInvocation<'_>) -> Result<Value, RedisError> {
        let answer = script.invoke_async(&mut self.calls).await;
        self.unanswered.store(0, Ordering::Relaxed);
        answer
    }
}

/// A stream that fails when it has read more than `most_bytes` since the last answer.
struct BoundedStream {
    stream: Box<dyn Io>,
    most_bytes: usize,
    unanswered: Arc<AtomicUsize>,
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        let unanswered = self.unanswered.fetch_add(read, Ordering::Relaxed) + read;
        if unanswered > self.most_bytes {
            // Of the kinds after which callers open another connection.
            let what = "it sends more than any reply needs";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, what)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
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
    use redis::Script;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const CALL_LIMIT: Duration = Duration::from_secs(60);

    /// A store that accepts the login and answers the first call with `reply`, which it repeats
    /// until the client leaves. Returns its address, and the number of bytes that it could send.
    async fn hostile_store(
        reply: &'static [u8],
    ) -> (SharedAddress, tokio::task::JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("redis://{}", listener.local_addr().unwrap());
        let sent = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
            loop {
                let read = stream.read(&mut piece).await.unwrap();
                seen.extend_from_slice(&piece[..read]);
                if seen.windows(7).any(|bytes| bytes == b"EVALSHA") {
                    break;
                }
                // Two calls name the library and its version.
                stream.write_all(b"+OK\r\n+OK\r\n").await.unwrap();
            }
            let mut sent = 0;
            while stream.write_all(reply).await.is_ok() {
                sent += reply.len();
            }
            sent
        });
        (SharedAddress::parse(&address).unwrap(), sent)
    }

    #[tokio::test]
    async fn an_endless_reply_ends_the_connection() {
        const MOST: usize = 1 << 20;
        let beginnings: [&[u8]; 3] = [b"$4000000000\r\n", b"*2000000\r\n*2000000\r\n", b"+a"];
        for reply in beginnings {
            let (address, sent) = hostile_store(reply).await;
            let mut socket = StoreSocket::open(&address, MOST, CALL_LIMIT).await.unwrap();
            let script = Script::new("return 1");
            let error = socket.run(&script.prepare_invoke()).await.unwrap_err();
            assert!(error.is_unrecoverable_error(), "{error}");
            drop(socket);
            let sent = sent.await.unwrap();
            assert!(sent < 32 * MOST, "{sent} bytes went into the client and the kernel's buffers");
        }
    }
}
