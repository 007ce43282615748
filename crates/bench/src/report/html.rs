//! The report as one self-contained page: no script, no font, no network.

use std::collections::BTreeMap;
use std::fmt::Write;

use loquent_sim::chart::escape;

use super::charts::{self, Scale, Series, TimelineRow};
use super::{COMPARED, LoadReport, RunGroup, number};
use crate::record::{RequestRole, ms};
use crate::summary::{Plots, RATE_BIN_S};

const STYLE: &str = include_str!("report.css");
/// Maximum number of requests in one timeline: rows of more would be thinner than a pixel.
const MAX_ROWS: usize = 400;
/// Maximum number of timelines, so that the page stays small.
const MAX_TIMELINES: usize = 6;

/// Renders the page.
pub fn render(report: &LoadReport) -> String {
    let mut out = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><main><header><h1>{0}</h1>",
        escape(&report.title)
    );
    config(&mut out, report);
    out.push_str("</header>");
    refusals(&mut out, report);
    tiles(&mut out, report);
    plots(&mut out, report);
    if report.groups.len() > 1 {
        comparison(&mut out, report);
    }
    timelines(&mut out, report);
    figures(&mut out, report);
    out.push_str("</main></body></html>\n");
    out
}

fn config(out: &mut String, report: &LoadReport) {
    let Some(fields) = report.config.as_object() else {
        return;
    };
    out.push_str("<p class=\"config\">");
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(out, "<span>{} <b>{}</b></span> ", escape(name), escape(&value));
    }
    out.push_str("</p>");
}

fn refusals(out: &mut String, report: &LoadReport) {
    for line in report.impossible() {
        let _ = write!(out, "<p class=\"refusal\">Impossible token total: {}</p>", escape(&line));
    }
}

fn legend(out: &mut String, report: &LoadReport) {
    if report.groups.len() < 2 {
        return;
    }
    out.push_str("<p class=\"legend\">");
    for (index, group) in report.groups.iter().enumerate() {
        let _ = write!(out, "<span><i class=\"c{}\"></i>{}</span>", index % 8, escape(&group.name));
    }
    out.push_str("</p>");
}

/// The figures that matter most, as tiles at the top.
fn tiles(out: &mut String, report: &LoadReport) {
    const TILES: [(&str, &str, &str); 6] = [
        ("output_throughput", "output", "tokens/s"),
        ("ttft_p50_ms", "TTFT p50", "ms"),
        ("ttft_p99_ms", "TTFT p99", "ms"),
        ("tpot_p50_ms", "TPOT p50", "ms"),
        ("icl_p99_ms", "ICL p99", "ms"),
        ("e2el_p99_ms", "latency p99", "ms"),
    ];
    for (index, group) in report.groups.iter().enumerate() {
        let _ = write!(
            out,
            "<h2 class=\"group\"><i class=\"c{}\"></i>{}</h2><div class=\"tiles\">",
            index % 8,
            escape(&group.name)
        );
        for (key, name, unit) in TILES {
            let Some(spread) = group.spread(key) else {
                continue;
            };
            let value = number(spread.median);
            let _ =
                write!(out, "<div><b>{value}</b> <small>{unit}</small><span>{name}</span></div>");
        }
        if let (Some(ok), Some(failed), Some(refused)) = (
            group.spread("successful_requests"),
            group.spread("failed_requests"),
            group.spread("refused_requests"),
        ) {
            let bad = if failed.max > 0.0 { " class=\"bad\"" } else { "" };
            let _ = write!(
                out,
                "<div{bad}><b>{}</b> <small>ok</small><span>{} failed, {} refused</span></div>",
                number(ok.median),
                number(failed.max),
                number(refused.median)
            );
        }
        out.push_str("</div>");
    }
}

/// The plotted samples of a group: those of its first run.
fn sampled(group: &RunGroup) -> Option<&Plots> {
    group.runs.first().map(|run| &run.summary.plots)
}

