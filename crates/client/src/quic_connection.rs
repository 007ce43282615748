//! A QUIC connection to a server, shared by all answers and tunnelled requests.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use loquent_openai::tls::Trust;
use loquent_proto::frame::Frame;
use quinn::{
    AckFrequencyConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream,
    TransportConfig, VarInt,
};
use quinn_proto::RandomConnectionIdGenerator;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::ClientError;
use crate::congestion::FlooredConfig;
use crate::discovery::DeliveryOffer;
use crate::message::{Code, MAX_MESSAGE_BYTES, Message, Messages};
use crate::tls;
use crate::via::{self, Via};

/// Time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a connection without packets from the server is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of QUIC keep-alives. RFC 4787 asks NATs to remember UDP for 30 s or more, but mobile
/// networks often forget sooner.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Maximum time the server may delay QUIC's own acknowledgements.
const QUIC_ACK_DELAY: Duration = Duration::from_millis(100);
/// Maximum wait for the server to allow another stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next address of a host is tried as well (RFC 8305 recommends 100 ms to 2 s).
const STAGGER: Duration = Duration::from_millis(200);
/// Maximum number of a host's addresses to try.
const MAX_ADDRESSES: usize = 4;
/// Maximum datagrams queued for one answer's task; further ones count as lost.
const MAX_WAITING: usize = 64;
/// Number of consecutive idle checks after which a connection is closed.
const IDLE_CHECKS: u32 = 3;
/// Interval between checks for an idle connection.
const IDLE_CHECK: Duration = Duration::from_secs(20);
/// Maximum bytes that one read takes from a stream.
const READ_BYTES: usize = 64 * 1024;
/// Maximum bytes of acknowledgements waiting to be sent; beyond that, quinn drops the oldest. Newer
/// ones repeat everything the oldest reported.
const ACK_BUFFER_BYTES: usize = 16 * 1024;
/// Maximum bytes that the server may have in flight on one stream.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum bytes that the server may have in flight on all streams together.
const WINDOW_BYTES: u32 = 8 << 20;

/// Properties of the path of a QUIC connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicPath {
    /// The local address, if the system tells which one packets to the server have.
    pub local: Option<IpAddr>,
    /// The server's address.
    pub server: SocketAddr,
    /// Round-trip time to the server.
    pub round_trip: Duration,
    /// Size of the largest datagram that fits; `None` if the server accepts none.
    pub datagram_bytes: Option<usize>,
}

/// A QUIC connection. Cheap to clone; it closes with its last clone.
#[derive(Clone)]
pub struct QuicConnection(Arc<Inner>);

struct Inner {
    connection: Connection,
    endpoint: Endpoint,
    routes: Routes,
    next_channel: AtomicU64,
    /// Number of [`Tunnel`]s.
    tunnels: AtomicUsize,
    rebound: Mutex<Option<Instant>>,
    network: OwnNetwork,
}

/// A plain request on a connection, or the response to it, which cannot go on over another one.
/// Keeps the connection open.
pub(crate) struct Tunnel(QuicConnection);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.0.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The network that a connection stays on.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnNetwork {
    /// Its index in the configuration; 0 if that names none.
    pub(crate) index: usize,
    /// `None`: the one that the system chooses.
    pub(crate) via: Option<Via>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.connection.close(Code::None.number().into(), b"");
    }
}

/// Maps each channel to the task that receives its datagrams.
#[derive(Clone, Default)]
struct Routes(Arc<Mutex<HashMap<u64, mpsc::Sender<Bytes>>>>);

impl Routes {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, mpsc::Sender<Bytes>>> {
        // Each holder makes one change, which is whole or not made.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Passes a datagram to its channel's task; drops it if no task reads the channel or the task's
    /// queue is full.
    fn pass(&self, datagram: Bytes) {
        if let Some(channel) = Frame::peek_channel(&datagram)
            && let Some(route) = self.lock().get(&channel)
        {
            let _ = route.try_send(datagram);
        }
    }
}

/// One answer's channel on a connection, with the queue of its datagrams.
pub(crate) struct Route {
    /// The channel that the answer's frames carry (D-2.3).
    pub(crate) channel: u64,
    /// The answer's datagrams; the channel closes with the connection.
    pub(crate) datagrams: mpsc::Receiver<Bytes>,
    routes: Routes,
}

impl Drop for Route {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.channel);
    }
}

