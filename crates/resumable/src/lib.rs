//! Resumable answers: their readers may lose the connection and reconnect, over QUIC or by
//! server-sent events (`spec/session.md`, sections 4 and 5).
//!
//! [`ResumableAnswers`] is the table of all answers. Each answer is a task (`answer_task`) that
//! owns its flushes, its log and the paths to its readers. The table is locked when an answer
//! begins, is resumed or is forgotten, or when a further reader comes or goes, but never per
//! token. Whoever wants an answer to be kept takes a [`Reservation`] first, which is charged to a
//! tenant.
//!
//! With a store that replicas share, [`shared`] writes the logs of all answers there, and another
//! replica continues an answer whose owner is gone. The scripts at the store decide who owns an
//! answer; `loquent-script-model` visits every state that they can reach.
//!
//! ```
//! use std::sync::Arc;
//!
//! use loquent_infer::tenant::TenantId;
//! use loquent_resumable::{ResumableAnswers, ResumableLimits};
//! use loquent_serving::{clock::Clock, entropy::Entropy, metrics::Metrics};
//! use loquent_serving::obfuscation::ObfuscationDefault;
//!
//! let limits = ResumableLimits { answers_per_key: 1, ..ResumableLimits::default() };
//! let answers = ResumableAnswers::new(
//!     limits,
//!     ObfuscationDefault::default(),
//!     Clock::start(),
//!     Arc::new(Metrics::new()),
//!     Entropy::system(),
//! );
//! let kept = answers.reserve(TenantId(1), 0).expect("there is room");
//! assert!(answers.reserve(TenantId(1), 0).is_err(), "one answer per key");
//! drop(kept);
//! assert!(answers.reserve(TenantId(1), 0).is_ok());
//! ```

mod answer_task;
mod datagram_reader;
mod event_reader;
mod events_slot;
mod fit_record;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod generation;
pub mod idempotency;
mod log_pump;
mod log_snapshots;
mod path_id;
mod reader_pace;
mod reader_status;
mod readers;
mod reservation;
mod resume_points;
pub mod shared;
pub mod sse_reader;
mod store_announcement;
mod sync;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use loquent_infer::share::{Overflow, PoolKind, ShareRefusal, SharedPool};
use loquent_infer::tenant::TenantId;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::fallback::LowerLayer;
use loquent_proto::message::Code;
use loquent_proto::{AnswerHandle, Position, SenderConfig};
use subtle::ConstantTimeEq;
use tokio::sync::{Notify, mpsc, oneshot};

use loquent_serving::active_request::ActiveRequest;
use loquent_serving::clock::Clock;
use loquent_serving::entropy::Entropy;
use loquent_serving::error::ApiError;
use loquent_serving::metrics::{Metrics, StreamCarrier};
use loquent_serving::obfuscation::ObfuscationDefault;
use loquent_serving::records::RecordContext;
use loquent_store::StoreError;
use loquent_store::shared::connection::SharedConnection;

pub use events_slot::EventsPath;
pub use path_id::PathId;
pub use reservation::Reservation;
pub use store_announcement::StoreAnnouncement;

use answer_task::AnswerTask;
use idempotency::{FirstRequest, IdempotencyKeys, KeyEntry};
use log_pump::LogPump;
pub use log_snapshots::{LogSnapshot, SnapshotRequest};
use reservation::CountedAs;
use shared::epochs::Epochs;
use shared::followed::FollowedLog;
use shared::logs::SharedLogs;
use shared::offers::{OthersOffers, notice_of};
use shared::slot::{LogSlot, SLOT_BYTES};
use shared::state::{GivenBack, NewsSink, StoreNews};
use shared::takeover::{TakeoverOutcome, TakeoverStarter};
use sse_reader::{EventsInbox, events_path};

/// `Retry-After` for clients over a limit, in seconds.
const FULL_RETRY_S: u64 = 10;
/// `Retry-After` for a reader whose answer is at another replica, or will soon be here, in seconds.
const ELSEWHERE_RETRY_S: u64 = 2;

/// Bytes charged for an answer besides its log: its task, its record writer and its table entries.
pub const TASK_BYTES: usize = 8 * 1024;

/// Bytes charged for each reader of an answer beyond the first: records of what was sent to it, and
/// its packets' times.
const READER_BYTES: usize = 8 * 1024;

/// Maximum commands queued for an answer's task: all readers may acknowledge a token at once. When
/// the queue is full, datagrams are dropped, as on a network; everything else waits for room.
const MAX_COMMANDS: usize = readers::MAX_READERS;

