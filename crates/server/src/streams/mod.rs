//! Kept answers: those whose reader may lose its connection and come back, by QUIC or by
//! server-sent events (`spec/session.md`, sections 4 and 5).
//!
//! Each is a task ([`keeper`]) that owns the answer's flushes, its log and the path to its
//! reader. What all share is this table, locked when an answer begins, is resumed or is
//! forgotten, never per token.

pub mod follow;
mod keeper;
mod landmarks;
mod records;
pub mod repeats;
pub mod routes;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use loquent_proto::AnswerHandle;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::fallback::LowerLayer;
use subtle::ConstantTimeEq;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::answering::Answering;
use crate::clock::Clock;
use crate::error::ApiError;
use crate::metrics::Metrics;

use keeper::Keeper;
use records::Records;
use repeats::{Registered, Repeats};

/// What clients beyond a bound are told to wait, in seconds.
const FULL_RETRY_S: u64 = 10;

/// Orders that wait for an answer's task; datagrams beyond them count as lost.
const MAX_ORDERS: usize = 64;

/// Bounds of kept answers.
#[derive(Debug, Clone, Copy)]
pub struct StreamLimits {
    /// Most bytes of one answer's log; acknowledged bytes are dropped beyond it.
    pub log_bytes: usize,
    /// Bytes that an attached reader may leave unacknowledged before generation pauses.
    pub unacked_bytes: usize,
    /// Most bytes of all logs; an answer that is generated counts with its bound.
    pub kept_bytes: usize,
    /// Most answers that are generated for one API key.
    pub answers_per_key: usize,
    /// How long an answer is kept that nobody reads.
    pub grace: Duration,
    /// How long a reader of server-sent events may take nothing before it is cut off.
    pub stall_limit: Duration,
}

/// A handle that nobody can guess.
fn random_handle() -> AnswerHandle {
    AnswerHandle { id: rand::random(), token: rand::random() }
}

/// A path that takes datagrams, as an answer's task sees it.
pub trait Datagrams: LowerLayer + Send {
    /// Largest datagram now, bytes; 0 if none gets through.
    fn max_bytes(&self) -> usize;
    /// Sends one, or loses it.
    fn send(&self, datagram: Bytes);
    /// The path's round trip.
    fn rtt(&self) -> Duration;
}

/// How an answer reaches its reader. Dropping it tells the other end that it is over.
pub enum Path {
    /// Datagrams, and a reliable stream beside them.
    Datagrams {
        /// The answer's number within the connection.
        stream: u64,
        /// The connection.
        link: Box<dyn Datagrams>,
        /// Frames for the reliable stream.
        aside: mpsc::Sender<Aside>,
    },
    /// Pieces of the log in order, for server-sent events.
    Events(mpsc::Sender<Piece>),
}

/// What the reliable stream beside the datagrams is told.
#[derive(Debug)]
pub enum Aside {
    /// One frame.
    Frame(Vec<u8>),
    /// The whole log is acknowledged: end the stream.
    End,
}

/// A piece of a log: whole records.
#[derive(Debug)]
pub struct Piece {
    /// Log offset of its first byte.
    pub offset: u64,
    /// The records; none if the reader had all of an answer that has ended.
    pub bytes: Vec<u8>,
    /// The log ends with it.
    pub is_last: bool,
}

/// Tells an answer's paths apart: frames and news of an older one are ignored (D-6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathId(u64);

