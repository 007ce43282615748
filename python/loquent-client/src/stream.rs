//! One response: an answer as server-sent events or as records, or any other response's body.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use loquent_client::{
    Answer, ClientError, Content, ID_HEADER, IGNORED_HEADER, Reply, Step, TOKEN_HEADER, Transport,
};
use loquent_proto::Delta;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::obfuscation::Obfuscation;
use pyo3::prelude::*;
use serde_json::json;
use tokio::sync::{Mutex, watch};

use crate::failure::Failure;
use crate::wait::{Outcome, limit, runtime, wait};

/// Longest silence of a connected server before a piece without content is returned, so that SDKs
/// with read timeouts keep waiting while an answer queues or its prompt is computed.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A comment: readers of events skip it. No empty line follows, which would end an event.
const COMMENT: &[u8] = b": \n";

/// A record for Python: kind, choice, text, a JSON object or an empty text, and the offset behind
/// it.
pub type Event = (&'static str, u32, String, String, u64);

/// Outcome of one wait for records: some of them, the end of the answer, or its failure.
type Batch = Result<Option<Vec<Event>>, Failure>;

/// A response whose head has arrived. Its body is read by one reader at a time.
#[pyclass(frozen)]
pub struct NativeStream {
    status: u16,
    headers: Vec<(String, String)>,
    reference: Option<(String, String)>,
    shared: Arc<Shared>,
}

struct Shared {
    body: Mutex<Option<Body>>,
    closed: watch::Sender<bool>,
    by_quic: AtomicBool,
    resumes: AtomicU32,
}

enum Body {
    Answer(Box<Relay>),
    Reply(Box<Reply>),
}

/// An answer, and what it takes to write it as the server's own event stream.
struct Relay {
    answer: Answer,
    chunks: ChunkWriter,
    /// Id of the last event.
    last_id: Option<u64>,
    /// Reported after the error event that tells of it.
    failure: Option<Failure>,
    /// Number of batches that were read for Python, and the last of them: a wait that is
    /// cancelled after its batch was read loses it, and the next wait has to yield it again.
    batches: u64,
    last_batch: Batch,
}

impl NativeStream {
    /// Creates the response of an answer: the head that its event stream has over HTTP.
    pub fn of_answer(answer: Answer) -> NativeStream {
        let handle = answer.handle();
        let reference = (handle.id_hex(), handle.token_hex());
        let mut headers: Vec<(String, String)> =
            vec![("content-type".into(), "text/event-stream".into())];
        for (name, value) in answer.headers() {
            let is_passed = *name == IGNORED_HEADER || name.as_str().starts_with("x-ratelimit-");
            if let (true, Ok(value)) = (is_passed, value.to_str()) {
                headers.push((name.to_string(), value.to_owned()));
            }
        }
        headers.push((ID_HEADER.to_string(), reference.0.clone()));
        headers.push((TOKEN_HEADER.to_string(), reference.1.clone()));
        let relay = Relay {
            answer,
            chunks: chunks(),
            last_id: None,
            failure: None,
            batches: 0,
            last_batch: Ok(None),
        };
        Self::new(200, headers, Some(reference), Body::Answer(Box::new(relay)))
    }

    /// Creates any other response.
    pub fn of_reply(reply: Reply) -> NativeStream {
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let headers = reply.headers.iter().map(text).collect();
        Self::new(reply.status, headers, None, Body::Reply(Box::new(reply)))
    }

    fn new(
        status: u16,
        headers: Vec<(String, String)>,
        reference: Option<(String, String)>,
        body: Body,
    ) -> NativeStream {
        let shared = Arc::new(Shared {
            by_quic: AtomicBool::new(body.transport() == Transport::Quic),
            body: Mutex::new(Some(body)),
            closed: watch::Sender::new(false),
            resumes: AtomicU32::new(0),
        });
        NativeStream { status, headers, reference, shared }
    }
}

#[pymethods]
impl NativeStream {
    /// Status code of HTTP.
    #[getter]
    fn status(&self) -> u16 {
        self.status
    }

    /// Headers of the response.
    #[getter]
    fn headers(&self) -> Vec<(String, String)> {
        self.headers.clone()
    }

    /// Id and token with which the answer is resumed; `None` for any other response.
    #[getter]
    fn reference(&self) -> Option<(String, String)> {
        self.reference.clone()
    }

    /// `quic` or `http`: what the last piece came over.
    #[getter]
    fn transport(&self) -> &'static str {
        if self.shared.by_quic.load(Ordering::Relaxed) { "quic" } else { "http" }
    }

    /// How often the answer has moved to a new connection.
    #[getter]
    fn resumes(&self) -> u32 {
        self.shared.resumes.load(Ordering::Relaxed)
    }

    /// Returns the next piece of the body, `None` at its end.
    #[pyo3(signature = (limit_s, done=None))]
    fn next_piece(
        &self,
        py: Python<'_>,
        limit_s: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let shared = Arc::clone(&self.shared);
        let heartbeat = limit(limit_s).map_or(HEARTBEAT, |limit| HEARTBEAT.min(limit / 2));
        wait(py, done, limit_s, async move {
            let piece = shared.read(async move |body: &mut Body| body.piece(heartbeat).await);
            piece.await.map(Outcome::Piece)
        })
    }

    /// Returns the answer's next records, `None` at its end. `taken` is the number of times that
    /// a wait has returned to its caller before.
    #[pyo3(signature = (limit_s, taken, done=None))]
    fn next_events(
        &self,
        py: Python<'_>,
        limit_s: Option<f64>,
        taken: u64,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let shared = Arc::clone(&self.shared);
        wait(py, done, limit_s, async move {
            let events = shared.read(async move |body: &mut Body| body.events(taken).await);
            events.await.map(Outcome::Events)
        })
    }

    /// Ends the reading. An answer that is not complete is cancelled at the server, unless `keep`.
    #[pyo3(signature = (keep=false))]
    fn close(&self, py: Python<'_>, keep: bool) -> PyResult<()> {
        self.shared.closed.send_replace(true);
        let shared = Arc::clone(&self.shared);
        // A reader on another thread lets go of the body first.
        runtime(py)?.spawn(async move {
            match shared.body.lock().await.take() {
                Some(Body::Answer(relay)) if keep => relay.answer.leave(),
                body => drop(body),
            }
        });
        Ok(())
    }
}

