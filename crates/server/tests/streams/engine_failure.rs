//! The engine dies or hangs: the server says so everywhere, and ends. One that only takes long
//! over a prompt is left alone.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use axum::body::Body;
use http::StatusCode;
use http_body_util::BodyExt;
use loquent_engine::sim::{SimOptions, SimRunner};
use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::Sampler;
use loquent_needs::redis::RedisServer;
use loquent_server::{HttpConfig, LoadedEngine, OllamaApi, StoreConfig, StoreLocation};
use loquent_serving::entropy::Entropy;
use loquent_store::address::SharedAddress;
use loquent_store::shared::connection::SharedConnection;
use serde_json::{Value, json};

use super::drain::Listening;
use super::harness::{self, Ending, Server, chat};

/// The step at which a runner fails: a decode step, after the prompt and some tokens.
const BAD_STEP: u64 = 5;

enum Fault {
    Panic,
    /// Once the sender is dropped.
    PanicAfter(Receiver<()>),
    /// Until the sender is dropped.
    Hang(Receiver<()>),
    /// The first step, which computes the prompt, takes this long.
    SlowPrompt(Duration),
}

/// A simulated engine with a fault that no `Runner` may have.
pub struct FaultyRunner {
    inner: SimRunner,
    fault: Fault,
}

impl FaultyRunner {
    fn new(fault: Fault) -> Box<Self> {
        Box::new(Self { inner: SimRunner::new(SimOptions::default()), fault })
    }

    /// One that hangs in the midst of its first answer until the sender is dropped.
    pub fn hanging() -> (Box<Self>, Sender<()>) {
        let (release, held) = channel();
        (Self::new(Fault::Hang(held)), release)
    }
}

impl Runner for FaultyRunner {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        self.inner.assign(slot, sampler);
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        match (&self.fault, self.inner.steps()) {
            (Fault::Panic, BAD_STEP) => panic!("a fault for the test"),
            (Fault::PanicAfter(held), BAD_STEP) => {
                let _ = held.recv();
                panic!("a fault for the test");
            }
            (Fault::Hang(held), BAD_STEP) => drop(held.recv()),
            (Fault::SlowPrompt(time), 0) => std::thread::sleep(*time),
            _ => {}
        }
        self.inner.run(batch, sampled)
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.inner.fork(from, to, len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.inner.truncate(slot, len);
    }
}

fn server(runner: Box<FaultyRunner>, timeout: Duration) -> Server {
    let loaded = LoadedEngine { runner, ..harness::loaded() };
    Server::over(loaded, |config| config.engine_timeout = timeout)
}

