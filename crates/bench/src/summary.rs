//! Computes metrics from records.
//!
//! Definitions: TTFT is the first non-empty delta's arrival minus the scheduled send; TPOT
//! per request is (last − first arrival)/(n − 1); ITL pools the gaps between the server's
//! token emissions; ICL pools the gaps between chunk arrivals, so that coalescing cannot
//! hide in it; latency ends with the last byte; throughput is counted tokens by
//! (last finish − first submit).

use serde::Serialize;

use crate::plan::Slo;
use crate::process;
use crate::reconcile::{LATE_MS, Reconciled, reconcile, stall};
use crate::record::{RequestRecord, RequestRole, ms};
use crate::target::FailureKind;
use loquent_sim::stats::Samples;

/// The percentiles of every distribution, with their names.
pub const PERCENTILES: [(&str, &str, f64); 5] = [
    ("p50", "Median", 0.5),
    ("p90", "P90", 0.9),
    ("p95", "P95", 0.95),
    ("p99", "P99", 0.99),
    ("p99_9", "P99.9", 0.999),
];

/// One figure of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// Stable name for programs, with its unit.
    pub key: String,
    /// Heading under which tables show it.
    #[serde(skip)]
    pub section: &'static str,
    /// Name for readers, with its unit.
    #[serde(skip)]
    pub label: String,
    /// The value, in the unit of the name.
    pub value: f64,
}

/// The resources that a run used, in addition to its records.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resources {
    /// Use by the server's process, if it is local and known.
    pub server: Option<process::ResourceUsage>,
    /// Use by this process, the load generator.
    pub generator: Option<process::ResourceUsage>,
}

/// Samples for the plots.
#[derive(Debug, Clone, Default)]
pub struct Plots {
    /// TTFT in milliseconds.
    pub ttft_ms: Samples,
    /// ICL in milliseconds.
    pub icl_ms: Samples,
    /// Tokens per chunk.
    pub tokens_per_chunk: Samples,
    /// Tokens over time, in bins that suit the run's length.
    pub rate: RateBins,
}

/// Tokens that arrived in each of many equal intervals of a run.
#[derive(Debug, Clone, Default)]
pub struct RateBins {
    /// Width of a bin in seconds.
    pub width_s: f64,
    /// Tokens in each bin, starting at the run's start.
    pub tokens: Vec<f64>,
}

const DELIVERY: &str = "Delivery";
const DISTURBANCES: &str = "Disturbances";
const GOODPUT: &str = "Goodput";
const RESOURCES: &str = "Resources";

/// Maximum width of a plot's bins, in seconds. The peak rate is taken over four bins of this width.
const RATE_BIN_S: f64 = 0.25;
/// Minimum number of bins in the plot of a short run, whose bins are narrower.
const LEAST_BINS: f64 = 40.0;
/// Maximum number of bins; a longer run is truncated in the plot, but not in the metrics.
const MAX_BINS: usize = 100_000;

/// Metrics and plots of one run.
#[derive(Debug, Clone, Default)]
pub struct RunSummary {
    /// The metrics in the order of the table.
    pub metrics: Vec<Measurement>,
    /// Samples for the plots.
    pub plots: Plots,
}