fn per_group(report: &LoadReport, of: impl Fn(&Plots) -> Vec<(f64, f64)>) -> Vec<Series> {
    let line = |group: &RunGroup| Series {
        name: group.name.clone(),
        points: sampled(group).map(&of).unwrap_or_default(),
    };
    report.groups.iter().map(line).collect()
}

fn plots(out: &mut String, report: &LoadReport) {
    out.push_str("<h2>Distributions and rates</h2>");
    legend(out, report);
    out.push_str("<div class=\"plots\">");
    let ttft = per_group(report, |plots| charts::cumulative(plots.ttft_ms.sorted()));
    let axis = "ms since the scheduled send";
    let plot = distribution("TTFT distribution", axis, "share of requests", &ttft);
    let caption = "Share of requests whose first text had arrived.";
    figure(out, "Time to first token", caption, &plot);
    let icl = per_group(report, |plots| charts::cumulative(plots.icl_ms.sorted()));
    let plot = distribution("ICL distribution", "ms between chunks", "share of gaps", &icl);
    figure(out, "Inter-chunk latency", "Gaps between chunks as they arrived here.", &plot);
    let rate = per_group(report, |plots| rate(&plots.tokens_per_bin));
    let axis = ("seconds since the start", Scale::Linear);
    let plot = charts::lines("tokens per second", axis, "tokens/s", &rate, false);
    figure(out, "Tokens per second over time", "All measured streams together.", &plot);
    let chunks = per_group(report, |plots| histogram(plots.tokens_per_chunk.sorted()));
    let plot = charts::bars("tokens per chunk", "tokens", "share of chunks", &chunks);
    let caption = "Exact where the server reports its flushes, else each request's mean.";
    figure(out, "Tokens per chunk", caption, &plot);
    out.push_str("</div>");
}

/// Cumulative distributions over a logarithmic axis.
fn distribution(title: &str, x: &str, y: &str, series: &[Series]) -> String {
    charts::lines(title, (x, Scale::Log), y, series, true)
}

fn figure(out: &mut String, title: &str, caption: &str, plot: &str) {
    let _ = write!(
        out,
        "<figure><figcaption><b>{}</b> {}</figcaption>{plot}</figure>",
        escape(title),
        escape(caption)
    );
}

fn rate(bins: &[f64]) -> Vec<(f64, f64)> {
    let at =
        |(index, tokens): (usize, &f64)| ((index as f64 + 0.5) * RATE_BIN_S, tokens / RATE_BIN_S);
    bins.iter().enumerate().map(at).collect()
}

/// Shares of whole numbers of tokens; above 16 by doubling classes, named by their end.
fn histogram(samples: &[f64]) -> Vec<(f64, f64)> {
    let class = |tokens: f64| {
        let whole = tokens.round().max(0.0);
        if whole <= 16.0 { whole } else { 2f64.powf(whole.log2().ceil()) }
    };
    let mut classes: BTreeMap<u64, usize> = BTreeMap::new();
    for &tokens in samples {
        *classes.entry(class(tokens) as u64).or_default() += 1;
    }
    let share = |(class, count): (u64, usize)| (class as f64, count as f64 / samples.len() as f64);
    classes.into_iter().map(share).collect()
}

