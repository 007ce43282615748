//! A sender's state of the log, its packets and the reader.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use crate::Micros;
use crate::frame::Ack;

/// Maximum entries in [`LogProgress::first_sent`].
const MAX_FIRST_SENT: usize = 256;

/// Sent and acknowledged parts of the log. All figures are log offsets.
#[derive(Debug, Clone, Default)]
pub(super) struct LogProgress {
    /// Offset below which everything has arrived on the path in use.
    pub cumulative: u64,
    /// Offset below which everything was sent on this path, as far as that still counts.
    pub sent_head: u64,
    /// Offset below which everything was sent at some time: no reader can have more.
    pub sent_most: u64,
    /// Start of the next repetition if not everything fits one packet: repetitions take turns from
    /// the oldest byte to the newest.
    pub round_robin: u64,
    /// Ranges that the reader has beyond `cumulative`, as its newest acknowledgement reports.
    pub held: Vec<Range<u64>>,
    /// (offset, when the bytes below it were first sent): one entry per packet with new text.
    first_sent: VecDeque<(u64, Micros)>,
}

impl LogProgress {
    /// Sent bytes that are not acknowledged.
    pub fn unacked_bytes(&self) -> u64 {
        self.sent_head - self.cumulative
    }

    /// When the oldest unacknowledged byte was first sent.
    pub fn unacked_since(&self) -> Option<Micros> {
        self.first_sent.front().map(|(_, at)| *at)
    }

    /// Restarts at `offset`, on a new path.
    pub fn restart(&mut self, offset: u64) {
        (self.cumulative, self.sent_head, self.round_robin) = (offset, offset, offset);
        self.sent_most = self.sent_most.max(offset); // another transport may have brought it
        self.first_sent.clear();
        self.held.clear();
    }

    /// Notes that everything below `cumulative` has arrived.
    pub fn on_acknowledged(&mut self, cumulative: u64) {
        self.cumulative = self.cumulative.max(cumulative);
        self.sent_head = self.sent_head.max(self.cumulative);
        self.round_robin = self.round_robin.max(self.cumulative);
        while self.first_sent.front().is_some_and(|(end, _)| *end <= self.cumulative) {
            self.first_sent.pop_front();
        }
    }

    /// Notes that a packet with `range` is sent; returns true if it has new text.
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

    /// Treats sent but unacknowledged bytes as never sent.
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

/// Lengths that the latest frames needed, padded to a step.
///
/// If the unacknowledged bytes swing around the end of a step, one token more or less would decide
/// on the length of every other frame. So a frame is one step longer than needed while another
/// recent one needed that.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentLengths {
    needed: VecDeque<usize>,
}

impl RecentLengths {
    /// Notes that a frame which needs `len` bytes is sent; the latest `memory` lengths are kept.
    pub fn note(&mut self, len: usize, memory: usize) {
        self.needed.push_back(len);
        while self.needed.len() > memory {
            self.needed.pop_front();
        }
    }

    /// Length of a frame that needs `len`: at most one step more.
    pub fn steadied(&self, len: usize, step: usize) -> usize {
        let longest = self.needed.iter().copied().max().unwrap_or(0);
        len.max(longest.min(len + step))
    }
}

/// Times of the sender's actions and of received acknowledgements.
#[derive(Debug, Clone)]
pub(super) struct SendTimes {
    /// When the path in use began.
    pub opened: Micros,
    /// When the last packet was sent on this path, and the last one with new text.
    pub last_send: Option<Micros>,
    pub last_new_text: Option<Micros>,
    /// When the oldest unsent text was generated.
    pub unsent_since: Option<Micros>,
    /// When the reader asked for a sign of life that was not sent yet.
    pub probed_at: Option<Micros>,
    /// When the last valid acknowledgement arrived.
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

/// State of the reader, from its newest acknowledgement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// Log offset up to which the answer was shown.
    pub shown: u64,
    /// Log bytes per second at which text is shown; 0 if it is shown as it arrives.
    pub pace_bytes_per_s: u64,
    /// True if the reader's page is hidden.
    pub hidden: bool,
    /// When all text that the reader has will have been shown. At pace 0: when the acknowledgement
    /// arrived.
    pub shows_until: Micros,
}

impl ReaderState {
    /// State that `ack` reports at `now`.
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
