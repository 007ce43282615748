//! Machine-readable reports: one JSON document, or one line per request.

use serde_json::{Map, Value, json};

use super::{COMPARED, LoadReport, RunGroup, RunResult};
use crate::record::RequestRecord;

/// Renders the whole report without the requests.
pub fn json(report: &LoadReport) -> String {
    let base = &report.groups[0];
    let groups: Vec<Value> = report.groups.iter().map(|group| group_json(group, base)).collect();
    let whole = json!({
        "title": report.title,
        "config": report.config,
        "groups": groups,
        "impossible": report.impossible(),
    });
    format!("{whole:#}\n")
}

fn group_json(group: &RunGroup, base: &RunGroup) -> Value {
    let median: Map<String, Value> = group
        .metrics()
        .filter_map(|metric| Some((metric.key.clone(), json!(group.spread(&metric.key)?.median))))
        .collect();
    let ratio = |(key, _, _): &(&str, &str, bool)| {
        let ratio = group.ratio(base, key)?;
        let range = json!({ "median": ratio.median, "min": ratio.min, "max": ratio.max });
        Some(((*key).to_owned(), range))
    };
    let ratios: Map<String, Value> = COMPARED.iter().filter_map(ratio).collect();
    let (equal, compared) = group.equal_texts(base);
    json!({
        "name": group.name,
        "target": group.target,
        "case": group.case,
        "median": median,
        "ratio_to_first_group": ratios,
        "texts_equal_to_first_group": { "equal": equal, "of": compared },
        "runs": group.runs.iter().map(run_json).collect::<Vec<Value>>(),
    })
}

fn run_json(run: &RunResult) -> Value {
    let metrics: Map<String, Value> = run
        .summary
        .metrics
        .iter()
        .map(|metric| (metric.key.clone(), json!(metric.value)))
        .collect();
    json!({
        "metrics": metrics,
        "notes": run.findings.notes,
        "impossible": run.findings.impossible,
        "server_counters": run.counters,
    })
}

/// Renders one line per request of every run.
pub fn jsonl(report: &LoadReport) -> String {
    let mut out = String::new();
    for group in &report.groups {
        for (run, result) in group.runs.iter().enumerate() {
            for record in &result.records {
                out.push_str(&record_json(&group.name, run, record).to_string());
                out.push('\n');
            }
        }
    }
    out
}

fn record_json(group: &str, run: usize, record: &RequestRecord) -> Value {
    let at_us: Vec<u64> = record.chunks.iter().map(|chunk| chunk.at_us).collect();
    let bytes: Vec<u32> = record.chunks.iter().map(|chunk| chunk.text_bytes).collect();
    json!({
        "group": group,
        "run": run,
        "index": record.index,
        "role": record.role,
        "outcome": record.outcome,
        "scheduled_us": record.scheduled_us,
        "submitted_us": record.submitted_us,
        "accepted_us": record.accepted_us,
        "ended_us": record.ended_us,
        "chunk_arrivals_us": at_us,
        "chunk_text_bytes": bytes,
        "finish_reason": record.finish_reason,
        "usage": record.usage,
        "recounted_tokens": record.recounted_tokens,
        "wire_bytes": record.wire.bytes,
        "socket_reads": record.wire.reads,
        "text": record.text,
        "server_timings": record.timings,
    })
}
