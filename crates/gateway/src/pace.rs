//! Generation speed of one upstream server: the mean time between two tokens of a completion.

use std::time::Duration;

/// Validity of a measurement. A server that gets no requests because it was slow is tried again
/// afterwards.
const FRESH: Duration = Duration::from_secs(60);
/// Inverse weight of the newest measurement in the mean.
const SMOOTHING: u32 = 8;

/// Smoothed mean of recent measurements.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace(Option<MeasuredPace>);

#[derive(Debug, Clone, Copy)]
struct MeasuredPace {
    per_token: Duration,
    at: Duration,
}

impl Pace {
    /// Records that an answer which ended at `now` took `per_token` for each token.
    pub fn note(&mut self, now: Duration, per_token: Duration) {
        let mean = self
            .at(now)
            .map_or(per_token, |old| (old * (SMOOTHING - 1)).saturating_add(per_token) / SMOOTHING);
        self.0 = Some(MeasuredPace { per_token: mean, at: now });
    }

    /// Returns the mean; `None` without a recent measurement.
    pub fn at(&self, now: Duration) -> Option<Duration> {
        let fresh = self.0.filter(|measured| now.saturating_sub(measured.at) < FRESH);
        fresh.map(|measured| measured.per_token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_is_measured_and_forgets() {
        let (mut pace, ms) = (Pace::default(), Duration::from_millis);
        assert_eq!(pace.at(ms(0)), None);
        pace.note(ms(0), ms(80));
        pace.note(ms(1), ms(160));
        assert_eq!(pace.at(ms(1)), Some(ms(90)));
        (0..50).for_each(|_| pace.note(ms(2), ms(160)));
        assert!(pace.at(ms(2)).is_some_and(|mean| mean > ms(155)));
        assert_eq!(pace.at(ms(2) + FRESH), None);
    }
}
