//! A small OpenAI-compatible server that streams what a script says: for tests over
//! in-memory connections under a paused clock, and over TCP for measuring the generator.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use loquent_openai::{BoxFuture, Dial, Io};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptEnd {
    /// Finish reason, usage, `[DONE]`.
    Complete,
    /// The body ends cleanly without a finish reason.
    WithoutFinish,
    /// The connection is aborted.
    Abort,
    /// An error event, then the end.
    ErrorEvent,
    /// An event that is no JSON.
    Rubbish,
    /// An event that never ends.
    EndlessEvent,
}

/// What the server does with every request.
#[derive(Debug, Clone)]
pub struct Script {
    /// From the request to its first token.
    pub prefill: Duration,
    /// Between tokens.
    pub gap: Duration,
    /// Tokens after which the ending comes early.
    pub tokens: Option<u32>,
    /// The ending.
    pub ending: ScriptEnd,
    /// Requests in flight beyond which 429 is answered.
    pub limit: usize,
    /// A false token count in the usage.
    pub claimed_tokens: Option<u64>,
    /// Text of every token.
    pub piece: &'static str,
    /// Close each connection after one answer, without saying so.
    pub closes_idle: bool,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            prefill: Duration::from_millis(30),
            gap: Duration::from_millis(10),
            tokens: None,
            ending: ScriptEnd::Complete,
            limit: usize::MAX,
            claimed_tokens: None,
            piece: " tok",
            closes_idle: false,
        }
    }
}

/// The server. Its counters are what a test compares the client's view with.
#[derive(Debug)]
pub struct SseServer {
    script: Script,
    /// Connections accepted.
    pub connections: AtomicUsize,
    /// Answers in progress.
    pub in_flight: AtomicUsize,
    /// Answers that were dropped before their end.
    pub abandoned: AtomicUsize,
    /// Answers sent whole.
    pub completed: AtomicUsize,
    ended: Notify,
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>;
type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, io::Error>> + Send>>;

impl SseServer {
    /// A server that follows `script`.
    pub fn new(script: Script) -> Arc<Self> {
        Arc::new(SseServer {
            script,
            connections: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
            completed: AtomicUsize::new(0),
            ended: Notify::new(),
        })
    }