impl Shared {
    /// Reads from the body, until the stream is closed.
    async fn read<T>(
        &self,
        read: impl AsyncFnOnce(&mut Body) -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        let mut closed = self.closed.subscribe();
        let mut body = self.body.lock().await;
        let Some(open) = body.as_mut() else { return Err(closed_failure()) };
        let outcome = tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => return Err(closed_failure()),
            outcome = read(open) => outcome,
        };
        if let Body::Answer(relay) = open {
            self.by_quic.store(relay.answer.transport() == Transport::Quic, Ordering::Relaxed);
            self.resumes.store(relay.answer.resumes(), Ordering::Relaxed);
        }
        outcome
    }
}

fn closed_failure() -> Failure {
    Failure::new("closed", "the answer was closed")
}

impl Body {
    fn transport(&self) -> Transport {
        match self {
            Body::Answer(relay) => relay.answer.transport(),
            Body::Reply(reply) => reply.transport(),
        }
    }

    async fn piece(&mut self, heartbeat: Duration) -> Result<Option<Bytes>, Failure> {
        match self {
            Body::Answer(relay) => relay.piece(heartbeat).await,
            Body::Reply(reply) => Ok(reply.piece().await?),
        }
    }

    async fn events(&mut self, taken: u64) -> Batch {
        match self {
            Body::Answer(relay) => relay.events(taken).await,
            Body::Reply(_) => Err(Failure::new("protocol", "this response is no answer")),
        }
    }
}

impl Relay {
    /// Returns the next batch, or the last one again if the reader has taken only those before
    /// it.
    async fn events(&mut self, taken: u64) -> Batch {
        if taken >= self.batches {
            // Cancel safe: nothing is awaited after a step was taken.
            self.last_batch = self.next_batch().await;
            self.batches += 1;
        }
        self.last_batch.clone()
    }

