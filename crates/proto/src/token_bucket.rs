//! Token bucket in bytes: an answer's budget for packets without new text (D-7.3).

use crate::Micros;

/// A budget that fills at a fixed rate up to its depth and starts full.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    bytes_per_s: u64,
    depth_bytes: u64,
    /// Level in millionths of a byte at `at`: exact for any times.
    level_micro: u64,
    at: Micros,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub const fn new(bytes_per_s: u64, depth_bytes: u64) -> Self {
        let level_micro = depth_bytes * 1_000_000;
        Self { bytes_per_s, depth_bytes, level_micro, at: Micros::ZERO }
    }

    /// Earliest time at which `bytes` can be taken; `None` if never.
    pub fn ready_at(&self, bytes: u64) -> Option<Micros> {
        let short = (bytes * 1_000_000).saturating_sub(self.level_micro);
        match short {
            0 => Some(self.at),
            _ if bytes > self.depth_bytes || self.bytes_per_s == 0 => None,
            _ => Some(self.at + Micros(short.div_ceil(self.bytes_per_s))),
        }
    }

    /// Bytes that can be taken at `now`.
    pub fn level(&self, now: Micros) -> u64 {
        let filled = now.since(self.at).0.saturating_mul(self.bytes_per_s);
        (self.level_micro.saturating_add(filled) / 1_000_000).min(self.depth_bytes)
    }

    /// Takes `bytes` at `now`, not before [`Self::ready_at`].
    pub fn take(&mut self, now: Micros, bytes: u64) {
        let filled = now.since(self.at).0.saturating_mul(self.bytes_per_s);
        let full = self.depth_bytes * 1_000_000;
        self.level_micro = self.level_micro.saturating_add(filled).min(full);
        self.at = self.at.max(now);
        debug_assert!(bytes * 1_000_000 <= self.level_micro, "taken before it was there");
        self.level_micro = self.level_micro.saturating_sub(bytes * 1_000_000);
    }
}
