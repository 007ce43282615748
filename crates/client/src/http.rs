//! HTTP/1.1 over kept-alive connections, one task per answer.
//!
//! The task that reads an answer also drives its connection, so that a chunk costs
//! one wake-up, and its arrival is stamped by the task that was woken for it. A
//! reader that stops reading stops the connection too: the back-pressure is real.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, lookup_host};

use crate::ClientError;
use crate::tls::TlsDial;

/// Idle connections that are kept; more are closed.
const MAX_IDLE: usize = 4096;
/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A byte stream to a server.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A future as trait methods return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes connections: over TCP, or to a server within a test.
pub trait Dial: Send + Sync {
    /// A new connection. `recv_buffer_bytes` asks for a small kernel buffer, so that
    /// a reader which stops reading is felt by the server soon.
    fn dial(&self, recv_buffer_bytes: Option<u32>) -> BoxFuture<'_, io::Result<Box<dyn Io>>>;
}

/// Where a server is: `http://host:port` or `https://…`, a path prefix allowed, a final
/// `/v1` ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    secure: bool,
    authority: String,
    host: String,
    port: u16,
    prefix: String,
}

impl BaseUrl {
    /// Parses `url`.
    ///
    /// # Errors
    /// [`ClientError::Url`] with what is wrong.
    pub fn parse(url: &str) -> Result<Self, ClientError> {
        let refuse = |reason| ClientError::Url { url: url.to_owned(), reason };
        let uri: Uri = url.parse().map_err(|_| refuse("not a URL"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refuse("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| refuse("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("user information is not supported"));
        }
        if uri.query().is_some() {
            return Err(refuse("a query is not supported"));
        }
        let path = uri.path().trim_end_matches('/');
        Ok(BaseUrl {
            secure,
            authority: authority.to_string(),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        })
    }

    /// Host and port as in the `Host` header.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host's name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

struct TcpDial {
    host: String,
    port: u16,
}

impl Dial for TcpDial {
    fn dial(&self, recv_buffer_bytes: Option<u32>) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        Box::pin(async move {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in lookup_host((self.host.as_str(), self.port)).await? {
                let socket = match address {
                    std::net::SocketAddr::V4(_) => TcpSocket::new_v4()?,
                    std::net::SocketAddr::V6(_) => TcpSocket::new_v6()?,
                };
                if let Some(bytes) = recv_buffer_bytes {
                    socket.set_recv_buffer_size(bytes)?;
                }
                match socket.connect(address).await {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(Box::new(stream) as Box<dyn Io>);
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
    }
}

/// What came in from the socket: all of HTTP, headers and chunk framing included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wire {
    /// Bytes read.
    pub bytes: u64,
    /// Reads that returned bytes: at most the number of the server's writes.
    pub reads: u64,
}

#[derive(Default)]
struct Counters {
    bytes: AtomicU64,
    reads: AtomicU64,
}

impl Counters {
    fn wire(&self) -> Wire {
        Wire {
            bytes: self.bytes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
        }
    }
}

/// Counts what is read through it.
struct Counted {
    io: Box<dyn Io>,
    counters: Arc<Counters>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        if read > 0 {
            self.counters.bytes.fetch_add(read as u64, Ordering::Relaxed);
            self.counters.reads.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

type Driver = http1::Connection<TokioIo<Counted>, Full<Bytes>>;

/// One connection and the half of it that must be polled for anything to happen.
struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Option<Pin<Box<Driver>>>,
    counters: Arc<Counters>,
}

impl Connection {
    async fn open(dial: &dyn Dial, recv_buffer_bytes: Option<u32>) -> io::Result<Self> {
        let io = dial.dial(recv_buffer_bytes).await?;
        let counters = Arc::new(Counters::default());
        let counted = Counted { io, counters: Arc::clone(&counters) };
        let (sender, driver) =
            http1::handshake(TokioIo::new(counted)).await.map_err(io::Error::other)?;
        Ok(Connection { sender, driver: Some(Box::pin(driver)), counters })
    }

    fn poll_driver(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && driver.as_mut().poll(cx).is_ready()
        {
            // Whatever it failed with reaches the request through its own half.
            self.driver = None;
        }
    }

    /// Whether the connection still stands, as far as the kernel has told.
    async fn alive(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            self.poll_driver(cx);
            Poll::Ready(self.driver.is_some() && self.sender.is_ready())
        })
        .await
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<http::Response<Incoming>, hyper::Error> {
        let mut sending = std::pin::pin!(self.sender.send_request(request));
        let driver = &mut self.driver;
        std::future::poll_fn(|cx| {
            if let Some(running) = driver
                && running.as_mut().poll(cx).is_ready()
            {
                *driver = None;
            }
            sending.as_mut().poll(cx)
        })
        .await
    }
}

#[derive(Default)]
struct Pool {
    idle: Mutex<Vec<Connection>>,
    reconnects: AtomicU64,
}

impl Pool {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A panic while the list is held leaves it whole: it is only pushed and popped.
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.lock();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }
}

/// A client of one server. Cheap to clone; clones share their idle connections.
#[derive(Clone)]
pub struct HttpClient {
    base: BaseUrl,
    dial: Arc<dyn Dial>,
    pool: Arc<Pool>,
    authorization: Option<http::HeaderValue>,
}

/// How one request is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transport {
    /// Kernel receive buffer of a connection made for this request alone.
    pub recv_buffer_bytes: Option<u32>,
}

impl HttpClient {
    /// A client of the server at `base`; `api_key` becomes a bearer token.
    ///
    /// # Errors
    /// An API key that no header can hold, or TLS that cannot be used.
    pub fn new(base: BaseUrl, api_key: Option<&str>) -> Result<Self, ClientError> {
        let dial: Arc<dyn Dial> = match base.secure {
            true => Arc::new(TlsDial::new(&base.host, base.port)?),
            false => Arc::new(TcpDial { host: base.host.clone(), port: base.port }),
        };
        Self::with_dial(base, api_key, dial)
    }

    /// As [`HttpClient::new`], with connections made by `dial`.
    pub fn with_dial(
        base: BaseUrl,
        api_key: Option<&str>,
        dial: Arc<dyn Dial>,
    ) -> Result<Self, ClientError> {
        let authorization = api_key.map(bearer).transpose()?;
        Ok(HttpClient { base, dial, pool: Arc::default(), authorization })
    }

    /// The server's URL.
    pub fn base(&self) -> &BaseUrl {
        &self.base
    }

    /// Idle connections that the server had closed and that were replaced unnoticed.
    pub fn reconnects(&self) -> u64 {
        self.pool.reconnects.load(Ordering::Relaxed)
    }

    /// Sends one request and waits for the answer's head. A kept-alive connection that
    /// the server has closed is replaced as long as nothing was sent over it; after
    /// that its loss is an error, because the server may have begun to work.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        transport: Transport,
    ) -> Result<Response, ClientError> {
        self.send_with(method, path, &HeaderMap::new(), body, transport).await
    }

    /// As [`HttpClient::send`], with headers that go before those it sends by itself.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        transport: Transport,
    ) -> Result<Response, ClientError> {
        loop {
            let (mut connection, reused) = self.connection(transport).await?;
            let before = connection.counters.wire();
            let request = self.request(&method, path, headers, body.clone())?;
            match connection.send(request).await {
                Ok(head) => return Ok(self.response(head, connection, before, transport)),
                Err(error) if reused && error.is_canceled() => {
                    self.pool.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(broken(&error, reused)),
            }
        }
    }

    /// Reads `path` whole, up to `limit_bytes`.
    pub async fn get(&self, path: &str, limit_bytes: usize) -> Result<Bytes, ClientError> {
        self.call(Method::GET, path, Bytes::new(), limit_bytes).await
    }

    /// One request whose answer is read whole, up to `limit_bytes`.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit_bytes: usize,
    ) -> Result<Bytes, ClientError> {
        let mut response = self.send(method, path, body, Transport::default()).await?;
        if response.status != 200 {
            return Err(response.into_refusal().await);
        }
        response.read_all(limit_bytes).await
    }

