//! Sending side of one answer: its log, and which bytes of it are sent when.
//!
//! Each packet carries everything unacknowledged, oldest first, so that any packet that arrives can
//! be shown at once (Eloquent, §3). Beyond the paper, packets are also sent when an acknowledgement
//! is overdue and, on paths with bursts of losses, between tokens. A queue guard and a token bucket
//! keep these repetitions from harming the path, and a reader that needs nothing soon is served in
//! the background.
//!
//! `schedule` decides when and why a packet is sent, `choose` which bytes it carries, `progress`
//! holds the state that both use, `config` their parameters, and `delivery` drives them.
//!
//! A log may have several readers: they share an [`AnswerLog`], and each has a [`Delivery`] of its
//! own. A [`Sender`] combines one of each, for an answer with one reader.
//!
//! # Driving it
//! ```
//! # use loquent_proto::{Delta, Micros, Sender, SenderConfig};
//! let now = Micros(0);
//! let mut sender = Sender::new(now, 7, SenderConfig::default());
//! sender.push(now, &Delta::text("Hello"))?;
//! let mut datagram = Vec::new();
//! // After every call with `now`, and whenever `poll_timeout` has come:
//! sender.handle_timeout(now);
//! while sender.poll_transmit(now, &mut datagram).is_some() {
//!     // send `datagram`, then
//!     datagram.clear();
//! }
//! let wake_at = sender.poll_timeout();
//! # assert!(wake_at.is_some());
//! // `handle_datagram(now, bytes)` for what arrives; `poll_event` for what it means.
//! # Ok::<(), loquent_proto::Error>(())
//! ```
//! `now` never goes back. `poll_timeout` may return a time in the past: then call at once.

use alloc::vec::Vec;
use core::ops::Range;

use crate::path::Rtt;
use crate::{Delta, Error, Log, Micros};

pub use answer_log::AnswerLog;
pub use config::SenderConfig;
pub use delivery::{Delivery, SentSoFar};
pub use progress::ReaderState;

mod answer_log;
mod choose;
mod config;
mod delivery;
mod padding;
mod progress;
mod schedule;

/// Maximum log bytes in flight beyond the acknowledged ones (D-7.1).
pub const MAX_IN_FLIGHT_BYTES: u64 = 32 * 1024;

/// State of an answer's delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderState {
    /// Packets are sent as scheduled.
    Active,
    /// The reader is silent, or the driver asked for a pause: nothing is sent until a resume or an
    /// acknowledgement.
    Suspended,
    /// The whole log, its end included, is acknowledged. Nothing more is sent.
    Finished,
    /// The reader wants no more. Nothing more is sent.
    Stopped,
}

/// Event that a [`Sender`] reports to its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderEvent {
    /// See [`SenderState::Suspended`]. Keep the answer for a grace period.
    Suspended,
    /// An acknowledgement or a resume has made the delivery [`SenderState::Active`] again.
    Resumed,
    /// The reader has everything: the answer can be dropped.
    Finished,
    /// The reader has stopped the answer: generation can be cancelled.
    Stopped,
}

/// Datagram that [`Sender::poll_transmit`] has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Length of the datagram, bytes.
    pub len: usize,
    /// Range of the log in the datagram; empty for a sign of life.
    pub range: Range<u64>,
    /// True if it has text that was never sent before.
    pub new_text: bool,
}

/// Sends one answer to one reader. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Sender {
    answer: AnswerLog,
    delivery: Delivery,
}

impl Sender {
    /// Creates a sender with an empty log, for `channel` of its connection.
    pub fn new(now: Micros, channel: u64, config: SenderConfig) -> Self {
        let answer = AnswerLog::new(now, config.max_log_bytes);
        Self { answer, delivery: Delivery::new(now, channel, config) }
    }

    /// Appends to the log and returns the offset after the delta. The bytes leave through
    /// [`Self::poll_transmit`].
    ///
    /// # Errors
    /// Same as [`Log::push`].
    pub fn push(&mut self, now: Micros, delta: &Delta) -> Result<u64, Error> {
        let end = self.answer.push(now, delta)?;
        self.delivery.note_append(now);
        Ok(end)
    }