impl QuicConnection {
    /// Connects to `host` at the offered port over `network`, at whichever of the host's addresses
    /// responds first.
    ///
    /// # Errors
    /// [`ClientError::Connect`] or [`ClientError::Tls`].
    pub async fn dial(
        host: &str,
        offer: &DeliveryOffer,
        trust: &Trust,
        network: &OwnNetwork,
    ) -> Result<QuicConnection, ClientError> {
        let authority = format!("{host}:{} (UDP)", offer.port);
        let failed = |reason: String| ClientError::Connect { authority: authority.clone(), reason };
        let config = client_config(offer, trust)?;
        let found = tokio::net::lookup_host((host, offer.port)).await;
        let addresses = found.map_err(|error| failed(error.to_string()))?;
        let mut attempts: FuturesUnordered<_> = addresses
            .take(MAX_ADDRESSES)
            .enumerate()
            .map(|(at, address)| {
                connect(address, host, config.clone(), network, STAGGER * at as u32)
            })
            .collect();
        let race = async {
            let mut last = "the name has no address".to_owned();
            while let Some(attempt) = attempts.next().await {
                match attempt {
                    Ok(link) => return Ok(link),
                    Err(error) => last = error,
                }
            }
            Err(last)
        };
        let outcome = tokio::time::timeout(HANDSHAKE_TIMEOUT, race).await;
        outcome
            .unwrap_or_else(|_| Err(format!("no answer within {HANDSHAKE_TIMEOUT:?}")))
            .map_err(failed)
    }

    fn start(endpoint: Endpoint, connection: Connection, network: OwnNetwork) -> QuicConnection {
        let link = QuicConnection(Arc::new(Inner {
            connection,
            endpoint,
            routes: Routes::default(),
            next_channel: AtomicU64::new(0),
            tunnels: AtomicUsize::new(0),
            rebound: Mutex::new(None),
            network,
        }));
        tokio::spawn(dispatch(
            link.0.connection.clone(),
            link.0.routes.clone(),
            Arc::downgrade(&link.0),
        ));
        link
    }

    /// Returns the properties of the path to the server, as measured by the handshake.
    pub(crate) fn path(&self) -> QuicPath {
        let connection = &self.0.connection;
        let bound = self.0.endpoint.local_addr().ok().map(|address| address.ip());
        QuicPath {
            local: connection.local_ip().or(bound).filter(|address| !address.is_unspecified()),
            server: connection.remote_address(),
            round_trip: connection.rtt(),
            datagram_bytes: connection.max_datagram_size(),
        }
    }

    /// Returns true if the connection is open, as far as is known: a dead path shows only by
    /// timeouts.
    pub fn is_open(&self) -> bool {
        self.0.connection.close_reason().is_none()
    }

    /// Returns the reason why the connection ended.
    pub(crate) fn loss(&self) -> ClientError {
        let reason = self.0.connection.close_reason();
        reason.map_or_else(|| ClientError::Broken("the connection is gone".into()), |it| lost(&it))
    }

    /// Returns the index of the network that the connection stays on.
    pub(crate) fn network(&self) -> usize {
        self.0.network.index
    }

    /// Returns true if both are the same connection.
    pub fn is(&self, other: &QuicConnection) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Counts a plain request on the connection.
    pub(crate) fn tunnel(&self) -> Tunnel {
        self.0.tunnels.fetch_add(1, Ordering::Relaxed);
        Tunnel(self.clone())
    }

    /// Returns true if there are plain requests on the connection.
    pub(crate) fn has_tunnels(&self) -> bool {
        self.0.tunnels.load(Ordering::Relaxed) > 0
    }

    /// Closes the connection for all its clones.
    pub fn close(&self) {
        self.0.connection.close(Code::None.number().into(), b"");
    }

    /// Resolves once the close of the connection has been sent to the server.
    pub(crate) async fn idle(&self) {
        self.0.endpoint.wait_idle().await;
    }

