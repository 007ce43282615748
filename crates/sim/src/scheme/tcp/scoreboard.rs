//! Outstanding segments, those of them that have arrived, and those that RACK considers lost (RFC
//! 8985, section 6).

use std::collections::VecDeque;

use super::super::packet::{SelectiveAck, Token};

/// Maximum reordering window, in quarters of a round trip (Linux's limit is 255; the window never
/// exceeds srtt in any case).
const MAX_STEPS: u32 = 255;
/// Recoveries after which the reordering window is reset to its minimum (RFC 8985, section 6.2).
const STEPS_LAST_RECOVERIES: u32 = 16;

/// Tokens that were sent together.
#[derive(Debug)]
pub(super) struct Segment {
    tokens: Vec<Token>,
    /// Time of the latest transmission.
    pub(super) sent_us: u64,
    is_sacked: bool,
    is_lost: bool,
    /// True if the latest transmission is a retransmission that is in flight.
    is_retransmitted: bool,
    was_retransmitted: bool,
}

impl Segment {
    pub(super) fn new(tokens: Vec<Token>, sent_us: u64) -> Self {
        Self {
            tokens,
            sent_us,
            is_sacked: false,
            is_lost: false,
            is_retransmitted: false,
            was_retransmitted: false,
        }
    }

    /// Returns the number of its first token.
    pub(super) fn first(&self) -> u32 {
        self.tokens[0].index
    }

    fn end(&self) -> u32 {
        self.first() + self.tokens.len() as u32
    }

    fn bytes(&self) -> usize {
        self.tokens.iter().map(|token| token.text.len()).sum()
    }
}

/// Effect of an acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Acked {
    /// Number of segments acknowledged for the first time.
    pub(super) delivered: u32,
    /// True if the cumulative acknowledgement has advanced.
    pub(super) advanced: bool,
}

/// Result of [`Scoreboard::detect_lost`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    pub(super) lost: u32,
    /// Number of the lost segments that had been retransmitted.
    pub(super) retransmissions: u32,
    /// Time at which the remaining candidates are lost unless acknowledged.
    pub(super) next_us: Option<u64>,
}

/// Most recently sent transmission that was delivered (RFC 8985, section 6.2).
#[derive(Debug, Clone, Copy)]
struct Rack {
    sent_us: u64,
    end: u32,
    rtt_us: u64,
}

/// The outstanding segments in order.
#[derive(Debug)]
pub(super) struct Scoreboard {
    segments: VecDeque<Segment>,
    acked_below: u32,
    highest_sacked: u32,
    rack: Option<Rack>,
    min_rtt_us: u64,
    reordering_seen: bool,
    steps: u32,
    /// Recoveries until `steps` is reset to 1, and the token that must be acknowledged before the
    /// next D-SACK counts.
    steps_last: u32,
    steps_since: u32,
    /// Send time of the first retransmission of this repair; retransmissions of it; and those known
    /// to be superfluous.
    repair_us: Option<u64>,
    repairs: u32,
    undone: u32,
}

impl Scoreboard {
    pub(super) fn new() -> Self {
        Self {
            segments: VecDeque::new(),
            acked_below: 0,
            highest_sacked: 0,
            rack: None,
            min_rtt_us: u64::MAX,
            reordering_seen: false,
            steps: 1,
            steps_last: 0,
            steps_since: 0,
            repair_us: None,
            repairs: 0,
            undone: 0,
        }
    }

    /// Returns the oldest outstanding segment.
    pub(super) fn first(&self) -> Option<&Segment> {
        self.segments.front()
    }

    /// Returns the number of the first token of the newest segment.
    pub(super) fn last(&self) -> Option<u32> {
        self.segments.back().map(Segment::first)
    }

