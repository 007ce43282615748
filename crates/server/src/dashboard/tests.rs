//! The dashboard stepped through time: contents of its events, and the limit on readers.

use std::cell::Cell;
use std::task::{Context, Waker};
use std::time::Duration;

use serde_json::json;

use super::columns::COLUMNS;
use super::reader::DashboardEvents;
use super::sampler::{MAX_ROWS, WINDOW};
use super::*;
use loquent_serving::event_writer::{EventSource, StreamStatus};
use loquent_serving::metrics::{Metrics, StreamCarrier};

/// A dashboard and its metrics, stepped in whole seconds.
struct Bench {
    dashboard: Dashboard,
    metrics: Metrics,
    second: u64,
    described: Cell<usize>,
}

impl Bench {
    fn new() -> Self {
        let (dashboard, metrics) = (Dashboard::default(), Metrics::new());
        let mut bench = Self { dashboard, metrics, second: 0, described: Cell::default() };
        bench.tick();
        bench
    }

    fn tick(&mut self) {
        let moment = Moment {
            at: Duration::from_secs(self.second),
            metrics: self.metrics.read(),
            links: Default::default(),
            upstream_busy: None,
            stages: None,
        };
        self.dashboard.take(moment, |_| {
            self.described.set(self.described.get() + 1);
            json!({"second": self.second})
        });
        self.second += 1;
    }

    fn reader(&self) -> (DashboardEvents, Value) {
        let (reader, opening) = DashboardEvents::new(self.dashboard.sit_down().unwrap());
        (reader, data(&opening).remove(0))
    }
}

/// Returns the data of all events in `text`.
fn data(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Returns the events that the reader gets now, and whether its stream has ended.
fn read(reader: &mut DashboardEvents) -> (Vec<Value>, bool) {
    let mut context = Context::from_waker(Waker::noop());
    let mut out = Vec::new();
    let status = reader.poll_events(&mut context, &mut out);
    (data(&out), matches!(status, StreamStatus::Open))
}

fn figure(row: &Value, name: &str) -> Option<f64> {
    let at = COLUMNS.iter().position(|(column, _)| *column == name).unwrap();
    row[at].as_f64()
}

#[test]
fn a_second_has_its_figures() {
    let mut bench = Bench::new();
    let (mut reader, _) = bench.reader();
    let _streams = bench.metrics.active_path(StreamCarrier::WebTransport);
    for _ in 0..100 {
        bench.metrics.on_flush(2, Some(Duration::from_millis(40)));
        bench.metrics.on_token_gap(Duration::from_millis(20));
    }
    bench.metrics.on_datagram(1000, 300);
    bench.metrics.on_resume(true);
    bench.metrics.on_refusal(429);
    bench.tick();
    let (events, _) = read(&mut reader);
    let row = &events[0]["row"];
    for (name, expected) in [
        ("tokens_per_s", 200.0),
        ("webtransport_streams", 1.0),
        ("http_streams", 0.0),
        ("redundant_share", 0.3),
        ("resumed", 1.0),
        ("refused", 1.0),
        ("ended", 0.0),
    ] {
        assert_eq!(figure(row, name), Some(expected), "{name} in {row}");
    }
    let near = |name: &str, expected: f64| {
        let told = figure(row, name).unwrap();
        assert!((told / expected - 1.0).abs() < 0.07, "{name}: {told}");
    };
    near("itl_p50_ms", 20.0);
    near("icl_p99_ms", 40.0);
    assert_eq!(figure(row, "ttft_p50_ms"), None, "no answer has begun");
    assert_eq!(figure(row, "loss_share"), None, "nothing was sent");
}

#[test]
fn percentiles_forget_what_left_the_window() {
    let mut bench = Bench::new();
    let (mut reader, _) = bench.reader();
    bench.metrics.on_token_gap(Duration::from_secs(1));
    for _ in 0..WINDOW {
        bench.tick();
    }
    assert!(figure(&read(&mut reader).0[0]["row"], "itl_p50_ms").is_some());
    bench.tick();
    assert_eq!(figure(&read(&mut reader).0[0]["row"], "itl_p50_ms"), None);
}

#[test]
fn a_new_reader_sees_the_minutes_before_and_no_more() {
    let mut bench = Bench::new();
    assert_eq!(bench.reader().1["rows"], json!([]), "one moment is no stretch of time");
    for _ in 0..MAX_ROWS + 7 {
        bench.tick();
    }
    let (_, opening) = bench.reader();
    let rows = opening["rows"].as_array().unwrap();
    assert_eq!(rows.len(), MAX_ROWS);
    assert_eq!(figure(rows.last().unwrap(), "at_s"), Some(MAX_ROWS as f64 + 7.0));
    assert_eq!(bench.described.get(), 0, "nobody read");
}

#[test]
fn events_are_made_once_for_all_readers() {
    let mut bench = Bench::new();
    let mut readers: Vec<_> = (0..MAX_READERS).map(|_| bench.reader().0).collect();
    bench.tick();
    for reader in &mut readers {
        assert_eq!(read(reader).0[0]["details"], json!({"second": 1}));
        assert_eq!(read(reader), (Vec::new(), true), "until the next second");
    }
    assert_eq!(bench.described.get(), 1);
}

#[test]
fn places_are_bounded_and_given_back() {
    let bench = Bench::new();
    let mut readers: Vec<_> = (0..MAX_READERS).map(|_| bench.reader()).collect();
    assert!(bench.dashboard.sit_down().is_none());
    readers.pop();
    assert!(bench.dashboard.sit_down().is_some());
}

#[test]
fn a_reader_that_does_not_read_misses_events_and_holds_up_nobody() {
    let mut bench = Bench::new();
    let ((mut idle, _), (mut prompt, _)) = (bench.reader(), bench.reader());
    for second in 1..=500 {
        bench.tick();
        assert_eq!(read(&mut prompt).0[0]["details"]["second"], second);
    }
    let (events, _) = read(&mut idle);
    assert_eq!(events.len(), 1, "nothing is kept for it");
    assert_eq!(events[0]["details"]["second"], 500);
}

#[test]
fn streams_end_with_the_server_and_after_a_while_by_themselves() {
    let mut bench = Bench::new();
    let (mut reader, _) = bench.reader();
    let mut events = 0;
    loop {
        bench.tick();
        events += 1;
        if !read(&mut reader).1 {
            break;
        }
    }
    assert_eq!(events, 900, "it comes back and shows its key again");
    let (mut reader, _) = bench.reader();
    bench.dashboard.close();
    assert_eq!(read(&mut reader), (Vec::new(), false));
    assert!(bench.dashboard.sit_down().is_none());
}
