//! A replica: the product's own answers and store client in a runtime whose time is the world's.
//!
//! Each replica has a runtime, and one thread runs them in turns. To end one is therefore as final
//! as SIGKILL, and one that is not run for a while finds, as after SIGSTOP, that all of its timers
//! are late.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use loquent_infer::tenant::TenantId;
use loquent_proto::{AnswerHandle, Position};
use loquent_resumable::sse_reader::{EventsInbox, events_path};
use loquent_resumable::{
    AttachedReader, CommandSender, HeldShares, PathId, ReaderPath, ResumableAnswers,
    ResumableLimits, Unreachable,
};
use loquent_serving::body::{BodyLimits, RequestBodies};
use loquent_serving::clock::Clock;
use loquent_serving::entropy::Entropy;
use loquent_serving::error::ApiError;
use loquent_serving::metrics::Metrics;
use loquent_serving::obfuscation::ObfuscationDefault;
use loquent_serving::records::RecordContext;
use loquent_store::address::SharedAddress;
use loquent_store::shared::connection::SharedConnection;
use loquent_store::{AnswerFence, Store, StoreLimits};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::AbortHandle;

use crate::background::ReplicaResponses;
use crate::datagrams::{PathEnd, PathQuality, datagram_path};
use crate::glue::GlueFault;
use crate::news::{ChatNews, NewsQueue, NewsSender, ReaderNews, ResponseNews};
use crate::requests::{ChatRequest, ResponseRequest, annotation};
use crate::service::{ServiceSettings, SimulatedService, is_stored, kept_question, key_of, vocab};
use crate::store::StoreDialer;
use crate::stored_chats::ReplicaChats;

/// Turns that a replica's tasks get in a step: enough for news to pass through several of them.
const TURNS: usize = 1;
/// Time that a replica that ends has for the answers that it cannot hand over.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);

/// Limits of what a replica holds of requests and of what it reads from the store.
const BODY_LIMITS: BodyLimits = BodyLimits { max_bytes: 1 << 20, total_bytes: 64 << 20 };

/// Answers of a key in progress at a replica.
pub const ANSWERS_PER_KEY: usize = 2;

/// Way in which a reader gets its answer.
#[derive(Debug, Clone, Copy)]
pub enum ReaderTransport {
    /// An event stream; its reader rests after each piece.
    Events {
        /// Time of a rest.
        rest: Duration,
    },
    /// Datagrams over a path of this quality.
    Datagrams(PathQuality),
}

impl ReaderTransport {
    /// True if the reader takes all at once that an event stream has.
    pub const fn takes_all(self) -> bool {
        matches!(self, Self::Events { rest: Duration::ZERO })
    }
}

impl fmt::Display for ReaderTransport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events { .. } => Ok(()),
            Self::Datagrams(_) => out.write_str(" by datagrams"),
        }
    }
}

/// The reader's end of a path.
enum ReadingEnd {
    Events {
        inbox: EventsInbox,
        rest: Duration,
        /// Lock of the planted fault [`GlueFault::ReadersInTurn`].
        turn: Option<Arc<AsyncMutex<()>>>,
    },
    Datagrams(PathEnd),
}

impl ReadingEnd {
    /// Reads an answer, whose task takes `commands`, from `position` on.
    async fn read(self, commands: CommandSender, position: Position, sender: &NewsSender) {
        match self {
            Self::Events { inbox, rest, turn } => read_events(inbox, sender, rest, turn).await,
            Self::Datagrams(end) => end.read(commands, position, sender).await,
        }
    }
}

/// A replica that runs.
pub struct SimulatedReplica {
    runtime: Runtime,
    at_ms: u64,
    answers: Arc<ResumableAnswers>,
    service: SimulatedService,
    responses: ReplicaResponses,
    /// The store's client, once the replica has started.
    store: Arc<OnceLock<Store>>,
    news: NewsQueue,
    has_left: Arc<AtomicBool>,
    /// Lock of the planted fault [`GlueFault::ReadersInTurn`].
    turn: Arc<AsyncMutex<()>>,
    glue: Option<GlueFault>,
}

