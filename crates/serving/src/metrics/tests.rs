//! Tests that `docs/grafana/loquent.json` is a valid Grafana dashboard, and queries only metrics
//! that exist.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn dashboard() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/loquent.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the names of Loquent's metrics in a query.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    query.split(move |c| !is_name(c)).filter(|word| word.starts_with("loquent_"))
}

/// Returns the names of all series of a server on which every kind of event has occurred.
fn series() -> BTreeSet<String> {
    let metrics = Metrics::new();
    metrics.on_abort();
    metrics.on_refusal(429);
    metrics.on_batch_line(true);
    metrics.on_resume(true);
    let text = metrics.render();
    let name = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
    text.lines().filter(|line| !line.starts_with('#')).map(name).collect()
}

fn queries(dashboard: &Value) -> Vec<String> {
    let targets = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    let panels = dashboard["panels"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of_panels = panels.iter().flat_map(targets).map(|target| text(&target["expr"]));
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let of_variables = variables.iter().filter(|one| one["type"] == "query");
    of_panels.chain(of_variables.map(|one| text(&one["query"]["query"]))).collect()
}

#[test]
fn the_dashboard_queries_only_metrics_that_exist() {
    let (queries, series) = (queries(&dashboard()), series());
    assert!(queries.len() > 30, "{} queries", queries.len());
    for query in &queries {
        assert!(names(query).count() > 0, "{query}");
        for name in names(query) {
            assert!(series.contains(name), "{name} of {query}");
        }
    }
}

#[test]
fn the_dashboard_has_what_grafana_needs_to_load_it() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
    assert!(dashboard["title"].is_string() && dashboard["uid"].is_string());
    assert!(dashboard.get("id").is_none(), "an id is of one installation");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let edge = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(edge("x") + edge("w") <= 24, "{panel}");
        for x in edge("x")..edge("x") + edge("w") {
            for y in edge("y")..edge("y") + edge("h") {
                assert!(taken.insert((x, y)), "two panels in one place: {panel}");
            }
        }
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|one| one["name"] == "datasource" && one["type"] == "datasource"));
}
