//! The options of `loquent bench`, as typed and then resolved into a [`Plan`].

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use loquent_client::http::{BaseUrl, HttpClient};
use loquent_client::openai::StreamInterval;
use serde_json::{Map, Value};

use crate::arrivals::{Pacing, Spacing};
use crate::http_target::HttpTarget;
use crate::plan::{Case, EndpointKind, Extras, Inject, Outputs, Plan, Settings, TargetPlan};
use crate::preset::{Preset, PresetValues};
use crate::process::raise_open_files_limit;
use crate::prompts::{PromptSource, read_file};
use crate::{BenchError, Target, experiment};

const EXAMPLES: &str = "\
Examples:
  loquent bench --url http://127.0.0.1:8080 --preset rose-050 --html report.html
  loquent bench --url ours=http://127.0.0.1:8080 --url llama=http://127.0.0.1:8081 \\
      --preset cllm-stage15 --no-stop-on-eos --repeat-runs 5
  loquent bench --url http://127.0.0.1:8080 --requests 200 --request-rate 20 --burstiness 0.5
  loquent bench --url http://127.0.0.1:8080 --requests 8 --max-tokens 400 --no-stop-on-eos \\
      --inject-prompt-tokens 4000 --inject-at-ms 2000 --control
  loquent bench --url http://127.0.0.1:8080 --requests 32 --slow-readers 32 --control
  loquent bench --in-process --model qwen.gguf --max-batch-size 64 --preset rose-050

Exit status: 0 when all went well, 1 when a measured request failed (refusals for load, \
429 and 503, do not count), 3 when a token total is impossible.";

/// When requests are sent relative to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SubmitSchedule {
    /// At start + i × interval.
    Absolute,
    /// The interval after the previous one was sent.
    Relative,
}

/// Distribution of open-loop gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrivalKind {
    /// Equal gaps.
    Constant,
    /// Exponential gaps.
    Poisson,
    /// Gamma gaps of shape --burstiness.
    Gamma,
}

