//! Servers of one upstream with their state, and the places that requests hold there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, Weak};
use std::time::Duration;

use http::HeaderValue;
use http::header::{self, HeaderMap};
use loquent_infer::tenant::Tenant;
use loquent_openai::http::{HttpResponse, bearer};
use loquent_openai::{BaseUrl, HttpError};
use tokio::sync::{Notify, oneshot};

use super::affinity::PromptKey;
use super::balancer::{
    Balancer, MAX_SERVERS, NoServer, Routing, ServerAssignment, ServerSet, Unplaced,
};
use super::breaker::RequestVerdict;
use super::server::UpstreamServer;
use super::trace::AskTrace;
use super::waiting::{Ticket, WaitingRoom};
use loquent_serving::clock::Clock;
use loquent_serving::error::{ApiError, ServerSign};
use loquent_serving::metrics::upstream_stats::ServerStats;

/// Message for clients and the operator about a server that refuses the operator's key.
const KEY_REFUSED: &str = "The upstream server refuses this server's --upstream-api-key.";
/// Pause for a busy server that does not specify one.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Addresses of an upstream's servers, and authorization of requests to them.
#[derive(Debug, Clone, Default)]
pub struct PoolConfig {
    /// The model's name in the API. Without one, clients and servers use the servers' own name.
    pub name: Option<String>,
    /// Base URLs of servers with the same model, with or without a final `/v1`.
    pub urls: Vec<String>,
    /// Strategy for choosing a server.
    pub routing: Routing,
    /// API key for the servers; without one, the client's own key is passed on.
    pub api_key: Option<String>,
    /// True if clients' keys are for this server and must not reach the upstream.
    pub keeps_keys: bool,
    /// Maximum silence of a server before and within a response.
    pub silence_limit: Duration,
    /// Maximum concurrent completions at one server; further ones wait here.
    pub max_running: Option<u64>,
}

/// Constraints of a request on its server.
#[derive(Debug, Clone, Copy)]
pub struct ServerConstraints {
    /// Key of the prompt's beginning, if there is a prompt.
    pub prompt: Option<PromptKey>,
    /// Completions requested; zero for a mere lookup, which needs no turn.
    pub completions: u64,
    /// Tenant of the request.
    pub tenant: Tenant,
}

/// A request waiting for a place.
#[derive(Debug)]
struct Waiter {
    wanted: ServerConstraints,
    tried: ServerSet,
    served: oneshot::Sender<Result<UpstreamLease, NoServer>>,
}

/// State of the servers, and the requests waiting for them.
#[derive(Debug)]
struct PoolState {
    balancer: Balancer,
    room: WaitingRoom<Waiter>,
}

/// The servers of one upstream.
pub struct Pool {
    /// The model's name in the API, if the operator has given it one.
    pub name: Option<String>,
    /// Name for display: the model's name, or the addresses of the servers.
    pub label: String,
    /// Servers of the upstream.
    pub servers: Vec<UpstreamServer>,
    /// Maximum silence of a server before and within a response.
    pub silence_limit: Duration,
    /// True if clients' keys are for this server and must not reach the upstream.
    pub keeps_keys: bool,
    /// The server's clock.
    pub clock: Clock,
    api_key: Option<HeaderValue>,
    /// Done once a server has refused `api_key`.
    key_warning: Once,
    state: Mutex<PoolState>,
    /// Notified when a health check finds a server up again.
    is_back: Notify,
    /// Upstreams that take the requests no server of this one can take.
    fallbacks: OnceLock<Vec<Weak<Self>>>,
}