impl PathId {
    /// One that no other path has.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What an answer's task is told.
pub enum Order {
    /// Go on over another path. Answered with the state of the chunks at `offset`, or `None`
    /// if the log cannot go on from there.
    Attach {
        /// The new path's name.
        id: PathId,
        /// The new path.
        path: Path,
        /// Log offset to go on from.
        offset: u64,
        /// Told how it went.
        reply: oneshot::Sender<Option<ChunkWriter>>,
    },
    /// A frame has arrived from the reader.
    Frame(PathId, Bytes),
    /// The path is gone; the reader may come back.
    Leave(PathId),
    /// The reader wants no more.
    Cancel(PathId),
    /// Stop and forget, whoever reads.
    Forget,
}

/// The way to an answer's task.
pub type Orders = mpsc::Sender<Order>;

struct Entry {
    token: [u8; 16],
    orders: Orders,
    /// Its request may be asked again for as long.
    _request: Option<Registered>,
}

#[derive(Default)]
struct Table {
    answers: HashMap<[u8; 16], Entry>,
    reserved_bytes: usize,
    per_key: HashMap<u64, usize>,
    /// Answers whose log has not ended, or whose reader does not have all of it yet.
    busy: usize,
}

/// All kept answers of a server.
pub struct Streams {
    limits: StreamLimits,
    clock: Clock,
    metrics: Arc<Metrics>,
    table: Mutex<Table>,
    /// Requests that may be asked again.
    pub repeats: Arc<Repeats>,
    hasher: RandomState,
    idle: Notify,
}

/// An answer's part of the bounds, given back when it is dropped.
pub struct Place {
    streams: Arc<Streams>,
    key: Option<u64>,
    bytes: usize,
}

impl Streams {
    /// None yet.
    pub fn new(limits: StreamLimits, clock: Clock, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            clock,
            metrics,
            table: Mutex::default(),
            repeats: Arc::default(),
            hasher: RandomState::new(),
            idle: Notify::new(),
        })
    }

    /// Room for one more answer, asked for with `key`.
    ///
    /// # Errors
    /// 429 when the key, or the server, has as many as it may.
    pub fn reserve(self: &Arc<Self>, key: Option<&[u8]>) -> Result<Place, ApiError> {
        let key = self.hasher.hash_one(key);
        let bytes = self.limits.log_bytes;
        let mut table = self.table();
        if table.reserved_bytes + bytes > self.limits.kept_bytes {
            let message = "The server keeps as many resumable answers as it may. Try again later.";
            return Err(ApiError::overloaded(message, FULL_RETRY_S));
        }
        let of_key = table.per_key.entry(key).or_default();
        if *of_key >= self.limits.answers_per_key {
            let message = "This API key has as many answers under way as it may.";
            return Err(ApiError::overloaded(message, FULL_RETRY_S));
        }
        *of_key += 1;
        table.reserved_bytes += bytes;
        table.busy += 1;
        self.metrics.on_kept_bytes(bytes as i64);
        Ok(Place { streams: self.clone(), key: Some(key), bytes })
    }

    /// Keeps `answering`, whose text `service`'s vocabulary wrote, and delivers it over `path`.
    pub fn keep(
        self: &Arc<Self>,
        place: Place,
        answering: Answering,
        question: Question<'_>,
        path: (PathId, Path),
        request: Option<repeats::First>,
    ) -> (AnswerHandle, Orders) {
        let name = random_handle();
        let (orders, inbox) = mpsc::channel(MAX_ORDERS);
        let mut opening = std::collections::VecDeque::new();
        let records =
            Records::open(&answering, question.vocab.clone(), question.echo, &mut opening);
        let keeper = Keeper::new(self.clone(), place, name, answering, records, opening, path);
        let (named, _request) = request.map(repeats::First::split).unzip();
        let entry = Entry { token: name.token, orders: orders.clone(), _request };
        self.table().answers.insert(name.id, entry);
        if let Some(named) = named {
            named.send_replace(Some(name)); // it can be found from here on
        }
        tokio::spawn(keeper.run(inbox));
        (name, orders)
    }

    /// The way to an answer, for whoever has its token. Unknown ids and wrong tokens are
    /// alike, in time too (D-6.2).
    pub fn find(&self, name: &AnswerHandle) -> Option<Orders> {
        let table = self.table();
        let entry = table.answers.get(&name.id);
        let token = entry.map_or([0; 16], |entry| entry.token);
        let known = bool::from(token.ct_eq(&name.token)) && entry.is_some();
        entry.filter(|_| known).map(|entry| entry.orders.clone())
    }

    /// Attaches a reader to a kept answer, from log `offset` on: the state of its chunks, and
    /// the way to the answer. `None` if there is none, or not for this reader, or not from
    /// there.
    pub async fn attach(
        &self,
        name: &AnswerHandle,
        offset: u64,
        id: PathId,
        path: Path,
    ) -> Option<(ChunkWriter, Orders)> {
        let orders = self.find(name)?;
        let (reply, replied) = oneshot::channel();
        orders.send(Order::Attach { id, path, offset, reply }).await.ok()?;
        let chunks = replied.await.ok()??;
        Some((chunks, orders))
    }

    /// Resolves when no answer is generated any more, nor on its way to its reader.
    pub async fn settled(&self) {
        loop {
            let idle = self.idle.notified();
            if self.table().busy == 0 {
                return;
            }
            idle.await;
        }
    }

    /// The bounds.
    pub fn limits(&self) -> &StreamLimits {
        &self.limits
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics under this lock")
    }

    fn forget(&self, name: &AnswerHandle) {
        let entry = self.table().answers.remove(&name.id);
        drop(entry); // which takes another lock
    }
}

/// What an answer's records need to know of the request beside the answer.
pub struct Question<'a> {
    /// The vocabulary of its tokens.
    pub vocab: &'a Arc<dyn loquent_infer::vocab::Vocab>,
    /// The prompts, where they are to be repeated.
    pub echo: &'a [String],
}

impl Place {
    /// The answer has ended, its log takes `bytes`, and the reader has it or is gone.
    fn settle(&mut self, bytes: usize) {
        let Some(key) = self.key.take() else { return };
        let mut table = self.streams.table();
        let freed = self.bytes.saturating_sub(bytes);
        table.reserved_bytes -= freed;
        table.busy -= 1;
        if let Some(of_key) = table.per_key.get_mut(&key) {
            *of_key -= 1;
            if *of_key == 0 {
                table.per_key.remove(&key);
            }
        }
        let idle = table.busy == 0;
        drop(table);
        self.bytes -= freed;
        self.streams.metrics.on_kept_bytes(-(freed as i64));
        if idle {
            self.streams.idle.notify_waiters();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.settle(0);
        if self.bytes > 0 {
            self.streams.table().reserved_bytes -= self.bytes;
            self.streams.metrics.on_kept_bytes(-(self.bytes as i64));
        }
    }
}