/// Put load on any OpenAI-compatible server and report what its users would see
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Server under test, `http://host:port` or `name=http://host:port`; give several to
    /// compare them, alternating runs
    #[arg(long, env = "LOQUENT_URL", value_name = "[NAME=]URL")]
    url: Vec<String>,
    /// Measure an engine within this process, without HTTP (beside any --url); the Engine and
    /// Admission options are its
    #[arg(long)]
    in_process: bool,
    /// Process id of a local server, for its CPU time and memory; once per --url, in order
    #[arg(long, value_name = "PID")]
    server_pid: Vec<u32>,
    /// Bearer token
    #[arg(long, env = "LOQUENT_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// A published configuration; other options win over it
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// Model name; with --in-process a GGUF file [default: the server's first; the bundled model]
    #[arg(long)]
    model: Option<String>,
    /// Endpoint to use [default: chat; completions with --pretok]
    #[arg(long, value_enum)]
    endpoint: Option<EndpointKind>,

    /// Requests per run [default: 64]
    #[arg(long, short = 'n', visible_alias = "num-requests", help_heading = "Load")]
    requests: Option<usize>,
    /// Most requests in flight; a list compares them [default: no limit]
    #[arg(long, short = 'c', value_delimiter = ',', help_heading = "Load")]
    concurrency: Vec<usize>,
    /// Most tokens per answer [default: 128]
    #[arg(long, visible_alias = "max-new-tokens", help_heading = "Load")]
    max_tokens: Option<u32>,
    /// Gap between requests in milliseconds [default: none, all at once]
    #[arg(long, value_name = "MS", help_heading = "Load")]
    submit_interval_ms: Option<f64>,
    /// What the gap is measured from
    #[arg(long, value_enum, default_value = "absolute", help_heading = "Load")]
    submit_schedule: SubmitSchedule,
    /// Open loop: mean requests per second
    #[arg(long, conflicts_with = "submit_interval_ms", help_heading = "Load")]
    request_rate: Option<f64>,
    /// Open loop: distribution of the gaps
    #[arg(long, value_enum, default_value = "gamma", help_heading = "Load")]
    arrival: ArrivalKind,
    /// Shape of gamma arrivals: 1 is Poisson, less is burstier
    #[arg(long, default_value_t = 1.0, help_heading = "Load")]
    burstiness: f64,
    /// Runs that are thrown away [default: 0]
    #[arg(long, help_heading = "Load")]
    warmup_runs: Option<usize>,
    /// Runs that count, of each case and server in turn
    #[arg(long, visible_alias = "repeat", default_value_t = 1, help_heading = "Load")]
    repeat_runs: usize,
    /// Between runs of several servers: threads of the one that has just finished may still spin,
    /// and would slow down the next one's first requests
    #[arg(long, default_value_t = 1000, value_name = "MS", help_heading = "Load")]
    pause_ms: u64,
    /// Time limit of one request in seconds
    #[arg(long, default_value_t = 300.0, help_heading = "Load")]
    timeout_s: f64,

    /// Prompt text [default: "Hello"]
    #[arg(long, conflicts_with = "prompt_file", help_heading = "Prompts")]
    prompt: Option<String>,
    /// Prompts: one per line, or a JSONL corpus with prompt_id, category, length_bucket, prompt
    #[arg(long, help_heading = "Prompts")]
    prompt_file: Option<PathBuf>,
    /// Use the first N prompts of the file
    #[arg(long, value_name = "N", help_heading = "Prompts")]
    prompt_limit: Option<usize>,
    /// Make every prompt different from its first character on
    #[arg(long, help_heading = "Prompts")]
    unique_prompts: bool,
    /// Repeat each prompt's text N times
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Prompts")]
    prompt_repeats: usize,
    /// Tokenize prompts before the run (POST /tokenize) and send token ids
    #[arg(long, help_heading = "Prompts")]
    pretok: bool,

    /// Generate all --max-tokens whatever the model says (ignore_eos)
    #[arg(long, visible_alias = "ignore-eos", help_heading = "Generation")]
    no_stop_on_eos: bool,
    /// Tokens per chunk asked of the server: a number or `auto`; a list compares them
    #[arg(long, value_delimiter = ',', help_heading = "Generation")]
    stream_interval: Vec<String>,
    /// Sampling temperature
    #[arg(long, help_heading = "Generation")]
    temperature: Option<f64>,
    /// Sampling seed; random arrivals use it too
    #[arg(long, help_heading = "Generation")]
    seed: Option<u64>,
    /// Further fields of the request body, as a JSON object
    #[arg(long, value_name = "JSON", help_heading = "Generation")]
    extra_body: Option<String>,
    /// Do not ask the server for its own timings
    #[arg(long, help_heading = "Generation")]
    no_server_timings: bool,

    /// Add N readers that stop reading until the measured requests are through
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Disturbances")]
    slow_readers: usize,
    /// They stop after this many chunks
    #[arg(long, value_name = "CHUNKS", default_value_t = 4, help_heading = "Disturbances")]
    slow_reader_after: usize,
    /// Most tokens of their answers [default: as --max-tokens]
    #[arg(long, value_name = "TOKENS", help_heading = "Disturbances")]
    slow_reader_max_tokens: Option<u32>,
    /// Add N readers that disconnect in the middle
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Disturbances")]
    disconnects: usize,
    /// They leave after this many chunks
    #[arg(long, value_name = "CHUNKS", default_value_t = 4, help_heading = "Disturbances")]
    disconnect_after: usize,
    /// Inject prompts of this many tokens among the measured requests
    #[arg(long, value_name = "TOKENS", help_heading = "Disturbances")]
    inject_prompt_tokens: Option<usize>,
    /// When the first is sent, in milliseconds after the start
    #[arg(long, value_name = "MS", default_value_t = 1000.0, help_heading = "Disturbances")]
    inject_at_ms: f64,
    /// How many are injected
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Disturbances")]
    inject_count: usize,
    /// Milliseconds between them
    #[arg(long, value_name = "MS", default_value_t = 1000.0, help_heading = "Disturbances")]
    inject_every_ms: f64,
    /// Most tokens of their answers
    #[arg(long, value_name = "TOKENS", default_value_t = 8, help_heading = "Disturbances")]
    inject_max_tokens: u32,
    /// Also run each case without its disturbances, alternating, and compare
    #[arg(long, help_heading = "Disturbances")]
    control: bool,

    /// Title of the reports [default: the preset's name]
    #[arg(long, help_heading = "Reports")]
    title: Option<String>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    json: Option<PathBuf>,
    /// Write one JSON line per request
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    jsonl: Option<PathBuf>,
    /// Write a self-contained HTML page with plots
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    html: Option<PathBuf>,
    /// Neither progress bar nor table
    #[arg(long, short, help_heading = "Reports")]
    quiet: bool,
    /// Answers per run whose tokens are recounted by POST /tokenize
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Reports")]
    recount: usize,

    #[cfg(target_os = "linux")]
    #[command(flatten)]
    delivery: crate::delivery::cli::DeliveryArgs,
}

