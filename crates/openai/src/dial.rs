//! Opens connections: TCP with or without TLS, or in tests any other byte stream.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::look_up::HostLookUp;
use crate::tls::{self, Trust};
use crate::{BaseUrl, HttpError, HttpVersion};

/// Time limit for a host to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time after which an idle connection is probed. A machine that is gone is so noticed within a
/// minute, while one that answers probes may compute in silence for as long as its caller waits.
const PROBE_AFTER: Duration = Duration::from_secs(20);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// A byte stream to a server.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Boxed future, as returned by trait methods.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens connections: over TCP, or to a server within a test.
pub trait Dial: Send + Sync {
    /// Opens a new connection. `recv_buffer_bytes` sets the size of the kernel's receive buffer:
    /// with a small one, the server soon notices a client that stops reading.
    fn dial(&self, recv_buffer_bytes: Option<u32>) -> BoxFuture<'_, io::Result<Box<dyn Io>>>;
}

/// Returns a dialer for the host of `base`. If the scheme is `https`, its certificate must chain to
/// an authority of the operating system.
///
/// # Errors
/// [`HttpError::Url`] or [`HttpError::Tls`] if TLS cannot be used with it.
pub fn host_dial(base: &BaseUrl) -> Result<Box<dyn Dial>, HttpError> {
    Ok(Box::new(HostDial::new(base, Trust::System, HttpVersion::One)?))
}

/// Opens connections to the host of a URL.
pub(crate) struct HostDial {
    uri: Uri,
    look_up: HostLookUp,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl HostDial {
    /// Creates a dialer for the host of `base`, with TLS if the scheme is `https`.
    ///
    /// # Errors
    /// [`HttpError::Url`] or [`HttpError::Tls`] if TLS cannot be used with it.
    pub(crate) fn new(
        base: &BaseUrl,
        trust: Trust,
        version: HttpVersion,
    ) -> Result<Self, HttpError> {
        let refuse = || HttpError::Url {
            url: base.to_string(),
            reason: "its host is neither a name nor an address",
        };
        let uri = format!("http://{}:{}", bracketed(base.host()), base.port());
        let uri = uri.parse().map_err(|_| refuse())?;
        let look_up = HostLookUp::system();
        if !base.is_https() {
            return Ok(Self { uri, look_up, tls: None });
        }
        let name = ServerName::try_from(base.host().to_owned()).map_err(|_| refuse())?;
        let mut config = tls::client_config(trust, &[&TLS13, &TLS12])?;
        if version == HttpVersion::Two {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Ok(Self { uri, look_up, tls: Some((TlsConnector::from(Arc::new(config)), name)) })
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

impl Dial for HostDial {
    fn dial(&self, recv_buffer_bytes: Option<u32>) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        Box::pin(async move {
            let mut connector = HttpConnector::new_with_resolver(self.look_up.clone());
            // Each token is a small write; none may wait for the acknowledgement of another.
            connector.set_nodelay(true);
            connector.set_recv_buffer_size(recv_buffer_bytes.map(|bytes| bytes as usize));
            connector.set_keepalive(Some(PROBE_AFTER));
            connector.set_keepalive_interval(Some(PROBE_INTERVAL));
            connector.set_keepalive_retries(Some(PROBES));
            poll_fn(|context| connector.poll_ready(context)).await.map_err(io::Error::other)?;
            let connecting = tokio::time::timeout(CONNECT_LIMIT, connector.call(self.uri.clone()));
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            let stream = connecting.await.map_err(late)?.map_err(root_cause)?.into_inner();
            let Some((tls, name)) = &self.tls else {
                return Ok(Box::new(stream) as Box<dyn Io>);
            };
            Ok(Box::new(tls.connect(name.clone(), stream).await?) as Box<dyn Io>)
        })
    }
}

/// Returns the innermost cause, which is the operating system's: "Connection refused" rather than
/// "tcp connect error".
fn root_cause(error: impl std::error::Error) -> io::Error {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    io::Error::other(cause.to_string())
}
