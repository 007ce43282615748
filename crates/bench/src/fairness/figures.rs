//! The figures of a trial, and the spread over several trials of a case.

use std::ops::Range;

use loquent_sim::stats::{median, percentile};
use serde::Serialize;

use super::plan::FairnessPlan;
use crate::link::packet_stats::{LinkSummary, PacketStats};

/// Gap between tokens above which it counts as a stall: the simulator's 200 ms plus a tolerance for
/// real clocks.
const STALL_US: u64 = 205_000;

/// Figures of one token stream during the measurement, from the reader's view.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StreamView {
    /// Tokens that became ready, per second.
    pub tokens_per_s: f64,
    /// Share of the time spent in gaps between tokens that are stalls.
    pub stalled: f64,
    /// Median time from a token's generation until it was ready, in ms; `None` if no token was
    /// ready.
    pub delay_ms: Option<f64>,
    /// Age of the oldest token still missing at the end, in seconds.
    pub behind_s: f64,
}

impl StreamView {
    /// Computes the figures within the times `within`, of tokens generated at `generated_us` that
    /// were ready in order at `ready_us`. All times are in µs after the stream's start.
    pub fn new(generated_us: &[u64], ready_us: &[u64], within: Range<u64>) -> Self {
        let Range { start, end } = within;
        let first = ready_us.partition_point(|&at| at < start);
        let last = ready_us.partition_point(|&at| at < end);
        let seen = &ready_us[first..last];
        let edges = std::iter::once(start).chain(seen.iter().copied());
        let gaps = edges.zip(seen.iter().copied().chain([end])).map(|(from, to)| to - from);
        let stalled: u64 = gaps.filter(|&gap| gap > STALL_US).sum();
        let generated = generated_us.iter().skip(first);
        let delays = seen.iter().zip(generated).map(|(at, from)| at.saturating_sub(*from) as f64);
        let missing = generated_us.get(last).map_or(0, |&at| end.saturating_sub(at));
        let length_us = (end - start) as f64;
        Self {
            tokens_per_s: seen.len() as f64 * 1e6 / length_us,
            stalled: stalled as f64 / length_us,
            delay_ms: median(delays.map(|us| us / 1e3).collect()),
            behind_s: missing as f64 / 1e6,
        }
    }
}

/// Packet counts of one direction, as rates.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct WireShare {
    /// kB per second sent into the link, including all headers.
    pub kb_s: f64,
    /// Packets per second.
    pub packets_per_s: f64,
    /// Share of the packets that the queue dropped.
    pub dropped: f64,
    /// Mean time of a packet in the queue, in ms.
    pub queue_ms: f64,
}

impl WireShare {
    fn of(counts: &[&PacketStats], plan: &FairnessPlan) -> Self {
        let sum = |value: fn(&PacketStats) -> u64| counts.iter().map(|c| value(c)).sum::<u64>();
        let (packets, dropped) = (sum(|c| c.packets), sum(PacketStats::dropped));
        let transit_ms: f64 = counts.iter().map(|c| c.transit_ms_sum).sum();
        let (seconds, delivered) = (plan.length.as_secs_f64(), (packets - dropped).max(1) as f64);
        Self {
            kb_s: sum(|c| c.bytes) as f64 / 1e3 / seconds,
            packets_per_s: packets as f64 / seconds,
            dropped: dropped as f64 / packets.max(1) as f64,
            queue_ms: (transit_ms / delivered - plan.rtt_ms / 2.0).max(0.0),
        }
    }
}

/// The figures of one trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrialStats {
    /// Each download's goodput: bytes that its client read, in kbit/s.
    pub goodput_kbps: Vec<f64>,
    /// The token streams; empty if the downloads were alone.
    pub streams: Vec<StreamView>,
    /// All downloads' packets to the clients.
    pub downloads_down: WireShare,
    /// All token streams' packets to the clients.
    pub streams_down: WireShare,
    /// All token streams' packets to the server.
    pub streams_up: WireShare,
    /// 99th percentile of the emulator's delivery delay beyond the due time, in ms.
    pub late_p99_ms: f64,
}

impl TrialStats {
    /// Computes the figures of a trial whose downloads have `read` these bytes.
    pub fn new(
        plan: &FairnessPlan,
        read: &[u64],
        streams: Vec<StreamView>,
        link: &LinkSummary,
    ) -> Self {
        let kbps = |bytes: &u64| *bytes as f64 * 8e-3 / plan.length.as_secs_f64();
        let (downloads, talkers) = link.paths.split_at(plan.downloads);
        let side = |paths: &[[PacketStats; 2]], side: usize| {
            WireShare::of(&paths.iter().map(|path| &path[side]).collect::<Vec<_>>(), plan)
        };
        Self {
            goodput_kbps: read.iter().map(kbps).collect(),
            streams,
            downloads_down: side(downloads, 0),
            streams_down: side(talkers, 0),
            streams_up: side(talkers, 1),
            late_p99_ms: link.lateness.quantile_ms(0.99),
        }
    }

    /// Returns the total goodput of all downloads, in kbit/s.
    pub fn total_kbps(&self) -> f64 {
        self.goodput_kbps.iter().sum()
    }

    /// Returns the mean over the streams.
    pub fn mean(&self, value: impl Fn(&StreamView) -> f64) -> f64 {
        self.streams.iter().map(value).sum::<f64>() / self.streams.len().max(1) as f64
    }
}

/// Median and extremes over runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of `values`; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |share| percentile(&values, share);
        Some(Self { median: at(0.5)?, min: at(0.0)?, max: at(1.0)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_counts_only_what_lies_within_the_measurement() {
        let generated: Vec<u64> = (0..40).map(|i| i * 100_000).collect();
        let ready: Vec<u64> = generated.iter().map(|at| at + 60_000).collect();
        let view = StreamView::new(&generated, &ready, 1_000_000..3_000_000);
        assert_eq!((view.tokens_per_s, view.stalled, view.behind_s), (10.0, 0.0, 0.0));
        assert_eq!(view.delay_ms, Some(60.0));
    }

    #[test]
    fn a_stream_that_stops_stalls_to_the_end() {
        let generated: Vec<u64> = (0..40).map(|i| i * 100_000).collect();
        let ready: Vec<u64> = generated[..20].to_vec();
        let view = StreamView::new(&generated, &ready, 1_000_000..3_000_000);
        assert_eq!(view.tokens_per_s, 5.0);
        assert_eq!(view.stalled, 0.55, "from 1.9 s to 3 s");
        assert_eq!(view.behind_s, 1.0, "the token of 2 s");
        let silent = StreamView::new(&generated, &[], 1_000_000..3_000_000);
        assert_eq!((silent.stalled, silent.delay_ms, silent.behind_s), (1.0, None, 3.0));
    }

    #[test]
    fn spreads_need_a_value() {
        assert_eq!(Spread::of(Vec::new()), None);
        let spread = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.0, 3.0));
    }
}
