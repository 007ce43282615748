//! The relay, stepped without a runtime: intervals, slow clients, silence, and every kind of end.

use std::task::{Context, Poll, Waker};

use loquent_infer::admission::Bounds;
use loquent_infer::tenant::TenantId;
use serde_json::json;

use super::*;
use loquent_serving::admission::{AdmissionGate, PendingPrompts};
use loquent_serving::api::request::Endpoint;
use loquent_serving::body::{BodyLimits, RequestBodies};
use loquent_serving::clock::Clock;
use loquent_serving::completion::reader::SplitConfig;
use loquent_serving::flush_channel::{FlushReceiver, flush_channel};
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::identity::Identity;

const BUFFER_BYTES: usize = 1_000;
const SILENCE: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(10);

/// A relay, and its client.
struct Bench {
    relay: Relay,
    flushes: Option<FlushReceiver>,
    begun: oneshot::Receiver<Result<ChunkEnvelope, ApiError>>,
}

impl Bench {
    /// A bench of an answer that other servers could continue.
    fn continuable(completion: CompletionConfig) -> Self {
        let mut bench = Self::new(1, completion);
        let limits = BodyLimits { max_bytes: 1 << 20, total_bytes: 16 << 20 };
        let held = HeldAnswer::new(RequestBodies::new(limits), TenantId(1));
        bench.relay.config.arrived = Some(ArrivedAnswer::new(Endpoint::Chat, held));
        bench
    }

    fn new(completions: usize, completion: CompletionConfig) -> Self {
        let metrics = Arc::new(Metrics::new());
        let limits = Bounds {
            max_inflight_requests: 9,
            max_inflight_per_tenant: None,
            max_queued_tokens: 100,
        };
        let clock = Clock::start();
        let gate = AdmissionGate::new(limits, clock, PendingPrompts::default());
        let permits = gate.enter(&Identity::in_process(), completions, 1).unwrap();
        let counted = |permit| (permit, metrics.upstream_completion(clock));
        let permits = permits.into_iter().map(counted).collect();
        let config = RelayConfig {
            completion,
            bounds: StreamBounds { buffer_bytes: BUFFER_BYTES, stall_limit: STALL },
            exempt_from_stall_limit: false,
            silence_limit: SILENCE,
            metrics,
            arrived: None,
        };
        let (sender, flushes) = flush_channel();
        let (begin, begun) = oneshot::channel();
        let mut relay = Relay::new(config, sender, begin, permits);
        relay.begin(Duration::ZERO);
        Self { relay, flushes: Some(flushes), begun }
    }

    fn handle(&mut self, at_ms: u64, event: RelayEvent) -> ControlFlow<RelayEnd> {
        self.relay.handle(ms(at_ms), event)
    }

    /// Delivers one chunk with a choice.
    fn choice(&mut self, at_ms: u64, index: u32, delta: Value, end: Option<&str>) -> Step {
        let choice = json!({"index": index, "delta": delta, "finish_reason": end});
        let chunk = json!({"id": "x", "object": "chat.completion.chunk", "created": 1,
            "model": "m", "choices": [choice]});
        self.handle(at_ms, RelayEvent::Bytes(format!("data: {chunk}\n\n").into()))
    }

    /// Delivers text of the first choice, which must not end the answer.
    fn text(&mut self, at_ms: u64, text: &str) {
        assert!(self.choice(at_ms, 0, json!({"content": text}), None).is_continue());
    }

