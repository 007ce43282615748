//! TCP as in Linux, which chat services use for streaming today: the sender of one connection.
//!
//! RACK detects losses and TLP probes for them (RFC 8985), with the retransmission timer of RFC
//! 6298 behind them, which never waits less than srtt + 200 ms. The window is CUBIC's (RFC 9438)
//! with proportional rate reduction during loss repair (RFC 6937). As in Linux, tokens that wait
//! for the window are sent in one segment, and adjacent lost segments are retransmitted as one.
//!
//! Left out, in TCP's favour: delayed acknowledgements, the receiver's window, pacing, and the
//! overhead of server-sent events, of which a segment would hold about seven.

use std::collections::VecDeque;
use std::ops::Range;

use self::rtt::RttEstimate;
use self::scoreboard::{Acked, Found, Scoreboard, Segment};
pub use self::window::TcpControl;
use self::window::Window;
use super::ending::FinishMark;
use super::packet::{self, MAX_TEXT_BYTES, SelectiveAck, Token};
use super::{DeliveryProgress, SenderEnd, Volume};

mod rtt;
mod scoreboard;
mod window;

/// Linux's addition to a probe's wait when one segment is in flight, for a receiver that delays its
/// acknowledgement (RFC 8985, section 7.2, as in `tcp_schedule_loss_probe`).
const MAX_ACK_DELAY_US: f64 = 200_000.0;
/// Linux's addition when more segments are in flight: two ticks of its clock.
const PROBE_MARGIN_US: f64 = 2_000.0;
/// Maximum tokens in a segment: with their heads they fit into two kilobytes, the buffer size of
/// code that reads packets from sockets.
const MAX_TOKENS: usize = 160;
/// Maximum doublings of the retransmission timer: sessions end long before more would matter.
const MAX_BACKOFF: u32 = 7;

/// Purpose of a connection's single timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimerKind {
    /// Reordering timer: a segment not acknowledged by then is lost (RFC 8985, section 6.3).
    Reordering,
    /// A tail loss probe (RFC 8985, section 7).
    Probe,
    /// Retransmission (RFC 6298).
    Retransmission,
}

/// Linux's states of congestion control; CWR, which takes no time here, is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No loss is known. Linux calls it Disorder while something is selectively acknowledged.
    Open,
    /// Fast recovery until everything below the number is acknowledged.
    Recovery(u32),
    /// After a timeout, until everything below the number is acknowledged.
    Loss(u32),
}

/// The server's end of a TCP connection.
#[derive(Debug)]
pub struct TcpSender {
    board: Scoreboard,
    window: Window,
    rtt: RttEstimate,
    unsent: VecDeque<Token>,
    phase: Phase,
    timer: Option<(TimerKind, u64)>,
    backoff: u32,
    /// Number below which everything was sent before the probe, and whether the probe was a
    /// retransmission.
    probe: Option<(u32, bool)>,
    probe_due: bool,
    /// True if the timer has fired: the first segment is sent regardless of the window.
    retransmission_due: bool,
    /// Send time of each packet by number, for RTT samples as from TCP's timestamps.
    sent: Vec<u64>,
    next_index: u32,
    ending: FinishMark,
    volume: Volume,
}

impl TcpSender {
    /// Creates a sender whose handshake has measured `rtt_us`.
    pub fn new(rtt_us: u64, control: TcpControl) -> Self {
        Self {
            board: Scoreboard::new(),
            window: Window::new(control),
            rtt: RttEstimate::new(rtt_us),
            unsent: VecDeque::new(),
            phase: Phase::Open,
            timer: None,
            backoff: 0,
            probe: None,
            probe_due: false,
            retransmission_due: false,
            sent: Vec::new(),
            next_index: 0,
            ending: FinishMark::default(),
            volume: Volume::default(),
        }
    }

    fn rto_us(&self) -> u64 {
        self.rtt.rto_us() << self.backoff.min(MAX_BACKOFF)
    }