impl Pool {
    /// Creates a pool of the servers of `config`. Sends nothing yet.
    ///
    /// # Errors
    /// When a URL or the key is invalid, or a server is named twice.
    pub fn new(config: &PoolConfig, clock: Clock) -> anyhow::Result<Self> {
        let bases = read_urls(&config.urls)?;
        let urls: Vec<String> = bases.iter().map(BaseUrl::to_string).collect();
        let authorities: Vec<&str> = bases.iter().map(BaseUrl::authority).collect();
        let label = config.name.clone().unwrap_or_else(|| authorities.join(", "));
        let balancer = Balancer::new(urls.iter().map(String::as_str), config.routing);
        let balancer = balancer.with_limit(config.max_running);
        let servers: Result<_, HttpError> = bases.into_iter().map(UpstreamServer::new).collect();
        Ok(Self {
            name: config.name.clone(),
            label,
            servers: servers?,
            silence_limit: config.silence_limit,
            keeps_keys: config.keeps_keys,
            clock,
            api_key: config.api_key.as_deref().map(bearer).transpose()?,
            key_warning: Once::new(),
            state: Mutex::new(PoolState { balancer, room: WaitingRoom::default() }),
            is_back: Notify::new(),
            fallbacks: OnceLock::new(),
        })
    }

    /// Sets the upstreams that take the requests no server of this one can take. `has_more`: there
    /// is a further fallback outside the chain of upstreams.
    pub fn fall_back_on(&self, fallbacks: &[Arc<Self>], has_more: bool) {
        let weak = fallbacks.iter().map(Arc::downgrade).collect();
        assert!(self.fallbacks.set(weak).is_ok(), "they are set once");
        if has_more || !fallbacks.is_empty() {
            self.state().balancer.spare_one_alone();
        }
    }

    /// Returns true if a failing server gets no requests for a while.
    pub fn is_spared(&self) -> bool {
        !self.state().balancer.is_alone()
    }

    /// Returns this upstream, followed by its fallbacks.
    pub fn chain(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let fallbacks = self.fallbacks.get().into_iter().flatten();
        std::iter::once(self.clone()).chain(fallbacks.filter_map(Weak::upgrade)).collect()
    }

    /// Returns true if this upstream and its fallbacks have more than one server.
    pub fn has_other_servers(self: &Arc<Self>) -> bool {
        self.chain().iter().map(|pool| pool.servers.len()).sum::<usize>() > 1
    }

    /// Takes a place at a server that is not in `tried`. While all available servers are at their
    /// limit, requests wait and are served by fair shares.
    ///
    /// # Errors
    /// [`NoServer`] if no server accepts requests.
    pub async fn take_place(
        self: &Arc<Self>,
        wanted: ServerConstraints,
        tried: ServerSet,
    ) -> Result<UpstreamLease, NoServer> {
        let (waiting, served) = {
            let mut state = self.state();
            if state.room.is_empty() || wanted.completions == 0 {
                match state.take(self.clock.now(), wanted, tried) {
                    Ok(place) => return Ok(UpstreamLease::new(self, place, wanted.tenant)),
                    Err(Unplaced::Down(none)) => return Err(none),
                    Err(Unplaced::Full) => {}
                }
            }
            let (sender, served) = oneshot::channel();
            let waiter = Waiter { wanted, tried, served: sender };
            let ticket = state.room.join(wanted.tenant, waiter);
            (WaitingRequest { pool: self, ticket }, served)
        };
        // Somebody may wait for another server than those that have places.
        self.serve_waiting();
        let place = served.await;
        drop(waiting);
        place.unwrap_or(Err(NoServer { retry_in: Duration::ZERO }))
    }

