//! An answer's path over datagrams, with a QUIC stream as fallback.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use loquent_proto::message::Code;
use loquent_proto::{AnswerLog, Delivery, FallbackEvent, Micros, ReliableFallback, SenderState};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::reader_status::{ReaderEnd, ReaderStatus};
use super::{DatagramLink, StreamFrame};
use loquent_serving::metrics::{Metrics, StreamCarrier};

/// Maximum size of a datagram sent. QUIC's own limit is often higher, but browsers accept no more
/// than this in one WebTransport datagram on a path of 1,200 bytes.
const DATAGRAM_BYTES: usize = 1150;
/// Maximum log bytes in one frame of the QUIC stream.
const FRAME_BYTES: u64 = 16 * 1024;
/// Maximum append times remembered to measure acknowledgement latency. Further appends are not
/// measured; 256 tokens are seconds of an answer, so this affects only a reader that is away.
const MAX_APPENDS: usize = 256;

/// A reader of an answer by datagram.
pub struct DatagramReader {
    delivery: Delivery,
    link: Box<dyn DatagramLink>,
    frames: mpsc::Sender<StreamFrame>,
    fallback: ReliableFallback,
    /// Log offset below which everything was sent by datagram: sending it again is redundant.
    sent: u64,
    /// End offset and time of each append, oldest first.
    appends: VecDeque<(u64, Micros)>,
    /// The datagram being written; a reused buffer.
    datagram: Vec<u8>,
}

impl DatagramReader {
    /// Creates a reader over `link`, to which `delivery` has begun to send.
    pub fn new(
        link: Box<dyn DatagramLink>,
        frames: mpsc::Sender<StreamFrame>,
        mut delivery: Delivery,
    ) -> Self {
        delivery.set_max_datagram_bytes(link.max_bytes().min(DATAGRAM_BYTES));
        let fallback = ReliableFallback::default();
        let (appends, datagram) = (VecDeque::new(), Vec::new());
        let sent = delivery.cumulative();
        Self { delivery, link, frames, fallback, sent, appends, datagram }
    }

    /// Returns the state of delivery to the reader.
    pub const fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// Returns the transport of its datagrams.
    pub fn transport(&self) -> StreamCarrier {
        self.link.transport()
    }

    /// Records that the log was appended to, up to `head`.
    pub fn note_append(&mut self, now: Micros, head: u64) {
        self.delivery.note_append(now);
        if self.appends.len() < MAX_APPENDS {
            self.appends.push_back((head, now));
        }
    }

    /// Notes that everything below `log_end` was sent to some reader.
    pub fn note_sent_elsewhere(&mut self, log_end: u64) {
        self.delivery.note_sent_elsewhere(log_end);
    }

    /// Handles a frame from the reader.
    pub fn handle_frame(
        &mut self,
        now: Micros,
        answer: &AnswerLog,
        frame: &[u8],
        metrics: &Metrics,
    ) {
        if let Err(error) = self.delivery.handle_datagram(now, answer, frame) {
            tracing::trace!(%error, "a frame was ignored");
        }
        let acked = self.delivery.cumulative();
        while let Some((_, at)) = self.appends.front().copied().filter(|(end, _)| *end <= acked) {
            self.appends.pop_front();
            metrics.on_client_ack(Duration::from(now.since(at)));
        }
    }

    /// Sends what is due at `now`.
    pub fn drive(&mut self, now: Micros, answer: &AnswerLog, metrics: &Metrics) -> ReaderStatus {
        if self.delivery.has_fallen_behind(answer) {
            return ReaderStatus::Over(ReaderEnd::FellBehind);
        }
        self.delivery.handle_timeout(now);
        self.transmit_datagrams(now, answer, metrics);
        match self.fallback.handle_timeout(now, &self.delivery, self.link.as_ref()) {
            Some(FallbackEvent::Began) => metrics.on_fallback(),
            Some(FallbackEvent::BrokenOff) => {
                return ReaderStatus::Over(ReaderEnd::Broken(Code::BrokenOff)); // S-4.11
            }
            None => {}
        }
        self.transmit_frames(now, answer);
        while self.delivery.poll_event().is_some() {} // the state says the same
        match self.delivery.state() {
            SenderState::Active => ReaderStatus::Reading,
            SenderState::Suspended => ReaderStatus::Mute,
            SenderState::Finished => ReaderStatus::Over(ReaderEnd::Complete),
            SenderState::Stopped => ReaderStatus::Over(ReaderEnd::Stopped),
        }
    }

    fn transmit_frames(&mut self, now: Micros, answer: &AnswerLog) {
        // The last place in the queue is kept for the end of the stream.
        while self.frames.capacity() > 1 {
            let mut frame = Vec::new();
            let Self { delivery, fallback, .. } = self;
            if fallback.poll_transmit(now, delivery, answer, FRAME_BYTES, &mut frame).is_none() {
                break;
            }
            let _ = self.frames.try_send(StreamFrame::Frame(frame));
        }
    }

    /// Returns the next time at which [`Self::drive`] has work.
    pub fn poll_timeout(&self, answer: &AnswerLog) -> Option<Micros> {
        let fallback = self.fallback.poll_timeout(&self.delivery);
        [self.delivery.poll_timeout(answer), fallback].into_iter().flatten().min()
    }

    /// Ends the QUIC stream with the reason why the path is over.
    pub fn end(&self, end: StreamFrame) {
        let queued = self.frames.try_send(end);
        // It fails only if the QUIC stream has ended by itself.
        debug_assert!(!matches!(queued, Err(TrySendError::Full(_))), "a place is kept for it");
    }

    fn transmit_datagrams(&mut self, now: Micros, answer: &AnswerLog, metrics: &Metrics) {
        // Asking the link costs a lock, so it is asked only when something is due.
        if self.delivery.poll_timeout(answer).is_none_or(|at| at > now) {
            return;
        }
        self.delivery.set_max_datagram_bytes(self.link.max_bytes().min(DATAGRAM_BYTES));
        while let Some(sent) = self.delivery.poll_transmit(now, answer, &mut self.datagram) {
            let fresh = sent.range.end.saturating_sub(self.sent.max(sent.range.start));
            let redundant = sent.range.end - sent.range.start - fresh;
            self.sent = self.sent.max(sent.range.end);
            metrics.on_datagram(sent.len, redundant);
            self.link.send(Bytes::copy_from_slice(&self.datagram));
            self.datagram.clear();
        }
    }
}
