//! Runs a delivery plan: every scheme at every round-trip time, in turn.

use std::sync::Arc;

use super::metrics::SchemeTrial;
use super::plan::{DeliveryPlan, DeliveryScheme};
use super::starts::Starts;
use super::testbed::Testbed;
use super::{quic, serve, sse, udp};

/// Trials by round-trip time, then scheme.
pub type Trials = Vec<Vec<SchemeTrial>>;

/// Runs the whole plan. Calls `tell` with a line of progress before each scheme.
///
/// # Errors
/// If a scheme cannot be run, or text arrives that was never sent.
pub fn run(plan: &DeliveryPlan, tell: impl Fn(&str)) -> anyhow::Result<Trials> {
    let mut trials = Vec::new();
    for &rtt_ms in &plan.rtts_ms {
        let mut row = Vec::new();
        for &scheme in &plan.schemes {
            tell(&format!("{} at {rtt_ms} ms, {} streams", scheme.label(), plan.sessions));
            row.push(trial(plan, scheme, rtt_ms)?);
        }
        trials.push(row);
    }
    Ok(trials)
}

fn trial(plan: &DeliveryPlan, scheme: DeliveryScheme, rtt_ms: f64) -> anyhow::Result<SchemeTrial> {
    let starts = Arc::new(Starts::new(plan));
    let mut trial = match scheme {
        DeliveryScheme::Cubic | DeliveryScheme::Bbr => {
            let testbed = Testbed::namespaces(plan, rtt_ms)?;
            let traces = sse::run(plan, scheme, &testbed, &starts)?;
            testbed.finish(traces)?
        }
        DeliveryScheme::QuicStream => {
            let testbed = Testbed::namespaces(plan, rtt_ms)?;
            let traces = quic::run(plan, &testbed, &starts)?;
            testbed.finish(traces)?
        }
        DeliveryScheme::Eloquent | DeliveryScheme::LoquentUdp => {
            udp::run(plan, scheme, rtt_ms, &starts)?
        }
        DeliveryScheme::Loquent
        | DeliveryScheme::LoquentUnpadded
        | DeliveryScheme::ServeCubic
        | DeliveryScheme::ServeBbr => serve::run(plan, scheme, rtt_ms)?,
    };
    for trace in &mut trial.traces {
        // A token that was generated after the client had given up counts as missing.
        trace.ready_us.truncate(trace.generated_us.len());
    }
    Ok(trial)
}
