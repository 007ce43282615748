//! `loquent bench`: measures a server under load, token delivery over a bad network, the bandwidth
//! that token streams leave to downloads, or the engine alone.

#[cfg(feature = "llama")]
mod roofline;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, Args, Subcommand};
use loquent_bench::cli::{EXIT_STATUS, ServerArgs, WorkloadArgs};
use loquent_bench::plan::TargetPlan;

use crate::chat::LOCAL_SERVER;
use crate::in_process::{InProcess, InProcessArgs};
use crate::trust::TrustArgs;

const LOAD_EXAMPLES: &str = "\
Examples:
  loquent bench load --url http://127.0.0.1:8080 --preset rose-050 --html report.html
  loquent bench load --url loquent=http://127.0.0.1:8080 --url llama=http://127.0.0.1:8081 \\
      --preset cllm-stage15 --ignore-eos --repeat-runs 5
  loquent bench load --url http://127.0.0.1:8080 -n 200 --request-rate 20 --burstiness 0.5
  loquent bench load --url http://127.0.0.1:8080 -n 8 --max-tokens 400 --ignore-eos \\
      --inject-prompt-tokens 4000 --inject-at-ms 2000 --control

";

const ENGINE_EXAMPLES: &str = "\
Examples:
  loquent bench engine --model qwen.gguf --max-batch-size 64 --preset rose-050
  loquent bench engine --simulate inf --max-batch-size 64 -n 64
  loquent bench engine --simulate 100 -n 64 --url http://127.0.0.1:8080
  loquent bench engine --model qwen.gguf --roofline --json roofline.json --plot roofline.svg

";

/// Headings of the flags that `bench engine -h` lists; they describe the load.
const LOAD_HEADINGS: [&str; 8] =
    ["Load", "Runs", "Prompts", "Generation", "Disturbances", "Reports", "Comparison", "Roofline"];
/// Engine flags that `bench engine -h` lists; `--help` lists all.
const ESSENTIAL: [&str; 9] = [
    "wanted",
    "model",
    "hf",
    "simulate",
    "max_batch_size",
    "context",
    "kv_cells",
    "threads",
    "gpu_layers",
];

/// Hides the engine's less common flags from `-h`; `--help` shows them.
fn sort_by_audience(flag: Arg) -> Arg {
    let is_of_load = flag.get_help_heading().is_none_or(|name| LOAD_HEADINGS.contains(&name));
    let is_essential = ESSENTIAL.contains(&flag.get_id().as_str());
    let is_hidden = flag.is_hide_short_help_set() || !is_of_load && !is_essential;
    flag.hide_short_help(is_hidden)
}

/// Options of `loquent bench`: which of its benchmarks, and that one's options.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    Load(Box<LoadArgs>),
    // For research: they are in the book, and not in the help.
    #[command(hide = true)]
    Burst(Box<loquent_bench::burst::cli::BurstArgs>),
    #[cfg(target_os = "linux")]
    Delivery(Box<loquent_bench::delivery::cli::DeliveryArgs>),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Fairness(Box<loquent_bench::fairness::cli::FairnessArgs>),
    Engine(Box<EngineBenchArgs>),
}

/// Put load on OpenAI-compatible servers and report what their users would see
#[derive(Debug, Args)]
#[command(after_help = format!("{LOAD_EXAMPLES}{EXIT_STATUS}"))]
pub struct LoadArgs {
    /// Server to measure; repeat to compare servers
    ///
    /// With several servers their runs alternate, so that a change of the machine's speed meets
    /// all of them. NAME= sets the name in the reports.
    #[arg(long, env = "LOQUENT_URL", value_name = "[NAME=]URL", default_value = LOCAL_SERVER)]
    url: Vec<String>,
    /// Model name in requests [default: the server's first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    workload: WorkloadArgs,
}

