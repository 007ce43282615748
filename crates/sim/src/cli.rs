//! `loquent sim` and `loquent trace`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

use loquent_proto::printable::printable;

use crate::burst::{self, BurstPlan, BurstReport};
use crate::link::Link;
use crate::plan::{Case, Plan};
use crate::qoe::{self, QoePlan, QoeReport};
use crate::report::{replay, run_plan};
use crate::study::ProgressReport;
use crate::{sweep, trace};

/// Name of the built-in plan of bursts.
const BURST: &str = "burst";
/// Name of the built-in plan of bursts that are judged by quality of experience.
const QOE: &str = "qoe";

/// Run a plan in virtual time and report stalls, delays and bytes
#[derive(Debug, Clone, clap::Args)]
pub struct SimArgs {
    /// Plan to run: a TOML file, or the name of a built-in plan
    plan: String,
    /// Number of sessions of each case and scheme [default: the plan's]
    #[arg(long, value_name = "N")]
    sessions: Option<u32>,
    /// Random seed [default: the plan's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run under N consecutive seeds and show the worst figure of each claim
    ///
    /// The first seed is --seed, or else follows from the plan's name, so that nobody has chosen
    /// it: `printf NAME | sha256sum`, the first eight digits. Example: loquent sim outages
    /// --seeds 20
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000),
          conflicts_with_all = ["replay", "json", "csv", "svg", "html"])]
    seeds: Option<u32>,
    /// Replay only session N, counted from 0, and describe it
    #[arg(long, value_name = "N")]
    replay: Option<u32>,
    /// Number of threads; it does not change the result
    #[arg(long, value_name = "N", default_value_t = default_threads())]
    threads: usize,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Write one CSV line per session to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the plan's figures into this folder
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// Write a page with the figures, the claims and the table to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl SimArgs {
    /// Runs the plan and prints or writes the results.
    ///
    /// # Errors
    /// If the plan cannot be read, a file cannot be written, one of the plan's claims does not
    /// hold, or a session broke a guarantee.
    pub fn run(self) -> anyhow::Result<()> {
        if plan_name(&self.plan) == BURST {
            return self.bursts();
        }
        if plan_name(&self.plan) == QOE {
            return self.qoe();
        }
        let mut plan = read_plan(&self.plan)?;
        plan.sessions = self.sessions.unwrap_or(plan.sessions);
        plan.seed = self.seed.unwrap_or(plan.seed);
        plan.check(&self.plan)?;
        match (self.replay, self.seeds) {
            (Some(session), _) => print!("{}", printable(&replay(&plan, session))),
            (None, Some(seeds)) => self.sweep(&plan, seeds)?,
            (None, None) => self.report(&plan)?,
        }
        Ok(())
    }

    /// Runs a burst plan, which involves no randomness.
    fn bursts(&self) -> anyhow::Result<()> {
        let given = self.sessions.is_some() || self.seed.is_some() || self.seeds.is_some();
        if given || self.replay.is_some() || self.csv.is_some() || self.html.is_some() {
            bail!("in a plan of bursts nothing is random: only --json and --svg apply to it");
        }
        let plan = BurstPlan::parse(&self.plan, &self.text(BURST, burst::BUILT_IN)?)?;
        let meter = Meter::new((plan.machine.len() * plan.prompt_tokens.len() * 2) as u64);
        let found = burst::run(&plan, &meter);
        meter.bar.finish_and_clear();
        let report = BurstReport::new(plan, found);
        if let Some(folder) = &self.svg {
            write(&folder.join("burst.svg"), &report.figure())?;
        }
        match self.json {
            true => println!("{:#}", report.json()),
            false => print!("{}", printable(&report.table())),
        }
        verdict(report.is_good())
    }

    /// Runs a plan of bursts that are judged by quality of experience.
    fn qoe(&self) -> anyhow::Result<()> {
        let given = self.sessions.is_some() || self.seeds.is_some() || self.replay.is_some();
        if given || self.csv.is_some() || self.html.is_some() {
            bail!("only --seed, --threads, --json and --svg apply to a plan of QoE");
        }
        let mut plan = QoePlan::parse(&self.plan, &self.text(QOE, qoe::BUILT_IN)?)?;
        plan.seed = self.seed.unwrap_or(plan.seed);
        let meter = Meter::new(qoe::plays(&plan));
        let curves = qoe::run(&plan, self.threads, &meter);
        meter.bar.finish_and_clear();
        let report = QoeReport::new(plan, curves);
        if let Some(folder) = &self.svg {
            write(&folder.join("qoe.svg"), &report.figure())?;
        }
        match self.json {
            true => println!("{:#}", report.json()),
            false => print!("{}", printable(&report.table())),
        }
        verdict(report.is_good())
    }

    /// Returns the text of the plan: the one built in if it is called by `name`, else a file.
    fn text(&self, name: &str, built_in: &str) -> anyhow::Result<String> {
        match self.plan == name {
            true => Ok(built_in.to_owned()),
            false => std::fs::read_to_string(&self.plan)
                .with_context(|| format!("cannot read {}", self.plan)),
        }
    }

    /// Runs `plan` with its own seed.
    fn report(&self, plan: &Plan) -> anyhow::Result<()> {
        let meter = Meter::new(sessions(plan));
        let started = std::time::Instant::now();
        let report = run_plan(plan, self.threads, &meter);
        let took = started.elapsed();
        meter.bar.finish_and_clear();
        if self.json {
            print!("{}", report.json());
        } else {
            print!("{}", printable(&report.table()));
        }
        eprintln!("{}", speed(report.study().simulated_s, took, self.threads));
        if let Some(path) = &self.csv {
            write(path, &report.csv())?;
        }
        if let Some(folder) = &self.svg {
            for figure in report.figures() {
                write(&folder.join(&figure.file), &figure.svg)?;
            }
        }
        if let Some(path) = &self.html {
            write(path, &report.html())?;
        }
        verdict(report.good())
    }

    /// Runs `plan` with `seeds` consecutive seeds.
    fn sweep(&self, plan: &Plan, seeds: u32) -> anyhow::Result<()> {
        let first = self.seed.unwrap_or_else(|| sweep::first_seed(plan_name(&self.plan)));
        let meter = Meter::new(sessions(plan) * u64::from(seeds));
        let started = std::time::Instant::now();
        let sweep = sweep::run(plan, first, seeds, self.threads, &meter);
        let took = started.elapsed();
        meter.bar.finish_and_clear();
        print!("{}", printable(&sweep.table()));
        eprintln!("{}", speed(sweep.simulated_s, took, self.threads));
        verdict(sweep.good())
    }
}

