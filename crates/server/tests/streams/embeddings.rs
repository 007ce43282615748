//! `/v1/embeddings` on the simulated engine: every form of input, limits that name the input,
//! clients that leave, and streams that go on beside it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use loquent_engine::sim::{EMBEDDING_WIDTH, SimEmbedder, SimOptions, SimRunner, token_vector};
use loquent_infer::embedding::{Embedder, EmbedderCapacity, EmbeddingOnly};
use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::Sampler;
use loquent_infer::sim_vocab::SimVocab;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use loquent_server::LoadedEngine;
use serde_json::{Value, json};

use super::harness::{self, Ending, Server};

const PATH: &str = "/v1/embeddings";
/// Longest wait for the engine; far longer than it takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The error of a request that must be refused with `status`.
async fn refused(server: &Server, body: &Value, status: StatusCode) -> Value {
    let (found, answer) = server.post(PATH, body).await;
    let bytes = answer.collect().await.unwrap().to_bytes();
    assert_eq!(found, status, "{}", String::from_utf8_lossy(&bytes));
    serde_json::from_slice::<Value>(&bytes).unwrap()["error"].clone()
}

/// The vector of `text`, computed in another way than the engine does.
fn expected(text: &str, dimensions: usize) -> Vec<f64> {
    let mut sum = vec![0.0f64; EMBEDDING_WIDTH as usize];
    for token in SimVocab.encode_input(text).unwrap() {
        sum.iter_mut().zip(token_vector(token)).for_each(|(sum, one)| *sum += f64::from(one));
    }
    sum.truncate(dimensions);
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    sum.iter().map(|x| x / length).collect()
}

