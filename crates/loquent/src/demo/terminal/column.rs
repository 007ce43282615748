//! One column: the text that has arrived, and how often it stood still.

use std::time::{Duration, Instant};

use loquent_proto::printable::printable;

use super::lanes::LaneEvent;

/// A gap above this between two pieces of text is a stall (paper, footnote 2).
const STALL: Duration = Duration::from_millis(200);
/// Where the model itself is slow, a stall is this many of its gaps.
const STALL_GAPS: f64 = 3.0;

/// Where an answer stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnState {
    /// Nothing has come.
    Waiting,
    /// Text comes.
    Streaming,
    /// The answer is complete, this long after it was asked for.
    Complete(Duration),
    /// It never will be, and why.
    Failed(String),
}

/// How often, and for how long, text stood still.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stalls {
    /// How often.
    pub count: u32,
    /// How long in all.
    pub total: Duration,
    /// How long at most.
    pub longest: Duration,
}

/// What has arrived in one column.
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
    /// A column whose question leaves at `asked`, of a model with this speed.
    pub fn new(asked: Instant, tokens_per_s: f64) -> Self {
        let stall = STALL.max(Duration::from_secs_f64(STALL_GAPS / tokens_per_s));
        let (text, state) = (String::new(), ColumnState::Waiting);
        Self { asked, last: asked, stall, text, state, stalls: Stalls::default() }
    }

    /// Handles what happened at `at`.
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

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the answer stands.
    pub fn state(&self) -> &ColumnState {
        &self.state
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        matches!(self.state, ColumnState::Complete(_) | ColumnState::Failed(_))
    }

    /// How long the text has stood still by `now`, if that is a stall.
    pub fn standing_still(&self, now: Instant) -> Option<Duration> {
        // The wait for the first token is the model's and the question's.
        let gap = now.saturating_duration_since(self.last);
        (self.state == ColumnState::Streaming && gap > self.stall).then_some(gap)
    }

    /// The stalls by `now`, the present one included.
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
