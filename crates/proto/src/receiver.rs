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
//!
//! # Two paths
//! A receiver may read the same log over two paths ([`Receiver::add_path`]), each with a reader of
//! its own at the sender (S-5.4). The first copy of each byte counts, and the ACK frames of both
//! paths report what arrived over either. A slot, 0 or 1, names the path; functions
//! without a slot are about slot 0.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::frame::{Ack, Data, Frame, MAX_ACK_RANGES};
use crate::playout::{Playout, PlayoutClock};
use crate::wire::MAX_INT;
use crate::{Assembler, AssemblerLimits, Delta, Error, Micros};

mod reading_path;

use reading_path::ReadingPath;

/// Maximum paths that a receiver reads at once.
pub const MAX_PATHS: usize = 2;

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
    /// No frame has arrived on a path for [`ReceiverConfig::silent_after`]. Reported once per
    /// silence; with two paths, [`Receiver::take_silence`] says which.
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

/// Receives one answer. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Receiver {
    config: ReceiverConfig,
    paths: [Option<ReadingPath>; MAX_PATHS],
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
    hidden: bool,
    stopping: bool,
}

impl Receiver {
    /// Creates a receiver of the answer on `channel`, which begins at log `offset`: 0, or the end
    /// of an earlier receiver.
    pub const fn new(now: Micros, channel: u64, offset: u64, config: ReceiverConfig) -> Self {
        Self {
            paths: [Some(ReadingPath::new(now, channel)), None],
            phase: ReceiverPhase::Open,
            assembler: Assembler::new(offset, config.limits),
            playout: PlayoutClock::new(config.playout),
            queue: VecDeque::new(),
            queued_tokens: 0,
            events: VecDeque::new(),
            now,
            shown: offset,
            hidden: false,
            stopping: false,
            config,
        }
    }

    /// Continues the same answer on another path, as `channel` of another connection. Bytes
    /// received up to [`Self::cumulative`] are kept: ask the sender to resume from there (D-9.7).
    /// Bytes beyond are discarded, since they may differ on the new path (D-6.8).
    pub fn migrate(&mut self, now: Micros, channel: u64) {
        self.paths = [Some(ReadingPath::new(now, channel)), None];
        self.assembler.forget_held();
    }

    /// Reads the same log over one more path, as `channel` of its connection. The sender must have
    /// been asked to send from [`Self::cumulative`] on or from before, in the same epoch (D-6.8).
    ///
    /// # Panics
    /// If `slot` is not below [`MAX_PATHS`].
    pub fn add_path(&mut self, now: Micros, slot: usize, channel: u64) {
        self.paths[slot] = Some(ReadingPath::new(now, channel));
    }

    /// Stops reading over a path. Bytes that arrived over it stay.
    pub fn drop_path(&mut self, slot: usize) {
        if let Some(path) = self.paths.get_mut(slot) {
            *path = None;
        }
    }

    /// Returns true if `slot` has a path.
    pub fn has_path(&self, slot: usize) -> bool {
        self.path(slot).is_some()
    }

    /// Tells the sender of a path that nobody looks at what comes there, or that it is needed
    /// again. To a quiet path the sender sends once a second, as to a hidden page (D-5.7). The
    /// frame that wakes a path is repeated, as a probe, until the path answers.
    pub fn set_quiet(&mut self, now: Micros, slot: usize, is_quiet: bool) {
        if let Some(path) = self.path_mut(slot) {
            path.set_quiet(now, is_quiet);
        }
    }

    /// Largest number of the packets that arrived on a path.
    pub fn largest_packet(&self, slot: usize) -> Option<u64> {
        self.path(slot)?.arrived.largest
    }

    /// Returns true, once per silence, if a path is silent: to ask after [`ReceiverEvent::Silent`].
    pub fn take_silence(&mut self, slot: usize) -> bool {
        self.path_mut(slot).is_some_and(|path| core::mem::take(&mut path.silent_untold))
    }

    fn path(&self, slot: usize) -> Option<&ReadingPath> {
        self.paths.get(slot)?.as_ref()
    }

    fn path_mut(&mut self, slot: usize) -> Option<&mut ReadingPath> {
        self.paths.get_mut(slot)?.as_mut()
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
    pub fn unanswered_probes(&self) -> u32 {
        self.unanswered_probes_on(0)
    }

    /// See [`Self::unanswered_probes`].
    pub fn unanswered_probes_on(&self, slot: usize) -> u32 {
        self.path(slot).map_or(0, |path| path.probes)
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
            self.acknowledge_everywhere(now);
            self.show_due(now);
        }
    }

    /// Changes the playout parameters.
    pub fn set_playout(&mut self, now: Micros, playout: Playout) {
        self.catch_up(now);
        self.playout.set_playout(playout);
        self.acknowledge_everywhere(now);
        self.show_due(now);
    }

    /// Sends an acknowledgement without waiting for news, because acknowledgements travel another
    /// way from now on (S-4.4).
    pub fn acknowledge_at_once(&mut self, now: Micros) {
        self.acknowledge_at_once_on(now, 0);
    }

    /// See [`Self::acknowledge_at_once`].
    pub fn acknowledge_at_once_on(&mut self, now: Micros, slot: usize) {
        self.catch_up(now);
        if let Some(path) = self.path_mut(slot) {
            path.ack_at = Some(now);
        }
    }

    fn acknowledge_everywhere(&mut self, now: Micros) {
        self.paths.iter_mut().flatten().for_each(|path| path.ack_at = Some(now));
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
        self.handle_datagram_on(now, 0, datagram)
    }