    async fn connection(&self, transport: Transport) -> Result<(Connection, bool), ClientError> {
        while transport.recv_buffer_bytes.is_none() {
            let idle = self.pool.lock().pop();
            let Some(mut connection) = idle else { break };
            if connection.alive().await {
                return Ok((connection, true));
            }
            self.pool.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        let failed = |reason: String| ClientError::Connect {
            authority: self.base.authority.clone(),
            reason,
        };
        let opening = Connection::open(&*self.dial, transport.recv_buffer_bytes);
        match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
            Ok(Ok(connection)) => Ok((connection, false)),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {CONNECT_TIMEOUT:?}"))),
        }
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base.prefix))
            .header(http::header::HOST, &self.base.authority)
            .header(http::header::ACCEPT, "application/json, text/event-stream");
        if !body.is_empty() {
            builder = builder.header(http::header::CONTENT_TYPE, "application/json");
        }
        if let Some(value) = &self.authorization {
            builder = builder.header(http::header::AUTHORIZATION, value);
        }
        if let Some(own) = builder.headers_mut() {
            for (name, value) in headers {
                own.insert(name, value.clone());
            }
        }
        builder.body(Full::new(body)).map_err(|error| ClientError::Malformed(error.to_string()))
    }

    fn response(
        &self,
        head: http::Response<Incoming>,
        connection: Connection,
        before: Wire,
        transport: Transport,
    ) -> Response {
        let (parts, incoming) = head.into_parts();
        let counters = Arc::clone(&connection.counters);
        let pool = transport.recv_buffer_bytes.is_none().then(|| Arc::clone(&self.pool));
        Response {
            status: parts.status.as_u16(),
            headers: parts.headers,
            incoming,
            connection: Some(connection),
            counters,
            before,
            pool,
        }
    }
}