/// Limits of resumable answers.
#[derive(Debug, Clone, Copy)]
pub struct ResumableLimits {
    /// Maximum bytes of one answer's log. Acknowledged bytes are kept while there is room.
    pub log_bytes: usize,
    /// Unacknowledged bytes of the furthest reader at which generation pauses.
    pub unacked_bytes: usize,
    /// Maximum bytes of all logs and their tasks. Until an answer has ended, its log counts as
    /// `log_bytes`.
    pub kept_bytes: usize,
    /// Maximum number of answers generated for one tenant at once.
    pub answers_per_key: usize,
    /// Time for which an answer is kept without a reader.
    pub grace: Duration,
    /// Maximum time for which a reader of server-sent events may take nothing before it is cut off.
    pub stall_limit: Duration,
    /// Maximum time for which a datagram reader may acknowledge nothing before nothing more is sent
    /// to it (D-7.2): [`MUTE_LIMIT`], except in tests.
    pub mute_limit: Duration,
    /// Reading time per token assumed for a datagram reader whose client reports none. `None`:
    /// nothing is assumed.
    pub token_time: Option<Duration>,
}

/// Logs of 256 KiB for two thousand answers, each kept for a minute without a reader.
impl Default for ResumableLimits {
    fn default() -> Self {
        Self {
            log_bytes: 256 << 10,
            unacked_bytes: 32 << 10,
            kept_bytes: 512 << 20,
            answers_per_key: 256,
            grace: Duration::from_secs(60),
            stall_limit: Duration::from_secs(30),
            mute_limit: MUTE_LIMIT,
            token_time: None,
        }
    }
}

/// The protocol's limit on the time for which a reader may acknowledge nothing (D-7.2).
pub const MUTE_LIMIT: Duration = Duration::from_secs(10);

/// A connection that carries datagrams, as an answer's task sees it.
pub trait DatagramLink: LowerLayer + Send {
    /// Returns the current maximum datagram size in bytes; 0 if the peer accepts none.
    fn max_bytes(&self) -> usize;
    /// Sends a datagram, which may be lost.
    fn send(&self, datagram: Bytes);
    /// Returns the connection's smoothed round-trip time.
    fn rtt(&self) -> Duration;
    /// Returns the kind of the connection.
    fn transport(&self) -> StreamCarrier;
}

/// The path of an answer to its reader. Dropping it tells the other end that the path is over.
pub enum ReaderPath {
    /// Datagrams, with a QUIC stream as fallback.
    Datagrams {
        /// The answer's number within the connection.
        channel: u64,
        /// The connection.
        link: Box<dyn DatagramLink>,
        /// Frames for the QUIC stream.
        frames: mpsc::Sender<StreamFrame>,
    },
    /// Pieces of the log in order, for server-sent events.
    Events(EventsPath),
}

/// An item sent on the QUIC stream.
#[derive(Debug)]
pub enum StreamFrame {
    /// A frame of the protocol.
    Frame(Vec<u8>),
    /// End of the stream: [`Code::None`] if the reader has acknowledged the whole log, otherwise
    /// the reason why the path is over.
    End(Code),
    /// GONE (D-6.5), then the end: the log no longer has the reader's next bytes.
    Gone,
}

/// A request to read an answer over a path.
pub struct AttachRequest {
    /// The new path's id.
    pub id: PathId,
    /// The new path.
    pub path: ReaderPath,
    /// Position to continue from.
    pub position: Position,
    /// Receives the state of the chunks at the position, and the epoch of the following bytes;
    /// `None` if the log cannot be read from there.
    pub reply: oneshot::Sender<Result<(ChunkWriter, u64), Unreachable>>,
}

/// A reader attached to an existing answer.
pub struct AttachedReader {
    /// State of the chunks where the path begins.
    pub chunks: ChunkWriter,
    /// Epoch of the following bytes.
    pub epoch: u64,
    /// Sends commands to the answer's task.
    pub commands: CommandSender,
}

/// Reason why an answer cannot be read or stopped here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// No answer has this handle, or its log cannot be read from the position.
    Unknown,
    /// Another replica generates the answer, and there is no room for a mirror here.
    NoRoom,
    /// Unknown: the store is unavailable, or this replica is shutting down.
    Away,
}

