//! Computes metrics from arrivals, using the simulator's definitions.

use loquent_proto::Playout;
use loquent_sim::generate::TokenKind;
use loquent_sim::metrics::{Smoothness, smoothness};
use loquent_sim::reader::{ReaderBehaviour, Shower};
use loquent_sim::world::{self, Setting};
use serde::Serialize;

use super::plan::{DeliveryPlan, DeliveryScheme};
use crate::link::packet_stats::{Lateness, PacketStats};

/// Everything recorded about one stream; times are in µs after its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StreamTrace {
    /// Generation time of each token.
    pub generated_us: Vec<u64>,
    /// Time at which each token could be shown in order; shorter if some never arrived.
    pub ready_us: Vec<u64>,
    /// Packets sent to the client.
    pub down: PacketStats,
    /// Packets sent to the server.
    pub up: PacketStats,
}

/// All measurements of one scheme at one round-trip time.
#[derive(Debug, Clone, Default)]
pub struct SchemeTrial {
    /// One trace for each stream.
    pub traces: Vec<StreamTrace>,
    /// Delay of packet deliveries by the emulator beyond their due time.
    pub lateness: Lateness,
    /// CPU time of the server's process per token, in µs, if there is a server process.
    pub server_cpu_us_per_token: Option<f64>,
    /// Time from the first token's generation to its arrival, in ms, by stream.
    pub first_token_ms: Vec<f64>,
}

/// The metrics of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StreamMetrics {
    /// Smoothness of the tokens as they become ready in order.
    pub ready: Smoothness,
    /// The stall ratio with a threshold of 205 ms. Two tokens of 10 per second are exactly 200 ms
    /// apart when one was lost between them, which is no stall in the simulator's exact time but a
    /// stall in half of all cases on real clocks. This metric does not depend on that.
    pub full_205: f64,
    /// Smoothness as displayed by a client with a playout buffer.
    pub paced: Smoothness,
    /// kB per second to the client, headers included.
    pub down_kb_s: f64,
    /// kB per second to the server, headers included.
    pub up_kb_s: f64,
    /// Packets per second to the client.
    pub packets_per_s: f64,
    /// Number of tokens that never arrived.
    pub missing: usize,
}

/// Computes the metrics of one stream.
pub fn stream_metrics(
    plan: &DeliveryPlan,
    scheme: DeliveryScheme,
    rtt_ms: f64,
    trace: &StreamTrace,
) -> StreamMetrics {
    let rtt_us = (rtt_ms * 1e3) as u64;
    let paced_us = displayed_us(&trace.ready_us, plan.pace());
    let kb_s = |packet_stats: &PacketStats| {
        let bytes = packet_stats.bytes + packet_stats.packets * scheme.missing_header_bytes();
        bytes as f64 / 1e3 / plan.seconds
    };
    StreamMetrics {
        ready: smoothness(&trace.generated_us, &trace.ready_us, rtt_us, None),
        full_205: stall_share(&trace.generated_us, &trace.ready_us, rtt_us, TOLERANT_STALL_US),
        paced: smoothness(&trace.generated_us, &paced_us, rtt_us, None),
        down_kb_s: kb_s(&trace.down),
        up_kb_s: kb_s(&trace.up),
        packets_per_s: trace.down.packets as f64 / plan.seconds,
        missing: trace.generated_us.len() - trace.ready_us.len(),
    }
}

/// Threshold of [`StreamMetrics::full_205`].
const TOLERANT_STALL_US: u64 = 205_000;

/// Returns the share of the stall ratio's time span that is in gaps above a threshold.
fn stall_share(generated_us: &[u64], ready_us: &[u64], rtt_us: u64, threshold_us: u64) -> f64 {
    let Some((&first, &last)) = generated_us.first().zip(ready_us.last()) else {
        return 0.0;
    };
    let start = first + rtt_us / 2;
    let times = std::iter::once(start).chain(ready_us.iter().copied());
    let gaps = times.zip(ready_us).map(|(from, to)| to.saturating_sub(from));
    let stalled: u64 = gaps.filter(|&gap| gap > threshold_us).sum();
    stalled as f64 / last.saturating_sub(start).max(1) as f64
}

/// Returns the times at which a client with this playout shows tokens that became ready at the
/// given times.
pub fn displayed_us(ready_us: &[u64], pace: Playout) -> Vec<u64> {
    let mut shower = Shower::new(pace);
    let mut shown_us = Vec::with_capacity(ready_us.len());
    let mut waiting = ready_us;
    while shown_us.len() < ready_us.len() {
        let next = waiting.first().copied().into_iter().chain(shower.poll_timeout()).min();
        let Some(now_us) = next else { break };
        let arrived = waiting.partition_point(|&at| at <= now_us);
        waiting = &waiting[arrived..];
        shower.handle_arrival(now_us, arrived as u32);
        let due = shower.take_due(now_us);
        shown_us.extend(std::iter::repeat_n(now_us, due));
    }
    shown_us
}