    /// Sets the timer for a probe, or for retransmission if none is due (`tcp_schedule_loss_probe`,
    /// `tcp_rearm_rto`). `advanced` is true after an acknowledgement of new data.
    fn arm(&mut self, now_us: u64, advanced: bool) {
        let Some(first) = self.board.first() else {
            self.timer = None;
            return;
        };
        let since_first_us = (first.sent_us + self.rto_us()).max(now_us + 1);
        // Anything selectively acknowledged shows a loss without a probe.
        if self.phase != Phase::Open || self.board.has_sacked() {
            let pending = self.timer.is_some_and(|(kind, _)| kind != TimerKind::Retransmission);
            let at_us = if pending { since_first_us } else { now_us + self.rto_us() };
            self.timer = Some((TimerKind::Retransmission, at_us));
            return;
        }
        let margin_us = if self.board.len() == 1 { MAX_ACK_DELAY_US } else { PROBE_MARGIN_US };
        let probe_at_us = now_us + (2.0 * self.rtt.srtt_us + margin_us) as u64;
        let rto_at_us = if advanced { now_us + self.rto_us() } else { since_first_us };
        self.timer = Some((TimerKind::Probe, probe_at_us.min(rto_at_us)));
    }

    /// Detects losses by RACK; begins recovery if there are any, or sets a timer if there may be.
    fn detect(&mut self, now_us: u64) -> Found {
        let repairing = self.phase != Phase::Open;
        let found = self.board.detect_lost(now_us, self.rtt.srtt_us, repairing);
        if let Some(at_us) = found.next_us {
            self.timer = Some((TimerKind::Reordering, at_us));
        }
        let again = found.retransmissions > 0 && matches!(self.phase, Phase::Loss(_));
        if found.lost > 0 && (self.phase == Phase::Open || again) {
            self.phase = Phase::Recovery(self.next_unsent());
            self.board.begin_repair();
            self.window.begin_recovery(self.next_unsent());
        }
        found
    }

    /// Returns the number of the first token that has never been sent.
    fn next_unsent(&self) -> u32 {
        self.next_index - self.unsent.len() as u32
    }

    /// Handles a retransmission timeout (RFC 6298, from section 5.4 on, and `tcp_enter_loss`).
    fn time_out(&mut self, now_us: u64) {
        if self.board.first().is_none() {
            self.timer = None;
            return;
        }
        let began = match self.phase {
            Phase::Open => true,
            Phase::Recovery(until) => self.board.acked_below() >= until,
            Phase::Loss(until) => self.backoff == 0 || self.board.acked_below() >= until,
        };
        self.board.time_out(now_us, self.rtt.srtt_us);
        self.window.time_out(began, self.board.in_flight());
        if began {
            self.board.begin_repair();
        }
        self.phase = Phase::Loss(self.next_unsent());
        self.probe = None;
        self.backoff += 1;
        self.retransmission_due = true;
        self.timer = Some((TimerKind::Retransmission, now_us + self.rto_us()));
    }

    /// Ends recovery once everything sent before it began has arrived.
    fn leave_repair(&mut self, spurious: bool) {
        let (until, recovery) = match self.phase {
            Phase::Open => return,
            Phase::Recovery(until) => (until, true),
            Phase::Loss(until) => (until, false),
        };
        if spurious {
            // What was sent again had arrived all along (RFC 3522, and D-SACK).
            self.window.undo();
            self.board.forget_losses();
            self.phase = Phase::Open;
        } else if self.board.acked_below() >= until {
            match recovery {
                true => self.window.end_recovery(),
                false => self.window.end_loss(),
            }
            self.phase = Phase::Open;
        }
    }

    /// Checks whether a probe has repaired a loss that was not detected otherwise (RFC 8985,
    /// section 7.4).
    fn check_probe(&mut self, ack: &SelectiveAck, advanced: bool) {
        let Some((until, retransmitted)) = self.probe else { return };
        if !retransmitted {
            if ack.next >= until {
                self.probe = None;
            }
        } else if ack.duplicate {
            self.probe = None;
        } else if ack.next > until || ack.next == until && advanced {
            self.probe = None;
            if self.phase == Phase::Open {
                self.window.begin_recovery(self.next_unsent());
                self.window.end_recovery();
            }
        }
    }

    fn put(&mut self, now_us: u64, out: &mut Vec<u8>, tokens: &[Token]) {
        packet::put_number(out, self.sent.len() as u32);
        for token in tokens {
            packet::put_token(out, token);
            self.volume.sent += token.text.len() as u64;
        }
        self.sent.push(now_us);
        self.window.on_sent();
    }