/// Put load on the engine in this process, without HTTP
///
/// The engine and admission options are those of `loquent serve`. With --url the runs alternate
/// with those of a server; the ratios then show what HTTP costs. With --roofline there is no load:
/// steps of the engine are timed and compared with what the machine can do.
#[derive(Debug, Args)]
#[command(after_help = format!("{ENGINE_EXAMPLES}{EXIT_STATUS}"), mut_args(sort_by_audience))]
pub struct EngineBenchArgs {
    #[command(flatten)]
    in_process: InProcessArgs,
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Server to compare with; repeatable
    #[arg(long, value_name = "[NAME=]URL", help_heading = "Comparison")]
    url: Vec<String>,
    #[command(flatten, next_help_heading = "Comparison")]
    servers: ServerArgs,
    #[command(flatten, next_help_heading = "Certificates")]
    trust: TrustArgs,
    #[command(flatten)]
    roofline: RooflineArgs,
}

/// The flags of the roofline.
#[derive(Debug, Args)]
#[command(next_help_heading = "Roofline")]
struct RooflineArgs {
    /// Compare steps with the least time that this machine needs for them, instead of a load
    ///
    /// Measures how fast all compute threads together read memory and multiply 8-bit integers, by
    /// instruction set. Then times decode steps of 1 to 64 rows and prompts of 512 and 4,000
    /// tokens, and prints the share of the limit that each reaches. The limit is the longer of
    /// two times: to read the weights and the KV cache once, and to do the multiplications. Flags
    /// of the load have no effect but --json and --quiet. Ctrl-C prints what there is so far.
    #[arg(long, conflicts_with_all = ["simulate", "url"])]
    roofline: bool,
    /// SVG file for a plot of the roofline
    #[arg(long, value_name = "FILE", requires = "roofline", hide_short_help = true)]
    plot: Option<PathBuf>,
    /// Maximum time of the roofline in seconds, loading aside
    #[arg(long, value_name = "S", default_value_t = 120.0, value_parser = parse_seconds,
          hide_short_help = true)]
    max_time_s: f64,
}

/// Parses a time from 0 to a day.
fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "give seconds, from 0 to 86400".to_owned())
}

impl BenchArgs {
    /// Returns true if the benchmark has the flags of [`TrustArgs`].
    pub fn has_trust(&self) -> bool {
        matches!(self.benchmark, Benchmark::Load(_) | Benchmark::Engine(_))
    }

    /// Runs the benchmark on the current runtime.
    ///
    /// # Errors
    /// If options contradict each other, a target cannot be used, or a report cannot be written.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self.benchmark {
            Benchmark::Load(args) => args.run().await,
            Benchmark::Burst(args) => args.run().await,
            #[cfg(target_os = "linux")]
            Benchmark::Delivery(args) => args.run().await,
            #[cfg(target_os = "linux")]
            Benchmark::Fairness(args) => args.run().await,
            Benchmark::Engine(args) => args.run().await,
        }
    }
}

impl LoadArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let targets = self.servers.targets(&self.url, &self.trust.trust()?)?;
        self.workload.run(self.model, targets).await
    }
}

impl EngineBenchArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        if self.roofline.roofline {
            return self.measure_roofline().await;
        }
        // Before the model is loaded, which takes long: a wrong URL needs no engine.
        let servers = self.servers.targets(&self.url, &self.trust.trust()?)?;
        let engine = InProcess::open(self.in_process).await?;
        let mut targets =
            vec![TargetPlan { target: engine.target(), pid: Some(std::process::id()) }];
        targets.extend(servers);
        let result = self.workload.run(None, targets).await;
        engine.close().await;
        result
    }

    /// Runs the measurement on a blocking thread: it uses the engine directly, without tasks.
    #[cfg(feature = "llama")]
    async fn measure_roofline(self) -> anyhow::Result<ExitCode> {
        let report = self.workload.report_to();
        let options = roofline::RooflineOptions {
            limit: std::time::Duration::from_secs_f64(self.roofline.max_time_s),
            json: report.json.map(Into::into),
            plot: self.roofline.plot,
            quiet: report.quiet,
        };
        let (source, engine) = self.in_process.into_engine()?;
        let measuring = move || roofline::run(&source, &engine, &options);
        tokio::task::spawn_blocking(measuring).await?
    }

    #[cfg(not(feature = "llama"))]
    async fn measure_roofline(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!(
            "this build has no engine to measure; build it with the cargo feature 'llama'"
        )
    }
}