/// Computes the simulator's metrics for the same session, with tokens generated at `generated_us`.
pub fn predict(
    plan: &DeliveryPlan,
    scheme: DeliveryScheme,
    rtt_ms: f64,
    session: usize,
    generated_us: &[u64],
) -> StreamMetrics {
    let setting = Setting {
        link: &plan.link(rtt_ms),
        generator: &plan.generator(),
        text: TokenKind::default(),
        reader: ReaderBehaviour::default(),
        length_us: plan.length_us(),
        seed: plan.session_seed(session),
        observe: false,
    };
    let trace = world::run_at(&scheme.simulated(), &setting, generated_us.to_vec());
    let rtt_us = (rtt_ms * 1e3) as u64;
    let paced_us = displayed_us(&trace.ready_us, plan.pace());
    StreamMetrics {
        ready: smoothness(&trace.generated_us, &trace.ready_us, rtt_us, None),
        full_205: stall_share(&trace.generated_us, &trace.ready_us, rtt_us, TOLERANT_STALL_US),
        paced: smoothness(&trace.generated_us, &paced_us, rtt_us, None),
        down_kb_s: trace.wire_bytes as f64 / 1e3 / plan.seconds,
        up_kb_s: trace.ack_bytes as f64 / 1e3 / plan.seconds,
        packets_per_s: trace.packets as f64 / plan.seconds,
        missing: trace.generated_us.len() - trace.ready_us.len(),
    }
}

/// A metric summarized over all streams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanInterval {
    /// Arithmetic mean over the streams.
    pub mean: f64,
    /// Half the width of the mean's 95 % interval.
    pub half: f64,
    /// Median of the streams.
    pub median: f64,
}

/// Computes mean, interval and median of `value` over streams.
///
/// # Panics
/// If there are no streams.
pub fn spread(figures: &[StreamMetrics], value: impl Fn(&StreamMetrics) -> f64) -> MeanInterval {
    assert!(!figures.is_empty(), "no streams");
    let values: Vec<f64> = figures.iter().map(value).collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let median = loquent_sim::stats::median(values).unwrap_or(mean);
    MeanInterval { mean, half: 1.96 * (variance / count).sqrt(), median }
}

#[cfg(test)]
mod tests {
    use loquent_proto::Micros;

    use super::*;

    #[test]
    fn without_a_pace_tokens_are_shown_as_they_come() {
        let ready = [0, 100_000, 100_000, 500_000];
        assert_eq!(displayed_us(&ready, Playout::IMMEDIATE), ready);
    }

    #[test]
    fn a_pace_hides_a_gap_that_is_shorter_than_its_buffer() {
        // A token every 100 ms, but between 5.0 s and 5.3 s nothing comes.
        let ready: Vec<u64> = (0..100)
            .map(|i| i * 100_000)
            .map(|at| if (5_000_000..5_300_000).contains(&at) { 5_300_000 } else { at })
            .collect();
        let shown =
            displayed_us(&ready, Playout { buffer: Micros::from_ms(300), max_tokens_per_s: None });
        assert_eq!(shown.len(), ready.len());
        let longest = shown.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= 200_000, "{longest}");
        assert!(shown.iter().zip(&ready).all(|(shown, ready)| shown >= ready));
    }

    #[test]
    fn the_tolerant_stall_ratio_forgives_five_milliseconds() {
        let generated: Vec<u64> = (0..10).map(|i| i * 100_000).collect();
        let mut ready: Vec<u64> = generated.iter().map(|at| at + 50_000).collect();
        ready[4] += 101_000;
        ready[5] += 1_000;
        let strict = smoothness(&generated, &ready, 100_000, None).full;
        assert!((strict - stall_share(&generated, &ready, 100_000, 200_000)).abs() < 1e-9);
        assert!(strict > 0.2, "{strict}");
        assert_eq!(stall_share(&generated, &ready, 100_000, TOLERANT_STALL_US), 0.0);
    }

    #[test]
    fn spreads_have_mean_interval_and_median() {
        let figures = [1.0, 2.0, 6.0]
            .map(|down_kb_s| StreamMetrics { down_kb_s, ..StreamMetrics::default() });
        let spread = spread(&figures, |figures| figures.down_kb_s);
        assert_eq!((spread.mean, spread.median), (3.0, 2.0));
        assert!((spread.half - 1.96 * (7.0f64 / 3.0).sqrt()).abs() < 1e-9);
    }
}
