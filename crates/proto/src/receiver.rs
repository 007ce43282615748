//! The receiving side of one answer: reassembly, acknowledgement, pacing.
//!
//! # Driving it
//! ```
//! # use loquent_proto::{Micros, Receiver, ReceiverConfig, ReceiverEvent};
//! let now = Micros(0);
//! let mut receiver = Receiver::new(now, 7, 0, ReceiverConfig::default());
//! // `handle_datagram(now, bytes)` for what arrives. After every call with `now`, and
//! // whenever `poll_timeout` has come:
//! receiver.handle_timeout(now);
//! while let Some(event) = receiver.poll_event() {
//!     match event {
//!         ReceiverEvent::Delta { delta, .. } => println!("{delta:?}"), // show it
//!         ReceiverEvent::Complete => {}  // the answer is whole
//!         ReceiverEvent::Failed(_) => {} // it never will be
//!         ReceiverEvent::Silent => {}    // reconnect, resume from `receiver.cumulative()`
//!     }
//! }
//! let mut datagram = Vec::new();
//! while receiver.poll_transmit(now, &mut datagram).is_some() {
//!     // send `datagram`, then
//!     datagram.clear();
//! }
//! let wake_at = receiver.poll_timeout();
//! # assert!(wake_at.is_some());
//! ```
//! An event that was polled counts as shown.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::frame::{ACK_WINDOW, Ack, Data, Frame, MAX_ACK_RANGES};
use crate::playout::{Playout, PlayoutClock};
use crate::wire::MAX_INT;
use crate::{Assembler, AssemblerLimits, Delta, Error, Micros};

/// Padding step of ACK frames over encrypting links (D-2.7): the length of all but the rarest ones.
/// Where a reader paces, unpadded lengths would reveal 0.05 bits of the text
/// (`plans/padding.toml`).
pub const ACK_STEP_BYTES: usize = 32;

/// Parameters of a [`Receiver`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Limits on bytes that wait to be shown, or for a hole before them to be filled.
    pub limits: AssemblerLimits,
    /// Add a checksum to every frame and ignore frames without one (D-2.4). Default off.
    pub checked: bool,
    /// Pad ACK frames to a multiple of this (D-2.7); 0: not at all. Default 0, for which the test
    /// vectors are written; clients pad to [`ACK_STEP_BYTES`].
    pub ack_step_bytes: usize,
    /// Playout of received text. Default at once.
    pub playout: Playout,
    /// Gap between acknowledgements that carry no news (D-9.2). Default 100 ms: four times as many
    /// gain nothing on any channel of `plans/channels.toml`, and each costs a server as much as
    /// sending a packet.
    pub ack_gap: Micros,
    /// Send a probe after this time without a frame, and each further one after twice the previous
    /// time (D-9.4). Default 2 s.
    pub probe_after: Micros,
    /// Report [`ReceiverEvent::Silent`] after this time without a frame (D-9.6). Default 10 s.
    pub silent_after: Micros,
    /// Time to continue acknowledging after the end, in case the sender missed the last
    /// acknowledgement (D-9.1). Default 3 s.
    pub linger: Micros,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            limits: AssemblerLimits::default(),
            checked: false,
            ack_step_bytes: 0,
            playout: Playout::IMMEDIATE,
            ack_gap: Micros::from_ms(100),
            probe_after: Micros::from_ms(2_000),
            silent_after: Micros::from_ms(10_000),
            linger: Micros::from_ms(3_000),
        }
    }
}

impl ReceiverConfig {
    /// Configuration for a client that can try another path when this one is silent (S-4.10).
    ///
    /// A sender with anything to send does so within a second, even to a hidden page. After 3 s at
    /// least two probes are unanswered, and trying another path costs one request; the default of
    /// 10 s is for receivers without another path.
    pub fn with_another_path() -> Self {
        let (probe_after, silent_after) = (Micros::from_ms(1_000), Micros::from_ms(3_000));
        Self { probe_after, silent_after, ..Self::default() }
    }
}

