//! Which server of an upstream gets the next request: one that is up and not known to fail, the one
//! that has the prompt's beginning in its cache unless that one has more than its part to do.
//!
//! A prompt goes to the server that it belongs to (`affinity`) while that one has fewer requests
//! than its bound, or else to the next one in the prompt's own order, as in consistent hashing with
//! bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018). The bound is the server's part
//! of all requests under way, and a quarter more. Requests without a prompt go where least is to
//! do. A server that takes several times as long for a token as the fastest counts for as much
//! less. No clock is read here.

use std::time::Duration;

use super::affinity::{PromptKey, ServerPoint};
use super::breaker::{CircuitBreaker, RequestVerdict};
use super::figures::ServerFigures;
use super::health::Health;
use super::pace::Pace;

/// Most servers of one upstream.
pub const MAX_SERVERS: usize = 64;
/// The bound on a server's load in percent of its part of all. Lower spreads bursts more evenly,
/// higher keeps more prompts where their beginnings are.
const BOUND_PERCENT: u64 = 125;
/// Completions that every server may have, however few there are elsewhere: so few share a batch
/// at next to no cost.
const FREE_LOAD: u64 = 4;
/// How many times slower than the fastest a server may count.
const MAX_SLOWNESS: u64 = 8;
/// How long a server may ask to be left alone.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// When clients may come again while servers are down, at least and at most.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// How soon a server that fails its health checks may be back.
const DOWN_RETRY: Duration = Duration::from_secs(2);

/// How servers are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Routing {
    /// By the prompt's beginning, within bounds of load.
    #[default]
    Prefix,
    /// Where least is to do.
    LeastLoaded,
    /// Each in its turn.
    RoundRobin,
}

/// Some of an upstream's servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerSet(u64);

impl ServerSet {
    /// Adds a server.
    pub fn insert(&mut self, server: usize) {
        self.0 |= 1 << server;
    }

    /// Whether the server is one of them.
    pub fn contains(self, server: usize) -> bool {
        self.0 >> server & 1 == 1
    }
}

/// A request's place at a server, to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerPlace {
    /// The server.
    pub server: usize,
    /// Completions that the request asks for.
    completions: u64,
    /// Whether the request tries out a server that failed.
    is_trial: bool,
}

impl ServerPlace {
    /// Completions that the request asks for.
    pub fn completions(self) -> u64 {
        self.completions
    }

    /// Whether the request tries out a server that failed.
    pub fn is_trial(self) -> bool {
        self.is_trial
    }
}

/// No server takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoServer {
    /// When one may, from now.
    pub retry_in: Duration,
}

/// Why a request gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unplaced {
    /// No server takes requests.
    Down(NoServer),
    /// Those that do have as many as they may.
    Full,
}

#[derive(Debug)]
struct ServerState {
    point: ServerPoint,
    health: Health,
    breaker: CircuitBreaker,
    /// Until when it wants no requests.
    paused_until: Duration,
    pace: Pace,
    figures: ServerFigures,
}

impl ServerState {
    fn takes(&self, now: Duration) -> bool {
        self.health.is_up() && self.breaker.allows(now) && self.paused_until <= now
    }

    /// When it may take requests again.
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
    /// The server whose turn is next among equals.
    turn: usize,
    /// One server alone gets whatever comes, as there is nothing to spare it for.
    is_alone: bool,
    /// Completions that one server may have at a time.
    limit: Option<u64>,
    /// Servers that drain for a request of several completions, and take no others.
    reserved: ServerSet,
}

