//! A connection between a replica and the store, in memory.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Default)]
struct PipeState {
    calls: Vec<u8>,
    replies: VecDeque<u8>,
    is_closed: bool,
    is_client_gone: bool,
    reader: Option<Waker>,
}

/// The replica's end.
pub struct ClientEnd(Arc<Mutex<PipeState>>);

/// The store's end.
pub struct StoreEnd(Arc<Mutex<PipeState>>);

/// Creates both ends of a connection.
pub fn store_pipe() -> (ClientEnd, StoreEnd) {
    let state = Arc::<Mutex<PipeState>>::default();
    (ClientEnd(state.clone()), StoreEnd(state))
}

fn lock(state: &Mutex<PipeState>) -> MutexGuard<'_, PipeState> {
    state.lock().expect("nothing panics under this lock")
}

impl StoreEnd {
    /// Returns the bytes that the replica has sent.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.0).calls)
    }

    /// Sends `bytes` to the replica.
    pub fn give(&self, bytes: &[u8]) {
        let mut state = lock(&self.0);
        state.replies.extend(bytes);
        let reader = state.reader.take();
        // A reader that runs at once would find the pipe locked.
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Closes the connection. The replica still reads what was sent before.
    pub fn close(&self) {
        let mut state = lock(&self.0);
        state.is_closed = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// True if the replica has closed its end, and all that it had sent was taken.
    pub fn is_over(&self) -> bool {
        let state = lock(&self.0);
        state.is_closed || state.is_client_gone && state.calls.is_empty()
    }
}

impl AsyncRead for ClientEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        if state.replies.is_empty() && !state.is_closed {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        // Nothing of a closed connection is its end.
        let len = state.replies.len().min(buffer.remaining());
        let bytes: Vec<u8> = state.replies.drain(..len).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.0);
        if state.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        state.calls.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).is_client_gone = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        lock(&self.0).is_client_gone = true;
    }
}