    /// Returns the flushes that the client reads now.
    fn read(&mut self) -> Vec<Flush> {
        let context = &mut Context::from_waker(Waker::noop());
        let receiver = self.flushes.as_mut().expect("the client is there");
        let next = || match receiver.poll_recv(context) {
            Poll::Ready(flush) => flush,
            Poll::Pending => None,
        };
        std::iter::from_fn(next).collect()
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn text_of(flushes: &[Flush]) -> String {
    flushes.iter().flat_map(|flush| &flush.deltas).filter_map(text).collect()
}

fn text(delta: &Delta) -> Option<&str> {
    match delta {
        Delta::Text { text, .. } => Some(text),
        _ => None,
    }
}

fn done() -> RelayEvent {
    RelayEvent::Bytes("data: [DONE]\n\n".into())
}

fn config(interval: &str, max_delay: Option<Duration>) -> CompletionConfig {
    CompletionConfig { interval: interval.parse().unwrap(), max_delay, ..Default::default() }
}

#[test]
fn an_answer_is_complete_once_each_completion_has_its_finish() {
    let mut bench = Bench::new(2, CompletionConfig::default());
    bench.text(1, "one");
    assert!(bench.choice(2, 1, json!({"content": "two"}), Some("length")).is_continue());
    assert!(bench.choice(3, 0, json!({}), Some("stop")).is_continue());
    assert!(matches!(bench.handle(4, done()), Break(RelayEnd::Complete)));
    let envelope = bench.begun.try_recv().unwrap().unwrap();
    assert_eq!(envelope.id.as_deref(), Some("x"));
    let flushes = bench.read();
    let ends = flushes.iter().filter_map(|flush| Some((flush.choice, flush.end.as_ref()?)));
    let ends: Vec<_> = ends.map(|(choice, end)| (choice, end.reason.name().unwrap())).collect();
    assert_eq!((text_of(&flushes), ends), ("onetwo".into(), vec![(1, "length"), (0, "stop")]));
    assert!(bench.relay.permits.is_empty(), "they went back with the ends");
}

#[test]
fn an_end_without_the_finish_is_an_error() {
    for end in [done(), RelayEvent::End, RelayEvent::Broken("reset".into())] {
        let mut bench = Bench::new(1, CompletionConfig::default());
        bench.text(1, "half");
        assert!(matches!(bench.handle(2, end), Break(RelayEnd::Broken)));
        let flushes = bench.read();
        assert_eq!(text_of(&flushes), "half");
        assert!(flushes.last().and_then(Flush::error).is_some());
    }
}

#[test]
fn an_answer_with_its_finish_is_complete_however_the_server_ends() {
    let ends: [fn() -> RelayEvent; 4] = [
        || RelayEvent::End,
        || RelayEvent::Broken("reset".into()),
        || RelayEvent::Silence,
        || RelayEvent::Bytes("data: {\"error\":{\"code\":500}}\n\n".into()),
    ];
    for end in ends {
        for mut bench in [
            Bench::continuable(CompletionConfig::default()),
            Bench::new(1, CompletionConfig::default()),
        ] {
            assert!(bench.choice(1, 0, json!({"content": "all"}), Some("stop")).is_continue());
            let end = bench.handle(2, end());
            assert!(matches!(end, Break(RelayEnd::Complete)), "{end:?}");
            assert!(bench.read().iter().all(|flush| flush.error().is_none()));
        }
    }
}

#[test]
fn before_its_first_token_the_request_may_go_to_another_server() {
    let mut bench = Bench::new(1, CompletionConfig::default());
    assert!(bench.choice(1, 0, json!({"role": "assistant", "content": ""}), None).is_continue());
    let end = bench.handle(2, RelayEvent::Broken("reset".into()));
    assert!(matches!(end, Break(RelayEnd::Unanswered(_))), "{end:?}");
    assert!(bench.read().is_empty() && !bench.relay.is_answered());
    // Half an event of the first server is none of the second's.
    assert!(bench.handle(3, RelayEvent::Bytes("data: {\"cho".into())).is_continue());
    bench.relay.begin(ms(4));
    bench.text(5, "whole");
    assert_eq!(text_of(&bench.read()), "whole");
}

#[test]
fn an_interval_merges_tokens_and_a_deadline_ends_the_wait() {
    let mut bench = Bench::new(1, config("3", Some(ms(50))));
    for (at, text) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        bench.text(10 * at as u64, text);
    }
    let tokens: Vec<u32> = bench.read().iter().map(|flush| flush.tokens).collect();
    assert_eq!(tokens, [1, 3], "the first at once");
    assert_eq!(bench.relay.deadline(), Some(ms(90)));
    assert!(bench.handle(89, RelayEvent::Deadline).is_continue());
    assert!(bench.read().is_empty());
    assert!(bench.handle(90, RelayEvent::Deadline).is_continue());
    assert_eq!((text_of(&bench.read()), bench.relay.deadline()), ("e".to_owned(), None));
}

#[test]
fn a_slow_client_pauses_the_upstream_and_loses_nothing() {
    let mut bench = Bench::new(1, CompletionConfig::default());
    let mut sent = 0;
    while bench.relay.takes_bytes() {
        bench.text(sent, "0123456789");
        sent += 1;
        assert!(sent < 1_000, "never paused");
    }
    let before = bench.read();
    assert!(bench.relay.is_behind() && before.len() < sent as usize);
    // The silence while nothing is read is the client's.
    let late = sent + SILENCE.as_millis() as u64;
    assert!(bench.handle(late, RelayEvent::Silence).is_continue());
    assert!(bench.handle(late + 1, RelayEvent::Tick).is_continue());
    assert!(bench.relay.takes_bytes());
    let merged = bench.read();
    assert_eq!(merged.len(), 1, "what was held leaves at once");
    assert_eq!(text_of(&before).len() + text_of(&merged).len(), 10 * sent as usize);
    assert_eq!(bench.relay.silent_at(), ms(late + 1) + SILENCE);
}

#[test]
fn a_client_that_stays_away_loses_its_answer() {
    let mut bench = Bench::new(1, CompletionConfig::default());
    while bench.relay.takes_bytes() {
        bench.text(0, "0123456789");
    }
    let stall = STALL.as_millis() as u64;
    assert!(bench.handle(stall - 1, RelayEvent::Tick).is_continue());
    let end = bench.handle(stall, RelayEvent::Tick);
    assert!(matches!(end, Break(RelayEnd::Failed)), "not the server's fault: {end:?}");
    let error = bench.read().last().and_then(Flush::error).unwrap();
    assert_eq!(error.to_string(), READER_STALLED);
}

#[test]
fn silence_counts_from_the_last_bytes() {
    let mut bench = Bench::new(1, CompletionConfig::default());
    assert_eq!(bench.relay.silent_at(), SILENCE);
    bench.text(5, "a");
    assert_eq!(bench.relay.silent_at(), ms(5) + SILENCE);
    let end = bench.handle(30_005, RelayEvent::Silence);
    assert!(matches!(end, Break(RelayEnd::Broken)), "{end:?}");
    let mut mute = Bench::new(1, CompletionConfig::default());
    let end = mute.handle(30_000, RelayEvent::Silence);
    assert!(matches!(end, Break(RelayEnd::Unanswered(_))), "{end:?}");
}

#[test]
fn a_choice_that_nobody_asked_for_breaks_the_answer() {
    let mut bench = Bench::new(1, CompletionConfig::default());
    bench.text(0, "a");
    let end = bench.choice(1, 7, json!({"content": "b"}), None);
    assert!(matches!(end, Break(RelayEnd::Broken)), "{end:?}");
}

#[test]
fn reasoning_is_split_off_and_keeps_its_count() {
    let config = CompletionConfig { split: SplitConfig::reasoning(), ..Default::default() };
    let mut bench = Bench::new(1, config);
    for (at, text) in ["<thi", "nk>why", "</think>", "so", "<think>"].into_iter().enumerate() {
        bench.text(at as u64, text);
    }
    assert!(bench.choice(9, 0, json!({}), Some("stop")).is_continue());
    let deltas: Vec<_> = bench.read().into_iter().flat_map(|flush| flush.deltas).collect();
    let tokens: u32 = deltas.iter().map(Delta::tokens).sum();
    let reasoning: String = deltas.iter().filter_map(reasoning).collect();
    let text: String = deltas.iter().filter_map(text).collect();
    assert_eq!((tokens, reasoning.as_str(), text.as_str()), (5, "why", "so<think>"));
}

fn reasoning(delta: &Delta) -> Option<&str> {
    match delta {
        Delta::Reasoning { text, .. } => Some(text),
        _ => None,
    }
}

#[test]
fn a_servers_pace_is_its_time_per_token() {
    let mut bench = Bench::new(1, CompletionConfig::default());
    (0..8).for_each(|at| bench.text(20 * at, "a"));
    assert_eq!(bench.relay.pace(), None, "too few to say");
    bench.text(160, "a");
    assert_eq!((bench.relay.pace(), bench.relay.all_tokens()), (Some(ms(20)), 9));
}

#[test]
fn a_client_that_leaves_ends_the_relay() {
    let mut bench = Bench::new(1, CompletionConfig::default());
    bench.flushes = None;
    let end = bench.choice(1, 0, json!({"content": "a"}), None);
    assert!(matches!(end, Break(RelayEnd::Left)), "{end:?}");
}

fn members(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Returns the chunk with the counts at the end of an answer.
fn usage(prompt: u64, completion: u64) -> RelayEvent {
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion});
    let chunk = json!({"id": "y", "choices": [], "usage": usage});
    RelayEvent::Bytes(format!("data: {chunk}\n\n").into())
}