impl RunSummary {
    /// Returns the value of a metric.
    pub fn value(&self, key: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.key == key).map(|metric| metric.value)
    }

    /// Adds the share and the rate of the measured requests that met `slo`, if any objective is
    /// set. A failed or refused request meets none (goodput as in DistServe, Zhong et al., OSDI
    /// 2024).
    pub fn add_goodput(&mut self, records: &[RequestRecord], slo: Slo) {
        if slo == Slo::default() {
            return;
        }
        let run = RunData::of(records);
        let good = run.finished.iter().filter(|record| meets(record, slo)).count() as f64;
        let share = Some(good / run.measured.len() as f64).filter(|share| share.is_finite());
        let rate = Some(good / run.duration_s).filter(|rate| rate.is_finite());
        self.push(GOODPUT, "slo_met_requests", "Requests that met the SLOs", good);
        self.push_some(GOODPUT, "slo_met_share", "Share of all requests", share);
        self.push_some(GOODPUT, "goodput", "Goodput (req/s)", rate);
    }

    fn push(&mut self, section: &'static str, key: &str, label: &str, value: f64) {
        let (key, label) = (key.to_owned(), label.to_owned());
        self.metrics.push(Measurement { key, section, label, value });
    }

    fn push_some(&mut self, section: &'static str, key: &str, label: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.push(section, key, label, value);
        }
    }

    fn distribution(&mut self, section: &'static str, key: &str, name: &str, samples: &Samples) {
        let (key_unit, unit) = unit_of(key);
        let stem = key.strip_suffix(key_unit).unwrap_or(key);
        if samples.is_empty() {
            return;
        }
        let mut line = |id: &str, title: &str, value: Option<f64>| {
            self.push_some(
                section,
                &format!("{stem}_{id}{key_unit}"),
                &format!("{title} {name}{unit}"),
                value,
            );
        };
        line("mean", "Mean", samples.mean());
        for (id, title, p) in PERCENTILES {
            line(id, title, samples.percentile(p));
        }
        line("max", "Max", samples.max());
    }
}

fn unit_of(key: &str) -> (&'static str, &'static str) {
    if key.ends_with("_ms") { ("_ms", " (ms)") } else { ("", "") }
}

/// The measured requests of a run, with intermediate results used by several metrics, computed
/// once.
struct RunData<'a> {
    measured: Vec<&'a RequestRecord>,
    finished: Vec<&'a RequestRecord>,
    joined: Vec<Option<Reconciled>>,
    duration_s: f64,
    tokens: Option<u64>,
}

impl<'a> RunData<'a> {
    fn of(records: &'a [RequestRecord]) -> Self {
        let measured: Vec<&RequestRecord> =
            records.iter().filter(|r| r.role == RequestRole::Measured).collect();
        let finished: Vec<&RequestRecord> =
            measured.iter().copied().filter(|r| r.finished()).collect();
        let first = measured.iter().map(|record| record.submitted_us).min().unwrap_or(0);
        let last = finished.iter().map(|record| record.ended_us).max().unwrap_or(first);
        RunData {
            joined: finished.iter().map(|record| reconcile(record)).collect(),
            tokens: finished.iter().map(|record| record.completion_tokens()).sum(),
            duration_s: ms(last.saturating_sub(first)) / 1e3,
            measured,
            finished,
        }
    }

    fn pool<I: IntoIterator<Item = f64>>(&self, of: impl Fn(&RequestRecord) -> I) -> Samples {
        self.finished.iter().flat_map(|record| of(record)).collect()
    }

    /// Collects a field of the server's timings from all requests, converted from microseconds to
    /// milliseconds.
    fn timing(&self, of: fn(&loquent_client::openai::ServerTimings) -> Option<f64>) -> Samples {
        self.pool(|record| record.timings.as_deref().and_then(of).map(|us| us / 1e3))
    }

    fn joined(&self, of: fn(&Reconciled) -> &Vec<f64>) -> Samples {
        self.joined.iter().flatten().flat_map(|joined| of(joined).iter().copied()).collect()
    }
}

/// Computes all metrics of a run.
pub fn summarize(records: &[RequestRecord], resources: &Resources) -> RunSummary {
    let run = RunData::of(records);
    let mut summary = RunSummary { metrics: Vec::new(), plots: plots(&run) };
    push_counts(&mut summary, &run);
    push_rates(&mut summary, &run);
    push_client(&mut summary, &run);
    push_server(&mut summary, &run);
    push_chunks(&mut summary, &run);
    push_stalls(&mut summary, &run);
    push_way(&mut summary, &run);
    push_disturbance(&mut summary, records);
    push_injected(&mut summary, &run, records);
    if let Some(server) = &resources.server {
        push_server_process(&mut summary, records, server);
    }
    if let Some(generator) = &resources.generator {
        push_generator(&mut summary, &run, generator);
    }
    summary
}