    /// Moves to a new local port, on whichever address of its network the system assigns; QUIC
    /// migrates the connection. Does nothing if the last move is less than `pause` ago. Returns
    /// true if it moved.
    pub fn rebind(&self, pause: Duration) -> bool {
        let mut rebound = self.0.rebound.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if rebound.is_some_and(|at| at.elapsed() < pause) {
            return false;
        }
        *rebound = Some(Instant::now());
        let bound = via::bind(self.0.network.via.as_ref(), self.0.connection.remote_address());
        let moved = bound.and_then(|socket| self.0.endpoint.rebind(socket));
        moved.inspect_err(|error| tracing::debug!("cannot rebind: {error}")).is_ok()
    }

    /// Returns the number of UDP packets that have arrived.
    pub fn packets_received(&self) -> u64 {
        self.0.connection.stats().udp_rx.datagrams
    }

    /// Assigns a channel to a new answer, with a queue for its datagrams.
    pub(crate) fn route(&self) -> Route {
        let channel = self.0.next_channel.fetch_add(1, Ordering::Relaxed);
        let (sender, datagrams) = mpsc::channel(MAX_WAITING);
        self.0.routes.lock().insert(channel, sender);
        Route { channel, datagrams, routes: self.0.routes.clone() }
    }

    /// Sends a datagram if it fits and the server accepts datagrams; returns true if it was sent.
    pub(crate) fn send_datagram(&self, datagram: Bytes) -> bool {
        self.0.connection.send_datagram(datagram).is_ok()
    }

    /// Opens a bidirectional stream.
    ///
    /// # Errors
    /// [`ClientError::Broken`]: the connection is gone, or the server allows no more.
    pub(crate) async fn open(&self) -> Result<MessageStream, ClientError> {
        let opening = tokio::time::timeout(OPEN_TIMEOUT, self.0.connection.open_bi());
        let (send, recv) = match opening.await {
            Ok(opened) => opened.map_err(|error| ClientError::Broken(error.to_string()))?,
            Err(_) => return Err(ClientError::Broken("the server allows no more streams".into())),
        };
        let incoming = Incoming { recv, messages: Messages::new(MAX_MESSAGE_BYTES) };
        Ok(MessageStream { send, incoming })
    }
}

async fn connect(
    address: SocketAddr,
    host: &str,
    config: quinn::ClientConfig,
    network: &OwnNetwork,
    after: Duration,
) -> Result<QuicConnection, String> {
    tokio::time::sleep(after).await;
    let endpoint = endpoint(network, address).map_err(|error| error.to_string())?;
    let connecting =
        endpoint.connect_with(config, address, host).map_err(|error| error.to_string())?;
    let connection = connecting.await.map_err(|error| error.to_string())?;
    Ok(QuicConnection::start(endpoint, connection, network.clone()))
}

/// Creates an endpoint for one connection. With one connection per socket no connection ID is
/// needed to distinguish packets, and its eight bytes would be a twelfth of each small packet (RFC
/// 9000 §5.1; migration uses the server's ID).
fn endpoint(network: &OwnNetwork, remote: SocketAddr) -> std::io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
    let socket = via::bind(network.via.as_ref(), remote)?;
    Endpoint::new(config, None, socket, Arc::new(quinn::TokioRuntime))
}