impl BenchArgs {
    /// Runs the benchmark. `in_process` is the engine of this process, needed by
    /// `--in-process` alone.
    ///
    /// The load is driven by one thread with a runtime of its own: measured against a fast
    /// server on two cores, that takes half the CPU time per chunk of a work-stealing
    /// runtime, whose threads wake each other. A target that spawns tasks must therefore do
    /// so on a runtime of its own choice.
    pub async fn run(self, in_process: Option<Arc<dyn Target>>) -> anyhow::Result<ExitCode> {
        raise_open_files_limit();
        #[cfg(target_os = "linux")]
        if self.delivery.is_asked() {
            return self.measure_delivery().await;
        }
        let plan = self.resolve(in_process)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (done, verdict) = tokio::sync::oneshot::channel();
        std::thread::Builder::new().name("bench".into()).spawn(move || {
            // A caller that has gone away needs no verdict.
            let _ = done.send(runtime.block_on(experiment::run(&plan)));
        })?;
        Ok(ExitCode::from(verdict.await??.exit_code()))
    }

    #[cfg(target_os = "linux")]
    async fn measure_delivery(self) -> anyhow::Result<ExitCode> {
        use crate::delivery::{cli::Shared, plan::Outputs};
        let Self { title, seed, json, html, quiet, .. } = self;
        self.delivery.run(Shared { title, seed, outputs: Outputs { json, html, quiet } }).await
    }

    /// Whether [`BenchArgs::run`] needs an engine of this process.
    pub fn wants_in_process(&self) -> bool {
        self.in_process
    }