impl SimulatedReplica {
    /// Starts a replica at `now_ms`, whose store is behind `dialer`, with `settings` of its
    /// own and the planted fault `glue`.
    ///
    /// # Panics
    /// When there is no room for a runtime.
    pub fn start(
        now_ms: u64,
        dialer: Arc<StoreDialer>,
        seed: u64,
        settings: ServiceSettings,
        glue: Option<GlueFault>,
    ) -> Self {
        let builder = &mut Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
        let metrics = Arc::new(Metrics::new());
        let entropy = Entropy::seeded(seed);
        let entered = runtime.enter();
        let clock = Clock::start();
        let answers = ResumableAnswers::new(
            ResumableLimits { answers_per_key: ANSWERS_PER_KEY, ..ResumableLimits::default() },
            ObfuscationDefault::default(),
            clock,
            metrics.clone(),
            entropy.clone(),
        );
        let store = Arc::<OnceLock<Store>>::default();
        let bodies = RequestBodies::new(BODY_LIMITS);
        let chats = ReplicaChats::new(store.clone(), bodies.clone(), glue);
        let service = SimulatedService::new(metrics, clock, settings, chats, glue);
        tokio::spawn(boot(answers.clone(), service.clone(), store.clone(), dialer, entropy));
        let (own, its) = (answers.clone(), service.clone());
        let responses = ReplicaResponses::new(own, its, store.clone(), bodies.clone(), glue);
        drop(entered);
        let (news, has_left, turn) = (NewsQueue::default(), Arc::default(), Arc::default());
        let at_ms = now_ms;
        Self { runtime, at_ms, answers, service, responses, store, news, has_left, turn, glue }
    }

    /// True if the replica takes requests.
    pub fn is_ready(&self) -> bool {
        self.store.get().is_some()
    }

    /// True if the replica has ended by itself.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Returns the name in the store.
    pub fn name(&self) -> Option<&str> {
        self.store.get().and_then(Store::shared).map(SharedConnection::replica)
    }

    /// Returns the number of background responses that are generated here, or whose end is not
    /// stored yet.
    pub fn responses(&self) -> usize {
        self.responses.count()
    }

    /// Returns the requests begun again since the last call, each with its seed and key.
    pub fn take_taken(&self) -> Vec<(u64, TenantId)> {
        std::mem::take(&mut *self.service.taken.lock().expect("nothing panics under this lock"))
    }

    /// Returns what is held of the limits.
    pub fn held(&self) -> HeldShares {
        self.answers.held()
    }

    /// Returns the news since the last call.
    pub fn take_news(&self) -> VecDeque<(u64, ReaderNews)> {
        std::mem::take(&mut *self.news.lock().expect("nothing panics under this lock"))
    }

