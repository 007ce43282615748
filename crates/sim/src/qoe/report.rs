//! The results of a plan of QoE as a Markdown table, JSON and a figure.

use std::fmt::Write;

use serde_json::{Value, json};

use super::figure;
use super::plan::{QoeClaim, QoePlan};
use super::study::{Curve, QoePoint};

/// Curves with their plan.
#[derive(Debug, Clone)]
pub struct QoeReport {
    plan: QoePlan,
    curves: Vec<Curve>,
}

impl QoeReport {
    /// Creates the report of the `curves` of `plan`.
    pub fn new(plan: QoePlan, curves: Vec<Curve>) -> Self {
        Self { plan, curves }
    }

    /// Returns true if every claim of the plan holds.
    pub fn is_good(&self) -> bool {
        self.plan.claim.iter().all(|claim| self.ratio(claim) >= claim.ratio_at_least)
    }

    fn ratio(&self, claim: &QoeClaim) -> f64 {
        let readers = |contender: &str| {
            let is_meant = |curve: &&Curve| {
                self.plan.case[curve.case].name == claim.case
                    && self.plan.contender[curve.contender].name == contender
            };
            let largest = self.curves.iter().find(is_meant).and_then(|curve| curve.largest);
            largest.map_or(0, |largest| largest.readers)
        };
        // A contender that serves nobody well counts as one.
        readers(&claim.of) as f64 / readers(&claim.over).max(1) as f64
    }

    /// Renders Markdown tables of all bursts, one for each case.
    pub fn table(&self) -> String {
        let plan = &self.plan;
        let mut out = format!(
            "{}\n\nSimulated: {}, answers of {} tokens, round trip {} ms. Expected: first token \
             after {} s, {} tokens/s.\n",
            plan.title,
            plan.machine.name,
            plan.answer_tokens,
            plan.rtt_ms,
            plan.expected_ttft_s,
            plan.expected_tokens_per_s,
        );
        (0..plan.case.len()).for_each(|case| self.write_case(case, &mut out));
        for claim in &plan.claim {
            let ratio = self.ratio(claim);
            let holds = if ratio >= claim.ratio_at_least { "holds" } else { "FAILS" };
            let _ = writeln!(
                out,
                "\n{holds}: {}: {} over {}: ratio {ratio:.2}, at least {}",
                claim.case, claim.of, claim.over, claim.ratio_at_least
            );
        }
        out
    }

    fn write_case(&self, case: usize, out: &mut String) {
        let qoe = self.plan.qoe;
        let _ = write!(
            out,
            "\n## {}\n\n| simulated | readers | batch | mean QoE | readers of QoE {qoe} | \
             effective tokens/s | TTFT P99, s |\n|{}\n",
            self.plan.case[case].name,
            " --- |".repeat(7)
        );
        for curve in self.curves.iter().filter(|curve| curve.case == case) {
            let name = &self.plan.contender[curve.contender].name;
            for point in &curve.points {
                let _ = writeln!(out, "| {name} | {} |", cells(point));
            }
            let _ = match &curve.largest {
                Some(largest) => {
                    writeln!(out, "| {name}, largest of mean QoE {qoe} | {} |", cells(largest))
                }
                None => writeln!(out, "| {name}, largest of mean QoE {qoe} | none | | | | | |"),
            };
        }
    }

    /// Renders the figure as an SVG document.
    pub fn figure(&self) -> String {
        figure::draw(&self.plan, &self.curves)
    }

    /// Returns everything as JSON.
    pub fn json(&self) -> Value {
        let rows = self.curves.iter().map(|curve| {
            json!({
                "case": self.plan.case[curve.case].name,
                "contender": self.plan.contender[curve.contender].name,
                "points": curve.points,
                "largest": curve.largest,
            })
        });
        json!({ "plan": self.plan, "rows": rows.collect::<Vec<_>>() })
    }
}

fn cells(point: &QoePoint) -> String {
    let summary = &point.summary;
    format!(
        "{} | {} | {:.3} | {:.0} % | {:.0} | {:.2}",
        point.readers,
        point.batch_size,
        summary.mean_qoe,
        summary.good_share * 100.0,
        summary.effective_tokens_per_s,
        summary.ttft_p99_s
    )
}
