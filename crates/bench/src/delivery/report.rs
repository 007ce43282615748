//! The reports of a delivery benchmark: a table, JSON, a page with plots, and checks of limits.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::cells::{CaseResult, Cell};
use super::metrics::{MeanInterval, SchemeTrial, StreamMetrics, predict, spread, stream_metrics};
use super::plan::{DeliveryPlan, DeliveryReportPaths, DeliveryScheme};
use super::plot;
use super::run::Trials;
use crate::BenchError;

/// Limits that Loquent's schemes must meet.
#[derive(Debug, Clone, Default)]
pub struct DeliveryLimits {
    /// Round-trip time in ms, and the minimum percentage by which the stall ratio must be below
    /// that of the better TCP.
    pub reduction: Vec<(f64, f64)>,
    /// Maximum kB per second of one stream.
    pub kb_s: Option<f64>,
    /// Maximum percentage by which the stall ratios of a kernel's TCP and of its model may differ.
    pub model_error: Option<f64>,
}

/// Result of checking one limit.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitVerdict {
    /// The limit and the measured value.
    pub text: String,
    /// True if the measured value meets the limit.
    pub holds: bool,
}

/// A finished benchmark.
#[derive(Debug, Clone)]
pub struct DeliveryReport {
    plan: DeliveryPlan,
    targets: DeliveryLimits,
    cases: Vec<CaseResult>,
}

impl DeliveryReport {
    /// Computes the metrics of `trials` and simulates the same sessions.
    pub fn new(plan: DeliveryPlan, trials: Trials, targets: DeliveryLimits) -> Self {
        let cell = |scheme: DeliveryScheme, rtt_ms: f64, trial: SchemeTrial| Cell {
            figures: trial
                .traces
                .iter()
                .map(|c| stream_metrics(&plan, scheme, rtt_ms, c))
                .collect(),
            predicted: (trial.traces.iter().enumerate())
                .map(|(s, trace)| predict(&plan, scheme, rtt_ms, s, &trace.generated_us))
                .collect(),
            scheme,
            trial,
        };
        let cases = plan.rtts_ms.iter().zip(trials).map(|(&rtt_ms, row)| CaseResult {
            rtt_ms,
            cells: plan.schemes.iter().zip(row).map(|(&s, trial)| cell(s, rtt_ms, trial)).collect(),
        });
        Self { cases: cases.collect(), targets, plan }
    }

    /// Renders the table for a terminal.
    pub fn table(&self) -> String {
        let plan = &self.plan;
        let mut text = format!(
            "{}\n{} streams of {} s, {} tokens/s each, losses {}, seed {}\n\
             mean ± half of the 95 % interval; sim: the simulator's mean for the same sessions; \
             paced: a client that holds {} ms of text\n{CAPTION}",
            plan.title,
            plan.sessions,
            plan.seconds,
            plan.tokens_per_s,
            serde_json::to_string(&plan.channel).unwrap_or_default(),
            plan.seed,
            plan.pace_ms
        );
        for case in &self.cases {
            let _ = writeln!(text, "\nRTT {} ms", case.rtt_ms);
            text.push_str(&header());
            case.cells.iter().for_each(|cell| text.push_str(&row(cell, case.rtt_ms)));
            comparisons(&mut text, case);
        }
        for verdict in self.verdicts() {
            let mark = if verdict.holds { "met   " } else { "MISSED" };
            let _ = writeln!(text, "{mark} {}", verdict.text);
        }
        text
    }

    /// Returns every limit with its measured value.
    pub fn verdicts(&self) -> Vec<LimitVerdict> {
        let mut verdicts = Vec::new();
        for &(rtt_ms, percent) in &self.targets.reduction {
            let case = self.cases.iter().find(|case| case.rtt_ms == rtt_ms);
            let pair = case.and_then(|case| case.better_tcp().map(|tcp| (case, tcp)));
            let Some((case, tcp)) = pair else { continue };
            for loquent in case.loquent() {
                let less = 100.0 * (1.0 - loquent.full() / tcp.full());
                verdicts.push(LimitVerdict {
                    text: format!(
                        "RTT {rtt_ms} ms: {} stalls {less:.1} % less than {}; at least {percent} %",
                        loquent.scheme.label(),
                        tcp.scheme.label()
                    ),
                    holds: less >= percent,
                });
            }
        }
        for (case, most) in self.cases.iter().flat_map(|case| Some((case, self.targets.kb_s?))) {
            verdicts.extend(case.loquent().map(|cell| {
                let kb_s = cell.spread(|figures| figures.down_kb_s).mean;
                LimitVerdict {
                    text: format!(
                        "RTT {} ms: {} takes {kb_s:.2} kB/s per stream; at most {most}",
                        case.rtt_ms,
                        cell.scheme.label()
                    ),
                    holds: kb_s <= most,
                }
            }));
        }
        verdicts.extend(self.targets.model_error.into_iter().flat_map(|most| self.models(most)));
        verdicts
    }