/// Returns true if a finished answer met `slo`.
fn meets(record: &RequestRecord, slo: Slo) -> bool {
    let within = |value: Option<f64>, most: Option<f64>| match (value, most) {
        (Some(value), Some(most)) => value <= most,
        // An answer without text, or of one chunk, has no gap that could be too long.
        (None, _) | (_, None) => true,
    };
    let gaps: Samples = record.icl_ms().collect();
    // One without text made its reader wait for its end.
    let is_in_time = record.ttft_ms().or(slo.ttft_ms.map(|_| record.latency_ms()));
    within(is_in_time, slo.ttft_ms) && within(gaps.percentile(0.99), slo.icl_ms)
}

fn push_counts(summary: &mut RunSummary, run: &RunData<'_>) {
    let failed = |overloaded: bool| {
        let kinds = run.measured.iter().filter_map(|record| Some(record.failure()?.kind));
        kinds.filter(|kind| (*kind == FailureKind::Overloaded) == overloaded).count() as f64
    };
    let mut push = |key, label, value| summary.push("", key, label, value);
    push("successful_requests", "Successful requests", run.finished.len() as f64);
    push("failed_requests", "Failed requests", failed(false));
    push("refused_requests", "Refused requests (429, 503)", failed(true));
    push("duration_s", "Benchmark duration (s)", run.duration_s);
}

fn push_rates(summary: &mut RunSummary, run: &RunData<'_>) {
    let input: Option<u64> = run.finished.iter().map(|r| Some(r.usage?.prompt_tokens)).sum();
    let (input, output) = (input.map(|n| n as f64), run.tokens.map(|n| n as f64));
    let requests = run.finished.len() as f64;
    let per_s = |count: Option<f64>| Some(count? / run.duration_s).filter(|rate| rate.is_finite());
    let total = output.zip(input).map(|(output, input)| output + input);
    let bins = (1.0 / RATE_BIN_S) as usize;
    let binned = tokens_per_bin(run, RATE_BIN_S);
    let seconds = binned.windows(bins).map(|bins| bins.iter().sum::<f64>());
    let peak = seconds.reduce(f64::max).filter(|_| output.is_some());
    let concurrency = peak_concurrency(run.measured.iter().copied());
    let mut push = |key, label, value| summary.push_some("", key, label, value);
    push("input_tokens", "Total input tokens", input);
    push("output_tokens", "Total generated tokens", output);
    push("request_throughput", "Request throughput (req/s)", per_s(Some(requests)));
    push("output_throughput", "Output token throughput (tok/s)", per_s(output));
    push("total_throughput", "Total token throughput (tok/s)", per_s(total));
    push("peak_output_throughput", "Peak output token throughput (tok/s)", peak);
    push("peak_concurrency", "Peak concurrent requests", Some(concurrency));
}

fn peak_concurrency<'a>(records: impl IntoIterator<Item = &'a RequestRecord> + Clone) -> f64 {
    let begins = records.clone().into_iter().map(|record| (record.submitted_us, 1));
    let ends = records.into_iter().map(|record| (record.ended_us, -1));
    let mut changes: Vec<(u64, i64)> = begins.chain(ends).collect();
    // At equal times ends come first: they do not overlap.
    changes.sort_unstable();
    let mut now = 0;
    changes.into_iter().fold(0, |peak, (_, change)| {
        now += change;
        peak.max(now)
    }) as f64
}

