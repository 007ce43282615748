//! A reader of an answer: it begins with the first token and reads on at a speed of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What became of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReaderOutcome {
    /// From the request to its first token, in seconds.
    pub ttft_s: f64,
    /// Share of its time, from the first token to the last, that it waited for text.
    pub stall_share: f64,
}

/// What makes a reader content, and how many have to be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentRule {
    /// The longest time to the first token.
    pub ttft_s: f64,
    /// The largest share of its time that it waits for text.
    pub stall_share: f64,
    /// Share of the readers that have to be content.
    pub readers_share: f64,
}

impl ContentRule {
    /// Share of `readers` that are content.
    pub fn share(&self, readers: &[ReaderOutcome]) -> f64 {
        let is_content =
            |one: &&ReaderOutcome| one.ttft_s <= self.ttft_s && one.stall_share <= self.stall_share;
        readers.iter().filter(is_content).count() as f64 / readers.len().max(1) as f64
    }

    /// Whether enough of `readers` are.
    pub fn is_met(&self, readers: &[ReaderOutcome]) -> bool {
        self.share(readers) >= self.readers_share
    }
}

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub struct BurstReader {
    token_time: Duration,
    tokens: u32,
    first: Duration,
    dry_at: Duration,
    stalled: Duration,
}

impl BurstReader {
    /// A reader who takes so long for a token.
    pub fn new(token_time: Duration) -> Self {
        let zero = Duration::ZERO;
        Self { token_time, tokens: 0, first: zero, dry_at: zero, stalled: zero }
    }

    /// `tokens` arrive at `at`.
    pub fn take(&mut self, at: Duration, tokens: u32) {
        match self.tokens {
            0 => (self.first, self.dry_at) = (at, at),
            _ => self.stalled += at.saturating_sub(self.dry_at),
        }
        self.dry_at = self.dry_at.max(at) + self.token_time * tokens;
        self.tokens += tokens;
    }

    /// Tokens that it has.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// When it has read them.
    pub fn dry_at(&self) -> Duration {
        self.dry_at
    }

    /// What became of a reader whose request left at `asked`.
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