    /// Serves one connection until it closes.
    pub async fn serve(self: Arc<Self>, io: impl Io + 'static) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let server = Arc::clone(&self);
        let answer = service_fn(move |request| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let mut connection =
            std::pin::pin!(http1::Builder::new().serve_connection(TokioIo::new(io), answer));
        let ended = self.ended.notified();
        let until_idle = async {
            ended.await;
            // Long enough for the answer to be read to its end.
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        // An error here is the client's leaving, which the tests look at elsewhere.
        if self.script.closes_idle {
            tokio::select! { _ = &mut connection => {}, () = until_idle => {} }
        } else {
            let _ = connection.await;
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.map(|body| body.to_bytes());
        let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
        match path.as_str() {
            "/v1/models" => whole(200, json!({ "data": [{ "id": "script" }] })),
            "/tokenize" => {
                let words = body["prompt"].as_str().unwrap_or("").split_whitespace().count();
                whole(200, json!({ "tokens": (0..words).collect::<Vec<usize>>() }))
            }
            "/v1/chat/completions" | "/v1/completions" => {
                self.complete(path.contains("chat"), &body)
            }
            _ => whole(404, json!({ "error": { "message": "no such path" } })),
        }
    }

    fn complete(self: Arc<Self>, chat: bool, body: &Value) -> Response<Body> {
        if self.in_flight.fetch_add(1, Ordering::SeqCst) >= self.script.limit {
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
            let mut refusal = whole(429, json!({ "error": { "message": "too many" } }));
            refusal.headers_mut().insert("retry-after", "7".parse().unwrap());
            return refusal;
        }
        let asked = body["max_tokens"].as_u64().unwrap_or(16) as u32;
        let interval = body["stream_interval"].as_u64().unwrap_or(1).max(1) as u32;
        let answer = ScriptedAnswer {
            chat,
            asked,
            timings: body["stream_options"]["include_timings"] == json!(true),
            interval,
            began: Instant::now(),
            sent: 0,
            emit_us: Vec::new(),
            flush_us: Vec::new(),
            ended: false,
            server: self,
        };
        let frames: Frames = Box::pin(stream::unfold(answer, ScriptedAnswer::next));
        Response::builder()
            .header("content-type", "text/event-stream")
            .body(StreamBody::new(frames).boxed_unsync())
            .unwrap()
    }
}

fn whole(status: u16, body: Value) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    Response::builder().status(status).body(body.boxed_unsync()).unwrap()
}

/// One answer as it is sent.
struct ScriptedAnswer {
    server: Arc<SseServer>,
    chat: bool,
    asked: u32,
    interval: u32,
    timings: bool,
    began: Instant,
    sent: u32,
    emit_us: Vec<u64>,
    flush_us: Vec<(u32, u64)>,
    ended: bool,
}

impl Drop for ScriptedAnswer {
    fn drop(&mut self) {
        self.server.in_flight.fetch_sub(1, Ordering::SeqCst);
        let counter = if self.ended { &self.server.completed } else { &self.server.abandoned };
        counter.fetch_add(1, Ordering::SeqCst);
        self.server.ended.notify_waiters();
    }
}

impl ScriptedAnswer {
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, io::Error>, Self)> {
        if self.ended {
            return None;
        }
        let last = self.server.script.tokens.unwrap_or(self.asked).min(self.asked);
        let data = if self.sent < last {
            self.chunk(last).await
        } else {
            self.ended = true;
            match self.end() {
                Some(data) => data,
                None => return Some((Err(io::Error::other("scripted abort")), self)),
            }
        };
        Some((Ok(Frame::data(Bytes::from(data))), self))
    }

    /// The first token alone, then `interval` at a time.
    async fn chunk(&mut self, last: u32) -> String {
        let count = if self.sent == 0 { 1 } else { self.interval.min(last - self.sent) };
        for _ in 0..count {
            let due = self.began + self.server.script.prefill + self.server.script.gap * self.sent;
            sleep_until(due).await;
            self.emit_us.push(self.us());
            self.sent += 1;
        }
        self.flush_us.push((self.sent, self.us()));
        let text = self.server.script.piece.repeat(count as usize);
        let choice = if self.chat {
            json!({ "index": 0, "delta": { "content": text }, "finish_reason": null })
        } else {
            json!({ "index": 0, "text": text, "finish_reason": null })
        };
        event(&json!({ "id": "c-1", "object": "chunk", "choices": [choice] }))
    }

    fn us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn end(&self) -> Option<String> {
        match self.server.script.ending {
            ScriptEnd::Complete => Some(self.finish()),
            ScriptEnd::WithoutFinish => Some(": bye\n\n".into()),
            ScriptEnd::Abort => None,
            ScriptEnd::ErrorEvent => Some(event(&json!({ "error": { "message": "engine lost" } }))),
            ScriptEnd::Rubbish => Some("data: {\"choices\": [\n\n".into()),
            ScriptEnd::EndlessEvent => Some(format!("data: {}", "x".repeat(5 << 20))),
        }
    }

    fn finish(&self) -> String {
        let finish = json!({ "choices": [{ "delta": {}, "text": "", "finish_reason": "length" }] });
        let tokens = self.server.script.claimed_tokens.unwrap_or(self.sent.into());
        let mut usage = json!({
            "choices": [],
            "usage": { "prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1 },
        });
        if self.timings {
            usage["loquent_timings"] = json!({
                "request_id": "r", "queue_us": 0, "prefill_us": self.emit_us.first(),
                "emit_us": self.emit_us, "flush_us": self.flush_us,
            });
        }
        event(&finish) + &event(&usage) + "data: [DONE]\n\n"
    }
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// Connects a client to a server through memory.
pub struct MemoryDial(pub Arc<SseServer>);

impl Dial for MemoryDial {
    fn dial(&self, recv_buffer_bytes: Option<u32>) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        let (ours, theirs) = tokio::io::duplex(recv_buffer_bytes.unwrap_or(65_536) as usize);
        tokio::spawn(Arc::clone(&self.0).serve(theirs));
        Box::pin(async { Ok(Box::new(ours) as Box<dyn Io>) })
    }
}