fn push_client(summary: &mut RunSummary, run: &RunData<'_>) {
    let (ttft, icl) = (summary.plots.ttft_ms.clone(), summary.plots.icl_ms.clone());
    summary.distribution("Time to First Token", "ttft_ms", "TTFT", &ttft);
    let tpot = run.pool(|record| record.tpot_ms());
    summary.distribution("Time per Output Token (excl. 1st token)", "tpot_ms", "TPOT", &tpot);
    summary.distribution("Inter-chunk Latency (arrival here)", "icl_ms", "ICL", &icl);
    let latency = run.pool(|record| [record.latency_ms()]);
    summary.distribution("End-to-end Latency", "e2el_ms", "E2EL", &latency);
    let accept = run.pool(|r| r.accepted_us.map(|at| ms(at.saturating_sub(r.submitted_us))));
    summary.distribution("Submission to acceptance", "accept_ms", "accept", &accept);
    let lag = run.pool(|record| [ms(record.submitted_us.saturating_sub(record.scheduled_us))]);
    summary.distribution("Submit lag of this generator", "submit_lag_ms", "submit lag", &lag);
    let submits = run.measured.iter().map(|record| record.submitted_us);
    let wall = submits.clone().max().zip(submits.min()).map(|(last, first)| ms(last - first));
    summary.push_some("Submit lag of this generator", "submit_wall_ms", "Submit wall (ms)", wall);
}

fn push_server(summary: &mut RunSummary, run: &RunData<'_>) {
    let tokenize = run.timing(|timings| timings.tokenize_us);
    summary.distribution("Tokenize (server)", "tokenize_ms", "tokenize", &tokenize);
    let queue = run.timing(|timings| timings.queue_us);
    summary.distribution("Queue wait after tokenizing (server)", "queue_ms", "queue wait", &queue);
    let prefill = run.timing(|timings| timings.prefill_us);
    summary.distribution("Prefill to first token (server)", "prefill_ms", "prefill", &prefill);
    let itl = run.pool(|record| {
        let emits = record.timings.as_deref().map_or(&[][..], |timings| &timings.emit_us);
        emits.windows(2).map(|pair| (pair[1] - pair[0]) / 1e3).collect::<Vec<f64>>()
    });
    summary.distribution("Inter-token Latency (emission at server)", "itl_ms", "ITL", &itl);
    let size = run.pool(|record| record.timings.as_deref().and_then(|t| t.decode_batch_size_mean));
    let mean = run.timing(|timings| timings.decode_batch_wait_us_mean).mean();
    let max = run.timing(|timings| timings.decode_batch_wait_us_max).max();
    let title = "Decode batches (server)";
    summary.push_some(title, "decode_batch_size_mean", "Mean decode batch size", size.mean());
    summary.push_some(title, "decode_batch_wait_mean_ms", "Mean batch wait (ms)", mean);
    summary.push_some(title, "decode_batch_wait_max_ms", "Max batch wait (ms)", max);
}

fn push_chunks(summary: &mut RunSummary, run: &RunData<'_>) {
    let sum =
        |of: fn(&RequestRecord) -> u64| run.finished.iter().map(|r| of(r)).sum::<u64>() as f64;
    let chunks = sum(|record| record.chunks.len() as u64);
    let reads = sum(|record| record.wire.reads);
    let bytes = sum(|record| record.wire.bytes);
    let text = sum(|record| record.text.len() as u64);
    let tokens = run.tokens.map(|tokens| tokens as f64).filter(|&tokens| tokens > 0.0);
    let per_chunk = tokens.filter(|_| chunks > 0.0).map(|n| n / chunks);
    // An engine within this process sends nothing over a network, so it has no such metrics.
    let wired = tokens.filter(|_| bytes > 0.0);
    let mut push = |key, label, value| summary.push_some(DELIVERY, key, label, value);
    push("chunks", "Chunks with text", Some(chunks));
    push("tokens_per_chunk", "Tokens per chunk", per_chunk);
    push("reads_per_token", "Socket reads per token", wired.map(|n| reads / n));
    push("wire_bytes_per_token", "HTTP bytes per token", wired.map(|n| bytes / n));
    push("text_bytes_per_token", "Text bytes per token", tokens.map(|n| text / n));
}

