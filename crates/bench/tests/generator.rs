//! The load generator against a scripted server, over in-memory connections under a paused clock.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::sse_server::{MemoryDial, Script, ScriptEnd, SseServer};
use loquent_bench::Target;
use loquent_bench::arrivals::Pacing;
use loquent_bench::experiment::{RunVerdict, measure, run};
use loquent_bench::http_target::HttpTarget;
use loquent_bench::plan::{
    EndpointKind, Extras, Inject, LoadCase, LoadPlan, LoadSettings, ReportPaths, Slo, TargetPlan,
};
use loquent_bench::prompts::PromptSource;
use loquent_bench::record::{RequestOutcome, RequestRecord, RequestRole};
use loquent_bench::report::LoadReport;
use loquent_bench::target::FailureKind;
use loquent_openai::BaseUrl;
use loquent_openai::http::HttpClient;
use loquent_proto::coalesce::StreamInterval;

fn target(server: &Arc<SseServer>) -> Arc<dyn Target> {
    let base = BaseUrl::parse("http://script").unwrap();
    let dial = Arc::new(MemoryDial(Arc::clone(server)));
    let client = HttpClient::with_dial(base, None, dial).unwrap();
    Arc::new(HttpTarget::new("script".into(), client))
}

fn plan(servers: &[&Arc<SseServer>]) -> LoadPlan {
    let targets = servers.iter().map(|server| TargetPlan { target: target(server), pid: None });
    LoadPlan {
        title: "test".into(),
        settings: LoadSettings {
            model: None,
            endpoint: EndpointKind::Chat,
            requests: 8,
            max_tokens: 5,
            prompts: PromptSource { texts: vec!["Hello".into()], repeats: 1, unique: false },
            temperature: None,
            seed: None,
            ignore_eos: true,
            pretok: false,
            pacing: Pacing::Burst,
            timeout: Duration::from_secs(60),
            slo: Slo::default(),
            include_timings: true,
            recount: 64,
            extra: Default::default(),
        },
        cases: vec![LoadCase {
            label: String::new(),
            concurrency: None,
            stream_interval: None,
            extras: Extras::default(),
        }],
        targets: targets.collect(),
        warmup_runs: 0,
        repeat_runs: 1,
        pause: Duration::from_secs(1),
        outputs: ReportPaths { quiet: true, ..ReportPaths::default() },
    }
}

fn metric(report: &LoadReport, group: usize, key: &str) -> f64 {
    let summary = &report.groups[group].runs[0].summary;
    summary.value(key).unwrap_or_else(|| panic!("no {key} among {:?}", summary.metrics))
}

fn records(report: &LoadReport) -> &[RequestRecord] {
    &report.groups[0].runs[0].records
}

fn near(seen: f64, expected: f64) {
    // The runtime's timer rounds up to whole milliseconds.
    assert!((seen - expected).abs() < 1.5, "{seen} is not near {expected}");
}

