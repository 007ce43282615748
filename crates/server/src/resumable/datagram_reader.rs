//! An answer's path over datagrams, with a QUIC stream for when they do not get through.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use loquent_proto::message::Code;
use loquent_proto::{FallbackEvent, Micros, ReliableFallback, Sender};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{DatagramLink, StreamFrame};
use crate::metrics::Metrics;

/// Largest datagram that leaves. QUIC's own limit is often higher, but browsers accept no more
/// than this in one WebTransport datagram on a path of 1,200 bytes.
const DATAGRAM_BYTES: usize = 1150;
/// Log bytes in one frame of the QUIC stream.
const FRAME_BYTES: u64 = 16 * 1024;
/// Times of appends remembered for the acknowledgements' latency. Beyond it the metric misses
/// some; 256 tokens are seconds of an answer, so only a reader that is away gets there.
const MAX_APPENDS: usize = 256;

/// The connection's part of an answer that leaves by datagram.
pub struct DatagramReader {
    link: Box<dyn DatagramLink>,
    frames: mpsc::Sender<StreamFrame>,
    fallback: ReliableFallback,
    /// Everything below has left by datagram: what leaves again is redundant.
    sent: u64,
    /// Ends of what was appended, and when, oldest first.
    appends: VecDeque<(u64, Micros)>,
    /// The datagram being written; its memory stays.
    datagram: Vec<u8>,
}

impl DatagramReader {
    /// A path of `sender` that goes on from log `offset`.
    pub fn new(
        link: Box<dyn DatagramLink>,
        frames: mpsc::Sender<StreamFrame>,
        offset: u64,
        sender: &mut Sender,
    ) -> Self {
        sender.set_max_datagram_bytes(link.max_bytes().min(DATAGRAM_BYTES));
        let fallback = ReliableFallback::default();
        let (appends, datagram) = (VecDeque::new(), Vec::new());
        Self { link, frames, fallback, sent: offset, appends, datagram }
    }

    /// Notes that the log was appended to, up to `head`.
    pub fn note_append(&mut self, now: Micros, head: u64) {
        if self.appends.len() < MAX_APPENDS {
            self.appends.push_back((head, now));
        }
    }

    /// Takes a frame from the reader.
    pub fn handle_frame(
        &mut self,
        now: Micros,
        frame: &[u8],
        sender: &mut Sender,
        metrics: &Metrics,
    ) {
        if let Err(error) = sender.handle_datagram(now, frame) {
            tracing::trace!(%error, "a frame was ignored");
        }
        let acked = sender.cumulative();
        while let Some((_, at)) = self.appends.front().copied().filter(|(end, _)| *end <= acked) {
            self.appends.pop_front();
            metrics.on_client_ack(Duration::from(now.since(at)));
        }
    }

    /// Sends what is due at `now`; returns whether the path goes on. If it does not, the reader
    /// must be told that it is broken off (S-4.11).
    pub fn transmit(&mut self, now: Micros, sender: &mut Sender, metrics: &Metrics) -> bool {
        self.transmit_datagrams(now, sender, metrics);
        match self.fallback.handle_timeout(now, sender, self.link.as_ref()) {
            Some(FallbackEvent::Began) => metrics.on_fallback(),
            Some(FallbackEvent::BrokenOff) => return false,
            None => {}
        }
        // The last place in the queue is kept for the end of the stream.
        while self.frames.capacity() > 1 {
            let mut frame = Vec::new();
            if self.fallback.poll_transmit(now, sender, FRAME_BYTES, &mut frame).is_none() {
                break;
            }
            let _ = self.frames.try_send(StreamFrame::Frame(frame));
        }
        true
    }

    /// When [`Self::transmit`] has something to do next.
    pub fn poll_timeout(&self, sender: &Sender) -> Option<Micros> {
        let fallback = self.fallback.poll_timeout(sender);
        [sender.poll_timeout(), fallback].into_iter().flatten().min()
    }

    /// Ends the QUIC stream, or resets it with a `code` that says why the path is over.
    pub fn end(&self, code: Code) {
        let queued = self.frames.try_send(StreamFrame::End(code));
        // It fails only if the QUIC stream has ended by itself.
        debug_assert!(!matches!(queued, Err(TrySendError::Full(_))), "a place is kept for it");
    }

    fn transmit_datagrams(&mut self, now: Micros, sender: &mut Sender, metrics: &Metrics) {
        // Asking the link costs a lock, so it is asked only when something is due.
        if sender.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        sender.set_max_datagram_bytes(self.link.max_bytes().min(DATAGRAM_BYTES));
        while let Some(sent) = sender.poll_transmit(now, &mut self.datagram) {
            let fresh = sent.range.end.saturating_sub(self.sent.max(sent.range.start));
            let redundant = sent.range.end - sent.range.start - fresh;
            self.sent = self.sent.max(sent.range.end);
            metrics.on_datagram(sent.len, redundant);
            self.link.send(Bytes::copy_from_slice(&self.datagram));
            self.datagram.clear();
        }
    }
}
