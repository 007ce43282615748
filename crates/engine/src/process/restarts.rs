//! Decides when an engine process that ended is restarted, and when to give up.

use std::time::{Duration, Instant};

/// Maximum starts in a row without a computed batch. A sequence that crashes the engine whenever it
/// is computed costs two of them when it is alone, and a request may have several such sequences.
pub(super) const MOST_STARTS: u32 = 16;
/// Pause before the second start in a row; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Counts unsuccessful starts.
#[derive(Debug)]
pub(super) struct Restarts {
    in_a_row: u32,
    longest_pause: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self { in_a_row: 0, longest_pause: LONGEST_PAUSE }
    }
}

impl Restarts {
    /// Without a pause that a test would have to wait for.
    #[cfg(test)]
    pub fn at_once() -> Self {
        Self { longest_pause: Duration::ZERO, ..Self::default() }
    }

    /// Notes that a batch was computed: the engine works.
    pub fn note_success(&mut self) {
        self.in_a_row = 0;
    }

    /// Returns when to restart after a loss at `now`; `None` after too many attempts.
    pub fn next(&mut self, now: Instant) -> Option<Instant> {
        let doublings = self.in_a_row.checked_sub(1);
        self.in_a_row += 1;
        // The first time at once: most losses are singular.
        let pause = doublings.map_or(Duration::ZERO, |n| FIRST_PAUSE * 2u32.pow(n.min(16)));
        (self.in_a_row <= MOST_STARTS).then(|| now + pause.min(self.longest_pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_become_rarer_and_end_unless_one_works() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        let pauses = |restarts: &mut Restarts| -> Vec<u128> {
            let times = std::iter::from_fn(|| restarts.next(now));
            times.map(|at| (at - now).as_millis()).collect()
        };
        let first = pauses(&mut restarts);
        assert_eq!(first[..7], [0, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!((first.len(), first[15]), (16, 2000));
        restarts.note_success();
        assert_eq!(pauses(&mut restarts).len(), 16);
    }
}
