//! The end of a baseline's session: complete, or given up some time after the last token.

use super::{DeliveryProgress, GIVE_UP_US};

/// Records the end of the answer, and whether its sender has given up since.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FinishMark {
    ended_us: Option<u64>,
    suspended: bool,
}

impl FinishMark {
    /// Records that the answer's last token was generated.
    pub(super) fn end(&mut self, now_us: u64) {
        self.ended_us = Some(now_us);
    }

    /// Gives up if the answer ended too long ago.
    pub(super) fn handle_timeout(&mut self, now_us: u64) {
        self.suspended = self.ended_us.is_some_and(|end_us| now_us > end_us + GIVE_UP_US);
    }

    /// Returns `resend_us`, or the time of giving up if that is earlier.
    pub(super) fn or_give_up(&self, resend_us: u64) -> u64 {
        let give_up = self.ended_us.map(|end_us| end_us + GIVE_UP_US + 1);
        give_up.map_or(resend_us, |give_up| resend_us.min(give_up))
    }

    /// Returns the session's progress; `settled` means that nothing is left to send or to be
    /// acknowledged.
    pub(super) fn progress(&self, settled: bool) -> DeliveryProgress {
        match (self.ended_us, self.suspended) {
            (_, true) => DeliveryProgress::Suspended,
            (Some(_), false) if settled => DeliveryProgress::Complete,
            _ => DeliveryProgress::Active,
        }
    }
}
