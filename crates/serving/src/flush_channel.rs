//! The channel between a completion and the task that sends its flushes. Both ends know the number
//! of bytes in it: the sender bounds how much a slow reader leaves unread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use loquent_proto::Delta;
use tokio::sync::mpsc;

use crate::flush::{Flush, TokenLogprobs};

/// Sending end. Cheap to clone.
///
/// Flushes travel by value: a channel allocates room for 32 of them at once, 2 kB with a flush of
/// 64 bytes, which is less than a separate allocation for each of them would cost.
#[derive(Debug, Clone)]
pub struct FlushSender {
    flushes: mpsc::UnboundedSender<Flush>,
    unread_bytes: Arc<AtomicUsize>,
}

/// Receiving end.
#[derive(Debug)]
pub struct FlushReceiver {
    flushes: mpsc::UnboundedReceiver<Flush>,
    unread_bytes: Arc<AtomicUsize>,
}

/// Creates a channel for all completions of one request.
pub fn flush_channel() -> (FlushSender, FlushReceiver) {
    let (sender, flushes) = mpsc::unbounded_channel();
    let unread_bytes = Arc::new(AtomicUsize::new(0));
    let sender = FlushSender { flushes: sender, unread_bytes: unread_bytes.clone() };
    (sender, FlushReceiver { flushes, unread_bytes })
}

impl FlushSender {
    /// Sends a flush. Returns false when the receiver is gone.
    pub fn send(&self, flush: Flush) -> bool {
        self.unread_bytes.fetch_add(size_bytes(&flush), Ordering::Relaxed);
        self.flushes.send(flush).is_ok()
    }

    /// Returns the bytes that were sent and not read; above 0 while any flush is unread.
    pub fn unread_bytes(&self) -> usize {
        // A count that is a moment old moves a pause by one flush, so no ordering is needed.
        self.unread_bytes.load(Ordering::Relaxed)
    }

    /// Resolves when the receiver is gone.
    pub async fn closed(&self) {
        self.flushes.closed().await;
    }
}

impl FlushReceiver {
    /// Polls for the next flush; `None` when all senders are gone.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Flush>> {
        let flush = ready!(self.flushes.poll_recv(context));
        if let Some(flush) = &flush {
            self.unread_bytes.fetch_sub(size_bytes(flush), Ordering::Relaxed);
        }
        Poll::Ready(flush)
    }
}

/// Returns the bytes of a flush that count towards a stream's bound; never 0, so that every unread
/// flush counts.
fn size_bytes(flush: &Flush) -> usize {
    let alternatives = |one: &TokenLogprobs| one.logprobs.as_ref().map_or(0, |some| some.top.len());
    let logprobs: usize = flush.logprobs.iter().map(|one| 16 + 8 * alternatives(one)).sum();
    let deltas: usize = flush.deltas.iter().map(Delta::payload_bytes).sum();
    // Nearly all flushes have one; an upstream server may send any number that say next to nothing.
    let more = flush.deltas.len().saturating_sub(1) * size_of::<Delta>();
    deltas + more + logprobs + size_of::<Flush>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unread(deltas: Vec<Delta>) -> usize {
        let (sender, _receiver) = flush_channel();
        sender.send(Flush { deltas, ..Flush::default() });
        sender.unread_bytes()
    }

    fn call(id: &str) -> Delta {
        let (name, arguments) = (String::new(), String::new());
        Delta::ToolCall { choice: 0, index: 0, tokens: 0, id: id.into(), name, arguments }
    }

    #[test]
    fn all_that_an_upstream_server_sends_counts_as_unread() {
        let long = "i".repeat(1 << 20);
        let other = Delta::Other { choice: 0, json: long.clone() };
        let logprobs = Delta::Logprobs { choice: 0, json: long.clone() };
        for delta in [call(&long), other, logprobs] {
            assert!(unread(vec![delta]) >= long.len());
        }
        // Many deltas of nothing are not nothing.
        assert!(unread(vec![call(""); 1000]) >= 999 * size_of::<Delta>());
    }
}