fn push_way(summary: &mut RunSummary, run: &RunData<'_>) {
    const WHOLE: &str = "Emission to arrival";
    let hold = run.joined(|joined| &joined.emit_to_flush_ms);
    summary.distribution("Emission to flush (server)", "emit_to_flush_ms", "hold", &hold);
    let way = run.joined(|joined| &joined.flush_to_arrival_ms);
    let title = "Flush to arrival, beyond the fastest";
    summary.distribution(title, "flush_to_arrival_ms", "way", &way);
    let whole = run.joined(|joined| &joined.emit_to_arrival_ms);
    summary.distribution(WHOLE, "emit_to_arrival_ms", "delivery", &whole);
    if whole.is_empty() {
        return;
    }
    let late = whole.sorted().iter().filter(|&&ms| ms > LATE_MS).count();
    let share = late as f64 / whole.sorted().len() as f64;
    summary.push(WHOLE, "late_share", "Share late by > 400 ms", share);
    let matched = run.joined.iter().flatten().count() as f64;
    summary.push(WHOLE, "reconciled_requests", "Requests reconciled", matched);
}

fn push_stalls(summary: &mut RunSummary, run: &RunData<'_>) {
    let stalls = run.finished.iter().zip(&run.joined).filter_map(|(record, joined)| {
        let first = ms(record.chunks.first()?.at_us);
        let from = joined.as_ref().map_or(first, |joined| joined.first_emit_ms);
        stall(from, record.chunks.iter().map(|chunk| ms(chunk.at_us)))
    });
    let stalls: Vec<_> = stalls.collect();
    let full: Samples = stalls.iter().map(|stall| stall.full).collect();
    let ex: Samples = stalls.iter().map(|stall| stall.ex).collect();
    let mut push = |key, label, value| summary.push_some(DELIVERY, key, label, value);
    push("stall_full_mean", "Mean stall ratio (full)", full.mean());
    push("stall_ex_mean", "Mean stall excess (ex)", ex.mean());
    push("stall_full_max", "Max stall ratio (full)", full.max());
}

fn push_disturbance(summary: &mut RunSummary, records: &[RequestRecord]) {
    for (role, key, name) in [
        (RequestRole::Injected, "injected", "Injected prompts"),
        (RequestRole::SlowReader, "slow_readers", "Slow readers"),
        (RequestRole::Leaver, "leavers", "Leavers"),
    ] {
        let of_role = records.iter().filter(|record| record.role == role);
        let failed = of_role.clone().filter(|record| record.failure().is_some()).count();
        let all = of_role.count();
        if all > 0 {
            let (failed_key, failed_name) =
                (format!("{key}_failed"), format!("{name} that failed"));
            summary.push(DISTURBANCES, key, name, all as f64);
            summary.push(DISTURBANCES, &failed_key, &failed_name, failed as f64);
        }
    }
}

fn push_injected(summary: &mut RunSummary, run: &RunData<'_>, records: &[RequestRecord]) {
    let injected: Vec<&RequestRecord> =
        records.iter().filter(|r| r.role == RequestRole::Injected).collect();
    if injected.is_empty() {
        return;
    }
    let lengths = injected.iter().filter_map(|record| Some(record.usage?.prompt_tokens as f64));
    let length = lengths.collect::<Samples>().mean();
    let ttft = injected.iter().filter_map(|record| record.ttft_ms()).collect::<Samples>().mean();
    let mut push = |key, label, value| summary.push_some(DISTURBANCES, key, label, value);
    push("injected_prompt_tokens", "Injected prompt tokens (mean)", length);
    push("injected_ttft_mean_ms", "Injected TTFT (mean, ms)", ttft);
    let (during, outside) = split_icl(run, &injected);
    let title = "ICL while a long prompt was in prefill";
    summary.distribution(title, "icl_during_ms", "ICL", &during);
    summary.distribution("ICL at other times", "icl_outside_ms", "ICL", &outside);
}

