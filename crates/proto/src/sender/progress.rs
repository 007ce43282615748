//! What a sender knows about the log, its packets and the reader.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use crate::Micros;
use crate::frame::Ack;

/// Entries in [`LogProgress::first_sent`].
const MAX_FIRST_SENT: usize = 256;

/// How far the log was sent and acknowledged. All figures are log offsets.
#[derive(Debug, Clone, Default)]
pub(super) struct LogProgress {
    /// Everything below has arrived on the path in use.
    pub cumulative: u64,
    /// Everything below was sent on this path, as far as that still counts.
    pub sent_head: u64,
    /// Everything below was sent at some time: no reader can have more.
    pub sent_most: u64,
    /// Where the next repetition begins if not everything fits one packet: repetitions take turns
    /// from the oldest byte to the newest.
    pub round_robin: u64,
    /// What the reader has beyond `cumulative`, as its newest acknowledgement reports.
    pub held: Vec<Range<u64>>,
    /// When the bytes below an offset first left: an entry for each packet with new text.
    first_sent: VecDeque<(u64, Micros)>,
}

impl LogProgress {
    /// Sent bytes that are not acknowledged.
    pub fn unacked_bytes(&self) -> u64 {
        self.sent_head - self.cumulative
    }

    /// When the oldest unacknowledged byte first left.
    pub fn unacked_since(&self) -> Option<Micros> {
        self.first_sent.front().map(|(_, at)| *at)
    }

    /// Starts again at `offset`, on a new path.
    pub fn restart(&mut self, offset: u64) {
        (self.cumulative, self.sent_head, self.round_robin) = (offset, offset, offset);
        self.sent_most = self.sent_most.max(offset); // another transport may have brought it
        self.first_sent.clear();
        self.held.clear();
    }

    /// Everything below `cumulative` has arrived.
    pub fn on_acknowledged(&mut self, cumulative: u64) {
        self.cumulative = self.cumulative.max(cumulative);
        self.sent_head = self.sent_head.max(self.cumulative);
        self.round_robin = self.round_robin.max(self.cumulative);
        while self.first_sent.front().is_some_and(|(end, _)| *end <= self.cumulative) {
            self.first_sent.pop_front();
        }
    }

    /// A packet with `range` leaves; returns whether it carries new text.
    pub fn on_sent(&mut self, now: Micros, range: &Range<u64>) -> bool {
        let is_new = range.end > self.sent_head;
        if is_new {
            self.sent_head = range.end;
            self.sent_most = self.sent_most.max(range.end);
            self.note_first_sent(range.end, now);
        }
        self.round_robin = if range.end < self.sent_head { range.end } else { self.cumulative };
        is_new
    }

    /// What was sent and not acknowledged counts as never sent.
    pub fn forget_sent(&mut self) {
        (self.sent_head, self.round_robin) = (self.cumulative, self.cumulative);
        self.first_sent.clear();
    }

    fn note_first_sent(&mut self, end: u64, now: Micros) {
        if self.first_sent.len() < MAX_FIRST_SENT {
            self.first_sent.push_back((end, now));
        } else if let Some(last) = self.first_sent.back_mut() {
            // Merged with the older time: what is overdue is asked of the oldest byte.
            last.0 = end;
        }
    }
}

/// The lengths that the latest frames needed, padded to a step.
///
/// Where what is unacknowledged swings around the end of a step, one token more or less would
/// decide on the length of every other frame. So a frame is a step longer than it needs while
/// another one among the latest needed that.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentLengths {
    needed: VecDeque<usize>,
}

impl RecentLengths {
    /// A frame leaves that needs `len` bytes; `memory` of them are remembered.
    pub fn note(&mut self, len: usize, memory: usize) {
        self.needed.push_back(len);
        while self.needed.len() > memory {
            self.needed.pop_front();
        }
    }

    /// The length of a frame that needs `len`: at most a step more.
    pub fn steadied(&self, len: usize, step: usize) -> usize {
        let longest = self.needed.iter().copied().max().unwrap_or(0);
        len.max(longest.min(len + step))
    }
}

/// Times of what the sender did and heard.
#[derive(Debug, Clone)]
pub(super) struct SendTimes {
    /// The path in use began.
    pub opened: Micros,
    /// The last packet left on this path, and the last with new text.
    pub last_send: Option<Micros>,
    pub last_new_text: Option<Micros>,
    /// The oldest unsent text was generated.
    pub unsent_since: Option<Micros>,
    /// The reader asked for a sign of life that it has not got yet.
    pub probed_at: Option<Micros>,
    /// The last valid acknowledgement arrived.
    pub last_heard: Micros,
}

impl SendTimes {
    pub fn new(now: Micros) -> Self {
        Self {
            opened: now,
            last_send: None,
            last_new_text: None,
            unsent_since: None,
            probed_at: None,
            last_heard: now,
        }
    }
}

/// The reader's state, from its newest acknowledgement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// Log offset up to which it has shown the answer.
    pub shown: u64,
    /// Log bytes per second at which it shows text; 0 if it shows text as it comes.
    pub pace_bytes_per_s: u64,
    /// Its page is hidden.
    pub hidden: bool,
    /// When it will have shown all that it has. At pace 0: when the acknowledgement arrived.
    pub shows_until: Micros,
}

impl ReaderState {
    /// What `ack` reports at `now`.
    pub(super) fn of(now: Micros, ack: &Ack) -> Self {
        let left_micros = ack.unshown.saturating_mul(1_000_000).checked_div(ack.pace).unwrap_or(0);
        Self {
            shown: ack.cumulative - ack.unshown,
            pace_bytes_per_s: ack.pace,
            hidden: ack.hidden,
            shows_until: now + Micros(left_micros),
        }
    }
}
