//! The sending side of one stream: its log, and when which bytes of it leave.
//!
//! Each packet carries everything that is not acknowledged, oldest first, so that any
//! packet that arrives can be shown at once (Eloquent, §3). What is new against the
//! paper: packets leave also when an acknowledgement is overdue (alarm) and, on paths
//! that lose in bursts, between tokens (copies); a queue guard and a token bucket keep
//! that from harming the path; the reader's state makes it lazy.
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
//! `now` never goes back. `poll_timeout` is a time that may be past: then call at once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use crate::bucket::Bucket;
use crate::frame::{Ack, Data, Frame};
use crate::govern::Governor;
use crate::path::{Burst, Path, Rtt};
use crate::{Delta, Error, Log, Micros};

/// Parameters of a [`Sender`]. The defaults were found by search in simulation
/// (`loquent sim`), each figure over many seeded sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct SenderConfig {
    /// Most bytes that the log keeps. Default 1 MiB.
    pub max_log_bytes: usize,
    /// Largest datagram, frame header included. Default 1150: fits every path that
    /// carries QUIC, and what browsers take.
    pub max_datagram_bytes: usize,
    /// Bytes that the layers below add to a datagram, for the bucket. Default 60.
    pub packet_overhead_bytes: u64,
    /// Frames carry a checksum (D-2.4): for links that do not protect them. Default off.
    pub checked: bool,
    /// Round trip until one is measured; QUIC knows it from the handshake. Default 100 ms.
    pub initial_rtt: Micros,
    /// Least gap between packets with new text. Default 10 ms.
    pub new_text_gap: Micros,
    /// The same if text comes faster than a token per 50 ms. Default 25 ms.
    pub fast_text_gap: Micros,
    /// Gap between packets while anything is unacknowledged, at most. Default 200 ms.
    pub tick: Micros,
    /// Gap between packets once an acknowledgement is overdue: a tenth of the round trip,
    /// within these bounds. Default 5 to 40 ms.
    pub alarm_gap: [Micros; 2],
    /// Longest gap between packets once an acknowledgement is overdue. Default 60 ms.
    pub alarm_gap_max: Micros,
    /// Queueing delay above which nothing is repeated early, unless it drains between
    /// packets. Default 30 ms.
    pub alarm_queue_max: Micros,
    /// Overdue for so long, or unheard: the path is taken to be down, and new text waits
    /// with the old. Default 500 ms.
    pub silence: Micros,
    /// Gap between packets on a path that loses in bursts: a sixth of the round trip, within
    /// these bounds. Default 16 to 25 ms.
    pub copy_gap: [Micros; 2],
    /// The same after a packet with new text, at least: the later copies leave before the
    /// next text, the shorter is the gap that they divide. Default 40 ms.
    pub first_copy_gap: Micros,
    /// The same while the path is unknown. Default 25 ms.
    pub start_copy_gap: Micros,
    /// How long a path counts as unknown. Default 500 ms.
    pub start: Micros,
    /// How long a path counts as bursty after a burst. Default 8 s.
    pub burst_memory: Micros,
    /// What counts as a burst. Default 60 ms or 4 packets.
    pub burst: Burst,
    /// Bytes per second for packets without new text. Default 3200.
    pub bucket_bytes_per_s: u64,
    /// Bytes of such packets at once. Default 3000.
    pub bucket_depth_bytes: u64,
    /// Bytes that copies leave in the bucket for overdue acknowledgements, where a packet
    /// helps more. Default 800.
    pub copy_reserve_bytes: u64,
    /// A reader that holds more than a round trip and this much text unshown needs no
    /// haste. Default 500 ms.
    pub lazy_margin: Micros,
    /// Gap between packets to such a reader, least and most. Default 200 ms, 1 s.
    pub lazy_gap: [Micros; 2],
    /// Gap between packets to a hidden page. Default 1 s.
    pub hidden_gap: Micros,
    /// Suspend after so long without acknowledgement of what was sent. Default 10 s.
    pub suspend_after: Micros,
}