/// Splits the gaps into those that overlap the time from an injected prompt's submission to its
/// first token, and all others.
fn split_icl(run: &RunData<'_>, injected: &[&RequestRecord]) -> (Samples, Samples) {
    let window = |record: &&RequestRecord| {
        let end = record.chunks.first().map_or(record.ended_us, |chunk| chunk.at_us);
        (record.submitted_us, end)
    };
    let windows: Vec<(u64, u64)> = injected.iter().map(window).collect();
    let (mut during, mut outside) = (Vec::new(), Vec::new());
    for pair in run.finished.iter().flat_map(|record| record.chunks.windows(2)) {
        let (begin, end) = (pair[0].at_us, pair[1].at_us);
        let overlaps = windows.iter().any(|&(from, to)| begin < to && end > from);
        if overlaps { &mut during } else { &mut outside }.push(ms(end - begin));
    }
    (during.into_iter().collect(), outside.into_iter().collect())
}

/// Adds the resource use of the server's process. It served all requests, so its use is shared by
/// the tokens of all of them. Tokens of answers that were not read to their end are unknown and not
/// counted.
fn push_server_process(
    summary: &mut RunSummary,
    records: &[RequestRecord],
    server: &process::ResourceUsage,
) {
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let grown = server.rss_peak_bytes.saturating_sub(server.rss_before_bytes);
    let streams = peak_concurrency(records);
    let per_stream = (streams > 0.0).then(|| grown as f64 / 1024.0 / streams);
    let finished = records.iter().filter(|record| record.finished());
    let tokens: Option<u64> = finished.map(|record| record.completion_tokens()).sum();
    let tokens = tokens.map(|tokens| tokens as f64).filter(|&tokens| tokens > 0.0);
    let per_token_us = tokens.map(|n| server.cpu_s * 1e6 / n);
    let switches = tokens.map(|n| server.voluntary_switches as f64 / n);
    let mut push = |key, label, value| summary.push_some(RESOURCES, key, label, value);
    push("server_cpu_s", "Server CPU time (s)", Some(server.cpu_s));
    push("server_cpu_us_per_token", "Server CPU per token (us)", per_token_us);
    push("server_switches_per_token", "Server context switches per token", switches);
    push("server_rss_peak_mib", "Server peak RSS (MiB)", Some(mib(server.rss_peak_bytes)));
    push("server_rss_growth_mib", "Server RSS growth (MiB)", Some(mib(grown)));
    push("server_rss_growth_per_stream_kib", "Server RSS growth per stream (KiB)", per_stream);
}

fn push_generator(summary: &mut RunSummary, run: &RunData<'_>, generator: &process::ResourceUsage) {
    summary.push(RESOURCES, "generator_cpu_s", "Generator CPU time (s)", generator.cpu_s);
    let chunks: usize = run.finished.iter().map(|record| record.chunks.len()).sum();
    let per_chunk = (chunks > 0).then(|| generator.cpu_s * 1e6 / chunks as f64);
    let label = "Generator CPU per chunk (us)";
    summary.push_some(RESOURCES, "generator_cpu_us_per_chunk", label, per_chunk);
}

fn plots(run: &RunData<'_>) -> Plots {
    Plots {
        ttft_ms: run.pool(|record| record.ttft_ms()),
        icl_ms: run.pool(|record| record.icl_ms().collect::<Vec<f64>>()),
        tokens_per_chunk: tokens_per_chunk(run),
        rate: rate_bins(run),
    }
}

