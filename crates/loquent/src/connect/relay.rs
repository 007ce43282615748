//! An answer on its way to a local client: server-sent events as the server itself would
//! write them, and a broken connection if the answer is.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use loquent_client::{Answer, ClientError, Content, Step};
use loquent_proto::Delta;
use loquent_proto::chunk::ChunkWriter;

use super::ledger::Line;

/// A comment leaves after so long without an event, so that nothing in between gives up.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Why the local connection is torn down.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off: {0}")]
pub struct Broken(String);

/// What comes next.
enum State {
    /// The first comment, so that the head leaves at once.
    Opening,
    Streaming,
    /// The connection is broken once it has sent what it has.
    Breaking(ClientError),
    Ended,
}

/// One answer for one local client. Dropping it cancels the answer, unless it was asked
/// for as resumable.
pub struct Relay {
    /// Present until dropped.
    answer: Option<Answer>,
    line: Option<Line>,
    chunks: ChunkWriter,
    /// The last event id that was passed on.
    last_id: Option<u64>,
    state: State,
    resumable: bool,
}

impl Relay {
    /// Relays `answer`; `line` is its entry in the ledger.
    pub fn new(answer: Answer, line: Line, resumable: bool) -> Relay {
        Relay {
            answer: Some(answer),
            line: Some(line),
            chunks: ChunkWriter::new(),
            last_id: None,
            state: State::Opening,
            resumable,
        }
    }

    /// As a response's body.
    pub fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut relay| async move {
            let piece = relay.next().await?;
            Some((piece, relay))
        }))
    }

    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        match &self.state {
            State::Opening => {
                self.state = State::Streaming;
                return Some(Ok(Bytes::from_static(b": connected\n\n")));
            }
            State::Streaming => {}
            State::Breaking(error) => {
                let broken = Broken(error.to_string());
                self.state = State::Ended;
                // The connection sends what it has while nothing more is ready.
                tokio::task::yield_now().await;
                return Some(Err(broken));
            }
            State::Ended => return None,
        }
        loop {
            let answer = self.answer.as_mut()?;
            let Ok(step) = tokio::time::timeout(HEARTBEAT, answer.next()).await else {
                return Some(Ok(Bytes::from_static(b": waiting\n\n")));
            };
            match step {
                Ok(Some(step)) => {
                    let events = self.events(&step);
                    if !events.is_empty() {
                        return Some(Ok(events.into()));
                    }
                }
                Ok(None) => {
                    self.state = State::Ended;
                    self.strike();
                    return None;
                }
                Err(error) => return Some(Ok(self.break_off(error))),
            }
        }
    }

    /// The events of one step; of one that was seen before, none.
    fn events(&mut self, step: &Step) -> Vec<u8> {
        if let Some(line) = &self.line {
            line.note(step.offset);
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
                    self.chunks = ChunkWriter::new();
                }
                if let Err(error) = self.chunks.write(Some(step.offset), delta, &mut out) {
                    let error = ClientError::Malformed(format!("a record: {error}"));
                    out = self.break_off(error).to_vec();
                }
            }
        }
        if step.seen { Vec::new() } else { out }
    }

    /// The last event of an answer that is not whole. What the server said of that was
    /// passed on already.
    fn break_off(&mut self, error: ClientError) -> Bytes {
        self.strike();
        let event = match &error {
            ClientError::Stream(_) => ": broken\n\n".to_owned(),
            error => {
                let message = format!("The answer broke off: {error}.");
                format!("data: {}\n\n", super::proxy::error_json(&message, "answer_lost"))
            }
        };
        self.state = State::Breaking(error);
        event.into()
    }

    fn strike(&mut self) {
        if let Some(line) = self.line.take() {
            line.strike();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let unfinished = matches!(self.state, State::Opening | State::Streaming);
        if unfinished && !self.resumable {
            self.strike();
        }
        if let Some(answer) = self.answer.take()
            && unfinished
            && self.resumable
        {
            answer.leave();
        }
    }
}