    /// Lets time pass until `now_ms`.
    pub fn run_until(&mut self, now_ms: u64) {
        let passed = Duration::from_millis(now_ms - self.at_ms);
        self.at_ms = now_ms;
        self.runtime.block_on(async {
            // After a pause, all of its time is gone at once.
            tokio::time::advance(passed).await;
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Asks the question with this `seed`, and reads the answer as `connection`.
    pub fn ask(&self, seed: u64, connection: u64, transport: ReaderTransport) -> AbortHandle {
        let sender = NewsSender { connection, queue: self.news.clone() };
        let (answers, service, glue) = (self.answers.clone(), self.service.clone(), self.glue);
        let (id, path, end) = self.path(transport, 0);
        let task = self.runtime.spawn(async move {
            if glue == Some(GlueFault::PlaceKept) {
                // As a place that a task which never ends would hold.
                std::mem::forget(answers.reserve(key_of(seed), 0));
            }
            if let Some(commands) = begin(&answers, &service, seed, (id, path), &sender).await {
                end.read(commands, Position::default(), &sender).await;
            }
        });
        task.abort_handle()
    }

    /// Reads an answer from `position` on as `connection`.
    pub fn attach(
        &self,
        handle: AnswerHandle,
        position: Position,
        connection: u64,
        transport: ReaderTransport,
    ) -> AbortHandle {
        let sender = NewsSender { connection, queue: self.news.clone() };
        let answers = self.answers.clone();
        let (id, path, end) = self.path(transport, position.offset);
        let position = match self.glue {
            Some(GlueFault::EpochForgotten) => Position { epoch: 0, ..position },
            _ => position,
        };
        let task = self.runtime.spawn(async move {
            match answers.attach(&handle, position, id, path).await {
                Ok(AttachedReader { commands, epoch, .. }) => {
                    end.read(commands, Position { epoch, ..position }, &sender).await;
                }
                Err(why) => sender.send(ReaderNews::Refused(why)),
            }
        });
        task.abort_handle()
    }

    /// Creates a path for an answer from `offset` on; returns both of its ends.
    fn path(&self, transport: ReaderTransport, offset: u64) -> (PathId, ReaderPath, ReadingEnd) {
        match transport {
            ReaderTransport::Events { rest } => {
                let ((path, inbox), turn) = (events_path(offset), self.turn());
                let end = ReadingEnd::Events { inbox, rest, turn };
                (PathId::next(), ReaderPath::Events(path), end)
            }
            ReaderTransport::Datagrams(quality) => {
                let (path, end) = datagram_path(quality);
                (end.id, path, ReadingEnd::Datagrams(end))
            }
        }
    }

    /// Returns the lock that readers take in turns, where that is planted.
    fn turn(&self) -> Option<Arc<AsyncMutex<()>>> {
        (self.glue == Some(GlueFault::ReadersInTurn)).then(|| self.turn.clone())
    }

    /// Deletes an answer, and tells the outcome as `connection`.
    pub fn stop(&self, handle: AnswerHandle, connection: u64) {
        let sender = NewsSender { connection, queue: self.news.clone() };
        let (answers, glue) = (self.answers.clone(), self.glue);
        self.runtime.spawn(async move {
            let outcome = match glue {
                Some(GlueFault::StopUntold) => Ok(()),
                Some(GlueFault::StopHereOnly) => {
                    answers.forget(&handle);
                    Ok(())
                }
                Some(GlueFault::StopWithoutStore) => match answers.stop(&handle).await {
                    Err(Unreachable::Away) => Ok(()),
                    outcome => outcome,
                },
                _ => answers.stop(&handle).await,
            };
            sender.send(ReaderNews::Stopped(outcome));
        });
    }

    /// Sends a request for the background response `id`, and tells its outcome as `connection`.
    pub fn request(&self, id: &str, request: ResponseRequest, connection: u64) -> AbortHandle {
        let sender = NewsSender { connection, queue: self.news.clone() };
        let (responses, id) = (self.responses.clone(), id.to_owned());
        let status = |error: ApiError| error.status();
        let task = self.runtime.spawn(async move {
            let tell = |news| sender.send(ReaderNews::Response(news));
            tell(match request {
                ResponseRequest::Create(seed) => {
                    ResponseNews::Created(responses.create(&id, seed).await.map_err(status))
                }
                ResponseRequest::Retrieve(owner) => {
                    ResponseNews::Object(responses.retrieve(owner, &id).await.map_err(status))
                }
                ResponseRequest::Stream(first) => {
                    let take = |event| tell(ResponseNews::Event(event));
                    ResponseNews::Ended(responses.stream(&id, first, take).await.map_err(status))
                }
                ResponseRequest::Cancel => {
                    ResponseNews::Cancelled(responses.cancel(&id).await.map_err(status))
                }
                ResponseRequest::Delete => {
                    ResponseNews::Deleted(responses.delete(&id).await.map_err(status))
                }
            });
        });
        task.abort_handle()
    }

    /// Sends a request for the stored chat `id`, and tells its outcome as `connection`.
    pub fn request_chat(&self, id: &str, request: ChatRequest, connection: u64) -> AbortHandle {
        let sender = NewsSender { connection, queue: self.news.clone() };
        let (chats, id) = (self.service.chats.clone(), id.to_owned());
        let status = |error: ApiError| error.status();
        let task = self.runtime.spawn(async move {
            sender.send(ReaderNews::Chat(match request {
                ChatRequest::Read(owner) => {
                    ChatNews::Completion(chats.read(owner, &id).await.map_err(status))
                }
                ChatRequest::Annotate => {
                    ChatNews::Annotated(chats.annotate(&id, annotation()).await.map_err(status))
                }
                ChatRequest::Delete => ChatNews::Deleted(chats.delete(&id).await.map_err(status)),
            }));
        });
        task.abort_handle()
    }

    /// Begins to end, as after SIGTERM.
    pub fn leave(&self) {
        let (answers, store) = (self.answers.clone(), self.store.clone());
        let responses = self.responses.clone();
        self.service.is_leaving.store(true, Ordering::Relaxed);
        let (has_left, glue) = (self.has_left.clone(), self.glue);
        if glue == Some(GlueFault::EngineStopsFirst) {
            self.service.has_failed.store(true, Ordering::Relaxed);
        }
        self.runtime.spawn(async move {
            if glue == Some(GlueFault::EngineStopsFirst) {
                tokio::time::sleep(DRAIN_LIMIT).await;
            }
            if store.get().is_some_and(|store| store.outage().is_none()) {
                let others = Arc::new(answers.others_offers().await);
                tokio::join!(answers.hand_over(&others), responses.leave(&others));
            }
            // Whoever is not handed over may end within the limit.
            if tokio::time::timeout(DRAIN_LIMIT, answers.settled()).await.is_err() {
                responses.leave_all().await;
            }
            answers.shut_down().await;
            answers.flush_shared().await;
            responses.flush().await;
            if let Some(store) = store.get() {
                store.close().await;
            }
            has_left.store(true, Ordering::Relaxed);
        });
    }
}

/// Starts a replica's use of the store, in the server's order.
async fn boot(
    answers: Arc<ResumableAnswers>,
    service: SimulatedService,
    opened: Arc<OnceLock<Store>>,
    dialer: Arc<StoreDialer>,
    entropy: Entropy,
) {
    let address = SharedAddress::within(dialer);
    let connection = SharedConnection::open(&address, 1 << 20, entropy).await;
    let connection = connection.expect("the store refuses nobody's login");
    answers.share(connection.clone());
    answers.succeed_by(Arc::new(service));
    let store = Store::behind(connection.clone(), StoreLimits::default());
    assert!(opened.set(store).is_ok(), "a replica starts once");
    connection.keep_announced().await;
}

/// Begins an answer, to be read over `path`; returns what takes its commands.
async fn begin(
    answers: &Arc<ResumableAnswers>,
    service: &SimulatedService,
    seed: u64,
    path: (PathId, ReaderPath),
    sender: &NewsSender,
) -> Option<CommandSender> {
    let kept = kept_question(seed, service.settings);
    let Ok(reservation) = answers.reserve(key_of(seed), kept.len()) else {
        sender.send(ReaderNews::Rejected);
        return None;
    };
    let mut request = service.begin(seed, key_of(seed));
    if is_stored(seed) {
        service.chats.record(&mut request, AnswerFence::FIRST);
    }
    let vocab = vocab();
    let context = RecordContext { vocab: &vocab, echo: &[], logprobs: None };
    let begun = answers.start(reservation, request, &context, path, (None, Some(kept)));
    begun.announcement.made().await;
    sender.send(ReaderNews::Begun(begun.handle));
    Some(begun.commands)
}

/// Reads an answer to the end of its path, and rests after each piece. Who has a `turn` takes a
/// piece, and rests, only while nobody else does.
async fn read_events(
    inbox: EventsInbox,
    sender: &NewsSender,
    rest: Duration,
    turn: Option<Arc<AsyncMutex<()>>>,
) {
    let mut taken = inbox.offset();
    while let Some(piece) = poll_fn(|context| inbox.poll_piece(context, taken)).await {
        // Held while it rests, so that whoever trickles holds up all others.
        let _turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        let (position, bytes) = (piece.position, piece.bytes.to_vec());
        taken = position.offset + bytes.len() as u64;
        sender.send(ReaderNews::Piece { position, bytes, is_last: piece.is_last });
        if piece.is_last {
            return;
        }
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
    }
    sender.send(ReaderNews::Ended);
}
