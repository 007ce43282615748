//! The routes of resumable answers: Durable Streams, and Loquent's own.

pub mod live;
pub mod read;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::response::Response;
use axum::routing::get;
use http::{Extensions, HeaderMap, HeaderValue, Uri, header};
use loquent_proto::{AnswerHandle, Position};

use crate::app::App;
use crate::routes::durable::live::LiveReader;
use crate::routes::durable::read::{describe, read, readable};
use crate::routes::resumable::{forget, handle, resume};
use crate::sse::{SseBody, event_stream};
use loquent_dialects::durable::content::{ContentWriter, Format};
use loquent_dialects::durable::request::{Mode, ReadRequest, Start};
use loquent_resumable::sse_reader::LogReader;
use loquent_serving::error::ApiError;
use loquent_serving::query::Query;

/// Returns the routes, which need no key: an answer's random token is its credential.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/streams/{id}", get(read_or_resume).head(head).delete(forget))
}

/// `GET /v1/streams/{id}`: with `offset` a read of Durable Streams, otherwise Loquent's own resume.
///
/// # Errors
/// 404 whichever part does not match, so that nothing can be learnt from it; 400 and 410 for
/// offsets that cannot be read.
pub async fn read_or_resume(
    State(app): State<Arc<App>>,
    UrlPath(id): UrlPath<String>,
    uri: Uri,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, ApiError> {
    let Some(request) = ReadRequest::parse(&uri)? else {
        return resume(State(app), UrlPath(id), uri, headers, extensions).await;
    };
    let handle = handle(&id, &uri, &headers).ok_or_else(ApiError::no_stream)?;
    match request.mode {
        Mode::Events => follow(&app, &handle, request).await,
        Mode::CatchUp | Mode::LongPoll { .. } => read(&app, &handle, &request, &headers).await,
    }
}

/// `HEAD /v1/streams/{id}`: returns the offset of the stream's end.
///
/// # Errors
/// 404 whichever part does not match.
pub async fn head(
    State(app): State<Arc<App>>,
    UrlPath(id): UrlPath<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let handle = handle(&id, &uri, &headers).ok_or_else(ApiError::no_stream)?;
    let format =
        if Query::of(&uri).text("as") == Some("text") { Format::Text } else { Format::Chunks };
    let mut response = describe(&app, &handle).await?;
    response.headers_mut().insert(header::CONTENT_TYPE, format.content_type());
    Ok(response)
}

async fn follow(
    app: &App,
    handle: &AnswerHandle,
    request: ReadRequest,
) -> Result<Response, ApiError> {
    let from = match request.start {
        Start::At(offset) => offset,
        Start::Now => u64::MAX,
    };
    // Looked at before attaching, which refuses without saying why.
    let look = app.resumable.look(handle, from, 0).await?;
    let (tail, from) = match request.start {
        Start::At(_) => {
            readable(&look)?;
            (look.head, look.from)
        }
        Start::Now => (look.head, look.head),
    };
    let has_nothing = look.has_failed && look.is_ended && from == tail;
    if has_nothing && !request.format.tells_failure() {
        return Err(ApiError::gone("The answer failed; the stream ends here."));
    }
    let position = Position::of(from);
    let (chunks, inbox) = app.resumable.attach_events(handle, position).await?;
    let writer = ContentWriter::new(request.format, chunks, from);
    let writer = if has_nothing { writer.after_failure() } else { writer };
    let reader = LogReader::new(inbox, writer);
    let reader = LiveReader::new(reader, request.format, request.cursor, tail);
    let body = SseBody::new(reader, Vec::new(), app.config.heartbeat);
    let mut response = event_stream(Body::new(body));
    // Without a charset: some clients compare the whole value.
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
