//! Options that describe a load: the requests, their timing, and the outputs.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use loquent_proto::coalesce::StreamInterval;
use serde_json::{Map, Value};

use super::disturbances::DisturbanceArgs;
use super::prompts::PromptArgs;
use super::{check, refuse};
use crate::arrivals::{Pacing, Spacing};
use crate::plan::{
    EndpointKind, Extras, LoadCase, LoadPlan, LoadSettings, ReportPaths, Slo, TargetPlan,
};
use crate::preset::{Preset, PresetValues};
use crate::process::raise_open_files_limit;
use crate::{BenchError, experiment};

/// Reference point of the interval between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SubmitSchedule {
    /// Request i at start + i × interval
    Absolute,
    /// The interval after the previous request was sent
    Relative,
}

/// Distribution of open-loop gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrivalKind {
    /// Equal gaps
    Constant,
    /// A Poisson process: exponential gaps
    Poisson,
    /// Gamma gaps of shape --burstiness, scaled to the run's length
    Gamma,
}

/// A load and its reports, independent of the target.
#[derive(Debug, Clone, Args)]
pub struct WorkloadArgs {
    /// A published configuration; other options override it
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// Endpoint [default: chat; completions with --pretok]
    #[arg(long, value_enum)]
    endpoint: Option<EndpointKind>,
    #[command(flatten)]
    arrivals: ArrivalArgs,
    #[command(flatten)]
    runs: RunArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    #[command(flatten)]
    generation: GenerationArgs,
    #[command(flatten)]
    disturbances: DisturbanceArgs,
    #[command(flatten)]
    reports: ReportArgs,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Load")]
struct ArrivalArgs {
    /// Requests per run [default: 64]
    #[arg(long, short = 'n', value_name = "N")]
    requests: Option<usize>,
    /// Requests in flight, at most; a list compares [default: no limit]
    #[arg(long, short = 'c', value_name = "N", value_delimiter = ',')]
    concurrency: Vec<usize>,
    /// Time between requests [default: 0, all at once]
    #[arg(long, value_name = "MS")]
    submit_interval_ms: Option<f64>,
    /// What the interval starts from
    #[arg(
        long,
        value_enum,
        default_value = "absolute",
        value_name = "HOW",
        hide_short_help = true
    )]
    submit_schedule: SubmitSchedule,
    /// Open loop: mean requests per second
    #[arg(long, value_name = "RATE", conflicts_with = "submit_interval_ms")]
    request_rate: Option<f64>,
    /// Open loop: distribution of the gaps
    #[arg(long, value_enum, default_value = "gamma", value_name = "GAPS")]
    arrival: ArrivalKind,
    /// Shape of gamma gaps: 1 is Poisson, less is burstier
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0)]
    burstiness: f64,
    /// Time limit of one request in seconds
    #[arg(long, value_name = "S", default_value_t = 300.0)]
    timeout_s: f64,
    /// Goodput: longest time to first token of a good answer
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<f64>,
    /// Goodput: longest 99th percentile of a good answer's gaps between chunks
    #[arg(long, value_name = "MS")]
    slo_icl_ms: Option<f64>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Runs")]
struct RunArgs {
    /// Runs before the measured ones [default: 0]
    #[arg(long, value_name = "N")]
    warmup_runs: Option<usize>,
    /// Measured runs of each case and server
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat_runs: usize,
    /// Pause between runs of several servers
    ///
    /// Compute threads of the server that has just finished may still spin, and would slow down
    /// the next server's first requests.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pause_ms: u64,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generation")]
struct GenerationArgs {
    /// Tokens per answer, at most [default: 128]
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// Generate all --max-tokens, even after end of sequence
    #[arg(long)]
    ignore_eos: bool,
    /// Tokens per chunk, or auto; a list compares
    #[arg(long, value_name = "N", value_delimiter = ',')]
    stream_interval: Vec<String>,
    /// Sampling temperature
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Seed of sampling and of random arrivals
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// More fields of the request body, as a JSON object
    #[arg(long, value_name = "JSON")]
    extra_body: Option<String>,
    /// Do not request the server's own timings
    #[arg(long)]
    no_server_timings: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Reports")]
struct ReportArgs {
    /// Title of the reports [default: the preset's name]
    #[arg(long, hide_short_help = true)]
    title: Option<String>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one JSON line per request
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// Write a self-contained HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print neither progress nor the table
    #[arg(long, short)]
    quiet: bool,
    /// Answers per run to recount by POST /tokenize
    #[arg(long, value_name = "N", default_value_t = 64, hide_short_help = true)]
    recount: usize,
}

/// Outputs of a report without a load.
#[derive(Debug, Clone, Copy)]
pub struct ReportTo<'a> {
    /// File for everything as JSON.
    pub json: Option<&'a Path>,
    /// True to print neither progress nor the table.
    pub quiet: bool,
}

impl WorkloadArgs {
    /// Returns the outputs of a report.
    pub fn report_to(&self) -> ReportTo<'_> {
        ReportTo { json: self.reports.json.as_deref(), quiet: self.reports.quiet }
    }

