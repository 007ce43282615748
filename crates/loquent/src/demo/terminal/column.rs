//! One column: the text that has arrived, and its stalls.

use std::time::{Duration, Instant};

use loquent_proto::printable::printable;

use super::lanes::LaneEvent;

/// Gap between two pieces of text above which it is a stall (paper, footnote 2).
const STALL: Duration = Duration::from_millis(200);
/// Number of token gaps that make a stall if the model itself is slow.
const STALL_GAPS: f64 = 3.0;

/// State of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnState {
    /// Nothing has arrived.
    Waiting,
    /// Text is arriving.
    Streaming,
    /// The answer is complete, this long after the question.
    Complete(Duration),
    /// The answer failed, for this reason.
    Failed(String),
}

/// Number and durations of stalls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Number of stalls.
    pub count: u32,
    /// Total duration.
    pub total: Duration,
    /// Duration of the longest.
    pub longest: Duration,
}

/// Contents of one column.
#[derive(Debug, Clone)]
pub struct Column {
    asked: Instant,
    last: Instant,
    stall: Duration,
    text: String,
    state: ColumnState,
    stalls: Stalls,
}

impl Column {
    /// Creates a column whose question is sent at `asked`, for a model with this speed.
    pub fn new(asked: Instant, tokens_per_s: f64) -> Self {
        let stall = STALL.max(Duration::from_secs_f64(STALL_GAPS / tokens_per_s));
        let (text, state) = (String::new(), ColumnState::Waiting);
        Self { asked, last: asked, stall, text, state, stalls: Stalls::default() }
    }

    /// Handles an event that happened at `at`.
    pub fn handle(&mut self, at: Instant, event: LaneEvent) {
        match event {
            LaneEvent::Text(text) => {
                self.stalls = self.stalls_at(at);
                self.last = at;
                self.state = ColumnState::Streaming;
                self.text.push_str(&printable(&text));
            }
            LaneEvent::Complete => {
                // The end is awaited like text: until it is here, nobody knows that all is.
                self.stalls = self.stalls_at(at);
                self.state = ColumnState::Complete(at - self.asked);
            }
            LaneEvent::Failed(why) => {
                self.stalls = self.stalls_at(at);
                self.state = ColumnState::Failed(printable(&why).into_owned());
            }
        }
    }

    /// Returns the text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the state of the answer.
    pub fn state(&self) -> &ColumnState {
        &self.state
    }

    /// Returns true if nothing more will arrive.
    pub fn is_over(&self) -> bool {
        matches!(self.state, ColumnState::Complete(_) | ColumnState::Failed(_))
    }

    /// Returns the duration of the current stall at `now`, if there is one.
    pub fn standing_still(&self, now: Instant) -> Option<Duration> {
        // The wait for the first token is the model's and the question's.
        let gap = now.saturating_duration_since(self.last);
        (self.state == ColumnState::Streaming && gap > self.stall).then_some(gap)
    }

    /// Returns the stalls at `now`, the current one included.
    pub fn stalls_at(&self, now: Instant) -> Stalls {
        let Some(gap) = self.standing_still(now) else { return self.stalls };
        Stalls {
            count: self.stalls.count + 1,
            total: self.stalls.total + gap,
            longest: self.stalls.longest.max(gap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> LaneEvent {
        LaneEvent::Text(text.into())
    }

    #[test]
    fn gaps_above_the_limit_are_stalls_and_the_first_wait_is_none() {
        let asked = Instant::now();
        let at = |ms| asked + Duration::from_millis(ms);
        let mut column = Column::new(asked, 30.0);
        assert_eq!(column.standing_still(at(5_000)), None);
        column.handle(at(5_000), text("one"));
        column.handle(at(5_200), text(" two"));
        assert_eq!(column.stalls_at(at(5_400)), Stalls::default());
        let present = column.stalls_at(at(5_900));
        assert_eq!((present.count, present.total), (1, Duration::from_millis(700)));
        column.handle(at(6_200), text(" three"));
        column.handle(at(6_500), LaneEvent::Complete);
        let total = Duration::from_millis(1_300);
        let expected = Stalls { count: 2, total, longest: Duration::from_millis(1_000) };
        assert_eq!(column.stalls_at(at(60_000)), expected);
        assert_eq!(column.text(), "one two three");
        assert_eq!(column.state(), &ColumnState::Complete(Duration::from_millis(6_500)));
    }

    #[test]
    fn a_slow_models_own_gaps_are_no_stalls() {
        let asked = Instant::now();
        let mut column = Column::new(asked, 2.0);
        column.handle(asked, text("a"));
        assert_eq!(column.standing_still(asked + Duration::from_millis(1_400)), None);
        assert!(column.standing_still(asked + Duration::from_millis(1_600)).is_some());
    }

    #[test]
    fn what_a_server_sends_cannot_rewrite_the_screen() {
        let mut column = Column::new(Instant::now(), 30.0);
        column.handle(Instant::now(), text("a\x1b[2Jb"));
        assert_eq!(column.text(), "a[2Jb");
        column.handle(Instant::now(), LaneEvent::Failed("\x1b]0;x\x07".into()));
        assert_eq!(column.state(), &ColumnState::Failed("]0;x".into()));
    }
}