    /// What `--model` names: with `--in-process` a file, and no name to ask servers for.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn resolve(self, in_process: Option<Arc<dyn Target>>) -> Result<Plan, BenchError> {
        let preset = self.preset.map(Preset::values).unwrap_or_default();
        if let (Some(note), false) = (preset.server_note, self.quiet) {
            eprintln!("note: {note}");
        }
        let targets = self.targets(in_process)?;
        let settings = self.settings(&preset)?;
        let cases = self.cases(&preset, &settings)?;
        check(self.repeat_runs > 0, "--repeat-runs must be at least 1")?;
        Ok(Plan {
            title: self.title(),
            settings,
            cases,
            targets,
            warmup_runs: self.warmup_runs.or(preset.warmup_runs).unwrap_or(0),
            repeat_runs: self.repeat_runs,
            pause: Duration::from_millis(self.pause_ms),
            outputs: Outputs {
                json: self.json,
                jsonl: self.jsonl,
                html: self.html,
                quiet: self.quiet,
            },
        })
    }

    fn title(&self) -> String {
        let preset = self.preset.and_then(|preset| preset.to_possible_value());
        let name = preset.map(|value| value.get_name().to_owned());
        self.title.clone().or(name).unwrap_or_else(|| "Load test".into())
    }

    fn targets(&self, in_process: Option<Arc<dyn Target>>) -> Result<Vec<TargetPlan>, BenchError> {
        let mut targets = Vec::new();
        if self.in_process {
            let Some(target) = in_process else {
                return refuse("--in-process needs an engine, which this program does not have");
            };
            targets.push(TargetPlan { target, pid: Some(std::process::id()) });
        }
        check(
            self.server_pid.is_empty() || self.server_pid.len() == self.url.len(),
            "--server-pid must be given once per --url, in the same order",
        )?;
        for (index, given) in self.url.iter().enumerate() {
            let (name, url) = match given.split_once("=http") {
                Some((name, rest)) => (name.to_owned(), format!("http{rest}")),
                None => (given.clone(), given.clone()),
            };
            let base =
                BaseUrl::parse(&url).map_err(|error| BenchError::Options(error.to_string()))?;
            let client = HttpClient::new(base, self.api_key.as_deref())
                .map_err(|error| BenchError::Options(error.to_string()))?;
            let pid = self.server_pid.get(index).copied();
            targets.push(TargetPlan { target: Arc::new(HttpTarget::new(name, client)), pid });
        }
        check(!targets.is_empty(), "nothing to measure: give --url (or --in-process)")?;
        Ok(targets)
    }

    fn settings(&self, preset: &PresetValues) -> Result<Settings, BenchError> {
        let pretok = self.pretok || preset.pretok;
        let default = if pretok { EndpointKind::Completions } else { EndpointKind::Chat };
        let endpoint = self.endpoint.or(preset.endpoint).unwrap_or(default);
        check(
            !pretok || endpoint == EndpointKind::Completions,
            "--pretok needs --endpoint completions: chat has no token ids",
        )?;
        let requests = self.requests.or(preset.requests).unwrap_or(64);
        check((1..=1_000_000).contains(&requests), "--requests must be 1 to 1000000")?;
        let max_tokens = self.max_tokens.or(preset.max_tokens).unwrap_or(128);
        check(max_tokens > 0, "--max-tokens must be at least 1")?;
        check(self.timeout_s > 0.0 && self.timeout_s < 1e6, "--timeout-s must be above 0")?;
        let mut extra = preset.extra.clone();
        extra.extend(self.extra_body()?);
        Ok(Settings {
            model: self.model.clone().filter(|_| !self.in_process),
            endpoint,
            requests,
            max_tokens,
            prompts: self.prompts(preset)?,
            temperature: self.temperature.or(preset.temperature),
            seed: self.seed.or(preset.seed),
            ignore_eos: self.no_stop_on_eos || preset.ignore_eos,
            pretok,
            pacing: self.pacing(preset)?,
            timeout: Duration::from_secs_f64(self.timeout_s),
            include_timings: !self.no_server_timings,
            recount: self.recount,
            extra,
        })
    }

    fn extra_body(&self) -> Result<Map<String, Value>, BenchError> {
        let Some(text) = &self.extra_body else {
            return Ok(Map::new());
        };
        serde_json::from_str(text)
            .map_err(|error| BenchError::Options(format!("--extra-body: {error}")))
    }

    fn prompts(&self, preset: &PresetValues) -> Result<PromptSource, BenchError> {
        check(
            (1..=100_000).contains(&self.prompt_repeats),
            "--prompt-repeats must be 1 to 100000",
        )?;
        let mut texts = match (&self.prompt_file, &self.prompt) {
            (Some(path), _) => read_file(path)?,
            (None, Some(prompt)) => vec![prompt.clone()],
            (None, None) if preset.prompts.is_empty() => vec!["Hello".into()],
            (None, None) => preset.prompts.clone(),
        };
        if let Some(limit) = self.prompt_limit {
            check(limit > 0, "--prompt-limit must be at least 1")?;
            texts.truncate(limit);
        }
        Ok(PromptSource { texts, repeats: self.prompt_repeats, unique: self.unique_prompts })
    }

    fn pacing(&self, preset: &PresetValues) -> Result<Pacing, BenchError> {
        if let Some(rate_per_s) = self.request_rate {
            check(rate_per_s > 0.0 && rate_per_s <= 1e6, "--request-rate must be above 0")?;
            check((0.01..=1e6).contains(&self.burstiness), "--burstiness must be 0.01 or more")?;
            let spacing = match self.arrival {
                ArrivalKind::Constant => Spacing::Constant,
                ArrivalKind::Poisson => Spacing::Gamma { shape: 1.0 },
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

    fn cases(&self, preset: &PresetValues, settings: &Settings) -> Result<Vec<Case>, BenchError> {
        let listed =
            if self.concurrency.is_empty() { &preset.concurrency } else { &self.concurrency };
        check(!listed.contains(&0), "--concurrency must be at least 1")?;
        let intervals = self.intervals(preset)?;
        let extras = self.extras(settings)?;
        let mut disturbed = vec![extras];
        if self.control {
            check(extras != Extras::default(), "--control needs a disturbance to leave out")?;
            disturbed.insert(0, Extras::default());
        }
        let mut cases = Vec::new();
        for concurrency in one_or_all(listed) {
            for &stream_interval in &intervals {
                for &extras in &disturbed {
                    cases.push(Case { label: String::new(), concurrency, stream_interval, extras });
                }
            }
        }
        label(&mut cases);
        Ok(cases)
    }

    fn intervals(&self, preset: &PresetValues) -> Result<Vec<Option<StreamInterval>>, BenchError> {
        if self.stream_interval.is_empty() {
            return Ok(one_or_all(&preset.stream_intervals)
                .map(|tokens| tokens.map(StreamInterval::Tokens))
                .collect());
        }
        let parse = |text: &String| match text.parse() {
            _ if text == "auto" => Ok(Some(StreamInterval::Auto)),
            Ok(tokens @ 1..) => Ok(Some(StreamInterval::Tokens(tokens))),
            _ => refuse("--stream-interval must be a number of at least 1, or auto"),
        };
        self.stream_interval.iter().map(parse).collect()
    }

    fn extras(&self, settings: &Settings) -> Result<Extras, BenchError> {
        check(
            self.inject_at_ms >= 0.0 && self.inject_at_ms < 1e9,
            "--inject-at-ms is out of range",
        )?;
        check(
            self.inject_every_ms >= 0.0 && self.inject_every_ms < 1e9,
            "--inject-every-ms is out of range",
        )?;
        check(self.inject_max_tokens > 0, "--inject-max-tokens must be at least 1")?;
        let inject = self.inject_prompt_tokens.map(|prompt_tokens| Inject {
            prompt_tokens,
            at_s: self.inject_at_ms / 1e3,
            count: self.inject_count,
            every_s: self.inject_every_ms / 1e3,
            max_tokens: self.inject_max_tokens,
        });
        if let Some(inject) = inject {
            check(
                (1..=10_000_000).contains(&inject.prompt_tokens),
                "--inject-prompt-tokens must be 1 to 10000000",
            )?;
        }
        if self.slow_readers + self.disconnects == 0 && inject.is_none() {
            return Ok(Extras::default());
        }
        Ok(Extras {
            slow_readers: self.slow_readers,
            slow_reader_after: self.slow_reader_after,
            slow_reader_max_tokens: self.slow_reader_max_tokens.unwrap_or(settings.max_tokens),
            leavers: self.disconnects,
            leave_after: self.disconnect_after,
            inject,
        })
    }
}

/// Every item as `Some`, or one `None` when there are none.
fn one_or_all<T: Copy>(items: &[T]) -> impl Iterator<Item = Option<T>> {
    let none = items.is_empty().then_some(None);
    items.iter().copied().map(Some).chain(none)
}

/// Names each case by what varies between them.
fn label(cases: &mut [Case]) {
    let first = cases[0].clone();
    let varies = |of: fn(&Case, &Case) -> bool, cases: &[Case]| cases.iter().any(|c| of(c, &first));
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
            Some(StreamInterval::Tokens(n)) if by_interval => parts.push(format!("interval {n}")),
            _ => {}
        }
        if by_extras {
            let undisturbed = case.extras == Extras::default();
            parts.push(if undisturbed { "undisturbed" } else { "disturbed" }.into());
        }
        case.label = parts.join(", ");
    }
}

fn check(holds: bool, otherwise: &str) -> Result<(), BenchError> {
    if holds { Ok(()) } else { refuse(otherwise) }
}

fn refuse<T>(why: &str) -> Result<T, BenchError> {
    Err(BenchError::Options(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn resolve(args: &[&str]) -> Result<Plan, String> {
        let full = ["bench", "--quiet", "--url", "a=http://127.0.0.1:1"].iter().chain(args);
        let cli = Cli::try_parse_from(full).map_err(|error| error.to_string())?;
        cli.bench.resolve(None).map_err(|error| error.to_string())
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
    fn options_win_over_the_preset() {
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
            (&["--url", "ftp://x"], "ftp"),
            (&["--server-pid", "1", "--server-pid", "2"], "--server-pid"),
            (&["--in-process"], "--in-process"),
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