    /// Returns the number of outstanding segments, including those that have arrived out of order.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn has_sacked(&self) -> bool {
        self.segments.iter().any(|segment| segment.is_sacked)
    }

    /// Returns the number below which all tokens are acknowledged.
    pub(super) fn acked_below(&self) -> u32 {
        self.acked_below
    }

    /// Returns the number of segments in flight, as far as is known.
    pub(super) fn in_flight(&self) -> u32 {
        let under_way = |segment: &&Segment| {
            !segment.is_sacked && (!segment.is_lost || segment.is_retransmitted)
        };
        self.segments.iter().filter(under_way).count() as u32
    }

    pub(super) fn push(&mut self, segment: Segment) {
        self.segments.push_back(segment);
    }

    /// Returns the number of the first token of the first segment to retransmit.
    pub(super) fn first_lost(&self) -> Option<u32> {
        let due = |segment: &&Segment| segment.is_lost && !segment.is_retransmitted;
        self.segments.iter().find(due).map(Segment::first)
    }

    /// Records an acknowledgement.
    pub(super) fn acknowledge(&mut self, now_us: u64, ack: &SelectiveAck) -> Acked {
        let mut acked = Acked::default();
        if ack.duplicate {
            self.on_duplicate();
        }
        let covers = |segment: &Segment| {
            let inside =
                |b: &std::ops::Range<u32>| b.start <= segment.first() && segment.end() <= b.end;
            segment.end() <= ack.next || ack.blocks.iter().any(inside)
        };
        for index in 0..self.segments.len() {
            let segment = &self.segments[index];
            if segment.is_sacked || !covers(segment) {
                continue;
            }
            acked.delivered += 1;
            let (end, sent_us) = (segment.end(), segment.sent_us);
            let again = segment.was_retransmitted;
            if !again && end <= self.highest_sacked {
                self.reordering_seen = true;
            }
            self.highest_sacked = self.highest_sacked.max(end);
            self.advance(now_us, sent_us, end, again);
            let segment = &mut self.segments[index];
            segment.is_sacked = true;
            segment.is_lost = false;
            segment.is_retransmitted = false;
        }
        while self.segments.front().is_some_and(|segment| segment.end() <= ack.next) {
            self.segments.pop_front();
        }
        if ack.next > self.acked_below {
            self.acked_below = ack.next;
            acked.advanced = true;
        }
        acked
    }

    /// Advances the latest delivered transmission (RFC 8985, section 6.2, step 2).
    fn advance(&mut self, now_us: u64, sent_us: u64, end: u32, again: bool) {
        let rtt_us = now_us - sent_us;
        if again && rtt_us < self.min_rtt_us {
            // It may be the first transmission that has arrived.
            return;
        }
        self.min_rtt_us = self.min_rtt_us.min(rtt_us);
        if self.rack.is_none_or(|rack| (rack.sent_us, rack.end) < (sent_us, end)) {
            self.rack = Some(Rack { sent_us, end, rtt_us });
        }
    }

    /// Handles a superfluous retransmission (RFC 8985, section 6.2, step 4: once per round trip).
    fn on_duplicate(&mut self) {
        self.undone += 1;
        if self.acked_below >= self.steps_since {
            self.steps = (self.steps + 1).min(MAX_STEPS);
            self.steps_last = STEPS_LAST_RECOVERIES;
            self.steps_since = self.segments.back().map_or(self.acked_below, Segment::end);
        }
    }

    /// Returns the reordering window: the time for which an earlier segment may still arrive after
    /// a later one was delivered (`tcp_rack_reo_wnd`).
    fn reordering_us(&self, srtt_us: f64, repairing: bool) -> u64 {
        const DUPLICATE_THRESHOLD: usize = 3;
        if !self.reordering_seen {
            let sacked = self.segments.iter().filter(|segment| segment.is_sacked).count();
            if repairing || sacked >= DUPLICATE_THRESHOLD {
                return 0;
            }
        }
        let quarter_us = if self.min_rtt_us == u64::MAX { 0 } else { self.min_rtt_us / 4 };
        (quarter_us * u64::from(self.steps)).min(srtt_us as u64)
    }

    /// Detects lost segments (RFC 8985, section 6.2, step 5).
    pub(super) fn detect_lost(&mut self, now_us: u64, srtt_us: f64, repairing: bool) -> Found {
        let mut found = Found::default();
        let Some(rack) = self.rack else { return found };
        let wait_us = rack.rtt_us + self.reordering_us(srtt_us, repairing);
        for segment in &mut self.segments {
            let open = !segment.is_sacked && (!segment.is_lost || segment.is_retransmitted);
            if !open || (segment.sent_us, segment.end()) >= (rack.sent_us, rack.end) {
                continue;
            }
            let due_us = segment.sent_us + wait_us;
            if due_us > now_us {
                found.next_us = Some(found.next_us.map_or(due_us, |next: u64| next.max(due_us)));
                continue;
            }
            found.lost += 1;
            found.retransmissions += u32::from(segment.is_retransmitted);
            segment.is_lost = true;
            segment.is_retransmitted = false;
        }
        found
    }

    /// Handles a retransmission timeout: marks the first segment and all that were sent long enough
    /// ago as lost.
    pub(super) fn time_out(&mut self, now_us: u64, srtt_us: f64) {
        let rtt_us = self.rack.map_or(srtt_us as u64, |rack| rack.rtt_us);
        let wait_us = rtt_us + self.reordering_us(srtt_us, true);
        for (index, segment) in self.segments.iter_mut().enumerate() {
            if !segment.is_sacked && (index == 0 || segment.sent_us + wait_us <= now_us) {
                segment.is_lost = true;
                segment.is_retransmitted = false;
            }
        }
    }

    /// Begins the repair of losses, whose retransmissions may turn out to be superfluous.
    pub(super) fn begin_repair(&mut self) {
        self.repair_us = None;
        (self.repairs, self.undone) = (0, 0);
        self.steps_last = self.steps_last.saturating_sub(1);
        if self.steps_last == 0 {
            self.steps = 1;
        }
    }

    /// Returns true if an acknowledgement that echoes a packet sent at `echoed_us` shows that the
    /// first retransmission was superfluous (RFC 3522).
    pub(super) fn was_in_vain(&self, echoed_us: u64) -> bool {
        self.repair_us.is_some_and(|repair_us| echoed_us < repair_us)
    }

    /// Returns true if every retransmission of this repair is known to be superfluous.
    pub(super) fn all_undone(&self) -> bool {
        self.repairs > 0 && self.undone >= self.repairs
    }

    /// Clears all losses: they turned out to be spurious.
    pub(super) fn forget_losses(&mut self) {
        for segment in &mut self.segments {
            segment.is_lost = false;
        }
        self.begin_repair();
    }

    /// Retransmits the segment that starts with token `first`, joined with lost neighbours as long
    /// as one packet has room for that many bytes and tokens (`tcp_retrans_try_collapse`).
    pub(super) fn resend(&mut self, now_us: u64, first: u32, room: (usize, usize)) -> Vec<Token> {
        let at = self.segments.iter().position(|segment| segment.first() == first);
        let at = at.expect("only outstanding segments are sent again");
        while let Some(next) = self.segments.get(at + 1) {
            let this = &self.segments[at];
            let fits = this.bytes() + next.bytes() <= room.0
                && this.tokens.len() + next.tokens.len() <= room.1;
            if !fits || next.is_sacked || next.is_retransmitted {
                break;
            }
            let next = self.segments.remove(at + 1).expect("it is there");
            self.segments[at].tokens.extend(next.tokens);
        }
        let segment = &mut self.segments[at];
        segment.sent_us = now_us;
        segment.is_retransmitted = true;
        segment.was_retransmitted = true;
        self.repair_us.get_or_insert(now_us);
        self.repairs += 1;
        segment.tokens.clone()
    }
}
