//! The QUIC port (`spec/session.md`, section 1): native clients and browsers on one UDP
//! socket, told apart by their ALPN.

mod certificate;
mod congestion;
mod exchange;
mod message;
mod session;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use quinn::crypto::rustls::{HandshakeData, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, Endpoint, EndpointConfig, Incoming, ServerConfig, TransportConfig, VarInt,
};
use tokio::time::timeout;

use crate::app::{App, Offer, WEB_TRANSPORT_PATH};

pub use certificate::{CHECK_EVERY, CertificateSource, Renewal};
pub use message::{Kind, Message, code, put_message};
use session::Session;

/// ALPN of native clients.
pub const ALPN: &str = "loquent/1";

/// A handshake must be done by then.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that says nothing for so long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Handshakes under way beyond which clients must first prove their address (RFC 9000 §8.1.2).
const RETRY_BEYOND: usize = 64;
/// Handshakes under way beyond which nobody is answered.
const MAX_HANDSHAKES: usize = 1024;
/// How many packets, and how long, clients may keep back QUIC's own acknowledgements. An answer's
/// datagrams have acknowledgements of ours, which leave later than QUIC's would: a packet more.
const QUIC_ACK_PACKETS: u32 = 10;
const QUIC_ACK_DELAY: Duration = Duration::from_millis(100);
/// HTTP/3 has three streams of its own, and browsers may add one without a meaning.
const MAX_UNI_STREAMS: u32 = 8;
/// Unsent datagrams of a connection: about one packet for each of a dozen answers. When the
/// congestion window is full, the oldest are dropped.
const DATAGRAM_SEND_BYTES: usize = 16 * 1024;
/// Unread datagrams of a connection.
const DATAGRAM_RECEIVE_BYTES: usize = 64 * 1024;
/// Unread request bytes of a stream, and of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Unacknowledged response bytes of a connection: a slow reader's tokens should wait where
/// they can still be merged.
const SEND_WINDOW_BYTES: u64 = 128 * 1024;

/// What the QUIC port can be told.
#[derive(Debug, Clone)]
pub struct QuicOptions {
    /// UDP port; `None` is the HTTP port's number.
    pub port: Option<u16>,
    /// A port that cannot be had is an error, not a warning.
    pub required: bool,
    /// The certificate.
    pub certificate: CertificateSource,
    /// Connections in all.
    pub max_connections: usize,
    /// Connections of one address (of one /64 in IPv6).
    pub max_connections_per_address: usize,
    /// Streams of one connection at once, each a request or an answer.
    pub max_streams: u32,
}

/// The bound QUIC port.
pub struct Port {
    endpoint: Endpoint,
    options: QuicOptions,
    offer: Offer,
    http_port: u16,
}

impl Port {
    /// Binds the UDP port beside the HTTP port `http`.
    ///
    /// # Errors
    /// When the port is taken or the certificate cannot be had; the message says what to do.
    pub fn bind(http: SocketAddr, options: QuicOptions) -> anyhow::Result<Self> {
        let (config, sha256) = server_config(&options)?;
        let address = SocketAddr::new(http.ip(), options.port.unwrap_or(http.port()));
        let hint = || format!("cannot use UDP {address} for QUIC; see --quic-port and --no-quic");
        let socket = UdpSocket::bind(address).with_context(hint)?;
        let port = socket.local_addr()?.port();
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, runtime)
            .with_context(hint)?;
        let offer = Offer { port, certificate_sha256: sha256 };
        Ok(Self { endpoint, options, offer, http_port: http.port() })
    }

    /// Accepts connections until the endpoint is closed; `router` answers tunnelled requests.
    pub async fn run(&self, app: Arc<App>, router: Router) {
        app.set_offer(self.offer);
        let house = Arc::new(House {
            app,
            router,
            options: self.options.clone(),
            ports: [self.http_port, self.offer.port],
            door: Arc::default(),
        });
        let mut renewal = Renewal::new(self.options.certificate.clone(), CHECK_EVERY);
        loop {
            tokio::select! {
                incoming = self.endpoint.accept() => match incoming {
                    None => return,
                    Some(incoming) => house.admit(incoming),
                },
                () = renewal.due() => {
                    if self.renew(&house.app) {
                        renewal.renewed();
                    }
                }
            }
        }
    }

    /// Refuses new connections and closes the open ones, telling them why.
    pub async fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"the server is shutting down");
        let _ = timeout(Duration::from_millis(500), self.endpoint.wait_idle()).await;
    }

    /// Shows a fresh certificate from here on; whether there was one.
    fn renew(&self, app: &App) -> bool {
        match server_config(&self.options) {
            Ok((config, certificate_sha256)) => {
                self.endpoint.set_server_config(Some(config));
                app.set_offer(Offer { certificate_sha256, ..self.offer });
                true
            }
            // Half of it is there, perhaps: the next look will tell.
            Err(error) => {
                tracing::error!("the certificate is not renewed: {error:#}");
                false
            }
        }
    }
}

