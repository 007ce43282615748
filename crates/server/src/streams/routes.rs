//! Kept answers over HTTP: begun by `"resumable": true`, resumed, and stopped
//! (`spec/session.md`, section 5).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Uri};
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::headers::{ID_HEADER, TOKEN_HEADER};
use loquent_proto::{AnswerHandle, hex};
use serde_json::json;
use tokio::sync::mpsc;

use super::follow::{FollowBody, MAX_PIECES};
use super::repeats::{First, Place as Asking, Repeatable};
use super::{Order, Path, PathId, Question};
use crate::api::request::Request;
use crate::app::App;
use crate::error::ApiError;
use crate::service::StartedAnswer;
use crate::sse::{event_stream, with_ignored};

/// A request whose answer is to be kept.
pub struct Keep<'a> {
    /// What is asked.
    pub request: Request,
    /// When it arrived, on the server's clock.
    pub arrived: Duration,
    /// The authorization it came with.
    pub key: Option<&'a [u8]>,
    /// What to know it by if it is asked again.
    pub repeatable: Option<Repeatable>,
}

/// A kept answer under way.
pub struct Kept {
    /// Its name.
    pub name: AnswerHandle,
    /// The way to it.
    pub orders: super::Orders,
    /// Names of parameters that have no effect, where that is worth a warning.
    pub unknown: String,
}

/// Admits a request and delivers its answer over `path`; one that was asked before has its
/// answer delivered there from the beginning (S-4.9).
///
/// # Errors
/// Those of [`Service::start`](crate::service::Service::start), and 429 beyond the bounds of kept answers; 404 if the answer's beginning
/// is not kept any more.
pub async fn keep(app: &App, keep: Keep<'_>, id: PathId, path: Path) -> Result<Kept, ApiError> {
    let unknown = keep.request.unknown().collect::<Vec<_>>().join(", ");
    let first = match &keep.repeatable {
        None => None,
        Some(repeatable) => match first_or_name(app, repeatable).await? {
            Ok(first) => Some(first),
            Err(name) => {
                let attached = app.streams.attach(&name, 0, id, path).await;
                let (_, orders) = attached.ok_or_else(ApiError::no_stream)?;
                return Ok(Kept { name, orders, unknown });
            }
        },
    };
    let Keep { mut request, arrived, key, .. } = keep;
    request.resumable = true;
    request.stream.get_or_insert_default();
    let service = app.service()?;
    let place = app.streams.reserve(key)?;
    let StartedAnswer { answering, echo, .. } = service.start(request, arrived).await?;
    let question = Question { vocab: &service.model().vocab, echo: &echo };
    let (name, orders) = app.streams.keep(place, answering, question, (id, path), first);
    Ok(Kept { name, orders, unknown })
}

/// The place of the first request, or the name of that one's answer.
async fn first_or_name(
    app: &App,
    request: &Repeatable,
) -> Result<Result<First, AnswerHandle>, ApiError> {
    loop {
        match app.streams.repeats.enter(request)? {
            Asking::First(first) => return Ok(Ok(first)),
            Asking::Again(again) => {
                if let Some(name) = again.name().await {
                    return Ok(Err(name));
                }
            }
        }
    }
}

/// Answers a streaming request with events that can be resumed (S-5.1).
///
/// # Errors
/// Those of [`keep`].
pub async fn stream(app: &App, request: Keep<'_>) -> Result<Response, ApiError> {
    let (pieces, inbox) = mpsc::channel(MAX_PIECES);
    let body = FollowBody::new(inbox, ChunkWriter::new(), app.config.heartbeat);
    let kept = keep(app, request, PathId::next(), Path::Events(pieces)).await?;
    let mut response = with_ignored(event_stream(Body::new(body)), &kept.unknown);
    let headers = response.headers_mut();
    let name = &kept.name;
    for (header, digits) in [(ID_HEADER, name.id_hex()), (TOKEN_HEADER, name.token_hex())] {
        let value = HeaderValue::from_str(&digits).expect("hex is a header value");
        headers.insert(header, value);
    }
    Ok(response)
}

/// `GET /v1/streams/{id}` (S-5.2).
///
/// # Errors
/// 404, whatever does not fit.
pub async fn resume(
    State(app): State<Arc<App>>,
    UrlPath(id): UrlPath<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let name = name(&id, &uri, &headers).ok_or_else(ApiError::no_stream)?;
    let from = text(&headers, "last-event-id").or_else(|| query(&uri, "from"));
    let offset = from.map_or(Some(0), |from| from.trim().parse().ok());
    let offset = offset.ok_or_else(ApiError::no_stream)?;
    let (pieces, inbox) = mpsc::channel(MAX_PIECES);
    let attached = app.streams.attach(&name, offset, PathId::next(), Path::Events(pieces)).await;
    let (chunks, _) = attached.ok_or_else(ApiError::no_stream)?;
    Ok(event_stream(Body::new(FollowBody::new(inbox, chunks, app.config.heartbeat))))
}

/// `DELETE /v1/streams/{id}` (S-5.3).
///
/// # Errors
/// 404, whatever does not fit.
pub async fn forget(
    State(app): State<Arc<App>>,
    UrlPath(id): UrlPath<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let name = name(&id, &uri, &headers).ok_or_else(ApiError::no_stream)?;
    let orders = app.streams.find(&name).ok_or_else(ApiError::no_stream)?;
    app.streams.forget(&name); // not found from here on, even if its task is busy
    let _ = orders.send(Order::Forget).await;
    Ok(crate::error::no_content())
}

/// `GET /v1/delivery` (S-1.3).
///
/// # Errors
/// 404 for a server without QUIC.
pub async fn delivery(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let address = app.quic_address().ok_or_else(ApiError::no_delivery)?;
    let body = json!({
        "version": 1,
        "port": address.port,
        "certificate_sha256": address.certificate_sha256.map(|hash| hex::encode(&hash)),
        "path": crate::app::WEB_TRANSPORT_PATH,
    });
    let json = [(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((json, body.to_string()).into_response())
}

fn name(id: &str, uri: &Uri, headers: &HeaderMap) -> Option<AnswerHandle> {
    let token = text(headers, TOKEN_HEADER).or_else(|| query(uri, "token"))?;
    AnswerHandle::parse(id, token)
}

/// A field of the query; what stands there needs no escapes.
fn query<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let mut fields = uri.query()?.split('&').filter_map(|field| field.split_once('='));
    fields.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
