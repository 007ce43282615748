//! The engine is lost and comes back: readers see a pause and why, and every answer is the one that
//! an undisturbed engine gives. If it does not come back, answers fail in bounded time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use loquent_engine::sim::{SimOptions, SimRunner};
use loquent_infer::runner::{Batch, Capacity, Recovery, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::Sampler;
use loquent_server::LoadedEngine;
use serde_json::{Value, json};

use super::harness::{self, Ending, Server, chat};

/// A simulated engine that is lost at some of its steps.
struct MortalRunner {
    /// `None` while it is gone.
    inner: Option<SimRunner>,
    capacity: Capacity,
    /// How many steps there are from one loss to the next.
    lives: Vec<u64>,
    left: u64,
    /// Whether it may come back.
    gate: Arc<AtomicBool>,
    /// Number of questions to which it is not yet back, at each loss.
    most_asked: u32,
    asked: u32,
}

impl MortalRunner {
    fn new(mut lives: Vec<u64>, gate: &Arc<AtomicBool>) -> Box<Self> {
        let inner = SimRunner::new(SimOptions::default());
        let (capacity, left) = (inner.capacity(), lives.pop().unwrap_or(u64::MAX));
        let (inner, gate) = (Some(inner), gate.clone());
        Box::new(Self { inner, capacity, lives, left, gate, most_asked: 0, asked: 0 })
    }

    fn alive(&mut self) -> &mut SimRunner {
        self.inner.as_mut().expect("nothing is asked of an engine that is gone")
    }
}

impl Runner for MortalRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        self.alive().assign(slot, sampler);
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        if self.left == 0 {
            (self.inner, self.left) = (None, self.lives.pop().unwrap_or(u64::MAX));
            return Err(RunError::Lost("killed for the test".into()));
        }
        self.left -= 1;
        self.alive().run(batch, sampled)
    }

    fn score_rows(&self) -> Option<u32> {
        self.inner.as_ref().and_then(SimRunner::score_rows)
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.alive().fork(from, to, len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        // The scheduler puts its books in order also while the engine is gone.
        if let Some(inner) = &mut self.inner {
            inner.truncate(slot, len);
        }
    }

    fn poll_recovery(&mut self) -> Recovery {
        if self.inner.is_none() && self.asked < self.most_asked {
            self.asked += 1;
            return Recovery::Pending("killed for the test".into());
        }
        if self.inner.is_none() && self.gate.load(Ordering::Relaxed) {
            self.asked = 0;
            self.inner = Some(SimRunner::new(SimOptions::default()));
        }
        match self.inner {
            Some(_) => Recovery::Ready,
            None => Recovery::Pending("killed for the test".into()),
        }
    }
}

fn server(lives: Vec<u64>, gate: &Arc<AtomicBool>, limit: Duration) -> Server {
    let loaded = LoadedEngine { runner: MortalRunner::new(lives, gate), ..harness::loaded() };
    Server::over(loaded, |config| config.engine_outage = limit)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_comes_back_and_computes_nothing_was_not_back() {
    // Lost again with its first batch, for longer than the test takes.
    let lives = std::iter::repeat_n(0, 10_000).chain([50]).collect();
    let runner = MortalRunner::new(lives, &Arc::new(AtomicBool::new(true)));
    // A loss takes 150 ms, so the limit passes within the third. A fourth would be blamed on the
    // answer itself.
    let loaded = LoadedEngine {
        runner: Box::new(MortalRunner { most_asked: 3, ..*runner }),
        ..harness::loaded()
    };
    let limit = Duration::from_millis(400);
    let server = Server::over(loaded, |config| config.engine_outage = limit);
    let mut running = server.stream(1000, json!({})).await;
    let Ending::Error(message) = running.finish().await else { panic!("a complete answer") };
    assert!(message.contains("is not back in time"), "{message}");
    assert!(server.metric("engine_losses_total") > 1.0, "it came back");
}

/// Numbers that look random, the same for each seed.
fn lives(seed: u64) -> Vec<u64> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        // As many steps as put-back answers need for their next tokens, and some.
        Some(8 + (*state >> 33) % 40)
    };
    let mut state = seed.wrapping_add(1);
    std::iter::from_fn(|| next(&mut state)).take(40).collect()
}

