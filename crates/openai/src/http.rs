//! Pooled client of one server, on hyper-util: HTTP/1.1, or a single HTTP/2 connection.
//!
//! Servers may close an idle connection at any time, and a request sent at that moment is lost.
//! [`HttpClient::send`] retries such a request once, on a fresh connection, if its connection had
//! served a request before and failed within a second, without a byte of a response. In all other
//! cases the server may have begun to work, so the request is not sent again.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use loquent_proto::printable::printable;
use tower_service::Service;

use crate::dial::{BoxFuture, Dial, HostDial};
use crate::error::causes;
use crate::exchange::{Exchange, RequestBody};
use crate::metered::{MeteredIo, WireCounts};
use crate::tls::Trust;
use crate::{BaseUrl, HttpError, HttpVersion};

/// Maximum idle connections; any beyond are closed. As many as a load generator may have requests
/// in flight.
const MAX_IDLE: usize = 4096;
/// Default time limit for opening a connection: allows for three lost SYNs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes read of an error response's body for its message.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Maximum characters kept of an error response's message.
const MAX_MESSAGE_CHARS: usize = 300;

/// A response whose head has arrived.
pub type HttpResponse = Response<ResponseBody>;

/// Connection options of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Size of the kernel's receive buffer. With a small one, the server soon notices a client that
    /// stops reading. If set, the connection serves only this request.
    pub recv_buffer_bytes: Option<u32>,
}

/// Client of one server. Cheap to clone; clones share their idle connections.
#[derive(Clone)]
pub struct HttpClient {
    base: BaseUrl,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    version: HttpVersion,
    connector: Connector,
    pool: legacy::Client<Connector, RequestBody>,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "HttpClient({})", self.base)
    }
}

impl HttpClient {
    /// Creates a client of the server at `base`, whose certificate must chain to a system
    /// authority. `api_key` is the bearer token of every request without an `Authorization` header.
    ///
    /// # Errors
    /// [`HttpError::ApiKey`] for a key with characters not allowed in a header; [`HttpError::Url`]
    /// or [`HttpError::Tls`] if TLS cannot be used with `base`.
    pub fn new(base: BaseUrl, api_key: Option<&str>) -> Result<Self, HttpError> {
        Self::with_trust(base, api_key, Trust::System)
    }

    /// Like [`HttpClient::new`], with the given trust in certificates.
    ///
    /// # Errors
    /// Same as [`HttpClient::new`].
    pub fn with_trust(
        base: BaseUrl,
        api_key: Option<&str>,
        trust: Trust,
    ) -> Result<Self, HttpError> {
        let dial = Arc::new(HostDial::new(&base, trust, HttpVersion::One)?);
        Self::with_dial(base, api_key, dial)
    }

    /// Like [`HttpClient::with_trust`], with all requests on one HTTP/2 connection: by prior
    /// knowledge, or by ALPN over TLS.
    ///
    /// # Errors
    /// Same as [`HttpClient::new`].
    pub fn over_http2(
        base: BaseUrl,
        api_key: Option<&str>,
        trust: Trust,
    ) -> Result<Self, HttpError> {
        let version = HttpVersion::Two;
        let dial = Arc::new(HostDial::new(&base, trust, version)?);
        let client = Self::with_dial(base, api_key, dial)?;
        let pool = pool_of(client.connector.clone(), MAX_IDLE, version);
        Ok(Self { version, pool, ..client })
    }

    /// Like [`HttpClient::new`], with connections opened by `dial`.
    ///
    /// # Errors
    /// [`HttpError::ApiKey`], or [`HttpError::Url`] for a host not allowed in a header.
    pub fn with_dial(
        base: BaseUrl,
        api_key: Option<&str>,
        dial: Arc<dyn Dial>,
    ) -> Result<Self, HttpError> {
        let host = HeaderValue::from_str(base.authority()).map_err(|_| HttpError::Url {
            url: base.to_string(),
            reason: "its host cannot be put in a header",
        })?;
        let authorization = api_key.map(bearer).transpose()?;
        let connector = Connector { dial, recv_buffer_bytes: None, timeout: CONNECT_TIMEOUT };
        let version = HttpVersion::One;
        let pool = pool_of(connector.clone(), MAX_IDLE, version);
        Ok(Self { base, host, authorization, version, connector, pool })
    }

    /// Returns the client with another time limit for opening a connection.
    #[must_use]
    pub fn with_connect_timeout(self, timeout: Duration) -> Self {
        let connector = Connector { timeout, ..self.connector };
        let pool = pool_of(connector.clone(), MAX_IDLE, self.version);
        Self { connector, pool, ..self }
    }

    /// The server's URL.
    pub const fn base(&self) -> &BaseUrl {
        &self.base
    }

