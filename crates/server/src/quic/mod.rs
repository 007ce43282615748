//! The QUIC port (`spec/session.md`, section 1): native clients and browsers on one UDP socket,
//! distinguished by ALPN.

mod congestion;
mod exchange;
mod gathering_socket;
mod message;
mod outbox;
mod request_head;
mod runtime;
mod session;
mod used_channels;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use quinn::crypto::rustls::{HandshakeData, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, Endpoint, EndpointConfig, Incoming, ServerConfig, TransportConfig, VarInt,
};
use tokio::sync::watch;
use tokio::time::timeout;
use web_transport_quinn::proto::ConnectRequest;

use crate::app::{App, HttpConfig, QuicAddress, WEB_TRANSPORT_PATH};
use crate::certificate::{CertificateSource, Renewal};
use crate::connection_limits::Places;
use crate::connections::TcpLimits;
use crate::origin::is_page_of_ports;
use crate::peer_router::PeerRouter;
use loquent_serving::metrics::StreamCarrier;
use loquent_serving::peer::PeerAddress;

use message::Code;
pub use message::StreamMessage;
#[cfg(any(test, fuzzing))]
pub(crate) use request_head::RequestHead;
use runtime::TurnRuntime;
use session::QuicSession;

/// ALPN of native clients; browsers use that of WebTransport.
pub const ALPN: &str = "loquent/1";

/// Time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a browser to receive the refusal of its session.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit for connections to close when the server ends.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
const CLOSE_REASON: &[u8] = b"the server is shutting down";
/// Maximum bytes of an origin in the log: more than any of a page, whose name has at most 255.
const MAX_LOGGED_ORIGIN: usize = 300;
/// Idle timeout of a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Unfinished handshakes above which clients must first prove their address (RFC 9000 §8.1.2).
/// Chosen by hand: more than honest clients start at once, little memory for a flood.
const RETRY_BEYOND: usize = 64;
/// Unfinished handshakes above which new ones are dropped without a response.
const MAX_HANDSHAKES: usize = 1024;
/// Number of packets, and the time, by which clients may delay QUIC's own acknowledgements.
/// Datagrams of an answer are also acknowledged by the delivery protocol, a little later than QUIC
/// would do it, so prompt QUIC acknowledgements would cost an extra packet each.
const QUIC_ACK_PACKETS: u32 = 10;
const QUIC_ACK_DELAY: Duration = Duration::from_millis(100);
/// Maximum unidirectional streams. HTTP/3 opens three, and browsers may add one of a reserved type.
const MAX_UNI_STREAMS: u32 = 8;
/// Bytes of unsent datagrams per connection: about one packet for each of a dozen answers. When the
/// congestion window is full, the oldest datagrams are dropped.
const DATAGRAM_SEND_BYTES: usize = 16 * 1024;
/// Bytes of unread datagrams per connection, which are acknowledgements of some 50 bytes each.
const DATAGRAM_RECEIVE_BYTES: usize = 16 * 1024;
/// Unread request bytes per stream.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Unread request bytes, and streams, of a connection that has not shown a valid key yet: room for
/// a few dozen request heads.
const STRANGER_WINDOW_BYTES: u32 = 64 * 1024;
const STRANGER_STREAMS: u32 = 16;
/// Unacknowledged response bytes per connection. Small, because tokens for a slow reader should
/// wait where they can still be merged.
const SEND_WINDOW_BYTES: u64 = 128 * 1024;

/// Configuration of the QUIC port.
#[derive(Debug, Clone)]
pub struct QuicConfig {
    /// UDP port; `None` uses the number of the HTTP port.
    pub port: Option<u16>,
    /// True if the server refuses to start when the port cannot be bound.
    pub required: bool,
    /// The certificate presented to clients.
    pub certificate: CertificateSource,
    /// Maximum connections of all clients together.
    pub max_connections: usize,
    /// Maximum connections from one IPv4 address or one IPv6 /64.
    pub max_connections_per_address: usize,
    /// Maximum open streams of one connection, each a request or an answer.
    pub max_streams: u32,
}

/// The bound QUIC port.
pub struct QuicPort {
    endpoint: Endpoint,
    config: QuicConfig,
    address: QuicAddress,
    http_port: u16,
    /// Set to true when the server ends, for the tasks that serve connections.
    closing: watch::Sender<bool>,
}