/// Several choices, stop strings, log-probabilities, penalties, seeds; text and chat.
fn requests() -> Vec<(&'static str, Value)> {
    let completions = "/v1/completions";
    let chats = "/v1/chat/completions";
    vec![
        (chats, chat(150, false, json!({}))),
        (chats, chat(90, false, json!({"n": 3, "temperature": 1.0, "seed": 4}))),
        (chats, chat(120, false, json!({"logprobs": true, "top_logprobs": 3}))),
        (chats, chat(200, false, json!({"stop": ["and", "the "]}))),
        (chats, chat(130, false, json!({"frequency_penalty": 0.5, "repetition_penalty": 1.2}))),
        (completions, json!({"prompt": ["tokens=70 a", "tokens=80 b"], "n": 2, "seed": 9})),
        (completions, json!({"prompt": "tokens=60 echo", "echo": true, "logprobs": 2})),
        (completions, json!({"prompt": "tokens=500 cut", "max_tokens": 77})),
    ]
}

/// The answers to all requests at once.
async fn answers(server: &Arc<Server>) -> Vec<Value> {
    let ask = |(path, body): (&'static str, Value)| {
        let server = server.clone();
        tokio::spawn(async move {
            let answer = server.whole(path, &body).await;
            json!([answer["choices"], answer["usage"]["completion_tokens"]])
        })
    };
    let asked: Vec<_> = requests().into_iter().map(ask).collect();
    let mut answers = Vec::new();
    for answer in asked {
        answers.push(answer.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_that_of_an_undisturbed_engine() {
    let open = Arc::new(AtomicBool::new(true));
    let undisturbed = Arc::new(server(Vec::new(), &open, harness::FOREVER));
    let expected = answers(&undisturbed).await;
    for seed in 0..12 {
        let server = Arc::new(server(lives(seed), &open, harness::FOREVER));
        assert_eq!(answers(&server).await, expected, "seed {seed}");
        let losses = server.metric("engine_losses_total");
        assert!(losses >= 2.0, "seed {seed}: only {losses} losses");
        // The last loss may have come with the last answers' ends, and nobody waits for what follows.
        let is_back = |recoveries| recoveries == server.metric("engine_losses_total");
        server.until("engine_recoveries_total", is_back).await;
    }
}

/// The body of a GET.
async fn body(server: &Server, path: &str) -> String {
    let response = server.call(Request::get(path).body(Body::empty()).unwrap()).await;
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_a_pause_and_why_and_the_rest_exactly_once() {
    let gate = Arc::new(AtomicBool::new(false));
    let expected = Server::start(|_| {}).text(200).await;
    let server = server(vec![50], &gate, harness::FOREVER);
    let asked = chat(200, true, json!({"return_progress": true}));
    let (_, mut stream) = server.post("/v1/chat/completions", &asked).await;
    let mut text = String::new();
    while !text.contains(": paused, the engine was lost") {
        let frame = stream.frame().await.expect("no end").unwrap();
        text += std::str::from_utf8(&frame.into_data().unwrap()).unwrap();
    }
    assert!(!text.contains("[DONE]"), "in the middle of the answer");
    let health = body(&server, "/health").await;
    assert!(health.contains("killed for the test"), "{health}");
    assert_eq!(server.get("/health").await, StatusCode::OK, "the process is of use");
    assert_eq!(server.get("/ready").await, StatusCode::SERVICE_UNAVAILABLE);
    // A request that comes meanwhile waits with the others.
    let (late, ()) = tokio::join!(server.text(200), async {
        gate.store(true, Ordering::Relaxed);
    });
    while let Some(frame) = stream.frame().await {
        text += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
    }
    let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks = chunks.map(|rest| serde_json::from_str::<Value>(&format!("{{{rest}")).unwrap());
    let said: String = chunks
        .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!((said, late), (expected.clone(), expected));
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    server.until("engine_outage_seconds_total", |seconds| seconds > 0.0).await;
    assert_eq!(body(&server, "/health").await, "{\"status\":\"ok\"}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_does_not_come_back_fails_its_answers_in_time() {
    let gate = Arc::new(AtomicBool::new(false));
    let server = server(vec![50], &gate, Duration::from_millis(200));
    let mut running = server.stream(1000, json!({})).await;
    // One that comes meanwhile waits with it, and has a status to be told by.
    server.until("engine_losses_total", |losses| losses == 1.0).await;
    let late = server.post("/v1/chat/completions", &chat(5, false, json!({}))).await;
    assert_eq!(late.0, StatusCode::SERVICE_UNAVAILABLE);
    let Ending::Error(message) = running.finish().await else { panic!("a complete answer") };
    assert!(
        message.contains("it was lost, and is not back in time (killed for the test)"),
        "{message}"
    );
    let refused = server.post("/v1/chat/completions", &chat(5, false, json!({}))).await;
    assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
    gate.store(true, Ordering::Relaxed);
    server.until("engine_recoveries_total", |times| times == 1.0).await;
    assert!(!server.text(20).await.is_empty(), "it serves again");
}
