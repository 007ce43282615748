//! Circuit breaker for one upstream server: after several consecutive failures the server gets no
//! requests for a while, then a single trial request, and all requests again once a trial succeeds.
//!
//! The caller decides which outcomes count as failures. A mere refusal must not count, whatever its
//! status: clients could otherwise block the requests of others.

use std::time::Duration;

/// Consecutive failures that open the breaker. A single one may be a network accident.
const FAILURES: u32 = 3;
/// First wait of an open breaker. A restarted server is back within seconds.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait of an open breaker: the wait doubles with each failed trial.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// State of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakerState {
    /// The server gets requests.
    Closed { failures: u32 },
    /// The server gets no requests until `until`, after waiting for `wait`.
    Open { until: Duration, wait: Duration },
    /// One trial request is in progress.
    Trying { wait: Duration },
}

/// Outcome of a request that the breaker allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestVerdict {
    /// The server works.
    Works,
    /// The server fails.
    Fails,
    /// Unknown, because the client left before the outcome.
    Unknown,
}

/// Circuit breaker of one server.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    state: BreakerState,
    opened: u64,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self { state: BreakerState::Closed { failures: 0 }, opened: 0 }
    }
}

impl CircuitBreaker {
    /// Returns true if the server may get a request at `now`.
    pub fn allows(&self, now: Duration) -> bool {
        match self.state {
            BreakerState::Closed { .. } => true,
            BreakerState::Open { until, .. } => until <= now,
            BreakerState::Trying { .. } => false,
        }
    }

    /// Records the start of an allowed request. Returns true if it is the trial request.
    pub fn begin(&mut self) -> bool {
        match self.state {
            BreakerState::Closed { .. } => false,
            BreakerState::Open { wait, .. } | BreakerState::Trying { wait } => {
                self.state = BreakerState::Trying { wait };
                true
            }
        }
    }

    /// Records the verdict on a request. Verdicts on requests sent before the breaker opened are
    /// ignored: an answer in progress may still succeed on a server that cannot begin a new one.
    pub fn judge(&mut self, now: Duration, is_trial: bool, verdict: RequestVerdict) {
        self.state = match (self.state, verdict) {
            (BreakerState::Closed { .. }, RequestVerdict::Works) => {
                BreakerState::Closed { failures: 0 }
            }
            (BreakerState::Closed { failures }, RequestVerdict::Fails)
                if failures + 1 < FAILURES =>
            {
                BreakerState::Closed { failures: failures + 1 }
            }
            (BreakerState::Closed { .. }, RequestVerdict::Fails) => self.open(now, FIRST_WAIT),
            (BreakerState::Trying { .. }, RequestVerdict::Works) if is_trial => {
                BreakerState::Closed { failures: 0 }
            }
            (BreakerState::Trying { wait }, RequestVerdict::Fails) if is_trial => {
                self.open(now, (wait * 2).min(LONGEST_WAIT))
            }
            // The next request tries.
            (BreakerState::Trying { wait }, RequestVerdict::Unknown) if is_trial => {
                BreakerState::Open { until: now, wait }
            }
            (state, _) => state,
        };
    }

    /// Allows the next request as a trial now, because the server has shown a sign of life.
    pub fn hasten(&mut self, now: Duration) {
        if let BreakerState::Open { until, wait } = self.state {
            self.state = BreakerState::Open { until: until.min(now), wait };
        }
    }

    /// Returns when the server may get a request again; `None` if it already may, or a trial is in
    /// progress.
    pub fn opens_until(&self) -> Option<Duration> {
        match self.state {
            BreakerState::Open { until, .. } => Some(until),
            BreakerState::Closed { .. } | BreakerState::Trying { .. } => None,
        }
    }

    /// Returns true if the breaker is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, BreakerState::Closed { .. })
    }

    /// Returns how often the breaker has opened after having been closed.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    fn open(&mut self, now: Duration, wait: Duration) -> BreakerState {
        self.opened += u64::from(self.is_closed());
        BreakerState::Open { until: now + wait, wait }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Sends a request that immediately gets this verdict.
    fn send(breaker: &mut CircuitBreaker, now: Duration, verdict: RequestVerdict) {
        assert!(breaker.allows(now));
        let is_trial = breaker.begin();
        breaker.judge(now, is_trial, verdict);
    }

    fn opened() -> CircuitBreaker {
        let mut breaker = CircuitBreaker::default();
        (0..FAILURES).for_each(|_| send(&mut breaker, s(10), RequestVerdict::Fails));
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_one_success_closes_it() {
        let mut breaker = CircuitBreaker::default();
        for verdict in [
            RequestVerdict::Fails,
            RequestVerdict::Fails,
            RequestVerdict::Works,
            RequestVerdict::Fails,
        ] {
            send(&mut breaker, s(1), verdict);
        }
        assert!(breaker.is_closed());
        let mut breaker = opened();
        assert!(!breaker.allows(s(10)) && breaker.allows(s(11)));
        send(&mut breaker, s(11), RequestVerdict::Works);
        assert!(breaker.is_closed() && breaker.opened() == 1);
    }

    #[test]
    fn one_request_at_a_time_tries_and_the_wait_doubles() {
        let mut breaker = opened();
        let mut now = s(11);
        for wait in [2, 4, 8, 16, 30, 30] {
            assert!(breaker.begin());
            assert!(!breaker.allows(now), "another one tries");
            breaker.judge(now, true, RequestVerdict::Fails);
            assert_eq!(breaker.opens_until(), Some(now + s(wait)));
            now += s(wait);
        }
        assert_eq!(breaker.opened(), 1, "it never closed");
    }

    #[test]
    fn a_trial_whose_client_leaves_is_followed_by_another() {
        let mut breaker = opened();
        send(&mut breaker, s(11), RequestVerdict::Unknown);
        assert!(breaker.allows(s(11)) && !breaker.is_closed());
    }

    #[test]
    fn what_was_sent_before_says_nothing() {
        let mut breaker = opened();
        breaker.judge(s(10), false, RequestVerdict::Works);
        assert!(!breaker.allows(s(10)));
        assert!(breaker.begin());
        breaker.judge(s(11), false, RequestVerdict::Fails);
        breaker.judge(s(11), true, RequestVerdict::Works);
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_sign_of_life_shortens_the_wait() {
        let mut breaker = opened();
        breaker.hasten(s(10));
        assert!(breaker.allows(s(10)));
    }

    proptest! {
        /// Whatever the outcomes, a server is tried again within the longest wait, and never by two
        /// requests at once.
        #[test]
        fn a_server_is_never_given_up(outcomes in prop::collection::vec(0_u8..3, 1..200)) {
            let (mut breaker, mut now) = (CircuitBreaker::default(), Duration::ZERO);
            for outcome in outcomes {
                if let Some(until) = breaker.opens_until() {
                    prop_assert!(until <= now + LONGEST_WAIT);
                    now = now.max(until);
                }
                prop_assert!(breaker.allows(now));
                let is_trial = breaker.begin();
                prop_assert!(!is_trial || !breaker.allows(now));
                let verdict = match outcome {
                    0 => RequestVerdict::Works,
                    1 => RequestVerdict::Fails,
                    _ => RequestVerdict::Unknown,
                };
                breaker.judge(now, is_trial, verdict);
            }
        }
    }
}
