//! The routes of the AI SDK's chat transports. An answer continues when its connection is lost,
//! since it can be resumed; only `DELETE` ends it early.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;

use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request as HttpRequest, Uri};
use loquent_proto::{AnswerHandle, Position};

use crate::app::App;
use crate::chosen_ids::{ChosenId, NamedAnswer};
use crate::routes::generation::{Parsed, parse};
use crate::routes::resumable::{ResumableRequest, start_events, with_handle};
use crate::sse::{SseBody, event_stream, with_ignored};
use loquent_dialects::ui_stream::events::{STOPPED, UiWriter};
use loquent_dialects::ui_stream::request::{UiRequest, lower};
use loquent_resumable::sse_reader::{EventsInbox, LogReader};
use loquent_serving::error::{ApiError, no_content};
use loquent_serving::event_writer::{EventSource, StreamStatus};
use loquent_serving::identity::Identity;
use loquent_serving::query::Query;

/// Header that marks the body as a UI message stream, with its version.
const STREAM_HEADER: HeaderName = HeaderName::from_static("x-vercel-ai-ui-message-stream");
/// Header with the answer's own id, with which the workflow transport reconnects.
const RUN_HEADER: HeaderName = HeaderName::from_static("x-workflow-run-id");
/// Prefixes of run ids: of an answer that is a message of its own, and of one that extends the
/// previous message.
const RUN_PREFIXES: [&str; 2] = ["run-", "more-"];
/// Hexadecimal digits of an answer's id, which its token follows in a run id.
const ID_DIGITS: usize = 32;

type Shared = State<Arc<App>>;

/// The routes, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/ui/chat", post(ask))
        .route("/v1/ui/chat/{id}", delete(stop))
        .route("/v1/ui/chat/{id}/stream", get(resume).delete(stop))
}

/// `POST /v1/ui/chat`: answers a chat's messages, replacing the chat's latest answer.
async fn ask(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    app.models.check_room()?;
    let Parsed { request, kept: ui, arrived } = parse(&app, request, lower).await?;
    let identity = request.identity.clone();
    let resumable = ResumableRequest { request, arrived, idempotent: None };
    let (started, inbox) = start_events(&app, resumable).await?;
    let handle = &started.handle;
    let named = name_answer(&app, &identity, &ui, *handle).await;
    let response = with_ignored(stream(&app, inbox, 0, named), &started.ignored);
    let mut response = with_handle(response, handle);
    let run = HeaderValue::from_str(&run_id(handle, ui.continues));
    response.headers_mut().insert(RUN_HEADER, run.expect("hex is a header value"));
    Ok(response)
}

/// Registers the answer under the chat's id, if clients may choose ids, and stops the previous
/// answer. Otherwise the answer can be found only by its run id.
async fn name_answer(
    app: &App,
    identity: &Identity,
    ui: &UiRequest,
    handle: AnswerHandle,
) -> NamedAnswer {
    let named = NamedAnswer::begun(handle).continuing(ui.continues);
    let id = ui.chat_id.as_deref().and_then(|id| chat(app, identity, id).ok());
    if let Some(id) = id {
        let before = app.chosen_ids.insert(id, named.clone(), &app.resumable);
        if let Some(before) = before {
            before.stop(&app.resumable).await;
        }
    }
    named
}

fn chat(app: &App, identity: &Identity, id: &str) -> Result<ChosenId, ApiError> {
    ChosenId::new(app.config.is_local(), identity, id)
}

/// `GET /v1/ui/chat/{id}/stream`: replays the answer from its beginning, or returns 204 if a chat's
/// latest answer has been handed to a reader's connection to its end. A network can still lose it
/// there, which only the app knows: with `replay` it is replayed in any case. With a run id, starts
/// at chunk `startIndex`.
async fn resume(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    UrlPath(id): UrlPath<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = Query::of(&uri);
    let skipped = first_chunk(query.text("startIndex"))?;
    let is_lost = query.switch("replay")? == Some(true);
    let run = run_answer(&id);
    let is_run = run.is_some();
    let named = match run {
        Some(run) => run,
        None => match app.chosen_ids.find(&chat(&app, &identity, &id)?) {
            Some(named) if is_lost || !named.fate.is_read.load(Ordering::Relaxed) => named,
            _ => return Ok(no_content()),
        },
    };
    // From the beginning in any case: a chunk's number comes from the records before it.
    let begin = Position::default();
    let Ok((_, inbox)) = app.resumable.attach_events(&named.handle, begin).await else {
        // Forgotten, or longer than its log. Without a chat there is nothing to go on without it.
        return if is_run { Err(ApiError::no_stream()) } else { Ok(no_content()) };
    };
    Ok(stream(&app, inbox, skipped, named))
}

