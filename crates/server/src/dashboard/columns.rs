//! The dashboard's figures for one second, by name: the `columns` of its events.

use std::time::Duration;

use super::moment::{Moment, Stretch};
use crate::quic_links::LinkStats;
use loquent_serving::metrics::sketch::{SketchCounts, difference, quantile};
use loquent_serving::metrics::{LatencySnapshots, MetricsSnapshot, StreamCarrier};

/// The figures of one second. NaN if there is no value, as for a percentile without samples.
pub type Row = [f32; COLUMNS.len()];

/// A figure's name and how to compute it.
type Column = (&'static str, fn(&Stretch<'_>) -> Option<f64>);

/// All figures. Names include the unit; those without one are counts at that moment or, with a past
/// participle, within that second. Shares range from 0 to 1.
pub const COLUMNS: [Column; 37] = [
    ("at_s", |of| Some(of.now.at.as_secs_f64().round())),
    ("running", |of| Some(of.now.metrics.running as f64)),
    ("waiting", |of| Some(of.now.metrics.waiting as f64)),
    ("tokens_per_s", |of| Some(rate(of, |it| it.delivered_tokens))),
    ("prompt_tokens_per_s", |of| Some(rate(of, |it| it.prefill_tokens as f64))),
    ("steps_per_s", |of| Some(rate(of, |it| it.steps as f64))),
    ("batch_size", |of| share(of, |it| it.step_rows, |it| it.steps as f64)),
    ("busy_share", |of| Some(busy_share(of.now, of.before))),
    ("step_p50_ms", |of| latency_ms(of, |it| &it.step, 0.5)),
    ("step_p99_ms", |of| latency_ms(of, |it| &it.step, 0.99)),
    ("batch_wait_p50_ms", |of| latency_ms(of, |it| &it.wait, 0.5)),
    ("batch_wait_p99_ms", |of| latency_ms(of, |it| &it.wait, 0.99)),
    ("ttft_p50_ms", |of| latency_ms(of, |it| &it.ttft, 0.5)),
    ("ttft_p95_ms", |of| latency_ms(of, |it| &it.ttft, 0.95)),
    ("ttft_p99_ms", |of| latency_ms(of, |it| &it.ttft, 0.99)),
    ("itl_p50_ms", |of| latency_ms(of, |it| &it.itl, 0.5)),
    ("itl_p95_ms", |of| latency_ms(of, |it| &it.itl, 0.95)),
    ("itl_p99_ms", |of| latency_ms(of, |it| &it.itl, 0.99)),
    ("icl_p50_ms", |of| latency_ms(of, |it| &it.icl, 0.5)),
    ("icl_p95_ms", |of| latency_ms(of, |it| &it.icl, 0.95)),
    ("icl_p99_ms", |of| latency_ms(of, |it| &it.icl, 0.99)),
    ("kv_share", |of| Some(of.now.metrics.kv_usage)),
    ("prefix_hit_share", |of| share(of, |it| it.prefix_hits as f64, |it| it.prefix_queries as f64)),
    ("http_streams", |of| Some(streams(of, StreamCarrier::Http))),
    ("quic_streams", |of| Some(streams(of, StreamCarrier::Quic))),
    ("webtransport_streams", |of| Some(streams(of, StreamCarrier::WebTransport))),
    ("loss_share", lost_share),
    ("rtt_p50_ms", |of| rtt_ms(of, |link| link.rtt_p50)),
    ("rtt_p95_ms", |of| rtt_ms(of, |link| link.rtt_p95)),
    ("redundant_share", |of| {
        share(of, |it| it.redundant_bytes as f64, |it| it.datagram_bytes as f64)
    }),
    ("resumed", |of| Some(since(of, |it| it.resumes[0]))),
    ("resumes_refused", |of| Some(since(of, |it| it.resumes[1]))),
    ("fallen_back", |of| Some(since(of, |it| it.fallbacks))),
    ("ended", |of| Some(since(of, |it| it.ended))),
    ("refused", |of| Some(since(of, |it| it.refused))),
    ("paused", |of| Some(since(of, |it| it.pauses))),
    ("preempted", |of| Some(since(of, |it| it.preemptions))),
];

/// Computes the figures of a stretch.
pub fn row(stretch: &Stretch<'_>) -> Row {
    COLUMNS.map(|(_, figure)| figure(stretch).map_or(f32::NAN, |value| value as f32))
}

/// Returns a total's growth per second.
fn rate(of: &Stretch<'_>, total: fn(&MetricsSnapshot) -> f64) -> f64 {
    (total(&of.now.metrics) - total(&of.before.metrics)) / of.elapsed_s()
}

/// Returns a total's growth.
fn since(of: &Stretch<'_>, total: fn(&MetricsSnapshot) -> u64) -> f64 {
    (total(&of.now.metrics) - total(&of.before.metrics)) as f64
}

/// Returns the ratio of two totals' growth within the window; `None` if `whole` has not grown.
fn share(
    of: &Stretch<'_>,
    part: fn(&MetricsSnapshot) -> f64,
    whole: fn(&MetricsSnapshot) -> f64,
) -> Option<f64> {
    let grown =
        |total: fn(&MetricsSnapshot) -> f64| total(&of.now.metrics) - total(&of.window.metrics);
    (grown(whole) > 0.0).then(|| grown(part) / grown(whole))
}

/// Returns the share of the time between two moments in which the engine, or the upstream server,
/// was computing.
pub fn busy_share(now: &Moment, before: &Moment) -> f64 {
    let elapsed_s = now.at.saturating_sub(before.at).as_secs_f64().max(1e-3);
    let busy_s = match (now.upstream_busy, before.upstream_busy) {
        (Some(now), before) => now.saturating_sub(before.unwrap_or_default()).as_secs_f64(),
        (None, _) => now.metrics.step_seconds - before.metrics.step_seconds,
    };
    // A step counts where it ends, though it began before.
    (busy_s / elapsed_s).clamp(0.0, 1.0)
}

fn latency_ms(
    of: &Stretch<'_>,
    which: fn(&LatencySnapshots) -> &SketchCounts,
    share: f64,
) -> Option<f64> {
    let [now, before] = [of.now, of.window].map(|moment| which(&moment.metrics.latencies));
    quantile(&difference(now, before), share).map(|seconds| seconds * 1e3)
}

fn streams(of: &Stretch<'_>, transport: StreamCarrier) -> f64 {
    of.now.metrics.streams[transport as usize] as f64
}

fn lost_share(of: &Stretch<'_>) -> Option<f64> {
    let [now, before] = [of.now, of.window].map(|moment| {
        moment.links.iter().fold((0, 0), |(sent, lost), link| (sent + link.sent, lost + link.lost))
    });
    (now.0 > before.0).then(|| (now.1 - before.1) as f64 / (now.0 - before.0) as f64)
}

/// Returns the larger value of the two kinds of connections.
fn rtt_ms(of: &Stretch<'_>, which: fn(&LinkStats) -> Option<Duration>) -> Option<f64> {
    of.now.links.iter().filter_map(which).max().map(|rtt| rtt.as_secs_f64() * 1e3)
}
