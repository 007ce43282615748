//! The table on the terminal, with the names and the layout of vLLM's `bench serve`.

use std::collections::BTreeMap;
use std::fmt::Write;

use loquent_sim::chart::number;

use super::{COMPARED, LoadReport, RunGroup};

const WIDTH: usize = 62;
/// Maximum number of server counters printed; the JSON report has all.
const MAX_COUNTERS: usize = 24;

/// Renders all groups, and their comparison if there are several.
pub fn render(report: &LoadReport) -> String {
    let mut out = String::new();
    for group in &report.groups {
        render_group(&mut out, report, group);
    }
    if report.groups.len() > 1 {
        render_comparison(&mut out, &report.groups);
    }
    out
}

fn rule(out: &mut String, title: &str, fill: char) {
    let title = if title.is_empty() { String::new() } else { format!(" {title} ") };
    let rest = WIDTH.saturating_sub(title.chars().count());
    let left = rest / 2;
    let bar = |count| std::iter::repeat_n(fill, count).collect::<String>();
    let _ = writeln!(out, "{}{title}{}", bar(left), bar(rest - left));
}

fn line(out: &mut String, label: &str, value: &str) {
    let _ = writeln!(out, "{label:<44} {value:>17}", label = format!("{label}:"));
}

fn render_group(out: &mut String, report: &LoadReport, group: &RunGroup) {
    rule(out, &format!("{} / {}", report.title, group.name), '=');
    if group.runs.len() > 1 {
        let _ = writeln!(out, "medians of {} runs, [smallest, largest]", group.runs.len());
    }
    let mut section = "";
    for metric in group.metrics() {
        if metric.section != section {
            section = metric.section;
            rule(out, section, '-');
        }
        let Some(spread) = group.spread(&metric.key) else {
            continue;
        };
        let mut value = number(spread.median);
        if group.runs.len() > 1 && spread.min < spread.max {
            let _ = write!(value, " [{}, {}]", number(spread.min), number(spread.max));
        }
        line(out, &metric.label, &value);
    }
    render_failures(out, group);
    render_counters(out, group);
    let notes = group.runs.iter().flat_map(|run| &run.findings.notes);
    for note in notes.collect::<std::collections::BTreeSet<_>>() {
        let _ = writeln!(out, "note: {note}");
    }
    for refusal in group.runs.iter().flat_map(|run| &run.findings.impossible) {
        let _ = writeln!(out, "IMPOSSIBLE: {refusal}");
    }
    rule(out, "", '=');
}

fn render_failures(out: &mut String, group: &RunGroup) {
    let mut kinds: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for record in group.runs.iter().flat_map(|run| &run.records) {
        let Some(failure) = record.failure() else {
            continue;
        };
        let retry = failure.retry_after_s.map_or(String::new(), |_| ", with Retry-After".into());
        let status = failure.status.map_or(String::new(), |status| format!(" {status}"));
        let kind = format!("{:?} {:?}{status}{retry}", record.role, failure.kind);
        kinds.entry(kind).or_insert_with(|| (0, failure.message.clone())).0 += 1;
    }
    if kinds.is_empty() {
        return;
    }
    rule(out, "Failures, all runs", '-');
    for (kind, (count, example)) in kinds {
        line(out, &kind, &count.to_string());
        let _ = writeln!(out, "    e.g. {example}");
    }
}

fn render_counters(out: &mut String, group: &RunGroup) {
    let Some(run) = group.runs.last() else { return };
    // Sums and counts of histograms are long; the JSON has them.
    let short = run.counters.iter().filter(|(key, _)| {
        let name = key.split('{').next().unwrap_or(key);
        !name.ends_with("_sum") && !name.ends_with("_count")
    });
    let short: Vec<_> = short.collect();
    if short.is_empty() {
        return;
    }
    rule(out, "Server counters, last run", '-');
    for (key, by) in short.iter().take(MAX_COUNTERS) {
        line(out, key, &format!("+{}", number(**by)));
    }
    if short.len() > MAX_COUNTERS {
        let _ = writeln!(out, "… and {} more (--json has all)", short.len() - MAX_COUNTERS);
    }
}

fn render_comparison(out: &mut String, groups: &[RunGroup]) {
    rule(out, "Comparison", '=');
    let base = &groups[0];
    let _ = writeln!(out, "medians; ratios to {:?}, run by run, [smallest, largest]", base.name);
    for (key, label, _) in COMPARED {
        let Some(of_base) = base.spread(key) else {
            continue;
        };
        let _ = writeln!(out, "{label}");
        for group in groups {
            let Some(spread) = group.spread(key) else {
                continue;
            };
            let _ = write!(out, "  {:<36} {:>11}", group.name, number(spread.median));
            match group.ratio(base, key) {
                Some(ratio) if !std::ptr::eq(group, base) && of_base.median != 0.0 => {
                    let range = format!("[{:.3}, {:.3}]", ratio.min, ratio.max);
                    let _ = writeln!(out, "  x{:.3} {range}", ratio.median);
                }
                _ => out.push('\n'),
            }
        }
    }
    for group in &groups[1..] {
        let (equal, all) = group.equal_texts(base);
        let _ = writeln!(out, "texts of {:?} equal to the base's: {equal} of {all}", group.name);
    }
    rule(out, "", '=');
}
