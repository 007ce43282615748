//! A reader of an answer: starts with the first token and reads on at its own speed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Outcome of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReaderOutcome {
    /// Time from the request to the first token, in seconds.
    pub ttft_s: f64,
    /// Share of the time from the first token to the last that the reader waited for text.
    pub stall_share: f64,
}

/// Conditions for a reader to be content, and the required share of content readers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentRule {
    /// Maximum time to the first token.
    pub ttft_s: f64,
    /// Maximum share of its time that a reader waits for text.
    pub stall_share: f64,
    /// Required share of content readers.
    pub readers_share: f64,
}

impl ContentRule {
    /// Returns the share of `readers` that are content.
    pub fn share(&self, readers: &[ReaderOutcome]) -> f64 {
        let is_content =
            |one: &&ReaderOutcome| one.ttft_s <= self.ttft_s && one.stall_share <= self.stall_share;
        readers.iter().filter(is_content).count() as f64 / readers.len().max(1) as f64
    }

    /// Returns true if enough of `readers` are content.
    pub fn is_met(&self, readers: &[ReaderOutcome]) -> bool {
        self.share(readers) >= self.readers_share
    }
}

/// The state of one reader; see the module's documentation.
#[derive(Debug, Clone, Copy)]
pub struct BurstReader {
    token_time: Duration,
    tokens: u32,
    first: Duration,
    dry_at: Duration,
    stalled: Duration,
}

impl BurstReader {
    /// Creates a reader who takes `token_time` for a token.
    pub fn new(token_time: Duration) -> Self {
        let zero = Duration::ZERO;
        Self { token_time, tokens: 0, first: zero, dry_at: zero, stalled: zero }
    }

    /// Adds `tokens` that arrive at `at`.
    pub fn take(&mut self, at: Duration, tokens: u32) {
        match self.tokens {
            0 => (self.first, self.dry_at) = (at, at),
            _ => self.stalled += at.saturating_sub(self.dry_at),
        }
        self.dry_at = self.dry_at.max(at) + self.token_time * tokens;
        self.tokens += tokens;
    }

    /// Returns the number of tokens received.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Returns the time at which the reader has read them all.
    pub fn dry_at(&self) -> Duration {
        self.dry_at
    }

    /// Returns the outcome of a reader whose request was sent at `asked`.
    pub fn outcome(&self, asked: Duration) -> ReaderOutcome {
        let span = self.dry_at.saturating_sub(self.first).as_secs_f64();
        ReaderOutcome {
            ttft_s: self.first.saturating_sub(asked).as_secs_f64(),
            stall_share: self.stalled.as_secs_f64() / span.max(1e-9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_reader_stalls_for_as_long_as_it_has_nothing() {
        let mut reader = BurstReader::new(MS(100));
        reader.take(MS(1_000), 3);
        // Read up to 1,300.
        reader.take(MS(1_250), 1);
        reader.take(MS(1_500), 1);
        assert_eq!((reader.tokens(), reader.dry_at()), (5, MS(1_600)));
        let outcome = reader.outcome(MS(400));
        assert!((outcome.ttft_s - 0.6).abs() < 1e-9, "{outcome:?}");
        assert!((outcome.stall_share - 0.1 / 0.6).abs() < 1e-9, "{outcome:?}");
    }

    #[test]
    fn enough_of_the_readers_have_to_be_content() {
        let content = ContentRule { ttft_s: 2.0, stall_share: 0.01, readers_share: 0.5 };
        let reader = |ttft_s, stall_share| ReaderOutcome { ttft_s, stall_share };
        let readers = [reader(2.0, 0.01), reader(2.1, 0.0), reader(0.1, 0.02)];
        assert!((content.share(&readers) - 1.0 / 3.0).abs() < 1e-9);
        assert!(!content.is_met(&readers) && content.is_met(&readers[..2]));
    }
}
