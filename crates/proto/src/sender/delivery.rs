//! Delivery of an answer to one reader: what was sent, and what is sent next.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use super::answer_log::AnswerLog;
use super::config::SenderConfig;
use super::progress::{LogProgress, ReaderState, RecentLengths, SendTimes};
use super::schedule::{ReaderUrgency, Schedule};
use super::{MAX_IN_FLIGHT_BYTES, SenderEvent, SenderState, Transmit};
use crate::frame::{Ack, Data, Frame};
use crate::pacing::SendPacer;
use crate::path::{PathEstimate, Rtt};
use crate::token_bucket::TokenBucket;
use crate::{Error, Micros};

/// Extent of what was sent of an answer on all its paths. Packet numbers continue after it (D-6.3),
/// and no reader can have more of the log (D-5.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SentSoFar {
    next_packet: u64,
    log_end: u64,
}

impl SentSoFar {
    /// Covers packets with numbers below `next_packet`, and no part of the log.
    pub const fn below(next_packet: u64) -> Self {
        Self { next_packet, log_end: 0 }
    }

    /// Returns the union of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            next_packet: self.next_packet.max(other.next_packet),
            log_end: self.log_end.max(other.log_end),
        }
    }
}

/// Sends an answer, whose log may have other readers too, to one reader: a
/// [`Sender`](super::Sender) without its log.
#[derive(Debug, Clone)]
pub struct Delivery {
    config: SenderConfig,
    channel: u64,
    state: SenderState,
    path: PathEstimate,
    pacer: SendPacer,
    bucket: TokenBucket,
    progress: LogProgress,
    times: SendTimes,
    next_packet: u64,
    newest_ack: Option<u64>,
    reader: ReaderState,
    /// A probe has come since the QUIC stream last carried a frame.
    probed: bool,
    events: VecDeque<SenderEvent>,
    lengths: RecentLengths,
}

impl Delivery {
    /// Creates a delivery from the log's beginning, as `channel` of its connection.
    pub fn new(now: Micros, channel: u64, config: SenderConfig) -> Self {
        Self {
            channel,
            state: SenderState::Active,
            path: PathEstimate::new(0, config.initial_rtt),
            pacer: SendPacer::new(now, config.queue_tolerance),
            bucket: TokenBucket::new(config.bucket_bytes_per_s, config.bucket_depth_bytes),
            progress: LogProgress::default(),
            times: SendTimes::new(now),
            next_packet: 0,
            newest_ack: None,
            reader: ReaderState::default(),
            probed: false,
            events: VecDeque::new(),
            lengths: RecentLengths::default(),
            config,
        }
    }

    /// Notes that the log was appended to at `now`.
    pub fn note_append(&mut self, now: Micros) {
        // Since the oldest of it, so that later text does not begin the wait anew.
        self.times.unsent_since.get_or_insert(now);
    }

    /// Extent of what has been sent so far, on this path and earlier ones.
    pub const fn sent_so_far(&self) -> SentSoFar {
        SentSoFar { next_packet: self.next_packet, log_end: self.progress.sent_most }
    }

    /// Log offset below which everything was sent, on this path and on those that it knows of.
    pub const fn sent_end(&self) -> u64 {
        self.progress.sent_most
    }

    /// Continues after what was `sent` on other paths. [`Self::resume`] must follow.
    pub fn continue_after(&mut self, sent: SentSoFar) {
        self.next_packet = self.next_packet.max(sent.next_packet);
        self.progress.sent_most = self.progress.sent_most.max(sent.log_end);
    }

    /// Notes that everything below `log_end` was sent on some path: a reader of two paths
    /// acknowledges on each what came over either (D-5.2).
    pub fn note_sent_elsewhere(&mut self, log_end: u64) {
        self.progress.sent_most = self.progress.sent_most.max(log_end);
    }

    /// Returns true if the log no longer has the bytes that this reader needs next: it can never
    /// continue.
    pub const fn has_fallen_behind(&self, answer: &AnswerLog) -> bool {
        self.progress.cumulative < answer.log().base()
    }

