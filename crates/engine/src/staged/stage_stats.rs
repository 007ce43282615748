//! Times of recent batches, for later look-up: the trace of a request is written when the request
//! is over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use loquent_infer::remote::{BatchTimes, MeanMax, StageTimes};

use super::wire::StageTiming;

/// Number of batches remembered; at 30 a second that is four minutes.
const KEPT: usize = 8192;

/// One batch that returned.
#[derive(Debug)]
struct FinishedBatch {
    at: Instant,
    timings: Vec<StageTiming>,
    link_delay: Duration,
}

/// The last [`KEPT`] batches, in the order in which they returned.
#[derive(Debug, Default)]
pub(super) struct BatchHistory(VecDeque<FinishedBatch>);

impl BatchHistory {
    /// Adds a batch that returned at `at`, later than those before.
    pub(super) fn add(&mut self, at: Instant, timings: Vec<StageTiming>, link_delay: Duration) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(FinishedBatch { at, timings, link_delay });
    }

    /// Times of the batches that returned after `from` and not after `to`; `None` if no batch did.
    pub(super) fn between(&self, from: Instant, to: Instant) -> Option<BatchTimes> {
        // They came back in order, so both ends are found by bisection.
        let first = self.0.partition_point(|batch| batch.at <= from);
        let end = self.0.partition_point(|batch| batch.at <= to).max(first);
        let batches = self.0.range(first..end);
        // A batch that was aborted on the way has fewer timings than there are stages.
        let stages = batches.clone().map(|batch| batch.timings.len()).min()?;
        let micros = |us: u32| Duration::from_micros(us.into());
        let timings = |stage: usize| batches.clone().map(move |batch| batch.timings[stage]);
        let times = |stage| StageTimes {
            wait: MeanMax::of(timings(stage).map(|timing| micros(timing.wait_us))),
            busy: MeanMax::of(timings(stage).map(|timing| micros(timing.compute_us))),
        };
        Some(BatchTimes {
            batches: end - first,
            stages: (0..stages).map(times).collect(),
            link_delay: MeanMax::of(batches.clone().map(|batch| batch.link_delay)),
        })
    }
}

#[cfg(test)]
mod tests {
    //! Means and maxima of the batches in an interval, and of no others.
    use super::*;

    #[test]
    fn only_batches_of_the_interval_count() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        let mut history = BatchHistory::default();
        assert_eq!(history.between(begin, begin + ms(100)), None);
        for i in 1..=4u32 {
            let timings = [(i, 10 * i), (0, 100 * i)];
            let timings =
                timings.map(|(wait_us, compute_us)| StageTiming { wait_us, compute_us }).to_vec();
            history.add(begin + ms(10) * i, timings, ms(1) * i);
        }
        let seen = history.between(begin + ms(10), begin + ms(30)).expect("two of them");
        let micros = Duration::from_micros;
        assert_eq!((seen.batches, seen.stages.len()), (2, 2));
        assert_eq!(seen.stages[0].busy, MeanMax { mean: micros(25), max: micros(30) });
        assert_eq!(
            seen.stages[0].wait,
            MeanMax { mean: Duration::from_nanos(2500), max: micros(3) }
        );
        assert_eq!(seen.stages[1].busy.max, micros(300));
        assert_eq!(seen.link_delay, MeanMax { mean: micros(2500), max: ms(3) });
        assert_eq!(history.between(begin + ms(30), begin + ms(10)), None);
    }

    #[test]
    fn the_history_is_bounded() {
        let (begin, mut history) = (Instant::now(), BatchHistory::default());
        for _ in 0..KEPT + 5 {
            history.add(begin, vec![StageTiming::default()], Duration::ZERO);
        }
        assert_eq!(history.0.len(), KEPT);
    }
}
