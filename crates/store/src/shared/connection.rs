//! The connection to a shared store: every call has a timeout, and few run at once.
//!
//! A connection is opened by the first call that needs one, and dropped with its first error. One
//! that fell silent has no error: it is dropped after `MAX_SILENT_CALLS`. Callers check what the
//! store returns: the socket and the scripts bound its size, and the decoders validate the rest.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use loquent_proto::{hex, printable::printable};
use loquent_serving::entropy::Entropy;
use redis::{ErrorKind, RedisError, Script, ScriptInvocation, Value};
use tokio::sync::{Mutex as AsyncMutex, Notify, Semaphore, watch};
use tokio::time::Instant;

use super::reply::StoreReply;
use super::socket::StoreSocket;
use crate::address::SharedAddress;
use crate::object::StoreError;

/// Maximum concurrent calls. A further call waits for its turn within its own timeout.
const MAX_CALLS: usize = 64;
/// Time limit for a call, including the wait for its turn and for a new connection.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// Calls in a row without an answer after which the connection is replaced by a new one.
const MAX_SILENT_CALLS: u32 = 2;
/// Bytes that the store may send between two answers, beyond the longest object: several calls at
/// once are answered, of about 1 MiB each.
const REPLY_SLACK_BYTES: usize = 16 << 20;
/// Time limit for an attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for the store at startup.
const START_LIMIT: Duration = Duration::from_secs(5);
/// Prefix of all keys; the number is the format version.
const KEY_PREFIX: &str = "loquent:1:";
/// Interval between a replica's announcements that it is alive, and the time limit for each: if one
/// is lost, the next follows within the lease.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// Time without an announcement after which a replica counts as dead.
pub const REPLICA_LEASE: Duration = Duration::from_secs(3);
/// Maximum bytes of a replica's notice, and number of notices that the script returns.
pub const NOTICE_BYTES: usize = 16 << 10;
const MAX_NOTICES: usize = 1000;
/// Time that the store remembers the end of a replica.
const RETIRED_KEPT: Duration = Duration::from_secs(6 * 60 * 60);
/// Duration from which a call suggests that the store was paused and that leases expired meanwhile.
const SLOW_CALL: Duration = Duration::from_secs(1);
/// Maximum gap between two calls across which the store is known to have worked.
const CALL_GAP: Duration = Duration::from_millis(1700);

static ANNOUNCE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/announce.lua")));
static OTHERS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/others.lua")));

/// Health of the store, as of the last call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreHealth {
    /// The store answers.
    Well,
    /// The store cannot be used, for this reason.
    Away(Arc<str>),
}

/// A connection to a shared store. Clones share it.
#[derive(Clone)]
pub struct SharedConnection(Arc<StoreLink>);

struct StoreLink {
    address: SharedAddress,
    /// The open connection.
    socket: Mutex<Option<OpenSocket>>,
    /// Number of connections so far. Locked by the call that opens one, so that others wait for it
    /// and share it.
    opening: AsyncMutex<u64>,
    most_reply_bytes: usize,
    /// Calls in a row that the connection has not answered.
    silent_calls: AtomicU32,
    places: Semaphore,
    health: Mutex<StoreHealth>,
    uptime: Mutex<StoreUptime>,
    has_retired: AtomicBool,
    replica: String,
    /// Writes this replica's notice.
    notice: OnceLock<NoticeWriter>,
    /// Notified when the notice has changed.
    has_news: Notify,
    entropy: Entropy,
    /// Number of times that the store had no lease of this replica when it was renewed.
    lapses: watch::Sender<u64>,
}

/// Writes what a replica announces to the others, at most [`NOTICE_BYTES`].
pub type NoticeWriter = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// An open connection with its number.
#[derive(Clone)]
struct OpenSocket {
    number: u64,
    socket: StoreSocket,
}

/// The period in which the store has worked without a pause, as far as this replica's calls show.
struct StoreUptime {
    since: Instant,
    latest: Instant,
}

impl StoreUptime {
    fn begin() -> Self {
        let now = Instant::now();
        Self { since: now, latest: now }
    }