impl QuicPort {
    /// Binds the UDP port on the address of the HTTP port `http`.
    ///
    /// # Errors
    /// When the port is in use or the certificate cannot be loaded; the message says what to do.
    pub fn bind(http: SocketAddr, config: QuicConfig) -> anyhow::Result<Self> {
        let (quic, sha256) = server_config(&config)?;
        let address = SocketAddr::new(http.ip(), config.port.unwrap_or(http.port()));
        let hint = || format!("cannot use UDP {address} for QUIC; see --quic-port and --no-quic");
        let socket = UdpSocket::bind(address).with_context(hint)?;
        let port = socket.local_addr()?.port();
        let runtime = Arc::new(TurnRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(quic), socket, runtime)
            .with_context(hint)?;
        let address = QuicAddress { port, certificate_sha256: sha256 };
        let closing = watch::Sender::new(false);
        Ok(Self { endpoint, config, address, http_port: http.port(), closing })
    }

    /// Accepts connections until the endpoint is closed; `router` answers tunnelled requests,
    /// within the time limits of `limits`.
    pub async fn run(self: Arc<Self>, app: Arc<App>, router: Router, limits: TcpLimits) {
        let acceptor = Arc::new(Acceptor {
            app,
            router,
            ports: [self.http_port, self.address.port],
            has_told_foreign_page: AtomicBool::default(),
            max_streams: self.config.max_streams,
            limits: Arc::new(limits),
            places: Places::new(
                self.config.max_connections,
                self.config.max_connections_per_address,
            ),
            handshakes: Arc::default(),
            closing: self.closing.subscribe(),
        });
        let certificate = self.config.certificate.clone();
        let every = certificate.check_every();
        let mut renewal = Renewal::new(certificate, every);
        loop {
            tokio::select! {
                incoming = self.endpoint.accept() => match incoming {
                    None => return,
                    Some(incoming) => acceptor.admit(incoming),
                },
                () = renewal.due() => {
                    if self.renew(&acceptor.app) {
                        renewal.renewed();
                    }
                }
            }
        }
    }

    /// Returns the data that clients need to connect.
    pub fn address(&self) -> QuicAddress {
        self.address
    }

    /// Refuses new connections and closes the open ones with a reason.
    pub async fn close(&self) {
        self.endpoint.set_server_config(None);
        // Each session closes its own: browsers learn the reason only from the session's.
        self.closing.send_replace(true);
        let _ = timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle()).await;
        self.endpoint.close(Code::ShuttingDown.number().into(), CLOSE_REASON);
    }

    /// Loads the new certificate and presents it from now on. Returns false if it cannot be used
    /// yet.
    fn renew(&self, app: &App) -> bool {
        match server_config(&self.config) {
            Ok((config, certificate_sha256)) => {
                self.endpoint.set_server_config(Some(config));
                app.set_quic_address(QuicAddress { certificate_sha256, ..self.address });
                true
            }
            // Perhaps only one of the two files is written yet: the next check tries again.
            Err(error) => {
                tracing::error!(
                    "QUIC keeps its old certificate, as the new one cannot be used: {error:#}"
                );
                false
            }
        }
    }
}

/// Accepts connections within the limits, and serves them.
struct Acceptor {
    app: Arc<App>,
    router: Router,
    /// The HTTP and the QUIC port, whose pages may open sessions.
    ports: [u16; 2],
    /// True if the log has told of a page that may not.
    has_told_foreign_page: AtomicBool,
    max_streams: u32,
    limits: Arc<TcpLimits>,
    places: Arc<Places>,
    /// Unfinished handshakes.
    handshakes: Arc<AtomicUsize>,
    closing: watch::Receiver<bool>,
}

