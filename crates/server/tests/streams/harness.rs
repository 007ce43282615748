//! A server on the simulated engine, called through its router: no socket lies between a test
//! and the stream, so that a test which does not read is a reader that does not read.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use loquent_engine::sim::{SimOptions, StepPace};
use loquent_formats::template::{CHATML, ChatTemplate};
use loquent_server::{
    App, ChatFormat, Clock, HttpConfig, LoadedEngine, Metrics, Service, ServiceConfig, Store,
    router, start_engine,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::simulated::{self, service_config};
pub use crate::simulated::{FOREVER, http_config, limits};

/// A server and its engine, which computes as fast as it can.
pub struct Server {
    pub service: Arc<Service>,
    app: Arc<App>,
    engine: Option<JoinHandle<()>>,
}

impl Server {
    /// A server with the configuration that `change` makes of the tests' usual one.
    pub fn start(change: impl FnOnce(&mut ServiceConfig)) -> Self {
        Self::start_with(loaded(), http_config(), None, change)
    }

    /// A server over the engine `loaded`.
    pub fn over(loaded: LoadedEngine, change: impl FnOnce(&mut ServiceConfig)) -> Self {
        Self::start_with(loaded, http_config(), None, change)
    }

    /// A server over the engine `loaded`, whose HTTP side has the configuration `http`.
    #[allow(dead_code, reason = "for the tests of APIs; others share this file")]
    pub fn over_with(loaded: LoadedEngine, http: HttpConfig) -> Self {
        Self::start_with(loaded, http, None, |_| {})
    }

    /// A server whose HTTP side has the configuration `http`.
    pub fn with_http(http: HttpConfig, change: impl FnOnce(&mut ServiceConfig)) -> Self {
        Self::start_with(loaded(), http, None, change)
    }

    /// A server whose stored answers are in `store`.
    #[allow(dead_code, reason = "for the tests of stored answers, which share this file")]
    pub fn with_store(http: HttpConfig, store: Store) -> Self {
        Self::start_with(loaded(), http, Some(store), |_| {})
    }

    fn start_with(
        loaded: LoadedEngine,
        http: HttpConfig,
        store: Option<Store>,
        change: impl FnOnce(&mut ServiceConfig),
    ) -> Self {
        let mut config = service_config(16);
        config.streams.stall_limit = FOREVER;
        change(&mut config);
        let (clock, metrics) = (Clock::start(), Arc::new(Metrics::new()));
        let mut app = App::new(http, limits(), clock, metrics.clone());
        if let Some(store) = store {
            app = app.with_store(store);
        }
        let app = Arc::new(app);
        let (service, engine) = start_engine(&config, loaded, clock, metrics).unwrap();
        app.open(service.clone());
        Self { service, app, engine: Some(engine) }
    }

    /// The response to a POST of `body`, with its body still unread.
    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Body) {
        let request = Request::post(path).body(Body::from(body.to_string())).unwrap();
        let response = self.call(request).await;
        (response.status(), response.into_body())
    }

    /// The status of a GET.
    pub async fn get(&self, path: &str) -> StatusCode {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await.status()
    }

    /// The response to any request.
    pub async fn call(&self, request: Request<Body>) -> http::Response<Body> {
        router(self.app.clone()).oneshot(request).await.unwrap()
    }

    /// A chat stream of `tokens` tokens, not read yet; `more` fields go into the request.
    pub async fn stream(&self, tokens: usize, more: Value) -> Events {
        let (status, body) = self.post("/v1/chat/completions", &chat(tokens, true, more)).await;
        assert_eq!(status, StatusCode::OK);
        Events::new(body)
    }

    /// The text of an answer of `tokens` tokens. It depends on the prompt alone, so that every
    /// stream of it must give the same.
    pub async fn text(&self, tokens: usize) -> String {
        let answer = self.whole("/v1/chat/completions", &chat(tokens, false, json!({}))).await;
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    /// A whole answer, without a stream.
    pub async fn whole(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.post(path, body).await;
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&bytes));
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Bytes that requests may take yet.
    #[allow(dead_code, reason = "for the tests of responses, which share this file")]
    pub fn request_memory_free_bytes(&self) -> usize {
        self.app.request_memory_free_bytes()
    }

    /// A metric's value at present.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.app.metrics.render();
        let line = text.lines().find(|line| line.starts_with(&format!("loquent_{name} ")));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Waits until a metric's value is as `wanted`.
    pub async fn until(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        let reached = async {
            while !wanted(self.metric(name)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), reached).await;
        waited.unwrap_or_else(|_| panic!("{name} stays at {}", self.metric(name)));
    }

    /// Waits until no request holds a place.
    pub async fn until_idle(&self) {
        let idle = async {
            while self.service.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), idle).await;
        waited.unwrap_or_else(|_| panic!("{} places stay taken", self.service.in_flight()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.service.stop();
        if let Some(engine) = self.engine.take().filter(|_| !std::thread::panicking()) {
            // The delivery task, which lets the engine go, runs on the other worker thread.
            engine.join().unwrap();
        }
    }
}

/// A chat request for an answer of `tokens` tokens.
pub fn chat(tokens: usize, stream: bool, more: Value) -> Value {
    let content = format!("tokens={tokens}");
    let mut body = json!({"stream": stream, "messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The simulated engine, computing as fast as it can.
pub fn loaded() -> LoadedEngine {
    simulated::loaded(SimOptions::default())
}

/// An engine that makes a token every millisecond, so that long answers are under way for seconds.
#[allow(dead_code, reason = "for the tests of APIs; others share this file")]
pub fn paced() -> LoadedEngine {
    let pace = StepPace::Fixed { step: Duration::from_millis(1) };
    simulated::loaded(SimOptions { pace, ..SimOptions::default() })
}

/// An engine whose model may think before it answers.
#[allow(dead_code, reason = "for the tests of APIs; others share this file")]
pub fn thinking() -> LoadedEngine {
    let mut loaded = loaded();
    let template = ChatTemplate::new(&format!("{{# <think> #}}{CHATML}")).unwrap();
    let (bos, eos) = Default::default();
    loaded.model.chat = Arc::new(ChatFormat { bos, eos, ..ChatFormat::new(template) });
    loaded
}

/// How an event stream ended.
#[derive(Debug, PartialEq)]
pub enum Ending {
    /// With `[DONE]` and a clean end of the body.
    Done,
    /// With an error event of this message, and an aborted body.
    Error(String),
}

/// Reads an event stream.
pub struct Events {
    body: Body,
    buffer: Vec<u8>,
    /// The chunks read so far.
    pub chunks: Vec<Value>,
}

impl Events {
    pub fn new(body: Body) -> Self {
        Self { body, buffer: Vec::new(), chunks: Vec::new() }
    }

    /// Reads to the end.
    pub async fn finish(&mut self) -> Ending {
        loop {
            if let Some(ending) = self.next().await {
                return ending;
            }
        }
    }

    /// Reads the next event; gives how the stream ended if it did.
    pub async fn next(&mut self) -> Option<Ending> {
        let event = self.event().await.expect("a clean end without [DONE]");
        let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else {
            return None; // a comment
        };
        if data == "[DONE]" {
            assert_eq!(self.event().await, None, "an event after [DONE]");
            return Some(Ending::Done);
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        if let Some(message) = chunk["error"]["message"].as_str() {
            assert!(self.body.frame().await.unwrap().is_err(), "a clean end after an error");
            return Some(Ending::Error(message.to_owned()));
        }
        self.chunks.push(chunk);
        None
    }

    /// The next event or comment as it came; `None` at the end of the body.
    pub async fn event(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event = self.buffer.drain(..end + 2).collect();
                return Some(String::from_utf8(event).unwrap());
            }
            let frame =
                self.body.frame().await?.expect("the stream broke off without an error event");
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// The progress reports read so far.
    pub fn progress(&self) -> Vec<&Value> {
        let chunks = self.chunks.iter().map(|chunk| &chunk["prompt_progress"]);
        chunks.filter(|progress| progress.is_object()).collect()
    }

    /// Reads until a progress report has come, which the server sends once the engine has the
    /// request.
    pub async fn until_progress(&mut self) {
        while self.progress().is_empty() {
            assert_eq!(self.next().await, None);
        }
    }

    /// The non-empty texts of one completion's chunks.
    pub fn pieces(&self, choice: u64) -> Vec<&str> {
        let of_choice = self.choices(choice).filter_map(|one| one["delta"]["content"].as_str());
        of_choice.filter(|text| !text.is_empty()).collect()
    }

    /// The text of one completion.
    pub fn text(&self, choice: u64) -> String {
        self.pieces(choice).concat()
    }

    /// Why one completion ended.
    pub fn finish_reason(&self, choice: u64) -> Option<&str> {
        self.choices(choice).find_map(|one| one["finish_reason"].as_str())
    }

    fn choices(&self, choice: u64) -> impl Iterator<Item = &Value> {
        let all = self.chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
        all.filter(move |one| one["index"] == choice)
    }
}
