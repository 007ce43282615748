//! Where batches spent their time, looked back at: for the trace of a request, which is
//! written when it is over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use loquent_infer::remote::{BatchTimes, MeanMax, StageTimes};

use super::wire::Lap;

/// Batches remembered; at 30 a second that is four minutes.
const KEPT: usize = 8192;

/// One batch that came back.
#[derive(Debug)]
struct Landed {
    at: Instant,
    trace: Vec<Lap>,
    hop: Duration,
}

/// The last batches.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Landed>);

impl History {
    /// Notes a batch that came back at `at`, later than those before.
    pub(super) fn note(&mut self, at: Instant, trace: Vec<Lap>, hop: Duration) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Landed { at, trace, hop });
    }

    /// Of the batches that came back after `from` and not after `to`; `None` without any.
    pub(super) fn between(&self, from: Instant, to: Instant) -> Option<BatchTimes> {
        let first = self.0.partition_point(|landed| landed.at <= from);
        let end = self.0.partition_point(|landed| landed.at <= to).max(first);
        let batches = self.0.range(first..end);
        let stages = batches.clone().map(|landed| landed.trace.len()).min()?;
        let micros = |us: u32| Duration::from_micros(us.into());
        let laps = |stage: usize| batches.clone().map(move |landed| landed.trace[stage]);
        let stay = |stage| StageTimes {
            wait: MeanMax::of(laps(stage).map(|lap| micros(lap.wait_us))),
            busy: MeanMax::of(laps(stage).map(|lap| micros(lap.compute_us))),
        };
        Some(BatchTimes {
            batches: end - first,
            stages: (0..stages).map(stay).collect(),
            hop: MeanMax::of(batches.clone().map(|landed| landed.hop)),
        })
    }
}

#[cfg(test)]
mod tests {
    //! Means and maxima of what lies between, and nothing else.
    use super::*;

    #[test]
    fn only_batches_between_count() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        let mut history = History::default();
        assert_eq!(history.between(begin, begin + ms(100)), None);
        for i in 1..=4u32 {
            let laps = [(i, 10 * i), (0, 100 * i)];
            let trace = laps.map(|(wait_us, compute_us)| Lap { wait_us, compute_us }).to_vec();
            history.note(begin + ms(10) * i, trace, ms(1) * i);
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
        assert_eq!(seen.hop, MeanMax { mean: micros(2500), max: ms(3) });
        assert_eq!(history.between(begin + ms(30), begin + ms(10)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (begin, mut history) = (Instant::now(), History::default());
        for _ in 0..KEPT + 5 {
            history.note(begin, vec![Lap::default()], Duration::ZERO);
        }
        assert_eq!(history.0.len(), KEPT);
    }
}
