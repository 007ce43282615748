//! The reports of a fairness benchmark: a table, JSON, and the check of the minimum ratio.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::figures::{Spread, StreamView, TrialStats};
use super::plan::{Company, FairnessCase, FairnessPlan};
use super::run::TrialKey;
use crate::BenchError;

/// A finished benchmark.
#[derive(Debug, Clone)]
pub struct FairnessReport {
    plan: FairnessPlan,
    least_ratio: f64,
    cases: Vec<CaseStats>,
}

/// All runs of a case, by company.
#[derive(Debug, Clone, Default)]
struct CaseStats {
    nothing: Vec<TrialStats>,
    events: Vec<TrialStats>,
    loquent: Vec<TrialStats>,
}

impl CaseStats {
    fn of(&self, company: Company) -> &[TrialStats] {
        match company {
            Company::Nothing => &self.nothing,
            Company::Events => &self.events,
            Company::Loquent => &self.loquent,
        }
    }

    fn spread(&self, company: Company, value: impl Fn(&TrialStats) -> f64) -> Option<Spread> {
        Spread::of(self.of(company).iter().map(value).collect())
    }

    /// Returns the ratio of the downloads' goodput beside Loquent to that beside event streams, by
    /// run.
    fn ratio(&self) -> Option<Spread> {
        let pairs = self.loquent.iter().zip(&self.events);
        Spread::of(pairs.map(|(ours, tcp)| ours.total_kbps() / tcp.total_kbps()).collect())
    }
}

impl FairnessReport {
    /// Sorts the trials of `plan`; the median ratio of each case must be at least `least_ratio`.
    pub fn new(
        plan: FairnessPlan,
        mut trials: Vec<(TrialKey, TrialStats)>,
        least_ratio: f64,
    ) -> Self {
        trials.sort_by_key(|((case, _, run), _)| (*case, *run));
        let mut cases = vec![CaseStats::default(); plan.cases.len()];
        for ((case, company, _), figures) in trials {
            let of_case = &mut cases[case];
            match company {
                Company::Nothing => of_case.nothing.push(figures),
                Company::Events => of_case.events.push(figures),
                Company::Loquent => of_case.loquent.push(figures),
            }
        }
        Self { plan, least_ratio, cases }
    }

    /// Renders the table for a terminal.
    pub fn table(&self) -> String {
        let plan = &self.plan;
        let mut text = format!(
            "Fairness on a bottleneck\n{} downloads beside {} token streams of {} tokens/s; RTT {} ms \
             when empty; {} s after {} s of warm-up, {} runs from seed {}\n\
             median [least–most] of the runs; kbit/s: all downloads' goodput; the rest is of each \
             token stream\n",
            plan.downloads,
            plan.streams,
            plan.tokens_per_s,
            plan.rtt_ms,
            plan.length.as_secs_f64(),
            plan.warm_up.as_secs_f64(),
            plan.runs,
            plan.seed,
        );
        for (case, figures) in plan.cases.iter().zip(&self.cases) {
            let _ = writeln!(text, "\n{}", title(case));
            text.push_str(&header());
            Company::ALL.iter().for_each(|&company| text.push_str(&self.row(figures, company)));
            self.write_verdict(&mut text, figures);
        }
        let late = self.cases.iter().flat_map(|case| Company::ALL.map(|company| case.of(company)));
        let late = late.flatten().map(|trial| trial.late_p99_ms).fold(0.0, f64::max);
        let _ = writeln!(text, "\nthe emulator was late by {late:.2} ms at p99 of the worst trial");
        text
    }

    fn row(&self, case: &CaseStats, company: Company) -> String {
        let name = match company {
            Company::Nothing => "nothing",
            Company::Events => self.plan.events.label(),
            Company::Loquent => "Loquent, QUIC",
        };
        let cell = |value: &dyn Fn(&TrialStats) -> f64, digits: usize| {
            case.spread(company, value).map_or_else(String::new, |it| spread_text(it, digits))
        };
        let mut text = format!("{name:18} {:>22}", cell(&TrialStats::total_kbps, 1));
        if company == Company::Nothing {
            return text + "\n";
        }
        let each = self.plan.streams.max(1) as f64;
        let of_view = |value: fn(&StreamView) -> f64| move |trial: &TrialStats| trial.mean(value);
        let cells = [
            cell(&|trial| trial.streams_down.kb_s / each, 2),
            cell(&|trial| trial.streams_up.kb_s / each, 2),
            cell(&|trial| trial.streams_down.packets_per_s / each, 1),
            cell(&of_view(|view| view.tokens_per_s), 1),
            cell(&of_view(|view| view.stalled), 3),
            cell(&of_view(|view| view.delay_ms.unwrap_or(f64::NAN)), 0),
            cell(&of_view(|view| view.behind_s), 1),
        ];
        for cell in cells {
            let _ = write!(text, " {cell:>19}");
        }
        text + "\n"
    }

    fn write_verdict(&self, text: &mut String, case: &CaseStats) {
        let Some(ratio) = case.ratio() else { return };
        let mark = if ratio.median >= self.least_ratio { "met   " } else { "MISSED" };
        let _ = writeln!(
            text,
            "{mark} the downloads get {} of what event streams leave them; at least {}",
            spread_text(ratio, 3),
            self.least_ratio
        );
    }

    /// Returns true if the median ratio of every case is large enough.
    pub fn good(&self) -> bool {
        let ratios = self.cases.iter().filter_map(CaseStats::ratio);
        ratios.into_iter().all(|ratio| ratio.median >= self.least_ratio)
    }

    /// Writes everything to `path` as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        let text = serde_json::to_string(&self.json()).unwrap_or_default();
        std::fs::write(path, text).map_err(|error| BenchError::Output {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }

    fn json(&self) -> Value {
        let plan = &self.plan;
        let case = |(case, figures): (&FairnessCase, &CaseStats)| {
            json!({
                "case": case,
                "queue_ms": case.queue_ms(),
                "ratio": figures.ratio(),
                "nothing": figures.nothing,
                "events": figures.events,
                "loquent": figures.loquent,
            })
        };
        json!({
            "downloads": plan.downloads,
            "streams": plan.streams,
            "tokens_per_s": plan.tokens_per_s,
            "rtt_ms": plan.rtt_ms,
            "events": plan.events,
            "warm_up_s": plan.warm_up.as_secs_f64(),
            "length_s": plan.length.as_secs_f64(),
            "runs": plan.runs,
            "seed": plan.seed,
            "least_ratio": self.least_ratio,
            "cases": plan.cases.iter().zip(&self.cases).map(case).collect::<Vec<_>>(),
        })
    }
}

fn title(case: &FairnessCase) -> String {
    format!(
        "{} kbit/s, queue of {} kB ({:.0} ms), downloads on {}",
        case.rate_kbps,
        case.queue_bytes as f64 / 1e3,
        case.queue_ms(),
        case.control.name()
    )
}

const COLUMNS: [&str; 7] =
    ["kB/s down", "kB/s up", "packets/s", "tokens/s", "stalled", "delay ms", "behind s"];

fn header() -> String {
    let mut text = format!("{:18} {:>22}", "beside", "downloads, kbit/s");
    for column in COLUMNS {
        let _ = write!(text, " {column:>19}");
    }
    text + "\n"
}

fn spread_text(Spread { median, min, max }: Spread, digits: usize) -> String {
    format!("{median:.digits$} [{min:.digits$}–{max:.digits$}]")
}
