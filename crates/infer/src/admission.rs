//! Which requests are admitted, and the `Retry-After` of the others.
//!
//! Without a bound the queue grows until every client has given up. [`Admission`] admits
//! requests up to a number in flight and a number of queued prompt tokens. It refuses the
//! rest with the time by which the backlog will be worked off at the present rate.

use std::time::Duration;

/// The bounds that the operator sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most completions running or waiting.
    pub max_inflight_requests: usize,
    /// Most prompt tokens of completions that have not begun.
    pub max_queued_tokens: usize,
}

/// The bound that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request exceeds [`Bounds::max_inflight_requests`].
    #[error("{limit} requests are in flight, the most this server accepts")]
    Requests {
        /// The bound that was reached.
        limit: usize,
        /// Time until it is worth trying again.
        retry_after: Duration,
    },
    /// Its prompts exceed [`Bounds::max_queued_tokens`].
    #[error("the prompts in the queue would exceed {limit} tokens")]
    Tokens {
        /// The bound that was reached.
        limit: usize,
        /// Time until it is worth trying again.
        retry_after: Duration,
    },
}

impl Refusal {
    /// Time until the backlog has room again, in whole seconds, at least one.
    pub fn retry_after_s(&self) -> u64 {
        let (Self::Requests { retry_after, .. } | Self::Tokens { retry_after, .. }) = self;
        retry_after.as_secs_f64().ceil().clamp(1.0, MAX_RETRY_AFTER_S) as u64
    }
}

/// Longest `Retry-After`, in seconds: no longer estimate is worth anything.
const MAX_RETRY_AFTER_S: f64 = 600.0;
/// Assumed time between two ends before any was measured.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Weight of the newest interval between two ends: a mean over some ten of them, since answers
/// differ in length.
const EWMA_WEIGHT: f64 = 0.1;

/// Counts the completions in flight and the prompt tokens in the queue.
#[derive(Debug, Clone)]
pub struct Admission {
    bounds: Bounds,
    inflight: usize,
    queued_tokens: usize,
    last_end: Option<Duration>,
    /// Mean time between two ends while there was work, in seconds.
    end_interval_s: f64,
}

impl Admission {
    /// With nothing in flight yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            inflight: 0,
            queued_tokens: 0,
            last_end: None,
            end_interval_s: FIRST_INTERVAL.as_secs_f64(),
        }
    }

    /// Admits a request of `completions`.
    ///
    /// # Errors
    /// [`Refusal::Requests`] if that would exceed the bound. An idle server admits any request.
    pub fn enter(&mut self, completions: usize) -> Result<(), Refusal> {
        self.check_room(completions)?;
        self.inflight += completions;
        Ok(())
    }

    /// Whether a request of `completions` would be admitted.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub fn check_room(&self, completions: usize) -> Result<(), Refusal> {
        let limit = self.bounds.max_inflight_requests;
        if self.inflight > 0 && self.inflight + completions > limit {
            // One of those in flight has to end for each completion over the limit.
            let over = (self.inflight + completions - limit) as f64;
            let retry_after = Duration::from_secs_f64(over * self.end_interval_s);
            return Err(Refusal::Requests { limit, retry_after });
        }
        Ok(())
    }

    /// Puts a completion's prompt into the queue.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] if that would exceed the bound. An empty queue takes any prompt.
    pub fn enqueue(&mut self, prompt_tokens: usize) -> Result<(), Refusal> {
        let limit = self.bounds.max_queued_tokens;
        if self.queued_tokens > 0 && self.queued_tokens + prompt_tokens > limit {
            let retry_after = Duration::from_secs_f64(self.inflight as f64 * self.end_interval_s);
            return Err(Refusal::Tokens { limit, retry_after });
        }
        self.queued_tokens += prompt_tokens;
        Ok(())
    }

    /// The completion's prompt has left the queue: it runs, or it was given up.
    pub fn dequeue(&mut self, prompt_tokens: usize) {
        debug_assert!(prompt_tokens <= self.queued_tokens);
        self.queued_tokens -= prompt_tokens;
    }

    /// Books the end of a completion at `now`, however it ended.
    pub fn leave(&mut self, now: Duration) {
        debug_assert!(self.inflight > 0);
        self.inflight -= 1;
        if let Some(last) = self.last_end {
            let interval_s = now.saturating_sub(last).as_secs_f64();
            self.end_interval_s += EWMA_WEIGHT * (interval_s - self.end_interval_s);
        }
        // The time until an idle server's next end is not a measure of its speed.
        self.last_end = (self.inflight > 0).then_some(now);
    }

    /// Completions running or waiting.
    pub fn inflight(&self) -> usize {
        self.inflight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Admission {
        Admission::new(Bounds { max_inflight_requests: 4, max_queued_tokens: 100 })
    }

    #[test]
    fn refuses_beyond_the_bound_and_takes_again_after_an_end() {
        let mut admission = admission();
        (0..4).for_each(|_| admission.enter(1).unwrap());
        assert!(matches!(admission.enter(1), Err(Refusal::Requests { limit: 4, .. })));
        admission.leave(Duration::from_secs(1));
        admission.enter(1).unwrap();
    }

    #[test]
    fn retry_after_follows_the_rate_of_ends() {
        let mut admission = admission();
        (0..4).for_each(|_| admission.enter(1).unwrap());
        for n in 0..200 {
            admission.leave(Duration::from_secs(5 * n));
            admission.enter(1).unwrap();
        }
        assert_eq!(admission.enter(1).unwrap_err().retry_after_s(), 5);
        assert_eq!(admission.enter(3).unwrap_err().retry_after_s(), 15);
    }

    #[test]
    fn queued_tokens_are_bounded_but_never_deadlock() {
        let mut admission = admission();
        admission.enqueue(1000).unwrap();
        assert!(matches!(admission.enqueue(1), Err(Refusal::Tokens { .. })));
        admission.dequeue(1000);
        admission.enqueue(60).unwrap();
        admission.enqueue(40).unwrap();
        assert!(admission.enqueue(1).is_err());
    }
}