impl Default for SenderConfig {
    fn default() -> Self {
        let ms = Micros::from_ms;
        Self {
            max_log_bytes: 1 << 20,
            max_datagram_bytes: 1150,
            packet_overhead_bytes: 60,
            checked: false,
            initial_rtt: ms(100),
            new_text_gap: ms(10),
            fast_text_gap: ms(25),
            tick: ms(200),
            alarm_gap: [ms(5), ms(40)],
            alarm_gap_max: ms(60),
            alarm_queue_max: ms(30),
            silence: ms(500),
            copy_gap: [ms(16), ms(25)],
            first_copy_gap: ms(40),
            start_copy_gap: ms(25),
            start: ms(500),
            burst_memory: ms(8_000),
            burst: Burst { span: ms(60), packets: 4 },
            bucket_bytes_per_s: 3_200,
            bucket_depth_bytes: 3_000,
            copy_reserve_bytes: 800,
            lazy_margin: ms(500),
            lazy_gap: [ms(200), ms(1_000)],
            hidden_gap: ms(1_000),
            suspend_after: ms(10_000),
        }
    }
}

/// Where a stream's delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderState {
    /// Packets leave as the scheme says.
    Active,
    /// Nobody answers, or the driver asked for it: nothing leaves until a resume or an
    /// acknowledgement.
    Suspended,
    /// The whole log, its end included, is acknowledged. Nothing leaves any more.
    Finished,
    /// The reader wants no more. Nothing leaves any more.
    Stopped,
}

/// What a [`Sender`] tells its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderEvent {
    /// See [`SenderState::Suspended`]; keep the stream for a grace period.
    Suspended,
    /// Active again.
    Resumed,
    /// The reader has everything: the stream can be dropped.
    Finished,
    /// The reader has stopped the stream: generation can be cancelled.
    Stopped,
}

/// The reader's state as its newest acknowledgement told it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// Log offset up to which it has shown the answer.
    pub shown: u64,
    /// Log bytes per second at which it shows; 0: as they come.
    pub pace_bytes_per_s: u64,
    /// Its page is hidden.
    pub hidden: bool,
    /// When it will have shown all that it has; at `pace` 0, when it said so.
    pub shows_until: Micros,
}

/// What [`Sender::poll_transmit`] has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The datagram's length, bytes.
    pub len: usize,
    /// Log bytes in it.
    pub range: Range<u64>,
    /// It carries text that was never sent before.
    pub new_text: bool,
}

/// Sends one stream to one reader. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Sender {
    config: SenderConfig,
    stream: u64,
    log: Log,
    state: SenderState,
    path: Path,
    governor: Governor,
    bucket: Bucket,
    opened: Micros,
    /// Everything below has arrived on the path in use.
    cum: u64,
    /// Everything below was sent on this path, as far as that still counts.
    sent_head: u64,
    /// Everything below was sent at some time: nobody can have more.
    sent_most: u64,
    /// Where the first delta with tokens ends.
    first_token: Option<u64>,
    /// When the bytes below an offset first left: for each packet with new text.
    first_sent: VecDeque<(u64, Micros)>,
    /// Where the next repetition begins, if not everything fits one packet.
    sweep: u64,
    last_send: Option<Micros>,
    last_new_text: Option<Micros>,
    last_push: Micros,
    push_gap: Micros,
    unsent_since: Option<Micros>,
    last_heard: Micros,
    next_packet: u64,
    newest_ack: Option<u64>,
    /// What the reader has beyond `cum`, as its newest acknowledgement told.
    held: Vec<Range<u64>>,
    reader: ReaderState,
    probed_at: Option<Micros>,
    events: VecDeque<SenderEvent>,
}

/// Repeated bytes that accompany new text while a queue stands: each of them delays it.
const QUEUEING_REPEAT_BYTES: u64 = 64;

/// Log bytes of a repetition that is always worth its headers, however low the bucket.
const SPARE_BYTES_MIN: u64 = 128;

/// Why a packet is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    NewText,
    Repeat,
    Answer,
}