    /// Records a call that began at `begun` and ends at `now`, successfully or not.
    fn note(&mut self, begun: Instant, now: Instant, is_well: bool) {
        let is_prompt = now.duration_since(begun) < SLOW_CALL;
        let is_known = begun.saturating_duration_since(self.latest) < CALL_GAP;
        if !(is_well && is_prompt && is_known) {
            self.since = now;
        }
        self.latest = now;
    }

    /// True if the store has worked for a whole `lease`, so that every live replica could renew its
    /// own.
    fn covers(&self, lease: Duration, now: Instant) -> bool {
        self.latest.duration_since(self.since) >= lease
            && now.saturating_duration_since(self.latest) < CALL_GAP
    }
}

impl std::fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedConnection({})", self.0.address)
    }
}

impl SharedConnection {
    /// Connects to the store at `address`, whose objects have at most `most_json_bytes` each. The
    /// name of this replica is drawn from `entropy`.
    ///
    /// A store that cannot be reached may become available later: until then it counts as away.
    ///
    /// # Errors
    /// [`StoreError::Unusable`], when the store refuses the login.
    pub async fn open(
        address: &SharedAddress,
        most_json_bytes: usize,
        entropy: Entropy,
    ) -> Result<Self, StoreError> {
        let connection = Self(Arc::new(StoreLink {
            address: address.clone(),
            socket: Mutex::default(),
            opening: AsyncMutex::default(),
            most_reply_bytes: most_json_bytes.saturating_add(REPLY_SLACK_BYTES),
            silent_calls: AtomicU32::new(0),
            places: Semaphore::new(MAX_CALLS),
            health: Mutex::new(StoreHealth::Well),
            uptime: Mutex::new(StoreUptime::begin()),
            has_retired: AtomicBool::new(false),
            replica: hex::encode(&entropy.draw::<[u8; 16]>()),
            notice: OnceLock::new(),
            has_news: Notify::new(),
            entropy,
            lapses: watch::Sender::new(0),
        }));
        let announced = tokio::time::timeout(START_LIMIT, connection.announce()).await;
        match announced.unwrap_or_else(|_| Err(StoreError::Failed("it does not answer".into()))) {
            Ok(()) => Ok(connection),
            Err(StoreError::Unusable(why)) => {
                let what = format!("cannot use the store {address}: {why}; correct --store");
                Err(StoreError::Unusable(what.into()))
            }
            Err(error) => {
                connection.note(Some(&"it does not answer".to_owned()));
                tracing::error!(
                    "starting without the store {address}: {error}; start it (redis-server, \
                     valkey-server), or correct --store"
                );
                Ok(connection)
            }
        }
    }

    /// Returns this replica's name in the store.
    pub fn replica(&self) -> &str {
        &self.0.replica
    }

    /// Returns the source of random numbers.
    pub fn entropy(&self) -> &Entropy {
        &self.0.entropy
    }

    /// Returns the address, displayed without its password.
    pub fn address(&self) -> &SharedAddress {
        &self.0.address
    }

    /// Returns the health of the store, as of the last call.
    pub fn health(&self) -> StoreHealth {
        self.state().clone()
    }