/// Event that a [`Receiver`] reports to its driver, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// The next delta of the answer must be shown.
    Delta {
        /// Log offset after it: the cursor from which to resume once it is shown.
        offset: u64,
        /// Delta to append to the answer.
        delta: Delta,
    },
    /// The log's end ([`Delta::Done`]) was shown: the answer is complete.
    Complete,
    /// The answer ends here and is incomplete: the sender reported an error ([`Delta::Error`] came
    /// before), the log cannot be read, or the sender no longer has it.
    Failed(Option<Error>),
    /// No frame has arrived for [`ReceiverConfig::silent_after`]. Reported once per silence.
    Silent,
}

/// Phase of the answer at its receiver (D-9.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiverPhase {
    Open,
    /// The last record was shown; acknowledgements continue until this time.
    Lingering(Micros),
    /// Nothing is sent any more.
    Closed,
}

/// Deltas read ahead for the playout clock; the rest waits as bytes.
const MAX_QUEUE: usize = 512;

/// Maximum events that wait for the driver. Deltas beyond count as not shown, which limits what the
/// receiver accepts.
const MAX_EVENTS: usize = 512;

/// Maximum unanswered probes, each after twice the silence of the one before (D-9.4).
const MAX_PROBES: u32 = 5;

/// Receives one answer. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Receiver {
    config: ReceiverConfig,
    channel: u64,
    phase: ReceiverPhase,
    assembler: Assembler,
    playout: PlayoutClock,
    /// Deltas read from the log, not shown yet.
    queue: VecDeque<(u64, Delta)>,
    queued_tokens: u64,
    events: VecDeque<ReceiverEvent>,
    /// Time of the latest call.
    now: Micros,
    /// Offset after the last delta that was shown.
    shown: u64,
    arrived: ArrivedPackets,
    hidden: bool,
    next_ack: u64,
    ack_at: Option<Micros>,
    last_ack: Option<Micros>,
    silent_since: Micros,
    probes: u32,
    silent_said: bool,
    stopping: bool,
}

/// Received packets, as an acknowledgement reports them (D-5.4).
#[derive(Debug, Clone, Default)]
struct ArrivedPackets {
    largest: Option<u64>,
    largest_at: Micros,
    /// Bit i: packet `largest - 1 - i` has arrived.
    before: u64,
}

impl ArrivedPackets {
    fn note(&mut self, now: Micros, packet: u64) {
        let Some(largest) = self.largest else {
            *self = Self { largest: Some(packet), largest_at: now, before: 0 };
            return;
        };
        if packet > largest {
            let shift = packet - largest;
            self.before = shifted(self.before, shift) | shifted(1, shift - 1);
            (self.largest, self.largest_at) = (Some(packet), now);
        } else if packet < largest {
            self.before |= shifted(1, largest - packet - 1);
        }
    }

    /// Time since the largest arrived (D-5.5). Zero before the first: any other value would reveal
    /// when this program started.
    fn hold(&self, now: Micros) -> Micros {
        self.largest.map_or(Micros::ZERO, |_| now.since(self.largest_at))
    }

    fn missing(&self) -> u64 {
        let reported = self.largest.unwrap_or(0).min(u64::from(ACK_WINDOW)) as u32;
        !self.before & ((1u64 << reported) - 1)
    }
}

fn shifted(bits: u64, by: u64) -> u64 {
    u32::try_from(by).ok().and_then(|by| bits.checked_shl(by)).unwrap_or(0)
}

impl Receiver {
    /// Creates a receiver of the answer on `channel`, which begins at log `offset`: 0, or the end
    /// of an earlier receiver.
    pub const fn new(now: Micros, channel: u64, offset: u64, config: ReceiverConfig) -> Self {
        Self {
            channel,
            phase: ReceiverPhase::Open,
            assembler: Assembler::new(offset, config.limits),
            playout: PlayoutClock::new(config.playout),
            queue: VecDeque::new(),
            queued_tokens: 0,
            events: VecDeque::new(),
            now,
            shown: offset,
            arrived: ArrivedPackets { largest: None, largest_at: Micros::ZERO, before: 0 },
            hidden: false,
            next_ack: 0,
            ack_at: None,
            last_ack: None,
            silent_since: now,
            probes: 0,
            silent_said: false,
            stopping: false,
            config,
        }
    }

