//! Time that a simulated step takes.

use std::thread;
use std::time::{Duration, Instant};

use loquent_infer::runner::Batch;

/// Pace of a [`super::SimRunner`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepPace {
    /// As fast as the processor can.
    None,
    /// Every step takes the same time.
    Fixed {
        /// Time from one step's end to the next.
        step: Duration,
    },
    /// Steps take these times in a cycle; an empty list is [`StepPace::None`].
    Recorded(Vec<Duration>),
    /// The time of a step depends on its work.
    ByWork(WorkTimes),
}

/// Times of the parts of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkTimes {
    /// Base time of any step.
    pub step: Duration,
    /// Time for each running answer that it advances.
    pub row: Duration,
    /// Time for each prompt token.
    pub prompt_token: Duration,
}

impl WorkTimes {
    /// Time of a step with `batch`.
    fn time(&self, batch: &Batch) -> Duration {
        let rows = batch.spans.iter().filter(|span| span.tokens.len() - span.draft == 1).count();
        let prompt_tokens = batch.tokens.len() - rows;
        self.step + self.row * rows as u32 + self.prompt_token * prompt_tokens as u32
    }
}

impl StepPace {
    fn step(&self, index: u64, batch: &Batch) -> Option<Duration> {
        match self {
            StepPace::ByWork(work) => Some(work.time(batch)),
            StepPace::None => None,
            StepPace::Fixed { step } => Some(*step),
            StepPace::Recorded(steps) if steps.is_empty() => None,
            StepPace::Recorded(steps) => Some(steps[(index % steps.len() as u64) as usize]),
        }
    }
}

/// Sleeps at the end of each step until its deadline. Deadlines are spaced regularly, so that a
/// late wake-up or the scheduler's own work does not lower the rate.
#[derive(Debug)]
pub(super) struct StepPacer {
    pace: StepPace,
    deadline: Option<Instant>,
}

impl StepPacer {
    pub(super) fn new(pace: StepPace) -> Self {
        Self { pace, deadline: None }
    }

    /// Waits for the end of step `index`, which computes `batch`.
    pub(super) fn wait(&mut self, index: u64, batch: &Batch) {
        let Some(step) = self.pace.step(index, batch) else {
            return;
        };
        let now = Instant::now();
        let deadline = next_deadline(self.deadline, now, step);
        self.deadline = Some(deadline);
        thread::sleep(deadline.saturating_duration_since(now));
    }
}

/// Next deadline: one step after the last one, or one step from now after a pause of half a step.
fn next_deadline(last: Option<Instant>, now: Instant, step: Duration) -> Instant {
    match last {
        // Within half a step the next deadline keeps to the grid: a late wake-up is made up for.
        // After a longer pause the engine was idle, and catching up would be a burst.
        Some(last) if now.saturating_duration_since(last) < step / 2 => last + step,
        _ => now + step,
    }
}

#[cfg(test)]
mod tests {
    //! Deadlines neither drift nor catch up after a pause.
    use loquent_infer::runner::Slot;

    use super::*;

    #[test]
    fn deadlines_follow_each_other() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        assert_eq!(next_deadline(None, start, ms(10)), start + ms(10));
        let last = start + ms(10);
        assert_eq!(next_deadline(Some(last), start + ms(12), ms(10)), start + ms(20));
        assert_eq!(next_deadline(Some(last), start + ms(9), ms(10)), start + ms(20));
        assert_eq!(next_deadline(Some(last), start + ms(500), ms(10)), start + ms(510));
    }

    #[test]
    fn steps_take_as_long_as_what_they_compute() {
        let ms = Duration::from_millis;
        let pace = StepPace::ByWork(WorkTimes { step: ms(10), row: ms(2), prompt_token: ms(1) });
        let mut batch = Batch::default();
        (0..3).for_each(|slot| batch.push(Slot(slot), 5, &[1], true));
        batch.push(Slot(3), 0, &[1; 20], false);
        assert_eq!(pace.step(0, &batch), Some(ms(10 + 3 * 2 + 20)));
    }

    #[test]
    fn recorded_steps_repeat() {
        let empty = Batch::default();
        let pace = StepPace::Recorded(vec![Duration::from_millis(1), Duration::from_millis(2)]);
        assert_eq!(pace.step(3, &empty), Some(Duration::from_millis(2)));
        assert_eq!(StepPace::Recorded(Vec::new()).step(3, &empty), None);
        assert_eq!(StepPace::None.step(0, &empty), None);
    }
}
