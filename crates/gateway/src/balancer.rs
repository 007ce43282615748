//! Chooses the server of an upstream for each request: one that is up and not known to fail,
//! preferably the one with the prompt's beginning in its cache, unless it has more than its share
//! of the load.
//!
//! A prompt goes to the server it belongs to (`affinity`) while that server has fewer requests than
//! its bound, otherwise to the next one in the prompt's own order, as in consistent hashing with
//! bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018). The bound is the server's share
//! of all requests in progress, plus a quarter. Requests without a prompt go to the least loaded
//! server. A server whose tokens take several times as long as the fastest server's gets a
//! proportionally smaller share. The balancer reads no clock.

use std::time::Duration;

use super::affinity::{PromptKey, ServerPoint};
use super::breaker::{CircuitBreaker, RequestVerdict};
use super::health::Health;
use super::pace::Pace;
use loquent_serving::metrics::upstream_stats::ServerStats;

/// Maximum number of servers of one upstream.
pub const MAX_SERVERS: usize = 64;
/// Bound on a server's load, in percent of its share of the total. A lower bound spreads bursts
/// more evenly; a higher one keeps more prompts where their beginnings are cached.
const BOUND_PERCENT: u64 = 125;
/// Completions that every server may have regardless of its share: so few run in one batch at
/// almost no extra cost.
const FREE_LOAD: u64 = 4;
/// Maximum factor by which a server counts as slower than the fastest.
const MAX_SLOWNESS: u64 = 8;
/// Maximum pause that a server's response can request.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Minimum and maximum of the suggested retry delay while servers are down.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Suggested retry delay for a server that fails its health checks.
const DOWN_RETRY: Duration = Duration::from_secs(2);

/// Strategy for choosing servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Routing {
    /// By the prompt's beginning, within load bounds.
    #[default]
    Prefix,
    /// The server with the least load.
    LeastLoaded,
    /// Each server in turn.
    RoundRobin,
}

/// A set of an upstream's servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerSet(u64);

impl ServerSet {
    /// Adds a server.
    pub fn insert(&mut self, server: usize) {
        self.0 |= 1 << server;
    }

    /// Returns true if the set contains the server.
    pub fn contains(self, server: usize) -> bool {
        self.0 >> server & 1 == 1
    }

    /// Returns the number of servers in the set.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// A request's place at a server, returned with [`Balancer::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerAssignment {
    /// The server.
    pub server: usize,
    /// Completions requested.
    completions: u64,
    /// True if the request tests a server that had failed.
    is_trial: bool,
}

impl ServerAssignment {
    /// Returns the number of completions requested.
    pub fn completions(self) -> u64 {
        self.completions
    }

    /// Returns true if the request tests a server that had failed.
    pub fn is_trial(self) -> bool {
        self.is_trial
    }
}

/// Error: no server accepts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoServer {
    /// Time until a server may accept requests.
    pub retry_in: Duration,
}

/// Reason why a request gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unplaced {
    /// No server accepts requests.
    Down(NoServer),
    /// All servers that accept requests are at their limit.
    Full,
}

#[derive(Debug)]
struct ServerState {
    point: ServerPoint,
    health: Health,
    breaker: CircuitBreaker,
    /// End of the pause that the server asked for.
    paused_until: Duration,
    pace: Pace,
    figures: ServerStats,
}

impl ServerState {
    fn takes(&self, now: Duration) -> bool {
        self.health.is_up() && self.breaker.allows(now) && self.paused_until <= now
    }

    /// Returns when the server may accept requests again.
    fn back_at(&self, now: Duration) -> Duration {
        let down = if self.health.is_up() { Duration::ZERO } else { now + DOWN_RETRY };
        let open = self.breaker.opens_until().unwrap_or_default();
        down.max(open).max(self.paused_until)
    }
}

/// The servers of one upstream.
#[derive(Debug)]
pub struct Balancer {
    servers: Vec<ServerState>,
    routing: Routing,
    /// Server whose turn is next among equals.
    turn: usize,
    /// True if there is only one server, which then gets every request: there is no other to use in
    /// its place.
    is_alone: bool,
    /// Maximum concurrent completions at one server.
    limit: Option<u64>,
    /// Servers that drain for a request of several completions and take no others.
    reserved: ServerSet,
}