    fn resend(&mut self, now_us: u64, first: u32, out: &mut Vec<u8>) {
        let tokens = self.board.resend(now_us, first, (MAX_TEXT_BYTES, MAX_TOKENS));
        self.put(now_us, out, &tokens);
    }

    /// Sends the waiting tokens, up to one segment.
    fn send_new(&mut self, now_us: u64, out: &mut Vec<u8>) {
        let mut tokens: Vec<Token> = Vec::new();
        let mut bytes = 0;
        while let Some(token) = self.unsent.front() {
            bytes += token.text.len();
            let is_full = bytes > MAX_TEXT_BYTES || tokens.len() >= MAX_TOKENS;
            if !tokens.is_empty() && is_full {
                break;
            }
            tokens.extend(self.unsent.pop_front());
        }
        self.put(now_us, out, &tokens);
        let idle = self.board.first().is_none();
        self.board.push(Segment::new(tokens, now_us));
        let probing = matches!(self.timer, Some((TimerKind::Probe, _)));
        if idle || probing || self.phase == Phase::Open && !self.board.has_sacked() {
            self.arm(now_us, false);
        }
        let (in_flight, out_now) = (self.board.in_flight(), self.board.len() as u32);
        self.window.note_use(in_flight, out_now, self.board.acked_below(), self.next_unsent());
    }

    fn send_probe(&mut self, now_us: u64, out: &mut Vec<u8>) {
        let until = self.next_unsent();
        if self.unsent.is_empty() {
            let last = self.board.last().expect("a probe has something to probe for");
            self.resend(now_us, last, out);
            self.probe = Some((until, true));
        } else {
            self.send_new(now_us, out);
            self.probe = Some((self.next_unsent(), false));
        }
        self.timer = Some((TimerKind::Retransmission, now_us + self.rto_us()));
    }
}

impl SenderEnd for TcpSender {
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool) {
        self.volume.once += text.len() as u64;
        self.unsent.push_back(Token { index: self.next_index, last, text: text.to_vec() });
        self.next_index += 1;
        if last {
            self.ending.end(now_us);
        }
    }

    fn handle_packet(&mut self, now_us: u64, packet: &[u8]) {
        let Some(ack) = SelectiveAck::read(packet) else { return };
        let Some(&echoed_us) = self.sent.get(ack.number as usize) else { return };
        if ack.next > self.next_unsent() {
            return;
        }
        let Acked { delivered, advanced } = self.board.acknowledge(now_us, &ack);
        if delivered > 0 {
            // Each transmission has its own number, so a retransmission gives a valid sample too,
            // as TCP's timestamps allow.
            self.rtt.sample((now_us - echoed_us) as f64);
        }
        if advanced {
            self.backoff = 0;
            self.window.note_acked(ack.next);
        }
        self.check_probe(&ack, advanced);
        let spurious = advanced && self.board.was_in_vain(echoed_us) || self.board.all_undone();
        self.leave_repair(spurious);
        let found = self.detect(now_us);
        if advanced && found.next_us.is_none() {
            self.arm(now_us, true);
        }
        let in_flight = self.board.in_flight();
        match self.phase {
            Phase::Recovery(_) => self.window.reduce(in_flight, delivered, found.lost, advanced),
            Phase::Open | Phase::Loss(_) => self.window.grow(now_us, delivered),
        }
    }

    fn handle_timeout(&mut self, now_us: u64) {
        self.ending.handle_timeout(now_us);
        let Some((kind, at_us)) = self.timer else { return };
        if at_us > now_us {
            return;
        }
        match kind {
            TimerKind::Reordering => {
                let found = self.detect(now_us);
                if found.lost > 0 && matches!(self.phase, Phase::Recovery(_)) {
                    self.window.reduce(self.board.in_flight(), 1, found.lost, false);
                }
                if found.next_us.is_none() {
                    self.arm(now_us, false);
                }
            }
            TimerKind::Probe if self.probe.is_none() && self.board.first().is_some() => {
                self.probe_due = true;
                self.timer = None;
            }
            TimerKind::Probe => {
                let sent_us = self.board.first().map_or(now_us, |first| first.sent_us);
                let at_us = (sent_us + self.rto_us()).max(now_us + 1);
                self.timer = Some((TimerKind::Retransmission, at_us));
            }
            TimerKind::Retransmission => self.time_out(now_us),
        }
    }

    fn poll_transmit(&mut self, now_us: u64, out: &mut Vec<u8>) -> bool {
        if std::mem::take(&mut self.probe_due) && self.board.first().is_some() {
            self.send_probe(now_us, out);
            return true;
        }
        let forced = std::mem::take(&mut self.retransmission_due);
        let has_room = self.board.in_flight() < self.window.segments();
        if self.phase != Phase::Open
            && (forced || has_room)
            && let Some(first) = self.board.first_lost()
        {
            let is_head = self.board.first().is_some_and(|head| head.first() == first);
            self.resend(now_us, first, out);
            if is_head {
                self.timer = Some((TimerKind::Retransmission, now_us + self.rto_us()));
            }
            return true;
        }
        if self.unsent.is_empty() {
            return false;
        }
        if !has_room {
            self.window.note_blocked();
            return false;
        }
        self.send_new(now_us, out);
        true
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.progress() != DeliveryProgress::Active {
            return None;
        }
        let (_, at_us) = self.timer?;
        Some(self.ending.or_give_up(at_us))
    }

    fn progress(&self) -> DeliveryProgress {
        self.ending.progress(self.board.first().is_none() && self.unsent.is_empty())
    }

    fn volume(&self) -> Volume {
        self.volume
    }

    fn carried(&self, packet: &[u8]) -> Vec<Range<usize>> {
        packet::token_runs(packet)
    }
}