    /// Processes a datagram from the sender on a path. While another path is read, GONE ends this
    /// path alone.
    ///
    /// # Errors
    /// Same as [`Self::handle_datagram`].
    pub fn handle_datagram_on(
        &mut self,
        now: Micros,
        slot: usize,
        datagram: &[u8],
    ) -> Result<(), Error> {
        let frame = Frame::decode(datagram, self.config.checked)?;
        if self.path(slot).is_none_or(|path| path.channel != frame.channel()) {
            return Err(Error::WrongChannel);
        }
        match frame {
            Frame::Data(data) => self.handle_data(now, slot, &data),
            Frame::Gone { .. } => {
                if self.paths.iter().flatten().count() > 1 {
                    self.drop_path(slot);
                } else if !self.may_be_whole() {
                    self.fail(None);
                }
                Ok(())
            }
            Frame::Ack(_) | Frame::Resume(_) | Frame::Stop { .. } => Err(Error::Malformed),
        }
    }

    fn handle_data(&mut self, now: Micros, slot: usize, data: &Data<'_>) -> Result<(), Error> {
        if self.phase == ReceiverPhase::Closed {
            return Ok(());
        }
        self.catch_up(now);
        if let Some(path) = self.path_mut(slot) {
            path.note_packet(now, data.packet);
        }
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
        for (at, path) in self.paths.iter_mut().enumerate() {
            match path {
                Some(path) if at == slot => path.plan_ack(now, news, self.config.ack_gap),
                Some(path) if news => path.plan_word(now),
                _ => {}
            }
        }
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

    /// Restarts the silence timers, and takes back silences that were not asked for yet: the
    /// reader is no longer behind and needs the sender again (D-9.4, D-9.6). For a driver that
    /// has read nothing meanwhile.
    pub fn begin_silence(&mut self, now: Micros) {
        self.paths.iter_mut().flatten().for_each(|path| path.begin_silence(now));
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

    /// Takes the records that arrived without gaps and were not polled, each with the offset of
    /// its end, for a driver whose path has ended for good. If the log cannot be read, these are
    /// the records before the fault.
    pub fn take_rest(&mut self) -> Vec<(u64, Delta)> {
        let told = self.events.drain(..).filter_map(|event| match event {
            ReceiverEvent::Delta { offset, delta } => Some((offset, delta)),
            _ => None,
        });
        let mut rest: Vec<_> = told.chain(self.queue.drain(..)).collect();
        self.queued_tokens = 0;
        while let Ok(Some(next)) = self.assembler.poll() {
            rest.push(next);
        }
        rest
    }

    /// Handles the passage of time: shows due deltas, reports a silent sender, ends the lingering.
    pub fn handle_timeout(&mut self, now: Micros) {
        self.catch_up(now);
        self.show_due(now);
        if matches!(self.phase, ReceiverPhase::Lingering(until) if now >= until) {
            self.phase = ReceiverPhase::Closed;
        }
        for slot in 0..MAX_PATHS {
            if self.silent_at(slot).is_some_and(|at| now >= at) {
                if let Some(path) = self.path_mut(slot) {
                    (path.silent_said, path.silent_untold) = (true, true);
                }
                self.events.push_back(ReceiverEvent::Silent);
            }
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
        let acks = self.paths.iter().flatten().filter_map(|path| path.ack_at).min();
        let of_paths = (0..MAX_PATHS).flat_map(|slot| [self.probe_at(slot), self.silent_at(slot)]);
        of_paths.chain([linger, show, acks]).flatten().min()
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
        self.poll_transmit_on(now, 0, out)
    }

    /// Appends the datagram due at `now` on a path to `out`, if any; returns its length.
    pub fn poll_transmit_on(
        &mut self,
        now: Micros,
        slot: usize,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let start = out.len();
        let path = self.path(slot)?;
        if self.stopping {
            Frame::Stop { channel: path.channel }.encode(self.config.checked, out);
            self.stopping = false;
            return Some(out.len() - start);
        }
        if self.phase == ReceiverPhase::Closed {
            return None;
        }
        let probe = self.probe_at(slot).is_some_and(|at| now >= at);
        if !probe && path.ack_at.is_none_or(|at| now < at) {
            return None;
        }
        let ReceiverConfig { checked, ack_step_bytes, .. } = self.config;
        let ack = self.ack(now, path, probe || path.is_waking());
        Frame::Ack(ack).encode_in_steps(checked, ack_step_bytes, out);
        if let Some(path) = self.path_mut(slot) {
            path.note_ack(now, probe);
        }
        Some(out.len() - start)
    }

    fn ack(&self, now: Micros, path: &ReadingPath, probe: bool) -> Ack {
        let cumulative = self.assembler.cumulative();
        Ack {
            channel: path.channel,
            number: path.next_ack,
            cumulative,
            largest: path.arrived.largest,
            missing: path.arrived.missing(),
            hold: path.arrived.hold(now),
            unshown: cumulative - self.shown,
            pace: self.pace_bytes_per_s(now),
            hidden: self.hidden || path.is_quiet,
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

    fn probe_at(&self, slot: usize) -> Option<Micros> {
        let path = self.path(slot).filter(|_| self.needs_sender());
        path.and_then(|path| path.probe_at(self.config.probe_after))
    }

    fn silent_at(&self, slot: usize) -> Option<Micros> {
        let path = self.path(slot).filter(|_| self.needs_sender());
        path.and_then(|path| path.silent_at(self.config.silent_after))
    }
}