/// Returns the number of chunks to leave out for a reader that begins at `start`.
fn first_chunk(start: Option<&str>) -> Result<u64, ApiError> {
    let wrong = || {
        let message = "'startIndex' must be a whole number from 0 on.";
        ApiError::invalid_param("startIndex", message)
    };
    start.map_or(Ok(0), |start| start.parse().map_err(|_| wrong()))
}

/// `DELETE /v1/ui/chat/{id}`, or its stream: stops the answer. Succeeds if there is none, so that a
/// client may always ask.
async fn stop(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    UrlPath(id): UrlPath<String>,
) -> Result<Response, ApiError> {
    let named = match run_answer(&id) {
        Some(run) => Some(run),
        None => app.chosen_ids.remove(&chat(&app, &identity, &id)?),
    };
    if let Some(named) = named {
        named.stop(&app.resumable).await;
    }
    Ok(no_content())
}

fn run_id(handle: &AnswerHandle, continues: bool) -> String {
    let prefix = RUN_PREFIXES[usize::from(continues)];
    format!("{prefix}{}{}", handle.id_hex(), handle.token_hex())
}

fn run_answer(id: &str) -> Option<NamedAnswer> {
    let mut prefixes = RUN_PREFIXES.into_iter().enumerate();
    let digits = |(at, prefix)| Some((at == 1, id.strip_prefix(prefix)?));
    let (continues, digits) = prefixes.find_map(digits)?;
    // An id from a URL may have a character across its middle, where `split_at` panics.
    let (id, token) = digits.split_at_checked(digits.len() / 2)?;
    let handle = AnswerHandle::parse(id, token)?;
    Some(NamedAnswer::begun(handle).continuing(continues))
}

/// Returns `path` as a log may show it: each run id in it ends before its token, with which anybody
/// could read the answer.
pub fn without_tokens(path: &str) -> String {
    let shown: Vec<&str> = path.split('/').map(without_token).collect();
    shown.join("/")
}

fn without_token(segment: &str) -> &str {
    let prefix = RUN_PREFIXES.into_iter().find(|prefix| segment.starts_with(prefix));
    let cut = prefix.and_then(|prefix| segment.get(..prefix.len() + ID_DIGITS));
    cut.unwrap_or(segment)
}

fn stream(app: &App, inbox: EventsInbox, skipped: u64, named: NamedAnswer) -> Response {
    let writer = UiWriter::new(named.continues, skipped);
    let reader = UiReader { reader: LogReader::new(inbox, writer), named };
    let body = SseBody::new(reader, Vec::new(), app.config.heartbeat);
    let mut response = event_stream(Body::new(body));
    response.headers_mut().insert(STREAM_HEADER, HeaderValue::from_static("v1"));
    response
}

/// A reader that records when its connection has been handed the whole answer.
struct UiReader {
    reader: LogReader<UiWriter>,
    named: NamedAnswer,
}

impl EventSource for UiReader {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        match self.reader.poll_events(context, out) {
            StreamStatus::Complete => {
                self.named.fate.is_read.store(true, Ordering::Relaxed);
                StreamStatus::Complete
            }
            // By whichever id: all its readers hear of it alike.
            StreamStatus::Broken(_) if self.reader.is_stopped() => {
                out.extend_from_slice(STOPPED);
                StreamStatus::Complete
            }
            status => status,
        }
    }

    fn heartbeat(&self) -> Bytes {
        self.reader.heartbeat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logged_path_has_no_token() {
        let (id, token) = ("0a".repeat(16), "f7".repeat(16));
        let handle = AnswerHandle::parse(&id, &token).unwrap();
        for continues in [false, true] {
            let run = run_id(&handle, continues);
            for end in ["", "/stream", "/unknown"] {
                let shown = without_tokens(&format!("/v1/ui/chat/{run}{end}"));
                assert!(shown.contains(&id) && shown.ends_with(end), "{shown}");
                assert!(!shown.contains(&handle.token_hex()), "{shown}");
            }
        }
        for path in ["/", "/v1/ui/chat/run-a/stream", "/v1/chat/completions", "/run-\u{e9}"] {
            assert_eq!(without_tokens(path), path);
        }
    }
}