#[cfg(test)]
mod tests {
    use loquent_proto::Playout;

    use super::super::ReceiverEnd;
    use super::super::packet::TokenReceiver;
    use super::*;

    const RTT_US: u64 = 100_000;

    /// A sender, and a receiver half a round trip away. Packets sent while `is_lossy` are lost.
    struct Path {
        sender: TcpSender,
        receiver: TokenReceiver,
        now_us: u64,
        /// Packets in flight: arrival time, whether bound for the sender, and contents.
        under_way: Vec<(u64, bool, Vec<u8>)>,
        /// Send times of packets.
        sent_us: Vec<u64>,
        is_lossy: bool,
    }

    impl Path {
        fn new(control: TcpControl) -> Self {
            Self {
                sender: TcpSender::new(RTT_US, control),
                receiver: TokenReceiver::selective(Playout::default()),
                now_us: 0,
                under_way: Vec::new(),
                sent_us: Vec::new(),
                is_lossy: false,
            }
        }

        fn token(&mut self) {
            self.sender.handle_token(self.now_us, b" word", false);
            self.transmit();
        }

        fn transmit(&mut self) {
            let mut packet = Vec::new();
            let at_us = self.now_us + RTT_US / 2;
            while self.sender.poll_transmit(self.now_us, &mut packet) {
                self.sent_us.push(self.now_us);
                let packet = std::mem::take(&mut packet);
                if !self.is_lossy {
                    self.under_way.push((at_us, false, packet));
                }
            }
            while self.receiver.poll_transmit(self.now_us, &mut packet) {
                self.under_way.push((at_us, true, std::mem::take(&mut packet)));
            }
        }

        /// Advances the time to `until_ms`.
        fn run_until(&mut self, until_ms: u64) {
            let until_us = until_ms * 1_000;
            loop {
                let arrival_us = self.under_way.iter().map(|packet| packet.0).min();
                let timer_us = self.sender.poll_timeout();
                let next_us = arrival_us.into_iter().chain(timer_us).min();
                let Some(next_us) = next_us.filter(|next_us| *next_us <= until_us) else { break };
                self.now_us = self.now_us.max(next_us);
                let now_us = self.now_us;
                let (due, later) = self.under_way.drain(..).partition(|packet| packet.0 <= now_us);
                self.under_way = later;
                let due: Vec<(u64, bool, Vec<u8>)> = due;
                for (_, is_ack, packet) in due {
                    match is_ack {
                        true => self.sender.handle_packet(now_us, &packet),
                        false => self.receiver.handle_packet(now_us, &packet),
                    }
                }
                if self.sender.poll_timeout().is_some_and(|at_us| at_us <= now_us) {
                    self.sender.handle_timeout(now_us);
                }
                self.transmit();
            }
            self.now_us = until_us;
        }