#[test]
fn another_server_goes_on_where_one_has_broken_off() {
    let cut = RelayEvent::Bytes("data: {\"choices\": 7}\n\n".into());
    let broken = RelayEvent::Broken("reset".into());
    let said = |error: Value| RelayEvent::Bytes(format!("data: {error}\n\n").into());
    let died = said(json!({"error": {"message": "EngineDeadError", "code": 500}}));
    // As a Loquent behind this one says it.
    let stops = said(ApiError::internal(SHUTDOWN).json());
    let is_away = said(ApiError::engine_away("it has crashed").json());
    for end in [done(), RelayEvent::End, broken, cut, died, stops, is_away] {
        let mut bench = Bench::continuable(config("8", None));
        let body = members(json!({"messages": [], "max_tokens": 9}));
        (0..3).for_each(|at| bench.text(at, "a"));
        assert!(matches!(bench.handle(3, end), Break(RelayEnd::Interrupted(_))));
        let Ok(Rest::Request(rest)) = bench.relay.rest(&body) else { panic!("it can go on") };
        assert_eq!(
            (&rest["messages"][0]["content"], &rest["max_tokens"]),
            (&json!("aaa"), &json!(6))
        );
        bench.relay.begin(ms(4));
        assert!(bench.relay.go_on(ms(4), &body, None).is_continue());
        bench.text(5, "b");
        assert!(bench.choice(6, 0, json!({}), Some("stop")).is_continue());
        assert!(bench.handle(7, usage(13, 1)).is_continue());
        assert!(matches!(bench.handle(8, done()), Break(RelayEnd::Complete)));
        let deltas: Vec<_> = bench.read().into_iter().flat_map(|flush| flush.deltas).collect();
        assert_eq!(deltas.iter().filter_map(text).collect::<String>(), "aaab");
        let mark = r#"{"continued":{"after_tokens":3}}"#;
        let is_mark = |delta: &Delta| matches!(delta, Delta::Other { json, .. } if json == mark);
        let before = deltas.iter().take_while(|delta| !is_mark(delta)).filter_map(text);
        assert_eq!(before.collect::<String>(), "aaa", "what was held comes before the mark");
        let counts = Delta::Usage { prompt: 10, completion: 4, cached: 0, reasoning: 0 };
        assert!(deltas.contains(&counts), "{deltas:?}");
    }
}

