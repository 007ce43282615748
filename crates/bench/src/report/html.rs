//! The report as one self-contained page: no script, no font, no network.

use std::collections::BTreeMap;
use std::fmt::Write;

use loquent_sim::chart::kinds::{self, Join, Scale, Series, TimelineRow, colour};
use loquent_sim::chart::{ReportPage, escape, number};

use super::{COMPARED, LoadReport, RunGroup};
use crate::record::{RequestRecord, RequestRole, ms};
use crate::summary::{Plots, RateBins};

/// Maximum number of requests in one timeline: with more, rows would be thinner than a pixel.
const MAX_ROWS: usize = 400;
/// Maximum number of timelines, so that the page stays small.
const MAX_TIMELINES: usize = 6;

/// Renders the page.
pub fn render(report: &LoadReport) -> String {
    let mut page = ReportPage::new(&report.title);
    config(&mut page, report);
    for line in report.impossible() {
        page.paragraph("refusal", &format!("Impossible token total: {line}"));
    }
    tiles(&mut page, report);
    plots(&mut page, report);
    if report.groups.len() > 1 {
        comparison(&mut page, report);
    }
    timelines(&mut page, report);
    figures(&mut page, report);
    page.finish()
}

fn config(page: &mut ReportPage, report: &LoadReport) {
    let Some(fields) = report.config.as_object() else {
        return;
    };
    let given = fields.iter().filter(|(_, value)| !value.is_null());
    page.config(given.map(|(name, value)| {
        (name.as_str(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }));
}

fn legend(page: &mut ReportPage, report: &LoadReport) {
    if report.groups.len() >= 2 {
        let names = report.groups.iter().map(|group| group.name.as_str());
        page.legend(names.enumerate().map(|(index, name)| (colour(index), name)));
    }
}

/// Adds the most important figures, as tiles at the top.
fn tiles(page: &mut ReportPage, report: &LoadReport) {
    const TILES: [(&str, &str, &str); 6] = [
        ("output_throughput", "output", "tokens/s"),
        ("ttft_p50_ms", "TTFT p50", "ms"),
        ("ttft_p99_ms", "TTFT p99", "ms"),
        ("tpot_p50_ms", "TPOT p50", "ms"),
        ("icl_p99_ms", "ICL p99", "ms"),
        ("e2el_p99_ms", "latency p99", "ms"),
    ];
    for (index, group) in report.groups.iter().enumerate() {
        let mut out = format!(
            "<h2 class=\"group\"><i class=\"{}\"></i>{}</h2><div class=\"tiles\">",
            colour(index),
            escape(&group.name)
        );
        for (key, name, unit) in TILES {
            if let Some(spread) = group.spread(key) {
                tile(&mut out, "", &number(spread.median), unit, name);
            }
        }
        outcome_tile(&mut out, group);
        concurrency_tile(&mut out, group);
        out.push_str("</div>");
        page.html(&out);
    }
}

fn tile(out: &mut String, class: &str, value: &str, unit: &str, name: &str) {
    let _ =
        write!(out, "<div{class}><b>{value}</b> <small>{unit}</small><span>{name}</span></div>");
}

fn outcome_tile(out: &mut String, group: &RunGroup) {
    let spread = |key| group.spread(key);
    if let (Some(ok), Some(failed), Some(refused)) =
        (spread("successful_requests"), spread("failed_requests"), spread("refused_requests"))
    {
        let class = if failed.max > 0.0 { " class=\"bad\"" } else { "" };
        let rest = format!("{} failed, {} refused", number(failed.max), number(refused.median));
        tile(out, class, &number(ok.median), "ok", &rest);
    }
}

/// Adds a tile with the limit and the peak of concurrent requests.
fn concurrency_tile(out: &mut String, group: &RunGroup) {
    let limit = group.case.concurrency.map_or("no limit".into(), |most| format!("limit {most}"));
    if let Some(peak) = group.spread("peak_concurrency") {
        let name = format!("at once, {limit}");
        tile(out, "", &number(peak.median), "requests", &name);
    }
}

/// Returns the plotted samples of a group: those of its first run.
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

fn plots(page: &mut ReportPage, report: &LoadReport) {
    page.heading("Distributions and rates");
    legend(page, report);
    page.plots(|page| {
        let ttft = per_group(report, |plots| kinds::cumulative(plots.ttft_ms.sorted()));
        let axis = "ms since the scheduled send";
        let plot = distribution("TTFT distribution", axis, "share of requests", &ttft);
        let caption = "Share of requests whose first text had arrived.";
        page.figure("Time to first token", caption, &plot);
        let icl = per_group(report, |plots| kinds::cumulative(plots.icl_ms.sorted()));
        let plot = distribution("ICL distribution", "ms between chunks", "share of gaps", &icl);
        page.figure("Inter-chunk latency", "Gaps between chunks as they arrived here.", &plot);
        let rate = per_group(report, |plots| rate(&plots.rate));
        let axis = ("seconds since the start", Scale::Linear);
        let plot = kinds::lines("tokens per second", axis, "tokens/s", &rate, Join::Area);
        page.figure("Tokens per second over time", "All measured streams together.", &plot);
        let chunks = per_group(report, |plots| histogram(plots.tokens_per_chunk.sorted()));
        let plot = kinds::bars("tokens per chunk", "tokens", "share of chunks", &chunks);
        let caption = "Exact where the server reports its flushes, else each request's mean.";
        page.figure("Tokens per chunk", caption, &plot);
    });
}

/// Cumulative distributions over a logarithmic axis.
fn distribution(title: &str, x: &str, y: &str, series: &[Series]) -> String {
    kinds::lines(title, (x, Scale::Log), y, series, Join::Steps)
}

/// Returns the rate in the middle of each bin, and zero before the first and after the last.
fn rate(bins: &RateBins) -> Vec<(f64, f64)> {
    let at = |(index, tokens): (usize, &f64)| {
        ((index as f64 + 0.5) * bins.width_s, tokens / bins.width_s)
    };
    let mut points: Vec<_> = bins.tokens.iter().enumerate().map(at).collect();
    if !points.is_empty() {
        points.insert(0, (0.0, 0.0));
        points.push((bins.tokens.len() as f64 * bins.width_s, 0.0));
    }
    points
}

/// Returns the shares of whole numbers of tokens. Above 16, classes double in width and are named
/// by their end.
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

fn comparison(page: &mut ReportPage, report: &LoadReport) {
    let mut out = String::new();
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
    page.html(&out);
}

fn timelines(page: &mut ReportPage, report: &LoadReport) {
    page.heading("Requests over time");
    let names = [
        ("waiting", "waiting"),
        ("streaming", "streaming"),
        ("beside", "injected, slow or leaving"),
        ("failed", "failed"),
    ];
    page.legend(names.into_iter());
    page.plots(|page| {
        for group in report.groups.iter().take(MAX_TIMELINES) {
            let Some(run) = group.runs.first() else { continue };
            let row = |record: &RequestRecord| TimelineRow {
                due_s: ms(record.scheduled_us) / 1e3,
                first_s: record.chunks.first().map(|chunk| ms(chunk.at_us) / 1e3),
                end_s: ms(record.ended_us) / 1e3,
                finished: record.failure().is_none(),
                measured: record.role == RequestRole::Measured,
            };
            let rows: Vec<_> = run.records.iter().take(MAX_ROWS).map(row).collect();
            let caption = format!("{} of {} requests, first run.", rows.len(), run.records.len());
            page.figure(&group.name, &caption, &kinds::timeline("timeline", &rows));
        }
    });
}

fn figures(page: &mut ReportPage, report: &LoadReport) {
    page.heading("All figures");
    let mut out = String::from("<div class=\"scroll\"><table><tr><th></th>");
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
    page.html(&out);
    notes(report).iter().for_each(|note| page.paragraph("note", note));
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
    use crate::plan::{Extras, LoadCase};
    use crate::reconcile::tests::record;
    use crate::report::RunResult;
    use crate::summary::{Resources, summarize};

    /// Returns a report of one run that took `ms`, with ten chunks.
    fn report(ms: u64) -> LoadReport {
        let at: Vec<u64> = (1..=10).map(|nth| nth * ms / 10).collect();
        let mut one = record(&at, 20);
        (one.scheduled_us, one.submitted_us, one.accepted_us) = (0, 0, Some(0));
        let summary = summarize(std::slice::from_ref(&one), &Resources::default());
        let run = RunResult {
            summary,
            findings: Default::default(),
            records: vec![one],
            counters: Default::default(),
        };
        let case = LoadCase {
            label: String::new(),
            concurrency: Some(16),
            stream_interval: None,
            extras: Extras::default(),
        };
        let (name, target) = ("a <b>".to_owned(), "t".to_owned());
        let groups = vec![RunGroup { name, target, case, runs: vec![run] }];
        LoadReport { title: "short & quick".into(), config: serde_json::json!({}), groups }
    }

    /// Fails unless every element that starts in `html` ends, in order.
    fn assert_well_formed(html: &str) {
        let mut open = Vec::new();
        for tag in html.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("<{tag}"));
            let name = tag.split([' ', '\n']).next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "</{name}>"),
                None if tag.ends_with('/') || ["!doctype", "meta"].contains(&name) => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn a_report_is_well_formed_and_stands_alone() {
        let page = render(&report(900));
        assert_well_formed(&page);
        assert!(page.contains("a &lt;b&gt;") && page.contains("limit 16"), "{page}");
        for foreign in ["http:", "https:", "<script", "<link", "<img", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn charts_are_as_large_as_their_units_say() {
        let page = render(&report(900));
        let charts: Vec<&str> = page.split("<svg ").skip(1).collect();
        assert_eq!(charts.len(), 5);
        for chart in charts {
            let attribute = |name: &str| {
                let (_, rest) = chart.split_once(&format!("{name}=\"")).unwrap();
                rest.split_once('"').unwrap().0.to_owned()
            };
            let size = format!("0 0 {} {}", attribute("width"), attribute("height"));
            assert_eq!(attribute("viewBox"), size, "text would have another size here");
            assert!(!chart.contains("font-size=") && !chart.contains("NaN"), "{chart}");
        }
    }

    #[test]
    fn a_short_run_has_a_rate() {
        for ms in [40, 900, 60_000] {
            let report = report(ms);
            let bins = &sampled(&report.groups[0]).unwrap().rate;
            let tokens: f64 = bins.tokens.iter().sum();
            assert!((tokens - 20.0).abs() < 1e-9, "{tokens} tokens in {ms} ms");
            assert!((10..=300).contains(&bins.tokens.len()), "{} bins", bins.tokens.len());
            assert!(rate(bins).iter().any(|point| point.1 > 0.0));
            assert!(render(&report).contains("class=\"area c0\""));
        }
    }

    #[test]
    fn times_have_no_exponent() {
        let table = crate::report::table::render(&report(900));
        let is_exponent = |word: &str| {
            word.split_once("e-").is_some_and(|(digits, _)| digits.parse::<f64>().is_ok())
        };
        assert!(!table.split_whitespace().any(is_exponent), "{table}");
        assert_eq!(number(0.00473), "0.0047");
    }

    #[test]
    fn histograms_hold_every_chunk() {
        let bars = histogram(&[1.0, 1.0, 8.0, 17.0, 30.0, 33.0]);
        let places: Vec<f64> = bars.iter().map(|bar| bar.0).collect();
        assert_eq!(places, [1.0, 8.0, 32.0, 64.0]);
        assert!((bars.iter().map(|bar| bar.1).sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