    /// State of the delivery: whether packets are sent, and if not, why.
    pub const fn state(&self) -> SenderState {
        self.state
    }

    /// Offset below which the reader on this path has everything.
    pub const fn cumulative(&self) -> u64 {
        self.progress.cumulative
    }

    /// State of the reader.
    pub const fn reader(&self) -> ReaderState {
        self.reader
    }

    /// Round-trip estimates of the path in use.
    pub const fn rtt(&self) -> &Rtt {
        &self.path.rtt
    }

    /// Returns true if delivery has caught up with generation: a [`Coalescer`](crate::Coalescer) on
    /// `auto` flushes only then. A hidden page or a reader that holds enough text counts as a
    /// backlog.
    pub fn is_clear(&self, answer: &AnswerLog) -> bool {
        let unsent = self.times.unsent_since.is_some();
        self.state == SenderState::Active && !unsent && !self.is_background(answer)
    }

    /// Returns true if the reader can wait: its page is hidden, or it holds more text than it shows
    /// within a round trip and some margin. New deltas may then be gathered before they are pushed.
    pub fn is_background(&self, answer: &AnswerLog) -> bool {
        let last = self.times.last_new_text;
        last.is_some_and(|last| self.schedule(answer).urgency(last) != ReaderUrgency::Eager)
    }

    /// When the oldest byte that is unacknowledged on this path was first sent.
    pub fn unacked_since(&self) -> Option<Micros> {
        self.progress.unacked_since()
    }

    /// When an acknowledgement last reported a datagram's arrival on this path. Frames of
    /// [`Self::transmit_reliable`] do not count.
    pub const fn last_arrival(&self) -> Option<Micros> {
        self.path.last_arrival()
    }

    /// When the last accepted ACK frame arrived; before the first, when the path began.
    pub const fn last_heard(&self) -> Micros {
        self.times.last_heard
    }

    /// Notes that another transport, which this sender does not control, has delivered everything
    /// below `offset`. The log must reach `offset`.
    pub fn acknowledge(&mut self, answer: &AnswerLog, offset: u64) {
        debug_assert!(offset <= answer.log().head(), "nobody can have that");
        self.advance(answer, offset);
    }

    /// Appends a DATA frame for a QUIC stream next to the datagrams: the log's bytes from `from`
    /// on, at most `max_bytes` of them, or none in reply to a probe. Returns their range; `None` if
    /// there is nothing to send.
    ///
    /// The frame has a packet number of its own but does not enter the path's estimates: neither
    /// its acknowledgement nor the lack of one counts for or against the datagrams. These bytes are
    /// never repeated, so they stay within what every receiver has room for (D-7.1, D-9.9).
    pub fn transmit_reliable(
        &mut self,
        now: Micros,
        answer: &AnswerLog,
        from: u64,
        max_bytes: u64,
        out: &mut Vec<u8>,
    ) -> Option<Range<u64>> {
        if self.state != SenderState::Active {
            return None;
        }
        let room_ends = self.reader.shown + MAX_IN_FLIGHT_BYTES;
        let end = answer.log().head().min(from.saturating_add(max_bytes)).min(room_ends);
        let mut range = from.max(answer.log().base())..end;
        if range.is_empty() {
            // A datagram may be answering the same probe, but here datagrams get lost.
            self.pay_for_probe_reply(now, answer)?;
            range = self.progress.cumulative..self.progress.cumulative;
        }
        self.probed = false;
        let header_bytes = self.header_bytes(answer);
        let padded = self.config.padded_bytes(range.end - range.start, header_bytes);
        self.write(answer, range.clone(), padded, out);
        self.next_packet += 1;
        self.progress.sent_most = self.progress.sent_most.max(range.end);
        // Otherwise the datagrams' own times decide when the reader counts as gone (D-7.2).
        if !self.takes_datagrams() {
            self.note_sent(now, answer, &range);
        }
        Some(range)
    }