impl Balancer {
    /// A balancer of the servers at `urls`, of which nothing is known.
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>, routing: Routing) -> Self {
        let state = |url| ServerState {
            point: ServerPoint::of(url),
            health: Health::default(),
            breaker: CircuitBreaker::default(),
            paused_until: Duration::ZERO,
            pace: Pace::default(),
            figures: ServerFigures::default(),
        };
        let servers: Vec<_> = urls.into_iter().map(state).collect();
        assert!((1..=MAX_SERVERS).contains(&servers.len()), "checked where the URLs are read");
        let is_alone = servers.len() == 1;
        Self { servers, routing, turn: 0, is_alone, limit: None, reserved: ServerSet::default() }
    }

    /// The same with at most `limit` completions at one server at a time.
    pub fn with_limit(self, limit: Option<u64>) -> Self {
        Self { limit, ..self }
    }

    /// Spares even a server that is alone while it fails: there is somewhere else to go.
    pub fn spare_one_alone(&mut self) {
        self.is_alone = false;
    }

    /// Whether its one server gets whatever comes.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Chooses a server other than those of `tried` for a request at `now`.
    ///
    /// # Errors
    /// [`Unplaced`] if none can take it.
    pub fn choose(
        &mut self,
        now: Duration,
        key: Option<PromptKey>,
        completions: u64,
        tried: ServerSet,
    ) -> Result<ServerPlace, Unplaced> {
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
        Ok(ServerPlace { server, completions, is_trial: state.breaker.begin() })
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

    /// Gives back a place.
    pub fn leave(&mut self, now: Duration, place: ServerPlace, verdict: RequestVerdict) {
        self.judge(now, place, verdict);
        self.servers[place.server].figures.running -= place.completions;
    }

    /// Takes the verdict on a request whose place is kept.
    pub fn judge(&mut self, now: Duration, place: ServerPlace, verdict: RequestVerdict) {
        let state = &mut self.servers[place.server];
        state.breaker.judge(now, place.is_trial, verdict);
        state.figures.failures += u64::from(verdict == RequestVerdict::Fails);
    }

    /// Notes that a request goes from `server` to another one.
    pub fn note_moved(&mut self, server: usize) {
        self.servers[server].figures.moved += 1;
    }

    /// Leaves `server` alone for a while, as it asks.
    pub fn pause(&mut self, now: Duration, server: usize, wanted: Duration) {
        let until = now + wanted.min(MAX_PAUSE);
        let state = &mut self.servers[server];
        state.paused_until = state.paused_until.max(until);
    }

    /// Notes how long `server` took from one token of a completion to the next.
    pub fn note_pace(&mut self, now: Duration, server: usize, per_token: Duration) {
        self.servers[server].pace.note(now, per_token);
    }

    /// Notes the outcome of a health check. Returns whether the server is up now, if that is new.
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

    /// Whether any server can take a request.
    ///
    /// # Errors
    /// [`NoServer`] if none can.
    pub fn check(&self, now: Duration) -> Result<(), NoServer> {
        match self.ready(now, ServerSet::default()).is_empty() {
            true => Err(NoServer { retry_in: self.retry_in(now) }),
            false => Ok(()),
        }
    }

    /// What is known of each server.
    pub fn figures(&self, now: Duration) -> Vec<ServerFigures> {
        let of = |server: &ServerState| ServerFigures {
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

    /// Whether a server may have so many completions more. One that has none takes any request, and
    /// a request for none goes anywhere.
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

    /// The first of `ready` in the prompt's own order that is below its bound, and whether the
    /// prompt belongs to it.
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

    /// How many completions each of `ready` may have before it gets no more.
    fn bounds(&self, now: Duration, ready: &[usize], completions: u64) -> Vec<u64> {
        let all: u64 = ready.iter().map(|&at| self.running(at)).sum::<u64>() + completions;
        let shares: Vec<u64> = self.slowness(now, ready).iter().map(|it| WHOLE / it).collect();
        let whole: u64 = shares.iter().sum();
        let bound = |share: &u64| (all * share * BOUND_PERCENT).div_ceil(whole * 100);
        shares.iter().map(|share| bound(share).max(FREE_LOAD * share / WHOLE).max(1)).collect()
    }

    /// The one of `ready` with least to do, or whose turn it is.
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

    /// How many times as long as the fastest each of `ready` takes for a token. Rounded down, so
    /// that equal servers are equal whatever their measurements say.
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

/// A full share: whatever a server's slowness, its part of this is a whole number.
const WHOLE: u64 = 840;

#[cfg(test)]
mod tests;