impl Balancer {
    /// Creates a balancer for the servers at `urls`, with no knowledge of their state.
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>, routing: Routing) -> Self {
        let state = |url| ServerState {
            point: ServerPoint::of(url),
            health: Health::default(),
            breaker: CircuitBreaker::default(),
            paused_until: Duration::ZERO,
            pace: Pace::default(),
            figures: ServerStats::default(),
        };
        let servers: Vec<_> = urls.into_iter().map(state).collect();
        assert!((1..=MAX_SERVERS).contains(&servers.len()), "checked where the URLs are read");
        let is_alone = servers.len() == 1;
        Self { servers, routing, turn: 0, is_alone, limit: None, reserved: ServerSet::default() }
    }

    /// Limits the concurrent completions at each server to `limit`.
    pub fn with_limit(self, limit: Option<u64>) -> Self {
        Self { limit, ..self }
    }

    /// Lets the breaker, health checks and pauses keep requests from even the only server, because
    /// a fallback exists.
    pub fn spare_one_alone(&mut self) {
        self.is_alone = false;
    }

    /// Returns true if the only server gets every request, even while it fails.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Chooses a server that is not in `tried` for a request at `now`.
    ///
    /// # Errors
    /// [`Unplaced`] if no server can take the request.
    pub fn choose(
        &mut self,
        now: Duration,
        key: Option<PromptKey>,
        completions: u64,
        tried: ServerSet,
    ) -> Result<ServerAssignment, Unplaced> {
        let up = self.ready(now, tried);
        if up.is_empty() {
            return Err(Unplaced::Down(NoServer { retry_in: self.retry_in(now) }));
        }
        let ready: Vec<usize> =
            up.into_iter().filter(|&at| self.has_place(at, completions)).collect();
        let Some(&first) = ready.first() else { return Err(Unplaced::Full) };
        let key = key.filter(|_| self.routing == Routing::Prefix);
        let (server, is_affine) = match key {
            _ if ready.len() == 1 => (first, false),
            Some(key) => self.by_prompt(now, &ready, key, completions),
            None => (self.in_turn(now, &ready), false),
        };
        self.turn = (server + 1) % self.servers.len();
        let state = &mut self.servers[server];
        state.figures.requests += 1;
        state.figures.affine += u64::from(is_affine);
        state.figures.running += completions;
        Ok(ServerAssignment { server, completions, is_trial: state.breaker.begin() })
    }

    /// Reserves the server with fewest completions, other than those of `tried`, for a request that
    /// fits nowhere: others get no place there until [`Self::clear_reservations`].
    pub fn reserve(&mut self, now: Duration, tried: ServerSet) {
        let ready = self.ready(now, tried).into_iter();
        let free = ready.filter(|&server| !self.reserved.contains(server));
        if let Some(server) = free.min_by_key(|&server| self.running(server)) {
            self.reserved.insert(server);
        }
    }

    /// Lets requests take places at all servers again.
    pub fn clear_reservations(&mut self) {
        self.reserved = ServerSet::default();
    }

    /// Returns a place.
    pub fn leave(&mut self, now: Duration, place: ServerAssignment, verdict: RequestVerdict) {
        self.judge(now, place, verdict);
        self.servers[place.server].figures.running -= place.completions;
    }

    /// Records the verdict on a request that keeps its place.
    pub fn judge(&mut self, now: Duration, place: ServerAssignment, verdict: RequestVerdict) {
        let state = &mut self.servers[place.server];
        state.breaker.judge(now, place.is_trial, verdict);
        state.figures.failures += u64::from(verdict == RequestVerdict::Fails);
    }

    /// Counts a request that moves from `server` to another server.
    pub fn note_moved(&mut self, server: usize) {
        self.servers[server].figures.moved += 1;
    }

    /// Sends no new requests to `server` for the time it asked for, up to `MAX_PAUSE`.
    pub fn pause(&mut self, now: Duration, server: usize, wanted: Duration) {
        let until = now + wanted.min(MAX_PAUSE);
        let state = &mut self.servers[server];
        state.paused_until = state.paused_until.max(until);
    }

    /// Records the time `server` took between two tokens of a completion.
    pub fn note_pace(&mut self, now: Duration, server: usize, per_token: Duration) {
        self.servers[server].pace.note(now, per_token);
    }

    /// Records the outcome of a health check. Returns whether the server is up if that changed.
    pub fn note_check(&mut self, now: Duration, server: usize, passed: bool) -> Option<bool> {
        let state = &mut self.servers[server];
        let before = state.health.is_up();
        state.health = state.health.after(passed);
        let after = state.health.is_up();
        if after && !before {
            state.breaker.hasten(now);
        }
        (after != before).then_some(after)
    }

    /// Checks that at least one server accepts requests.
    ///
    /// # Errors
    /// [`NoServer`] if none does.
    pub fn check(&self, now: Duration) -> Result<(), NoServer> {
        match self.ready(now, ServerSet::default()).is_empty() {
            true => Err(NoServer { retry_in: self.retry_in(now) }),
            false => Ok(()),
        }
    }

    /// Returns the statistics of each server.
    pub fn figures(&self, now: Duration) -> Vec<ServerStats> {
        let of = |server: &ServerState| ServerStats {
            is_up: server.takes(now) || self.is_alone,
            opened: server.breaker.opened(),
            pace: server.pace.at(now),
            ..server.figures
        };
        self.servers.iter().map(of).collect()
    }

    fn ready(&self, now: Duration, tried: ServerSet) -> Vec<usize> {
        let untried = (0..self.servers.len()).filter(|&server| !tried.contains(server));
        untried.filter(|&server| self.is_alone || self.servers[server].takes(now)).collect()
    }

    /// Returns true if a server may take `completions` more. An idle server takes a request of any
    /// size, and any server takes a request for zero completions.
    fn has_place(&self, server: usize, completions: u64) -> bool {
        let running = self.running(server);
        let fits = |limit| running.min(completions) == 0 || running + completions <= limit;
        let is_open = completions == 0 || !self.reserved.contains(server);
        is_open && self.limit.is_none_or(fits)
    }

    fn retry_in(&self, now: Duration) -> Duration {
        let soonest = self.servers.iter().map(|server| server.back_at(now)).min();
        soonest.unwrap_or_default().saturating_sub(now).clamp(RETRY[0], RETRY[1])
    }

    /// Returns the first of `ready` in the prompt's own order that is below its bound, and true if
    /// the prompt belongs to that server.
    fn by_prompt(
        &self,
        now: Duration,
        ready: &[usize],
        key: PromptKey,
        completions: u64,
    ) -> (usize, bool) {
        let mut order = ready.to_vec();
        order.sort_by_key(|&at| std::cmp::Reverse(self.servers[at].point.weight(key)));
        let bounds = self.bounds(now, ready, completions);
        let has_room = |at: &&usize| {
            let place = ready.iter().position(|ready| ready == *at);
            place.is_some_and(|place| self.running(**at) < bounds[place])
        };
        // The bounds add up to more than all that is under way: somewhere is room.
        let chosen = order.iter().find(has_room).unwrap_or(&order[0]);
        (*chosen, *chosen == order[0])
    }

    /// Returns the maximum number of completions for each server of `ready`.
    fn bounds(&self, now: Duration, ready: &[usize], completions: u64) -> Vec<u64> {
        let all: u64 = ready.iter().map(|&at| self.running(at)).sum::<u64>() + completions;
        let shares: Vec<u64> = self.slowness(now, ready).iter().map(|it| WHOLE / it).collect();
        let whole: u64 = shares.iter().sum();
        let bound = |share: &u64| (all * share * BOUND_PERCENT).div_ceil(whole * 100);
        shares.iter().map(|share| bound(share).max(FREE_LOAD * share / WHOLE).max(1)).collect()
    }

    /// Returns the server of `ready` with the least load, or the one whose turn it is.
    fn in_turn(&self, now: Duration, ready: &[usize]) -> usize {
        let all = self.servers.len();
        let distance = |at: usize| (at + all - self.turn) % all;
        let slowness = self.slowness(now, ready);
        let cost = |&(at, slowness): &(usize, u64)| match self.routing {
            Routing::RoundRobin => (0, distance(at)),
            _ => ((self.running(at) + 1) * slowness, distance(at)),
        };
        let all = ready.iter().copied().zip(slowness);
        all.min_by_key(cost).map_or(ready[0], |(server, _)| server)
    }

    /// Returns for each server of `ready` its time per token as a multiple of the fastest one's.
    /// Rounded down, so that equal servers compare as equal despite measurement noise.
    fn slowness(&self, now: Duration, ready: &[usize]) -> Vec<u64> {
        let paces: Vec<_> = ready.iter().map(|&at| self.servers[at].pace.at(now)).collect();
        let fastest = paces.iter().flatten().min().copied().unwrap_or_default();
        let times = |pace: &Option<Duration>| {
            let times = pace.map_or(0, |pace| pace.as_nanos() / fastest.as_nanos().max(1));
            (times as u64).clamp(1, MAX_SLOWNESS)
        };
        paces.iter().map(times).collect()
    }

    fn running(&self, server: usize) -> u64 {
        self.servers[server].figures.running
    }
}

/// A full share: divisible by every slowness, so that each server's share is a whole number.
const WHOLE: u64 = 840;

#[cfg(test)]
mod tests;