    /// Waits until a health check finds a server up again, at most for `limit`.
    pub async fn wait_for_server(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.is_back.notified()).await;
    }

    /// Gives the available places to waiting requests.
    fn serve_waiting(self: &Arc<Self>) {
        let served = {
            let mut state = self.state();
            if state.room.is_empty() {
                return;
            }
            state.serve_waiting(self.clock.now())
        };
        // Without the lock: a place that nobody takes any more is given back at once.
        for (Waiter { wanted, served, .. }, place) in served {
            let _ = served.send(place.map(|place| UpstreamLease::new(self, place, wanted.tenant)));
        }
    }

    /// Checks that a server of this upstream or of its fallbacks accepts requests.
    ///
    /// # Errors
    /// 503 if none does.
    pub fn check_room(self: &Arc<Self>) -> Result<(), ApiError> {
        let now = self.clock.now();
        let mut rooms = self.chain().into_iter().map(|one| one.state().balancer.check(now));
        let first = rooms.next().unwrap_or(Ok(()));
        first.or_else(|none| rooms.find_map(Result::ok).ok_or(none)).map_err(down)
    }

    /// Returns the first server that accepts requests, for a request that is not a completion.
    ///
    /// # Errors
    /// 503 if none does.
    pub fn any_server(&self) -> Result<&UpstreamServer, ApiError> {
        let now = self.clock.now();
        self.state().balancer.check(now).map_err(down)?;
        let up = self.state().balancer.figures(now).iter().position(|figures| figures.is_up);
        Ok(&self.servers[up.unwrap_or_default()])
    }

    /// Returns the key to send for a client whose own key is `own`.
    pub fn key<'a>(&'a self, own: Option<&'a HeaderValue>) -> Option<&'a HeaderValue> {
        // A key of this server is a secret between it and the client.
        self.api_key.as_ref().or(own.filter(|_| !self.keeps_keys))
    }

    /// Returns true if clients bring their own keys for the servers.
    pub fn has_clients_keys(&self) -> bool {
        self.api_key.is_none() && !self.keeps_keys
    }

    /// Records the outcome of a health check. Returns whether the server is up if that changed.
    pub fn note_check(self: &Arc<Self>, server: usize, passed: bool) -> Option<bool> {
        let changed = self.state().balancer.note_check(self.clock.now(), server, passed);
        if changed == Some(true) {
            self.is_back.notify_waiters();
        }
        self.serve_waiting();
        changed
    }

    /// Counts a request that moves from `server` to another server.
    pub fn note_moved(&self, server: usize) {
        self.state().balancer.note_moved(server);
        let server = self.servers[server].authority();
        tracing::debug!(server, "a request goes to another upstream server");
    }

    /// Returns the statistics of each server.
    pub fn figures(&self) -> Vec<ServerStats> {
        self.state().balancer.figures(self.clock.now())
    }

    /// Returns the number of requests waiting for a place.
    pub fn waiting(&self) -> usize {
        self.state().room.len()
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

impl PoolState {
    fn take(
        &mut self,
        now: Duration,
        wanted: ServerConstraints,
        tried: ServerSet,
    ) -> Result<ServerAssignment, Unplaced> {
        let ServerConstraints { prompt, completions, tenant } = wanted;
        let place = self.balancer.choose(now, prompt, completions, tried)?;
        self.room.take_places(tenant, place.completions());
        Ok(place)
    }

    /// Removes the waiting requests that can be served or refused now, and returns each with its
    /// place or the error.
    fn serve_waiting(
        &mut self,
        now: Duration,
    ) -> Vec<(Waiter, Result<ServerAssignment, NoServer>)> {
        let mut served = Vec::new();
        while let Some((ticket, place)) = self.next_served(now) {
            let waiter = self.room.leave(ticket);
            served.extend(waiter.map(|waiter| (waiter, place)));
        }
        served
    }

    /// The next request to be served. One that fits nowhere reserves a server, or requests of
    /// single completions would take every place that falls free before it.
    fn next_served(
        &mut self,
        now: Duration,
    ) -> Option<(Ticket, Result<ServerAssignment, NoServer>)> {
        let served = self.room.due().into_iter().find_map(|ticket| {
            let &Waiter { wanted, tried, .. } = self.room.waiter(ticket)?;
            match self.take(now, wanted, tried) {
                Ok(place) => Some((ticket, Ok(place))),
                Err(Unplaced::Down(none)) => Some((ticket, Err(none))),
                Err(Unplaced::Full) => {
                    self.balancer.reserve(now, tried);
                    None
                }
            }
        });
        self.balancer.clear_reservations();
        served
    }
}

/// A request in the waiting room. Dropping it removes the request.
struct WaitingRequest<'a> {
    pool: &'a Pool,
    ticket: Ticket,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let left = self.pool.state().room.leave(self.ticket);
        // Without the lock, which what it waited with may need.
        drop(left);
    }
}

