//! Pauses between attempts. They grow and are partly random, so that the clients of a restarting
//! server do not all return at the same moment.

use std::time::Duration;

/// Maximum pause between two attempts.
const LONGEST: Duration = Duration::from_secs(5);
/// Pause before the second attempt.
const FIRST: Duration = Duration::from_millis(200);

/// Sequence of attempts after one loss.
#[derive(Debug, Clone)]
pub struct Backoff {
    limit: Duration,
    attempts: u32,
}

impl Backoff {
    /// Allows attempts until `limit` after the loss.
    pub fn new(limit: Duration) -> Self {
        Backoff { limit, attempts: 0 }
    }

    /// Returns the pause before the next attempt, `elapsed` after the loss, or `None` to give up.
    /// The first attempt is immediate. `random`, from 0 to 1, shortens the pause by up to half.
    pub fn next(&mut self, elapsed: Duration, random: f64) -> Option<Duration> {
        if elapsed >= self.limit {
            return None;
        }
        let pause = match self.attempts {
            0 => Duration::ZERO,
            again => FIRST.saturating_mul(1 << (again - 1).min(10)).min(LONGEST),
        };
        self.attempts += 1;
        Some(pause.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_end() {
        let mut backoff = Backoff::new(Duration::from_secs(30));
        let mut elapsed = Duration::ZERO;
        let mut pauses = Vec::new();
        while let Some(pause) = backoff.next(elapsed, 0.0) {
            pauses.push(pause.as_millis());
            elapsed += pause + Duration::from_millis(500);
        }
        assert_eq!(pauses[..6], [0, 200, 400, 800, 1600, 3200]);
        assert!(pauses[6..].iter().all(|ms| *ms == 5000) && pauses.len() < 12, "{pauses:?}");
        let mut random = Backoff::new(Duration::from_secs(30));
        random.next(Duration::ZERO, 1.0);
        assert_eq!(random.next(Duration::ZERO, 1.0), Some(Duration::from_millis(100)));
    }
}