    /// Runs the load against `targets` and writes the reports. Requests name `model`, or each
    /// target's first model.
    ///
    /// The load runs on one thread with its own runtime. Against a fast server on two cores, that
    /// takes half the CPU time per chunk of a work-stealing runtime, whose threads wake each other.
    /// A target that spawns tasks must therefore use a runtime of its own.
    ///
    /// # Errors
    /// If options contradict each other, a target lacks something, or a report cannot be written.
    pub async fn run(
        self,
        model: Option<String>,
        targets: Vec<TargetPlan>,
    ) -> anyhow::Result<ExitCode> {
        raise_open_files_limit();
        let plan = self.resolve(model, targets)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (done, verdict) = tokio::sync::oneshot::channel();
        std::thread::Builder::new().name("bench".into()).spawn(move || {
            // A caller that has gone away needs no verdict.
            let _ = done.send(runtime.block_on(experiment::run(&plan)));
        })?;
        Ok(ExitCode::from(verdict.await??.exit_code()))
    }

    fn resolve(
        self,
        model: Option<String>,
        targets: Vec<TargetPlan>,
    ) -> Result<LoadPlan, BenchError> {
        let preset = self.preset.map(Preset::values).unwrap_or_default();
        if let (Some(note), false) = (preset.server_note, self.reports.quiet) {
            eprintln!("note: {note}");
        }
        let settings = self.settings(&preset, model)?;
        let cases = self.cases(&preset, &settings)?;
        check(self.runs.repeat_runs > 0, "--repeat-runs must be at least 1")?;
        Ok(LoadPlan {
            title: self.title(),
            settings,
            cases,
            targets,
            warmup_runs: self.runs.warmup_runs.or(preset.warmup_runs).unwrap_or(0),
            repeat_runs: self.runs.repeat_runs,
            pause: Duration::from_millis(self.runs.pause_ms),
            outputs: ReportPaths {
                json: self.reports.json,
                jsonl: self.reports.jsonl,
                html: self.reports.html,
                quiet: self.reports.quiet,
            },
        })
    }

    fn title(&self) -> String {
        let preset = self.preset.and_then(|preset| preset.to_possible_value());
        let name = preset.map(|value| value.get_name().to_owned());
        self.reports.title.clone().or(name).unwrap_or_else(|| "Load test".into())
    }

    fn settings(
        &self,
        preset: &PresetValues,
        model: Option<String>,
    ) -> Result<LoadSettings, BenchError> {
        let Self { arrivals, generation, .. } = self;
        let pretok = self.prompts.pretok || preset.pretok;
        let requests = arrivals.requests.or(preset.requests).unwrap_or(64);
        check((1..=1_000_000).contains(&requests), "--requests must be 1 to 1000000")?;
        let max_tokens = generation.max_tokens.or(preset.max_tokens).unwrap_or(128);
        check(max_tokens > 0, "--max-tokens must be at least 1")?;
        let timeout_s = arrivals.timeout_s;
        check(timeout_s > 0.0 && timeout_s < 1e6, "--timeout-s must be above 0 and less than 1e6")?;
        let mut extra = preset.extra.clone();
        extra.extend(generation.extra_body()?);
        Ok(LoadSettings {
            model,
            endpoint: self.endpoint(preset, pretok)?,
            requests,
            max_tokens,
            prompts: self.prompts.resolve(preset)?,
            temperature: generation.temperature.or(preset.temperature),
            seed: generation.seed.or(preset.seed),
            ignore_eos: generation.ignore_eos || preset.ignore_eos,
            pretok,
            pacing: arrivals.pacing(preset)?,
            timeout: Duration::from_secs_f64(timeout_s),
            slo: arrivals.slo()?,
            include_timings: !generation.no_server_timings,
            recount: self.reports.recount,
            extra,
        })
    }