impl From<Unreachable> for ApiError {
    fn from(unreachable: Unreachable) -> Self {
        match unreachable {
            Unreachable::Unknown => Self::no_stream(),
            Unreachable::NoRoom => {
                let message = "The server holds as many resumable answers as its limit allows. \
                               Try again later.";
                Self::unavailable(message, ELSEWHERE_RETRY_S)
            }
            Unreachable::Away => {
                let message =
                    "Other replicas' answers cannot be reached from here now. Try again soon.";
                Self::unavailable(message, ELSEWHERE_RETRY_S)
            }
        }
    }
}

/// A request to release an answer, because this replica is shutting down or its engine has failed.
pub struct HandOverRequest {
    /// Offers of the others: an answer that none of them covers stays.
    pub others: Arc<OthersOffers>,
    /// Dropped when the task has ended, or at once if the answer stays.
    pub reply: oneshot::Sender<()>,
}

/// A command to an answer's task.
pub enum AnswerCommand {
    /// Deliver the answer over this path too.
    Attach(AttachRequest),
    /// Read the log without a path.
    Look(SnapshotRequest),
    /// A frame has arrived from the reader.
    Frame(PathId, Bytes),
    /// The path is gone; its reader may come back.
    Leave(PathId),
    /// The path's reader stops the answer for all readers.
    Cancel(PathId),
    /// Outcome of an attempt to take the answer over from a replica that has ended.
    Succeed(TakeoverOutcome),
    /// News from the store that replicas share.
    Store(StoreNews),
    /// Release the answer to another replica, if one can take it.
    HandOver(HandOverRequest),
    /// Forget the answer, even if it has readers, for this reason.
    End(Code),
}

/// Forwards the store's news to an answer's task.
struct TaskLink(CommandSender);

impl NewsSink for TaskLink {
    fn tell(&self, news: StoreNews) {
        let commands = self.0.clone();
        // The writer of all logs must not wait for one answer's task.
        tokio::spawn(async move {
            // A task that has ended needs no news.
            drop(commands.send(AnswerCommand::Store(news)).await);
        });
    }

    fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

/// Sends commands to an answer's task.
pub type CommandSender = mpsc::Sender<AnswerCommand>;

struct AnswerEntry {
    token: [u8; 16],
    commands: CommandSender,
    /// True if this replica generates the answer.
    is_owned: Arc<AtomicBool>,
    /// Idempotency key of its request, forgotten with the answer.
    _key: Option<KeyEntry>,
}

struct AnswerTable {
    /// By their ids, in whose order they are handed over and ended.
    answers: BTreeMap<[u8; 16], AnswerEntry>,
    /// Bytes of all answers until they are forgotten, by the tenants that asked for them.
    reserved: SharedPool,
    per_tenant: HashMap<TenantId, usize>,
    /// Answers whose log has not ended or that still have a reader.
    busy: usize,
}

impl AnswerTable {
    fn new(kept_bytes: usize) -> Self {
        let reserved = SharedPool::new(PoolKind::KeptAnswers, kept_bytes, Overflow::Never);
        Self { answers: BTreeMap::new(), reserved, per_tenant: HashMap::new(), busy: 0 }
    }

    /// Returns true if `bytes` more are within the limit of all tenants together.
    fn fits(&self, bytes: usize) -> bool {
        self.reserved.held().saturating_add(bytes) <= self.reserved.limit()
    }
}

/// Tenant of other replicas' answers and of further readers.
const OTHERS: TenantId = TenantId(0);

/// All resumable answers of a server.
pub struct ResumableAnswers {
    limits: ResumableLimits,
    obfuscation: ObfuscationDefault,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// Source of the answers' handles.
    entropy: Entropy,
    table: Mutex<AnswerTable>,
    /// Idempotency keys of requests that may be repeated.
    pub idempotency: Arc<IdempotencyKeys>,
    idle: Notify,
    /// Logs shared with other replicas, if any.
    shared: OnceLock<Arc<SharedLogs>>,
    /// Generates other replicas' answers again, if this replica has a model.
    successor: OnceLock<Arc<dyn TakeoverStarter>>,
    /// True once this replica is shutting down: readers of other replicas' answers are sent away.
    is_leaving: AtomicBool,
}

/// A further reader's share of the limits, released on drop.
pub struct ReaderPermit {
    answers: Arc<ResumableAnswers>,
}

/// Shares of the limits that all answers and their readers hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldShares {
    /// Answers that can be found here.
    pub answers: usize,
    /// Reserved bytes.
    pub bytes: usize,
    /// Answers that are generated, mirrored or read.
    pub busy: usize,
    /// Tenants with answers in progress.
    pub tenants: usize,
}

