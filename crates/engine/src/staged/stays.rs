//! Where batches spent their time, looked back at: for the trace of a request, which is
//! written when it is over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::wire::Lap;

/// Batches remembered; at 30 a second that is four minutes.
const KEPT: usize = 8192;

/// A time over several batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread {
    /// Of all.
    pub mean: Duration,
    /// The longest.
    pub max: Duration,
}

impl Spread {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let (count, sum, max) = times
            .fold((0, Duration::ZERO, Duration::ZERO), |(count, sum, max), time| {
                (count + 1, sum + time, max.max(time))
            });
        Self { mean: sum.checked_div(count).unwrap_or_default(), max }
    }
}

/// Batches' stay in one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// From arrival to the native call.
    pub wait: Spread,
    /// The native call and sampling.
    pub busy: Spread,
}

/// Where the batches of some span of time spent theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stays {
    /// How many came back in it.
    pub batches: usize,
    /// In each stage, in order.
    pub stages: Vec<Stay>,
    /// On one link, the mean of a batch's links.
    pub hop: Spread,
}

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
    pub(super) fn between(&self, from: Instant, to: Instant) -> Option<Stays> {
        let first = self.0.partition_point(|landed| landed.at <= from);
        let end = self.0.partition_point(|landed| landed.at <= to).max(first);
        let batches = self.0.range(first..end);
        let stages = batches.clone().map(|landed| landed.trace.len()).min()?;
        let micros = |us: u32| Duration::from_micros(us.into());
        let laps = |stage: usize| batches.clone().map(move |landed| landed.trace[stage]);
        let stay = |stage| Stay {
            wait: Spread::of(laps(stage).map(|lap| micros(lap.wait_us))),
            busy: Spread::of(laps(stage).map(|lap| micros(lap.compute_us))),
        };
        Some(Stays {
            batches: end - first,
            stages: (0..stages).map(stay).collect(),
            hop: Spread::of(batches.clone().map(|landed| landed.hop)),
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
        assert_eq!(seen.stages[0].busy, Spread { mean: micros(25), max: micros(30) });
        assert_eq!(
            seen.stages[0].wait,
            Spread { mean: Duration::from_nanos(2500), max: micros(3) }
        );
        assert_eq!(seen.stages[1].busy.max, micros(300));
        assert_eq!(seen.hop, Spread { mean: micros(2500), max: ms(3) });
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