fn verdict(good: bool) -> anyhow::Result<()> {
    if !good {
        bail!(
            "a claim of the plan does not hold, or a session broke a guarantee; see the table above"
        );
    }
    Ok(())
}

/// Returns the number of sessions of `plan` over all cases and schemes.
fn sessions(plan: &Plan) -> u64 {
    (plan.case.len() * plan.scheme.len()) as u64 * u64::from(plan.sessions)
}

/// Returns the name of a built-in plan, or that of a plan's file without its suffix.
fn plan_name(plan: &str) -> &str {
    Path::new(plan).file_stem().and_then(|stem| stem.to_str()).unwrap_or(plan)
}

/// Read losses, arrivals and stalls from a packet capture of a token stream over TCP
///
/// Losses come from sequence numbers, so the capture may be encrypted, or cut to headers, which
/// keeps everybody's text out of it; then packets are counted instead of tokens.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  tcpdump -i any -s 96 -w stream.pcap tcp port 8080   capture headers, on either end
  loquent trace stream.pcap                           losses, gaps and stalls
  loquent trace stream.pcap --case train              as a channel for a simulation plan")]
pub struct TraceArgs {
    /// Capture file, pcap or pcapng
    capture: PathBuf,
    /// Server's TCP port [default: that of the stream with the most data]
    #[arg(long)]
    port: Option<u16>,
    /// Print JSON instead of the table, with every packet and every token
    #[arg(long, conflicts_with = "case")]
    json: bool,
    /// Print a plan's case of this name, with the capture's losses as its channel
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Round-trip time of that case
    #[arg(long, value_name = "MS", default_value_t = 400.0)]
    rtt_ms: f64,
}

impl TraceArgs {
    /// Reads the capture and prints its losses and gaps.
    ///
    /// # Errors
    /// If the capture cannot be read or has no TCP stream that carries data.
    pub fn run(self) -> anyhow::Result<()> {
        let trace = trace::read(&self.capture, self.port)?;
        match self.case {
            Some(name) => print!("{}", case_toml(name, self.rtt_ms, &trace)?),
            None if self.json => println!("{}", serde_json::to_string_pretty(&trace)?),
            None => print!("{}", trace.table()),
        }
        Ok(())
    }
}

fn case_toml(name: String, rtt_ms: f64, trace: &trace::Trace) -> anyhow::Result<String> {
    #[derive(serde::Serialize)]
    struct Cases {
        case: [Case; 1],
    }
    let case = Case {
        name,
        at: None,
        link: Link::new(rtt_ms, trace.channel()),
        random: false,
        generator: None,
        text: None,
    };
    Ok(toml::to_string(&Cases { case: [case] })?)
}

fn read_plan(name: &str) -> anyhow::Result<Plan> {
    let built_in = crate::BUILT_IN_PLANS.iter().find(|(known, _)| *known == name);
    match built_in {
        Some((name, text)) if !Path::new(name).exists() => Ok(Plan::parse(name, text)?),
        _ => Plan::read(Path::new(name)).with_context(|| {
            let built_in = crate::BUILT_IN_PLANS.iter().map(|(name, _)| *name);
            // Plans of bursts have forms of their own, and are read elsewhere.
            let mut names: Vec<_> = built_in.chain([BURST, QOE]).collect();
            names.sort_unstable();
            format!("no plan {name:?}; there are these, or a file: {}", names.join(", "))
        }),
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

fn speed(simulated_s: f64, took: Duration, threads: usize) -> String {
    let times = simulated_s / took.as_secs_f64().max(1e-9) / threads.max(1) as f64;
    format!(
        "{simulated_s:.0} s simulated in {:.1} s on {threads} threads: {times:.0} times real time per thread",
        took.as_secs_f64()
    )
}

struct Meter {
    bar: ProgressBar,
}

impl Meter {
    fn new(sessions: u64) -> Self {
        let bar = ProgressBar::new(sessions);
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} sessions, {eta} left")
            .expect("a fixed template");
        bar.set_style(style);
        Self { bar }
    }
}

impl ProgressReport for Meter {
    fn advance(&self, sessions: u64, _simulated_s: f64) {
        self.bar.inc(sessions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_plan_is_answered_with_the_names_of_all() {
        let error = read_plan("nosuch").unwrap_err().to_string();
        for name in crate::BUILT_IN_PLANS.iter().map(|(name, _)| *name).chain([BURST, QOE]) {
            assert!(error.contains(name), "{error}");
        }
        assert!(read_plan(crate::BUILT_IN_PLANS[0].0).is_ok());
    }
}
