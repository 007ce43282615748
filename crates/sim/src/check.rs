//! Checks the guarantees that must hold in every session, whatever is lost.

use crate::scheme::{Budget, DeliveryProgress};
use crate::world::{AFTERMATH_US, SessionTrace};

/// A guarantee that a session broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The text shown is not a prefix of the generated text.
    #[error("what was shown is not a prefix of what was generated")]
    NotAPrefix,
    /// The session ended neither complete nor suspended.
    #[error("the sender was still active {0} s after the last token")]
    StillActive(u64),
    /// The sender reports completion, but the receiver has not shown the end.
    #[error("the sender is complete but only {shown} of {generated} tokens were shown")]
    FalseEnd {
        /// Number of tokens that the reader saw.
        shown: usize,
        /// Number of tokens in the answer.
        generated: usize,
    },
    /// The sender repeated more than its budget allows.
    #[error("{sent} bytes of repetitions were sent where {allowed} are allowed")]
    OverBudget {
        /// Bytes sent, headers included.
        sent: u64,
        /// Bytes that the budget allows over the session.
        allowed: u64,
    },
}

/// Lists every guarantee that `trace` breaks.
pub fn violations(trace: &SessionTrace, budget: Option<Budget>) -> Vec<Violation> {
    let mut found = Vec::new();
    if !trace.prefix_holds {
        found.push(Violation::NotAPrefix);
    }
    let complete = trace.finished && trace.shown_us.len() == trace.generated_us.len();
    match trace.progress {
        DeliveryProgress::Active => found.push(Violation::StillActive(AFTERMATH_US / 1_000_000)),
        // A slow reader may still be reading at the horizon.
        DeliveryProgress::Complete if !complete && !trace.cut_off => {
            found.push(Violation::FalseEnd {
                shown: trace.shown_us.len(),
                generated: trace.generated_us.len(),
            })
        }
        DeliveryProgress::Complete | DeliveryProgress::Suspended => {}
    }
    if let Some(budget) = budget {
        let allowed = budget.burst_bytes + budget.bytes_per_s * trace.ended_us / 1_000_000;
        if trace.repeated_bytes > allowed {
            found.push(Violation::OverBudget { sent: trace.repeated_bytes, allowed });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> SessionTrace {
        SessionTrace {
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
            progress: DeliveryProgress::Complete,
            finished: true,
            prefix_holds: true,
            sightings: crate::observer::Sightings::default(),
        }
    }

    #[test]
    fn each_promise_is_watched() {
        let budget = Budget { burst_bytes: 100, bytes_per_s: 50 };
        assert_eq!(violations(&good(), None), []);
        let mut trace = good();
        trace.prefix_holds = false;
        trace.progress = DeliveryProgress::Active;
        assert_eq!(
            violations(&trace, Some(budget)),
            [
                Violation::NotAPrefix,
                Violation::StillActive(120),
                Violation::OverBudget { sent: 200, allowed: 150 }
            ]
        );
        let mut trace = good();
        trace.shown_us.pop();
        assert!(matches!(violations(&trace, None)[..], [Violation::FalseEnd { .. }]));
        trace.progress = DeliveryProgress::Suspended;
        assert_eq!(violations(&trace, None), []);
    }
}
