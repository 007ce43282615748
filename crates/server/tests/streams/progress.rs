//! Where an answer stands before its first token: chunks for those who asked, and nothing for
//! others.

use std::time::Duration;

use http_body_util::BodyExt;
use loquent_engine::sim::{SimOptions, SimRunner, StepPace};
use loquent_server::LoadedEngine;
use serde_json::{Value, json};

use super::harness::{Ending, Events, Server, chat, loaded};

/// An engine with one place, and a step every 5 ms.
fn narrow() -> Server {
    let step = Duration::from_millis(5);
    let options = SimOptions { pace: StepPace::Fixed { step }, ..SimOptions::default() };
    let loaded = LoadedEngine { runner: Box::new(SimRunner::new(options)), ..loaded() };
    Server::over(loaded, |config| {
        config.limits.max_batch_size = 1;
        // A long prompt takes several steps.
        config.limits.prefill_max_tokens = 64;
    })
}

/// A prompt of hundreds of tokens.
fn long_prompt(more: Value) -> Value {
    let content = format!("{} tokens=3", "word ".repeat(300));
    let mut body = chat(3, true, more);
    body["messages"][0]["content"] = content.into();
    body
}

/// Reads a few tokens, so that the server has seen steps of prompts and of answers.
async fn until_text(events: &mut Events) {
    while events.pieces(0).len() < 5 {
        assert_eq!(events.next().await, None, "the stream ended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_gets_chunks_from_the_start_to_the_first_token() {
    let server = narrow();
    let asked = json!({"return_progress": true});
    let (_, body) = server.post("/v1/chat/completions", &long_prompt(asked)).await;
    let mut events = Events::new(body);
    assert_eq!(events.finish().await, Ending::Done);
    let all = events.progress();
    let (first, last) = (all[0], all[all.len() - 1]);
    let total = first["total"].as_u64().unwrap();
    assert!(total > 300, "{first}");
    assert_eq!((&first["processed"], &first["queued"]), (&json!(0), &json!(0)));
    assert_eq!((&last["processed"], &last["eta_ms"]), (&json!(total), &json!(0)));
    assert!(last["time_ms"].as_u64() >= first["time_ms"].as_u64());
    // They stand before the role and all text, and have a choice without content.
    assert_eq!(events.chunks[0]["prompt_progress"], *first);
    assert_eq!(events.chunks[0]["choices"][0]["delta"], json!({}));
    let role =
        events.chunks.iter().position(|chunk| chunk["choices"][0]["delta"]["role"] == "assistant");
    assert_eq!(role, Some(all.len()));
    // The prefix cache's part counts as processed from the first token on.
    let (_, body) =
        server.post("/v1/chat/completions", &long_prompt(json!({"return_progress": true}))).await;
    let mut again = Events::new(body);
    again.finish().await;
    let last = again.progress().pop().unwrap().clone();
    assert!(last["cache"].as_u64() > Some(total / 2), "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_request_learns_its_place_and_then_its_turn() {
    let server = narrow();
    let mut running = server.stream(10_000, json!({})).await;
    until_text(&mut running).await;
    let mut second = server.stream(1, json!({"return_progress": true})).await;
    let mut third = server.stream(2, json!({"return_progress": true})).await;
    for (events, place) in [(&mut second, 1), (&mut third, 2)] {
        events.until_progress().await;
        let first = events.progress()[0].clone();
        assert_eq!(first["queued"], place, "{first}");
        assert!(first["eta_ms"].as_u64() > Some(0), "steps and answers were seen: {first}");
    }
    drop(running);
    assert_eq!(second.finish().await, Ending::Done);
    assert_eq!(third.finish().await, Ending::Done);
    assert_eq!(third.progress().pop().unwrap()["queued"], 0);
    assert!(server.metric("time_to_first_token_forecast_error_seconds_count") >= 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_ask_gets_the_answer_alone() {
    let server = narrow();
    let mut running = server.stream(10_000, json!({})).await;
    until_text(&mut running).await;
    assert!(running.progress().is_empty());
    let (_, body) = server.post("/v1/chat/completions", &chat(1, true, json!({}))).await;
    // One that waits behind it is told its place.
    let mut asking = server.stream(2, json!({"return_progress": true})).await;
    asking.until_progress().await;
    drop(running);
    let text = body.collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&text).unwrap();
    assert!(text.contains("[DONE]") && !text.contains("prompt_progress"), "{text}");
    let mut events = text.split_terminator("\n\n");
    assert!(events.all(|event| event.starts_with("data: ")), "a comment: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_answer_tells_it_too_and_tells_it_again() {
    let server = narrow();
    let asked = json!({"return_progress": true, "resumable": true});
    let (_, body) = server.post("/v1/chat/completions", &long_prompt(asked)).await;
    let mut events = Events::new(body);
    assert_eq!(events.finish().await, Ending::Done);
    assert!(events.progress().len() >= 2, "{:?}", events.chunks);
    assert_eq!(events.finish_reason(0), Some("stop"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_answer_and_a_wrong_value_are_as_ever() {
    let server = narrow();
    let body = chat(1, false, json!({"return_progress": true}));
    let answer = server.whole("/v1/chat/completions", &body).await;
    assert!(answer.get("prompt_progress").is_none());
    let wrong = chat(1, true, json!({"return_progress": "yes"}));
    assert_eq!(server.post("/v1/chat/completions", &wrong).await.0, 400);
}
