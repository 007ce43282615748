//! Times of a streamed answer, for the APIs whose last event has them.

use std::time::Duration;

use loquent_proto::Delta;
use loquent_serving::answer_times::AnswerTimes;
use loquent_serving::clock::Clock;

/// Notes when the tokens of one answer pass.
#[derive(Debug)]
pub struct StreamTimes {
    clock: Clock,
    arrived: Duration,
    first: Option<Duration>,
    last: Duration,
}

impl StreamTimes {
    /// Begins with a request that arrived at `arrived` on `clock`.
    pub const fn new(clock: Clock, arrived: Duration) -> Self {
        Self { clock, arrived, first: None, last: arrived }
    }

    /// Notes the tokens of `delta`, if it has any.
    pub fn note(&mut self, delta: &Delta) {
        if delta.tokens() > 0 {
            self.last = self.clock.now();
            self.first.get_or_insert(self.last);
        }
    }

    /// Returns the durations up to now; without a token, the first two are zero.
    pub fn times(&self) -> AnswerTimes {
        let first = self.first.unwrap_or(self.last);
        AnswerTimes {
            prompt: first.saturating_sub(self.arrived),
            generation: self.last.saturating_sub(first),
            total: self.clock.now().saturating_sub(self.arrived),
        }
    }
}