impl Acceptor {
    fn admit(self: &Arc<Self>, incoming: Incoming) {
        let handshakes = self.handshakes.load(Ordering::Relaxed);
        let address = incoming.remote_address().ip();
        self.app.links.arrivals.note(address, self.app.clock.now());
        if handshakes >= MAX_HANDSHAKES {
            // Without a response: even a refusal would cost more than the flood's packet.
            incoming.ignore();
        } else if !self.places.has_room(address) {
            incoming.refuse();
        } else if handshakes >= RETRY_BEYOND && !incoming.remote_address_validated() {
            let _ = incoming.retry(); // fails only for what was retried, which is validated
        } else {
            let (acceptor, handshake) = (self.clone(), Handshake::begin(&self.handshakes));
            tokio::spawn(async move {
                if let Err(error) = serve(&acceptor, handshake, incoming).await {
                    tracing::debug!("a QUIC connection ended early: {error:#}");
                }
            });
        }
    }

    /// Logs the first session that is refused to a page of another origin. It may be the server's
    /// own page at a port of a proxy, which then reads event streams and shows no error.
    fn tell(&self, refusal: SessionRefusal, request: &ConnectRequest) {
        if refusal == SessionRefusal::ForeignPage
            && !self.has_told_foreign_page.swap(true, Ordering::Relaxed)
            && let Some(origin) = request.headers.get(http::header::ORIGIN)
        {
            let origin = origin.as_bytes();
            let origin = String::from_utf8_lossy(&origin[..origin.len().min(MAX_LOGGED_ORIGIN)]);
            tracing::warn!(
                ?origin,
                "a page of another origin may not use WebTransport; if it is this server's, start \
                 with --cors-origin and that origin (further refusals are not logged)"
            );
        }
    }
}

async fn serve(
    acceptor: &Acceptor,
    handshake: Handshake,
    incoming: Incoming,
) -> anyhow::Result<()> {
    let Acceptor { app, router, max_streams, limits, places, closing, .. } = acceptor;
    let connection = timeout(HANDSHAKE_TIMEOUT, incoming.accept()?).await??;
    // Only now is the address proven: counting it earlier would let a forged address use up
    // its owner's share.
    let peer = connection.remote_address().ip();
    let Ok(_place) = places.enter(peer) else {
        connection.close(Code::None.number().into(), b"too many connections");
        return Ok(());
    };
    let _counted = app.metrics.quic_connection();
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    let alpn = data.and_then(|data| data.protocol).unwrap_or_default();
    let is_plain = alpn == ALPN.as_bytes();
    let transport = if is_plain { StreamCarrier::Quic } else { StreamCarrier::WebTransport };
    let _watched = app.links.enter(transport, connection.clone());
    let link = if is_plain {
        web_transport_quinn::Session::raw(connection)
    } else {
        timeout(HANDSHAKE_TIMEOUT, web_session(acceptor, connection)).await??
    };
    // Browsers finish their handshake only with the session's request, which is why it counts
    // until here.
    drop(handshake);
    let router = PeerRouter::new(router.clone(), PeerAddress(peer));
    let link_of = (transport, link.clone());
    let session = QuicSession::new(app.clone(), router, link_of, *max_streams, limits.clone());
    let mut closing = closing.clone();
    tokio::select! {
        () = session.run(exchange::serve) => {}
        _ = closing.wait_for(|closing| *closing) => {
            link.close(Code::ShuttingDown.number(), CLOSE_REASON);
        }
    }
    Ok(())
}

/// Accepts a browser's WebTransport session if its page may use this server.
async fn web_session(
    acceptor: &Acceptor,
    connection: quinn::Connection,
) -> anyhow::Result<web_transport_quinn::Session> {
    let request = web_transport_quinn::Request::accept(connection.clone()).await?;
    let Some(refusal) = SessionRefusal::of(&acceptor.app.config, acceptor.ports, &request) else {
        return Ok(request.ok().await?);
    };
    acceptor.tell(refusal, &request);
    let status = match refusal {
        SessionRefusal::UnknownPath => loquent_serving::error::NOT_FOUND,
        SessionRefusal::ForeignName | SessionRefusal::ForeignPage => {
            loquent_serving::error::FORBIDDEN
        }
    };
    // Dropped now, the connection would take the response back, and HTTP/3's control stream, which
    // this holds, would end before it: an error that hides the status.
    let held = request.respond(status).await?;
    let _ = timeout(REFUSAL_TIMEOUT, connection.closed()).await;
    drop(held);
    Err(refusal.into())
}

