//! The results of a study as a table, JSON, CSV and figures.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::chart::ReportPage;
use crate::figures::{self, Figure};
use crate::plan::{Claim, Metric, Plan};
use crate::scheme::Scheme;
use crate::study::{ProgressReport, Study, run, with_setting};
use crate::world;

/// A finished study with its plan.
#[derive(Debug, Clone)]
pub struct Report {
    plan: Plan,
    study: Study,
}

/// Runs `plan` on `threads` threads.
pub fn run_plan(plan: &Plan, threads: usize, watch: &dyn ProgressReport) -> Report {
    Report { plan: plan.clone(), study: run(plan, threads, watch) }
}

/// A claim of the plan, checked against its figure in one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Case, metric and schemes of the claim.
    pub subject: String,
    /// Description of the bounds.
    pub bounds: String,
    /// Value of the metric.
    pub value: f64,
    /// Distance of the value from the nearer bound; negative outside the bounds.
    pub margin: f64,
}

impl Verdict {
    /// Returns true if the claim holds.
    pub fn holds(&self) -> bool {
        self.margin >= 0.0
    }

    /// Formats the claim and the value that it was checked against.
    pub fn text(&self) -> String {
        format!("{} = {:.3}, {}", self.subject, self.value, self.bounds)
    }
}

impl Report {
    /// Returns the outcomes.
    pub fn study(&self) -> &Study {
        &self.study
    }