    /// Pays for a frame without bytes (D-7.3); `None` if no probe waits or the cost is too high.
    fn pay_for_probe_reply(&mut self, now: Micros, answer: &AnswerLog) -> Option<()> {
        let cost = self.schedule(answer).cost(Data::OVERHEAD_BYTES);
        let affordable = self.bucket.ready_at(cost).is_some_and(|at| at <= now);
        (self.probed && affordable).then(|| self.bucket.take(now, cost))
    }

    /// Sets the round trip assumed on the next path until one is measured.
    pub fn set_initial_rtt(&mut self, rtt: Micros) {
        self.config.initial_rtt = rtt;
    }

    /// Sets the path's largest datagram, in bytes, from now on. With 0 the path takes none, and
    /// only [`Self::transmit_reliable`] sends; packet numbers are then not wasted on datagrams that
    /// could not be sent (D-4.1).
    pub fn set_max_datagram_bytes(&mut self, bytes: usize) {
        self.config.max_datagram_bytes = bytes;
    }

    /// Returns true if the path takes datagrams.
    pub const fn takes_datagrams(&self) -> bool {
        self.config.max_datagram_bytes > 0
    }

    /// Stops sending until [`Self::resume`] or an acknowledgement: the connection is gone, or
    /// another transport delivers.
    pub fn suspend(&mut self) {
        // An answer that has ended stays so, whatever becomes of its path.
        if self.state == SenderState::Active {
            self.state = SenderState::Suspended;
            self.events.push_back(SenderEvent::Suspended);
        }
    }

