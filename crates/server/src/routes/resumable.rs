//! Resumable answers over HTTP: begun by `"resumable": true`, resumed, and stopped
//! (`spec/session.md`, section 5).

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{Extensions, HeaderMap, HeaderValue, Uri};
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::headers::{ID_HEADER, TOKEN_HEADER};
use loquent_proto::obfuscation::Obfuscation;
use loquent_proto::{AnswerHandle, Position, grease, hex};
use serde_json::json;

use crate::app::App;
use crate::routes::stored_chats;
use crate::service::StartedAnswer;
use crate::sse::{SseBody, event_stream, with_ignored};
use loquent_resumable::idempotency::{FirstRequest, IdempotentRequest, KeyUse};
use loquent_resumable::sse_reader::{EventsInbox, LogReader, events_path};
use loquent_resumable::{
    AttachedReader, BegunAnswer, CommandSender, PathId, ReaderPath, StoreAnnouncement,
};
use loquent_serving::api::request::Request;
use loquent_serving::error::{ApiError, no_content};
use loquent_serving::query::Query;
use loquent_serving::records::RecordContext;
use loquent_store::AnswerFence;

/// Returns the routes by which clients find QUIC, open to everybody.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/.well-known/loquent", get(delivery)).route("/v1/delivery", get(delivery))
}

/// A request for a resumable answer.
pub struct ResumableRequest {
    /// The request itself.
    pub request: Request,
    /// Arrival time, on the server's clock.
    pub arrived: Duration,
    /// Idempotency key, if any.
    pub idempotent: Option<IdempotentRequest>,
}

/// A resumable answer that has begun, or was joined.
pub struct JoinedAnswer {
    /// Handle with which its reader resumes it.
    pub handle: AnswerHandle,
    /// Epoch of its log.
    pub epoch: u64,
    /// Sends commands to its task.
    pub commands: CommandSender,
    /// Names of ignored parameters that are worth a warning.
    pub ignored: String,
    /// To be waited for before its reader gets the handle.
    pub announcement: StoreAnnouncement,
}

/// Admits a request and delivers its answer over `path`. A repeated request joins the first one's
/// answer and gets it from the beginning (S-4.9).
///
/// # Errors
/// Those of [`Service::start`](crate::service::Service::start), and 429 beyond the limits of
/// resumable answers; 404 if the beginning of the answer to be joined is gone.
pub async fn start(
    app: &App,
    resumable: ResumableRequest,
    id: PathId,
    path: ReaderPath,
) -> Result<JoinedAnswer, ApiError> {
    let ignored = resumable.request.ignored_names();
    let first = match &resumable.idempotent {
        None => None,
        Some(idempotent) => match first_or_handle(app, idempotent).await? {
            Ok(first) => Some(first),
            Err(handle) => {
                let begin = Position::default();
                let attached = app.resumable.attach(&handle, begin, id, path).await?;
                let AttachedReader { epoch, commands, .. } = attached;
                let announcement = StoreAnnouncement::default();
                return Ok(JoinedAnswer { handle, epoch, commands, ignored, announcement });
            }
        },
    };
    let ResumableRequest { mut request, arrived, .. } = resumable;
    request.resumable = true;
    request.stream.get_or_insert_default();
    let kept = request.kept.take();
    let kept_bytes = kept.as_ref().map_or(0, |kept| kept.len());
    let reservation = app.resumable.reserve(request.identity.tenant, kept_bytes)?;
    let (of, store) = ((request.identity.owner(), AnswerFence::FIRST), request.store.take());
    let StartedAnswer { mut active, echo, vocab, .. } = app.models.start(request, arrived).await?;
    stored_chats::record(app, &vocab, of, store, &mut active);
    let context = RecordContext { vocab: &vocab, echo: &echo, logprobs: None };
    let begun = app.resumable.start(reservation, active, &context, (id, path), (first, kept));
    let BegunAnswer { handle, commands, announcement } = begun;
    Ok(JoinedAnswer { handle, epoch: 0, commands, ignored, announcement })
}

/// Like [`start`], for a reader of server-sent events.
///
/// # Errors
/// As [`start`].
pub async fn start_events(
    app: &App,
    resumable: ResumableRequest,
) -> Result<(JoinedAnswer, EventsInbox), ApiError> {
    let (path, inbox) = events_path(0);
    let started = start(app, resumable, PathId::next(), ReaderPath::Events(path)).await?;
    started.announcement.made().await;
    Ok((started, inbox))
}