    /// Continues the same answer on another path, as `channel` of another connection. Bytes
    /// received up to [`Self::cumulative`] are kept: ask the sender to resume from there (D-9.7).
    /// Bytes beyond are discarded, since they may differ on the new path (D-6.8).
    pub fn migrate(&mut self, now: Micros, channel: u64) {
        self.channel = channel;
        self.assembler.forget_held();
        self.arrived = ArrivedPackets::default();
        (self.next_ack, self.last_ack) = (0, None);
        self.begin_silence(now);
        self.ack_at = None;
    }

    /// Offset below which every byte has arrived: where a resume after [`Self::migrate`] continues.
    pub fn cumulative(&self) -> u64 {
        self.assembler.cumulative()
    }

    /// Offset after the last shown delta: where a new receiver continues if this one is lost.
    pub const fn shown(&self) -> u64 {
        self.shown
    }

    /// Number of probes sent since the last frame arrived. From 2 on, probes must also be sent on
    /// the QUIC stream, if there is one (D-9.5): check after [`Self::poll_transmit`].
    pub const fn unanswered_probes(&self) -> u32 {
        self.probes
    }

    /// Returns true once the answer is over and nothing more will be sent or shown.
    pub fn is_closed(&self) -> bool {
        self.phase == ReceiverPhase::Closed && self.events.is_empty()
    }

    /// Notes that the page that shows the answer was hidden, or is visible again.
    pub fn set_hidden(&mut self, now: Micros, hidden: bool) {
        self.catch_up(now);
        if self.hidden != hidden {
            self.hidden = hidden;
            self.ack_at = Some(now);
            self.show_due(now);
        }
    }

    /// Changes the playout parameters.
    pub fn set_playout(&mut self, now: Micros, playout: Playout) {
        self.catch_up(now);
        self.playout.set_playout(playout);
        self.ack_at = Some(now);
        self.show_due(now);
    }

    /// Sends an acknowledgement without waiting for news, because acknowledgements travel another
    /// way from now on (S-4.4).
    pub fn acknowledge_at_once(&mut self, now: Micros) {
        self.catch_up(now);
        self.ack_at = Some(now);
    }

    /// Ends the answer at the reader's request: sends STOP (D-6.6) and closes.
    pub fn stop(&mut self) {
        if self.phase == ReceiverPhase::Open {
            self.phase = ReceiverPhase::Closed;
            self.stopping = true;
        }
    }

    /// Processes a datagram from the sender.
    ///
    /// # Errors
    /// The error in the datagram, which then has no effect.
    pub fn handle_datagram(&mut self, now: Micros, datagram: &[u8]) -> Result<(), Error> {
        let frame = Frame::decode(datagram, self.config.checked)?;
        if frame.channel() != self.channel {
            return Err(Error::WrongChannel);
        }
        match frame {
            Frame::Data(data) => self.handle_data(now, &data),
            Frame::Gone { .. } => {
                if !self.may_be_whole() {
                    self.fail(None);
                }
                Ok(())
            }
            Frame::Ack(_) | Frame::Resume(_) | Frame::Stop { .. } => Err(Error::Malformed),
        }
    }

    fn handle_data(&mut self, now: Micros, data: &Data<'_>) -> Result<(), Error> {
        if self.phase == ReceiverPhase::Closed {
            return Ok(());
        }
        self.catch_up(now);
        self.begin_silence(now);
        self.arrived.note(now, data.packet);
        let held = self.assembler.held_bytes();
        // What is not shown yet counts against the same bound as what has holes (D-9.9).
        let room = (self.shown + self.config.limits.max_bytes as u64).saturating_sub(data.offset);
        let bytes = &data.bytes[..data.bytes.len().min(usize::try_from(room).unwrap_or(0))];
        let moved = match self.assembler.insert(data.offset, bytes) {
            Ok(moved) => moved,
            Err(Error::NoRoom) => false,
            Err(error) => return Err(error),
        };
        // D-9.2. Held bytes also shrink when they have to make room, which the sender should know.
        let news = moved || self.assembler.held_bytes() != held;
        let quiet_until = self.last_ack.map_or(now, |at| at + self.config.ack_gap);
        let at = if news { now } else { quiet_until.max(now) };
        self.ack_at = Some(self.ack_at.map_or(at, |before| before.min(at)));
        self.read_ahead(now);
        self.show_due(now);
        Ok(())
    }

