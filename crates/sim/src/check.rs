//! Checkers: what must hold in every session, whatever the weather.

use crate::scheme::Progress;
use crate::world::{AFTERMATH_US, Course};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Something was shown that is not a prefix of what was generated.
    #[error("what was shown is not a prefix of what was generated")]
    NotAPrefix,
    /// The session ended neither complete nor suspended.
    #[error("the sender was still active {0} s after the last token")]
    StillActive(u64),
    /// The sender says complete, the receiver has not shown the end.
    #[error("the sender is complete but only {shown} of {generated} tokens were shown")]
    FalseEnd {
        /// Tokens shown.
        shown: usize,
        /// Tokens generated.
        generated: usize,
    },
    /// More was repeated than the budget allows.
    #[error("{sent} bytes of repetitions were sent where {allowed} are allowed")]
    OverBudget {
        /// Bytes sent, headers included.
        sent: u64,
        /// The bucket's bytes over the session.
        allowed: u64,
    },
}

/// Bounds what a sender may spend on packets without new text, headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes that may be spent at once.
    pub burst_bytes: u64,
    /// Bytes that come in per second.
    pub bytes_per_s: u64,
}

/// Names every promise that `course` breaks.
pub fn violations(course: &Course, budget: Option<Budget>) -> Vec<Violation> {
    let mut found = Vec::new();
    if !course.prefix_holds {
        found.push(Violation::NotAPrefix);
    }
    let complete = course.finished && course.shown_us.len() == course.generated_us.len();
    match course.progress {
        Progress::Active => found.push(Violation::StillActive(AFTERMATH_US / 1_000_000)),
        // A slow reader may still be reading at the horizon.
        Progress::Complete if !complete && !course.cut_off => found.push(Violation::FalseEnd {
            shown: course.shown_us.len(),
            generated: course.generated_us.len(),
        }),
        Progress::Complete | Progress::Suspended => {}
    }
    if let Some(budget) = budget {
        let allowed = budget.burst_bytes + budget.bytes_per_s * course.ended_us / 1_000_000;
        if course.repeated_bytes > allowed {
            found.push(Violation::OverBudget { sent: course.repeated_bytes, allowed });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Course {
        Course {
            generated_us: vec![0, 100],
            ready_us: vec![50, 150],
            shown_us: vec![50, 150],
            wire_bytes: 200,
            ack_bytes: 100,
            packets: 2,
            redundancy: 0.0,
            repeated_bytes: 200,
            ended_us: 1_000_000,
            cut_off: false,
            progress: Progress::Complete,
            finished: true,
            prefix_holds: true,
        }
    }

    #[test]
    fn each_promise_is_watched() {
        let budget = Budget { burst_bytes: 100, bytes_per_s: 50 };
        assert_eq!(violations(&good(), None), []);
        let mut course = good();
        course.prefix_holds = false;
        course.progress = Progress::Active;
        assert_eq!(
            violations(&course, Some(budget)),
            [
                Violation::NotAPrefix,
                Violation::StillActive(120),
                Violation::OverBudget { sent: 200, allowed: 150 }
            ]
        );
        let mut course = good();
        course.shown_us.pop();
        assert!(matches!(violations(&course, None)[..], [Violation::FalseEnd { .. }]));
        course.progress = Progress::Suspended;
        assert_eq!(violations(&course, None), []);
    }
}