impl Sender {
    /// A sender with an empty log, for the stream numbered `stream` in its connection.
    pub fn new(now: Micros, stream: u64, config: SenderConfig) -> Self {
        Self {
            stream,
            log: Log::new(config.max_log_bytes),
            state: SenderState::Active,
            path: Path::new(0, config.initial_rtt),
            governor: Governor::new(now, config.alarm_queue_max),
            bucket: Bucket::new(config.bucket_bytes_per_s, config.bucket_depth_bytes),
            opened: now,
            cum: 0,
            sent_head: 0,
            sent_most: 0,
            first_sent: VecDeque::new(),
            sweep: 0,
            last_send: None,
            last_new_text: None,
            first_token: None,
            last_push: now,
            push_gap: Micros::from_ms(100),
            unsent_since: None,
            last_heard: now,
            next_packet: 0,
            newest_ack: None,
            held: Vec::new(),
            reader: ReaderState::default(),
            probed_at: None,
            events: VecDeque::new(),
            config,
        }
    }

    /// Appends to the log; the bytes leave by [`Self::poll_transmit`]. Returns the offset
    /// after the delta.
    ///
    /// # Errors
    /// Those of [`Log::push`].
    pub fn push(&mut self, now: Micros, delta: &Delta) -> Result<u64, Error> {
        let end = self.log.push(delta)?.end;
        if delta.tokens() > 0 {
            let gap = now.since(self.last_push).0.min(1_000_000);
            self.push_gap = Micros((7 * self.push_gap.0 + gap) / 8);
            self.last_push = now;
            self.first_token.get_or_insert(end);
        }
        self.unsent_since.get_or_insert(now);
        Ok(end)
    }

    /// The log, for other ways of delivery.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// Where delivery stands.
    pub const fn state(&self) -> SenderState {
        self.state
    }

    /// Offset below which this path's reader has everything.
    pub const fn cum(&self) -> u64 {
        self.cum
    }

    /// The reader's state.
    pub const fn reader(&self) -> ReaderState {
        self.reader
    }

    /// Round-trip estimates of the path in use.
    pub const fn rtt(&self) -> &Rtt {
        &self.path.rtt
    }

    /// Whether delivery has caught up with generation: what a
    /// [`Coalescer`](crate::Coalescer) asks before it flushes on `auto`. A hidden page and a
    /// reader that holds enough are backlogs too.
    pub fn is_clear(&self) -> bool {
        let lazy = self.last_new_text.and_then(|last| self.lazy_at(last)).is_some();
        self.state == SenderState::Active && self.unsent_since.is_none() && !lazy
    }

    /// Whether the reader needs no haste: its page is hidden, or it holds more text than a
    /// round trip and some margin take. New deltas may then be gathered before they are
    /// pushed.
    pub fn is_lazy(&self) -> bool {
        self.last_new_text.is_some_and(|last| self.lazy_at(last).is_some())
    }

    /// When the oldest byte first left that is not acknowledged on this path.
    pub fn unacked_since(&self) -> Option<Micros> {
        self.first_sent.front().map(|(_, at)| *at)
    }

    /// When an acknowledgement last told of a datagram's arrival on this path. Frames of
    /// [`Self::transmit_reliable`] do not count.
    pub const fn last_arrival(&self) -> Option<Micros> {
        self.path.last_arrival()
    }

