//! The results of a burst plan as a table, JSON and a figure.

use std::fmt::Write;

use serde_json::{Value, json};

use super::figure;
use super::plan::{BurstClaim, BurstPlan, Machine, Policy};
use super::row::BurstRow;
use super::search::{LargestBurst, bound};

/// Largest bursts found, with their plan.
#[derive(Debug, Clone)]
pub struct BurstReport {
    plan: BurstPlan,
    found: Vec<LargestBurst>,
}

impl BurstReport {
    /// Creates the report of the bursts `found` for `plan`.
    pub fn new(plan: BurstPlan, found: Vec<LargestBurst>) -> Self {
        Self { plan, found }
    }

    /// Returns true if every claim of the plan holds.
    pub fn is_good(&self) -> bool {
        self.plan.claim.iter().all(|claim| self.ratio(claim) >= claim.ratio_at_least)
    }

    fn ratio(&self, claim: &BurstClaim) -> f64 {
        let is_meant = |row: &BurstRow<'_>| {
            row.machine == claim.machine && row.prompt_tokens == claim.prompt_tokens
        };
        self.rows().into_iter().find(is_meant).map_or(0.0, |row| row.ratio())
    }

    fn rows(&self) -> Vec<BurstRow<'_>> {
        let mut rows = Vec::new();
        for (at, machine) in self.plan.machine.iter().enumerate() {
            for &prompt_tokens in &self.plan.prompt_tokens {
                let of = |policy| {
                    let is_meant = |one: &LargestBurst| {
                        (one.machine, one.prompt_tokens, one.policy) == (at, prompt_tokens, policy)
                    };
                    self.found.iter().copied().find(is_meant)
                };
                let both = of(Policy::FirstCome).zip(of(Policy::ByNeed));
                rows.extend(both.map(|(first_come, by_need)| BurstRow {
                    machine: &machine.name,
                    prompt_tokens,
                    first_come,
                    by_need,
                    bound: bound(&self.plan, machine, prompt_tokens),
                }));
            }
        }
        rows
    }

    /// Renders the table for a terminal.
    pub fn table(&self) -> String {
        let plan = &self.plan;
        let mut out = format!(
            "{}\nanswers of {} tokens, read at {} tokens/s, round trip {} ms\n\
             content: first token within {} s, stalls of at most {:.0} %, for {:.0} % of readers\n",
            plan.title,
            plan.answer_tokens,
            plan.reading_tokens_per_s,
            plan.rtt_ms,
            plan.content.ttft_s,
            plan.content.stall_share * 100.0,
            plan.content.readers_share * 100.0,
        );
        plan.machine.iter().for_each(|machine| self.write_machine(machine, &mut out));
        for claim in &plan.claim {
            let ratio = self.ratio(claim);
            let holds = if ratio >= claim.ratio_at_least { "holds" } else { "FAILS" };
            let _ = writeln!(
                out,
                "\n{holds}: {}, prompts of {}: ratio {ratio:.2}, at least {}",
                claim.machine, claim.prompt_tokens, claim.ratio_at_least
            );
        }
        out
    }

    fn write_machine(&self, machine: &Machine, out: &mut String) {
        let _ = writeln!(
            out,
            "\n{}: {}; steps of 1 and 16 answers {:.2} and {:.2} ms, a prompt token {} ms",
            machine.name,
            machine.measured.trim(),
            machine.step_ms(1, 0),
            machine.step_ms(16, 0),
            machine.prompt_token_ms,
        );
        let _ = writeln!(
            out,
            "{:>14} {:>12} {:>6} {:>12} {:>6} {:>7} {:>8}",
            "prompt tokens", "first come", "batch", "by need", "batch", "ratio", "bound"
        );
        for row in self.rows().iter().filter(|row| row.machine == machine.name) {
            let _ = writeln!(
                out,
                "{:>14} {:>12} {:>6} {:>12} {:>6} {:>7.2} {:>8}",
                row.prompt_tokens,
                row.first_come.readers,
                row.first_come.batch_size,
                row.by_need.readers,
                row.by_need.batch_size,
                row.ratio(),
                row.bound,
            );
        }
    }

    /// Renders the figure as an SVG document.
    pub fn figure(&self) -> String {
        let machines: Vec<&str> =
            self.plan.machine.iter().map(|machine| machine.name.as_str()).collect();
        figure::draw(&self.plan.title, &machines, &self.rows())
    }

    /// Returns everything as JSON.
    pub fn json(&self) -> Value {
        let rows = self.rows();
        let rows = rows.iter().map(|row| {
            json!({
                "machine": row.machine,
                "prompt_tokens": row.prompt_tokens,
                "first_come": row.first_come,
                "by_need": row.by_need,
                "ratio": row.ratio(),
                "bound": row.bound,
            })
        });
        json!({ "plan": self.plan, "rows": rows.collect::<Vec<_>>() })
    }
}
