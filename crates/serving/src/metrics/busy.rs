//! Time during which an upstream computes for this server.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Clock;

/// Sums the time during which at least one piece of work was in progress.
#[derive(Debug, Clone, Default)]
pub struct BusyTime(Arc<Mutex<BusyState>>);

#[derive(Debug, Default)]
struct BusyState {
    /// Pieces of work in progress.
    running: usize,
    /// Start of the current busy period.
    since: Duration,
    /// Total of the finished busy periods.
    total: Duration,
}

/// A piece of work, in progress until dropped.
#[derive(Debug)]
pub struct BusyGuard {
    busy: BusyTime,
    clock: Clock,
}

impl BusyTime {
    /// Begins a piece of work.
    pub fn begin(&self, clock: Clock) -> BusyGuard {
        let mut state = self.state();
        if state.running == 0 {
            state.since = clock.now();
        }
        state.running += 1;
        drop(state);
        BusyGuard { busy: self.clone(), clock }
    }

    /// Returns the total busy time until `now`.
    pub fn until(&self, now: Duration) -> Duration {
        let state = self.state();
        let present =
            if state.running > 0 { now.saturating_sub(state.since) } else { Duration::ZERO };
        state.total + present
    }

    fn state(&self) -> MutexGuard<'_, BusyState> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        let now = self.clock.now();
        let mut state = self.busy.state();
        state.running -= 1;
        if state.running == 0 {
            let stretch = now.saturating_sub(state.since);
            state.total += stretch;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_at_the_same_time_counts_once() {
        let (busy, clock) = (BusyTime::default(), Clock::start());
        assert_eq!(busy.until(Duration::from_secs(9)), Duration::ZERO);
        let (one, other) = (busy.begin(clock), busy.begin(clock));
        let began = clock.now();
        drop(one);
        let later = began + Duration::from_secs(5);
        assert!(busy.until(later) >= Duration::from_secs(5), "{:?}", busy.until(later));
        drop(other);
        let ended = clock.now();
        assert!(busy.until(later) <= ended, "one stretch, which is over");
        assert_eq!(busy.until(later), busy.until(2 * later));
    }
}