    /// Another transport, over which this sender does not deliver, has brought the reader
    /// everything below `offset`.
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] if the log does not reach that far.
    pub fn acknowledge(&mut self, offset: u64) -> Result<(), Error> {
        self.advance(offset)
    }

    /// Appends a DATA frame for a reliable stream next to the datagrams: the log's bytes from
    /// `from` on, at most `max_bytes` of them. Returns their range; `None` if there are none.
    ///
    /// The frame has a packet number of its own but does not enter the path's estimates: neither
    /// its acknowledgement nor the lack of one counts for or against the datagrams.
    pub fn transmit_reliable(
        &mut self,
        from: u64,
        max_bytes: u64,
        out: &mut Vec<u8>,
    ) -> Option<Range<u64>> {
        let head = self.log.head();
        let range = from.max(self.log.base())..head.min(from.saturating_add(max_bytes));
        if self.state != SenderState::Active || range.is_empty() {
            return None;
        }
        self.write(range.clone(), out);
        self.next_packet += 1;
        self.sent_most = self.sent_most.max(range.end);
        Some(range)
    }

    /// The round trip to expect of the next path, until one is measured.
    pub fn set_initial_rtt(&mut self, rtt: Micros) {
        self.config.initial_rtt = rtt;
    }

    /// The path takes larger or smaller datagrams from now on.
    pub fn set_max_datagram_bytes(&mut self, bytes: usize) {
        self.config.max_datagram_bytes = bytes;
    }

    /// Stops sending until [`Self::resume`] or an acknowledgement: the connection is gone,
    /// or another transport delivers.
    pub fn suspend(&mut self) {
        if self.state == SenderState::Active {
            self.state = SenderState::Suspended;
            self.events.push_back(SenderEvent::Suspended);
        }
    }

    /// Goes on from `offset` to a reader at a new path, as `stream` of its connection (D-6).
    /// The reader may ask for less than it acknowledged, if the log still has it.
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] if the log does not have `offset`;
    /// [`Error::LogEnded`] if the reader stopped the stream.
    pub fn resume(&mut self, now: Micros, stream: u64, offset: u64) -> Result<(), Error> {
        if self.state == SenderState::Stopped {
            return Err(Error::LogEnded);
        }
        self.log.rewind(offset)?;
        self.stream = stream;
        self.path = Path::new(self.next_packet, self.config.initial_rtt);
        self.governor = Governor::new(now, self.config.alarm_queue_max);
        (self.opened, self.last_heard) = (now, now);
        (self.last_send, self.last_new_text) = (None, None);
        (self.cum, self.sent_head, self.sweep) = (offset, offset, offset);
        self.sent_most = self.sent_most.max(offset); // another transport may have brought it
        self.first_sent.clear();
        self.held.clear();
        self.unsent_since = (offset < self.log.head()).then_some(now);
        (self.newest_ack, self.probed_at) = (None, Some(now));
        self.reader = ReaderState { shown: offset, ..ReaderState::default() };
        self.activate();
        self.advance(offset)
    }

    /// A datagram has arrived from the reader.
    ///
    /// # Errors
    /// What was wrong with it; it had no effect.
    pub fn handle_datagram(&mut self, now: Micros, datagram: &[u8]) -> Result<(), Error> {
        let frame = Frame::decode(datagram, self.config.checked)?;
        if frame.stream() != self.stream {
            return Err(Error::WrongStream);
        }
        match frame {
            Frame::Ack(ack) => self.handle_ack(now, &ack),
            Frame::Stop { .. } => {
                self.end(SenderState::Stopped, SenderEvent::Stopped);
                Ok(())
            }
            // Resume needs the stream's token, which its owner checks, not the sender.
            Frame::Resume(_) | Frame::Data(_) | Frame::Gone { .. } => Err(Error::Malformed),
        }
    }

    fn handle_ack(&mut self, now: Micros, ack: &Ack) -> Result<(), Error> {
        let unsent_packet = ack.largest.is_some_and(|n| n >= self.next_packet);
        // D-5.2. Ranges past what was ever sent would be swept around, beyond the log's end.
        let unsent_range = ack.ranges.iter().any(|range| range.end > self.sent_most);
        if ack.cum > self.sent_most || unsent_packet || unsent_range {
            return Err(Error::Malformed);
        }
        let silence = now.since(self.last_heard);
        self.last_heard = now;
        if self.path.on_ack(now, ack, &self.config.burst) {
            self.govern(now);
        }
        if self.newest_ack.is_none_or(|newest| ack.number > newest) {
            self.newest_ack = Some(ack.number);
            self.reader = reader_state(now, ack);
            self.held.clone_from(&ack.ranges);
            if ack.probe {
                self.probed_at = Some(now);
            }
        }
        if self.state == SenderState::Suspended {
            self.activate();
        }
        self.advance(ack.cum)?;
        let piled_up = self.log.head() - self.cum > self.budget();
        if silence > self.config.silence && piled_up && !self.is_queueing() {
            self.forget_sent(now);
        }
        Ok(())
    }

    fn govern(&mut self, now: Micros) {
        let rtt = &mut self.path.rtt;
        self.governor.on_round_trip(now, rtt.smoothed(), rtt.queue());
        if self.governor.is_mistaken(now, rtt.smoothed(), rtt.queue()) {
            rtt.forget_min();
            self.governor = Governor::new(now, self.config.alarm_queue_max);
        }
    }

    /// The path is back: what piled up and got no answer counts as never sent, so that
    /// it leaves at the pace of new text instead of the bucket's.
    fn forget_sent(&mut self, now: Micros) {
        (self.sent_head, self.sweep) = (self.cum, self.cum);
        self.first_sent.clear();
        self.unsent_since = Some(now);
    }

    fn advance(&mut self, cum: u64) -> Result<(), Error> {
        self.log.acknowledge(cum)?;
        self.cum = self.cum.max(cum);
        self.sent_head = self.sent_head.max(self.cum);
        if self.sent_head == self.log.head() {
            self.unsent_since = None;
        }
        self.sweep = self.sweep.max(self.cum);
        while self.first_sent.front().is_some_and(|(end, _)| *end <= self.cum) {
            self.first_sent.pop_front();
        }
        if self.log.is_ended() && self.cum == self.log.head() {
            self.end(SenderState::Finished, SenderEvent::Finished);
        }
        Ok(())
    }

    fn activate(&mut self) {
        if self.state != SenderState::Active {
            self.state = SenderState::Active;
            self.events.push_back(SenderEvent::Resumed);
        }
    }

    fn end(&mut self, state: SenderState, event: SenderEvent) {
        if self.state != state {
            self.state = state;
            self.events.push_back(event);
        }
    }

    /// Time has passed: suspends a stream that nobody answers.
    pub fn handle_timeout(&mut self, now: Micros) {
        if self.suspend_at().is_some_and(|at| now >= at) {
            self.suspend();
        }
    }

    /// When to call [`Self::handle_timeout`] and [`Self::poll_transmit`] next; `None`:
    /// only after something else happened.
    pub fn poll_timeout(&self) -> Option<Micros> {
        if self.state != SenderState::Active {
            return None;
        }
        let send = self.due().map(|(at, _)| at);
        [send, self.suspend_at()].into_iter().flatten().min()
    }

    /// What has happened, once each.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// Appends the datagram that is due at `now` to `out`, if one is.
    pub fn poll_transmit(&mut self, now: Micros, out: &mut Vec<u8>) -> Option<Transmit> {
        if self.state != SenderState::Active {
            return None;
        }
        let (_, reason) = self.due().filter(|(at, _)| *at <= now)?;
        let range = self.choose(now, reason);
        let start = out.len();
        self.write(range.clone(), out);
        let len = out.len() - start;
        let new_text = range.end > self.sent_head;
        if !new_text {
            self.bucket.take(now, self.cost(len));
        }
        self.record(now, &range);
        Some(Transmit { len, range, new_text })
    }

    fn write(&self, range: Range<u64>, out: &mut Vec<u8>) {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let offset = range.start;
        self.log.read(range, &mut bytes).expect("unacknowledged bytes stay in the log");
        let data = Data { stream: self.stream, packet: self.next_packet, offset, bytes: &bytes };
        Frame::Data(data).encode(self.config.checked, out);
    }

    fn record(&mut self, now: Micros, range: &Range<u64>) {
        self.path.on_sent(self.next_packet, now);
        self.next_packet += 1;
        self.last_send = Some(now);
        self.probed_at = None;
        if range.end > self.sent_head {
            self.sent_head = range.end;
            self.sent_most = self.sent_most.max(range.end);
            self.last_new_text = Some(now);
            remember(&mut self.first_sent, range.end, now);
            self.unsent_since = (self.sent_head < self.log.head()).then_some(now);
        }
        self.sweep = if range.end < self.sent_head { range.end } else { self.cum };
    }

    /// The bytes for the next packet: all that is unacknowledged if it fits; otherwise
    /// new text with what fits before it, or the next piece of a sweep from the oldest
    /// on, past what the reader has.
    fn choose(&self, now: Micros, reason: Reason) -> Range<u64> {
        let head = self.log.head();
        if reason == Reason::NewText {
            let end = head.min(self.sent_head + self.budget());
            let before = if self.is_queueing() { QUEUEING_REPEAT_BYTES } else { self.budget() };
            let least =
                end.saturating_sub(self.budget()).max(self.sent_head.saturating_sub(before));
            return self.cum.max(least)..end;
        }
        let affordable = self.bucket.level(now).saturating_sub(self.cost(Data::OVERHEAD_BYTES));
        let generous = if self.is_queueing() { 0 } else { affordable / 2 };
        let budget = self.budget().min(SPARE_BYTES_MIN.max(generous));
        if head - self.cum <= budget {
            self.cum..head
        } else if budget < self.budget() {
            self.cum..self.cum + budget // a probe, of what would help first
        } else {
            self.sweep_piece(budget)
        }
    }

    fn is_queueing(&self) -> bool {
        self.governor.is_standing(self.path.rtt.queue())
    }

    fn sweep_piece(&self, budget: u64) -> Range<u64> {
        let head = self.log.head();
        let mut start = if self.sweep < head { self.sweep } else { self.cum };
        for held in &self.held {
            if held.start > start {
                return start..held.start.min(start + budget);
            }
            start = start.max(held.end);
        }
        if start >= head {
            self.cum..head.min(self.cum + budget)
        } else {
            start..head.min(start + budget)
        }
    }

    fn budget(&self) -> u64 {
        self.config.max_datagram_bytes.saturating_sub(Data::OVERHEAD_BYTES).max(1) as u64
    }

    /// When the next packet is due and why; `None` if there is nothing to say.
    fn due(&self) -> Option<(Micros, Reason)> {
        let answer = self.probed_at.map(|at| (at, Reason::Answer));
        if self.cum == self.log.head() {
            return answer.and_then(|due| self.when_affordable(due, 0));
        }
        let text = self.unsent_since.and_then(|since| self.new_text_at(since));
        let text = text.map(|at| (at, Reason::NewText));
        let repeat = self.repeat_at().map(|at| (at, Reason::Repeat));
        let unacked = (self.sent_head - self.cum).min(SPARE_BYTES_MIN) as usize;
        let spare = [repeat, answer].into_iter().flatten().min_by_key(|(at, _)| *at);
        let spare = spare.and_then(|due| self.when_affordable(due, unacked));
        [text, spare].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn when_affordable(&self, due: (Micros, Reason), log_bytes: usize) -> Option<(Micros, Reason)> {
        let cost = self.cost(log_bytes + Data::OVERHEAD_BYTES);
        self.bucket.ready_at(cost).map(|ready| (due.0.max(ready), due.1))
    }

    fn cost(&self, datagram_bytes: usize) -> u64 {
        datagram_bytes as u64 + self.config.packet_overhead_bytes
    }

    /// When unsent text leaves; `None` while the path is taken to be down.
    fn new_text_at(&self, since: Micros) -> Option<Micros> {
        // It waits for other new text only, never for a repetition.
        let Some(last) = self.last_new_text else {
            return Some(since);
        };
        if let Some(lazy) = self.lazy_at(last) {
            return Some(lazy.max(since));
        }
        // The first token waits for nothing: the answer's head before it fills no link.
        if self.first_token.is_some_and(|end| self.sent_most < end) {
            return Some(since);
        }
        let fast = self.push_gap < Micros::from_ms(50);
        let gap = if fast { self.config.fast_text_gap } else { self.config.new_text_gap };
        let at = since.max(last + gap.max(self.governor.gap()));
        let overdue = self.overdue_at().filter(|_| !self.is_queueing());
        let down = overdue.is_some_and(|overdue| at > overdue + self.config.silence);
        (!down).then_some(at)
    }

    /// When sent and unacknowledged bytes are to be repeated.
    fn repeat_at(&self) -> Option<Micros> {
        let last = self.last_send?;
        if self.sent_head == self.cum {
            return None;
        }
        if let Some(lazy) = self.lazy_at(last) {
            return Some(lazy.max(last + self.path.rtt.overdue_after()));
        }
        let tick = last + self.config.tick.max(self.governor.gap());
        let copy = self.copy_at(last).unwrap_or(Micros::MAX);
        let alarm = self.alarm_at(last).unwrap_or(Micros::MAX);
        Some(tick.min(copy).min(alarm))
    }

    /// When the acknowledgement of the oldest unacknowledged byte becomes overdue.
    fn overdue_at(&self) -> Option<Micros> {
        let (_, sent) = self.first_sent.front()?;
        Some(*sent + self.path.rtt.overdue_after())
    }

    fn alarm_at(&self, last: Micros) -> Option<Micros> {
        if self.is_queueing() {
            return None;
        }
        let overdue = self.overdue_at()?;
        let rtt = self.path.rtt.smoothed();
        let [least, most] = self.config.alarm_gap;
        let least = Micros(rtt.0 / 10).clamp(least, most);
        let growing = least.max(Micros(last.since(overdue).0 / 10));
        let gap = growing.min(self.config.alarm_gap_max).max(self.governor.gap());
        Some(overdue.max(last + gap))
    }

    fn copy_at(&self, last: Micros) -> Option<Micros> {
        let bursty_until = self.path.last_burst().map(|at| at + self.config.burst_memory);
        let gap = if bursty_until.is_some_and(|until| last < until) {
            self.burst_copy_gap(last)
        } else if last < self.opened + self.config.start {
            self.config.start_copy_gap
        } else {
            return None;
        };
        let gap = gap.max(self.governor.gap());
        let exponent = (self.path.rtt.queue().as_ms() / 20).saturating_sub(1);
        if exponent > 2 {
            return None;
        }
        let at = self.beside_new_text(last + gap.times(1 << exponent), gap);
        let unacked = (self.sent_head - self.cum).min(SPARE_BYTES_MIN) as usize;
        let cost = self.cost(unacked + Data::OVERHEAD_BYTES) + self.config.copy_reserve_bytes;
        self.bucket.ready_at(cost).map(|ready| at.max(ready))
    }

    /// The gap after the packet at `last` on a path that loses in bursts.
    fn burst_copy_gap(&self, last: Micros) -> Micros {
        let [least, most] = self.config.copy_gap;
        let gap = Micros(self.path.rtt.smoothed().0 / 6).clamp(least, most);
        let after_new_text = self.last_new_text == Some(last);
        if after_new_text { gap.max(self.config.first_copy_gap) } else { gap }
    }

    /// A copy just before or after new text is wasted: it makes room for what is expected,
    /// and leaves if that does not come.
    fn beside_new_text(&self, at: Micros, gap: Micros) -> Micros {
        let (expected, after) = (self.last_push + self.push_gap, Micros(gap.0 / 2));
        let close = at + Micros(gap.0 / 4) > expected && at < expected + after;
        if close { expected + after } else { at }
    }

    /// When to send to a reader that needs no haste; `None` if it does.
    fn lazy_at(&self, last: Micros) -> Option<Micros> {
        if self.reader.hidden {
            let ended = self.log.is_ended() && self.sent_head < self.log.head();
            return Some(if ended { last } else { last + self.config.hidden_gap });
        }
        if self.reader.pace_bytes_per_s == 0 {
            return None;
        }
        let margin = self.path.rtt.smoothed() + self.config.lazy_margin;
        let needed = Micros(self.reader.shows_until.0.saturating_sub(margin.0));
        let [least, most] = self.config.lazy_gap;
        (needed > last).then(|| needed.clamp(last + least, last + most))
    }

    fn suspend_at(&self) -> Option<Micros> {
        let (_, sent) = self.first_sent.front()?;
        let active = self.state == SenderState::Active;
        active.then(|| self.last_heard.max(*sent) + self.config.suspend_after)
    }
}

fn reader_state(now: Micros, ack: &Ack) -> ReaderState {
    let left_micros = ack.unshown.saturating_mul(1_000_000).checked_div(ack.pace).unwrap_or(0);
    ReaderState {
        shown: ack.cum - ack.unshown,
        pace_bytes_per_s: ack.pace,
        hidden: ack.hidden,
        shows_until: now + Micros(left_micros),
    }
}

/// Notes that bytes below `end` first left at `now`. Bounded: the newest entries merge,
/// keeping the older time.
fn remember(first_sent: &mut VecDeque<(u64, Micros)>, end: u64, now: Micros) {
    const MAX_ENTRIES: usize = 256;
    if first_sent.len() < MAX_ENTRIES {
        first_sent.push_back((end, now));
    } else if let Some(last) = first_sent.back_mut() {
        last.0 = end;
    }
}