    fn endpoint(&self, preset: &PresetValues, pretok: bool) -> Result<EndpointKind, BenchError> {
        let default = if pretok { EndpointKind::Completions } else { EndpointKind::Chat };
        let endpoint = self.endpoint.or(preset.endpoint).unwrap_or(default);
        check(
            !pretok || endpoint == EndpointKind::Completions,
            "--pretok needs --endpoint completions: chat requests cannot carry token ids",
        )?;
        Ok(endpoint)
    }

    fn cases(
        &self,
        preset: &PresetValues,
        settings: &LoadSettings,
    ) -> Result<Vec<LoadCase>, BenchError> {
        let given = &self.arrivals.concurrency;
        let listed = if given.is_empty() { &preset.concurrency } else { given };
        check(!listed.contains(&0), "--concurrency must be at least 1")?;
        let intervals = self.generation.intervals(preset)?;
        let disturbances = self.disturbances.resolve(settings.max_tokens)?;
        let mut cases = Vec::new();
        for concurrency in one_or_all(listed) {
            for &stream_interval in &intervals {
                for &extras in &disturbances {
                    cases.push(LoadCase {
                        label: String::new(),
                        concurrency,
                        stream_interval,
                        extras,
                    });
                }
            }
        }
        label(&mut cases);
        Ok(cases)
    }
}

impl GenerationArgs {
    fn extra_body(&self) -> Result<Map<String, Value>, BenchError> {
        let Some(text) = &self.extra_body else {
            return Ok(Map::new());
        };
        serde_json::from_str(text)
            .map_err(|error| BenchError::Options(format!("--extra-body: {error}")))
    }

    fn intervals(&self, preset: &PresetValues) -> Result<Vec<Option<StreamInterval>>, BenchError> {
        if self.stream_interval.is_empty() {
            return Ok(one_or_all(&preset.stream_intervals)
                .map(|tokens| tokens.and_then(NonZeroU32::new).map(StreamInterval::Every))
                .collect());
        }
        let parse = |text: &String| match text.parse() {
            Ok(interval) => Ok(Some(interval)),
            Err(_) => refuse("--stream-interval must be a number of at least 1, or auto"),
        };
        self.stream_interval.iter().map(parse).collect()
    }
}

impl ArrivalArgs {
    fn slo(&self) -> Result<Slo, BenchError> {
        let slo = Slo { ttft_ms: self.slo_ttft_ms, icl_ms: self.slo_icl_ms };
        for limit in [slo.ttft_ms, slo.icl_ms].into_iter().flatten() {
            check(limit > 0.0 && limit < 1e9, "--slo-ttft-ms and --slo-icl-ms must be above 0")?;
        }
        Ok(slo)
    }

    fn pacing(&self, preset: &PresetValues) -> Result<Pacing, BenchError> {
        if let Some(rate_per_s) = self.request_rate {
            check(rate_per_s > 0.0 && rate_per_s <= 1e6, "--request-rate must be above 0")?;
            check((0.01..=1e6).contains(&self.burstiness), "--burstiness must be 0.01 or more")?;
            let spacing = match self.arrival {
                ArrivalKind::Constant => Spacing::Constant,
                ArrivalKind::Poisson => Spacing::Poisson,
                ArrivalKind::Gamma => Spacing::Gamma { shape: self.burstiness },
            };
            return Ok(Pacing::Open { rate_per_s, spacing });
        }
        let interval_ms = self.submit_interval_ms.or(preset.submit_interval_ms).unwrap_or(0.0);
        check((0.0..=1e9).contains(&interval_ms), "--submit-interval-ms must be 0 or more")?;
        let interval_s = interval_ms / 1e3;
        Ok(match self.submit_schedule {
            _ if interval_s == 0.0 => Pacing::Burst,
            SubmitSchedule::Absolute => Pacing::Absolute { interval_s },
            SubmitSchedule::Relative => Pacing::Relative { interval_s },
        })
    }
}

/// Returns every item as `Some`, or a single `None` if the list is empty.
fn one_or_all<T: Copy>(items: &[T]) -> impl Iterator<Item = Option<T>> {
    let none = items.is_empty().then_some(None);
    items.iter().copied().map(Some).chain(none)
}