/// A request's place at one server, given back on drop.
pub struct UpstreamLease {
    pool: Arc<Pool>,
    place: ServerAssignment,
    tenant: Tenant,
    /// Tokens that the server has computed for the request.
    tokens: AtomicU64,
    /// Span of the request to the server, which ends with the place.
    trace: AskTrace,
    /// True if the place was given back before the end.
    is_given_back: bool,
}

impl std::fmt::Debug for UpstreamLease {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "UpstreamLease({:?})", self.place)
    }
}

impl UpstreamLease {
    fn new(pool: &Arc<Pool>, place: ServerAssignment, tenant: Tenant) -> Self {
        Self {
            pool: pool.clone(),
            place,
            tenant,
            tokens: AtomicU64::new(0),
            trace: AskTrace::default(),
            is_given_back: false,
        }
    }

    /// Attaches `trace`, which ends with the place.
    pub fn trace(&mut self, trace: AskTrace) {
        self.trace = trace;
    }

    /// Records the status of the server's response.
    pub fn note_status(&self, status: u16) {
        self.trace.note_status(status);
    }

    /// Records in the trace that the answer has begun.
    pub fn note_first_token(&self) {
        self.trace.note_first_token();
    }

    /// Records in the trace how the server failed.
    pub fn note_failure(&self, why: &str) {
        self.trace.fail(why);
    }

    /// Records the total number of tokens that the server has computed for the request.
    pub fn note_tokens(&self, tokens: u64) {
        self.tokens.store(tokens, Ordering::Relaxed);
    }

    /// Returns the server's upstream.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the server's index in its upstream.
    pub fn index(&self) -> usize {
        self.place.server
    }

    /// Returns the server.
    pub fn server(&self) -> &UpstreamServer {
        &self.pool.servers[self.place.server]
    }

    /// Reports whether the server works, as far as this request shows.
    pub fn judge(&self, verdict: RequestVerdict) {
        if verdict == RequestVerdict::Fails {
            self.trace.fail("");
        }
        self.pool.state().balancer.judge(self.pool.clock.now(), self.place, verdict);
    }

    /// Records that the answer has begun. For a trial request this already closes the breaker,
    /// since a long answer would otherwise keep other requests away; for any other request only a
    /// complete answer clears earlier failures.
    pub fn note_begun(&self) {
        if self.place.is_trial() {
            self.judge(RequestVerdict::Works);
        }
    }

    /// Records the server's time per token of a completion.
    pub fn note_pace(&self, per_token: Duration) {
        let now = self.pool.clock.now();
        self.pool.state().balancer.note_pace(now, self.place.server, per_token);
    }

    /// Returns the error for a client if `response` refuses the operator's key, which the client
    /// cannot mend. The operator is warned once.
    pub fn refused_key(&self, response: &HttpResponse) -> Option<ApiError> {
        self.pool.api_key.as_ref()?;
        if ServerSign::of(response.status()) != ServerSign::RefusesKey {
            return None;
        }
        let (message, server) = (KEY_REFUSED, self.server().authority());
        self.pool.key_warning.call_once(|| tracing::warn!(server, "{message}"));
        Some(ApiError::bad_gateway(message))
    }

    /// Sends no new requests to the server for a while, as its `response` asks. One client's rate
    /// limit must not affect others: where clients have their own keys at the server, a 429 is
    /// ignored here.
    pub fn pause(&self, response: &HttpResponse) {
        let is_its_own = ServerSign::of(response.status()) == ServerSign::Busy;
        if is_its_own || !self.pool.has_clients_keys() {
            let wanted = retry_after(response.headers()).unwrap_or(BUSY_PAUSE);
            self.pool.state().balancer.pause(self.pool.clock.now(), self.place.server, wanted);
        }
    }

