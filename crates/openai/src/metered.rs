//! Counts the bytes read from a connection: for measurements, and to know whether any byte of a
//! response has arrived.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::dial::Io;

/// Data received from the socket: all of HTTP, headers and chunk framing included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// Bytes read, after decryption if TLS is used.
    pub bytes: u64,
    /// Reads that returned bytes: at most as many as the server's writes.
    pub reads: u64,
}

/// Counts of one connection since it was opened.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    bytes: AtomicU64,
    reads: AtomicU64,
}

impl ReadCounters {
    pub(crate) fn counts(&self) -> WireCounts {
        WireCounts {
            bytes: self.bytes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
        }
    }
}

/// Connection that counts the bytes read from it.
pub(crate) struct MeteredIo {
    io: Box<dyn Io>,
    counters: Arc<ReadCounters>,
}

impl MeteredIo {
    pub(crate) fn new(io: Box<dyn Io>) -> Self {
        Self { io, counters: Arc::default() }
    }
}

impl Connection for MeteredIo {
    fn connected(&self) -> Connected {
        // This is how the pool hands a connection's counters to the request that it serves.
        Connected::new().extra(Arc::clone(&self.counters))
    }
}

impl AsyncRead for MeteredIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        if read > 0 {
            self.counters.bytes.fetch_add(read as u64, Ordering::Relaxed);
            self.counters.reads.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for MeteredIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