#[tokio::test(start_paused = true)]
async fn times_and_counts_are_exact() {
    let server = SseServer::new(Script::default());
    let report = measure(&plan(&[&server])).await.unwrap();
    assert_eq!(metric(&report, 0, "successful_requests"), 8.0);
    assert_eq!(metric(&report, 0, "output_tokens"), 40.0);
    assert_eq!(metric(&report, 0, "chunks"), 40.0);
    near(metric(&report, 0, "ttft_p99_ms"), 30.0);
    near(metric(&report, 0, "tpot_p50_ms"), 10.0);
    near(metric(&report, 0, "icl_p99_ms"), 10.0);
    near(metric(&report, 0, "itl_p99_ms"), 10.0);
    near(metric(&report, 0, "e2el_max_ms"), 70.0);
    near(metric(&report, 0, "flush_to_arrival_max_ms"), 0.0);
    assert_eq!(metric(&report, 0, "late_share"), 0.0);
    assert_eq!(metric(&report, 0, "reconciled_requests"), 8.0);
    for record in records(&report) {
        assert_eq!(record.text, " tok tok tok tok tok");
        assert_eq!(
            (record.usage.unwrap().completion_tokens, record.recounted_tokens),
            (5, Some(5))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn coalescing_shows_in_icl_and_keeps_the_text() {
    let server = SseServer::new(Script::default());
    let mut plan = plan(&[&server]);
    plan.settings.max_tokens = 17;
    plan.cases = [1, 8]
        .map(|tokens| LoadCase {
            label: format!("interval {tokens}"),
            stream_interval: Some(StreamInterval::Every(NonZeroU32::new(tokens).unwrap())),
            ..plan.cases[0].clone()
        })
        .into();
    let report = measure(&plan).await.unwrap();
    assert_eq!(metric(&report, 0, "chunks"), 17.0 * 8.0);
    assert_eq!(metric(&report, 1, "chunks"), 3.0 * 8.0);
    near(metric(&report, 1, "icl_p50_ms"), 80.0);
    near(metric(&report, 1, "itl_p50_ms"), 10.0);
    near(metric(&report, 1, "emit_to_flush_max_ms"), 70.0);
    assert_eq!(report.groups[1].equal_texts(&report.groups[0]), (8, 8));
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_keeps_its_limit_and_reuses_connections() {
    let server = SseServer::new(Script::default());
    let mut plan = plan(&[&server]);
    plan.cases[0].concurrency = Some(2);
    let report = measure(&plan).await.unwrap();
    assert_eq!(metric(&report, 0, "peak_concurrency"), 2.0);
    near(metric(&report, 0, "duration_s") * 1e3, 280.0);
    // Two for the load; calls before and after run alone and reuse one of them.
    assert_eq!(server.connections.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn absolute_times_hold_whatever_the_server_does() {
    let server = SseServer::new(Script::default());
    let mut plan = plan(&[&server]);
    plan.settings.pacing = Pacing::Absolute { interval_s: 0.02 };
    plan.cases[0].concurrency = Some(1);
    let report = measure(&plan).await.unwrap();
    for (index, record) in records(&report).iter().enumerate() {
        assert_eq!(record.scheduled_us, index as u64 * 20_000);
    }
    // Each answer takes 70 ms, so request 7 waits for 7 × 50 ms; its TTFT says so.
    near(metric(&report, 0, "submit_lag_max_ms"), 350.0);
    near(metric(&report, 0, "ttft_max_ms"), 380.0);
}

#[tokio::test(start_paused = true)]
async fn broken_answers_are_failures_of_their_kind() {
    for (ending, kind) in [
        (ScriptEnd::WithoutFinish, FailureKind::Truncated),
        (ScriptEnd::Abort, FailureKind::Broken),
        (ScriptEnd::ErrorEvent, FailureKind::Server),
        (ScriptEnd::Rubbish, FailureKind::Malformed),
        (ScriptEnd::EndlessEvent, FailureKind::TooLarge),
    ] {
        let server = SseServer::new(Script { ending, ..Script::default() });
        let report = measure(&plan(&[&server])).await.unwrap();
        assert_eq!(metric(&report, 0, "successful_requests"), 0.0, "{ending:?}");
        for record in records(&report) {
            assert_eq!(record.failure().map(|failure| failure.kind), Some(kind), "{ending:?}");
        }
        assert_eq!(run(&plan(&[&server])).await.unwrap(), RunVerdict::NoneFinished);
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_for_load_carry_their_retry_after() {
    let server = SseServer::new(Script { limit: 3, ..Script::default() });
    let report = measure(&plan(&[&server])).await.unwrap();
    assert_eq!(metric(&report, 0, "successful_requests"), 3.0);
    assert_eq!(metric(&report, 0, "refused_requests"), 5.0);
    assert_eq!(metric(&report, 0, "failed_requests"), 0.0);
    let refusals = records(&report).iter().filter_map(|record| record.failure());
    for refusal in refusals {
        assert_eq!((refusal.status, refusal.retry_after_s), (Some(429), Some(7)));
        assert!(refusal.message.contains("too many"));
    }
    assert_eq!(run(&plan(&[&server])).await.unwrap(), RunVerdict::Clean);
    let full = SseServer::new(Script { limit: 0, ..Script::default() });
    assert_eq!(run(&plan(&[&full])).await.unwrap(), RunVerdict::NoneFinished);
}

#[tokio::test(start_paused = true)]
async fn an_impossible_total_is_refused() {
    let script = Script { claimed_tokens: Some(109), ..Script::default() };
    let server = SseServer::new(script);
    let report = measure(&plan(&[&server])).await.unwrap();
    assert!(report.impossible()[0].contains("109 tokens were counted, but at most 5"));
    assert_eq!(run(&plan(&[&server])).await.unwrap(), RunVerdict::Impossible);
}

#[tokio::test(start_paused = true)]
async fn requests_end_at_their_time_limit() {
    let script = Script { prefill: Duration::from_secs(100), ..Script::default() };
    let server = SseServer::new(script);
    let report = measure(&plan(&[&server])).await.unwrap();
    for record in records(&report) {
        assert_eq!(record.failure().unwrap().kind, FailureKind::Timeout);
        near(record.ended_us as f64 / 1e3, 60_000.0);
    }
}

#[tokio::test(start_paused = true)]
async fn leavers_leave_and_the_server_notices() {
    let server = SseServer::new(Script::default());
    let mut plan = plan(&[&server]);
    plan.cases[0].extras = Extras { leavers: 3, leave_after: 2, ..Extras::default() };
    let report = measure(&plan).await.unwrap();
    let left = records(&report).iter().filter(|record| record.role == RequestRole::Leaver);
    for record in left {
        assert_eq!((&record.outcome, record.chunks.len()), (&RequestOutcome::Left, 2));
    }
    assert_eq!(metric(&report, 0, "successful_requests"), 8.0);
    assert_eq!(metric(&report, 0, "leavers"), 3.0);
    assert_eq!(server.abandoned.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn slow_readers_push_back_and_still_get_everything() {
    let server = SseServer::new(Script::default());
    let mut plan = plan(&[&server]);
    plan.settings.max_tokens = 50;
    plan.cases[0].extras = Extras {
        slow_readers: 2,
        slow_reader_after: 3,
        slow_reader_max_tokens: 200,
        ..Extras::default()
    };
    let report = measure(&plan).await.unwrap();
    near(metric(&report, 0, "e2el_max_ms"), 30.0 + 49.0 * 10.0);
    let slow: Vec<&RequestRecord> =
        records(&report).iter().filter(|record| record.role == RequestRole::SlowReader).collect();
    for record in &slow {
        assert!(record.finished());
        assert_eq!(record.usage.unwrap().completion_tokens, 200);
        // Nothing was read between the third chunk and the others' end at 520 ms.
        assert!(record.chunks[3].at_us >= 520_000, "{:?}", &record.chunks[..5]);
        // The server could not finish meanwhile: its buffer was full long before.
        assert!(record.ended_us > 2_000_000);
    }
    assert_eq!(slow.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn injected_prompts_are_reported_apart() {
    let server = SseServer::new(Script::default());
    let mut plan = plan(&[&server]);
    plan.settings.max_tokens = 30;
    let inject = Inject { prompt_tokens: 400, at_s: 0.1, count: 2, every_s: 0.05, max_tokens: 3 };
    plan.cases[0].extras = Extras { inject: Some(inject), ..Extras::default() };
    let report = measure(&plan).await.unwrap();
    assert_eq!(metric(&report, 0, "injected"), 2.0);
    assert_eq!(metric(&report, 0, "output_tokens"), 240.0);
    near(metric(&report, 0, "icl_during_p50_ms"), 10.0);
    let sent: Vec<u64> = records(&report)
        .iter()
        .filter(|r| r.role == RequestRole::Injected)
        .map(|r| r.submitted_us)
        .collect();
    assert_eq!(sent, [100_000, 150_000]);
}

#[tokio::test(start_paused = true)]
async fn pretokenized_prompts_are_sent_as_ids() {
    let server = SseServer::new(Script::default());
    let mut plan = plan(&[&server]);
    plan.settings.endpoint = EndpointKind::Completions;
    plan.settings.pretok = true;
    let report = measure(&plan).await.unwrap();
    assert_eq!(metric(&report, 0, "successful_requests"), 8.0);
}

#[tokio::test(start_paused = true)]
async fn servers_alternate_and_are_compared_run_by_run() {
    let slow = SseServer::new(Script { gap: Duration::from_millis(20), ..Script::default() });
    let fast = SseServer::new(Script::default());
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan(&[&slow, &fast]);
    plan.warmup_runs = 1;
    plan.repeat_runs = 3;
    plan.outputs.json = Some(dir.path().join("r.json"));
    plan.outputs.jsonl = Some(dir.path().join("r.jsonl"));
    plan.outputs.html = Some(dir.path().join("r.html"));
    plan.pause = Duration::from_secs(1000);
    let start = tokio::time::Instant::now();
    assert_eq!(run(&plan).await.unwrap(), RunVerdict::Clean);
    assert_eq!(start.elapsed().as_secs() / 1000, 7, "pauses between eight runs");
    assert_eq!(slow.completed.load(Ordering::SeqCst), 32);
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read("r.json")).unwrap();
    let ratio = &json["groups"][1]["ratio_to_first_group"]["tpot_p50_ms"];
    near(ratio["median"].as_f64().unwrap() * 100.0, 50.0);
    assert_eq!(json["groups"][0]["runs"].as_array().unwrap().len(), 3);
    assert_eq!(read("r.jsonl").lines().count(), 2 * 3 * 8);
    let html = read("r.html");
    assert!(html.contains("<svg") && !html.contains("http://"), "the page must stand alone");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_that_the_server_closed_are_replaced() {
    let server = SseServer::new(Script { closes_idle: true, ..Script::default() });
    let mut plan = plan(&[&server]);
    plan.cases[0].concurrency = Some(1);
    plan.settings.pacing = Pacing::Absolute { interval_s: 0.5 };
    let report = measure(&plan).await.unwrap();
    assert_eq!(metric(&report, 0, "successful_requests"), 8.0);
    assert!(server.connections.load(Ordering::Relaxed) > 1);
}