    /// Gives the place back before the end, for a request that keeps a server's refusal while it
    /// waits for a place at another one.
    pub fn give_back(&mut self) {
        if std::mem::replace(&mut self.is_given_back, true) {
            return;
        }
        let tokens = self.tokens.load(Ordering::Relaxed);
        // Whoever sees that the place is free finds its span ended.
        drop(std::mem::take(&mut self.trace));
        let mut state = self.pool.state();
        state.balancer.leave(self.pool.clock.now(), self.place, RequestVerdict::Unknown);
        state.room.give_places(self.tenant, self.place.completions(), tokens);
        drop(state);
        self.pool.serve_waiting();
    }
}

impl Drop for UpstreamLease {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Error while no server accepts requests.
pub fn down(none: NoServer) -> ApiError {
    let retry_s = none.retry_in.as_secs_f64().ceil() as u64;
    let message = "All servers of the upstream are down or busy. Try again later.";
    ApiError::unavailable(message, retry_s)
}

/// Parses `Retry-After` in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Parses the servers' URLs.
fn read_urls(urls: &[String]) -> anyhow::Result<Vec<BaseUrl>> {
    let bases = urls.iter().map(|url| BaseUrl::parse(url)).collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(!bases.is_empty(), "an upstream needs a URL");
    anyhow::ensure!(
        bases.len() <= MAX_SERVERS,
        "an upstream can have {MAX_SERVERS} servers at most; put a load balancer before more"
    );
    for (at, base) in bases.iter().enumerate() {
        anyhow::ensure!(!bases[..at].contains(base), "the upstream server {base} is named twice");
    }
    Ok(bases)
}

#[cfg(test)]
mod tests {
    use loquent_infer::tenant::TenantId;

    use super::*;

    fn waiter(tenant: u64, completions: u64) -> Waiter {
        let tenant = Tenant { id: TenantId(tenant), ..Tenant::default() };
        let wanted = ServerConstraints { prompt: None, completions, tenant };
        Waiter { wanted, tried: ServerSet::default(), served: oneshot::channel().0 }
    }

    fn join(state: &mut PoolState, tenant: u64, completions: u64) {
        let waiter = waiter(tenant, completions);
        state.room.join(waiter.wanted.tenant, waiter);
    }

    #[test]
    fn a_request_of_several_completions_does_not_starve_beside_single_ones() {
        for servers in [&["http://a"][..], &["http://a", "http://b"]] {
            let balancer = Balancer::new(servers.iter().copied(), Routing::LeastLoaded);
            let balancer = balancer.with_limit(Some(4));
            let mut state = PoolState { balancer, room: WaitingRoom::default() };
            (0..8).for_each(|_| join(&mut state, 1, 1));
            let mut running = std::collections::VecDeque::new();
            let mut left = None;
            for step in 0..200 {
                if step == 20 {
                    join(&mut state, 2, 4);
                }
                for (Waiter { wanted, .. }, place) in state.serve_waiting(Duration::ZERO) {
                    if wanted.completions > 1 {
                        left.get_or_insert(step - 20);
                    } else {
                        // Another one comes for each that is served.
                        join(&mut state, 1, 1);
                    }
                    running.push_back((wanted.tenant, place.unwrap()));
                }
                // One ends at a time, so that four places are never free by chance.
                let (tenant, place) = running.pop_front().unwrap();
                state.balancer.leave(Duration::ZERO, place, RequestVerdict::Works);
                state.room.give_places(tenant, place.completions(), 10);
            }
            let waited = left.expect("it gets its places");
            assert!(waited <= 16, "{waited} others ended before it began");
        }
    }
}