/// Adds the headers with which an answer is resumed to `response` (S-5.1).
pub fn with_handle(mut response: Response, handle: &AnswerHandle) -> Response {
    for (name, digits) in [(ID_HEADER, handle.id_hex()), (TOKEN_HEADER, handle.token_hex())] {
        let value = HeaderValue::from_str(&digits).expect("hex is a header value");
        response.headers_mut().insert(name, value);
    }
    response
}

/// Makes `request` the first with its key, or returns the handle of the first one's answer.
async fn first_or_handle(
    app: &App,
    request: &IdempotentRequest,
) -> Result<Result<FirstRequest, AnswerHandle>, ApiError> {
    loop {
        match app.resumable.idempotency.enter(request)? {
            KeyUse::First(first) => return Ok(Ok(first)),
            KeyUse::Repeated(repeated) => {
                // Without a handle the first one was refused: then this one may be the first.
                if let Some(handle) = repeated.handle().await {
                    return Ok(Err(handle));
                }
            }
        }
    }
}

/// Answers a streaming request with resumable events (S-5.1).
///
/// # Errors
/// As [`start`].
pub async fn stream(
    app: &App,
    request: ResumableRequest,
    obfuscation: Obfuscation,
) -> Result<Response, ApiError> {
    let (started, inbox) = start_events(app, request).await?;
    let chunks = ChunkWriter::new().obfuscate(obfuscation);
    let response = events(app, LogReader::new(inbox, chunks));
    Ok(with_handle(with_ignored(response, &started.ignored), &started.handle))
}

fn events(app: &App, reader: LogReader<ChunkWriter>) -> Response {
    event_stream(Body::new(SseBody::new(reader, Vec::new(), app.config.heartbeat)))
}

/// `GET /v1/streams/{id}` (S-5.2).
///
/// # Errors
/// 404 if any part is wrong, so that nothing can be learnt from it; 503 for another replica's
/// answer that cannot be served here now.
pub async fn resume(
    State(app): State<Arc<App>>,
    UrlPath(id): UrlPath<String>,
    uri: Uri,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, ApiError> {
    let handle = handle(&id, &uri, &headers).ok_or_else(ApiError::no_stream)?;
    let from = text(&headers, "last-event-id").or_else(|| Query::of(&uri).text("from"));
    let offset = from.map_or(Some(0), |from| from.trim().parse().ok());
    let offset = offset.ok_or_else(ApiError::no_stream)?;
    let position = Position::of(offset);
    let (chunks, inbox) = app.resumable.attach_events(&handle, position).await?;
    let chunks = chunks.obfuscate(app.config.obfuscation.of_request(&extensions));
    Ok(events(&app, LogReader::new(inbox, chunks)))
}

/// `DELETE /v1/streams/{id}` (S-5.3).
///
/// # Errors
/// 404 if any part is wrong, so that nothing can be learnt from it; 503 if the replica that
/// generates the answer cannot be reached.
pub async fn forget(
    State(app): State<Arc<App>>,
    UrlPath(id): UrlPath<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let handle = handle(&id, &uri, &headers).ok_or_else(ApiError::no_stream)?;
    app.resumable.stop(&handle).await?;
    Ok(no_content())
}

/// `GET /.well-known/loquent`, or `/v1/delivery`, its older name (S-1.3).
///
/// # Errors
/// 404 for a server without QUIC.
pub async fn delivery(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let address = app.quic_address().ok_or_else(ApiError::no_delivery)?;
    let mut body = json!({
        "version": 1,
        "port": address.port,
        "certificate_sha256": address.certificate_sha256.map(|hash| hex::encode(&hash)),
        "path": crate::app::WEB_TRANSPORT_PATH,
    });
    if let Some(hash) = app.config.https_certificate_sha256 {
        body["https_certificate_sha256"] = hex::encode(&hash).into();
    }
    if rand::random_ratio(1, 4) {
        body[grease::JSON_MEMBER] = json!({}); // which clients ignore (S-2.7)
    }
    let json = [(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((json, body.to_string()).into_response())
}

pub fn handle(id: &str, uri: &Uri, headers: &HeaderMap) -> Option<AnswerHandle> {
    let token = text(headers, TOKEN_HEADER).or_else(|| Query::of(uri).text("token"))?;
    AnswerHandle::parse(id, token)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
