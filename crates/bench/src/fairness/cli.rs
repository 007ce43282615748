//! `loquent bench fairness`: its options as typed, resolved into a [`FairnessPlan`].

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::plan::{DownloadControl, FairnessCase, FairnessPlan};
use super::report::FairnessReport;
use super::run;
use crate::delivery::plan::DeliveryScheme;
use crate::delivery::sse;
use crate::expected_time::about;
use crate::link::options::{parse_bytes, parse_rate_kbps};
use crate::{BenchError, print};

const EXAMPLES: &str = "\
Examples:
  loquent bench fairness
  loquent bench fairness --rate 100kbit --queue 15kB --downloads-on cubic --runs 5 --parallel 5

Exit status: 0 if the median ratio of every case is at least --min-ratio, 1 if not.";

/// Measure what token streams leave to downloads on the same bottleneck
///
/// Downloads on kernel TCP share an emulated link with nothing, with token streams as server-sent
/// events on kernel TCP, and with as many of Loquent's streams. The ratio is what the downloads get
/// beside Loquent, of what they get beside event streams. Needs root; see also `loquent link`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct FairnessArgs {
    /// Rates of the bottleneck
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_value = "1mbit,100kbit",
          value_parser = parse_rate_kbps)]
    rate: Vec<f64>,
    /// Queues in front of it; packets beyond are dropped
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "15kB,64kB",
          value_parser = parse_bytes)]
    queue: Vec<u64>,
    /// Congestion control of the downloads
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "cubic,bbr"
    )]
    downloads_on: Vec<DownloadControl>,
    /// Round-trip time of the empty link in ms
    #[arg(long, value_name = "MS", default_value_t = 100.0)]
    rtt: f64,
    /// Number of downloads
    #[arg(long, value_name = "N", default_value_t = 10)]
    downloads: usize,
    /// Number of token streams
    #[arg(long, value_name = "N", default_value_t = 10)]
    streams: usize,
    /// Tokens per second of each stream
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    tokens_per_s: f64,
    /// How the event streams travel: cubic, bbr, serve-cubic or serve-bbr
    #[arg(
        long,
        value_enum,
        value_name = "SCHEME",
        default_value = "cubic",
        hide_possible_values = true
    )]
    events: DeliveryScheme,
    /// Length of a measurement
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    duration_s: f64,
    /// Time before it, in which the flows find their rates
    #[arg(long, value_name = "S", default_value_t = 20.0)]
    warm_up_s: f64,
    /// Runs of each case, for which the downloads begin at different times
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Trials at the same time, each on a link of its own
    #[arg(long, value_name = "N", default_value_t = 3)]
    parallel: usize,
    /// Seed of the first run
    #[arg(long, value_name = "N", default_value_t = 2024)]
    seed: u64,
    /// Options for `loquent serve`, in one string
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    serve_options: String,
    /// Program to start as the server [default: this one]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,

    /// Fail if the downloads get less of what event streams leave them
    #[arg(long, value_name = "RATIO", default_value_t = 0.9)]
    min_ratio: f64,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    json: Option<PathBuf>,
    /// Print neither progress nor the table
    #[arg(long, short, help_heading = "Reports")]
    quiet: bool,
}