fn client_config(offer: &DeliveryOffer, trust: &Trust) -> Result<quinn::ClientConfig, ClientError> {
    let mut transport = TransportConfig::default();
    // The client's datagrams are acknowledgements themselves. If QUIC acknowledged each, that
    // would be a third of the traffic towards the client on a thin stream.
    let mut rare = AckFrequencyConfig::default();
    rare.ack_eliciting_threshold(VarInt::from_u32(10)).max_ack_delay(Some(QUIC_ACK_DELAY));
    transport
        .ack_frequency_config(Some(rare))
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into().expect("fits QUIC's integers")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .datagram_send_buffer_size(ACK_BUFFER_BYTES)
        // Requests wait behind probes for larger packets, for seconds on a thin uplink.
        .mtu_discovery_config(None)
        .congestion_controller_factory(Arc::new(FlooredConfig::default()));
    let crypto =
        tls::quic_config(offer.certificate_sha256.map_or_else(|| trust.clone(), Trust::Pinned))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Distributes datagrams until the connection ends; closes it after a long idle time.
async fn dispatch(connection: Connection, routes: Routes, link: Weak<Inner>) {
    let mut idle_checks = 0;
    let mut check = tokio::time::interval(IDLE_CHECK);
    loop {
        tokio::select! {
            datagram = connection.read_datagram() => match datagram {
                Ok(datagram) => routes.pass(datagram),
                Err(error) => {
                    tracing::debug!("QUIC connection ended: {error}");
                    break;
                }
            },
            _ = check.tick() => {
                // One clone is the client's own, for the next request; more are answers in use.
                idle_checks = if link.strong_count() > 1 { 0 } else { idle_checks + 1 };
                if idle_checks > IDLE_CHECKS {
                    connection.close(Code::None.number().into(), b"");
                }
            }
        }
    }
    routes.lock().clear();
}

/// A bidirectional stream of messages.
pub(crate) struct MessageStream {
    /// From the client to the server.
    pub(crate) send: SendStream,
    /// From the server to the client.
    pub(crate) incoming: Incoming,
}

/// The messages that the server sends on a stream.
pub(crate) struct Incoming {
    recv: RecvStream,
    messages: Messages,
}

impl Incoming {
    /// Returns the next message, or `None` at the end of the stream. Cancel safe.
    ///
    /// # Errors
    /// A reset QUIC stream, a lost connection, or bytes that are not a message (S-2.1).
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            if let Some(message) = self.messages.next()? {
                return Ok(Some(message));
            }
            let read = self.recv.read_chunk(READ_BYTES, true).await;
            match read.map_err(read_error)? {
                Some(chunk) => self.messages.push(&chunk.bytes),
                None if self.messages.buffered_bytes() == 0 => return Ok(None),
                None => return Err(ClientError::Malformed("the stream ends in a message".into())),
            }
        }
    }
}

fn read_error(error: quinn::ReadError) -> ClientError {
    match error {
        quinn::ReadError::Reset(code) => error_of_code(code),
        quinn::ReadError::ConnectionLost(error) => lost(&error),
        other => ClientError::Broken(other.to_string()),
    }
}

/// Returns the error that a server's code means for a pending answer (S-2.6).
fn error_of_code(code: VarInt) -> ClientError {
    match Code::of(code.into_inner()) {
        Code::Superseded => ClientError::Superseded,
        Code::Stopped => ClientError::Gone,
        Code::ShuttingDown => ClientError::ShuttingDown,
        Code::None | Code::Malformed | Code::BrokenOff | Code::Cancelled => {
            ClientError::Reset(code.into_inner())
        }
    }
}

/// Returns the error that the loss of a connection means. Nothing is left to resume only if the
/// server is shutting down.
fn lost(error: &quinn::ConnectionError) -> ClientError {
    match error {
        quinn::ConnectionError::ApplicationClosed(close)
            if Code::of(close.error_code.into_inner()) == Code::ShuttingDown =>
        {
            ClientError::ShuttingDown
        }
        other => ClientError::Broken(other.to_string()),
    }
}

impl MessageStream {
    /// Writes `bytes`, or the part that the server accepts: a server that has read enough to refuse
    /// a request stops the stream, and then responds.
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        match self.send.write_all(bytes).await {
            Ok(()) | Err(quinn::WriteError::Stopped(_)) => Ok(()),
            Err(error) => Err(ClientError::Broken(error.to_string())),
        }
    }

    /// Resets the stream in both directions, because the server violated the protocol (S-2.1).
    pub(crate) fn refuse(&mut self) {
        let _ = self.send.reset(Code::Malformed.number().into());
        let _ = self.incoming.recv.stop(Code::Malformed.number().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn datagrams_find_their_channel_and_no_other() {
        let routes = Routes::default();
        let (sender, mut datagrams) = mpsc::channel(1);
        routes.lock().insert(7, sender);
        for datagram in [&[0x10, 7, 1][..], &[0x10, 8, 1], &[0x10], &[], &[0x10, 7, 2]] {
            routes.pass(Bytes::copy_from_slice(datagram));
        }
        assert_eq!(datagrams.try_recv().unwrap(), [0x10, 7, 1].as_slice());
        assert!(datagrams.try_recv().is_err(), "what exceeds the bound counts as lost");
    }

    proptest! {
        #[test]
        fn hostile_datagrams_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            Routes::default().pass(Bytes::from(bytes));
        }
    }
}
