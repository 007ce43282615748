//! One connection or WebTransport session: accepts its streams, and routes its datagrams to the
//! answers they belong to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use loquent_proto::fallback::LowerLayer;
use loquent_proto::frame::Frame;
use web_transport_quinn::{RecvStream, SendStream};

use super::used_channels::UsedChannels;
use crate::app::App;
use crate::connections::TcpLimits;
use crate::peer_router::PeerRouter;
use loquent_resumable::{AnswerCommand, CommandSender, DatagramLink, PathId};
use loquent_serving::metrics::StreamCarrier;
use loquent_serving::peer::PeerAddress;

/// Unread request bytes of an authenticated connection.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// Answer of each channel, which receives its datagrams.
type Routes = HashMap<u64, (PathId, Option<CommandSender>)>;

/// A session of either kind: [`web_transport_quinn::Session`] also represents a plain QUIC
/// connection.
pub struct QuicSession {
    app: Arc<App>,
    router: PeerRouter,
    connection: web_transport_quinn::Session,
    transport: StreamCarrier,
    /// Maximum open streams, once the client is trusted.
    max_streams: u32,
    /// Time limits for its requests and responses.
    limits: Arc<TcpLimits>,
    trusted: AtomicBool,
    routes: Mutex<Routes>,
    used_channels: Mutex<UsedChannels>,
}

impl QuicSession {
    /// Creates a session over `connection`; `router` responds to its tunnelled requests.
    pub fn new(
        app: Arc<App>,
        router: PeerRouter,
        (transport, connection): (StreamCarrier, web_transport_quinn::Session),
        max_streams: u32,
        limits: Arc<TcpLimits>,
    ) -> Arc<Self> {
        Arc::new(Self {
            app,
            router,
            connection,
            transport,
            max_streams,
            limits,
            trusted: AtomicBool::new(false),
            routes: Mutex::default(),
            used_channels: Mutex::default(),
        })
    }

    /// Records that a request of the client was authorized: from now on the connection has the
    /// configured limits instead of those for strangers.
    pub fn trust(&self) {
        if !self.trusted.swap(true, Ordering::Relaxed) {
            let connection: &quinn::Connection = &self.connection;
            connection.set_receive_window(CONNECTION_WINDOW_BYTES.into());
            connection.set_max_concurrent_bi_streams(self.max_streams.into());
        }
    }

    /// Serves each stream with `serve`, and datagrams, until the connection ends.
    pub async fn run<F>(self: Arc<Self>, serve: fn(Arc<Self>, SendStream, RecvStream) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::join!(self.clone().accept(serve), self.clone().read_datagrams());
        // The connection ended without closing its streams: the answers begin their grace period
        // now instead of at the next acknowledgement that does not come.
        let routes = std::mem::take(&mut *self.routes());
        for (id, orders) in routes.into_values() {
            if let Some(orders) = orders {
                let _ = orders.send(AnswerCommand::Leave(id)).await;
            }
        }
    }

    async fn accept<F>(self: Arc<Self>, serve: fn(Arc<Self>, SendStream, RecvStream) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while let Ok((send, recv)) = self.connection.accept_bi().await {
            tokio::spawn(serve(self.clone(), send, recv));
        }
    }

    async fn read_datagrams(self: Arc<Self>) {
        loop {
            match self.connection.read_datagram().await {
                Ok(datagram) => self.handle_datagram(datagram),
                // Errors while the connection lives concern one datagram.
                Err(_) if self.connection.close_reason().is_some() => return,
                Err(_) => {} // of another WebTransport session
            }
        }
    }

    /// Passes a datagram on to its answer. Datagrams without an answer, or for an answer with a
    /// full queue, are dropped: the protocol treats them as lost.
    fn handle_datagram(&self, datagram: Bytes) {
        let Some(channel) = Frame::peek_channel(&datagram) else { return };
        if let Some((id, Some(orders))) = self.routes().get(&channel) {
            let _ = orders.try_send(AnswerCommand::Frame(*id, datagram));
        }
    }

    /// Claims `channel` for a request or a resume. Returns false if it was claimed before (S-4.1).
    pub fn claim(&self, channel: u64) -> bool {
        self.used_channels.lock().expect("nothing panics under this lock").claim(channel)
    }

    /// Reserves the claimed `channel` for an answer.
    pub fn route(self: &Arc<Self>, channel: u64, id: PathId) -> Routed {
        let before = self.routes().insert(channel, (id, None));
        debug_assert!(before.is_none(), "a channel is claimed once");
        Routed { session: self.clone(), channel }
    }

    /// Sends a datagram that belongs to no answer's log, without any guarantee.
    pub fn send_datagram(&self, datagram: Bytes) {
        let _ = self.connection.send_datagram(datagram);
    }

    /// Returns the state shared by all connections.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Returns the router of tunnelled requests.
    pub fn router(&self) -> PeerRouter {
        self.router.clone()
    }

    /// Returns the address of the connection's other end.
    pub fn peer(&self) -> PeerAddress {
        self.router.peer()
    }

    /// Returns the time limits for requests and responses.
    pub fn limits(&self) -> &TcpLimits {
        &self.limits
    }

    /// Returns the path on which an answer sends its datagrams.
    pub fn datagram_path(&self) -> Box<dyn DatagramLink> {
        Box::new(DatagramPath(self.connection.clone(), self.transport))
    }

    /// Resolves when the connection has ended.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().expect("nothing panics under this lock")
    }
}

/// A reserved channel. Once it is dropped, its datagrams are dropped too.
pub struct Routed {
    session: Arc<QuicSession>,
    channel: u64,
}

impl Routed {
    /// Sets the answer that receives the channel's datagrams.
    pub fn set(&self, orders: CommandSender) {
        if let Some((_, route)) = self.session.routes().get_mut(&self.channel) {
            *route = Some(orders);
        }
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.session.routes().remove(&self.channel);
    }
}

struct DatagramPath(web_transport_quinn::Session, StreamCarrier);

impl DatagramLink for DatagramPath {
    fn max_bytes(&self) -> usize {
        self.0.max_datagram_size()
    }

    fn send(&self, datagram: Bytes) {
        // It fails if the path's packet size has just shrunk or the connection ended. Either
        // counts as a lost datagram.
        let _ = self.0.send_datagram(datagram);
    }

    fn rtt(&self) -> Duration {
        self.0.rtt()
    }

    fn transport(&self) -> StreamCarrier {
        self.1
    }
}

impl LowerLayer for DatagramPath {
    fn acks(&self) -> u64 {
        quinn::Connection::stats(&self.0).frame_rx.acks
    }
}