fn rate_bins(run: &RunData<'_>) -> RateBins {
    let arrivals = run.finished.iter().flat_map(|record| record.chunks.last());
    let end_s = arrivals.map(|chunk| ms(chunk.at_us) / 1e3).fold(0.0, f64::max);
    // Round, so that the figure of one bin can be read: 1, 2.5 or 5 of a decade.
    let finest = (end_s / LEAST_BINS).max(1e-3);
    let decade = 10f64.powf(finest.log10().floor());
    let round = [5.0, 2.5, 1.0].into_iter().find(|step| step * decade <= finest * 1.0001);
    let width_s = (round.unwrap_or(1.0) * decade).min(RATE_BIN_S);
    RateBins { width_s, tokens: tokens_per_bin(run, width_s) }
}

/// Returns the tokens of each chunk: exact if the server reports its flushes, otherwise each
/// request's mean.
fn tokens_per_chunk(run: &RunData<'_>) -> Samples {
    let pairs = run.finished.iter().zip(&run.joined);
    pairs
        .flat_map(|(record, joined)| match joined {
            Some(joined) => joined.tokens_per_chunk.clone(),
            None => mean_tokens_per_chunk(record).into_iter().collect(),
        })
        .collect()
}

fn mean_tokens_per_chunk(record: &RequestRecord) -> Option<f64> {
    let chunks = record.chunks.len();
    (chunks > 0).then_some(record.completion_tokens()? as f64 / chunks as f64)
}

