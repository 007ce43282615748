//! Connections to one server: a QUIC connection over each network that is to be used, as far as
//! QUIC gets through, and pooled HTTP/1.1 connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use loquent_openai::http::{HttpClient, HttpResponse, bearer, json_request};
use loquent_openai::{BaseUrl, HttpError};
use loquent_proto::Micros;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ClientError;
use crate::config::{Config, MAX_NETWORKS};
use crate::discovery::{self, DeliveryOffer};
use crate::known_servers::{KnownServer, KnownServers, Transport};
use crate::quic_connection::{OwnNetwork, QuicConnection};
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
    /// At least one; the better one first.
    networks: Vec<NetworkLink>,
    /// The server's discovery document: `None` before it was requested, `Some(None)` if it offers
    /// no QUIC. Locked during the request, so that only one is made.
    offer: tokio::sync::Mutex<Option<Option<DeliveryOffer>>>,
    /// Counter of established connections.
    quic_ups: watch::Sender<u64>,
    /// Number of answers with a running task.
    answers: watch::Sender<usize>,
    started: Instant,
}

/// The QUIC connection over one network.
struct NetworkLink {
    network: OwnNetwork,
    dialing: Mutex<QuicDialing>,
}

impl NetworkLink {
    fn dialing(&self) -> MutexGuard<'_, QuicDialing> {
        // Each holder makes one assignment, which a panic cannot cut in half.
        self.dialing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection if it is established.
    fn established(&self) -> Option<QuicConnection> {
        match &self.dialing().state {
            QuicState::Up(quic) if quic.is_open() => Some(quic.clone()),
            _ => None,
        }
    }
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
/// The same pauses where a connection is wanted over each of two networks: one of them comes and
/// goes, and the answers go on meanwhile.
const NETWORK_REST: Duration = Duration::from_secs(1);
/// See [`NETWORK_REST`].
const MAX_NETWORK_REST: Duration = Duration::from_secs(8);
/// Time limit for the server's offer, so that a network that hangs ends the attempt.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
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
    /// A URL or key that cannot be used, too many networks, or a failure to set up TLS.
    pub fn new(config: Config) -> Result<Connections, ClientError> {
        let networks = networks(&config)?;
        let base = BaseUrl::parse(&config.url)?;
        let http =
            HttpClient::with_trust(base.clone(), config.api_key.as_deref(), config.trust.clone())?;
        Ok(Connections(Arc::new(SharedConnections {
            http,
            url: base.to_string(),
            host: base.host().to_owned(),
            known_servers: KnownServers::open(config.memory.as_deref()),
            config,
            networks,
            offer: tokio::sync::Mutex::new(None),
            quic_ups: watch::Sender::new(0),
            answers: watch::Sender::new(0),
            started: Instant::now(),
        })))
    }

