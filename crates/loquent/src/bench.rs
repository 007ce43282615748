//! `loquent bench`: a server under load, token delivery over a bad network, what token streams
//! leave to downloads, or the engine alone.

use std::process::ExitCode;

use clap::{Arg, Args, Subcommand};
use loquent_bench::cli::{EXIT_STATUS, LoadArgs, ServerArgs, WorkloadArgs};
use loquent_bench::plan::TargetPlan;

use crate::in_process::{InProcess, InProcessArgs};

const EXAMPLES: &str = "\
Examples:
  loquent bench engine --model qwen.gguf --max-batch-size 64 --preset rose-050
  loquent bench engine --simulate inf --max-batch-size 64 -n 64
  loquent bench engine --simulate 100 -n 64 --url http://127.0.0.1:8080

";

/// Headings whose flags `bench engine -h` lists; they describe the load.
const LOAD_HEADINGS: [&str; 7] =
    ["Load", "Runs", "Prompts", "Generation", "Disturbances", "Reports", "Comparison"];
/// The engine's flags that `bench engine -h` lists; `--help` lists all.
const ESSENTIAL: [&str; 8] =
    ["model", "hf", "simulate", "max_batch_size", "context", "kv_cells", "threads", "gpu_layers"];

/// Leaves the engine's less common flags to `--help`.
fn sort_by_audience(flag: Arg) -> Arg {
    let is_of_load = flag.get_help_heading().is_none_or(|name| LOAD_HEADINGS.contains(&name));
    let is_essential = ESSENTIAL.contains(&flag.get_id().as_str());
    flag.hide_short_help(!is_of_load && !is_essential)
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
    #[cfg(target_os = "linux")]
    Delivery(Box<loquent_bench::delivery::cli::DeliveryArgs>),
    #[cfg(target_os = "linux")]
    Fairness(Box<loquent_bench::fairness::cli::FairnessArgs>),
    Engine(Box<EngineBenchArgs>),
}

/// Put load on the engine in this process, without HTTP
///
/// The engine and admission options are those of `loquent serve`. With --url the runs alternate
/// with those of a server; the ratios then show what HTTP costs.
#[derive(Debug, Args)]
#[command(after_help = after_help(), mut_args(sort_by_audience))]
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
}

/// Examples, then the exit status.
fn after_help() -> String {
    format!("{EXAMPLES}{EXIT_STATUS}")
}

impl BenchArgs {
    /// Runs the benchmark on the current runtime.
    ///
    /// # Errors
    /// If options contradict each other, a target cannot be used, or a report cannot be written.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self.benchmark {
            Benchmark::Load(args) => args.run().await,
            #[cfg(target_os = "linux")]
            Benchmark::Delivery(args) => args.run().await,
            #[cfg(target_os = "linux")]
            Benchmark::Fairness(args) => args.run().await,
            Benchmark::Engine(args) => args.run().await,
        }
    }
}

impl EngineBenchArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        // Before the model is loaded, which takes long: a wrong URL needs no engine.
        let servers = self.servers.targets(&self.url)?;
        let engine = InProcess::open(self.in_process).await?;
        let mut targets =
            vec![TargetPlan { target: engine.target(), pid: Some(std::process::id()) }];
        targets.extend(servers);
        let result = self.workload.run(None, targets).await;
        engine.close().await;
        result
    }
}