/// Reason why a WebTransport session is refused (S-1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum SessionRefusal {
    #[error("a WebTransport session at an unknown path")]
    UnknownPath,
    #[error("a WebTransport session to a name that --allowed-host does not list")]
    ForeignName,
    #[error("a WebTransport session from a page of another origin")]
    ForeignPage,
}

impl SessionRefusal {
    fn of(config: &HttpConfig, ports: [u16; 2], request: &ConnectRequest) -> Option<Self> {
        let host = request.url.host_str().unwrap_or_default();
        let allows = |origin: &http::HeaderValue| {
            config.allows_origin(origin.as_bytes())
                || is_page_of_ports(origin.as_bytes(), host, &ports)
        };
        if request.url.path() != WEB_TRANSPORT_PATH {
            Some(Self::UnknownPath)
        } else if !config.allowed_hosts.allows(host) {
            Some(Self::ForeignName)
        } else {
            let is_allowed = request.headers.get(http::header::ORIGIN).is_none_or(allows);
            (!is_allowed).then_some(Self::ForeignPage)
        }
    }
}

fn server_config(config: &QuicConfig) -> anyhow::Result<(ServerConfig, Option<[u8; 32]>)> {
    let certificate = config.certificate.load()?;
    let sha256 = certificate.sha256;
    let tls = certificate.tls(&[ALPN.as_bytes(), web_transport_quinn::ALPN.as_bytes()])?;
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    // quinn also queues handshakes before they are accepted; they have the same bound.
    server.max_incoming(MAX_HANDSHAKES);
    let mut rare = AckFrequencyConfig::default();
    rare.ack_eliciting_threshold(QUIC_ACK_PACKETS.into())
        .max_ack_delay(Some(QUIC_ACK_DELAY))
        // An early acknowledgement of a gap would not help: lost datagrams are not sent again
        // over QUIC.
        .reordering_threshold(VarInt::from_u32(0));
    let mut transport = TransportConfig::default();
    transport
        .ack_frequency_config(Some(rare))
        .max_concurrent_bidi_streams(config.max_streams.min(STRANGER_STREAMS).into())
        .max_concurrent_uni_streams(MAX_UNI_STREAMS.into())
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into()?))
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(STRANGER_WINDOW_BYTES.into())
        .send_window(SEND_WINDOW_BYTES)
        .datagram_receive_buffer_size(Some(DATAGRAM_RECEIVE_BYTES))
        .datagram_send_buffer_size(DATAGRAM_SEND_BYTES)
        // Answers fit into small packets; probes for larger ones would be most of the traffic.
        .mtu_discovery_config(None)
        .congestion_controller_factory(Arc::new(congestion::FlooredFactory));
    server.transport_config(Arc::new(transport));
    Ok((server, sha256))
}

/// An unfinished handshake, counted until dropped.
struct Handshake(Arc<AtomicUsize>);

impl Handshake {
    fn begin(handshakes: &Arc<AtomicUsize>) -> Self {
        handshakes.fetch_add(1, Ordering::Relaxed);
        Self(handshakes.clone())
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    //! The pages that may open a session, on a server that other machines can reach.
    use http::HeaderValue;
    use url::Url;

    use super::*;

    fn refusal(host: &str, origin: &'static str) -> Option<SessionRefusal> {
        let url = format!("https://{host}{WEB_TRANSPORT_PATH}");
        let mut request = ConnectRequest::new(url.parse::<Url>().unwrap());
        request.headers.insert(http::header::ORIGIN, HeaderValue::from_static(origin));
        let cors_origins = vec!["https://a.example:9443".to_owned()];
        let config = HttpConfig { cors_origins, ..HttpConfig::default() };
        SessionRefusal::of(&config, [8080, 8443], &request)
    }

    #[test]
    fn the_page_behind_a_proxy_gets_a_session() {
        for origin in ["https://a.example", "http://a.example:8080", "https://a.example:9443"] {
            assert_eq!(refusal("a.example:8443", origin), None, "{origin}");
        }
    }

    #[test]
    fn a_page_of_another_host_or_port_gets_none() {
        for origin in ["https://b.example", "https://a.example:7443", "http://a.example", "null"] {
            let refused = refusal("a.example:8443", origin);
            assert_eq!(refused, Some(SessionRefusal::ForeignPage), "{origin}");
        }
    }
}