    /// Continues from `offset` to a reader at a new path, as `channel` of its connection (D-6). The
    /// offset may be lower than what the reader acknowledged. If the reader has all of a log that
    /// has ended, the delivery is [`SenderState::Finished`] at once (D-6.4).
    ///
    /// Drops the old path's events that were not polled.
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] if the log does not have `offset`;
    /// [`Error::LogEnded`] if the reader stopped the answer.
    pub fn resume(
        &mut self,
        now: Micros,
        answer: &AnswerLog,
        channel: u64,
        offset: u64,
    ) -> Result<(), Error> {
        if self.state == SenderState::Stopped {
            return Err(Error::LogEnded);
        }
        answer.log().check(offset)?;
        // Before what this path brings: a driver that drops the older path's events itself would
        // drop the end of a log that the reader has already.
        self.events.clear();
        self.channel = channel;
        // What was measured on the older path says nothing of this one.
        self.path = PathEstimate::new(self.next_packet, self.config.initial_rtt);
        self.pacer = SendPacer::new(now, self.config.queue_tolerance);
        self.progress.restart(offset);
        self.times = SendTimes {
            unsent_since: (offset < answer.log().head()).then_some(now),
            probed_at: Some(now), // a reader that has everything waits for a sign of life
            ..SendTimes::new(now)
        };
        (self.newest_ack, self.probed) = (None, false);
        self.reader = ReaderState { shown: offset, ..ReaderState::default() };
        self.activate();
        self.advance(answer, offset);
        Ok(())
    }

    /// Processes a datagram from the reader.
    ///
    /// # Errors
    /// The error in the datagram, which then has no effect.
    pub fn handle_datagram(
        &mut self,
        now: Micros,
        answer: &AnswerLog,
        datagram: &[u8],
    ) -> Result<(), Error> {
        let frame = Frame::decode(datagram, self.config.checked)?;
        if frame.channel() != self.channel {
            return Err(Error::WrongChannel);
        }
        match frame {
            Frame::Ack(ack) => self.handle_ack(now, answer, &ack),
            Frame::Stop { .. } => {
                self.end(SenderState::Stopped, SenderEvent::Stopped);
                Ok(())
            }
            // Resume needs the answer's token, which its owner checks, not the sender.
            Frame::Resume(_) | Frame::Data(_) | Frame::Gone { .. } => Err(Error::Malformed),
        }
    }

    fn handle_ack(&mut self, now: Micros, answer: &AnswerLog, ack: &Ack) -> Result<(), Error> {
        // D-5.3; and D-5.1: the number of an acknowledgement that is ignored does not count.
        let unsent_packet = ack.largest.is_some_and(|n| n >= self.next_packet);
        // D-5.2. Ranges past what was ever sent would be swept around, beyond the log's end.
        let unsent_range = ack.ranges.iter().any(|range| range.end > self.progress.sent_most);
        if ack.cumulative > self.progress.sent_most || unsent_packet || unsent_range {
            return Err(Error::Malformed);
        }
        // Before this acknowledgement ends it.
        let silence = now.since(self.times.last_heard);
        self.times.last_heard = now;
        if self.path.on_ack(now, ack, &self.config.burst) {
            self.adjust_pacer(now);
        }
        // Acknowledgements overtake each other: an older one still counts for what has arrived,
        // but not for the reader's state.
        if self.newest_ack.is_none_or(|newest| ack.number > newest) {
            self.newest_ack = Some(ack.number);
            self.reader = ReaderState::of(now, ack);
            self.progress.held.clone_from(&ack.ranges);
            if ack.probe {
                self.times.probed_at = Some(now);
                self.probed = true;
            }
        }
        if self.state == SenderState::Suspended {
            self.activate();
        }
        self.advance(answer, ack.cumulative);
        let is_long = silence > self.config.path_down_after;
        let is_back = is_long && self.takes_datagrams() && self.is_piled_up(answer);
        if is_back && !self.schedule(answer).is_queueing() {
            self.forget_sent(now);
        }
        Ok(())
    }

    fn adjust_pacer(&mut self, now: Micros) {
        let rtt = &mut self.path.rtt;
        self.pacer.on_round_trip(now, rtt.smoothed(), rtt.queue());
        if self.pacer.is_mistaken(now, rtt.smoothed(), rtt.queue()) {
            rtt.forget_min();
            self.pacer = SendPacer::new(now, self.config.queue_tolerance);
        }
        let (smoothed, excess) = (self.path.rtt.smoothed(), self.path.rtt.excess());
        self.pacer.on_fates(smoothed, excess, self.path.recent_packets());
    }

    /// Returns true if the unacknowledged and unsent bytes exceed one packet.
    fn is_piled_up(&self, answer: &AnswerLog) -> bool {
        let unacked = answer.log().head() - self.progress.cumulative;
        unacked > self.schedule(answer).max_log_bytes()
    }

    /// Resets the send state after an outage: the accumulated bytes count as never sent, so that
    /// they leave at the pace of new text instead of the bucket's.
    fn forget_sent(&mut self, now: Micros) {
        self.progress.forget_sent();
        self.times.unsent_since = Some(now);
    }

    fn advance(&mut self, answer: &AnswerLog, cumulative: u64) {
        let log = answer.log();
        self.progress.on_acknowledged(cumulative);
        if self.progress.sent_head == log.head() {
            self.times.unsent_since = None;
        }
        if log.is_ended() && self.progress.cumulative == log.head() {
            self.end(SenderState::Finished, SenderEvent::Finished);
        }
    }

    fn activate(&mut self) {
        if self.state != SenderState::Active {
            self.state = SenderState::Active;
            self.events.push_back(SenderEvent::Resumed);
        }
    }

    /// Ends the delivery. No effect on one that has already ended: packets still in flight do not
    /// change its final state.
    fn end(&mut self, state: SenderState, event: SenderEvent) {
        if matches!(self.state, SenderState::Active | SenderState::Suspended) {
            self.state = state;
            self.events.push_back(event);
        }
    }

    /// Handles the passage of time: suspends an answer whose reader has been silent for too long.
    pub fn handle_timeout(&mut self, now: Micros) {
        if self.suspend_at().is_some_and(|at| now >= at) {
            self.suspend();
        }
    }

    /// Time for the next call of [`Self::handle_timeout`] and [`Self::poll_transmit`]; `None` if
    /// only another event requires one.
    pub fn poll_timeout(&self, answer: &AnswerLog) -> Option<Micros> {
        if self.state != SenderState::Active {
            return None;
        }
        let next = self.takes_datagrams().then(|| self.schedule(answer).when_next()).flatten();
        let send = next.map(|(at, _)| at);
        [send, self.suspend_at()].into_iter().flatten().min()
    }

    /// Returns the next event, in order; each is returned once.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// Appends the datagram due at `now` to `out`, if any.
    pub fn poll_transmit(
        &mut self,
        now: Micros,
        answer: &AnswerLog,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if self.state != SenderState::Active || !self.takes_datagrams() {
            return None;
        }
        let schedule = self.schedule(answer);
        let (_, reason) = schedule.when_next().filter(|(at, _)| *at <= now)?;
        let range = schedule.choose(now, reason);
        let start = out.len();
        let log_bytes = range.end - range.start;
        let needed = self.config.padded_bytes(log_bytes, schedule.header_bytes);
        let padded = needed.map(|_| schedule.frame_bytes(log_bytes));
        self.write(answer, range.clone(), padded, out);
        if let Some(needed) = needed {
            self.lengths.note(needed, self.config.padding_memory_frames);
        }
        let len = out.len() - start;
        let new_text = range.end > self.progress.sent_head;
        // Only repetitions are paid for: new text cannot outpace its generation.
        if !new_text {
            let cost = self.schedule(answer).cost(len);
            self.bucket.take(now, cost);
        }
        let wire_bytes = self.schedule(answer).cost(len);
        self.record(now, answer, &range, wire_bytes);
        Some(Transmit { len, range, new_text })
    }

    fn schedule<'a>(&'a self, answer: &'a AnswerLog) -> Schedule<'a> {
        let log = answer.log();
        Schedule {
            config: &self.config,
            path: &self.path,
            pacer: &self.pacer,
            bucket: &self.bucket,
            progress: &self.progress,
            times: &self.times,
            rhythm: answer.rhythm(),
            reader: &self.reader,
            head: log.head().min(self.progress.cumulative + MAX_IN_FLIGHT_BYTES),
            is_ended: log.is_ended(),
            header_bytes: self.header_bytes(answer),
            lengths: &self.lengths,
        }
    }

    /// Maximum bytes of the next frame around its log bytes.
    fn header_bytes(&self, answer: &AnswerLog) -> usize {
        if self.config.padding_step_bytes == 0 {
            return Data::OVERHEAD_BYTES;
        }
        // Not the bound for any frame: a byte too many can cost a whole step of padding.
        let (head, checked) = (answer.log().head(), self.config.checked);
        Data::header_bytes(self.channel, self.next_packet, head, checked) + Frame::PADDED_BYTES
    }

    /// Appends the frame with `range`, padded to `padded` bytes if set.
    fn write(
        &self,
        answer: &AnswerLog,
        range: Range<u64>,
        padded: Option<usize>,
        out: &mut Vec<u8>,
    ) {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let offset = range.start;
        answer.log().read(range, &mut bytes).expect("unacknowledged bytes stay in the log");
        let data = Data { channel: self.channel, packet: self.next_packet, offset, bytes: &bytes };
        let (frame, checked) = (Frame::Data(data), self.config.checked);
        match padded {
            Some(len) => frame.encode_padded(checked, len, out),
            None => frame.encode(checked, out),
        }
    }

    fn record(&mut self, now: Micros, answer: &AnswerLog, range: &Range<u64>, wire_bytes: u64) {
        self.path.on_sent(self.next_packet, now, wire_bytes);
        self.next_packet += 1;
        self.times.last_send = Some(now);
        self.times.probed_at = None;
        self.note_sent(now, answer, range);
    }

    fn note_sent(&mut self, now: Micros, answer: &AnswerLog, range: &Range<u64>) {
        if self.progress.on_sent(now, range) {
            self.times.last_new_text = Some(now);
            self.times.unsent_since = (range.end < answer.log().head()).then_some(now);
        }
    }

    fn suspend_at(&self) -> Option<Micros> {
        let sent = self.progress.unacked_since()?;
        let active = self.state == SenderState::Active;
        active.then(|| self.times.last_heard.max(sent) + self.config.suspend_after)
    }
}