    /// Prepares a call of `script` with the prefix of all keys as its first argument.
    pub fn invocation(script: &Script) -> ScriptInvocation<'_> {
        let mut invocation = script.prepare_invoke();
        invocation.arg(KEY_PREFIX);
        invocation
    }

    /// Runs a script within `CALL_LIMIT`. If cancelled, the script may or may not have run.
    ///
    /// # Errors
    /// [`StoreError::Failed`], or [`StoreError::Unusable`] if the store refuses the login.
    pub async fn run(&self, invocation: &ScriptInvocation<'_>) -> Result<Value, StoreError> {
        let begun = Instant::now();
        let call = async {
            let _place = self.0.places.acquire().await.expect("the semaphore is never closed");
            let mut open = self.socket().await?;
            let answer = open.socket.run(invocation).await;
            if answer.as_ref().is_err_and(needs_another_connection) {
                self.drop_socket(Some(open.number));
            }
            answer
        };
        let returned = match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(returned) => {
                self.note_answer(returned.as_ref().is_err_and(RedisError::is_timeout));
                returned.map_err(|error| (said(&error), is_refused(&error)))
            }
            Err(_) => {
                self.note_answer(true);
                Err(("it takes too long".to_owned(), false))
            }
        };
        self.note(returned.as_ref().err().map(|(why, _)| why));
        self.uptime().note(begun, Instant::now(), returned.is_ok());
        returned.map_err(|(why, is_refused)| match is_refused {
            true => StoreError::Unusable(why.into()),
            false => StoreError::Failed(why.into()),
        })
    }

    /// True if a replica whose lease has expired is dead: the store must have worked for a whole
    /// lease. After a pause of the store, live replicas have had no chance to renew theirs.
    pub fn knows_the_dead(&self) -> bool {
        self.uptime().covers(REPLICA_LEASE, Instant::now())
    }

    fn uptime(&self) -> MutexGuard<'_, StoreUptime> {
        self.0.uptime.lock().expect("nothing panics under this lock")
    }

    /// Renews this replica's lease periodically until [`Self::retire`] is called.
    pub async fn keep_announced(&self) {
        let mut tick = tokio::time::interval(ANNOUNCE_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.0.has_news.notified() => {}
                _ = tick.tick() => {}
            }
            if self.0.has_retired.load(Ordering::Relaxed) {
                return;
            }
            // A failure was logged, and the next time is soon.
            let begun = Instant::now();
            if tokio::time::timeout(ANNOUNCE_EVERY, self.announce()).await.is_err() {
                self.uptime().note(begun, Instant::now(), false);
                self.note_answer(true);
            }
        }
    }

    /// Records that a call was answered, or that it was not; drops a silent connection.
    fn note_answer(&self, is_silent: bool) {
        if !is_silent {
            self.0.silent_calls.store(0, Ordering::Relaxed);
            return;
        }
        let silent = self.0.silent_calls.fetch_add(1, Ordering::Relaxed) + 1;
        if silent < MAX_SILENT_CALLS {
            return;
        }
        self.0.silent_calls.store(0, Ordering::Relaxed);
        self.drop_socket(None);
    }

    /// Returns the connection; opens one if there is none.
    async fn socket(&self) -> Result<OpenSocket, RedisError> {
        if let Some(open) = self.open_socket().clone() {
            return Ok(open);
        }
        let mut opened = self.0.opening.lock().await;
        if let Some(open) = self.open_socket().clone() {
            return Ok(open);
        }
        let open = StoreSocket::open(&self.0.address, self.0.most_reply_bytes, CALL_LIMIT);
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        let socket = tokio::time::timeout(CONNECT_LIMIT, open).await.map_err(|_| late())??;
        *opened += 1;
        let open = OpenSocket { number: *opened, socket };
        *self.open_socket() = Some(open.clone());
        Ok(open)
    }

    fn open_socket(&self) -> MutexGuard<'_, Option<OpenSocket>> {
        self.0.socket.lock().expect("nothing panics under this lock")
    }

    /// Drops the connection with this number, or whichever is open: the next call opens another.
    /// Calls under way end with the connection that they have.
    fn drop_socket(&self, number: Option<u64>) {
        let mut place = self.open_socket();
        if number.is_none_or(|number| place.as_ref().is_some_and(|open| open.number == number)) {
            *place = None;
        }
    }

    /// Announces what `notice` writes from now on, with each renewal of the lease.
    pub fn announce_as(&self, notice: NoticeWriter) {
        // The first one stays.
        drop(self.0.notice.set(notice));
        self.renew_notice();
    }

    /// Announces the notice soon, because it has changed.
    pub fn renew_notice(&self) {
        self.0.has_news.notify_one();
    }

    /// Returns the notices of the other replicas that live. Older replicas have none.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn notices(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut invocation = Self::invocation(&OTHERS);
        invocation.arg(self.replica()).arg(NOTICE_BYTES);
        let notices = StoreReply(self.run(&invocation).await?).list(MAX_NOTICES)?;
        Ok(notices.into_iter().map(|one| StoreReply(one).bytes()).collect::<Result<_, _>>()?)
    }

    /// Renews this replica's lease, and announces its notice.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn announce(&self) -> Result<(), StoreError> {
        let mut invocation = Self::invocation(&ANNOUNCE);
        invocation.arg(self.replica()).arg(REPLICA_LEASE.as_millis() as u64).arg(0);
        if let Some(notice) = self.0.notice.get() {
            invocation.arg(notice());
        }
        let is_known = StoreReply(self.run(&invocation).await?).flag()?;
        if !is_known {
            self.0.lapses.send_modify(|lapses| *lapses += 1);
        }
        Ok(())
    }

    /// Returns a channel that changes when the store has lost this replica's lease: it may have
    /// lost other data too.
    pub fn lapses(&self) -> watch::Receiver<u64> {
        self.0.lapses.subscribe()
    }

    /// Announces that this replica ends, so that nobody waits for its lease to expire.
    pub async fn retire(&self) {
        self.0.has_retired.store(true, Ordering::Relaxed);
        let mut invocation = Self::invocation(&ANNOUNCE);
        invocation.arg(self.replica()).arg(0).arg(RETIRED_KEPT.as_millis() as u64);
        // Without it, the others wait until the lease is over.
        drop(self.run(&invocation).await);
    }

    /// Records why the store does not work, or that it works; logs a change.
    fn note(&self, failure: Option<&String>) {
        let mut state = self.state();
        match (failure, &*state) {
            (None, StoreHealth::Away(_)) => {
                tracing::info!("the store {} works again", self.0.address);
                *state = StoreHealth::Well;
            }
            (Some(why), StoreHealth::Well) => {
                tracing::error!("the store {} cannot be used: {why}", self.0.address);
                *state = StoreHealth::Away(why.as_str().into());
            }
            _ => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, StoreHealth> {
        self.0.health.lock().expect("nothing panics under this lock")
    }
}

/// True if only another connection helps: this one is broken, or its server became a replica in a
/// failover and takes no writes any more, while the address leads to the new primary.
fn needs_another_connection(error: &RedisError) -> bool {
    const OF_REPLICAS: [&str; 2] = ["READONLY", "MASTERDOWN"];
    // Redis 6 names it inside an error of the script that wrote.
    let said = [error.code(), error.detail()];
    let is_replica = |text: &str| OF_REPLICAS.iter().any(|word| text.contains(word));
    error.is_unrecoverable_error() || said.into_iter().flatten().any(is_replica)
}

/// True if the store refuses this client and a retry would not help.
fn is_refused(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig)
}