/// Labels each case with the settings that vary between them.
fn label(cases: &mut [LoadCase]) {
    let first = cases[0].clone();
    let varies = |of: fn(&LoadCase, &LoadCase) -> bool, cases: &[LoadCase]| {
        cases.iter().any(|c| of(c, &first))
    };
    let by_concurrency = varies(|a, b| a.concurrency != b.concurrency, cases);
    let by_interval = varies(|a, b| a.stream_interval != b.stream_interval, cases);
    let by_extras = varies(|a, b| a.extras != b.extras, cases);
    for case in cases {
        let mut parts = Vec::new();
        if let (true, Some(concurrency)) = (by_concurrency, case.concurrency) {
            parts.push(format!("concurrency {concurrency}"));
        }
        match case.stream_interval {
            Some(StreamInterval::Auto) if by_interval => parts.push("interval auto".into()),
            Some(StreamInterval::Every(n)) if by_interval => parts.push(format!("interval {n}")),
            _ => {}
        }
        if by_extras {
            let undisturbed = case.extras == Extras::default();
            parts.push(if undisturbed { "undisturbed" } else { "disturbed" }.into());
        }
        case.label = parts.join(", ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        workload: WorkloadArgs,
    }

    fn resolve(args: &[&str]) -> Result<LoadPlan, String> {
        let full = ["bench", "--quiet"].iter().chain(args);
        let cli = Cli::try_parse_from(full).map_err(|error| error.to_string())?;
        cli.workload.resolve(None, Vec::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_preset_becomes_cases() {
        let plan = resolve(&["--preset", "rose-050"]).unwrap();
        let labels: Vec<&str> = plan.cases.iter().map(|case| case.label.as_str()).collect();
        assert_eq!(labels, ["interval 1", "interval 8"]);
        assert_eq!((plan.settings.requests, plan.warmup_runs), (64, 1));
        assert_eq!(plan.settings.pacing, Pacing::Burst);
        assert_eq!(plan.settings.endpoint, EndpointKind::Completions);
    }

    #[test]
    fn options_override_the_preset() {
        let plan =
            resolve(&["--preset", "rose-052", "-n", "3", "--stream-interval", "2,auto"]).unwrap();
        assert_eq!(plan.settings.requests, 3);
        assert_eq!(plan.settings.pacing, Pacing::Absolute { interval_s: 0.02 });
        assert_eq!(plan.cases[1].stream_interval, Some(StreamInterval::Auto));
    }

    #[test]
    fn control_runs_leave_the_disturbance_out() {
        let plan = resolve(&["--slow-readers", "3", "--control", "-c", "2,4"]).unwrap();
        let labels: Vec<&str> = plan.cases.iter().map(|case| case.label.as_str()).collect();
        let expected = [
            "concurrency 2, undisturbed",
            "concurrency 2, disturbed",
            "concurrency 4, undisturbed",
            "concurrency 4, disturbed",
        ];
        assert_eq!(labels, expected);
        assert_eq!(plan.cases[0].extras.slow_readers, 0);
        assert_eq!(plan.cases[1].extras.slow_readers, 3);
    }

    #[test]
    fn contradictions_are_refused_in_words() {
        for (args, word) in [
            (&["--requests", "0"][..], "--requests"),
            (&["--max-tokens", "0"], "--max-tokens"),
            (&["--stream-interval", "0"], "--stream-interval"),
            (&["--pretok", "--endpoint", "chat"], "--pretok"),
            (&["--control"], "--control"),
            (&["--request-rate", "0"], "--request-rate"),
            (&["--request-rate", "NaN"], "--request-rate"),
            (&["--extra-body", "[]"], "--extra-body"),
        ] {
            let refused = resolve(args).err().unwrap_or_else(|| panic!("{args:?} was accepted"));
            assert!(refused.contains(word), "{args:?}: {refused}");
        }
    }

    #[test]
    fn open_loop_arrivals() {
        let plan = resolve(&["--request-rate", "5", "--arrival", "constant"]).unwrap();
        assert_eq!(
            plan.settings.pacing,
            Pacing::Open { rate_per_s: 5.0, spacing: Spacing::Constant }
        );
        let plan = resolve(&["--request-rate", "5", "--burstiness", "0.5"]).unwrap();
        let spacing = Spacing::Gamma { shape: 0.5 };
        assert_eq!(plan.settings.pacing, Pacing::Open { rate_per_s: 5.0, spacing });
    }
}
