//! Connections to one server: a single QUIC connection for everything, as far as QUIC gets through,
//! and pooled HTTP/1.1 connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use loquent_openai::http::{HttpClient, HttpResponse, bearer, json_request};
use loquent_openai::{BaseUrl, HttpError};
use loquent_proto::Micros;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ClientError;
use crate::config::Config;
use crate::discovery::{self, DeliveryOffer};
use crate::known_servers::{KnownServer, KnownServers, Transport};
use crate::quic_connection::QuicConnection;
use crate::request::Request;

/// The connections to one server. Cheap to clone; clones share them.
#[derive(Clone)]
pub(crate) struct Connections(Arc<SharedConnections>);

/// State shared by all clones.
struct SharedConnections {
    http: HttpClient,
    url: String,
    host: String,
    config: Config,
    known_servers: KnownServers,
    dialing: Mutex<QuicDialing>,
    /// The server's discovery document: `None` before it was requested, `Some(None)` if it offers
    /// no QUIC. Locked during the request, so that only one is made.
    offer: tokio::sync::Mutex<Option<Option<DeliveryOffer>>>,
    /// Counter of established connections.
    quic_ups: watch::Sender<u64>,
    /// Number of answers with a running task.
    answers: watch::Sender<usize>,
    started: Instant,
}

/// State of the QUIC connection and of attempts to establish it.
#[derive(Default)]
struct QuicDialing {
    state: QuicState,
    /// Consecutive failed attempts.
    failures: u32,
}

#[derive(Default)]
enum QuicState {
    /// No connection: none was tried yet, or the last one was lost.
    #[default]
    Down,
    /// The last attempt failed; the next one may start at this time.
    Resting(Instant),
    /// An attempt is in progress; the channel closes when it ends.
    Dialing(watch::Receiver<()>),
    /// The connection is established, as far as is known.
    Up(QuicConnection),
}

/// Pause after the first failed attempt; doubles with each further one.
const REST: Duration = Duration::from_secs(10);
/// Maximum pause between attempts, short enough for a laptop that moves to a network with UDP.
const MAX_REST: Duration = Duration::from_secs(300);
/// Time limit, when closing, for the last packets to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Counts an answer's task as running until dropped.
pub(crate) struct RunningAnswer(Connections);

impl Drop for RunningAnswer {
    fn drop(&mut self) {
        self.0.0.answers.send_modify(|count| *count -= 1);
    }
}

/// Waits for QUIC connections to be established.
pub(crate) struct QuicUp(watch::Receiver<u64>);