/// What every connection shares.
struct House {
    app: Arc<App>,
    router: Router,
    options: QuicOptions,
    /// Of HTTP and of QUIC.
    ports: [u16; 2],
    door: Arc<Door>,
}

impl House {
    fn admit(self: &Arc<Self>, incoming: Incoming) {
        let handshakes = self.door.handshakes.load(Ordering::Relaxed);
        let address = incoming.remote_address().ip();
        if handshakes >= MAX_HANDSHAKES {
            incoming.ignore();
        } else if !self.door.has_room(address, &self.options) {
            incoming.refuse();
        } else if handshakes >= RETRY_BEYOND && !incoming.remote_address_validated() {
            let _ = incoming.retry(); // fails only for what was retried, which is validated
        } else {
            let (house, handshake) = (self.clone(), Handshake::begin(&self.door));
            tokio::spawn(async move {
                if let Err(error) = serve(&house, handshake, incoming).await {
                    tracing::debug!("a QUIC connection ended early: {error:#}");
                }
            });
        }
    }
}

async fn serve(house: &House, handshake: Handshake, incoming: Incoming) -> anyhow::Result<()> {
    let House { app, router, options, ports, door } = house;
    let connection = timeout(HANDSHAKE_TIMEOUT, incoming.accept()?).await??;
    // Its address is proven now, and counts.
    let Some(_guest) = door.enter(connection.remote_address().ip(), options) else {
        connection.close(VarInt::from_u32(0), b"too many connections");
        return Ok(());
    };
    let _counted = app.metrics.quic_connection();
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    let alpn = data.and_then(|data| data.protocol).unwrap_or_default();
    let link = if alpn == ALPN.as_bytes() {
        web_transport_quinn::Session::raw(connection)
    } else {
        timeout(HANDSHAKE_TIMEOUT, web_session(app, *ports, connection)).await??
    };
    drop(handshake);
    Session::new(app.clone(), router.clone(), link).run().await;
    Ok(())
}

/// Accepts a browser's WebTransport session, if its page may use this server.
async fn web_session(
    app: &App,
    ports: [u16; 2],
    connection: quinn::Connection,
) -> anyhow::Result<web_transport_quinn::Session> {
    let request = web_transport_quinn::Request::accept(connection).await?;
    let origin = request.headers.get(http::header::ORIGIN);
    if request.url.path() != WEB_TRANSPORT_PATH {
        request.reject(crate::error::NOT_FOUND).await?;
        anyhow::bail!("a session at an unknown path");
    }
    let host = request.url.host_str().unwrap_or_default().to_owned();
    let allows = |origin: &http::HeaderValue| {
        app.options.lists_origin(origin.as_bytes()) || is_own_page(origin, &host, ports)
    };
    if !origin.is_none_or(allows) {
        request.reject(crate::error::FORBIDDEN).await?;
        anyhow::bail!("a session from a page of another origin");
    }
    Ok(request.ok().await?)
}

/// Whether `origin` is a page of ours: of the host that was asked, at one of our `ports`.
/// One machine is `localhost` to the page and may be `127.0.0.1` here, since browsers do
/// not go from ::1 to it by themselves.
fn is_own_page(origin: &http::HeaderValue, host: &str, ports: [u16; 2]) -> bool {
    const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
    let Ok(page) = http::Uri::try_from(origin.as_bytes()) else {
        return false;
    };
    let standard_port = if page.scheme_str() == Some("https") { 443 } else { 80 };
    let of_host = |name: &str| name == host || LOOPBACK.contains(&name) && LOOPBACK.contains(&host);
    page.host().is_some_and(of_host) && ports.contains(&page.port_u16().unwrap_or(standard_port))
}

