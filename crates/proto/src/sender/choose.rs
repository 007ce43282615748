//! Selects the log bytes of the next packet: the paragraph after the list in section 8 of
//! `spec/delivery.md`.

use core::ops::Range;

use super::progress::LogProgress;
use super::schedule::{SPARE_BYTES_MIN, Schedule, SendReason};
use crate::Micros;

/// Maximum repeated bytes next to new text while a queue stands or may: each delays the text. On
/// `plans/narrow-links.toml`, full packets fed the queue that they waited in. In padded frames,
/// bytes that replace padding cost nothing.
const QUEUEING_REPEAT_BYTES: u64 = 64;

impl Schedule<'_> {
    /// Returns the bytes for the packet sent for `reason`: everything unacknowledged if it fits,
    /// otherwise a part of it.
    pub fn choose(&self, now: Micros, reason: SendReason) -> Range<u64> {
        match reason {
            SendReason::NewText => self.choose_new_text(),
            SendReason::Repeat | SendReason::ProbeReply => self.choose_repetition(now),
        }
    }

    /// Selects new text, and as much of the preceding bytes as fits.
    fn choose_new_text(&self) -> Range<u64> {
        let (max_bytes, sent_head) = (self.max_log_bytes(), self.progress.sent_head);
        let end = self.head.min(sent_head + max_bytes);
        let is_careful = self.is_queueing() || self.is_blind();
        let before = if is_careful { self.few_beside(end - sent_head) } else { max_bytes };
        let start = end.saturating_sub(max_bytes).max(sent_head.saturating_sub(before));
        self.progress.cumulative.max(start)..end
    }

    /// Repeated bytes sent next to `new_bytes` of new text while a queue stands.
    fn few_beside(&self, new_bytes: u64) -> u64 {
        let unpadded = self.unpadded_bytes(new_bytes + QUEUEING_REPEAT_BYTES);
        unpadded.max(self.room_bytes(new_bytes)) - new_bytes
    }

    /// Selects as many of the unacknowledged bytes as the bucket allows.
    fn choose_repetition(&self, now: Micros) -> Range<u64> {
        let cumulative = self.progress.cumulative;
        let max_bytes = self.max_log_bytes();
        let bytes = max_bytes.min(self.affordable_bytes(now));
        if self.head - cumulative <= bytes {
            cumulative..self.head
        } else if bytes < max_bytes {
            cumulative..cumulative + bytes // a probe, of what would help first
        } else {
            self.next_in_round_robin(bytes)
        }
    }

    /// Half of the bucket's level, so that one large repetition does not prevent all others. While
    /// a queue stands, or may stand on a silent path, only as much as is always worth its headers.
    fn affordable_bytes(&self, now: Micros) -> u64 {
        let level = self.bucket.level(now).saturating_sub(self.cost(self.header_bytes));
        let is_careful = self.is_queueing() || self.is_silent(now) || self.is_blind();
        let generous = if is_careful { 0 } else { level / 2 };
        self.unpadded_bytes(SPARE_BYTES_MIN.max(generous))
    }

    /// Selects the next piece of a round over everything unacknowledged, skipping ranges that the
    /// reader holds.
    fn next_in_round_robin(&self, bytes: u64) -> Range<u64> {
        let LogProgress { cumulative, round_robin, .. } = *self.progress;
        let mut start = if round_robin < self.head { round_robin } else { cumulative };
        for held in &self.progress.held {
            if held.start > start {
                return start..held.start.min(start + bytes);
            }
            start = start.max(held.end);
        }
        if start >= self.head {
            cumulative..self.head.min(cumulative + bytes)
        } else {
            start..self.head.min(start + bytes)
        }
    }
}