/// The error message, shortened and on one line.
fn said(error: &RedisError) -> String {
    const MOST_CHARS: usize = 300;
    let short: String = error.to_string().chars().take(MOST_CHARS).collect();
    printable(&short).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_became_a_replica_is_left() {
        let error = |line: &str| {
            let reply = redis::parse_redis_value(format!("{line}\r\n").as_bytes());
            reply.and_then(Value::extract_error).unwrap_err()
        };
        for left in [
            "-READONLY You can't write against a read only replica. script: 1, on @user_script:5.",
            "-ERR Error running script (call to f_1): @user_script:5: @user_script: 5: -READONLY \
             You can't write against a read only replica.",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ] {
            assert!(needs_another_connection(&error(left)), "{left}");
        }
        for kept in [
            "-OOM command not allowed when used memory > 'maxmemory'.",
            "-LOADING Redis is loading the dataset in memory",
            "-ERR Error running script (call to f_1): @user_script:5: user_script:5: nil",
        ] {
            assert!(!needs_another_connection(&error(kept)), "{kept}");
        }
    }

    #[test]
    fn only_a_store_that_worked_for_a_whole_lease_knows_the_dead() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut uptime = StoreUptime { since: begun, latest: begun };
        let mut call = |from: u64, to: u64, is_well| {
            uptime.note(at(from), at(to), is_well);
            uptime.covers(REPLICA_LEASE, at(to))
        };
        assert!(!call(1_000, 1_001, true));
        assert!(!call(2_000, 2_001, true));
        assert!(call(3_100, 3_101, true), "a lease has passed");
        assert!(!call(4_000, 5_500, true), "it stood still");
        assert!(!call(6_500, 6_501, true));
        assert!(!call(7_500, 7_501, true));
        assert!(call(8_600, 8_601, true));
        assert!(!call(8_700, 8_701, false), "it failed");
        assert!(!call(14_000, 14_001, true), "nobody knows what it did meanwhile");
    }
}
