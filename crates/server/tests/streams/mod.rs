//! Plain streams on the simulated engine: slow readers, stop strings, several completions,
//! stream intervals, the drain, and an engine that fails or is lost.

mod app_streams;
mod drain;
mod embeddings;
mod engine_failure;
mod extension;
mod formats;
pub mod harness;
mod keys;
mod llama_server;
mod logprobs;
mod lost_engine;
mod messages;
mod ollama;
mod progress;
mod prompts;

use std::time::{Duration, Instant};

use engine_failure::FaultyRunner;
use harness::{Ending, Events, Server};
use loquent_server::{HttpConfig, LoadedEngine};
use serde_json::{Value, json};

/// More tokens than the buffers of these tests hold.
const LONG: usize = 4000;

/// A server that pauses a completion once 8 kB of it are unread.
fn small_buffers(stall_limit: Duration) -> Server {
    Server::start(|config| {
        config.streams.buffer_bytes = 8 * 1024;
        config.streams.stall_limit = stall_limit;
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_is_paused_and_resumed_and_gets_all() {
    let server = small_buffers(harness::FOREVER);
    let mut slow = server.stream(LONG, json!({})).await;
    server.until("stream_pauses_total", |pauses| pauses == 1.0).await;
    let generated = server.metric("generation_tokens_total");
    assert!(generated < LONG as f64, "paused before the end: {generated} tokens");
    // Others are not held up meanwhile, and the paused completion computes nothing.
    let expected = server.text(LONG).await;
    let for_others = server.metric("generation_tokens_total") - generated;
    assert!(for_others <= LONG as f64 + 1.0, "{for_others} tokens while it was paused");
    assert_eq!(slow.finish().await, Ending::Done);
    assert_eq!(slow.text(0), expected);
    assert_eq!(slow.finish_reason(0), Some("stop"));
    server.until("num_requests_running", |running| running == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_slow_reader_left_unread_is_merged() {
    let server = small_buffers(harness::FOREVER);
    let mut slow = server.stream(LONG, json!({"stream_interval": 1})).await;
    server.until("stream_pauses_total", |pauses| pauses == 1.0).await;
    slow.finish().await;
    let longest = slow.pieces(0).iter().map(|piece| piece.len()).max().unwrap();
    assert!(longest > 1024, "the longest piece has {longest} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_reading_is_ended_with_an_error() {
    let server = small_buffers(Duration::from_millis(1));
    let mut stalled = server.stream(LONG, json!({})).await;
    server.until("stream_pauses_total", |pauses| pauses == 1.0).await;
    server.until("num_requests_running", |running| running == 0.0).await;
    let generated = server.metric("generation_tokens_total");
    assert!(generated < LONG as f64, "given up before the end: {generated} tokens");
    // What was generated before comes first, then the error.
    let Ending::Error(message) = stalled.finish().await else { panic!("a complete answer") };
    assert!(message.contains("stopped reading"), "{message}");
    let expected = small_buffers(harness::FOREVER).text(LONG).await;
    let text = stalled.text(0);
    assert!(!text.is_empty() && expected.starts_with(&text));
    assert_eq!(stalled.finish_reason(0), None);
    assert_eq!(server.service.in_flight(), 0, "its permit is returned");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_leaves_while_paused_frees_everything() {
    let server = small_buffers(harness::FOREVER);
    let slow = server.stream(LONG, json!({})).await;
    server.until("stream_pauses_total", |pauses| pauses == 1.0).await;
    drop(slow);
    server.until("num_requests_running", |running| running == 0.0).await;
    server.until_idle().await;
}

/// Reads what is left of a stream's text, then `count` heartbeats without any; gives how long these
/// took.
async fn heartbeats(stream: &mut Events, count: u32) -> Duration {
    let (mut began, mut seen) = (Instant::now(), 0);
    while seen < count {
        let event = stream.event().await.expect("the stream is open");
        assert!(!event.starts_with(':'), "SDKs fail at comments: {event}");
        if event.contains("\"delta\":{}") {
            assert!(event.starts_with("data: "), "no id belongs to it: {event}");
            seen += 1;
        } else {
            (began, seen) = (Instant::now(), 0);
        }
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_stream_gets_an_empty_chunk_at_each_heartbeat() {
    const HEARTBEAT: Duration = Duration::from_millis(50);
    let (runner, hold) = FaultyRunner::hanging();
    let http = HttpConfig { heartbeat: HEARTBEAT, ..harness::http_config() };
    let server = Server::over_with(LoadedEngine { runner, ..harness::loaded() }, http);
    // The first falls silent in the midst of its text, the others before it.
    for more in [json!({}), json!({}), json!({"resumable": true})] {
        let mut stream = server.stream(300, more).await;
        // The usual heartbeat would take longer for five.
        let limit = Duration::from_secs(20);
        let beats = tokio::time::timeout(limit, heartbeats(&mut stream, 5));
        let took = beats.await.expect("heartbeats");
        // The first may have been due before anybody read.
        assert!(took >= 4 * HEARTBEAT, "five heartbeats within {took:?}");
    }
    server.until("generation_tokens_total", |tokens| tokens > 0.0).await;
    drop(hold);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_ends_the_text_before_it_wherever_tokens_divide_it() {
    let server = Server::start(|_| {});
    let mut plain = server.stream(40, json!({})).await;
    plain.finish().await;
    let (text, pieces) = (plain.text(0), plain.pieces(0));
    let mut ends = vec![0];
    ends.extend(pieces.iter().scan(0, |sum, piece| {
        *sum += piece.len();
        Some(*sum)
    }));
    // From the middle of each piece to the middle of one of the next three.
    for (from, to) in (0..30).flat_map(|from| (from..from + 3).map(move |to| (from, to))) {
        let middle = |piece: usize| {
            let half = (ends[piece] + ends[piece + 1]) / 2;
            (half..).find(|&at| text.is_char_boundary(at)).unwrap()
        };
        let (begin, end) = (middle(from), middle(to + 1));
        let stop = &text[begin..end];
        let mut stopped = server.stream(40, json!({"stop": [stop, "never said"]})).await;
        assert_eq!(stopped.finish().await, Ending::Done, "{stop:?}");
        let expected = &text[..text.find(stop).unwrap()];
        assert_eq!(stopped.text(0), expected, "{stop:?}");
        assert_eq!(stopped.finish_reason(0), Some("stop"), "{stop:?}");
    }
    server.until("num_requests_running", |running| running == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_beginning_of_a_stop_string_is_text_if_the_rest_does_not_come() {
    let server = Server::start(|_| {});
    let text = server.text(40).await;
    let tail = text.char_indices().rev().nth(4).unwrap().0;
    let stop = format!("{}, which never comes", &text[tail..]);
    let mut stream = server.stream(40, json!({"stop": stop})).await;
    assert_eq!(stream.finish().await, Ending::Done);
    assert_eq!(stream.text(0), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_completions_share_a_stream_and_end_one_by_one() {
    let server = Server::start(|_| {});
    let text = server.text(50).await;
    let options = json!({"n": 3, "stream_options": {"include_usage": true}});
    let mut stream = server.stream(50, options).await;
    assert_eq!(stream.finish().await, Ending::Done);
    for choice in 0..3 {
        assert_eq!(stream.text(choice), text);
        assert_eq!(stream.finish_reason(choice), Some("stop"));
    }
    let usage = &stream.chunks.last().unwrap()["usage"];
    let alone = server.whole("/v1/chat/completions", &harness::chat(50, false, json!({}))).await;
    let (prompt, completion) =
        (&alone["usage"]["prompt_tokens"], alone["usage"]["completion_tokens"].as_u64().unwrap());
    assert_eq!(&usage["prompt_tokens"], prompt, "the prompt counts once");
    assert_eq!(usage["completion_tokens"], 3 * completion);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_of_several_prompts_are_numbered_by_prompt() {
    let server = Server::start(|_| {});
    let text = |answer: &Value, index: usize| answer["choices"][index]["text"].clone();
    let body = |prompt: Value, n: u32| json!({"prompt": prompt, "n": n, "max_tokens": 100});
    let mut alone = Vec::new();
    for prompt in ["tokens=5", "tokens=9"] {
        alone.push(text(&server.whole("/v1/completions", &body(json!(prompt), 1)).await, 0));
    }
    let both = body(json!(["tokens=5", "tokens=9"]), 2);
    let both = server.whole("/v1/completions", &both).await;
    for index in 0..4 {
        assert_eq!(both["choices"][index]["index"], index);
        assert_eq!(text(&both, index), alone[index / 2]);
    }
    assert_ne!(alone[0], alone[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_admits_any_number_of_prompts_and_answers() {
    let server = Server::start(|config| config.bounds.max_queued_tokens = 1);
    for (prompt, n) in [(json!("tokens=5"), 4), (json!(["tokens=5", "tokens=9", "tokens=5"]), 1)] {
        let body = json!({"prompt": prompt, "n": n, "max_tokens": 100});
        let answer = server.whole("/v1/completions", &body).await;
        let expected = n * prompt.as_array().map_or(1, Vec::len);
        assert_eq!(answer["choices"].as_array().unwrap().len(), expected);
        server.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_of_one_completion_leaves_the_others_alone() {
    let server = Server::start(|_| {});
    let text = server.text(60).await;
    let stop = text.split_whitespace().nth(20).unwrap();
    let mut stream = server.stream(60, json!({"n": 2, "stop": stop})).await;
    assert_eq!(stream.finish().await, Ending::Done);
    for choice in 0..2 {
        assert_eq!(stream.text(choice), text[..text.find(stop).unwrap()]);
    }
    assert_eq!(server.text(60).await, text, "and so for the requests that come later");
}

/// Streams 64 tokens with `interval` to a reader that takes everything, and gives the tokens of
/// each flush as the metrics count them.
async fn flushes(interval: Value) -> (Events, f64, f64) {
    let server = Server::start(|_| {});
    let mut stream = server.stream(64, json!({"stream_interval": interval})).await;
    assert_eq!(stream.finish().await, Ending::Done);
    // The last flush is counted when it has been handed on; its end token counts too.
    server.until("stream_flush_tokens_sum", |tokens| tokens >= 65.0).await;
    let (flushes, tokens) =
        (server.metric("stream_flushes_total"), server.metric("stream_flush_tokens_sum"));
    (stream, flushes, tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interval_of_one_flushes_every_token_that_has_text() {
    let (stream, flushes, tokens) = flushes(json!(1)).await;
    // The chunk of the end and that of the role carry no text.
    assert!(stream.pieces(0).len() as f64 <= flushes);
    assert!(flushes > 32.0, "{flushes} flushes: only half characters wait for the next token");
    assert!(tokens >= 64.0, "{tokens} tokens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interval_of_eight_flushes_the_first_token_and_then_every_eighth() {
    let (one, _, tokens) = flushes(json!(1)).await;
    let (eight, flushes, merged) = flushes(json!(8)).await;
    assert_eq!(eight.text(0), one.text(0));
    assert_eq!(merged, tokens);
    // A flush may come a token late or two, where half a character has to be completed.
    assert!((7.0..=10.0).contains(&flushes), "{flushes} flushes");
    assert!(eight.pieces(0)[0].len() < 16, "the first token does not wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_merges_what_a_reader_has_not_taken() {
    let server = Server::start(|_| {});
    let text = server.text(LONG).await;
    let before = (server.metric("stream_flushes_total"), server.metric("generation_tokens_total"));
    let mut stream = server.stream(LONG, json!({"stream_interval": "auto"})).await;
    let all = before.1 + LONG as f64;
    server.until("generation_tokens_total", |tokens| tokens >= all).await;
    assert_eq!(stream.finish().await, Ending::Done);
    assert_eq!(stream.text(0), text);
    let flushes = server.metric("stream_flushes_total") - before.0;
    // The first token, and the rest: in one, or in some dozens where the machine is busy.
    assert!(flushes <= LONG as f64 / 10.0, "{flushes} flushes of {LONG} tokens");
}