/// Returns the tokens in each bin. If the server does not report the tokens of each chunk, a
/// request's tokens are spread evenly over its chunks.
fn tokens_per_bin(run: &RunData<'_>, width_s: f64) -> Vec<f64> {
    let mut bins = Vec::new();
    for (record, joined) in run.finished.iter().zip(&run.joined) {
        let mean = mean_tokens_per_chunk(record).unwrap_or(0.0);
        for (nth, chunk) in record.chunks.iter().enumerate() {
            let bin = (ms(chunk.at_us) / 1e3 / width_s) as usize;
            if bin >= MAX_BINS {
                break;
            }
            if bins.len() <= bin {
                bins.resize(bin + 1, 0.0);
            }
            bins[bin] += joined.as_ref().map_or(mean, |joined| joined.tokens_per_chunk[nth]);
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::tests::record;
    use crate::record::RequestOutcome;
    use crate::target::RequestFailure;

    fn value(summary: &RunSummary, key: &str) -> f64 {
        summary.value(key).unwrap_or_else(|| panic!("no {key} in {:?}", summary.metrics))
    }

    fn near(seen: f64, expected: f64) {
        assert!((seen - expected).abs() < 1e-6, "{seen} is not {expected}");
    }

    #[test]
    fn goodput_counts_answers_that_meet_both_objectives() {
        // First tokens after 100 ms; the longest gaps are 10 and 900 ms.
        let (quick, slow) = (record(&[1100, 1110], 2), record(&[1100, 2000], 2));
        let mut refused = record(&[], 0);
        refused.outcome = RequestOutcome::Failed(RequestFailure::new(FailureKind::Overloaded, ""));
        let records = [quick, slow, refused];
        let met = |ttft_ms, icl_ms| {
            let mut summary = summarize(&records, &Resources::default());
            summary.add_goodput(&records, Slo { ttft_ms, icl_ms });
            [summary.value("slo_met_requests"), summary.value("slo_met_share")]
        };
        assert_eq!(met(None, None), [None, None]);
        assert_eq!(met(Some(100.0), None), [Some(2.0), Some(2.0 / 3.0)]);
        assert_eq!(met(Some(100.0), Some(50.0)), [Some(1.0), Some(1.0 / 3.0)]);
        assert_eq!(met(Some(99.0), Some(50.0)), [Some(0.0), Some(0.0)]);
    }

    #[test]
    fn metrics_follow_their_definitions() {
        // Sent at 1000 ms; chunks at 1100, 1110 and 1200 ms hold 5 tokens.
        let mut second = record(&[1100, 1110, 1200], 5);
        second.scheduled_us = 990_000;
        let summary = summarize(&[record(&[1100, 1110, 1200], 5), second], &Resources::default());
        near(value(&summary, "ttft_p50_ms"), 105.0);
        near(value(&summary, "tpot_mean_ms"), 25.0);
        near(value(&summary, "icl_mean_ms"), 50.0);
        near(value(&summary, "icl_max_ms"), 90.0);
        near(value(&summary, "e2el_max_ms"), 210.0);
        near(value(&summary, "submit_lag_max_ms"), 10.0);
        near(value(&summary, "duration_s"), 0.2);
        near(value(&summary, "output_throughput"), 50.0);
        near(value(&summary, "total_throughput"), 60.0);
        near(value(&summary, "tokens_per_chunk"), 10.0 / 6.0);
        near(value(&summary, "peak_concurrency"), 2.0);
        near(value(&summary, "accept_mean_ms"), 1.0);
    }

    #[test]
    fn failures_count_and_contribute_nothing() {
        let mut broken = record(&[1100, 1900], 9);
        broken.outcome =
            RequestOutcome::Failed(RequestFailure::new(FailureKind::Truncated, "no finish"));
        let mut refused = record(&[], 0);
        refused.outcome =
            RequestOutcome::Failed(RequestFailure::new(FailureKind::Overloaded, "full"));
        let summary = summarize(&[record(&[1100], 1), broken, refused], &Resources::default());
        near(value(&summary, "successful_requests"), 1.0);
        near(value(&summary, "failed_requests"), 1.0);
        near(value(&summary, "refused_requests"), 1.0);
        near(value(&summary, "output_tokens"), 1.0);
        near(value(&summary, "ttft_max_ms"), 100.0);
    }

    #[test]
    fn chunks_are_not_tokens() {
        let mut uncounted = record(&[1100, 1200], 2);
        uncounted.usage = None;
        let summary = summarize(&[uncounted], &Resources::default());
        assert_eq!(summary.value("output_tokens"), None);
        assert_eq!(summary.value("output_throughput"), None);
        assert_eq!(summary.value("tpot_mean_ms"), None);
        near(value(&summary, "chunks"), 2.0);
    }

    #[test]
    fn gaps_beside_an_injected_prompt_are_told_apart() {
        let mut injected = record(&[1300], 1);
        injected.role = RequestRole::Injected;
        injected.submitted_us = 1_150_000;
        let summary = summarize(
            &[record(&[1100, 1200, 1290, 1400, 1450], 5), injected],
            &Resources::default(),
        );
        // [1100,1200], [1200,1290] and [1290,1400] overlap [1150,1300].
        near(value(&summary, "icl_during_max_ms"), 110.0);
        near(value(&summary, "icl_during_mean_ms"), 100.0);
        near(value(&summary, "icl_outside_mean_ms"), 50.0);
    }

    #[test]
    fn cpu_time_is_shared_by_all_tokens_that_were_served() {
        let mut slow = record(&[1100, 1200], 6);
        slow.role = RequestRole::SlowReader;
        let server = process::ResourceUsage {
            cpu_s: 0.001,
            rss_before_bytes: 1 << 20,
            rss_peak_bytes: 3 << 20,
            voluntary_switches: 5,
        };
        let resources = Resources { server: Some(server), generator: None };
        let summary = summarize(&[record(&[1100, 1200], 4), slow], &resources);
        near(value(&summary, "server_cpu_us_per_token"), 100.0);
        near(value(&summary, "server_switches_per_token"), 0.5);
        near(value(&summary, "server_rss_growth_per_stream_kib"), 1024.0);
        near(value(&summary, "output_tokens"), 4.0);
    }

    #[test]
    fn no_requests_give_no_distributions() {
        let summary = summarize(&[], &Resources::default());
        assert_eq!(summary.value("ttft_mean_ms"), None);
        assert_eq!(summary.value("duration_s"), Some(0.0));
    }
}
