//! The lines that a batch sends while it has its turn.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::live_batches::MAX_LINES_AT_ONCE;

/// Lines of a batch, until all are sent or the server refuses whatever is sent.
pub struct Round(Mutex<RoundLines>);

struct RoundLines {
    pending: VecDeque<usize>,
    refused: Vec<usize>,
    /// Refusals since the last answer.
    in_a_row: usize,
    /// Time to wait after the last refusal.
    wait: Duration,
}

impl RoundLines {
    /// Returns true once nothing more is sent: a line for each place was refused.
    fn is_over(&self) -> bool {
        self.in_a_row >= MAX_LINES_AT_ONCE
    }
}

impl Round {
    /// Begins with the lines `pending`.
    pub fn new(pending: Vec<usize>) -> Self {
        let (refused, in_a_row, wait) = (Vec::new(), 0, Duration::ZERO);
        Self(Mutex::new(RoundLines { pending: pending.into(), refused, in_a_row, wait }))
    }

    fn lines(&self) -> MutexGuard<'_, RoundLines> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// Returns the next line to send, if there is one.
    pub fn take(&self) -> Option<usize> {
        let mut lines = self.lines();
        if lines.is_over() { None } else { lines.pending.pop_front() }
    }

    /// Notes that a line has its answer.
    pub fn on_answer(&self) {
        let mut lines = self.lines();
        if !lines.is_over() {
            lines.in_a_row = 0;
        }
    }

    /// Notes that the line `at` was refused, and may be sent again after `wait`.
    pub fn on_refusal(&self, at: usize, wait: Duration) {
        let mut lines = self.lines();
        lines.refused.push(at);
        lines.in_a_row += 1;
        lines.wait = wait;
    }

    /// Returns the lines without an answer, those that were refused last, and when to go on.
    pub fn left(&self) -> (Vec<usize>, Duration) {
        let lines = self.lines();
        (lines.pending.iter().chain(&lines.refused).copied().collect(), lines.wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_over_when_each_place_has_a_refusal() {
        let wait = Duration::from_secs(7);
        let round = Round::new((0..30).collect());
        for _ in 0..2 * MAX_LINES_AT_ONCE {
            // One that is refused does not stop the others.
            round.on_refusal(round.take().unwrap(), wait);
            round.take().unwrap();
            round.on_answer();
        }
        for _ in 0..MAX_LINES_AT_ONCE {
            round.on_refusal(round.take().unwrap(), wait);
        }
        round.on_answer();
        assert_eq!(round.take(), None, "an answer that was under way begins it anew");
        let left: Vec<_> = (20..30).chain((0..16).step_by(2)).chain(16..20).collect();
        assert_eq!(round.left(), (left, wait));
        let round = Round::new((0..6).collect());
        for _ in 0..MAX_LINES_AT_ONCE {
            round.on_refusal(round.take().unwrap(), wait);
        }
        assert_eq!(round.left().0, [4, 5, 0, 1, 2, 3], "others first");
    }
}
