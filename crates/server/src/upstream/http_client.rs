//! An HTTP/1.1 client over kept-alive connections, for what the server itself asks of others.
//!
//! Servers close idle connections when they like, and a request that is on its way then is
//! lost through nobody's fault. Such a request is sent again on a fresh connection, if the
//! connection had served before and not one byte of an answer has come; never otherwise.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body::{Body, Frame};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Idle connections that are kept; more are closed.
const MAX_IDLE: usize = 256;
/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL is of no use.
    #[error("{url} is not a usable URL: {reason}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No connection could be made.
    #[error("cannot connect to {authority}: {reason}")]
    Connect {
        /// Host and port.
        authority: String,
        /// What the system said.
        reason: String,
    },
    /// The connection broke before the answer's head.
    #[error("{authority} closed the connection without an answer: {reason}")]
    NoAnswer {
        /// Host and port.
        authority: String,
        /// What happened.
        reason: String,
    },
}

/// Where requests go: `http://` or `https://`, a host, and a path before all paths.
#[derive(Debug, Clone)]
pub struct Origin {
    tls: bool,
    authority: Authority,
    /// Without a slash at its end.
    prefix: String,
}

impl Origin {
    /// Parses `url`.
    ///
    /// # Errors
    /// [`HttpError::Url`].
    pub fn parse(url: &str) -> Result<Self, HttpError> {
        let wrong = |reason: &str| HttpError::Url { url: url.into(), reason: reason.into() };
        let uri: Uri = url.trim().parse().map_err(|_| wrong("it cannot be parsed"))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?.clone();
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(wrong("user names and queries have no place in it"));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { tls, authority, prefix })
    }

    /// Host and, where given, port.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The path before all paths, without a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Drops `end` from the prefix, where it is there.
    #[must_use]
    pub fn without_suffix(mut self, end: &str) -> Self {
        if let Some(shorter) = self.prefix.strip_suffix(end) {
            self.prefix = shorter.to_owned();
        }
        self
    }

    fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.tls { 443 } else { 80 })
    }

    fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }
}

/// Sends requests to one origin. Cheap to clone.
#[derive(Clone)]
pub struct HttpClient {
    shared: Arc<Shared>,
}

struct Shared {
    origin: Origin,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Bytes read from the server so far.
    received: Arc<AtomicU64>,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "HttpClient({})", self.shared.origin.authority)
    }
}

impl HttpClient {
    /// A client for `origin`. Certificates are held against the system's authorities.
    ///
    /// # Errors
    /// [`HttpError::Url`] where the system's TLS set-up is unusable.
    pub fn new(origin: Origin) -> Result<Self, HttpError> {
        let tls = if origin.tls { Some(tls_connector(&origin)?) } else { None };
        let idle = Mutex::new(Vec::new());
        Ok(Self { shared: Arc::new(Shared { origin, tls, idle }) })
    }

    /// Where requests go.
    pub fn origin(&self) -> &Origin {
        &self.shared.origin
    }

    /// Sends `request`, whose URI is a path, and waits for the answer's head.
    ///
    /// # Errors
    /// [`HttpError::Connect`] or [`HttpError::NoAnswer`].
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Answer>, HttpError> {
        let request = self.address(request)?;
        if let Some(connection) = self.reuse().await {
            let before = connection.received.load(Ordering::Relaxed);
            let received = connection.received.clone();
            match self.exchange(connection, clone(&request)).await {
                Err(error) if received.load(Ordering::Relaxed) == before => {
                    tracing::debug!(%error, "an idle connection was closed: once more");
                }
                outcome => return outcome,
            }
        }
        self.exchange(self.connect().await?, request).await
    }

    /// Completes the path and the headers that every request needs.
    fn address(&self, request: Request<Bytes>) -> Result<Request<Bytes>, HttpError> {
        let origin = &self.shared.origin;
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = format!("{}{path}", origin.prefix);
        let wrong = |reason: String| HttpError::Url { url: path.clone(), reason };
        head.uri = path.parse().map_err(|_| wrong("it is no path".into()))?;
        let host = HeaderValue::from_str(origin.authority.as_str());
        head.headers.insert(header::HOST, host.map_err(|error| wrong(error.to_string()))?);
        Ok(Request::from_parts(head, body))
    }

    /// An idle connection that the server has not closed, as far as is known.
    async fn reuse(&self) -> Option<Connection> {
        loop {
            let mut connection = self.shared.idle().pop()?;
            // Its task may still be putting away the last answer, or find it closed.
            if connection.sender.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    async fn exchange(
        &self,
        mut connection: Connection,
        request: Request<Bytes>,
    ) -> Result<Response<Answer>, HttpError> {
        let response = connection.sender.send_request(request.map(Full::new)).await;
        let response = response.map_err(|error| HttpError::NoAnswer {
            authority: self.shared.origin.authority.to_string(),
            reason: causes(&error),
        })?;
        let home = Some((connection, self.shared.clone()));
        Ok(response.map(|body| Answer { body, home }))
    }

    async fn connect(&self) -> Result<Connection, HttpError> {
        let origin = &self.shared.origin;
        let failed =
            |reason: String| HttpError::Connect { authority: origin.authority.to_string(), reason };
        let dialled = tokio::time::timeout(CONNECT_TIMEOUT, self.dial()).await;
        let stream = dialled
            .map_err(|_| failed(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())))?
            .map_err(|error| failed(error.to_string()))?;
        let received = Arc::new(AtomicU64::new(0));
        let counted = Counted { stream, received: received.clone() };
        let made = http1::handshake(TokioIo::new(counted)).await;
        let (sender, driver) = made.map_err(|error| failed(causes(&error)))?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(error = causes(&error), "a connection to another server ended");
            }
        });
        Ok(Connection { sender, received })
    }

    async fn dial(&self) -> io::Result<Box<dyn Io>> {
        let origin = &self.shared.origin;
        let stream = TcpStream::connect((origin.host(), origin.port())).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.shared.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(origin.host().to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

impl Shared {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing panics while it holds the idle connections")
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }
}

fn tls_connector(origin: &Origin) -> Result<TlsConnector, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)
        .map(|config| config.with_no_client_auth());
    let wrong = |error: rustls::Error| HttpError::Url {
        url: format!("https://{}", origin.authority),
        reason: error.to_string(),
    };
    config.map(|config| TlsConnector::from(Arc::new(config))).map_err(wrong)
}

fn clone(request: &Request<Bytes>) -> Request<Bytes> {
    let mut copy = Request::new(request.body().clone());
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// An error with its causes, in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// An answer's body. Read to its end, it gives its connection back; dropped before, it
/// closes it, which tells the server that nobody listens any more.
pub struct Answer {
    body: Incoming,
    home: Option<(Connection, Arc<Shared>)>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(None) = frame
            && let Some((connection, shared)) = self.home.take()
        {
            shared.keep(connection);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // A body that was known to be at its end is often not polled once more.
        if self.body.is_end_stream()
            && let Some((connection, shared)) = self.home.take()
        {
            shared.keep(connection);
        }
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Counts what is read.
struct Counted {
    stream: Box<dyn Io>,
    received: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        let fresh = buffer.filled().len() - before;
        self.received.fetch_add(fresh as u64, Ordering::Relaxed);
        outcome
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
