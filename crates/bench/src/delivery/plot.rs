//! The plots of a delivery benchmark: arrivals over time like the paper's figure 4, and bars of
//! measured and simulated stall ratios, on one self-contained page.

use loquent_sim::chart::ReportPage;
use loquent_sim::chart::kinds::{self, Join, Scale, Series, colour};

use super::cells::{CaseResult, Cell};
use super::metrics::StreamTrace;
use super::plan::DeliveryPlan;

/// Length of the enlarged part of a session in µs.
const CLOSE_US: u64 = 8_000_000;

/// Renders the page.
pub fn page(plan: &DeliveryPlan, cases: &[CaseResult], table: &str) -> String {
    let mut page = ReportPage::new(&plan.title);
    let fields = [
        ("streams", plan.sessions.to_string()),
        ("seconds each", plan.seconds.to_string()),
        ("tokens per second each", plan.tokens_per_s.to_string()),
    ];
    page.config(fields.into_iter());
    let names: Vec<String> = plan.schemes.iter().map(|s| s.label().to_owned()).collect();
    page.heading("Stalls");
    legend(&mut page, &names);
    page.plots(|page| {
        let measured = ratio_bars(plan, cases, |cell| cell.full());
        page.figure("Stall ratio", "Measured.", &measured);
        let simulated = ratio_bars(plan, cases, |cell| cell.predicted_full());
        page.figure("Stall ratio", "Simulated with the same seeds.", &simulated);
    });
    for case in cases {
        arrivals(&mut page, case, &names);
    }
    page.heading("All figures");
    page.terminal(table);
    page.finish()
}

fn legend(page: &mut ReportPage, names: &[String]) {
    let entries = names.iter().enumerate().map(|(index, name)| (colour(index), name.as_str()));
    page.legend(entries);
}

fn ratio_bars(plan: &DeliveryPlan, cases: &[CaseResult], value: impl Fn(&Cell) -> f64) -> String {
    let series: Vec<Series> = plan
        .schemes
        .iter()
        .enumerate()
        .map(|(index, scheme)| Series {
            name: scheme.label().to_owned(),
            points: cases.iter().map(|case| (case.rtt_ms, value(&case.cells[index]))).collect(),
        })
        .collect();
    kinds::bars("Stall ratio", "round-trip time, ms", "stall ratio (full)", &series)
}

/// Tokens over time, for the session with the first scheme's median stall ratio.
fn arrivals(page: &mut ReportPage, case: &CaseResult, names: &[String]) {
    let Some(reference) = case.cells.first() else { return };
    let session = median_session(reference);
    let traces: Vec<&StreamTrace> =
        case.cells.iter().filter_map(|cell| cell.trial.traces.get(session)).collect();
    page.heading(&format!("Arrivals at {} ms, stream {session}", case.rtt_ms));
    let mut named = vec!["generated".to_owned()];
    named.extend(names.iter().cloned());
    legend(page, &named);
    let end_us = reference.trial.traces[session].generated_us.last().copied().unwrap_or(0);
    let close_us = longest_gap_at(&reference.trial.traces[session]).saturating_sub(CLOSE_US / 4);
    page.plots(|page| {
        for (title, from_us, to_us) in [
            ("The whole answer", 0, end_us + CLOSE_US),
            ("Around the longest stall of the first scheme", close_us, close_us + CLOSE_US),
        ] {
            let lines = token_lines(&named, &traces, from_us, to_us);
            let x = ("seconds", Scale::Linear);
            let plot = kinds::lines("Arrivals", x, "tokens ready", &lines, Join::Steps);
            page.figure(title, "", &plot);
        }
    });
}

fn median_session(cell: &Cell) -> usize {
    let mut order: Vec<usize> = (0..cell.figures.len()).collect();
    order.sort_by(|&a, &b| cell.figures[a].ready.full.total_cmp(&cell.figures[b].ready.full));
    order.get(order.len() / 2).copied().unwrap_or(0)
}

fn longest_gap_at(trace: &StreamTrace) -> u64 {
    let gaps = trace.ready_us.windows(2).max_by_key(|pair| pair[1] - pair[0]);
    gaps.map_or(0, |pair| pair[0])
}

/// Returns the series of generated tokens and of those ready in each scheme, within a time window
/// that is plotted from 0.
fn token_lines(names: &[String], traces: &[&StreamTrace], from_us: u64, to_us: u64) -> Vec<Series> {
    let Some(first) = traces.first() else { return Vec::new() };
    let base = first.generated_us.partition_point(|&at| at < from_us).saturating_sub(20);
    let times = std::iter::once(&first.generated_us).chain(traces.iter().map(|c| &c.ready_us));
    let line = |(name, times): (&String, &Vec<u64>)| Series {
        name: name.clone(),
        points: times
            .iter()
            .enumerate()
            .filter(|&(_, at)| (from_us..=to_us).contains(at))
            .map(|(index, &at)| {
                ((at - from_us) as f64 / 1e6, (index + 1).saturating_sub(base) as f64)
            })
            .collect(),
    };
    names.iter().zip(times).map(line).collect()
}