        /// Streams a token every 100 ms from 0 on; those in `lost` are lost.
        fn stream(control: TcpControl, tokens: u64, lost: Range<u64>) -> Self {
            let mut path = Self::new(control);
            for index in 0..tokens {
                path.run_until(index * 100);
                path.is_lossy = lost.contains(&index);
                path.token();
            }
            path
        }
    }

    /// RFC 8985, section 6: one later acknowledgement is enough, since more than a quarter of a
    /// round trip lies between the tokens.
    #[test]
    fn a_lost_segment_leaves_again_with_the_first_later_acknowledgement() {
        let mut path = Path::stream(TcpControl::Cubic, 4, 1..2);
        path.run_until(410);
        // The token of 200 ms is acknowledged at 300 ms. The one of 300 ms waits a round trip for
        // the window, which recovery has brought down to what was delivered (RFC 6937).
        assert_eq!(path.sent_us, [0, 100_000, 200_000, 300_000, 400_000]);
        path.run_until(1_000);
        assert_eq!(path.receiver.arrived(), 4);
    }

    /// RFC 8985, section 7: if one segment is outstanding, after two round trips and the receiver's
    /// maximum delay, well before the timer and without its back-off.
    #[test]
    fn the_last_segment_is_probed_for() {
        let mut path = Path::stream(TcpControl::Cubic, 2, 1..2);
        path.is_lossy = false;
        path.run_until(1_000);
        // Never later than the timer for retransmission: srtt + 200 ms.
        assert_eq!(path.sent_us, [0, 100_000, 400_000]);
        assert_eq!(path.receiver.arrived(), 2);
    }

    #[test]
    fn two_outstanding_segments_are_probed_for_after_two_round_trips() {
        let mut path = Path::new(TcpControl::Cubic);
        path.is_lossy = true;
        path.token();
        path.run_until(10);
        path.token();
        path.run_until(250);
        // 10 ms + 2 srtt + 2 ms: the newest segment, not the oldest.
        assert_eq!(path.sent_us, [0, 10_000, 212_000]);
    }

    #[test]
    fn the_timer_backs_off_for_the_whole_connection() {
        let mut path = Path::stream(TcpControl::Cubic, 1, 0..1);
        path.run_until(10_000);
        let gaps: Vec<u64> = path.sent_us.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let rto_us = RTT_US + 200_000;
        // The probe, and from it on the timer, twice as long each time.
        assert_eq!(gaps[..4], [rto_us, rto_us, 2 * rto_us, 4 * rto_us], "{gaps:?}");
    }

    /// The tokens of a long loss wait for the window after the timeout and are sent together.
    #[test]
    fn after_a_timeout_one_segment_carries_what_was_lost() {
        let mut path = Path::stream(TcpControl::Cubic, 20, 2..16);
        path.is_lossy = false;
        path.run_until(8_000);
        assert_eq!(path.receiver.arrived(), 20);
        assert!(path.sent_us.len() < 25, "{:?}", path.sent_us);
    }

    #[test]
    fn every_control_delivers_everything() {
        for control in [TcpControl::Cubic, TcpControl::Bbr, TcpControl::None] {
            let mut path = Path::stream(control, 60, 7..19);
            path.is_lossy = false;
            path.run_until(30_000);
            assert_eq!(path.receiver.arrived(), 60, "{control:?}");
            assert!(path.sender.board.first().is_none(), "{control:?}");
        }
    }

    #[test]
    fn acknowledgements_are_read_back() {
        let ack = SelectiveAck { number: 9, next: 4, duplicate: true, blocks: vec![6..8, 10..11] };
        let mut packet = Vec::new();
        ack.put(&mut packet);
        assert_eq!(SelectiveAck::read(&packet), Some(ack));
        assert_eq!(SelectiveAck::read(&packet[..packet.len() - 1]), None);
        assert_eq!(SelectiveAck::read(&packet[..4]), None);
    }
}
