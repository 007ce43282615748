//! Catch-up reads and long polls.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{AnswerHandle, hex};

use crate::app::App;
use loquent_dialects::durable::content::ContentWriter;
use loquent_dialects::durable::cursor::{next_cursor, shown};
use loquent_dialects::durable::request::{Mode, ReadRequest, Start};
use loquent_resumable::LogSnapshot;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::{ApiError, no_content, not_modified};
use loquent_serving::event_writer::write_records;

/// Maximum log bytes in one response.
const MOST_BYTES: usize = 64 * 1024;

/// Header with the offset to continue from.
pub const NEXT_OFFSET: HeaderName = HeaderName::from_static("stream-next-offset");
const UP_TO_DATE: HeaderName = HeaderName::from_static("stream-up-to-date");
const CLOSED: HeaderName = HeaderName::from_static("stream-closed");
const CURSOR: HeaderName = HeaderName::from_static("stream-cursor");
const TRUE: HeaderValue = HeaderValue::from_static("true");

/// A piece of a stream.
struct Piece {
    content: Vec<u8>,
    from: u64,
    next: u64,
    is_up_to_date: bool,
    is_closed: bool,
    /// True if the answer failed and the piece cannot report it.
    failure_follows: bool,
}

impl Piece {
    /// Returns the content that `look` found.
    fn of(request: &ReadRequest, look: LogSnapshot) -> Result<Self, ApiError> {
        let (chunks, from) = (readable(&look)?, look.from);
        let mut writer = ContentWriter::new(request.format, chunks, from);
        let mut content = Vec::new();
        let written = write_records(&look.bytes, from, &mut writer, &mut content);
        let next = written.map_err(|error| ApiError::bad_gateway(error.to_string()))?;
        let is_up_to_date = next == look.head;
        let tells_failure = request.format.tells_failure();
        let is_over = is_up_to_date && look.is_ended;
        Ok(Self {
            content,
            from,
            next,
            is_up_to_date,
            is_closed: is_over && (tells_failure || !look.has_failed),
            failure_follows: is_over && look.has_failed && !tells_failure,
        })
    }
}

/// Returns the state of the chunks at the offset that `look` was read from.
///
/// # Errors
/// 410 if the content there is no longer kept, 400 if it is no offset of the stream.
pub fn readable(look: &LogSnapshot) -> Result<ChunkWriter, ApiError> {
    match &look.chunks {
        Some(chunks) => Ok(chunks.clone()),
        None if look.from < look.base => {
            let message = "That part of the stream is no longer kept. Start again with \
                           'offset=now'.";
            Err(ApiError::gone(message))
        }
        None => {
            let wrong = "'offset' was not issued by this server for this stream.";
            Err(ApiError::invalid_param("offset", wrong))
        }
    }
}

/// Answers a catch-up read or long poll.
///
/// # Errors
/// 404 for an unknown stream; 400 and 410 for offsets that cannot be read; 410 also for the end of
/// a failed answer if its text cannot report the failure.
pub async fn read(
    app: &App,
    handle: &AnswerHandle,
    request: &ReadRequest,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let from = match request.start {
        Start::At(offset) => offset,
        // Nobody has that offset: the log's ends are all that is found.
        Start::Now => {
            let look = app.resumable.look(handle, u64::MAX, 0).await?;
            look.head
        }
    };
    let piece = match request.mode {
        Mode::LongPoll { timeout } => {
            match tokio::time::timeout(timeout, next_piece(app, handle, request, from)).await {
                Ok(piece) => piece?,
                Err(_) => {
                    let look = app.resumable.look(handle, from, 0).await?;
                    Piece::of(request, look)?
                }
            }
        }
        _ => {
            let most = if request.start == Start::Now { 0 } else { MOST_BYTES };
            let look = app.resumable.look(handle, from, most).await?;
            Piece::of(request, look)?
        }
    };
    if piece.failure_follows && piece.content.is_empty() {
        return Err(ApiError::gone("The answer failed; the stream ends here."));
    }
    Ok(response(handle, request, piece, headers))
}

/// Returns the next piece with content, or the stream's end. Skips records that have no content in
/// this format.
async fn next_piece(
    app: &App,
    handle: &AnswerHandle,
    request: &ReadRequest,
    mut from: u64,
) -> Result<Piece, ApiError> {
    loop {
        let look = app.resumable.look_ahead(handle, from, MOST_BYTES).await?;
        let is_idle = look.head == look.from;
        let piece = Piece::of(request, look)?;
        let is_over = piece.is_closed || piece.failure_follows;
        // An idle one is sent away because too many wait already.
        if !piece.content.is_empty() || is_over || is_idle {
            return Ok(piece);
        }
        from = piece.next;
    }
}

fn response(
    handle: &AnswerHandle,
    request: &ReadRequest,
    piece: Piece,
    headers: &HeaderMap,
) -> Response {
    let Piece { content, from, next, is_up_to_date, is_closed, .. } = piece;
    let is_poll = matches!(request.mode, Mode::LongPoll { .. });
    // The end varies with closure, so that nobody keeps what hides it.
    let end = if is_closed { ":c" } else { "" };
    let etag = format!("\"{}:{}:{}{end}\"", hex::encode(&handle.id[..8]), shown(from), shown(next));
    let has_it = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known == etag.as_str());
    let is_now = request.start == Start::Now;
    let mut response = match (is_poll && content.is_empty(), has_it && !is_now) {
        (true, _) => no_content(),
        (false, true) => not_modified(),
        (false, false) => Response::new(Body::from(request.format.body(content))),
    };
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, request.format.content_type());
    out.insert(NEXT_OFFSET, text(&shown(next)));
    // What is at the stream's end is not the same a moment later.
    let cached = match is_up_to_date {
        true => "no-store",
        false => "private, max-age=60, stale-while-revalidate=300",
    };
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static(cached));
    if !is_now {
        out.insert(header::ETAG, text(&etag));
    }
    if is_up_to_date {
        out.insert(UP_TO_DATE, TRUE);
    }
    if is_closed {
        out.insert(CLOSED, TRUE);
    }
    if is_poll {
        let cursor = next_cursor(unix_time_s(), request.cursor.as_deref(), rand::random());
        out.insert(CURSOR, HeaderValue::from(cursor));
    }
    response
}

/// Returns the stream's end, without its content.
///
/// # Errors
/// 404 for an unknown stream.
pub async fn describe(app: &App, handle: &AnswerHandle) -> Result<Response, ApiError> {
    let look = app.resumable.look(handle, u64::MAX, 0).await?;
    let mut response = Response::new(Body::empty());
    let out = response.headers_mut();
    out.insert(NEXT_OFFSET, text(&shown(look.head)));
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if look.is_ended && !look.has_failed {
        out.insert(CLOSED, TRUE);
    }
    Ok(response)
}

fn text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("digits, hex and punctuation")
}
