//! The plots of a delivery benchmark: arrivals over time like the paper's figure 4, and bars of
//! measured and simulated stall ratios, on one self-contained page.

use std::fmt::Write;

use loquent_sim::chart::escape;

use super::cells::{CaseResult, Cell};
use super::metrics::StreamTrace;
use super::plan::DeliveryPlan;
use crate::report::charts::{self, Scale, Series};

const STYLE: &str = include_str!("../report/report.css");
/// Length of the enlarged part of a session in µs.
const CLOSE_US: u64 = 8_000_000;

/// Renders the page.
pub fn page(plan: &DeliveryPlan, cases: &[CaseResult], table: &str) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><main><h1>{0}</h1>\
         <p class=\"config\">{1} streams of {2} s, {3} tokens/s each</p>",
        escape(&plan.title),
        plan.sessions,
        plan.seconds,
        plan.tokens_per_s
    );
    let names: Vec<String> = plan.schemes.iter().map(|s| s.label().to_owned()).collect();
    out.push_str("<h2>Stalls</h2>");
    legend(&mut out, &names);
    out.push_str("<div class=\"plots\">");
    figure(&mut out, "Stall ratio, measured", &ratio_bars(plan, cases, |cell| cell.full()));
    let simulated = ratio_bars(plan, cases, |cell| cell.predicted_full());
    figure(&mut out, "Stall ratio, simulated with the same seeds", &simulated);
    out.push_str("</div>");
    for case in cases {
        arrivals(&mut out, case, &names);
    }
    let _ = write!(
        out,
        "<h2>StreamMetrics</h2><div class=\"scroll\"><pre>{}</pre></div>",
        escape(table)
    );
    out.push_str("</main></body></html>\n");
    out
}

fn figure(out: &mut String, caption: &str, plot: &str) {
    let _ = write!(out, "<figure><figcaption>{}</figcaption>{plot}</figure>", escape(caption));
}

fn legend(out: &mut String, names: &[String]) {
    out.push_str("<p class=\"legend\">");
    for (index, name) in names.iter().enumerate() {
        let _ = write!(out, "<span><i class=\"c{}\"></i>{}</span>", index % 8, escape(name));
    }
    out.push_str("</p>");
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
    charts::bars("Stall ratio", "round-trip time, ms", "stall ratio (full)", &series)
}

/// Tokens over time, for the session with the first scheme's median stall ratio.
fn arrivals(out: &mut String, case: &CaseResult, names: &[String]) {
    let Some(reference) = case.cells.first() else { return };
    let session = median_session(reference);
    let traces: Vec<&StreamTrace> =
        case.cells.iter().filter_map(|cell| cell.trial.traces.get(session)).collect();
    let _ = write!(out, "<h2>Arrivals at {} ms, stream {session}</h2>", case.rtt_ms);
    let mut named = vec!["generated".to_owned()];
    named.extend(names.iter().cloned());
    legend(out, &named);
    out.push_str("<div class=\"plots\">");
    let end_us = reference.trial.traces[session].generated_us.last().copied().unwrap_or(0);
    let close_us = longest_gap_at(&reference.trial.traces[session]).saturating_sub(CLOSE_US / 4);
    for (caption, from_us, to_us) in [
        ("The whole answer", 0, end_us + CLOSE_US),
        ("Around the longest stall of the first scheme", close_us, close_us + CLOSE_US),
    ] {
        let lines = token_lines(&named, &traces, from_us, to_us);
        let x = ("seconds", Scale::Linear);
        figure(out, caption, &charts::lines("Arrivals", x, "tokens ready", &lines, true));
    }
    out.push_str("</div>");
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

/// Generated tokens and those ready by each scheme, within a window of time that begins at 0.
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