impl QuicUp {
    /// Waits for the next connection to be established.
    pub(crate) async fn came_up(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Connections {
    /// Prepares connections to the server in `config`; opens none yet.
    ///
    /// # Errors
    /// A URL or key that cannot be used, or a failure to set up TLS.
    pub fn new(config: Config) -> Result<Connections, ClientError> {
        let base = BaseUrl::parse(&config.url)?;
        let http =
            HttpClient::with_trust(base.clone(), config.api_key.as_deref(), config.trust.clone())?;
        Ok(Connections(Arc::new(SharedConnections {
            http,
            url: base.to_string(),
            host: base.host().to_owned(),
            known_servers: KnownServers::open(config.memory.as_deref()),
            config,
            dialing: Mutex::default(),
            offer: tokio::sync::Mutex::new(None),
            quic_ups: watch::Sender::new(0),
            answers: watch::Sender::new(0),
            started: Instant::now(),
        })))
    }

    /// Opens a separate QUIC connection as `offer` describes.
    ///
    /// # Errors
    /// [`ClientError::Connect`] or [`ClientError::Tls`].
    pub async fn dial_offer(&self, offer: &DeliveryOffer) -> Result<QuicConnection, ClientError> {
        QuicConnection::dial(&self.0.host, offer, &self.0.config.trust).await
    }

    /// Returns the underlying HTTP client.
    pub fn http(&self) -> &HttpClient {
        &self.0.http
    }

    /// Returns the server's URL, without a final `/v1`.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns the transport that a request would use now.
    pub fn transport(&self) -> Transport {
        match &self.dialing().state {
            QuicState::Up(quic) if quic.is_open() => Transport::Quic,
            _ => Transport::Http,
        }
    }

    /// Sends `request` over HTTP, with `body` in place of its own.
    ///
    /// # Errors
    /// A failure to reach the server, or a key that is not a valid header value.
    pub(crate) async fn send_by_http(
        &self,
        request: &Request,
        body: Bytes,
    ) -> Result<HttpResponse, ClientError> {
        let mut message = json_request(request.method.clone(), &request.path, body)?;
        let headers = message.headers_mut();
        for (name, value) in &request.headers {
            headers.insert(name, value.clone());
        }
        // The key is the client's or the request's own, never one that was passed along.
        headers.remove("authorization");
        if let Some(key) = &request.key {
            headers.insert("authorization", bearer(key)?);
        }
        Ok(self.0.http.send(message).await?)
    }

    /// Moves the QUIC connection to a new local port; its answers continue. Returns true if it
    /// moved.
    pub fn rebind(&self) -> bool {
        self.quic_now().is_some_and(|quic| quic.rebind(Duration::ZERO))
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.0.config.api_key.as_deref()
    }

    /// Returns the current time as the protocol's state machines count it.
    pub(crate) fn now(&self) -> Micros {
        Micros(self.0.started.elapsed().as_micros() as u64)
    }

    /// Converts a protocol time to an instant of the clock.
    pub(crate) fn instant(&self, at: Micros) -> Instant {
        // "Never" is u64::MAX, which would overflow the clock: 136 years are enough.
        self.0.started + Duration::from_micros(at.0.min(u64::from(u32::MAX) * 1_000_000))
    }

    /// Waits, at most for `limit`, until the server knows of all answers that have ended or were
    /// cancelled, then closes the connection. Meant for the end of a program.
    pub async fn close(&self, limit: Duration) {
        let mut answers = self.0.answers.subscribe();
        let _ = tokio::time::timeout(limit, answers.wait_for(|count| *count == 0)).await;
        let state = std::mem::take(&mut self.dialing().state);
        if let QuicState::Up(quic) = state {
            quic.close();
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, quic.idle()).await;
        }
    }

    /// Counts one more answer's task as running.
    pub(crate) fn count_answer(&self) -> RunningAnswer {
        self.0.answers.send_modify(|count| *count += 1);
        RunningAnswer(self.clone())
    }

    /// Returns a waiter for the next QUIC connection.
    pub(crate) fn quic_up(&self) -> QuicUp {
        QuicUp(self.0.quic_ups.subscribe())
    }

    fn dialing(&self) -> MutexGuard<'_, QuicDialing> {
        // Each holder makes one assignment, which a panic cannot cut in half.
        self.0.dialing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the QUIC connection if it is established; otherwise starts an attempt.
    pub(crate) fn quic_now(&self) -> Option<QuicConnection> {
        self.try_quic().ok()
    }

    /// Returns the QUIC connection if it is or becomes established within the head start. Does not
    /// wait if HTTP won last time.
    pub(crate) async fn quic(&self) -> Option<QuicConnection> {
        let mut under_way = match self.try_quic() {
            Ok(quic) => return Some(quic),
            Err(under_way) => under_way?,
        };
        let known = self.0.known_servers.recall(&self.0.url);
        if known.is_none_or(|known| known.winner == Transport::Quic) {
            // The channel carries no values: it closes when the attempt is over.
            let _ = tokio::time::timeout(self.0.config.head_start, under_way.changed()).await;
        }
        match &self.dialing().state {
            QuicState::Up(quic) if quic.is_open() => Some(quic.clone()),
            _ => None,
        }
    }

    /// Returns the QUIC connection, or the attempt to establish it. Starts an attempt unless QUIC
    /// is off or the last attempt failed recently.
    fn try_quic(&self) -> Result<QuicConnection, Option<watch::Receiver<()>>> {
        let mut dialing = self.dialing();
        match &dialing.state {
            _ if !self.0.config.quic => return Err(None),
            QuicState::Up(quic) if quic.is_open() => return Ok(quic.clone()),
            QuicState::Dialing(attempt) => return Err(Some(attempt.clone())),
            QuicState::Resting(until) if Instant::now() < *until => return Err(None),
            QuicState::Up(_) | QuicState::Resting(_) | QuicState::Down => {}
        }
        let (done, attempt) = watch::channel(());
        dialing.state = QuicState::Dialing(attempt.clone());
        let connections = self.clone();
        tokio::spawn(async move {
            let dialled = connections.dial().await;
            connections.note_dialled(dialled);
            drop(done);
        });
        Err(Some(attempt))
    }

    /// Connects with the server's remembered offer, which saves a round trip; if that fails,
    /// fetches the current offer.
    async fn dial(&self) -> Result<QuicConnection, ClientError> {
        let remembered = self.0.known_servers.recall(&self.0.url).and_then(|known| known.offer);
        let Some(offer) = remembered else {
            return self.dial_after_asking(None).await;
        };
        match self.dial_offer(&offer).await {
            Ok(quic) => Ok(quic),
            Err(_) => self.dial_after_asking(Some(offer)).await,
        }
    }

    /// Asks the server for its offer and connects, unless the offer equals `tried`.
    async fn dial_after_asking(
        &self,
        tried: Option<DeliveryOffer>,
    ) -> Result<QuicConnection, ClientError> {
        let refused = |reason: &str| ClientError::Connect {
            authority: self.0.host.clone(),
            reason: reason.to_owned(),
        };
        let offer = self.offer(true).await?.ok_or_else(|| refused("it does not offer QUIC"))?;
        if tried == Some(offer) {
            return Err(refused("QUIC does not get through"));
        }
        self.dial_offer(&offer).await
    }

    fn note_dialled(&self, dialled: Result<QuicConnection, ClientError>) {
        let won = dialled.is_ok();
        let mut dialing = self.dialing();
        match dialled {
            Ok(quic) => {
                *dialing = QuicDialing { state: QuicState::Up(quic), failures: 0 };
                self.0.quic_ups.send_modify(|count| *count += 1);
            }
            Err(error) => {
                tracing::debug!("no QUIC: {error}");
                let rest = REST.saturating_mul(1 << dialing.failures.min(8)).min(MAX_REST);
                dialing.failures += 1;
                dialing.state = QuicState::Resting(Instant::now() + rest);
            }
        }
        drop(dialing);
        self.remember(if won { Transport::Quic } else { Transport::Http });
    }

    fn remember(&self, winner: Transport) {
        let before = self.0.known_servers.recall(&self.0.url).and_then(|known| known.offer);
        let asked = self.0.offer.try_lock().ok().and_then(|offer| *offer);
        let offer = asked.unwrap_or(before);
        self.0.known_servers.remember(&self.0.url, KnownServer { winner, offer });
    }

    /// Closes a dead connection, so that everything on it moves elsewhere; the next request starts
    /// a new attempt at once.
    pub(crate) fn give_up(&self, quic: &QuicConnection) {
        quic.close();
        let mut dialing = self.dialing();
        if matches!(&dialing.state, QuicState::Up(current) if current.is(quic)) {
            dialing.state = QuicState::Down;
        }
    }

    /// Forgets failed attempts: the network has changed, and QUIC may get through now.
    pub(crate) fn retry_quic(&self) {
        let mut dialing = self.dialing();
        if matches!(dialing.state, QuicState::Resting(_)) {
            *dialing = QuicDialing::default();
        }
    }

    /// Returns the server's offer of QUIC (S-1.3), or `None` if it makes none. Cached, unless
    /// `is_stale`.
    pub(crate) async fn offer(&self, is_stale: bool) -> Result<Option<DeliveryOffer>, ClientError> {
        let mut known = self.0.offer.lock().await;
        if let (false, Some(offer)) = (is_stale, *known) {
            return Ok(offer);
        }
        let offer = match self.0.http.get(discovery::PATH, discovery::MAX_BYTES).await {
            // Some servers answer every path with a page.
            Ok(json) => DeliveryOffer::parse(&json).ok(),
            Err(HttpError::Refused { status: 400..=499, .. }) => None,
            // The server may be in trouble only now, so this is not remembered.
            Err(HttpError::Refused { .. } | HttpError::TooLarge { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        *known = Some(offer);
        Ok(offer)
    }
}
