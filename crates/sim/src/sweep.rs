//! Runs one plan with many seeds, to check its claims against losses that nobody has looked at.
//!
//! A claim that was made after a look at one seed may owe its last per cent to that seed. So the
//! seeds of a sweep follow from the plan's name, and nobody chooses them.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::plan::Plan;
use crate::report::{Report, Verdict, run_plan};
use crate::study::{Finding, ProgressReport};

/// Returns the seed with which a sweep of the plan called `name` starts: the first eight
/// hexadecimal digits of the name's SHA-256, as `printf NAME | sha256sum` prints them.
pub fn first_seed(name: &str) -> u64 {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(4).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

/// Results of a plan's claims and guarantees for consecutive seeds.
#[derive(Debug, Clone)]
pub struct Sweep {
    title: String,
    sessions: u32,
    /// Sessions of each seed, over all cases and schemes.
    sessions_per_seed: u64,
    first_seed: u64,
    seeds: u32,
    claims: Vec<SweptClaim>,
    findings: Vec<(u64, Finding)>,
    /// Virtual time simulated, in seconds.
    pub simulated_s: f64,
}

/// Results of one claim in one case, over all seeds.
#[derive(Debug, Clone)]
struct SweptClaim {
    /// The verdict with the smallest margin.
    worst: Verdict,
    worst_seed: u64,
    sum: f64,
    held: u32,
}

/// Runs `plan` with `seeds` seeds, starting at `first_seed` instead of its own seed.
pub fn run(
    plan: &Plan,
    first_seed: u64,
    seeds: u32,
    threads: usize,
    watch: &dyn ProgressReport,
) -> Sweep {
    let cells = (plan.case.len() * plan.scheme.len()) as u64;
    let mut sweep = Sweep {
        title: plan.title.clone(),
        sessions: plan.sessions,
        sessions_per_seed: cells * u64::from(plan.sessions),
        first_seed,
        seeds,
        claims: Vec::new(),
        findings: Vec::new(),
        simulated_s: 0.0,
    };
    for step in 0..seeds {
        let seed = first_seed.wrapping_add(u64::from(step));
        let plan = Plan { seed, ..plan.clone() };
        sweep.add(seed, &run_plan(&plan, threads, watch));
    }
    sweep
}

impl Sweep {
    fn add(&mut self, seed: u64, report: &Report) {
        let study = report.study();
        self.simulated_s += study.simulated_s;
        self.findings.extend(study.findings.iter().map(|finding| (seed, finding.clone())));
        for (index, verdict) in report.verdicts().into_iter().enumerate() {
            match self.claims.get_mut(index) {
                Some(claim) => claim.add(seed, verdict),
                None => self.claims.push(SweptClaim::new(seed, verdict)),
            }
        }
    }

    /// Returns true if every claim holds for every seed and no session broke a guarantee.
    pub fn good(&self) -> bool {
        self.findings.is_empty() && self.claims.iter().all(|claim| claim.held == self.seeds)
    }

    /// Renders the table for a terminal: the worst value of each claim, and every broken guarantee.
    pub fn table(&self) -> String {
        let last_seed = self.first_seed.wrapping_add(u64::from(self.seeds.saturating_sub(1)));
        let mut text = format!(
            "{}\n{} seeds, {} to {last_seed}; {} sessions of each case and scheme\n",
            self.title, self.seeds, self.first_seed, self.sessions
        );
        if !self.claims.is_empty() {
            self.write_claims(&mut text);
        }
        let sessions = self.sessions_per_seed * u64::from(self.seeds);
        let _ = writeln!(text, "\n{} of {sessions} sessions broke a guarantee", self.broken());
        for (seed, finding) in &self.findings {
            let _ = writeln!(
                text,
                "BROKEN seed {seed}, {} / {} session {}: {}",
                finding.case, finding.scheme, finding.session, finding.violation
            );
        }
        text
    }

    /// Returns the number of sessions with a finding. Findings of one session are adjacent.
    fn broken(&self) -> usize {
        let mut sessions: Vec<_> =
            self.findings.iter().map(|(seed, f)| (seed, &f.case, &f.scheme, f.session)).collect();
        sessions.dedup();
        sessions.len()
    }

    fn write_claims(&self, text: &mut String) {
        let wide = self.claims.iter().map(SweptClaim::width).max().unwrap_or(0);
        let _ = writeln!(
            text,
            "\n{:wide$} {:>18} {:>9} {:>9} {:>11}  holds",
            "", "claim", "mean", "worst", "with seed"
        );
        for SweptClaim { worst, worst_seed, sum, held } in &self.claims {
            let mean = sum / f64::from(self.seeds);
            let fails = if *held == self.seeds { "" } else { "  FAILS" };
            let _ = writeln!(
                text,
                "{:wide$} {:>18} {mean:>9.3} {:>9.3} {worst_seed:>11}  {held}/{}{fails}",
                worst.subject, worst.bounds, worst.value, self.seeds
            );
        }
    }
}

impl SweptClaim {
    fn new(seed: u64, verdict: Verdict) -> Self {
        let (sum, held) = (verdict.value, u32::from(verdict.holds()));
        Self { worst: verdict, worst_seed: seed, sum, held }
    }

    fn add(&mut self, seed: u64, verdict: Verdict) {
        self.sum += verdict.value;
        self.held += u32::from(verdict.holds());
        if verdict.margin < self.worst.margin {
            (self.worst, self.worst_seed) = (verdict, seed);
        }
    }

    fn width(&self) -> usize {
        self.worst.subject.chars().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seed_is_what_sha256sum_prints() {
        // printf outages | sha256sum | cut -c1-8
        assert_eq!(first_seed("outages"), 804_549_348);
    }

    fn verdict(value: f64) -> Verdict {
        let (subject, bounds) = ("here: full of ours".to_owned(), "at most 1".to_owned());
        Verdict { subject, bounds, value, margin: 1.0 - value }
    }

    #[test]
    fn the_worst_seed_of_a_claim_is_named() {
        let mut claim = SweptClaim::new(5, verdict(0.5));
        claim.add(6, verdict(1.25));
        claim.add(7, verdict(1.0));
        assert_eq!((claim.worst_seed, claim.worst.value, claim.held), (6, 1.25, 2));
    }
}
