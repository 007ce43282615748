//! `loquent bench delivery`: its options as typed, resolved into a [`DeliveryPlan`].

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use loquent_sim::channel::Channel;

use super::plan::{DeliveryPlan, DeliveryReportPaths, DeliveryScheme};
use super::report::{DeliveryLimits, DeliveryReport};
use super::{run, sse};
use crate::expected_time::about;
use crate::link::options::{parse_loss, parse_rate_kbps};
use crate::{BenchError, print};

const EXAMPLES: &str = "\
Examples:
  loquent bench delivery --html delivery.html
  loquent bench delivery --rtt 50 --loss none --schemes serve-cubic,loquent --sessions 64
  without root, for the schemes over UDP:
    loquent bench delivery --without-root --schemes eloquent,loquent

Exit status: 0 if every limit is met, 1 if not.";

/// Measure token delivery over an emulated bad network
///
/// Several delivery schemes carry the same tokens at the same times over real sockets, through the
/// same emulated link with the same seeds. The report shows stalls, delay and bytes, with the
/// simulator's figures for the same sessions. Kernel TCP needs root; see also `loquent link`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct DeliveryArgs {
    /// Round-trip times in ms; each is a case
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "400,100,50")]
    rtt: Vec<f64>,
    /// Packet loss, as in `loquent link --loss`
    #[arg(long, value_name = "LOSSES", default_value = "default", value_parser = parse_loss)]
    loss: Channel,
    /// Maximum extra delay in ms; above the packets' spacing it reorders
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter: f64,
    /// Rate of each direction, such as 16kbit [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = parse_rate_kbps)]
    rate: Option<f64>,
    /// Concurrent streams, each with losses of its own
    #[arg(long, value_name = "N", default_value_t = 30)]
    sessions: usize,
    /// How long tokens are generated
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    duration_s: f64,
    /// Tokens per second of each stream
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    tokens_per_s: f64,
    /// Delivery schemes to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "SCHEMES",
        default_value = "cubic,bbr,eloquent,loquent"
    )]
    schemes: Vec<DeliveryScheme>,
    /// Playout buffer of a client that paces its text, for the displayed figures
    #[arg(long, value_name = "MS", default_value_t = 300)]
    pace_ms: u64,
    /// Seed of losses, text and generation times
    #[arg(long, value_name = "N", default_value_t = 2024)]
    seed: u64,
    /// Use UDP relays instead of network namespaces; only schemes over UDP work
    #[arg(long)]
    without_root: bool,
    /// Options for `loquent serve`, in one string
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    serve_options: String,

    /// Fail unless Loquent stalls PERCENT less than the better TCP
    #[arg(long, value_name = "MS=PERCENT", value_delimiter = ',', value_parser = parse_reduction,
          help_heading = "Limits")]
    min_reduction: Vec<(f64, f64)>,
    /// Fail if a Loquent stream takes more than KB kB per second
    #[arg(long, value_name = "KB", help_heading = "Limits")]
    max_kb_per_s: Option<f64>,
    /// Fail if a TCP's model stalls PERCENT more or less than it
    #[arg(long, value_name = "PERCENT", help_heading = "Limits")]
    max_model_error: Option<f64>,

    /// Title of the reports
    #[arg(long, default_value = "Delivery over an emulated link", help_heading = "Reports")]
    title: String,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    json: Option<PathBuf>,
    /// Write a self-contained HTML page with plots
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    html: Option<PathBuf>,
    /// Print neither progress nor the table
    #[arg(long, short, help_heading = "Reports")]
    quiet: bool,
}

fn parse_reduction(text: &str) -> Result<(f64, f64), String> {
    let pair = text
        .split_once('=')
        .and_then(|(rtt, percent)| Some((rtt.parse::<f64>().ok()?, percent.parse::<f64>().ok()?)));
    pair.ok_or_else(|| {
        format!(
            "{text:?} is not MS=PERCENT; give a round-trip time and a percentage, such as 400=75"
        )
    })
}