impl FairnessArgs {
    /// Runs the benchmark on a blocking thread of the current runtime.
    ///
    /// # Errors
    /// If an option is out of range, root is missing, or a trial cannot be run.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let (json, quiet, min_ratio) = (self.json.clone(), self.quiet, self.min_ratio);
        let plan = self.resolve()?;
        let report = tokio::task::spawn_blocking(move || -> anyhow::Result<FairnessReport> {
            let tell = |line: &str| {
                if !quiet {
                    eprintln!("{line}");
                }
            };
            tell(&format!("this takes {}", about(plan.expected_s())));
            let trials = run::run(&plan, tell)?;
            Ok(FairnessReport::new(plan, trials, min_ratio))
        })
        .await??;
        let saved = json.map_or(Ok(()), |path| report.write(&path));
        if !quiet {
            print(report.table())?;
        }
        saved?;
        Ok(if report.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn resolve(self) -> anyhow::Result<FairnessPlan> {
        self.check()?;
        let plan = FairnessPlan {
            cases: self.cases(),
            rtt_ms: self.rtt,
            downloads: self.downloads,
            streams: self.streams,
            tokens_per_s: self.tokens_per_s,
            events: self.events,
            warm_up: Duration::from_secs_f64(self.warm_up_s),
            length: Duration::from_secs_f64(self.duration_s),
            runs: self.runs,
            parallel: self.parallel,
            seed: self.seed,
            server_program: self.server.map_or_else(std::env::current_exe, Ok)?,
            server_options: self.serve_options.split_whitespace().map(str::to_owned).collect(),
        };
        let links = plan.cases.iter().find_map(|case| plan.link(case).fault());
        if let Some(fault) = links.or(plan.stream_plan(0, plan.events).generator().fault()) {
            return Err(BenchError::Options(fault).into());
        }
        let downloads = plan.cases.iter().map(|case| case.control.name());
        for name in downloads.chain(plan.events.congestion()) {
            sse::check_congestion(name)?;
        }
        Ok(plan)
    }

    fn check(&self) -> Result<(), BenchError> {
        let checks = [
            ((1..=1000).contains(&self.downloads), "--downloads must be 1 to 1000"),
            ((1..=1000).contains(&self.streams), "--streams must be 1 to 1000"),
            ((1..=100).contains(&self.runs), "--runs must be 1 to 100"),
            ((1..=32).contains(&self.parallel), "--parallel must be 1 to 32"),
            ((1.0..=3600.0).contains(&self.duration_s), "--duration-s must be 1 to 3600"),
            ((0.0..=3600.0).contains(&self.warm_up_s), "--warm-up-s must be 0 to 3600"),
            (
                self.events.congestion().is_some(),
                "--events must be cubic, bbr, serve-cubic or serve-bbr",
            ),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, reason)) => Err(BenchError::Options(reason.into())),
            None => Ok(()),
        }
    }

    /// Returns all combinations of rate, queue and congestion control.
    fn cases(&self) -> Vec<FairnessCase> {
        let mut cases = Vec::new();
        for &rate_kbps in &self.rate {
            for &control in &self.downloads_on {
                let case = |&queue_bytes| FairnessCase { rate_kbps, queue_bytes, control };
                cases.extend(self.queue.iter().map(case));
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        fairness: FairnessArgs,
    }

    fn resolve(args: &[&str]) -> Result<FairnessPlan, String> {
        let args = ["fairness", "--downloads-on", "cubic"].iter().chain(args);
        let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
        cli.fairness.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn short_help_fits_one_screen() {
        let help = Cli::command().term_width(100).render_help().to_string();
        assert!(help.lines().count() <= 60, "{} lines:\n{help}", help.lines().count());
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for (args, word) in [
            (&["--downloads", "0"][..], "--downloads"),
            (&["--runs", "0"], "--runs"),
            (&["--parallel", "0"], "--parallel"),
            (&["--duration-s", "0"], "--duration-s"),
            (&["--events", "loquent"], "--events"),
            (&["--rate", "fast"], "--rate"),
        ] {
            let refused = resolve(args).err().unwrap_or_else(|| panic!("{args:?} was accepted"));
            assert!(refused.contains(word), "{args:?}: {refused}");
        }
    }

    #[test]
    fn every_rate_meets_every_queue() {
        let Ok(plan) = resolve(&["--rate", "1mbit,100kbit", "--queue", "15kB,64kB"]) else {
            loquent_needs::Need::Cubic.lack("the kernel has no CUBIC");
            return;
        };
        let cases: Vec<_> = plan.cases.iter().map(|it| (it.rate_kbps, it.queue_bytes)).collect();
        let expected = [(1000.0, 15_000), (1000.0, 64_000), (100.0, 15_000), (100.0, 64_000)];
        assert_eq!(cases, expected);
        assert_eq!(plan.cases[2].queue_ms(), 1200.0);
    }
}