    /// Sends `request`, whose URI is a path below the base URL, and waits for the response's head.
    /// Returns `Ok` for any status.
    ///
    /// # Errors
    /// [`HttpError::Connect`] if the server has not received the request, [`HttpError::Broken`] if
    /// it may have, or [`HttpError::Url`] if the path does not form a valid URI.
    pub async fn send(&self, request: Request<Bytes>) -> Result<HttpResponse, HttpError> {
        let request = self.complete(request)?;
        let (first, exchange) = Exchange::attach(request.clone());
        match self.pool.request(first).await {
            Err(error) if exchange.may_be_sent_again() => {
                tracing::debug!(error = causes(&error), "sending a request again");
                // Every idle connection may be as stale, so it gets a connection of its own.
                self.send_alone(request, None).await.map_err(HttpError::after_sending)
            }
            outcome => self.response(outcome, exchange),
        }
    }

    /// Sends `request` like [`HttpClient::send`]. With non-default `options`, the request gets a
    /// connection of its own.
    ///
    /// # Errors
    /// Same as [`HttpClient::send`].
    pub async fn send_with(
        &self,
        request: Request<Bytes>,
        options: ConnectionOptions,
    ) -> Result<HttpResponse, HttpError> {
        match options.recv_buffer_bytes {
            None => self.send(request).await,
            bytes => self.send_alone(self.complete(request)?, bytes).await,
        }
    }

    /// Fetches `path` and reads the whole response, up to `limit_bytes`.
    ///
    /// # Errors
    /// Same as [`HttpClient::call`].
    pub async fn get(&self, path: &str, limit_bytes: usize) -> Result<Bytes, HttpError> {
        self.call(Method::GET, path, Bytes::new(), limit_bytes).await
    }

    /// Sends one request and reads the whole response, up to `limit_bytes`.
    ///
    /// # Errors
    /// The errors of [`HttpClient::send`], [`HttpError::Refused`] for a status other than 200, and
    /// [`HttpError::TooLarge`].
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit_bytes: usize,
    ) -> Result<Bytes, HttpError> {
        let response = self.send(json_request(method, path, body)?).await?;
        if response.status().as_u16() != 200 {
            return Err(refusal(response).await);
        }
        response.into_body().read_all(limit_bytes).await
    }

    /// Adds the parts common to all requests: the full URI, `Host`, and the API key.
    fn complete(&self, mut request: Request<Bytes>) -> Result<Request<Bytes>, HttpError> {
        *request.uri_mut() = self.base.join(request.uri())?;
        request.headers_mut().insert(header::HOST, self.host.clone());
        if let Some(key) = &self.authorization {
            request.headers_mut().entry(header::AUTHORIZATION).or_insert_with(|| key.clone());
        }
        Ok(request)
    }

    async fn send_alone(
        &self,
        request: Request<Bytes>,
        recv_buffer_bytes: Option<u32>,
    ) -> Result<HttpResponse, HttpError> {
        let (request, exchange) = Exchange::attach(request);
        let connector = Connector { recv_buffer_bytes, ..self.connector.clone() };
        let pool = pool_of(connector, 0, self.version);
        self.response(pool.request(request).await, exchange)
    }

    fn response(
        &self,
        outcome: Result<Response<Incoming>, legacy::Error>,
        exchange: Arc<Exchange>,
    ) -> Result<HttpResponse, HttpError> {
        let authority = self.base.authority();
        match outcome {
            Ok(response) => {
                let shares_connection = response.version() == http::Version::HTTP_2;
                let authority = authority.into();
                Ok(response.map(|incoming| ResponseBody {
                    incoming,
                    exchange,
                    authority,
                    shares_connection,
                }))
            }
            Err(error) => {
                let authority = authority.to_owned();
                // hyper-util's own words ("client error (SendRequest)") tell users nothing.
                let cause = std::error::Error::source(&error);
                let reason = cause.map_or_else(|| error.to_string(), causes);
                Err(match error.is_connect() {
                    true => HttpError::Connect { authority, reason },
                    false => HttpError::Broken { authority, reason },
                })
            }
        }
    }
}

