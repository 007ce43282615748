//! Relays an answer to a local client: server-sent events as the server itself would write them,
//! and a broken connection if the answer breaks off.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use loquent_client::{Answer, ClientError, Content, Step};
use loquent_proto::Delta;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::obfuscation::Obfuscation;

use super::refusal::error_json;
use super::resume_store::ResumeEntry;
use super::trace::ProxyTrace;

/// Time without events after which one without content is sent, so that SDKs and proxies with read
/// timeouts keep waiting.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Reason why the local connection is broken off.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off: {0}")]
pub struct AnswerBroken(String);

/// State that determines the next output of the relay.
enum RelayState {
    /// Next are the answer's events.
    Streaming,
    /// Next is nothing: the connection breaks once all written bytes are sent.
    Breaking(ClientError),
    /// Next is nothing: the answer is complete.
    Ended,
}

/// An answer for one local client. Dropping it cancels the answer, unless it was requested as
/// resumable.
pub struct AnswerRelay {
    /// `Some` until dropped.
    answer: Option<Answer>,
    entry: Option<ResumeEntry>,
    chunks: ChunkWriter,
    /// Id of the last relayed event.
    last_id: Option<u64>,
    state: RelayState,
    resumable: bool,
    trace: ProxyTrace,
    /// True if any part of the answer has arrived.
    is_begun: bool,
}

impl AnswerRelay {
    /// Relays `answer`; `entry` is its entry in the store, and `trace` ends with it.
    pub fn new(
        answer: Answer,
        entry: ResumeEntry,
        resumable: bool,
        trace: ProxyTrace,
    ) -> AnswerRelay {
        AnswerRelay {
            answer: Some(answer),
            entry: Some(entry),
            chunks: local_chunks(),
            last_id: None,
            state: RelayState::Streaming,
            resumable,
            trace,
            is_begun: false,
        }
    }

    /// Converts the relay to a response body.
    pub fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut relay| async move {
            let piece = relay.next().await?;
            Some((piece, relay))
        }))
    }

    async fn next(&mut self) -> Option<Result<Bytes, AnswerBroken>> {
        match &self.state {
            RelayState::Streaming => {}
            RelayState::Breaking(error) => {
                let broken = AnswerBroken(error.to_string());
                self.state = RelayState::Ended;
                // hyper flushes what it has when the body is pending; without this, the error
                // event would be lost with the connection.
                tokio::task::yield_now().await;
                return Some(Err(broken));
            }
            RelayState::Ended => return None,
        }
        loop {
            let answer = self.answer.as_mut()?;
            let Ok(step) = tokio::time::timeout(HEARTBEAT, answer.next()).await else {
                // Empty for an answer of chunks: the server's own heartbeats are among them.
                return Some(Ok(self.chunks.heartbeat().into()));
            };
            match step {
                Ok(Some(step)) => {
                    let events = self.events(&step);
                    if !events.is_empty() {
                        return Some(Ok(events.into()));
                    }
                }
                Ok(None) => {
                    self.state = RelayState::Ended;
                    self.forget();
                    return None;
                }
                Err(error) => return Some(Ok(self.break_off(error))),
            }
        }
    }

    /// Returns the events of one step; none if the step was seen before.
    fn events(&mut self, step: &Step) -> Vec<u8> {
        if let Some(entry) = &self.entry {
            entry.set_offset(step.offset);
        }
        if !std::mem::replace(&mut self.is_begun, true) {
            self.trace.note_begun();
        }
        let mut out = Vec::new();
        match &step.content {
            Content::Chunk(data) => {
                let data = String::from_utf8_lossy(data).replace('\n', "\ndata: ");
                // As the server has it: an id only where a record is complete.
                if step.offset > 0 && self.last_id.replace(step.offset) != Some(step.offset) {
                    out.extend_from_slice(format!("id: {}\n", step.offset).as_bytes());
                }
                out.extend_from_slice(format!("data: {data}\n\n").as_bytes());
            }
            Content::Record(delta) => {
                if matches!(delta, Delta::Open { .. }) {
                    self.chunks = local_chunks();
                }
                if let Err(error) = self.chunks.write(Some(step.offset), delta, &mut out) {
                    let error = ClientError::Malformed(format!("a record: {error}"));
                    out = self.break_off(error).to_vec();
                }
            }
        }
        if step.seen { Vec::new() } else { out }
    }

    /// Returns the last event of an incomplete answer, or nothing: an error sent by the server has
    /// already been relayed.
    fn break_off(&mut self, error: ClientError) -> Bytes {
        self.trace.note_broken();
        self.forget();
        let event = match &error {
            ClientError::Stream(_) => String::new(),
            error => {
                let message = format!("The answer broke off: {error}.");
                format!("data: {}\n\n", error_json(&message, "answer_lost"))
            }
        };
        self.state = RelayState::Breaking(error);
        event.into()
    }

    fn forget(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.remove();
        }
    }
}

/// Creates a writer of events that stay on this machine: pads only if the request asks for it.
fn local_chunks() -> ChunkWriter {
    ChunkWriter::new().obfuscate(Obfuscation::new(rand::random(), false))
}

impl Drop for AnswerRelay {
    fn drop(&mut self) {
        let unfinished = matches!(self.state, RelayState::Streaming);
        if unfinished && !self.resumable {
            self.forget();
        }
        // Cancelled or left, the answer tells its numbers no more.
        self.answer.iter().for_each(|answer| self.trace.note_answer(answer));
        if let Some(answer) = self.answer.take()
            && unfinished
            && self.resumable
        {
            answer.leave();
        }
    }
}
