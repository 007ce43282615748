//! The options of `loquent bench --delivery`.

use std::process::ExitCode;

use clap::Args;
use loquent_sim::channel::Channel;

use super::plan::{Outputs, Plan, Scheme};
use super::report::{Report, Targets};
use super::{run, sse};
use crate::BenchError;
use crate::link::options::parse_loss;

/// What is measured with `--delivery`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Delivery over an emulated link")]
pub struct DeliveryArgs {
    /// Measure ways to deliver tokens over a bad network (see `loquent link`; TCP needs root):
    /// stalls, delay and bytes, beside the simulator's for the same seeds
    #[arg(long, conflicts_with_all = ["url", "in_process", "preset"])]
    delivery: bool,
    /// Round-trip times in ms, each a case
    #[arg(
        long,
        value_name = "MS",
        value_delimiter = ',',
        default_value = "400,100,50",
        requires = "delivery"
    )]
    rtt: Vec<f64>,
    /// Losses, as in `loquent link --loss`
    #[arg(long, value_name = "LOSSES", default_value = "default", value_parser = parse_loss,
          requires = "delivery")]
    channel: Channel,
    /// Streams at a time, each with losses of its own
    #[arg(long, value_name = "N", default_value_t = 30, requires = "delivery")]
    sessions: usize,
    /// How long tokens are generated
    #[arg(long, value_name = "S", default_value_t = 30.0, requires = "delivery")]
    seconds: f64,
    /// Tokens per second of each stream
    #[arg(long, value_name = "RATE", default_value_t = 10.0, requires = "delivery")]
    tokens_per_s: f64,
    /// What to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "cubic,bbr,eloquent,ours",
        requires = "delivery"
    )]
    schemes: Vec<Scheme>,
    /// Text that a pacing client holds back, for the displayed figures
    #[arg(long, value_name = "MS", default_value_t = 300, requires = "delivery")]
    pace_ms: u64,
    /// Without root: UDP relays, for the schemes on UDP alone
    #[arg(long, requires = "delivery")]
    without_root: bool,
    /// Options of the server that is started for the schemes with `loquent serve`, in one string
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        allow_hyphen_values = true,
        requires = "delivery"
    )]
    serve_options: String,
    /// Fail unless ours stalls by so many per cent less than the better TCP, RTT=PERCENT
    #[arg(long, value_name = "MS=PERCENT", value_delimiter = ',', value_parser = parse_target,
          requires = "delivery")]
    target: Vec<(f64, f64)>,
    /// Fail if a stream of ours takes more kB per second
    #[arg(long, value_name = "KB", requires = "delivery")]
    target_kb_s: Option<f64>,
}

fn parse_target(text: &str) -> Result<(f64, f64), String> {
    let pair = text
        .split_once('=')
        .and_then(|(rtt, percent)| Some((rtt.parse::<f64>().ok()?, percent.parse::<f64>().ok()?)));
    pair.ok_or_else(|| format!("{text:?}: give a round-trip time and per cents, as 400=75"))
}

/// What a delivery benchmark takes of the options that it shares with others.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Title of the reports.
    pub title: Option<String>,
    /// Seed of everything random.
    pub seed: Option<u64>,
    /// Reports.
    pub outputs: Outputs,
}

impl DeliveryArgs {
    /// Whether it is asked for.
    pub fn is_asked(&self) -> bool {
        self.delivery
    }

    /// Runs the benchmark. The current runtime is used for the server's process.
    ///
    /// # Errors
    /// If options make no sense, root is missing, or a scheme cannot be run.
    pub async fn run(self, shared: Shared) -> anyhow::Result<ExitCode> {
        let targets = Targets { reduction: self.target.clone(), kb_s: self.target_kb_s };
        let plan = self.resolve(shared)?;
        let outputs = plan.outputs.clone();
        let report = tokio::task::spawn_blocking(move || -> anyhow::Result<Report> {
            let tell = |line: &str| {
                if !plan.outputs.quiet {
                    eprintln!("{line}");
                }
            };
            let trials = run::run(&plan, tell)?;
            Ok(Report::new(plan, trials, targets))
        })
        .await??;
        if !outputs.quiet {
            print!("{}", report.table());
        }
        report.write(&outputs)?;
        Ok(if report.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn resolve(self, shared: Shared) -> anyhow::Result<Plan> {
        let refuse = |reason: &str| Err(BenchError::Options(reason.to_owned()));
        let plan = Plan {
            title: shared.title.unwrap_or_else(|| "Delivery over an emulated link".into()),
            rtts_ms: self.rtt,
            channel: self.channel,
            sessions: self.sessions,
            seconds: self.seconds,
            tokens_per_s: self.tokens_per_s,
            seed: shared.seed.unwrap_or(2024),
            schemes: self.schemes,
            pace_ms: self.pace_ms,
            server_program: std::env::current_exe()?,
            server_options: self.serve_options.split_whitespace().map(str::to_owned).collect(),
            without_root: self.without_root,
            outputs: shared.outputs,
        };
        if !(1..=1000).contains(&plan.sessions) {
            refuse("--sessions must be 1 to 1000")?;
        }
        if !(1.0..=3600.0).contains(&plan.seconds) {
            refuse("--seconds must be 1 to 3600")?;
        }
        let fault = plan.generator().fault();
        let links = plan.rtts_ms.iter().find_map(|&rtt_ms| plan.link(rtt_ms).fault());
        if let Some(fault) = fault.or(links) {
            refuse(&fault)?;
        }
        for name in plan.schemes.iter().filter_map(|scheme| scheme.congestion()) {
            if plan.without_root {
                refuse("kernel TCP needs root: leave --without-root out, or its schemes")?;
            }
            sse::check_congestion(name)?;
        }
        Ok(plan)
    }
}
