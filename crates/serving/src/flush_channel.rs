//! The channel between a completion and the task that sends its flushes. Both ends know the number
//! of bytes in it: the sender bounds how much a slow reader leaves unread.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use loquent_proto::Delta;
use tokio::sync::mpsc;

use crate::flush::{Flush, TokenLogprobs};
use crate::sync::atomic::{AtomicUsize, Ordering};

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
    let logprobs: usize = flush.logprobs.iter().map(TokenLogprobs::size_bytes).sum();
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

#[cfg(all(test, loquent_loom))]
mod interleavings {
    //! A reader and a writer in every order: each flush arrives once, in order, and counts as
    //! unread from before it can be read until after it was.
    use super::*;
    use crate::sync::thread;
    use loquent_needs::interleavings::{block_on, explore};

    const FLUSHES: u32 = 3;

    fn flush(number: u32) -> Flush {
        let text = Delta::Text { choice: 0, tokens: 1, text: number.to_string() };
        Flush { deltas: vec![text], ..Flush::default() }
    }

    async fn next(receiver: &mut FlushReceiver) -> Option<Flush> {
        std::future::poll_fn(|context| receiver.poll_recv(context)).await
    }

    #[test]
    fn no_flush_is_lost_or_doubled_and_all_that_is_unread_counts() {
        explore("a reader and a writer of flushes", || {
            let (sender, mut receiver) = flush_channel();
            let watch = sender.clone();
            let writer = thread::spawn(move || {
                (0..FLUSHES).for_each(|number| assert!(sender.send(flush(number))));
            });
            let bound = size_bytes(&flush(0)) * FLUSHES as usize;
            for number in 0..FLUSHES {
                let read = block_on(next(&mut receiver)).expect("the writer is not gone");
                assert_eq!(read.deltas, flush(number).deltas);
                assert!(watch.unread_bytes() <= bound, "it was read before it was counted");
            }
            writer.join().unwrap();
            assert_eq!(watch.unread_bytes(), 0);
            drop(watch);
            assert!(block_on(next(&mut receiver)).is_none());
        });
    }

    #[test]
    fn a_reader_that_sleeps_is_woken_by_the_end() {
        explore("a reader whose writers leave", || {
            let (sender, mut receiver) = flush_channel();
            let writers = [sender.clone(), sender];
            let writers = writers.map(|writer| thread::spawn(move || writer.send(flush(0))));
            let mut read = 0;
            while block_on(next(&mut receiver)).is_some() {
                read += 1;
            }
            assert_eq!((read, receiver.unread_bytes.load(Ordering::Relaxed)), (2, 0));
            writers.into_iter().for_each(|writer| assert!(writer.join().unwrap()));
        });
    }
}