/// A running answer ends with an error, probes and new requests get 503.
async fn says_that_the_engine_failed(server: &Server) {
    assert_eq!(server.get("/ready").await, StatusCode::OK);
    let mut running = server.stream(1000, json!({})).await;
    let Ending::Error(message) = running.finish().await else { panic!("a complete answer") };
    assert!(message.contains("the engine has failed"), "{message}");
    for path in ["/ready", "/health", "/live"] {
        assert_eq!(server.get(path).await, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    for stream in [true, false] {
        let refused = server.post("/v1/chat/completions", &chat(5, stream, json!({}))).await;
        assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_step_is_told_to_clients_and_probes() {
    let server = server(FaultyRunner::new(Fault::Panic), harness::FOREVER);
    says_that_the_engine_failed(&server).await;
}

/// All of a stream's text, which must break off.
async fn broken(server: &Server, path: &str, body: Value) -> String {
    let (status, mut body) = server.post(path, &body).await;
    assert_eq!(status, StatusCode::OK, "{path}");
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return String::from_utf8(text).unwrap() };
        text.extend_from_slice(&frame.into_data().unwrap());
    }
    panic!("{path}: a clean end after {}", String::from_utf8_lossy(&text));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_api_tells_of_a_broken_answer_in_its_own_words() {
    let question = json!([{"role": "user", "content": "tokens=1000"}]);
    let messages = json!({"model": "x", "messages": question, "max_tokens": 1000, "stream": true});
    let response = json!({"input": "tokens=1000", "stream": true});
    let ui =
        json!({"messages": [{"role": "user", "parts": [{"type": "text", "text": "tokens=1000"}]}]});
    for (path, body, told) in [
        ("/v1/messages", messages.clone(), "event: error\n"),
        ("/api/chat", messages, "{\"error\":\""),
        ("/v1/responses", response, "event: response.failed\n"),
        ("/v1/ui/chat", ui, "data: {\"type\":\"error\""),
    ] {
        let loaded = LoadedEngine { runner: FaultyRunner::new(Fault::Panic), ..harness::loaded() };
        let http = HttpConfig { ollama_api: OllamaApi::Always, ..harness::http_config() };
        let server = Server::over_with(loaded, http);
        let text = broken(&server, path, body).await;
        // The engine may die before anything of the answer is sent.
        let last = text.trim_end().rsplit('\n').next().unwrap_or_default();
        let end = text.rfind(told).unwrap_or_else(|| panic!("{path}: {text}"));
        assert!(text[end..].contains(last), "{path}: something follows: {text}");
        assert!(text[end..].contains("engine has failed"), "{path}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_hangs_is_told_to_clients_and_probes() {
    let (runner, release) = FaultyRunner::hanging();
    let server = server(runner, Duration::from_millis(200));
    says_that_the_engine_failed(&server).await;
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_prompt_is_no_hang() {
    // The timeout is longer than a busy machine keeps the other steps from running.
    let slow = Fault::SlowPrompt(Duration::from_secs(4));
    let server = server(FaultyRunner::new(slow), Duration::from_secs(2));
    let mut running = server.stream(100, json!({})).await;
    assert_eq!(running.finish().await, Ending::Done);
    assert_eq!(server.get("/health").await, StatusCode::OK);
}

/// Reads an event stream to its end, clean or not; gives its text, and whether it is whole.
async fn shown(response: http::Response<Body>) -> (String, bool) {
    let (mut body, mut bytes) = (response.into_body(), Vec::new());
    while let Some(Ok(frame)) = body.frame().await {
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    let raw = String::from_utf8(bytes).unwrap();
    assert!(!raw.contains("\"error\""), "{raw}");
    let data = raw.lines().filter_map(|line| line.strip_prefix("data: "));
    let chunks = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let piece = |chunk: Value| {
        chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    (chunks.map(piece).collect(), raw.contains("data: [DONE]"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_whose_engine_dies_goes_on_at_another_replica() {
    let Some(redis) = RedisServer::start() else { return };
    let address = SharedAddress::parse(&redis.url()).unwrap();
    let location = StoreLocation::Shared(address.clone());
    let store = StoreConfig { location, ..StoreConfig::default() };
    let (release, held) = channel();
    let dies = FaultyRunner::new(Fault::PanicAfter(held));
    let owner = Listening::with_store(dies, harness::FOREVER, store.clone()).await;
    let lives = Box::new(SimRunner::new(SimOptions::default()));
    let other = Listening::with_store(lives, harness::FOREVER, store).await;
    let watcher = SharedConnection::open(&address, 1 << 20, Entropy::system()).await.unwrap();
    // Both have announced that they have the model.
    while watcher.notices().await.unwrap().iter().filter(|notice| notice.len() > 2).count() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let body = chat(1000, true, json!({"resumable": true})).to_string();
    let answer = owner.call("POST", "/v1/chat/completions", &body).await;
    let named = |part: &str| {
        let header = &answer.headers()[&format!("x-loquent-stream-{part}")];
        header.to_str().unwrap().to_owned()
    };
    let path = format!("/v1/streams/{}?token={}", named("id"), named("token"));
    drop(release);
    let (text, is_whole) = shown(answer).await;
    let whole = Server::start(|_| {}).text(1000).await;
    assert!(!is_whole && whole.starts_with(&text), "{text}");
    assert_eq!(shown(other.call("GET", &path, "").await).await, (whole, true));
    assert!(owner.run.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_engine_died_drains_and_returns_an_error() {
    let (release, held) = channel();
    let runner = FaultyRunner::new(Fault::PanicAfter(held));
    let server = Listening::over(runner, harness::FOREVER).await;
    // Its first piece has come by then.
    let mut running = server.stream(1000).await;
    drop(release);
    assert!(matches!(running.finish().await, Ending::Error(_)));
    let error = server.run.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("it panicked: a fault for the test"), "{error}");
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err(), "the port is closed");
}