    async fn next_batch(&mut self) -> Batch {
        let Some(step) = self.answer.next().await? else { return Ok(None) };
        let offset = step.offset;
        let deltas = step.into_deltas()?;
        Ok(Some(deltas.into_iter().filter_map(|delta| event(delta, offset)).collect()))
    }

    /// Returns the next events, or a piece without content after a silence of `heartbeat`.
    async fn piece(&mut self, heartbeat: Duration) -> Result<Option<Bytes>, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        loop {
            let Ok(step) = tokio::time::timeout(heartbeat, self.answer.next()).await else {
                if let Some(piece) = self.heartbeat() {
                    return Ok(Some(piece));
                }
                continue;
            };
            match step {
                Ok(None) => return Ok(None),
                Ok(Some(step)) => {
                    let events = self.sse(&step)?;
                    if !events.is_empty() {
                        return Ok(Some(events.into()));
                    }
                }
                // Its event has been relayed.
                Err(error @ ClientError::Stream(_)) => return Err(error.into()),
                Err(error) => {
                    let message = format!("The answer broke off: {error}.");
                    let error = Failure::from(error);
                    self.failure = Some(error);
                    let event = json!({ "error": { "message": message, "type": "server_error",
                        "param": null, "code": "answer_lost" } });
                    return Ok(Some(format!("data: {event}\n\n").into()));
                }
            }
        }
    }

    /// Returns a piece without content if the server is there. Over HTTP its own heartbeats are
    /// pieces; over QUIC, silence ends a dead path within seconds.
    fn heartbeat(&self) -> Option<Bytes> {
        if self.answer.transport() != Transport::Quic || !self.answer.is_connected() {
            return None;
        }
        let chunk = self.chunks.heartbeat();
        Some(if chunk.is_empty() { Bytes::from_static(COMMENT) } else { chunk.into() })
    }

    /// Returns the events of one step as the server writes them; none if it was seen before.
    fn sse(&mut self, step: &Step) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        match &step.content {
            Content::Chunk(data) => {
                let data = String::from_utf8_lossy(data).replace('\n', "\ndata: ");
                if step.offset > 0 && self.last_id.replace(step.offset) != Some(step.offset) {
                    out.extend_from_slice(format!("id: {}\n", step.offset).as_bytes());
                }
                out.extend_from_slice(format!("data: {data}\n\n").as_bytes());
            }
            Content::Record(delta) => {
                if matches!(delta, Delta::Open { .. }) {
                    self.chunks = chunks();
                }
                let written = self.chunks.write(Some(step.offset), delta, &mut out);
                written.map_err(|error| ClientError::Malformed(format!("a record: {error}")))?;
            }
        }
        Ok(if step.seen { Vec::new() } else { out })
    }
}

/// Creates a writer of events that stay in this process: pads only if the request asks for it.
fn chunks() -> ChunkWriter {
    ChunkWriter::new().obfuscate(Obfuscation::new(rand::random(), false))
}

/// Returns a record for Python; `None` for one that has nothing for a reader.
fn event(delta: Delta, offset: u64) -> Option<Event> {
    let none = String::new;
    Some(match delta {
        Delta::Open { meta } => ("open", 0, none(), meta, offset),
        Delta::Text { choice, text, .. } => ("text", choice, text, none(), offset),
        Delta::Reasoning { choice, text, .. } => ("reasoning", choice, text, none(), offset),
        Delta::ToolCall { choice, index, id, name, arguments, .. } => {
            let call = json!({ "index": index, "id": id, "name": name });
            ("tool_call", choice, arguments, call.to_string(), offset)
        }
        Delta::Logprobs { choice, json } => ("logprobs", choice, none(), json, offset),
        Delta::Other { choice, json } => ("other", choice, none(), json, offset),
        Delta::Finish { choice, reason } => ("finish", choice, reason, none(), offset),
        Delta::Usage { prompt, completion, cached, reasoning } => {
            let counts = json!({ "prompt": prompt, "completion": completion, "cached": cached,
                "reasoning": reasoning });
            ("usage", 0, none(), counts.to_string(), offset)
        }
        Delta::Error { code, message } => {
            ("error", 0, message, json!({ "code": code }).to_string(), offset)
        }
        Delta::Done => ("done", 0, none(), none(), offset),
        _ => return None,
    })
}