fn server_config(options: &QuicOptions) -> anyhow::Result<(ServerConfig, Option<[u8; 32]>)> {
    let certificate = options.certificate.load()?;
    let sha256 = certificate.sha256;
    let tls = certificate.tls(&[ALPN.as_bytes(), web_transport_quinn::ALPN.as_bytes()])?;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.max_incoming(MAX_HANDSHAKES);
    let mut rare = AckFrequencyConfig::default();
    rare.ack_eliciting_threshold(QUIC_ACK_PACKETS.into())
        .max_ack_delay(Some(QUIC_ACK_DELAY))
        // A lost datagram is nothing that an early acknowledgement could mend.
        .reordering_threshold(VarInt::from_u32(0));
    let mut transport = TransportConfig::default();
    transport
        .ack_frequency_config(Some(rare))
        .max_concurrent_bidi_streams(options.max_streams.into())
        .max_concurrent_uni_streams(MAX_UNI_STREAMS.into())
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into()?))
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(CONNECTION_WINDOW_BYTES.into())
        .send_window(SEND_WINDOW_BYTES)
        .datagram_receive_buffer_size(Some(DATAGRAM_RECEIVE_BYTES))
        .datagram_send_buffer_size(DATAGRAM_SEND_BYTES)
        // Answers fit small packets; probes for larger ones would be their greatest part.
        .mtu_discovery_config(None)
        .congestion_controller_factory(Arc::new(congestion::FlooredFactory));
    config.transport_config(Arc::new(transport));
    Ok((config, sha256))
}

/// Counts who is inside.
#[derive(Default)]
struct Door {
    handshakes: AtomicUsize,
    guests: Mutex<HashMap<IpAddr, usize>>,
}

impl Door {
    fn has_room(&self, address: IpAddr, options: &QuicOptions) -> bool {
        fits(&self.guests(), network(address), options)
    }

    fn enter(self: &Arc<Self>, address: IpAddr, options: &QuicOptions) -> Option<Guest> {
        let network = network(address);
        let mut guests = self.guests();
        if !fits(&guests, network, options) {
            return None;
        }
        *guests.entry(network).or_default() += 1;
        Some(Guest { door: self.clone(), network })
    }

    fn guests(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.guests.lock().expect("nothing panics under this lock")
    }
}

fn fits(guests: &HashMap<IpAddr, usize>, network: IpAddr, options: &QuicOptions) -> bool {
    let of_network = guests.get(&network).copied().unwrap_or(0);
    of_network < options.max_connections_per_address
        && guests.values().sum::<usize>() < options.max_connections
}

/// Who counts as one: an IPv4 address, or what one subscriber has of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

/// A connection that counts until it is dropped.
struct Guest {
    door: Arc<Door>,
    network: IpAddr,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut guests = self.door.guests();
        if let Some(count) = guests.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                guests.remove(&self.network);
            }
        }
    }
}

/// A handshake that counts until it is dropped.
struct Handshake(Arc<Door>);

impl Handshake {
    fn begin(door: &Arc<Door>) -> Self {
        door.handshakes.fetch_add(1, Ordering::Relaxed);
        Self(door.clone())
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_host_and_port_are_our_own() {
        let own = |origin: &str, host: &str| {
            is_own_page(&http::HeaderValue::from_str(origin).expect("ASCII"), host, [8080, 443])
        };
        assert!(own("http://a.example:8080", "a.example"));
        assert!(own("https://a.example", "a.example"), "443 goes without saying");
        assert!(own("http://localhost:8080", "127.0.0.1"));
        assert!(own("http://[::1]:8080", "[::1]"));
        assert!(!own("http://a.example", "a.example"));
        assert!(!own("http://a.example:8081", "a.example"));
        assert!(!own("http://b.example:8080", "a.example"));
        assert!(!own("http://localhost:8080", "a.example"));
        assert!(!own("null", "a.example"));
    }

    #[test]
    fn subscribers_count_as_one() {
        let same = |a: &str, b: &str| network(a.parse().unwrap()) == network(b.parse().unwrap());
        assert!(same("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!same("10.0.0.1", "10.0.0.2"));
    }
}