fn pool_of(
    connector: Connector,
    max_idle: usize,
    version: HttpVersion,
) -> legacy::Client<Connector, RequestBody> {
    legacy::Client::builder(TokioExecutor::new())
        .http2_only(version == HttpVersion::Two)
        .pool_max_idle_per_host(max_idle)
        // Without a timer, idle connections would be closed only when the next request comes.
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// Creates a request that accepts JSON or an event stream, with `body` as JSON unless it is empty.
///
/// # Errors
/// [`HttpError::Url`] if `path` is not a valid URI.
pub fn json_request(method: Method, path: &str, body: Bytes) -> Result<Request<Bytes>, HttpError> {
    let uri: Uri = path
        .parse()
        .map_err(|_| HttpError::Url { url: path.to_owned(), reason: "it is not a path" })?;
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    let accept = HeaderValue::from_static("application/json, text/event-stream");
    request.headers_mut().insert(header::ACCEPT, accept);
    if !request.body().is_empty() {
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    Ok(request)
}

/// Returns the `Authorization` header for `api_key`, hidden from debug output.
///
/// # Errors
/// [`HttpError::ApiKey`] for a key with characters not allowed in a header.
pub fn bearer(api_key: &str) -> Result<HeaderValue, HttpError> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", api_key.trim()))
        .map_err(|_| HttpError::ApiKey)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Converts a response with a status other than 200 to an error; reads its body for the message.
pub async fn refusal(response: HttpResponse) -> HttpError {
    let (head, mut body) = response.into_parts();
    // Without its body a refusal still has its status.
    let body = body.read_all(MAX_REFUSAL_BYTES).await.unwrap_or_default();
    refusal_of(head.status.as_u16(), &head.headers, &body)
}

/// Returns the error for a response with this status, headers and body.
pub fn refusal_of(status: u16, headers: &HeaderMap, body: &[u8]) -> HttpError {
    let retry_after = headers.get(header::RETRY_AFTER);
    let retry_after_s = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    HttpError::Refused { status, retry_after_s, message: refusal_message(body) }
}

/// Returns the `error.message` of an OpenAI error body, or the beginning of the body as text.
fn refusal_message(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|value| {
        let error = value.get("error").unwrap_or(value);
        error.get("message").unwrap_or(error).as_str()
    });
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    // Programs print it as a part of their own words.
    printable(&text).chars().take(MAX_MESSAGE_CHARS).collect()
}

/// Body of a response. Reading it to the end returns the connection to the pool. Dropping it
/// earlier closes the connection, which tells the server that the client is gone. While the client
/// does not read, nothing more is read from the connection either.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Incoming,
    exchange: Arc<Exchange>,
    authority: Arc<str>,
    /// The connection also carries other responses, so its counts do not belong to this one.
    shares_connection: bool,
}

impl ResponseBody {
    /// Returns the next piece of the body, or `None` at its end. Cancel-safe.
    ///
    /// # Errors
    /// [`HttpError::Broken`] if the connection broke.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.incoming).poll_frame(context)).await;
            return match frame.transpose() {
                Ok(None) => Ok(None),
                Ok(Some(frame)) => match frame.into_data() {
                    Ok(data) => Ok(Some(data)),
                    Err(_trailers) => continue,
                },
                Err(error) => Err(HttpError::Broken {
                    authority: self.authority.to_string(),
                    reason: causes(&error),
                }),
            };
        }
    }

    /// Reads the rest of the body, up to `limit_bytes`.
    ///
    /// # Errors
    /// [`HttpError::Broken`] or [`HttpError::TooLarge`].
    pub async fn read_all(&mut self, limit_bytes: usize) -> Result<Bytes, HttpError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > limit_bytes {
                return Err(HttpError::TooLarge { limit_bytes });
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    /// Wire cost of the response so far, head included; zero over HTTP/2, where responses share a
    /// connection.
    pub fn wire(&self) -> WireCounts {
        if self.shares_connection { WireCounts::default() } else { self.exchange.wire() }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.incoming).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// Opens the pool's connections.
#[derive(Clone)]
struct Connector {
    dial: Arc<dyn Dial>,
    recv_buffer_bytes: Option<u32>,
    timeout: Duration,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<MeteredIo>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    /// Ignores the URI from the pool: `dial` already knows the server.
    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { dial, recv_buffer_bytes, timeout } = self.clone();
        Box::pin(async move {
            let dialled = tokio::time::timeout(timeout, dial.dial(recv_buffer_bytes)).await;
            let io = dialled.unwrap_or_else(|_| {
                Err(io::Error::other(format!("no connection within {} s", timeout.as_secs())))
            })?;
            Ok(TokioIo::new(MeteredIo::new(io)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_keys_must_be_header_values() {
        assert_eq!(bearer(" sk-1\n").unwrap(), "Bearer sk-1");
        assert_eq!(bearer("a\nb"), Err(HttpError::ApiKey));
    }

    #[test]
    fn refusal_messages() {
        assert_eq!(refusal_message(br#"{"error":{"message":"m"}}"#), "m");
        assert_eq!(refusal_message(br#"{"error":"e"}"#), "e");
        assert_eq!(refusal_message(br#"{"message":"d"}"#), "d");
        assert_eq!(refusal_message(b"plain \xff"), "plain \u{fffd}");
        assert_eq!(refusal_message(&[b'x'; 1000]).len(), 300);
    }
}