/// A resumable answer that has begun.
pub struct BegunAnswer {
    /// Handle with which its reader resumes it.
    pub handle: AnswerHandle,
    /// Sends commands to its task.
    pub commands: CommandSender,
    /// To be waited for before its reader gets the handle.
    pub announcement: StoreAnnouncement,
}

impl ResumableAnswers {
    /// Creates an empty table. Handles are drawn from `entropy`.
    pub fn new(
        limits: ResumableLimits,
        obfuscation: ObfuscationDefault,
        clock: Clock,
        metrics: Arc<Metrics>,
        entropy: Entropy,
    ) -> Arc<Self> {
        Arc::new(Self {
            limits,
            obfuscation,
            clock,
            metrics,
            entropy,
            table: Mutex::new(AnswerTable::new(limits.kept_bytes)),
            idempotency: Arc::default(),
            idle: Notify::new(),
            shared: OnceLock::new(),
            successor: OnceLock::new(),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// Shares all answers from now on with the replicas that use the store behind `connection`.
    pub fn share(&self, connection: SharedConnection) {
        let kept = self.limits.grace;
        self.shared.get_or_init(|| shared::start(connection, kept));
    }

    /// Continues the answers of replicas that have ended, using `successor`, and announces to the
    /// other replicas which ones.
    pub fn succeed_by(&self, successor: Arc<dyn TakeoverStarter>) {
        if let Some(shared) = self.shared.get() {
            // Weakly: a successor may have the store.
            let announced = Arc::downgrade(&successor);
            shared.announce_as(Box::new(move || {
                let offers = announced.upgrade().map(|successor| successor.offers());
                notice_of(&offers.unwrap_or_default())
            }));
        }
        // The first one stays: a server is opened once.
        drop(self.successor.set(successor));
    }

    /// Takes over the answer with `handle` for its task here. Its log ends at `head` and has had
    /// the owners of `epochs`.
    fn take_over(self: &Arc<Self>, handle: AnswerHandle, head: u64, epochs: Epochs) {
        // One that was forgotten meanwhile needs no owner.
        let Some(commands) = self.find(&handle) else { return };
        let answers = self.clone();
        tokio::spawn(async move {
            let succession = match (answers.shared.get(), answers.successor.get()) {
                (Some(shared), Some(successor)) => {
                    let task = Arc::new(TaskLink(commands.clone()));
                    shared.succeed(&handle, head, epochs, task, &**successor).await
                }
                _ => TakeoverOutcome::Lost("this replica has no model yet".into()),
            };
            drop(commands.send(AnswerCommand::Succeed(succession)).await);
        });
    }

    /// True if other replicas may serve this one's answers.
    pub fn is_shared(&self) -> bool {
        self.shared.get().is_some()
    }

    /// Reserves room for one more answer of `tenant`, its first reader, and its stored request.
    ///
    /// # Errors
    /// 429 when the tenant or the server is at its limit.
    pub fn reserve(
        self: &Arc<Self>,
        tenant: TenantId,
        request_bytes: usize,
    ) -> Result<Reservation, ApiError> {
        let bytes = self.answer_bytes() + request_bytes;
        let mut table = self.table();
        if let Err(refusal) = table.reserved.check(tenant, bytes) {
            let message = match refusal {
                ShareRefusal::Full { .. } => {
                    "The server holds as many resumable answers as its limit allows. Try again \
                     later."
                }
                ShareRefusal::Share { .. } => {
                    "This client has its share of the resumable answers that the server holds. \
                     Try again later."
                }
            };
            return Err(ApiError::overloaded(message, FULL_RETRY_S));
        }
        let of_tenant = table.per_tenant.entry(tenant).or_default();
        if *of_tenant >= self.limits.answers_per_key {
            let message = "This client has as many resumable answers in progress as the server \
                           allows. Wait until one of them ends.";
            return Err(ApiError::overloaded(message, FULL_RETRY_S));
        }
        *of_tenant += 1;
        table.reserved.force(tenant, bytes);
        table.busy += 1;
        self.metrics.on_kept_bytes(bytes as i64);
        let counted = CountedAs::Generated(tenant);
        Ok(Reservation { answers: self.clone(), counted, tenant, bytes })
    }

    /// Reserves room for the log of another replica's answer; returns `None` if the limit is
    /// reached.
    fn reserve_mirror(self: &Arc<Self>) -> Option<Reservation> {
        let bytes = self.answer_bytes();
        let mut table = self.table();
        if !table.fits(bytes) {
            return None;
        }
        table.reserved.force(OTHERS, bytes);
        table.busy += 1;
        drop(table);
        self.metrics.on_kept_bytes(bytes as i64);
        Some(Reservation {
            answers: self.clone(),
            counted: CountedAs::Mirrored,
            tenant: OTHERS,
            bytes,
        })
    }

    /// Returns the bytes reserved for an answer until it has ended.
    fn answer_bytes(&self) -> usize {
        let slot = if self.is_shared() { SLOT_BYTES } else { 0 };
        self.limits.log_bytes + TASK_BYTES + slot
    }

    /// Reserves room for one more reader of an answer that has one; returns `None` if the limit is
    /// reached.
    fn place_reader(self: &Arc<Self>) -> Option<ReaderPermit> {
        let mut table = self.table();
        if !table.fits(READER_BYTES) {
            return None;
        }
        table.reserved.force(OTHERS, READER_BYTES);
        drop(table);
        self.metrics.on_kept_bytes(READER_BYTES as i64);
        Some(ReaderPermit { answers: self.clone() })
    }

    /// Starts the task that keeps the answer to `request` and delivers it over `path`. `first`
    /// holds the request's idempotency key, `kept` the request for another replica.
    pub fn start(
        self: &Arc<Self>,
        reservation: Reservation,
        request: ActiveRequest,
        context: &RecordContext<'_>,
        path: (PathId, ReaderPath),
        (first, kept): (Option<FirstRequest>, Option<Arc<[u8]>>),
    ) -> BegunAnswer {
        let handle = AnswerHandle { id: self.entropy.draw(), token: self.entropy.draw() };
        let (commands, inbox) = mpsc::channel(MAX_COMMANDS);
        let config = self.sender_config(request.stream().include_obfuscation);
        let pump = LogPump::new(request, context);
        let mut task = AnswerTask::new(self.clone(), reservation, handle, pump, config)
            .with_reader(path.0, path.1);
        let link = Arc::new(TaskLink(commands.clone()));
        let slot = self.shared.get().map(|shared| shared.share(&handle, kept, link));
        if let Some(slot) = &slot {
            task = task.shared_by(slot.clone());
        }
        let (started, _key) = first.map(FirstRequest::split).unzip();
        let (token, is_owned) = (handle.token, task.is_owned());
        let entry = AnswerEntry { token, commands: commands.clone(), is_owned, _key };
        self.table().answers.insert(handle.id, entry);
        if let Some(started) = started {
            // Only now: a request that waits for it looks it up in the table.
            started.send_replace(Some(handle));
        }
        tokio::spawn(task.run(inbox));
        BegunAnswer { handle, commands, announcement: StoreAnnouncement::of(slot) }
    }

    /// Returns the sender's configuration: answers are padded unless the request or the operator
    /// declined (D-2.7).
    fn sender_config(&self, asked: Option<bool>) -> SenderConfig {
        let mut config = SenderConfig {
            max_log_bytes: self.limits.log_bytes,
            suspend_after: self.limits.mute_limit.into(),
            ..SenderConfig::default()
        };
        if !self.obfuscation.pads_datagrams(asked) {
            config.padding_step_bytes = 0;
        }
        config
    }

    /// Finds the answer with `handle`. Unknown ids and wrong tokens are indistinguishable, in
    /// timing too (D-6.2).
    pub fn find(&self, handle: &AnswerHandle) -> Option<CommandSender> {
        let table = self.table();
        let entry = table.answers.get(&handle.id);
        let token = entry.map_or([0; 16], |entry| entry.token);
        let known = bool::from(token.ct_eq(&handle.token)) && entry.is_some();
        entry.filter(|_| known).map(|entry| entry.commands.clone())
    }

    /// Attaches a further reader to an answer, from `position` on.
    ///
    /// # Errors
    /// [`Unreachable`], if the answer cannot be read from there.
    pub async fn attach(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        position: Position,
        id: PathId,
        path: ReaderPath,
    ) -> Result<AttachedReader, Unreachable> {
        let commands = self.reach(handle, position).await?;
        let (reply, replied) = oneshot::channel();
        let request = AttachRequest { id, path, position, reply };
        // If its task has ended meanwhile, `replied` is an error.
        drop(commands.send(AnswerCommand::Attach(request)).await);
        let Ok(attached) = replied.await else { return Err(self.left(handle).await) };
        let (chunks, epoch) = attached?;
        Ok(AttachedReader { chunks, epoch, commands })
    }

    /// Returns what a reader is told whose answer's task has ended before it answered: a mirror
    /// ends when no owner can be found or made, and others may still have the answer.
    async fn left(&self, handle: &AnswerHandle) -> Unreachable {
        self.find_elsewhere(handle).await.err().unwrap_or(Unreachable::Away)
    }

    /// Like [`Self::attach`], for a reader of server-sent events.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub async fn attach_events(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        position: Position,
    ) -> Result<(ChunkWriter, EventsInbox), Unreachable> {
        let (path, inbox) = events_path(position.offset);
        let path = ReaderPath::Events(path);
        let attached = self.attach(handle, position, PathId::next(), path).await?;
        Ok((attached.chunks, inbox))
    }

    /// Stops an answer: its generation ends, and it can no longer be found.
    ///
    /// # Errors
    /// When there is no such answer, or the store cannot be reached: another replica's answer then
    /// continues, and one of this replica's continues elsewhere if this one ends before the store
    /// is back.
    pub async fn stop(&self, handle: &AnswerHandle) -> Result<(), Unreachable> {
        let Some(commands) = self.find(handle) else {
            let shared = self.find_elsewhere(handle).await?;
            return match shared.stop(handle).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(Unreachable::Unknown),
                Err(_) => Err(Unreachable::Away),
            };
        };
        let is_owned = self.is_owned(handle);
        if !is_owned && let Some(shared) = self.shared.get() {
            // First: where its owner cannot be told, it goes on, here too.
            shared.stop(handle).await.map_err(|_| Unreachable::Away)?;
        }
        self.forget(handle); // not found from here on, even if its task is busy
        let _ = commands.send(AnswerCommand::End(Code::Stopped)).await;
        if is_owned && let Some(shared) = self.shared.get() {
            // Nor at any other replica, before this returns. A store that is away is told later,
            // unless this replica ends before that.
            shared.stop(handle).await.map_err(|_| Unreachable::Away)?;
        }
        Ok(())
    }

    /// True if this replica generates the answer with `handle`.
    fn is_owned(&self, handle: &AnswerHandle) -> bool {
        let table = self.table();
        table.answers.get(&handle.id).is_some_and(|it| it.is_owned.load(Ordering::Relaxed))
    }

    /// Stops the answer with `handle` at whichever replica generates it.
    fn stop_elsewhere(&self, handle: AnswerHandle) {
        let Some(shared) = self.shared.get().cloned() else { return };
        tokio::spawn(async move { shared.stop_surely(&handle).await });
    }

    /// Returns the shared logs if they have the answer with `handle`.
    async fn find_elsewhere(&self, handle: &AnswerHandle) -> Result<&Arc<SharedLogs>, Unreachable> {
        let shared = self.shared.get().ok_or(Unreachable::Unknown)?;
        match shared.has(handle).await {
            Ok(true) => Ok(shared),
            Ok(false) => Err(Unreachable::Unknown),
            Err(error) => {
                tracing::debug!(%error, "the store cannot be asked for an answer");
                Err(Unreachable::Away)
            }
        }
    }

    /// Finds the task of the answer with `handle`. For another replica's answer, starts a mirror
    /// that has the log from `position` on.
    async fn reach(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        position: Position,
    ) -> Result<CommandSender, Unreachable> {
        match self.find(handle) {
            Some(_) if self.was_stopped(handle).await => Err(Unreachable::Unknown),
            Some(commands) => Ok(commands),
            // It could not take the answer over, and another replica can.
            None if self.is_leaving.load(Ordering::Relaxed) => Err(Unreachable::Away),
            None => self.mirror(handle, position).await,
        }
    }

    /// Returns true if another replica's answer with `handle` was stopped, and forgets it here: a
    /// mirror that has all of it follows its log no longer, and would not learn of that. A store
    /// that is away keeps nobody from what is here.
    async fn was_stopped(&self, handle: &AnswerHandle) -> bool {
        let Some(shared) = self.shared.get().filter(|_| !self.is_owned(handle)) else {
            return false;
        };
        let is_stopped = shared.is_stopped(handle).await.unwrap_or(false);
        if is_stopped && let Some(commands) = self.find(handle) {
            self.forget(handle);
            let _ = commands.send(AnswerCommand::End(Code::Stopped)).await;
        }
        is_stopped
    }

    async fn mirror(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        position: Position,
    ) -> Result<CommandSender, Unreachable> {
        let shared = self.find_elsewhere(handle).await?;
        let reservation = self.reserve_mirror().ok_or(Unreachable::NoRoom)?;
        let (log, follower) = FollowedLog::new(handle);
        let pump = LogPump::mirror(follower);
        let config = self.sender_config(None);
        let mut task = AnswerTask::new(self.clone(), reservation, *handle, pump, config);
        let offset = position.offset;
        let mut take = |bytes: &[u8]| task.preload(bytes, offset);
        let loaded = shared.load(handle, position, &mut take).await;
        let loaded = loaded.map_err(|_| Unreachable::Away)?;
        let (reached, epochs) = loaded.ok_or(Unreachable::Unknown)?;
        shared.follow(log.beginning_at(reached, epochs.clone()));
        Ok(self.insert_mirror(handle, task.with_epochs(epochs)))
    }

    /// Gives back an answer that this replica took over, for the reason `why`.
    fn give_back(&self, slot: Arc<LogSlot>, why: GivenBack) {
        let Some(shared) = self.shared.get().cloned() else { return };
        tokio::spawn(async move { shared.give_back(&slot.id, slot.fence, why).await });
    }

    /// Returns what the other replicas offer to continue, now that this one takes nothing more.
    pub async fn others_offers(&self) -> OthersOffers {
        let Some(shared) = self.shared.get().filter(|shared| shared.is_well()) else {
            return OthersOffers::default();
        };
        let depends = self.table().busy > 0;
        known(shared.offers_without_this(depends).await)
    }

    /// Releases all answers that `others` cover, because this replica is shutting down. Does
    /// nothing while the store is unavailable: nobody could take them.
    pub async fn hand_over(&self, others: &Arc<OthersOffers>) {
        let Some(shared) = self.shared.get().filter(|shared| shared.is_well()) else { return };
        if others.is_empty() {
            return;
        }
        self.is_leaving.store(true, Ordering::Relaxed);
        let commands: Vec<_> =
            self.table().answers.values().map(|entry| entry.commands.clone()).collect();
        let mut left = Vec::new();
        for answer in commands {
            let (reply, replied) = oneshot::channel();
            let request = HandOverRequest { others: others.clone(), reply };
            if answer.send(AnswerCommand::HandOver(request)).await.is_ok() {
                left.push(replied);
            }
        }
        for one in left {
            // Dropped in any case.
            drop(one.await);
        }
        shared.leave_all().await;
    }

    /// Releases the answer with `handle`, whose engine has failed, if another replica can continue
    /// it; otherwise its task ends it.
    fn leave_failed(&self, handle: AnswerHandle) {
        // One that was forgotten meanwhile needs no owner.
        let (Some(shared), Some(answer)) = (self.shared.get().cloned(), self.find(&handle)) else {
            return;
        };
        tokio::spawn(async move {
            let others = Arc::new(known(shared.current_offers().await));
            let (reply, replied) = oneshot::channel();
            let request = HandOverRequest { others, reply };
            if answer.send(AnswerCommand::HandOver(request)).await.is_ok() {
                // Dropped in any case.
                drop(replied.await);
                shared.leave_all().await;
            }
        });
    }

    /// Releases an answer to other replicas once all of it is stored.
    fn hand_on(&self, slot: Arc<LogSlot>) {
        if let Some(shared) = self.shared.get() {
            shared.leave(slot);
        }
    }

    /// Starts `task`, unless the answer already has a task; returns the sender to the
    /// running one.
    fn insert_mirror(&self, handle: &AnswerHandle, task: AnswerTask) -> CommandSender {
        let (commands, inbox) = mpsc::channel(MAX_COMMANDS);
        let (token, is_owned) = (handle.token, task.is_owned());
        let entry = AnswerEntry { token, commands: commands.clone(), is_owned, _key: None };
        match self.table().answers.entry(handle.id) {
            // Its token was that of the store, as this one is.
            Entry::Occupied(known) => return known.get().commands.clone(),
            Entry::Vacant(place) => drop(place.insert(entry)),
        }
        tokio::spawn(task.run(inbox));
        commands
    }

    /// Waits, within a time limit, until the store that replicas share has everything.
    pub async fn flush_shared(&self) {
        if let Some(shared) = self.shared.get() {
            shared.flush().await;
        }
    }

    /// Reads at most `most` bytes of an answer's log from the position with number `from` on;
    /// `u64::MAX` stands for the log's end.
    ///
    /// # Errors
    /// When there is no such answer, or it cannot be reached.
    pub async fn look(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        from: u64,
        most: usize,
    ) -> Result<LogSnapshot, Unreachable> {
        self.ask_look(handle, from, most, false).await
    }

    /// Like [`Self::look`], but waits until there are bytes from there on or the log has ended.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub async fn look_ahead(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        from: u64,
        most: usize,
    ) -> Result<LogSnapshot, Unreachable> {
        self.ask_look(handle, from, most, true).await
    }

