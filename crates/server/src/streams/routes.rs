//! Kept answers over HTTP: begun by `"resumable": true`, resumed, and stopped
//! (`spec/session.md`, section 5).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Uri};
use loquent_proto::chunk::Chunks;
use serde_json::json;
use tokio::sync::mpsc;

use super::follow::{FollowBody, MAX_PIECES};
use super::{Name, Order, Path, PathId, Place, Question};
use crate::api::request::Request;
use crate::app::App;
use crate::ask::{Asked, ask};
use crate::error::ApiError;
use crate::http::with_unknown;
use crate::sse::event_stream;

const ID_HEADER: &str = "x-loquent-stream-id";
const TOKEN_HEADER: &str = "x-loquent-stream-token";

/// A kept answer that was admitted, and its place.
pub struct Begun {
    /// The answer.
    pub asked: Asked,
    /// Its place.
    pub place: Place,
}

/// Admits a request whose answer is to be kept; `key` is what it was asked with.
///
/// # Errors
/// Those of [`ask`], and 429 beyond the bounds of kept answers.
pub async fn begin(
    app: &App,
    mut request: Request,
    arrived: Duration,
    key: Option<&[u8]>,
) -> Result<Begun, ApiError> {
    request.resumable = true;
    request.stream.get_or_insert_default();
    let service = app.service()?;
    let place = app.streams.reserve(key)?;
    let asked = ask(service, request, arrived).await?;
    Ok(Begun { asked, place })
}

impl Begun {
    /// Delivers it over `path`, which its name is told first.
    ///
    /// # Errors
    /// 503 while the model loads, which it did before this.
    pub fn deliver(self, app: &App, id: PathId, path: Path) -> Result<Kept, ApiError> {
        let Asked { answering, echo, .. } = self.asked;
        let question = Question { vocab: &app.service()?.model.vocab, echo: &echo };
        let (name, orders) = app.streams.keep(self.place, answering, question, (id, path));
        Ok(Kept { name, orders })
    }
}

/// A kept answer under way.
pub struct Kept {
    /// Its name.
    pub name: Name,
    /// The way to it.
    pub orders: super::Orders,
}

/// Answers a streaming request with events that can be resumed (S-5.1).
///
/// # Errors
/// Those of [`begin`].
pub async fn stream(
    app: &App,
    request: Request,
    arrived: Duration,
    key: Option<&[u8]>,
) -> Result<Response, ApiError> {
    let begun = begin(app, request, arrived, key).await?;
    let unknown = begun.asked.unknown.clone();
    let (pieces, inbox) = mpsc::channel(MAX_PIECES);
    let body = FollowBody::new(inbox, Chunks::new(), app.options.heartbeat);
    let Kept { name, .. } = begun.deliver(app, PathId::next(), Path::Events(pieces))?;
    let mut response = with_unknown(event_stream(Body::new(body)), &unknown);
    let headers = response.headers_mut();
    for (header, bytes) in [(ID_HEADER, name.id), (TOKEN_HEADER, name.token)] {
        let value = HeaderValue::from_str(&hex(&bytes)).expect("hex is a header value");
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
    Ok(event_stream(Body::new(FollowBody::new(inbox, chunks, app.options.heartbeat))))
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
    let offer = app.offer().ok_or_else(ApiError::no_delivery)?;
    let body = json!({
        "version": 1,
        "port": offer.port,
        "certificate_sha256": offer.certificate_sha256.map(|hash| hex(&hash)),
        "path": crate::quic::PATH,
    });
    let json = [(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((json, body.to_string()).into_response())
}

fn name(id: &str, uri: &Uri, headers: &HeaderMap) -> Option<Name> {
    let token = text(headers, TOKEN_HEADER).or_else(|| query(uri, "token"))?;
    Some(Name { id: unhex(id)?, token: unhex(token)? })
}

/// A field of the query; what stands there needs no escapes.
fn query<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let mut fields = uri.query()?.split('&').filter_map(|field| field.split_once('='));
    fields.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| digits)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_32_digits() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255];
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        for bad in ["", "01", &"+".repeat(32), &format!("+{}", "1".repeat(31)), &"g".repeat(32)] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