    /// The log, for transports that deliver it without this sender.
    pub const fn log(&self) -> &Log {
        self.answer.log()
    }

    /// The delivery, for callers that need only its state.
    pub const fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// The delivery and its log, for a caller that drives them itself.
    pub const fn parts(&mut self) -> (&mut Delivery, &AnswerLog) {
        (&mut self.delivery, &self.answer)
    }

    /// See [`Delivery::state`].
    pub const fn state(&self) -> SenderState {
        self.delivery.state()
    }

    /// See [`Delivery::cumulative`].
    pub const fn cumulative(&self) -> u64 {
        self.delivery.cumulative()
    }

    /// See [`Delivery::reader`].
    pub const fn reader(&self) -> ReaderState {
        self.delivery.reader()
    }

    /// See [`Delivery::rtt`].
    pub const fn rtt(&self) -> &Rtt {
        self.delivery.rtt()
    }

    /// See [`Delivery::is_clear`].
    pub fn is_clear(&self) -> bool {
        self.delivery.is_clear(&self.answer)
    }

    /// See [`Delivery::is_background`].
    pub fn is_background(&self) -> bool {
        self.delivery.is_background(&self.answer)
    }

    /// See [`Delivery::unacked_since`].
    pub fn unacked_since(&self) -> Option<Micros> {
        self.delivery.unacked_since()
    }

    /// See [`Delivery::last_arrival`].
    pub const fn last_arrival(&self) -> Option<Micros> {
        self.delivery.last_arrival()
    }

    /// See [`Delivery::last_heard`].
    pub const fn last_heard(&self) -> Micros {
        self.delivery.last_heard()
    }

    /// See [`Delivery::acknowledge`].
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] if the log does not reach that far.
    pub fn acknowledge(&mut self, offset: u64) -> Result<(), Error> {
        self.answer.acknowledge(offset)?;
        self.delivery.acknowledge(&self.answer, offset);
        Ok(())
    }

    /// See [`Delivery::transmit_reliable`].
    pub fn transmit_reliable(
        &mut self,
        now: Micros,
        from: u64,
        max_bytes: u64,
        out: &mut Vec<u8>,
    ) -> Option<Range<u64>> {
        self.delivery.transmit_reliable(now, &self.answer, from, max_bytes, out)
    }

    /// See [`Delivery::set_initial_rtt`].
    pub fn set_initial_rtt(&mut self, rtt: Micros) {
        self.delivery.set_initial_rtt(rtt);
    }

    /// See [`Delivery::set_max_datagram_bytes`].
    pub fn set_max_datagram_bytes(&mut self, bytes: usize) {
        self.delivery.set_max_datagram_bytes(bytes);
    }

    /// See [`Delivery::takes_datagrams`].
    pub const fn takes_datagrams(&self) -> bool {
        self.delivery.takes_datagrams()
    }

    /// See [`Delivery::suspend`].
    pub fn suspend(&mut self) {
        self.delivery.suspend();
    }

    /// See [`Delivery::resume`]. The log keeps everything from `offset` on again.
    ///
    /// # Errors
    /// Same as [`Delivery::resume`].
    pub fn resume(&mut self, now: Micros, channel: u64, offset: u64) -> Result<(), Error> {
        self.delivery.resume(now, &self.answer, channel, offset)?;
        self.answer.rewind(offset)
    }

    /// See [`Delivery::handle_datagram`].
    ///
    /// # Errors
    /// Same as [`Delivery::handle_datagram`].
    pub fn handle_datagram(&mut self, now: Micros, datagram: &[u8]) -> Result<(), Error> {
        self.delivery.handle_datagram(now, &self.answer, datagram)?;
        self.answer.acknowledge(self.delivery.cumulative())
    }

    /// See [`Delivery::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Micros) {
        self.delivery.handle_timeout(now);
    }

    /// See [`Delivery::poll_timeout`].
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.delivery.poll_timeout(&self.answer)
    }

    /// See [`Delivery::poll_event`].
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.delivery.poll_event()
    }

    /// See [`Delivery::poll_transmit`].
    pub fn poll_transmit(&mut self, now: Micros, out: &mut Vec<u8>) -> Option<Transmit> {
        self.delivery.poll_transmit(now, &self.answer, out)
    }
}