    /// Renders the table for a terminal.
    pub fn table(&self) -> String {
        let columns = [
            Metric::Full,
            Metric::Excess,
            Metric::Late,
            Metric::DelayMs,
            Metric::Redundancy,
            Metric::WireKb,
            Metric::AckKb,
        ];
        let paced = self.plan.scheme.iter().any(|entry| entry.reader.holds_back());
        let shown = [Metric::ShownFull, Metric::AddedMs, Metric::HoldMs];
        let columns: Vec<Metric> =
            columns.into_iter().chain(shown.into_iter().filter(|_| paced)).collect();
        let observed = Metric::OBSERVED.into_iter().filter(|_| self.plan.observe);
        let columns: Vec<Metric> = columns.into_iter().chain(observed).collect();
        let mut text = format!(
            "{}\n{} sessions of {} s, seed {}\n",
            self.plan.title, self.plan.sessions, self.plan.seconds, self.plan.seed
        );
        let labels: Vec<String> = self.plan.scheme.iter().map(|entry| entry.label()).collect();
        let wide = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0);
        for (case, what) in self.plan.case.iter().enumerate() {
            let _ = write!(text, "\n{}\n{:wide$}", what.name, "");
            for column in &columns {
                let _ = write!(text, " {:>14}", column.key());
            }
            text.push('\n');
            for (scheme, label) in labels.iter().enumerate() {
                let _ = write!(text, "{label:wide$}");
                for &column in &columns {
                    let _ = write!(text, " {:>14}", self.figure(case, scheme, column));
                }
                text.push('\n');
            }
            self.write_changes(&mut text, case, &labels);
        }
        self.write_verdicts(&mut text);
        text
    }

    fn figure(&self, case: usize, scheme: usize, metric: Metric) -> String {
        let (mean, half) = self.study.mean(case, scheme, metric);
        let bound = matches!(self.plan.scheme[scheme].send, Scheme::Oracle { .. });
        match metric {
            // The oracle sends nothing.
            Metric::Redundancy | Metric::WireKb | Metric::AckKb if bound => "-".to_owned(),
            Metric::DelayMs | Metric::HoldMs | Metric::AddedMs => format!("{mean:.0} ±{half:.0}"),
            Metric::Redundancy | Metric::WireKb | Metric::AckKb => format!("{mean:.2}"),
            _ => format!("{mean:.3} ±{half:.3}"),
        }
    }

    fn write_changes(&self, text: &mut String, case: usize, labels: &[String]) {
        let Some(compare) = &self.plan.compare else {
            return;
        };
        let subject = self.scheme_index(&compare.subject);
        let others = labels.iter().enumerate().filter(|(scheme, _)| *scheme != subject);
        for (scheme, label) in others {
            if self.study.mean(case, scheme, compare.metric).0 == 0.0 {
                continue;
            }
            let change = self.study.change(case, subject, scheme, compare.metric);
            let _ = writeln!(
                text,
                "  {} against {label}: {} {:+.1} % [{:+.1}, {:+.1}]",
                compare.subject,
                compare.metric.key(),
                change.mean * 100.0,
                change.low * 100.0,
                change.high * 100.0
            );
        }
    }

    fn write_verdicts(&self, text: &mut String) {
        let verdicts = self.verdicts();
        if !verdicts.is_empty() {
            text.push_str("\nclaims\n");
        }
        for verdict in verdicts {
            let mark = if verdict.holds() { "holds" } else { "FAILS" };
            let _ = writeln!(text, "  {mark}  {}", verdict.text());
        }
        for finding in &self.study.findings {
            let _ = writeln!(
                text,
                "BROKEN {} / {} session {}: {}",
                finding.case, finding.scheme, finding.session, finding.violation
            );
        }
    }

    /// Returns true if every claim holds and no session broke a guarantee.
    pub fn good(&self) -> bool {
        self.study.findings.is_empty() && self.verdicts().iter().all(Verdict::holds)
    }

    /// Checks the plan's claims; returns a verdict for each claim and case.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for claim in &self.plan.claim {
            for (case, what) in self.plan.case.iter().enumerate() {
                if claim.case.as_ref().is_none_or(|name| *name == what.name) {
                    verdicts.push(self.verdict(claim, case));
                }
            }
        }
        verdicts
    }

    fn verdict(&self, claim: &Claim, case: usize) -> Verdict {
        let mean = |name: &String| self.study.mean(case, self.scheme_index(name), claim.metric).0;
        let (value, over) = match &claim.over {
            // Two zeros are equal.
            Some(over) if mean(&claim.of) == mean(over) => (1.0, format!(" / {over}")),
            Some(over) => (mean(&claim.of) / mean(over), format!(" / {over}")),
            None => (mean(&claim.of), String::new()),
        };
        let low = claim.at_least.unwrap_or(f64::NEG_INFINITY);
        let high = claim.at_most.unwrap_or(f64::INFINITY);
        let bounds = match (claim.at_least, claim.at_most) {
            (Some(low), Some(high)) => format!("in {low}..={high}"),
            (Some(low), None) => format!("at least {low}"),
            (None, Some(high)) => format!("at most {high}"),
            (None, None) => "anything".to_owned(),
        };
        let (name, metric) = (&self.plan.case[case].name, claim.metric.key());
        let margin = (high - value).min(value - low);
        Verdict {
            subject: format!("{name}: {metric} of {}{over}", claim.of),
            bounds,
            value,
            // Not a number: such a figure is inside no bounds.
            margin: if value.is_nan() { f64::NEG_INFINITY } else { margin },
        }
    }

    fn scheme_index(&self, name: &str) -> usize {
        let found = self.plan.scheme.iter().position(|entry| entry.label() == name);
        found.expect("plans are checked")
    }

    /// Returns the plan's comparison as JSON: the subject against each other scheme in each case.
    fn changes(&self) -> Vec<Value> {
        let Some(compare) = &self.plan.compare else { return Vec::new() };
        let subject = self.scheme_index(&compare.subject);
        let mut changes = Vec::new();
        for (case, what) in self.plan.case.iter().enumerate() {
            for (scheme, entry) in self.plan.scheme.iter().enumerate() {
                if scheme == subject || self.study.mean(case, scheme, compare.metric).0 == 0.0 {
                    continue;
                }
                changes.push(json!({
                    "case": what.name,
                    "of": compare.subject,
                    "over": entry.label(),
                    "metric": compare.metric.key(),
                    "change": self.study.change(case, subject, scheme, compare.metric),
                }));
            }
        }
        changes
    }

    /// Returns everything as JSON, with the plan.
    pub fn json(&self) -> String {
        let mut rows = Vec::new();
        for (case, what) in self.plan.case.iter().enumerate() {
            for (scheme, entry) in self.plan.scheme.iter().enumerate() {
                let mut row = Map::new();
                row.insert("case".into(), json!(what.name));
                row.insert("scheme".into(), json!(entry.label()));
                for metric in self.plan.metrics() {
                    let (mean, half) = self.study.mean(case, scheme, metric);
                    row.insert(metric.key().into(), json!({ "mean": mean, "ci95": half }));
                }
                rows.push(Value::Object(row));
            }
        }
        let verdicts: Vec<Value> = self
            .verdicts()
            .iter()
            .map(|verdict| json!({ "claim": verdict.text(), "holds": verdict.holds() }))
            .collect();
        let findings: Vec<String> = self.study.findings.iter().map(|f| format!("{f:?}")).collect();
        let all = json!({
            "plan": self.plan,
            "rows": rows,
            "changes": self.changes(),
            "claims": verdicts,
            "broken": findings,
            "simulated_s": self.study.simulated_s,
        });
        format!("{all:#}\n")
    }

    /// Returns one line of CSV for each session.
    pub fn csv(&self) -> String {
        let mut text = String::from("case,scheme,session");
        for metric in self.plan.metrics() {
            let _ = write!(text, ",{}", metric.key());
        }
        text.push('\n');
        for (case, what) in self.plan.case.iter().enumerate() {
            for (scheme, entry) in self.plan.scheme.iter().enumerate() {
                for (session, outcome) in self.study.cell(case, scheme).iter().enumerate() {
                    let label = entry.label();
                    let _ = write!(text, "\"{}\",\"{label}\",{session}", what.name);
                    for metric in self.plan.metrics() {
                        let _ = write!(text, ",{:.6}", outcome.value(metric));
                    }
                    text.push('\n');
                }
            }
        }
        text
    }

    /// Renders the report as a separate page.
    pub fn html(&self) -> String {
        let plan = &self.plan;
        let mut page = ReportPage::new(&plan.title);
        let fields = [
            ("sessions of each case and scheme", plan.sessions.to_string()),
            ("seconds each", plan.seconds.to_string()),
            ("seed", plan.seed.to_string()),
        ];
        page.config(fields.into_iter());
        page.plots(|page| {
            for figure in figures::draw_inline(plan, &self.study) {
                page.figure("", "", &figure.svg);
            }
        });
        self.claims(&mut page);
        page.heading("All figures");
        page.terminal(&self.table());
        page.finish()
    }

    fn claims(&self, page: &mut ReportPage) {
        let verdicts = self.verdicts();
        if verdicts.is_empty() {
            return;
        }
        page.heading("Claims");
        for verdict in verdicts {
            let (class, word) =
                if verdict.holds() { ("same", "holds") } else { ("broken", "BROKEN") };
            page.paragraph(class, &format!("{word}: {}", verdict.text()));
        }
    }

    /// Draws the plan's figures.
    pub fn figures(&self) -> Vec<Figure> {
        figures::draw(&self.plan, &self.study)
    }
}

/// Replays one session of every case and scheme and formats its trace, to investigate a finding.
pub fn replay(plan: &Plan, session: u32) -> String {
    let mut text = String::new();
    for case in &plan.case {
        for entry in &plan.scheme {
            with_setting(plan, case, entry, session, |setting| {
                let trace = world::run(&entry.send, setting);
                let shown = trace.shown_us.last().map_or(0, |at_us| at_us / 1_000);
                let _ = writeln!(
                    text,
                    "{} / {}, session {session}\n  {:?}\n  {:?}\n  {:?}\n  \
                     {:?} at {} ms; {} of {} tokens arrived, {} shown, the last at {shown} ms\n  \
                     {} packets, {} bytes, {} of them repetitions",
                    case.name,
                    entry.label(),
                    setting.link,
                    setting.generator,
                    setting.reader,
                    trace.progress,
                    trace.ended_us / 1_000,
                    trace.ready_us.len(),
                    trace.generated_us.len(),
                    trace.shown_us.len(),
                    trace.packets,
                    trace.wire_bytes,
                    trace.repeated_bytes,
                );
            });
        }
    }
    text
}