    async fn ask_look(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        from: u64,
        most: usize,
        waits: bool,
    ) -> Result<LogSnapshot, Unreachable> {
        // The largest number asks for the log's end, wherever that is.
        let needed = if from == u64::MAX { Position::default() } else { Position::of(from) };
        let commands = self.reach(handle, needed).await?;
        let (reply, replied) = oneshot::channel();
        let look = SnapshotRequest { from, most, waits, reply };
        drop(commands.send(AnswerCommand::Look(look)).await);
        match replied.await {
            Ok(snapshot) => Ok(snapshot),
            Err(_) => Err(self.left(handle).await),
        }
    }

    /// Waits until no answer is being generated or delivered.
    pub async fn settled(&self) {
        loop {
            // Registered before the count is read, so that no notice falls in between.
            let idle = self.idle.notified();
            if self.table().busy == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Ends all answers because the server is shutting down, and tells their readers.
    pub async fn shut_down(&self) {
        let commands: Vec<_> =
            self.table().answers.values().map(|entry| entry.commands.clone()).collect();
        for answer in commands {
            // Each task takes its commands; one that is gone needs none.
            let _ = answer.send(AnswerCommand::End(Code::ShuttingDown)).await;
        }
    }

    /// Returns what answers and readers hold of the limits.
    pub fn held(&self) -> HeldShares {
        let table = self.table();
        HeldShares {
            answers: table.answers.len(),
            bytes: table.reserved.held(),
            busy: table.busy,
            tenants: table.per_tenant.len(),
        }
    }

    /// Returns the limits.
    pub fn limits(&self) -> &ResumableLimits {
        &self.limits
    }

    fn table(&self) -> MutexGuard<'_, AnswerTable> {
        self.table.lock().expect("nothing panics under this lock")
    }

    /// Removes an answer from the table; its task continues.
    pub fn forget(&self, handle: &AnswerHandle) {
        let entry = self.table().answers.remove(&handle.id);
        // After the table's lock: dropping the entry takes the lock of the idempotency keys.
        drop(entry);
    }
}

/// Returns the offers in `asked`; none if the store could not be asked.
fn known(asked: Result<OthersOffers, StoreError>) -> OthersOffers {
    asked.unwrap_or_else(|error| {
        tracing::debug!(%error, "the store does not tell what other replicas can continue");
        OthersOffers::default()
    })
}

impl Drop for ReaderPermit {
    fn drop(&mut self) {
        self.answers.table().reserved.give_back(OTHERS, READER_BYTES);
        self.answers.metrics.on_kept_bytes(-(READER_BYTES as i64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_has_ended_counts_with_its_task() {
        let limits = ResumableLimits {
            log_bytes: 64 * 1024,
            kept_bytes: 4 * (64 * 1024 + 10 * TASK_BYTES),
            answers_per_key: 1000,
            ..ResumableLimits::default()
        };
        let answers = ResumableAnswers::new(
            limits,
            ObfuscationDefault::default(),
            Clock::start(),
            Arc::new(Metrics::new()),
            Entropy::system(),
        );
        let mut kept = Vec::new();
        // Short answers at a high rate: each log has next to nothing.
        while let Ok(mut reservation) = answers.reserve(TenantId::default(), 0) {
            reservation.settle(1);
            kept.push(reservation);
            assert!(kept.len() < 1000, "as many as there are requests");
        }
        let part = limits.kept_bytes / 4 * 3;
        let room = part - limits.log_bytes - TASK_BYTES;
        assert_eq!(kept.len(), room / (TASK_BYTES + 1) + 1);
        answers.reserve(TenantId(9), 0).expect("another tenant finds room");
        let busy = || answers.table().busy;
        let again = kept.last_mut().expect("one answer at least");
        for _ in 0..2 {
            again.reopen();
            assert_eq!(busy(), 1, "it is read again");
        }
        again.settle(1);
        assert_eq!(busy(), 0);
        again.reopen();
        kept.clear();
        assert_eq!((busy(), answers.table().reserved.held()), (0, 0));
    }
}