    /// Reads records for the playout clock, as far as its queue allows.
    fn read_ahead(&mut self, now: Micros) {
        let mut arrived = 0u32;
        while self.queue.len() < MAX_QUEUE && self.phase == ReceiverPhase::Open {
            match self.assembler.poll() {
                Ok(Some((offset, delta))) => {
                    arrived = arrived.saturating_add(delta.tokens());
                    self.queued_tokens += u64::from(delta.tokens());
                    self.queue.push_back((offset, delta));
                }
                Ok(None) => break,
                Err(error) => {
                    self.fail(Some(error));
                    break;
                }
            }
        }
        if arrived > 0 {
            self.playout.on_arrival(now, arrived);
        }
    }

    /// Shows the deltas that became due since the latest call, each at its own time: the pace does
    /// not depend on the resolution of the driver's timers.
    fn catch_up(&mut self, now: Micros) {
        while let Some(at) = self.playout.next_at().filter(|at| *at <= now) {
            let shown = self.shown;
            self.show_due(at.max(self.now));
            if self.shown == shown {
                break; // nothing waits, or the events are full
            }
        }
        self.now = now;
    }

    /// Moves the deltas that are due from the queue to the events (D-9.8).
    fn show_due(&mut self, now: Micros) {
        while let Some((_, delta)) = self.queue.front() {
            let held_back = delta.tokens() > 0 && !self.hidden;
            let early = held_back && self.playout.next_at().is_some_and(|at| at > now);
            if early || self.events.len() >= MAX_EVENTS {
                return;
            }
            let was_behind = self.is_behind();
            let Some((offset, delta)) = self.queue.pop_front() else {
                return;
            };
            let tokens = delta.tokens();
            self.queued_tokens -= u64::from(tokens);
            self.playout.on_shown(now, tokens, self.queued_tokens);
            self.show(now, offset, delta);
            self.read_ahead(now);
            if was_behind && !self.is_behind() {
                self.begin_silence(now);
            }
        }
    }

    /// Restarts the silence timer at `now`: a frame arrived, a path began, or the reader is no
    /// longer behind and needs the sender again (D-9.4, D-9.6).
    const fn begin_silence(&mut self, now: Micros) {
        (self.silent_since, self.probes, self.silent_said) = (now, 0, false);
    }

    fn show(&mut self, now: Micros, offset: u64, delta: Delta) {
        self.shown = offset;
        let end = match delta {
            Delta::Done => Some(ReceiverEvent::Complete),
            Delta::Error { .. } => Some(ReceiverEvent::Failed(None)),
            _ => None,
        };
        self.events.push_back(ReceiverEvent::Delta { offset, delta });
        if let Some(end) = end {
            self.events.push_back(end);
            self.phase = ReceiverPhase::Lingering(now + self.config.linger);
        }
    }

    fn fail(&mut self, error: Option<Error>) {
        self.phase = ReceiverPhase::Closed;
        self.stopping = error.is_some(); // D-9.10; a sender that has gone needs no STOP
        self.events.push_back(ReceiverEvent::Failed(error));
    }

    /// Handles the passage of time: shows due deltas, reports a silent sender, ends the lingering.
    pub fn handle_timeout(&mut self, now: Micros) {
        self.catch_up(now);
        self.show_due(now);
        if matches!(self.phase, ReceiverPhase::Lingering(until) if now >= until) {
            self.phase = ReceiverPhase::Closed;
        }
        if self.silent_at().is_some_and(|at| now >= at) {
            self.silent_said = true;
            self.events.push_back(ReceiverEvent::Silent);
        }
    }