    /// Checks the deviation of each TCP's model from the kernel's TCP, with the threshold for real
    /// clocks; at most `most` per cent.
    fn models(&self, most: f64) -> Vec<LimitVerdict> {
        let cells =
            self.cases.iter().flat_map(|case| case.cells.iter().map(move |cell| (case, cell)));
        cells
            .filter(|(_, cell)| cell.scheme.congestion().is_some())
            .filter_map(|(case, cell)| {
                // The model's figure over the kernel's.
                let off = 100.0 * (1.0 / (1.0 + cell.off_prediction()?) - 1.0);
                Some(LimitVerdict {
                    text: format!(
                        "RTT {} ms: the model of {} stalls {off:+.1} %; at most {most} % off",
                        case.rtt_ms,
                        cell.scheme.label()
                    ),
                    holds: off.abs() <= most,
                })
            })
            .collect()
    }

    /// Returns true if every limit is met.
    pub fn good(&self) -> bool {
        self.verdicts().iter().all(|verdict| verdict.holds)
    }

    /// Writes the files named in `outputs`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, outputs: &DeliveryReportPaths) -> Result<(), BenchError> {
        if let Some(path) = &outputs.json {
            let text = serde_json::to_string(&self.json()).unwrap_or_default();
            write(path, &text)?;
        }
        if let Some(path) = &outputs.html {
            write(path, &plot::page(&self.plan, &self.cases, &self.table()))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let cases: Vec<Value> = self.cases.iter().map(case_json).collect();
        let verdicts: Vec<Value> = self
            .verdicts()
            .iter()
            .map(|verdict| json!({ "text": verdict.text, "holds": verdict.holds }))
            .collect();
        json!({
            "title": self.plan.title,
            "sessions": self.plan.sessions,
            "seconds": self.plan.seconds,
            "tokens_per_s": self.plan.tokens_per_s,
            "channel": self.plan.channel,
            "seed": self.plan.seed,
            "pace_ms": self.plan.pace_ms,
            "cases": cases,
            "verdicts": verdicts,
        })
    }
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text)
        .map_err(|error| BenchError::Output { path: path.to_owned(), reason: error.to_string() })
}

/// Explanation of the columns that are shares.
const CAPTION: &str = "\
full: share of the time in gaps of more than 200 ms between tokens; full>205: of more than 205 ms
ex: share of the time in these gaps beyond their first 200 ms
late: share of the tokens that are shown more than 400 ms after they were generated
";

const COLUMNS: [&str; 15] = [
    "full",
    "median",
    "sim",
    "full>205",
    "sim",
    "ex",
    "sim",
    "late",
    "delay ms",
    "kB/s",
    "sim",
    "packets/s",
    "acks kB/s",
    "paced full",
    "added ms",
];

fn header() -> String {
    let mut text = format!("{:20}", "");
    for column in COLUMNS {
        let _ = write!(text, " {column:>12}");
    }
    text + "\n"
}

fn row(cell: &Cell, rtt_ms: f64) -> String {
    let three = |spread: MeanInterval| format!("{:.3} ±{:.3}", spread.mean, spread.half);
    let full = cell.spread(|f| f.ready.full);
    let columns = [
        three(full),
        format!("{:.3}", full.median),
        format!("{:.3}", cell.predicted_full()),
        format!("{:.3}", cell.spread(|f| f.full_205).mean),
        format!("{:.3}", spread(&cell.predicted, |f| f.full_205).mean),
        three(cell.spread(|f| f.ready.excess)),
        format!("{:.3}", spread(&cell.predicted, |f| f.ready.excess).mean),
        three(cell.spread(|f| f.ready.late)),
        format!("{:.0}", cell.spread(|f| f.ready.delay_ms).mean),
        format!("{:.2}", cell.spread(|f| f.down_kb_s).mean),
        format!("{:.2}", spread(&cell.predicted, |f| f.down_kb_s).mean),
        format!("{:.1}", cell.spread(|f| f.packets_per_s).mean),
        format!("{:.2}", cell.spread(|f| f.up_kb_s).mean),
        format!("{:.3}", cell.spread(|f| f.paced.full).mean),
        format!("{:.0}", cell.spread(|f| f.paced.delay_ms).mean - rtt_ms / 2.0),
    ];
    let mut text = format!("{:20}", cell.scheme.label());
    for column in columns {
        let _ = write!(text, " {column:>12}");
    }
    text + "\n"
}