    /// Opens a separate QUIC connection as `offer` describes, over `network`.
    ///
    /// # Errors
    /// [`ClientError::Connect`] or [`ClientError::Tls`].
    pub(crate) async fn dial_offer(
        &self,
        offer: &DeliveryOffer,
        network: &OwnNetwork,
    ) -> Result<QuicConnection, ClientError> {
        QuicConnection::dial(&self.0.host, offer, &self.0.config.trust, network).await
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
        match self.established() {
            Some(_) => Transport::Quic,
            None => Transport::Http,
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

    /// Moves the QUIC connections to new local ports; their answers continue. Returns true if one
    /// moved.
    pub fn rebind(&self) -> bool {
        let links = self.0.networks.iter().filter_map(NetworkLink::established);
        let mut has_moved = false;
        for quic in links {
            has_moved |= quic.rebind(Duration::ZERO);
        }
        has_moved
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
        for link in &self.0.networks {
            let state = std::mem::take(&mut link.dialing().state);
            if let QuicState::Up(quic) = state {
                quic.close();
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, quic.idle()).await;
            }
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

    /// Returns the number of networks in use: one, or those of the configuration.
    pub(crate) fn networks(&self) -> usize {
        self.0.networks.len()
    }

    /// Returns the QUIC connection over the best network that has one.
    fn established(&self) -> Option<QuicConnection> {
        self.0.networks.iter().find_map(NetworkLink::established)
    }

    /// Returns the QUIC connection over another network than `quic`'s, if one is established.
    pub(crate) fn other_than(&self, quic: &QuicConnection) -> Option<QuicConnection> {
        let others = self.0.networks.iter().filter(|link| link.network.index != quic.network());
        others.filter_map(NetworkLink::established).next()
    }

    /// Returns a QUIC connection if one is established; otherwise starts an attempt.
    pub(crate) fn quic_now(&self) -> Option<QuicConnection> {
        let all = (0..self.networks()).filter_map(|index| self.quic_on(index));
        // Each is asked for, so that each is established.
        all.collect::<Vec<_>>().into_iter().next()
    }

    /// Returns the QUIC connection over one network if it is established; otherwise starts an
    /// attempt.
    pub(crate) fn quic_on(&self, network: usize) -> Option<QuicConnection> {
        self.try_quic(self.0.networks.get(network)?).ok()
    }

    /// Returns a QUIC connection if one is or becomes established within the head start. Does not
    /// wait if HTTP won last time.
    pub(crate) async fn quic(&self) -> Option<QuicConnection> {
        let tried = self.0.networks.iter().map(|link| self.try_quic(link));
        let tried: Vec<_> = tried.collect();
        let known = self.0.known_servers.recall(&self.0.url);
        let waits = known.is_none_or(|known| known.winner == Transport::Quic);
        if waits && tried.iter().all(Result::is_err) {
            let under_way = tried.into_iter().filter_map(|link| link.err().flatten());
            let mut under_way: FuturesUnordered<_> = under_way
                // The channel carries no values: it closes when the attempt is over.
                .map(|mut attempt| async move { attempt.changed().await })
                .collect();
            let one =
                async { while under_way.next().await.is_some() && self.established().is_none() {} };
            let _ = tokio::time::timeout(self.0.config.head_start, one).await;
        }
        self.established()
    }

    /// Returns the QUIC connection over a network, or the attempt to establish it. Starts an
    /// attempt unless QUIC is off or the last attempt failed recently.
    fn try_quic(&self, link: &NetworkLink) -> Result<QuicConnection, Option<watch::Receiver<()>>> {
        let mut dialing = link.dialing();
        match &dialing.state {
            _ if !self.0.config.quic => return Err(None),
            QuicState::Up(quic) if quic.is_open() => return Ok(quic.clone()),
            QuicState::Dialing(attempt) => return Err(Some(attempt.clone())),
            QuicState::Resting(until) if Instant::now() < *until => return Err(None),
            QuicState::Up(_) | QuicState::Resting(_) | QuicState::Down => {}
        }
        let (done, attempt) = watch::channel(());
        dialing.state = QuicState::Dialing(attempt.clone());
        let (connections, network) = (self.clone(), link.network.clone());
        tokio::spawn(async move {
            let dialled = connections.dial(&network).await;
            connections.note_dialled(network.index, dialled);
            drop(done);
        });
        Err(Some(attempt))
    }

    /// Connects with the server's remembered offer, which saves a round trip; if that fails,
    /// fetches the current offer.
    async fn dial(&self, network: &OwnNetwork) -> Result<QuicConnection, ClientError> {
        let remembered = self.0.known_servers.recall(&self.0.url).and_then(|known| known.offer);
        let Some(offer) = remembered else {
            return self.dial_after_asking(None, network).await;
        };
        match self.dial_offer(&offer, network).await {
            Ok(quic) => Ok(quic),
            Err(_) => self.dial_after_asking(Some(offer), network).await,
        }
    }

    /// Asks the server for its offer and connects, unless the offer equals `tried`.
    async fn dial_after_asking(
        &self,
        tried: Option<DeliveryOffer>,
        network: &OwnNetwork,
    ) -> Result<QuicConnection, ClientError> {
        let refused = |reason: &str| ClientError::Connect {
            authority: self.0.host.clone(),
            reason: reason.to_owned(),
        };
        let asked = tokio::time::timeout(OFFER_TIMEOUT, self.offer(true)).await;
        let offer =
            asked.unwrap_or_else(|_| Err(refused("it does not say whether it offers QUIC")));
        let offer = offer?.ok_or_else(|| refused("it does not offer QUIC"))?;
        if tried == Some(offer) {
            return Err(refused("QUIC does not get through"));
        }
        self.dial_offer(&offer, network).await
    }

    fn note_dialled(&self, network: usize, dialled: Result<QuicConnection, ClientError>) {
        let mut dialing = self.0.networks[network].dialing();
        match dialled {
            Ok(quic) => {
                *dialing = QuicDialing { state: QuicState::Up(quic), failures: 0 };
                self.0.quic_ups.send_modify(|count| *count += 1);
            }
            Err(error) => {
                tracing::debug!("no QUIC: {error}");
                let (first, most) = match self.networks() {
                    1 => (REST, MAX_REST),
                    _ => (NETWORK_REST, MAX_NETWORK_REST),
                };
                let rest = first.saturating_mul(1 << dialing.failures.min(8)).min(most);
                dialing.failures += 1;
                dialing.state = QuicState::Resting(Instant::now() + rest);
            }
        }
        drop(dialing);
        // Over either network.
        self.remember(self.transport());
    }

    fn remember(&self, winner: Transport) {
        let before = self.0.known_servers.recall(&self.0.url).and_then(|known| known.offer);
        let asked = self.0.offer.try_lock().ok().and_then(|offer| *offer);
        let offer = asked.unwrap_or(before);
        self.0.known_servers.remember(&self.0.url, KnownServer { winner, offer });
    }

    /// Gives up a connection that seems to be dead: the next request starts a new attempt at once.
    /// It is closed, so that all answers move elsewhere at once, unless it has plain requests,
    /// which cannot: then each answer moves when it has waited for long enough.
    pub(crate) fn give_up(&self, quic: &QuicConnection) {
        if !quic.has_tunnels() {
            quic.close();
        }
        let mut dialing = self.0.networks[quic.network()].dialing();
        if matches!(&dialing.state, QuicState::Up(current) if current.is(quic)) {
            dialing.state = QuicState::Down;
        }
    }

    /// Forgets failed attempts: the network has changed, and QUIC may get through now.
    pub(crate) fn retry_quic(&self) {
        for link in &self.0.networks {
            let mut dialing = link.dialing();
            if matches!(dialing.state, QuicState::Resting(_)) {
                *dialing = QuicDialing::default();
            }
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

/// Returns the networks of `config`: at least one.
fn networks(config: &Config) -> Result<Vec<NetworkLink>, ClientError> {
    let given = config.via.len();
    if given > MAX_NETWORKS {
        return Err(ClientError::Networks { given, most: MAX_NETWORKS });
    }
    let link = |(index, via)| NetworkLink {
        network: OwnNetwork { index, via },
        dialing: Mutex::default(),
    };
    if given == 0 {
        return Ok(vec![link((0, None))]);
    }
    Ok(config.via.iter().cloned().map(Some).enumerate().map(link).collect())
}