impl DeliveryArgs {
    /// Runs the benchmark on a blocking thread of the current runtime.
    ///
    /// # Errors
    /// If an option is out of range, root is missing, or a scheme cannot be run.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let targets = DeliveryLimits {
            reduction: self.min_reduction.clone(),
            kb_s: self.max_kb_per_s,
            model_error: self.max_model_error,
        };
        let plan = self.resolve()?;
        let outputs = plan.outputs.clone();
        let report = tokio::task::spawn_blocking(move || -> anyhow::Result<DeliveryReport> {
            let tell = |line: &str| {
                if !plan.outputs.quiet {
                    eprintln!("{line}");
                }
            };
            let (cases, schemes) = (plan.rtts_ms.len(), plan.schemes.len());
            let takes = about(plan.expected_s());
            tell(&format!("{schemes} schemes at {cases} round-trip times: this takes {takes}"));
            let trials = run::run(&plan, tell)?;
            Ok(DeliveryReport::new(plan, trials, targets))
        })
        .await??;
        let saved = report.write(&outputs);
        if !outputs.quiet {
            print(report.table())?;
        }
        saved?;
        Ok(if report.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn resolve(self) -> anyhow::Result<DeliveryPlan> {
        let refuse = |reason: &str| Err(BenchError::Options(reason.to_owned()));
        let plan = DeliveryPlan {
            title: self.title,
            rtts_ms: self.rtt,
            channel: self.loss,
            jitter_ms: self.jitter,
            rate_kbps: self.rate,
            sessions: self.sessions,
            seconds: self.duration_s,
            tokens_per_s: self.tokens_per_s,
            seed: self.seed,
            schemes: self.schemes,
            pace_ms: self.pace_ms,
            server_program: std::env::current_exe()?,
            server_options: self.serve_options.split_whitespace().map(str::to_owned).collect(),
            without_root: self.without_root,
            outputs: DeliveryReportPaths { json: self.json, html: self.html, quiet: self.quiet },
        };
        if !(1..=1000).contains(&plan.sessions) {
            refuse("--sessions must be 1 to 1000")?;
        }
        if !(1.0..=3600.0).contains(&plan.seconds) {
            refuse("--duration-s must be 1 to 3600")?;
        }
        let fault = plan.generator().fault();
        let links = plan.rtts_ms.iter().find_map(|&rtt_ms| plan.link(rtt_ms).fault());
        if let Some(fault) = fault.or(links) {
            refuse(&fault)?;
        }
        let need_root = |scheme: &&DeliveryScheme| {
            scheme.congestion().is_some() || **scheme == DeliveryScheme::QuicStream
        };
        if plan.without_root && plan.schemes.iter().any(|scheme| need_root(&scheme)) {
            refuse(
                "schemes on kernel TCP and quic-stream need root: drop --without-root or those \
                 schemes",
            )?;
        }
        for name in plan.schemes.iter().filter_map(|scheme| scheme.congestion()) {
            sse::check_congestion(name)?;
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        delivery: DeliveryArgs,
    }

    fn resolve(args: &[&str]) -> Result<DeliveryPlan, String> {
        let cli = Cli::try_parse_from(["delivery"].iter().chain(args));
        let cli = cli.map_err(|error| error.to_string())?;
        cli.delivery.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn short_help_fits_one_screen() {
        let help = Cli::command().term_width(100).render_help().to_string();
        assert!(help.lines().count() <= 50, "{} lines:\n{help}", help.lines().count());
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for (args, word) in [
            (&["--sessions", "0"][..], "--sessions"),
            (&["--duration-s", "0"], "--duration-s"),
            (&["--min-reduction", "400"], "MS=PERCENT"),
            (&["--without-root"], "--without-root"),
            (&["--loss", "150%"], "--loss"),
        ] {
            let refused = resolve(args).err().unwrap_or_else(|| panic!("{args:?} was accepted"));
            assert!(refused.contains(word), "{args:?}: {refused}");
        }
    }

    #[test]
    fn limits_name_a_round_trip_time() {
        let args = ["delivery", "--min-reduction", "400=75,50=70"];
        let cli = Cli::parse_from(args);
        assert_eq!(cli.delivery.min_reduction, [(400.0, 75.0), (50.0, 70.0)]);
    }
}
