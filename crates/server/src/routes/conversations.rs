//! The routes of llama-server's resumable streams.

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::request::Parts;
use http::{Extensions, Request as HttpRequest, Uri};
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{AnswerHandle, Position};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::api::fields::Fields;
use crate::app::App;
use crate::dialect::chosen_ids::{ChosenId, IdKind, NamedAnswer};
use crate::dialect::conversations::events::BytesFrom;
use crate::error::{ApiError, no_content};
use crate::event_writer::write_records;
use crate::identity::Identity;
use crate::json_response::json_response;
use crate::memory::SMALL_BYTES;
use crate::query::Query;
use crate::resumable::sse_reader::{EventsInbox, LogReader};
use crate::routes::resumable::{ResumableRequest, start_events, with_handle};
use crate::sse::{SseBody, event_stream, with_ignored};

/// Header that names the conversation to which a completion belongs.
const CONVERSATION_HEADER: &str = "x-conversation-id";
/// Maximum number of conversations in one lookup.
const MAX_LOOKED_UP: usize = 64;

type Shared = State<Arc<App>>;

/// The routes, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/stream", get(replay).delete(stop))
        .route("/v1/streams/lookup", post(look_up))
}

/// Returns the conversation that a streaming request with `head` names. If the server does not
/// accept clients' ids, the header is ignored: clients and proxies send it for their own purposes
/// too.
pub fn asked_id(app: &App, head: &Parts, identity: &Identity) -> Option<ChosenId> {
    let id = head.headers.get(CONVERSATION_HEADER)?.to_str().ok()?;
    ChosenId::new(&app.config.allowed_hosts, identity, IdKind::Conversation, id).ok()
}

/// Answers a completion of the conversation `id`, replacing its latest answer.
///
/// # Errors
/// The errors of [`start_events`].
pub async fn stream(
    app: &App,
    id: ChosenId,
    mut resumable: ResumableRequest,
    extensions: &Extensions,
) -> Result<Response, ApiError> {
    resumable.request.resumable = true;
    let (started, inbox) = start_events(app, resumable).await?;
    let before = app.chosen_ids.insert(id, NamedAnswer::begun(started.handle), &app.resumable);
    // A repeated request gets the answer that it began before, which has to go on.
    if let Some(before) = before.filter(|before| before.handle != started.handle) {
        before.stop(&app.resumable).await;
    }
    let response = events(app, inbox, chunks(app, &started.handle, extensions), 0);
    Ok(with_handle(with_ignored(response, &started.ignored), &started.handle))
}

/// `GET /v1/stream?conv_id=…&from=…`: returns the events of a conversation's latest answer from a
/// byte on.
async fn replay(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    uri: Uri,
    extensions: Extensions,
) -> Result<Response, ApiError> {
    let id = conversation(&app, &identity, &uri)?;
    let wrong = || ApiError::invalid_param("from", "'from' must be a number of bytes.");
    let from =
        Query::of(&uri).text("from").map_or(Ok(0), |from| from.parse().map_err(|_| wrong()))?;
    let named = app.chosen_ids.find(&id).ok_or_else(ApiError::no_stream)?;
    let (_, inbox) = app.resumable.attach_events(&named.handle, Position::default()).await?;
    Ok(events(&app, inbox, chunks(&app, &named.handle, &extensions), from))
}

/// `DELETE /v1/stream?conv_id=…`: stops a conversation's latest answer. Succeeds if there is none.
async fn stop(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let id = conversation(&app, &identity, &uri)?;
    if let Some(named) = app.chosen_ids.remove(&id) {
        named.stop(&app.resumable).await;
    }
    Ok(no_content())
}

/// `POST /v1/streams/lookup`: returns the client's conversations whose answers are kept.
async fn look_up(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let identity = head.extensions.get::<Identity>().cloned().unwrap_or_default();
    let body = app.bodies.receive(&mut head, body).await?;
    let ids = body.parse(asked_ids).await?;
    let mut found = Vec::new();
    for id in ids {
        let chosen =
            ChosenId::new(&app.config.allowed_hosts, &identity, IdKind::Conversation, &id)?;
        if let Some(named) = app.chosen_ids.find(&chosen) {
            found.extend(describe(&app, &id, &named, &head.extensions).await);
        }
    }
    Ok(json_response(&Value::Array(found)))
}

fn asked_ids(mut fields: Fields) -> Result<HashSet<String>, ApiError> {
    let ids = fields.array("conversation_ids")?;
    let ids = ids.ok_or_else(|| fields.error("conversation_ids", "is required."))?;
    if ids.len() > MAX_LOOKED_UP {
        let wrong = format!("has more than {MAX_LOOKED_UP} entries.");
        return Err(fields.error("conversation_ids", wrong));
    }
    let text = |id| match id {
        Value::String(id) => Ok(id),
        _ => Err(fields.error("conversation_ids", "must be strings.")),
    };
    ids.into_iter().map(text).collect()
}

/// Describes a conversation's state in llama-server's format; `None` if its answer is forgotten.
async fn describe(
    app: &App,
    id: &str,
    named: &NamedAnswer,
    extensions: &Extensions,
) -> Option<Value> {
    let look = app.resumable.look(&named.handle, 0, usize::MAX).await.ok()?;
    let (is_large, is_ended) = (look.bytes.len() > SMALL_BYTES, look.is_ended);
    let chunks = chunks(app, &named.handle, extensions);
    let count = move || {
        // All is left out: only the number of bytes is wanted.
        let (mut writer, _) = BytesFrom::new(chunks, u64::MAX);
        let written = write_records(&look.bytes, 0, &mut writer, &mut Vec::new());
        written.map_err(|error| ApiError::bad_gateway(error.to_string()))?;
        Ok(writer.total())
    };
    let total = app.bodies.workers().run_if(is_large, count).await.ok()?;
    Some(json!({
        "conversation_id": id,
        "is_done": is_ended,
        "total_bytes": total,
        "started_at": named.started_s,
    }))
}

fn conversation(app: &App, identity: &Identity, uri: &Uri) -> Result<ChosenId, ApiError> {
    let id = Query::of(uri).text("conv_id").unwrap_or_default();
    let wrong = || ApiError::invalid_param("conv_id", "'conv_id' is not valid UTF-8.");
    let id = percent_decode_str(id).decode_utf8().map_err(|_| wrong())?;
    ChosenId::new(&app.config.allowed_hosts, identity, IdKind::Conversation, &id)
}

fn chunks(app: &App, handle: &AnswerHandle, extensions: &Extensions) -> ChunkWriter {
    // The same for every reader, or padding would move the bytes that clients count.
    let seed = u64::from_le_bytes(std::array::from_fn(|at| handle.id[at]));
    ChunkWriter::new().obfuscate(app.config.obfuscation.of_answer(seed, extensions))
}

fn events(app: &App, inbox: EventsInbox, chunks: ChunkWriter, from: u64) -> Response {
    let (writer, preface) = BytesFrom::new(chunks, from);
    let reader = LogReader::new(inbox, writer);
    event_stream(Body::new(SseBody::new(reader, preface, app.config.heartbeat)))
}
