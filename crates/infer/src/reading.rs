//! Time for which a reader's text will last, as tracked by the scheduler.
//!
//! A reader reads an answer at its own speed, which is often lower than the engine's. Sent but
//! unread text is its time in hand: until that has passed, the reader misses nothing if the engine
//! computes for others. The server passes its knowledge of a reader as a [`ReaderReport`]; between
//! two reports each generated token adds the time that it takes to read.

use std::time::Duration;

/// State of an answer's reader. Times are those of [`crate::scheduler::Scheduler::plan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderReport {
    /// Number of the completion's tokens that `lasts_until` covers.
    pub tokens: u32,
    /// When the next token must be generated to arrive as soon as those are read.
    pub lasts_until: Duration,
    /// Time in which the reader reads one token.
    pub token_time: Duration,
}

/// Maximum accepted time per token: nobody reads this slowly, but a page may be left open.
const SLOWEST: Duration = Duration::from_secs(2);
/// Minimum accepted time per token. A reader that claims to be faster would always seem to run dry.
const FASTEST: Duration = Duration::from_millis(20);

/// State of a reader as of the latest token or report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    dry_at: Duration,
    token_time: Duration,
}

impl Reading {
    /// Creates the state for a completion that has `generated` tokens.
    pub fn new(report: ReaderReport, generated: usize) -> Self {
        let token_time = report.token_time.clamp(FASTEST, SLOWEST);
        let since = (generated as u32).saturating_sub(report.tokens);
        let dry_at = report.lasts_until.saturating_add(token_time.saturating_mul(since));
        Self { dry_at, token_time }
    }

    /// Notes that a token was generated at `now`.
    pub fn note_token(&mut self, now: Duration) {
        self.dry_at = self.dry_at.max(now).saturating_add(self.token_time);
    }

    /// Time from `now` until the reader runs out of text.
    pub fn in_hand(&self, now: Duration) -> Duration {
        self.dry_at.saturating_sub(now)
    }

    /// When the reader will have read everything.
    pub fn dry_at(&self) -> Duration {
        self.dry_at
    }

    /// Time in which the reader reads one token.
    pub fn token_time(&self) -> Duration {
        self.token_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tokens: u32, lasts_until_ms: u64, token_ms: u64) -> ReaderReport {
        ReaderReport {
            tokens,
            lasts_until: Duration::from_millis(lasts_until_ms),
            token_time: Duration::from_millis(token_ms),
        }
    }

    #[test]
    fn tokens_since_the_report_last_longer() {
        let reading = Reading::new(report(10, 1_000, 100), 13);
        assert_eq!(reading.in_hand(Duration::from_millis(900)), Duration::from_millis(400));
        assert_eq!(reading.in_hand(Duration::from_secs(5)), Duration::ZERO);
        let fewer = Reading::new(report(10, 1_000, 100), 4);
        assert_eq!(fewer.in_hand(Duration::ZERO), Duration::from_secs(1));
    }

    #[test]
    fn a_reader_that_had_nothing_begins_again_with_the_next_token() {
        let mut reading = Reading::new(report(1, 100, 100), 1);
        reading.note_token(Duration::from_secs(1));
        assert_eq!(reading.in_hand(Duration::from_secs(1)), Duration::from_millis(100));
        reading.note_token(Duration::from_secs(1));
        assert_eq!(reading.in_hand(Duration::from_secs(1)), Duration::from_millis(200));
    }

    #[test]
    fn no_speed_is_believed_that_nobody_reads_at() {
        let fast = Reading::new(report(0, 0, 0), 1_000);
        assert_eq!(fast.token_time(), FASTEST);
        let slow = Reading::new(report(0, u64::MAX, u64::MAX), usize::MAX);
        assert_eq!(slow.token_time(), SLOWEST);
        assert!(slow.in_hand(Duration::ZERO) > Duration::from_secs(1));
    }
}