    /// Time for the next call of [`Self::handle_timeout`] and [`Self::poll_transmit`]; `None` if
    /// only another event requires one.
    pub fn poll_timeout(&self) -> Option<Micros> {
        let linger = match self.phase {
            ReceiverPhase::Lingering(until) => Some(until),
            ReceiverPhase::Open => None,
            ReceiverPhase::Closed => return None,
        };
        let room = self.events.len() < MAX_EVENTS;
        let show = self.queue.front().filter(|_| room).and_then(|_| self.playout.next_at());
        [linger, show, self.ack_at, self.probe_at(), self.silent_at()].into_iter().flatten().min()
    }

    /// Returns the next event, in order; each is returned once.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        if self.events.is_empty() && self.phase != ReceiverPhase::Closed {
            self.show_due(self.now); // what had no room among them
        }
        self.events.pop_front()
    }

    /// Appends the datagram due at `now` to `out`, if any; returns its length.
    pub fn poll_transmit(&mut self, now: Micros, out: &mut Vec<u8>) -> Option<usize> {
        let start = out.len();
        if core::mem::take(&mut self.stopping) {
            Frame::Stop { channel: self.channel }.encode(self.config.checked, out);
            return Some(out.len() - start);
        }
        if self.phase == ReceiverPhase::Closed {
            return None;
        }
        let probe = self.probe_at().is_some_and(|at| now >= at);
        if !probe && self.ack_at.is_none_or(|at| now < at) {
            return None;
        }
        let ReceiverConfig { checked, ack_step_bytes, .. } = self.config;
        Frame::Ack(self.ack(now, probe)).encode_in_steps(checked, ack_step_bytes, out);
        self.probes += u32::from(probe);
        self.next_ack += 1;
        (self.ack_at, self.last_ack) = (None, Some(now));
        Some(out.len() - start)
    }

    fn ack(&self, now: Micros, probe: bool) -> Ack {
        let cumulative = self.assembler.cumulative();
        Ack {
            channel: self.channel,
            number: self.next_ack,
            cumulative,
            largest: self.arrived.largest,
            missing: self.arrived.missing(),
            hold: self.arrived.hold(now),
            unshown: cumulative - self.shown,
            pace: self.pace_bytes_per_s(now),
            hidden: self.hidden,
            probe,
            ranges: self.assembler.held().take(MAX_ACK_RANGES).collect(),
        }
    }

    /// Speed at which unshown bytes are being shown (D-9.8); 0 if nothing is held back.
    fn pace_bytes_per_s(&self, now: Micros) -> u64 {
        let step = self.playout.step(now, self.queued_tokens);
        let queued = self.queue.back().map_or(0, |(end, _)| end - self.shown);
        if step == Micros::ZERO || self.queued_tokens == 0 || self.hidden {
            return 0;
        }
        let bytes_per_token_milli = queued * 1_000 / self.queued_tokens;
        (bytes_per_token_milli * 1_000 / step.0.max(1)).min(MAX_INT)
    }

    /// Returns true if more bytes are expected and would be accepted. Bytes that have arrived can
    /// be shown without the sender, and a reader that is behind need not know yet that its path is
    /// dead.
    fn needs_sender(&self) -> bool {
        self.phase == ReceiverPhase::Open && !self.may_be_whole() && !self.is_behind()
    }

    /// Returns true if the last record has arrived, or may be among the bytes not decoded yet.
    fn may_be_whole(&self) -> bool {
        self.phase != ReceiverPhase::Open
            || self.assembler.is_ended()
            || self.queue.len() >= MAX_QUEUE
    }

    /// Returns true if nothing more can be accepted before something is shown to the reader
    /// (D-9.4).
    fn is_behind(&self) -> bool {
        let unshown = self.assembler.cumulative() - self.shown;
        self.queue.len() >= MAX_QUEUE || unshown >= self.config.limits.max_bytes as u64
    }

    fn probe_at(&self) -> Option<Micros> {
        let asking = self.needs_sender() && self.probes < MAX_PROBES;
        asking.then(|| self.silent_since + self.config.probe_after.times(1 << self.probes))
    }

    fn silent_at(&self) -> Option<Micros> {
        let waiting = self.needs_sender() && !self.silent_said;
        waiting.then(|| self.silent_since + self.config.silent_after)
    }
}