fn vector(answer: &Value, index: usize) -> Vec<f64> {
    assert_eq!(answer["data"][index]["index"], index);
    let numbers = answer["data"][index]["embedding"].as_array().unwrap();
    numbers.iter().map(|number| number.as_f64().unwrap()).collect()
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_in_every_form_have_their_own_vectors_of_length_1() {
    let server = Server::start(|_| {});
    let tokens: Vec<TokenId> = SimVocab.encode_input("second").unwrap();
    let answer = server.whole(PATH, &json!({"input": ["first", tokens, "first"]})).await;
    assert!(near(&vector(&answer, 0), &expected("first", 16)));
    assert!(near(&vector(&answer, 1), &expected("second", 16)));
    assert_eq!(vector(&answer, 0), vector(&answer, 2));
    let counted = 2 * SimVocab.encode_input("first").unwrap().len() + tokens.len();
    let usage = json!({"prompt_tokens": counted, "total_tokens": counted});
    assert_eq!((&answer["usage"], &answer["object"]), (&usage, &json!("list")));
    let one = server.whole(PATH, &json!({"input": tokens})).await;
    assert!(near(&vector(&one, 0), &expected("second", 16)));
    let few = server.whole(PATH, &json!({"input": "first", "dimensions": 3})).await;
    assert!(near(&vector(&few, 0), &expected("first", 3)));
    assert_eq!(server.service.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_embedded_is_refused_by_its_index() {
    let server = Server::start(|_| {});
    let long = "word ".repeat(20_000);
    for (input, named) in [
        (json!(["a", ""]), "input[1]"),
        (json!(["a", "b", long]), "input[2]"),
        (json!([[1], [4_000_000_000u32]]), "input[1]"),
        (json!(vec!["a"; 2049]), "2049 entries"),
    ] {
        let error = refused(&server, &json!({"input": input}), StatusCode::BAD_REQUEST).await;
        assert_eq!(error["param"], "input");
        assert!(error["message"].as_str().unwrap().contains(named), "{error}");
    }
    // The first number of the second one's vector is 0, as the simulated engine computes it.
    let zero = format!("{}lib/", "../".repeat(10));
    for body in [json!({"input": "a", "dimensions": 17}), json!({"input": zero, "dimensions": 1})] {
        let error = refused(&server, &body, StatusCode::BAD_REQUEST).await;
        assert_eq!(error["param"], "dimensions");
    }
    assert_eq!(server.service.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_parameters_are_named_in_a_header() {
    let server = Server::start(|_| {});
    let body = json!({"input": "a", "user": "u", "dimension": 3}).to_string();
    let answer = server.call(Request::post(PATH).body(body.into()).unwrap()).await;
    assert_eq!(answer.headers()["x-loquent-ignored-parameters"], "dimension");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_more() {
    let server = Server::start(|config| {
        config.bounds.max_inflight_requests = 1;
        config.streams.buffer_bytes = 8 * 1024;
    });
    let stream = server.stream(4000, json!({})).await;
    // Paused for its reader, it cannot end meanwhile.
    server.until("stream_pauses_total", |pauses| pauses == 1.0).await;
    refused(&server, &json!({"input": "a"}), StatusCode::TOO_MANY_REQUESTS).await;
    drop(stream);
    server.until("num_requests_running", |running| running == 0.0).await;
}

/// A batch of embeddings that the engine has begun.
struct BegunBatch {
    /// Inputs, or parts of them.
    inputs: usize,
    /// Steps of answers that the engine has computed before it.
    steps: u64,
}

/// A simulated engine that reports each batch of embeddings, and computes none before it may.
struct WatchedRunner {
    inner: SimRunner,
    embedder: WatchedEmbedder,
}

struct WatchedEmbedder {
    inner: SimEmbedder,
    steps: u64,
    begun: Sender<BegunBatch>,
    /// What lets the batches go: all of them once its sender is dropped.
    held: Receiver<()>,
}

impl Embedder for WatchedEmbedder {
    fn capacity(&self) -> EmbedderCapacity {
        self.inner.capacity()
    }

    fn embed(&mut self, batch: &Batch, vectors: &mut Vec<Vec<f32>>) -> Result<(), RunError> {
        let begun = BegunBatch { inputs: batch.spans.len(), steps: self.steps };
        self.begun.send(begun).unwrap();
        let _ = self.held.recv();
        self.inner.embed(batch, vectors)
    }

    fn clear(&mut self, slot: Slot) {
        self.inner.clear(slot);
    }
}

impl Runner for WatchedRunner {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        self.inner.assign(slot, sampler);
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        self.embedder.steps += 1;
        self.inner.run(batch, sampled)
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.inner.fork(from, to, len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.inner.truncate(slot, len);
    }

    fn embedder(&mut self) -> Option<&mut dyn Embedder> {
        Some(&mut self.embedder)
    }
}

/// A server over a [`WatchedRunner`], the batches that it begins, and what holds them.
fn watched() -> (Arc<Server>, Receiver<BegunBatch>, Sender<()>) {
    let ((begun, batches), (hold, held)) = (channel(), channel());
    let inner = SimRunner::new(SimOptions::default());
    let embedder = SimEmbedder::new(inner.capacity());
    let embedder = WatchedEmbedder { inner: embedder, steps: 0, begun, held };
    let runner = Box::new(WatchedRunner { inner, embedder });
    let server = Server::over(LoadedEngine { runner, ..harness::loaded() }, |_| {});
    (Arc::new(server), batches, hold)
}

/// Waits for the next batch, which is held; gives it back with those that follow.
async fn next_batch(batches: Receiver<BegunBatch>) -> (BegunBatch, Receiver<BegunBatch>) {
    let wait = move || (batches.recv_timeout(PATIENCE).expect("a batch"), batches);
    tokio::task::spawn_blocking(wait).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_go_on_beside_embeddings_and_say_the_same() {
    const TOKENS: usize = 40;
    let (server, batches, hold) = watched();
    let alone = server.text(TOKENS).await;
    let client = server.clone();
    let many = json!({"input": vec!["some words to embed"; 2000]});
    let asked = tokio::spawn(async move { client.whole(PATH, &many).await });
    let (before, batches) = next_batch(batches).await;
    // The head may leave before the engine has the request; the first progress report follows it.
    let mut stream = server.stream(TOKENS, json!({"return_progress": true})).await;
    stream.until_progress().await;
    drop(hold);
    assert_eq!((stream.finish().await, stream.text(0)), (Ending::Done, alone));
    assert!(near(&vector(&asked.await.unwrap(), 1999), &expected("some words to embed", 16)));
    server.until("embedding_inputs_total", |inputs| inputs == 2000.0).await;
    let steps: Vec<u64> = batches.try_iter().map(|batch| batch.steps - before.steps).collect();
    let end = *steps.last().unwrap();
    assert!(end >= TOKENS as u64, "{end} steps: the answer was not computed beside embeddings");
    let beside = steps.windows(2).filter(|pair| (1..end).contains(&pair[0]));
    assert!(beside.clone().count() >= TOKENS / 2, "{steps:?}");
    // Between two batches every answer gets its next token.
    assert!(beside.clone().all(|pair| pair[0] < pair[1]), "{steps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_inputs_with_it() {
    let (server, batches, hold) = watched();
    let client = server.clone();
    let many = json!({"input": vec!["word ".repeat(20); 2000]});
    let asked = tokio::spawn(async move { client.post(PATH, &many).await.0 });
    let (first, batches) = next_batch(batches).await;
    assert!(first.inputs < 200, "{} inputs in one batch", first.inputs);
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    drop(hold);
    server.until_idle().await;
    let after = server.whole(PATH, &json!({"input": "a"})).await;
    assert!(near(&vector(&after, 0), &expected("a", 16)));
    let later: Vec<usize> = batches.try_iter().map(|batch| batch.inputs).collect();
    assert_eq!(later, [1], "of the client that has left, nothing but the batch under way");
    let done = server.metric("embedding_inputs_total");
    assert!(done <= 1.0 + first.inputs as f64, "{done} inputs were embedded");
}

/// A server whose model makes embeddings only.
fn embedding_only() -> LoadedEngine {
    let mut runner = SimRunner::new(SimOptions::default());
    assert!(runner.abilities().generates);
    let embedder = SimEmbedder::new(runner.capacity());
    LoadedEngine { runner: Box::new(EmbeddingOnly(embedder)), ..harness::loaded() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedding_model_says_that_it_does_not_chat() {
    let server = Server::over(embedding_only(), |_| {});
    let (status, answer) =
        server.post("/v1/chat/completions", &harness::chat(3, true, json!({}))).await;
    let bytes = answer.collect().await.unwrap().to_bytes();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(String::from_utf8_lossy(&bytes).contains("/v1/embeddings"));
    let answer = server.whole(PATH, &json!({"input": "a"})).await;
    assert!(near(&vector(&answer, 0), &expected("a", 16)));
}