#[test]
fn reasoning_that_was_shown_is_not_begun_again() {
    for name in ["reasoning_content", "reasoning"] {
        let mut bench = Bench::continuable(CompletionConfig::default());
        assert!(bench.choice(1, 0, json!({name: "hm"}), None).is_continue());
        let end = bench.handle(2, RelayEvent::End);
        assert!(matches!(end, Break(RelayEnd::Interrupted(_))), "{name}: {end:?}");
        let body = members(json!({"messages": []}));
        assert_eq!(bench.relay.rest(&body), Err(Obstacle::Reasoning), "{name}");
        let deltas: Vec<_> = bench.read().into_iter().flat_map(|flush| flush.deltas).collect();
        assert_eq!(deltas.iter().filter_map(reasoning).collect::<String>(), "hm");
    }
}

#[test]
fn a_request_for_the_rest_that_breaks_off_at_once_goes_on_too() {
    let mut bench = Bench::continuable(CompletionConfig::default());
    let body = members(json!({"messages": []}));
    bench.text(1, "a");
    for _ in 0..2 {
        let end = bench.handle(2, RelayEvent::Broken("reset".into()));
        assert!(matches!(end, Break(RelayEnd::Interrupted(_))), "{end:?}");
        bench.relay.begin(ms(3));
        assert!(bench.relay.go_on(ms(3), &body, Some("other")).is_continue());
    }
    let flushes = bench.read();
    let marks = flushes.iter().flat_map(|flush| &flush.deltas).filter(
        |delta| matches!(delta, Delta::Other { json, .. } if json.contains(r#""model":"other""#)),
    );
    assert_eq!(marks.count(), 2);
}

#[test]
fn a_clients_error_within_an_answer_is_passed_on() {
    let mut bench = Bench::continuable(CompletionConfig::default());
    bench.text(1, "a");
    let error = json!({"error": {"message": "too long", "code": 400}});
    let end = bench.handle(2, RelayEvent::Bytes(format!("data: {error}\n\n").into()));
    assert!(matches!(end, Break(RelayEnd::Failed)), "{end:?}");
}

#[test]
fn a_stop_string_across_the_seam_ends_the_answer() {
    let mut bench = Bench::continuable(CompletionConfig::default());
    let body = members(json!({"messages": [], "stop": "END"}));
    bench.text(1, "so E");
    assert!(bench.handle(2, RelayEvent::End).is_break());
    bench.relay.begin(ms(3));
    assert!(bench.relay.go_on(ms(3), &body, None).is_continue());
    bench.text(4, "N");
    let end = bench.choice(5, 0, json!({"content": "D and more"}), None);
    assert!(matches!(end, Break(RelayEnd::Complete)), "the server would go on: {end:?}");
    let flushes = bench.read();
    assert_eq!(text_of(&flushes), "so E");
    let end = flushes.iter().find_map(|flush| flush.end.as_ref()).expect("it has ended");
    assert_eq!(end.reason.name().unwrap(), "stop");
}

#[test]
fn an_answer_with_all_its_tokens_ends_at_its_limit() {
    let mut bench = Bench::continuable(CompletionConfig::default());
    bench.text(1, "a");
    assert!(bench.handle(2, RelayEvent::End).is_break());
    let body = members(json!({"messages": [], "max_tokens": 1}));
    assert_eq!(bench.relay.rest(&body), Ok(Rest::Nothing));
    assert!(matches!(bench.relay.end_at_limit(ms(3)), Break(RelayEnd::Complete)));
    let flushes = bench.read();
    let end = flushes.iter().find_map(|flush| flush.end.as_ref()).expect("it has ended");
    assert_eq!(end.reason.name().unwrap(), "length");
}
