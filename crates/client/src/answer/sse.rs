//! A resumable answer over server-sent events (`spec/session.md`, section 5).

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use loquent_openai::http::{HttpResponse, json_request, refusal};
use loquent_proto::AnswerHandle;
use loquent_proto::headers::{ID_HEADER, TOKEN_HEADER};
use loquent_proto::sse::{Event, Parser};
use tokio::time::Instant;

use super::state::{AnswerState, PathOutcome};
use super::step::chunk_error;
use crate::ClientError;
use crate::connections::Connections;

/// Maximum length of one event, in bytes.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Silence after which a connection counts as dead: servers send a heartbeat at least every 15 s
/// (S-6.5), so three were lost.
const SILENCE: Duration = Duration::from_secs(45);
/// Interval between checks of this machine's address.
const NETWORK_CHECK: Duration = Duration::from_secs(1);

/// Returns the handle in a response's headers (S-5.1).
pub(crate) fn handle_of(headers: &HeaderMap) -> Option<AnswerHandle> {
    let value = |name: &str| headers.get(name)?.to_str().ok();
    AnswerHandle::parse(value(ID_HEADER)?, value(TOKEN_HEADER)?)
}

/// A response whose body is the answer.
pub(crate) struct SsePath {
    response: HttpResponse,
    parser: Parser,
    /// Time of the latest sign of life, or at which the reader was last behind.
    heard_at: Instant,
}

impl SsePath {
    /// Creates a path that reads the body of `response` as events.
    pub(crate) fn new(response: HttpResponse) -> SsePath {
        SsePath { response, parser: Parser::new(MAX_EVENT_BYTES), heard_at: Instant::now() }
    }

    /// Returns the time of the latest sign of life.
    pub(super) const fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Requests the rest of an answer (S-5.2).
    ///
    /// # Errors
    /// [`ClientError::Gone`] for 404; otherwise a failure to reach the server.
    pub(crate) async fn resume(
        connections: &Connections,
        handle: AnswerHandle,
        offset: u64,
    ) -> Result<SsePath, ClientError> {
        let path = format!("/v1/streams/{}", handle.id_hex());
        let mut request = json_request(Method::GET, &path, Bytes::new())?;
        let token = HeaderValue::try_from(handle.token_hex()).expect("hex digits");
        request.headers_mut().insert(TOKEN_HEADER, token);
        request.headers_mut().insert("last-event-id", HeaderValue::from(offset));
        let response = connections.http().send(request).await?;
        match response.status().as_u16() {
            200 => Ok(SsePath::new(response)),
            404 => Err(ClientError::Gone),
            _ => Err(refusal(response).await.into()),
        }
    }
}

/// Items read from one body.
struct BodyReading {
    cursor: u64,
    /// Chunks, each with the log offset after it.
    items: Vec<(u64, Bytes)>,
    end: Option<PathOutcome>,
}

impl BodyReading {
    fn handle_event(&mut self, event: Event<'_>) {
        if self.end.is_some() {
            return;
        }
        let id = std::str::from_utf8(event.last_event_id).ok().and_then(|id| id.parse().ok());
        let offset = id.unwrap_or(self.cursor);
        if offset < self.cursor {
            return; // It was handed over before.
        }
        self.cursor = offset;
        let data = Bytes::copy_from_slice(event.data);
        self.end = match chunk_error(&data) {
            Some(message) => Some(PathOutcome::Failed(ClientError::Stream(message))),
            None if *data == *b"[DONE]" => Some(PathOutcome::Complete),
            None => None,
        };
        self.items.push((offset, data));
    }
}

impl SsePath {
    /// Reads the answer from this path until the path ends.
    pub(super) async fn carry(&mut self, state: &mut AnswerState) -> PathOutcome {
        let mut end: Option<PathOutcome> = None;
        let mut quic_up = state.connections.quic_up();
        let items = state.items.clone();
        let network = (state.connections.config().network)();
        let mut check = tokio::time::interval(NETWORK_CHECK);
        loop {
            let ready = state.waiting.is_empty();
            if ready && let Some(end) = end.take() {
                return end;
            }
            tokio::select! {
                biased;
                () = items.closed() => return PathOutcome::Cancelled,
                permit = items.reserve(), if !ready => {
                    if let (Ok(permit), Some(item)) = (permit, state.waiting.pop_front()) {
                        permit.send(item);
                    }
                    self.heard_at = Instant::now(); // The reader was slow, not the server.
                }
                piece = self.response.body_mut().piece(), if ready => {
                    self.heard_at = Instant::now();
                    match piece {
                        Ok(Some(piece)) => end = self.handle_piece(state, &piece),
                        Ok(None) => return PathOutcome::Lost(ClientError::Truncated),
                        Err(error) => return PathOutcome::Lost(error.into()),
                    }
                }
                () = quic_up.came_up(), if ready => return PathOutcome::Upgrade,
                _ = check.tick(), if ready => {
                    let now = (state.connections.config().network)();
                    if now.is_some() && now != network {
                        state.connections.retry_quic();
                        return PathOutcome::lost("this machine has a new address");
                    }
                }
                () = tokio::time::sleep_until(self.heard_at + SILENCE), if ready => {
                    return PathOutcome::lost("the server has sent nothing for a while");
                }
            }
        }
    }

    fn handle_piece(&mut self, state: &mut AnswerState, piece: &[u8]) -> Option<PathOutcome> {
        let mut reading = BodyReading { cursor: state.cursor, items: Vec::new(), end: None };
        let pushed = self.parser.push(piece, |event| reading.handle_event(event));
        state.cursor = reading.cursor;
        for (offset, data) in reading.items {
            if let Err(error) = state.deliver_chunk(offset, data) {
                return Some(PathOutcome::Failed(error));
            }
        }
        match (reading.end, pushed) {
            (None, Err(error)) => Some(PathOutcome::Failed(error.into())),
            (end, _) => end,
        }
    }
}
