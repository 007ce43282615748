//! The reports of a load test: a table, JSON, a JSON line per request, an HTML page.

use std::path::Path;

use loquent_proto::printable::printable;
use serde_json::{Value, json};

use crate::plan::{LoadCase, LoadPlan, ReportPaths};
use crate::record::RequestRecord;
use crate::scrape::Series;
use crate::summary::{Measurement, RunSummary};
use crate::verify::Findings;
use crate::{BenchError, print};
use loquent_sim::stats::median;

mod html;
mod machine;
mod table;

/// One run of one case against one target.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// The run's metrics and plots.
    pub summary: RunSummary,
    /// Findings from the check of its token counts.
    pub findings: Findings,
    /// The run's requests, measured or not.
    pub records: Vec<RequestRecord>,
    /// Growth of the server's counters during the run.
    pub counters: Series,
}

/// All runs of one case against one target.
#[derive(Debug, Clone)]
pub struct RunGroup {
    /// Name in reports, from target and case.
    pub name: String,
    /// The target's name.
    pub target: String,
    /// The measured configuration.
    pub case: LoadCase,
    /// The measured runs, in order.
    pub runs: Vec<RunResult>,
}

/// A metric summarized over the runs of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunSpread {
    /// Median of the runs.
    pub median: f64,
    /// Smallest value of a run.
    pub min: f64,
    /// Largest value of a run.
    pub max: f64,
}

impl RunSpread {
    /// Computes the spread of `values`; `None` without values.
    pub fn of(values: Vec<f64>) -> Option<Self> {
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        Some(RunSpread { median: median(values)?, min, max })
    }
}

impl RunGroup {
    /// Returns the spread of a metric over the group's runs.
    pub fn spread(&self, key: &str) -> Option<RunSpread> {
        RunSpread::of(self.runs.iter().filter_map(|run| run.summary.value(key)).collect())
    }

    /// Returns the ratio of this group's metric to that of `base`, run by run.
    pub fn ratio(&self, base: &RunGroup, key: &str) -> Option<RunSpread> {
        let pairs = self.runs.iter().zip(&base.runs);
        let ratio = |(ours, theirs): (&RunResult, &RunResult)| {
            let theirs = theirs.summary.value(key)?;
            (theirs != 0.0).then_some(ours.summary.value(key)? / theirs)
        };
        RunSpread::of(pairs.filter_map(ratio).collect())
    }

    /// Returns all metrics of the group's most complete run, in the order of the table.
    pub fn metrics(&self) -> impl Iterator<Item = &Measurement> {
        let longest = self.runs.iter().max_by_key(|run| run.summary.metrics.len());
        longest.into_iter().flat_map(|run| &run.summary.metrics)
    }

    /// Returns the number of finished answers whose text equals that of the same request in `base`,
    /// and the number of requests that finished in both.
    pub fn equal_texts(&self, base: &RunGroup) -> (usize, usize) {
        let pairs = self.runs.iter().zip(&base.runs);
        let records = pairs.flat_map(|(a, b)| a.records.iter().zip(&b.records));
        let both = records.filter(|(a, b)| a.finished() && b.finished() && a.role == b.role);
        both.fold((0, 0), |(equal, all), (a, b)| (equal + usize::from(a.text == b.text), all + 1))
    }
}

/// A finished load test.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// Title of the table and the page.
    pub title: String,
    /// The configuration, for readers and programs.
    pub config: Value,
    /// The groups; the first is the base of comparisons.
    pub groups: Vec<RunGroup>,
}

impl LoadReport {
    /// Returns the findings that make the figures invalid, with the group's name.
    pub fn impossible(&self) -> Vec<String> {
        let of = |group: &RunGroup| -> Vec<String> {
            let lines = group.runs.iter().flat_map(|run| &run.findings.impossible);
            lines.map(|line| format!("{}: {line}", group.name)).collect()
        };
        self.groups.iter().flat_map(of).collect()
    }
}

/// Returns the configuration and the machine's state before the first run.
pub fn config(plan: &LoadPlan) -> Value {
    let settings = &plan.settings;
    json!({
        "requests": settings.requests,
        "max_tokens": settings.max_tokens,
        "endpoint": settings.endpoint,
        "model": settings.model,
        "distinct_prompts": settings.prompts.texts.len().min(settings.requests),
        "unique_prompts": settings.prompts.unique,
        "prompt_repeats": settings.prompts.repeats,
        "first_prompt": settings.prompts.texts[0].chars().take(80).collect::<String>(),
        "temperature": settings.temperature,
        "seed": settings.seed,
        "ignore_eos": settings.ignore_eos,
        "pretok": settings.pretok,
        "pacing": settings.pacing,
        "warmup_runs": plan.warmup_runs,
        "repeat_runs": plan.repeat_runs,
        "pause_s": plan.pause.as_secs_f64(),
        "timeout_s": settings.timeout.as_secs_f64(),
        "slo": settings.slo,
        "generator": concat!("loquent-bench ", env!("CARGO_PKG_VERSION")),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "load_average_before": load_average(),
        "platform": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Returns the mean number of runnable tasks over the last minute, if the system reports it. A high
/// value shows that the machine was busy.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Writes the requested files and prints the table.
///
/// # Errors
/// If a file or standard output cannot be written. The table is printed even without the files.
pub fn write(report: &LoadReport, outputs: &ReportPaths) -> Result<(), BenchError> {
    let saved = save(report, outputs);
    if !outputs.quiet {
        // It quotes servers: their models, their errors.
        print(printable(&table::render(report)).as_bytes())?;
    }
    for line in report.impossible() {
        eprintln!("refused, impossible token total: {line}");
    }
    saved
}

fn save(report: &LoadReport, outputs: &ReportPaths) -> Result<(), BenchError> {
    let save = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|error| BenchError::Output {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    };
    if let Some(path) = &outputs.json {
        save(path, machine::json(report))?;
    }
    if let Some(path) = &outputs.jsonl {
        save(path, machine::jsonl(report))?;
    }
    if let Some(path) = &outputs.html {
        save(path, html::render(report))?;
    }
    Ok(())
}

/// Metrics shown in comparisons, with short names and whether higher is better.
const COMPARED: [(&str, &str, bool); 17] = [
    ("successful_requests", "successful requests", true),
    ("output_throughput", "output tok/s", true),
    ("ttft_p50_ms", "TTFT p50 ms", false),
    ("ttft_p99_ms", "TTFT p99 ms", false),
    ("tpot_p50_ms", "TPOT p50 ms", false),
    ("icl_p50_ms", "ICL p50 ms", false),
    ("icl_p99_ms", "ICL p99 ms", false),
    ("itl_p50_ms", "ITL p50 ms (server)", false),
    ("itl_p99_ms", "ITL p99 ms (server)", false),
    ("emit_to_arrival_p99_ms", "emission to arrival p99 ms", false),
    ("e2el_p99_ms", "E2EL p99 ms", false),
    ("stall_full_mean", "stall ratio (full)", false),
    ("tokens_per_chunk", "tokens per chunk", true),
    ("reads_per_token", "socket reads per token", false),
    ("wire_bytes_per_token", "HTTP bytes per token", false),
    ("server_cpu_us_per_token", "server CPU us per token", false),
    ("server_rss_peak_mib", "server peak RSS MiB", false),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        let expected = RunSpread { median: 2.0, min: 1.0, max: 9.0 };
        assert_eq!(RunSpread::of(vec![9.0, 1.0, 2.0]), Some(expected));
        assert_eq!(RunSpread::of(vec![]), None);
    }
}
