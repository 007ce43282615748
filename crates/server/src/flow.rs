//! The way of an answer's flushes to the connection that sends them, and how much of it is
//! under way: what a slow reader leaves unread is bounded by whoever sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::sync::mpsc;

use crate::flush::Flush;

/// The end that sends. Cheap to clone.
///
/// Flushes are boxed, since a channel has room for 32 of what it carries from the start.
#[derive(Debug, Clone)]
pub struct Outflow {
    flushes: mpsc::UnboundedSender<Box<Flush>>,
    unread_bytes: Arc<AtomicUsize>,
}

/// The end that reads.
#[derive(Debug)]
pub struct Inflow {
    flushes: mpsc::UnboundedReceiver<Box<Flush>>,
    unread_bytes: Arc<AtomicUsize>,
}

/// Both ends of a way.
pub fn flow() -> (Outflow, Inflow) {
    let (sender, flushes) = mpsc::unbounded_channel();
    let unread_bytes = Arc::new(AtomicUsize::new(0));
    let outflow = Outflow { flushes: sender, unread_bytes: unread_bytes.clone() };
    (outflow, Inflow { flushes, unread_bytes })
}

impl Outflow {
    /// Sends a flush; false when nobody reads any more.
    pub fn send(&self, flush: Flush) -> bool {
        self.unread_bytes.fetch_add(weight(&flush), Ordering::Relaxed);
        self.flushes.send(Box::new(flush)).is_ok()
    }

    /// What was sent and not read, in bytes; above 0 while any flush is unread.
    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes.load(Ordering::Relaxed)
    }

    /// Resolves when nobody reads any more.
    pub async fn closed(&self) {
        self.flushes.closed().await;
    }
}

impl Inflow {
    /// The next flush; `None` when all senders are gone.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Flush>> {
        let flush = ready!(self.flushes.poll_recv(context));
        if let Some(flush) = &flush {
            self.unread_bytes.fetch_sub(weight(flush), Ordering::Relaxed);
        }
        Poll::Ready(flush.map(|flush| *flush))
    }
}

/// What a flush weighs in a stream's bound; never 0, so that an unread flush shows.
fn weight(flush: &Flush) -> usize {
    let logprobs: usize = flush.logprobs.iter().map(|one| 16 + 8 * one.logprobs.top.len()).sum();
    flush.text_bytes() + logprobs + size_of::<Flush>()
}