/// The `Authorization` header of `api_key`, hidden from debug output.
pub(crate) fn bearer(api_key: &str) -> Result<http::HeaderValue, ClientError> {
    let mut value = http::HeaderValue::try_from(format!("Bearer {api_key}"))
        .map_err(|_| ClientError::Malformed("the API key has characters of no header".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn broken(error: &hyper::Error, reused: bool) -> ClientError {
    let source = std::error::Error::source(error);
    let cause = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    let place = if reused { " (a kept-alive connection, before any answer)" } else { "" };
    ClientError::Broken(format!("{cause}{place}"))
}

/// An answer whose head has arrived.
pub struct Response {
    /// HTTP status code.
    pub status: u16,
    /// The answer's headers.
    pub headers: HeaderMap,
    incoming: Incoming,
    /// Present until the body's end or its failure.
    connection: Option<Connection>,
    counters: Arc<Counters>,
    before: Wire,
    /// Where the connection goes when the body has been read to its end.
    pool: Option<Arc<Pool>>,
}

impl Response {
    /// The next piece of the body; `None` at its end. Cancelling it loses nothing.
    pub async fn frame(&mut self) -> Result<Option<Bytes>, ClientError> {
        std::future::poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// What this answer has cost on the wire so far.
    pub fn wire(&self) -> Wire {
        let now = self.counters.wire();
        Wire { bytes: now.bytes - self.before.bytes, reads: now.reads - self.before.reads }
    }

    /// Reads the rest of the body, up to `limit_bytes`.
    pub async fn read_all(&mut self, limit_bytes: usize) -> Result<Bytes, ClientError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.frame().await? {
            if whole.len() + piece.len() > limit_bytes {
                return Err(ClientError::TooLarge { what: "an answer", limit_bytes });
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    /// The error that an answer with a status other than 200 stands for.
    pub async fn into_refusal(mut self) -> ClientError {
        let body = self.read_all(64 * 1024).await.unwrap_or_default();
        refusal(self.status, &self.headers, &body)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ClientError>> {
        loop {
            if let Some(connection) = &mut self.connection {
                connection.poll_driver(cx);
            }
            return match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => Poll::Ready(Ok(Some(data))),
                    Err(_trailers) => continue,
                },
                Poll::Ready(Some(Err(error))) => {
                    self.connection = None;
                    Poll::Ready(Err(broken(&error, false)))
                }
                Poll::Ready(None) => {
                    self.release(cx);
                    Poll::Ready(Ok(None))
                }
            };
        }
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        connection.poll_driver(cx);
        if let Some(pool) = &self.pool
            && connection.driver.is_some()
        {
            pool.put_back(connection);
        }
    }
}

/// What a refusing answer says.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, body: &[u8]) -> ClientError {
    let retry_after = headers.get(http::header::RETRY_AFTER);
    let retry_after_s = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    ClientError::Refused { status, retry_after_s, message: refusal_message(body) }
}

/// The `error.message` of an OpenAI error body, or its beginning as text.
fn refusal_message(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|value| {
        let error = value.get("error").unwrap_or(value);
        error.get("message").unwrap_or(error).as_str()
    });
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls() {
        let url = |text: &str| BaseUrl::parse(text).map(|url| (url.to_string(), url.port));
        assert_eq!(url("http://h:1").unwrap(), ("http://h:1".into(), 1));
        assert_eq!(url("http://h/v1/").unwrap(), ("http://h".into(), 80));
        assert_eq!(url("http://[::1]:8/p/v1").unwrap(), ("http://[::1]:8/p".into(), 8));
        assert_eq!(url("https://h").unwrap(), ("https://h".into(), 443));
        for bad in ["", "h:1", "http://", "http://u:p@h", "http://h?x=1", "ftp://h"] {
            assert!(url(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn api_keys_must_be_header_values() {
        assert!(bearer("sk-1").is_ok());
        assert!(matches!(bearer("a\nb"), Err(ClientError::Malformed(_))));
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