fn comparisons(text: &mut String, case: &CaseResult) {
    for loquent in case.loquent() {
        if let Some(tcp) = case.better_tcp().filter(|tcp| tcp.full() > 0.0) {
            let _ = writeln!(
                text,
                "  {} against {}: full {:+.1} %",
                loquent.scheme.label(),
                tcp.scheme.label(),
                100.0 * (loquent.full() / tcp.full() - 1.0)
            );
        }
    }
    for cell in case.cells.iter().filter(|cell| cell.scheme.congestion().is_none()) {
        if let Some(off) = cell.off_prediction() {
            let label = cell.scheme.label();
            let off = 100.0 * off;
            let _ = writeln!(text, "  {label} against the simulator: full>205 {off:+.1} %");
        }
    }
    for cell in &case.cells {
        let missing: usize = cell.figures.iter().map(|figures| figures.missing).sum();
        if missing > 0 {
            let _ = writeln!(text, "  {}: {missing} tokens never came", cell.scheme.label());
        }
        if let Some(cpu_us) = cell.trial.server_cpu_us_per_token {
            let first_ms =
                loquent_sim::stats::median(cell.trial.first_token_ms.clone()).unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "  {}: {cpu_us:.0} µs of the server's CPU per token; first token \
                 {first_ms:.1} ms under way (median)",
                cell.scheme.label()
            );
        }
    }
    let late = case.cells.iter().map(|cell| &cell.trial.lateness);
    let p99_ms = late.clone().map(|l| l.quantile_ms(0.99)).fold(0.0, f64::max);
    let max_ms = late.map(|l| l.max_ms).fold(0.0, f64::max);
    let _ = writeln!(text, "  emulator late by {p99_ms:.2} ms at p99, {max_ms:.2} ms at most");
}

fn case_json(case: &CaseResult) -> Value {
    let cells: Vec<Value> = case.cells.iter().map(|cell| cell_json(cell, case.rtt_ms)).collect();
    json!({ "rtt_ms": case.rtt_ms, "schemes": cells })
}

fn cell_json(cell: &Cell, rtt_ms: f64) -> Value {
    let measured = |value: fn(&StreamMetrics) -> f64| json!(cell.spread(value));
    let simulated = |value: fn(&StreamMetrics) -> f64| json!(spread(&cell.predicted, value));
    type Named = (&'static str, fn(&StreamMetrics) -> f64);
    let figures: [Named; 10] = [
        ("full", |f| f.ready.full),
        ("full_205", |f| f.full_205),
        ("excess", |f| f.ready.excess),
        ("late", |f| f.ready.late),
        ("delay_ms", |f| f.ready.delay_ms),
        ("down_kb_s", |f| f.down_kb_s),
        ("up_kb_s", |f| f.up_kb_s),
        ("packets_per_s", |f| f.packets_per_s),
        ("paced_full", |f| f.paced.full),
        ("paced_delay_ms", |f| f.paced.delay_ms),
    ];
    let table = |value: &dyn Fn(fn(&StreamMetrics) -> f64) -> Value| -> Value {
        Value::Object(figures.iter().map(|&(name, f)| (name.to_owned(), value(f))).collect())
    };
    let sessions: Vec<Value> = cell
        .trial
        .traces
        .iter()
        .zip(&cell.figures)
        .map(|(trace, figures)| json!({ "figures": figures, "trace": trace }))
        .collect();
    json!({
        "scheme": cell.scheme,
        "label": cell.scheme.label(),
        "rtt_ms": rtt_ms,
        "measured": table(&measured),
        "simulated": table(&simulated),
        "server_cpu_us_per_token": cell.trial.server_cpu_us_per_token,
        "first_token_ms": cell.trial.first_token_ms,
        "emulator_late_p99_ms": cell.trial.lateness.quantile_ms(0.99),
        "sessions": sessions,
    })
}