fn comparison(out: &mut String, report: &LoadReport) {
    let base = &report.groups[0];
    let _ = write!(
        out,
        "<h2>Comparison</h2><p>Medians of {} runs. Ratios are to <b>{}</b>, run by run, with their \
         smallest and largest.</p><div class=\"scroll\"><table><tr><th></th>",
        base.runs.len(),
        escape(&base.name)
    );
    for group in &report.groups {
        let _ = write!(out, "<th>{}</th>", escape(&group.name));
    }
    out.push_str("</tr>");
    for (key, label, more_is_better) in COMPARED {
        if base.spread(key).is_none() {
            continue;
        }
        let _ = write!(out, "<tr><th>{label}</th>");
        for (index, group) in report.groups.iter().enumerate() {
            let _ =
                write!(out, "<td>{}", group.spread(key).map_or("–".into(), |s| number(s.median)));
            if let (1.., Some(ratio)) = (index, group.ratio(base, key)) {
                let class = match (ratio.median > 1.0) == more_is_better {
                    _ if ratio.min <= 1.0 && ratio.max >= 1.0 => "same",
                    _ if (ratio.median - 1.0).abs() < 0.02 => "same",
                    true => "better",
                    false => "worse",
                };
                let _ = write!(
                    out,
                    " <span class=\"{class}\">×{:.3}</span> <small>[{:.3}, {:.3}]</small>",
                    ratio.median, ratio.min, ratio.max
                );
            }
            out.push_str("</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
}

fn timelines(out: &mut String, report: &LoadReport) {
    out.push_str(
        "<h2>Requests over time</h2><p class=\"legend\"><span><i class=\"waiting\"></i>waiting</span>\
         <span><i class=\"streaming\"></i>streaming</span><span><i class=\"beside\"></i>injected, slow or \
         leaving</span><span><i class=\"failed\"></i>failed</span></p><div class=\"plots\">",
    );
    for group in report.groups.iter().take(MAX_TIMELINES) {
        let Some(run) = group.runs.first() else {
            continue;
        };
        let rows: Vec<TimelineRow> = run
            .records
            .iter()
            .take(MAX_ROWS)
            .map(|record| TimelineRow {
                due_s: ms(record.scheduled_us) / 1e3,
                first_s: record.chunks.first().map(|chunk| ms(chunk.at_us) / 1e3),
                end_s: ms(record.ended_us) / 1e3,
                finished: record.failure().is_none(),
                measured: record.role == RequestRole::Measured,
            })
            .collect();
        let caption = format!("{} of {} requests, first run.", rows.len(), run.records.len());
        figure(out, &group.name, &caption, &charts::timeline("timeline", &rows));
    }
    out.push_str("</div>");
}

fn figures(out: &mut String, report: &LoadReport) {
    out.push_str("<h2>All figures</h2><div class=\"scroll\"><table><tr><th></th>");
    for group in &report.groups {
        let _ = write!(out, "<th>{}</th>", escape(&group.name));
    }
    out.push_str("</tr>");
    let mut shown = std::collections::HashSet::new();
    let mut section = "";
    for metric in report.groups.iter().flat_map(RunGroup::metrics) {
        if !shown.insert(metric.key.clone()) {
            continue;
        }
        if metric.section != section {
            section = metric.section;
            let _ = write!(
                out,
                "<tr class=\"section\"><th colspan=\"{}\">{}</th></tr>",
                report.groups.len() + 1,
                escape(section)
            );
        }
        let _ = write!(out, "<tr><th>{}</th>", escape(&metric.label));
        for group in &report.groups {
            let _ = write!(
                out,
                "<td>{}",
                group.spread(&metric.key).map_or("–".into(), |s| number(s.median))
            );
            if let Some(spread) = group.spread(&metric.key).filter(|spread| spread.min < spread.max)
            {
                let _ =
                    write!(out, " <small>[{}, {}]</small>", number(spread.min), number(spread.max));
            }
            out.push_str("</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
    for note in notes(report) {
        let _ = write!(out, "<p class=\"note\">{}</p>", escape(&note));
    }
}

fn notes(report: &LoadReport) -> Vec<String> {
    let of = |group: &RunGroup| -> Vec<String> {
        let notes = group.runs.iter().flat_map(|run| &run.findings.notes);
        notes.map(|note| format!("{}: {note}", group.name)).collect()
    };
    let mut notes: Vec<String> = report.groups.iter().flat_map(of).collect();
    notes.dedup();
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_hold_every_chunk() {
        let bars = histogram(&[1.0, 1.0, 8.0, 17.0, 30.0, 33.0]);
        let places: Vec<f64> = bars.iter().map(|bar| bar.0).collect();
        assert_eq!(places, [1.0, 8.0, 32.0, 64.0]);
        assert!((bars.iter().map(|bar| bar.1).sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
