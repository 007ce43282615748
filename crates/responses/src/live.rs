//! Background responses while they are generated. Each is a task that keeps its records for any
//! number of readers, which may come and go, and stores them periodically, so that a restart loses
//! little.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use loquent_proto::Delta;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::generation::ResponseGeneration;
use crate::record_log::RecordLog;
use crate::stored::{StoredResponse, object};
use crate::storing::ResponseRecorder;
use loquent_dialects::responses::object::ResponseTemplate;
use loquent_resumable::Reservation;
use loquent_resumable::generation::Generated;
use loquent_resumable::shared::offers::OthersOffers;
use loquent_serving::api::json::{ValueSize, count_values};
use loquent_serving::error::ApiError;
use loquent_serving::identity::Owner;
use loquent_store::{Kind, Store, StoreError};

/// Interval at which a growing response is stored. A restart loses the text since the last
/// checkpoint.
const CHECKPOINT: Duration = Duration::from_secs(2);
/// Error for a response that another replica now generates, or that was deleted.
const TAKEN: &str =
    "Another replica generates this response now, or it was deleted. Read it again.";
/// `Retry-After` in seconds for a response that another replica now generates.
const TAKEN_RETRY_S: u64 = 1;
/// Maximum time for which a shutdown waits for responses to be stored.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);
/// Error for a client that cancels a response whose end the store does not have.
const NOT_STORED: &str =
    "The end of this response is not stored yet, or another replica generates it. Try again.";
/// Error for readers of a response that this server leaves to another replica at shutdown.
const LEFT: &str = "Another server goes on with the response: read it again.";

type Key = (Owner, String);

/// All background responses that are being generated.
#[derive(Default)]
pub struct LiveResponses {
    responses: Mutex<HashMap<Key, Arc<LiveResponse>>>,
    /// Set once the server is shutting down.
    leaving: watch::Sender<LeftResponses>,
    /// Held while another replica's response is taken over, so that only one task does so at a
    /// time.
    pub takeover: tokio::sync::Mutex<()>,
}

/// Responses that this server leaves to other replicas.
#[derive(Debug, Clone, Default)]
enum LeftResponses {
    /// No response: it goes on with all of them.
    #[default]
    None,
    /// Responses that other replicas offer to continue.
    Covered(Arc<OthersOffers>),
    /// All responses that any replica can continue, now or later.
    All,
}

/// A background response that is being generated.
pub struct LiveResponse {
    recorder: ResponseRecorder,
    /// Members of its object that come from the request.
    pub template: ResponseTemplate,
    state: Mutex<LiveState>,
    cancelled: Notify,
    /// Signals that the response is deleted: its end is not to be stored any more.
    deleted: Notify,
    settlement: watch::Sender<Settlement>,
    /// True once its task is over.
    left: watch::Sender<bool>,
    /// True if another replica is to continue the response.
    is_left: AtomicBool,
    /// True if another replica offers to continue it; unset until that matters.
    is_covered: OnceLock<bool>,
}

/// State of a response's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settlement {
    /// There is no end yet, or it is being stored.
    Open,
    /// The store has the end.
    Stored,
    /// The store does not have the end, or has another replica's.
    NotStored,
}

struct LiveState {
    /// The records that readers see.
    log: RecordLog,
    /// The same records with the end, from when it is known until it is shown. Readers wait while
    /// it is being stored: had another replica taken the response over, this would not be its end.
    ended: Option<RecordLog>,
    /// Number of readers so far; each reader gets its number from this.
    readers: u64,
    /// Wakers of the readers that wait for more.
    waiting: BTreeMap<u64, Waker>,
}

/// Reads a background response. Dropping it removes its waker.
pub struct LiveReader {
    live: Arc<LiveResponse>,
    number: u64,
}

/// A background response that has ended and no longer changes.
pub struct EndedResponse<'a>(&'a LiveResponse);

/// A response's entry in the table, removed when its task ends in any way: nobody waits for a task
/// that has panicked.
struct LiveEntry {
    table: Arc<LiveResponses>,
    live: Arc<LiveResponse>,
    /// True once a task generates the response. Until then nobody has seen more of it than the
    /// store has.
    has_task: bool,
}

impl Drop for LiveEntry {
    fn drop(&mut self) {
        match self.has_task {
            true => self.live.break_off(),
            false => self.live.give_up(),
        }
        self.live.settle(Settlement::NotStored);
        self.live.left.send_replace(true);
        self.table.forget(&self.live);
    }
}

/// Initial state of a background response.
pub struct NewResponse {
    /// Writes the response to the store.
    pub recorder: ResponseRecorder,
    /// Members of its object that come from the request.
    pub template: ResponseTemplate,
    /// The response's first records, with the limit for all of them.
    pub log: RecordLog,
}

impl LiveResponses {
    /// Generates `new` whether or not it has readers. The response can be found and is in the store
    /// when this returns.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub async fn start(
        self: &Arc<Self>,
        new: NewResponse,
        generation: ResponseGeneration,
        reservation: Reservation,
    ) -> Result<Arc<LiveResponse>, ApiError> {
        let live = Arc::new(LiveResponse::new(new));
        // First: an object of this replica that is not here is one that it has lost.
        self.table().insert(live.key(), live.clone());
        let mut entry = LiveEntry { table: self.clone(), live: live.clone(), has_task: false };
        if !live.save().await? {
            return Err(ApiError::unavailable(TAKEN, TAKEN_RETRY_S));
        }
        entry.has_task = true;
        let leaving = self.leaving.subscribe();
        tokio::spawn(async move {
            entry.live.carry(generation, reservation, leaving).await;
            // Only now: whoever does not find it here must find it in the store.
            drop(entry);
        });
        Ok(live)
    }

    /// Leaves the responses that `others` cover to them in their current state, because this
    /// replica shuts down. Waits, within a time limit, until they are stored.
    pub async fn leave(&self, others: &Arc<OthersOffers>) {
        self.leave_those(LeftResponses::Covered(others.clone())).await;
    }

    /// Leaves all responses in their current state: any replica that has their model continues
    /// them, now or once it has started. Waits as [`Self::leave`] does.
    pub async fn leave_all(&self) {
        self.leave_those(LeftResponses::All).await;
    }

    async fn leave_those(&self, which: LeftResponses) {
        self.leaving.send_replace(which.clone());
        self.wait_for(|live| live.belongs_to(&which) || live.ends()).await;
    }

    /// Waits, within a time limit, until all responses that have ended are stored.
    pub async fn flush(&self) {
        self.wait_for(LiveResponse::ends).await;
    }

    async fn wait_for(&self, which: impl Fn(&LiveResponse) -> bool) {
        let all: Vec<_> = self.table().values().filter(|live| which(live)).cloned().collect();
        let stored = async {
            for live in all {
                let _ = live.left.subscribe().wait_for(|left| *left).await;
            }
        };
        if tokio::time::timeout(FLUSH_LIMIT, stored).await.is_err() {
            tracing::warn!("not all responses could be stored before the end");
        }
    }

    /// Returns the response `id` of `owner` while it is generated.
    pub fn find(&self, owner: Owner, id: &str) -> Option<Arc<LiveResponse>> {
        let found = self.table().get(&(owner, id.to_owned())).cloned();
        found.filter(|live| !live.is_left.load(Ordering::Relaxed))
    }

    /// Deletes the response `id` of `owner`, here and in the `store`; returns true if there was
    /// one.
    ///
    /// # Errors
    /// If the store cannot be used; the response has ended then, if it was generated here.
    pub async fn delete(&self, store: &Store, owner: Owner, id: &str) -> Result<bool, StoreError> {
        let live = self.find(owner, id);
        if let Some(live) = &live {
            // To its end, for its last checkpoint would bring back what is deleted here. An end
            // that is not stored need not be.
            drop(live.cancel().await);
        }
        let was_there = store.delete(Kind::Response, owner, id).await?;
        if let Some(live) = live {
            live.deleted.notify_one();
            self.forget(&live);
        }
        Ok(was_there)
    }

    /// Returns the number of responses that are generated, or whose end is not stored yet.
    pub fn count(&self) -> usize {
        self.table().len()
    }

    /// Removes `live`, which has ended.
    fn forget(&self, live: &Arc<LiveResponse>) {
        let (key, mut table) = (live.key(), self.table());
        // This replica may have taken the same response over meanwhile.
        if table.get(&key).is_some_and(|known| Arc::ptr_eq(known, live)) {
            table.remove(&key);
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Arc<LiveResponse>>> {
        self.responses.lock().expect("nothing panics under this lock")
    }
}

impl LiveResponse {
    fn new(new: NewResponse) -> Self {
        let NewResponse { recorder, template, log } = new;
        let state = LiveState { log, ended: None, readers: 0, waiting: BTreeMap::new() };
        let state = Mutex::new(state);
        let (cancelled, deleted) = (Notify::new(), Notify::new());
        let settlement = watch::Sender::new(Settlement::Open);
        let (left, is_left) = (watch::Sender::new(false), AtomicBool::new(false));
        let is_covered = OnceLock::new();
        Self {
            recorder,
            template,
            state,
            cancelled,
            deleted,
            settlement,
            left,
            is_left,
            is_covered,
        }
    }

    fn key(&self) -> Key {
        (self.recorder.target.owner, self.recorder.id.clone())
    }

    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Returns the response's size in the store, in bytes: no less than its JSON and its input's.
    pub fn bytes(&self) -> usize {
        self.recorder.input.head.len() + self.state().log.bytes().len()
    }

    /// Returns the current response object.
    pub fn object(&self) -> Value {
        object(&self.template, &self.log())
    }

    /// Returns a copy of the records so far: readers and the generation need the lock meanwhile.
    fn log(&self) -> RecordLog {
        self.state().log.clone()
    }

    /// Calls `check` with the records so far.
    pub fn check<T>(&self, check: impl FnOnce(&RecordLog) -> T) -> T {
        check(&self.state().log)
    }

    /// Returns the conversation before the response.
    pub fn input(&self) -> &[Value] {
        &self.recorder.input.items
    }

    /// Returns the complete response if it has ended: the store has it, or cannot be used.
    pub fn ended(&self) -> Option<EndedResponse<'_>> {
        self.state().log.is_ended().then_some(EndedResponse(self))
    }

    /// Cancels the response, and waits until it has ended and been stored.
    ///
    /// # Errors
    /// 503 if its end is not stored: should this replica end now, another one goes on with the
    /// response.
    pub async fn cancel(&self) -> Result<(), ApiError> {
        // This is remembered where `run` is busy with a checkpoint.
        self.cancelled.notify_one();
        let mut settlement = self.settlement.subscribe();
        let settled = settlement.wait_for(|settlement| *settlement != Settlement::Open).await;
        // The sender is in `self`, so that this cannot fail.
        match settled.is_ok_and(|settlement| *settlement == Settlement::Stored) {
            true => Ok(()),
            false => Err(ApiError::unavailable(NOT_STORED, TAKEN_RETRY_S)),
        }
    }

    /// Notes the state of the end, of which the first counts.
    fn settle(&self, settlement: Settlement) {
        self.settlement.send_if_modified(|known| {
            let is_first = *known == Settlement::Open;
            if is_first {
                *known = settlement;
            }
            is_first
        });
    }

    /// Generates the response to its end and stores it.
    async fn carry(
        &self,
        generation: ResponseGeneration,
        reservation: Reservation,
        leaving: watch::Receiver<LeftResponses>,
    ) {
        self.run(generation, leaving).await;
        if self.is_left.load(Ordering::Relaxed) {
            // As it is in the store, it goes on elsewhere.
            drop(reservation);
            return;
        }
        let first = self.save().await;
        match &first {
            Ok(false) => {
                tracing::warn!("another replica has taken over a response");
                self.give_up();
            }
            // Without the store there is no other place for it.
            Ok(true) | Err(_) => self.show_end(),
        }
        let is_stored = matches!(first, Ok(true));
        self.settle(if is_stored { Settlement::Stored } else { Settlement::NotStored });
        drop(reservation);
        if let Err(error) = first {
            let log = self.log();
            tokio::select! {
                biased;
                () = self.deleted.notified() => {}
                // Until then it can be read only here.
                () = self.recorder.save_later(&log, &error) => {}
            }
        }
    }

    /// Returns true if the response is no longer generated here.
    fn ends(&self) -> bool {
        self.state().has_end() || self.is_left.load(Ordering::Relaxed)
    }

    /// Collects the records of `generation` until it ends or is left to another replica.
    async fn run(
        &self,
        mut generation: ResponseGeneration,
        mut leaving: watch::Receiver<LeftResponses>,
    ) {
        let mut checkpoint = interval_at(Instant::now() + CHECKPOINT, CHECKPOINT);
        // A slow disk gets no burst of the checkpoints that it was too slow for.
        checkpoint.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stored_bytes = 0;
        loop {
            // A step that another branch interrupts has taken no flush yet, so nothing is lost.
            tokio::select! {
                biased;
                () = self.is_left_now(&mut leaving) => return self.leave().await,
                () = self.cancelled.notified() => generation.cancel(&mut |delta| self.push(&delta)),
                _ = checkpoint.tick() => {
                    let bytes = self.state().log.bytes().len();
                    match self.save_if(bytes > stored_bytes).await {
                        Ok(true) => stored_bytes = bytes,
                        Ok(false) => return self.give_up(),
                        Err(_) => {}
                    }
                    // A store that is away takes as long as the time to the next one: what is
                    // generated would wait for one after the other.
                    checkpoint.reset();
                }
                // Last: the others are rarely ready.
                generated = self.step(&mut generation) => {
                    if let Generated::Failed(error) = generated {
                        tracing::debug!(%error, "a background response failed");
                        if error.is_of_engine() && self.recorder.goes_on_elsewhere().await {
                            return self.leave().await;
                        }
                        generation.fail(&error, &mut |delta| self.push(&delta));
                    }
                }
            }
            if self.state().has_end() {
                return;
            }
        }
    }

    /// True if the response is one of those in `left`.
    fn belongs_to(&self, left: &LeftResponses) -> bool {
        match left {
            LeftResponses::None => false,
            LeftResponses::Covered(others) => {
                *self.is_covered.get_or_init(|| self.recorder.is_covered_by(others))
            }
            LeftResponses::All => self.recorder.can_be_left(),
        }
    }

    /// Resolves when this replica leaves the response to others.
    async fn is_left_now(&self, leaving: &mut watch::Receiver<LeftResponses>) {
        if leaving.wait_for(|left| self.belongs_to(left)).await.is_err() {
            std::future::pending().await
        }
    }

    /// Stores the records so far, and leaves the response to another replica. Its readers' streams
    /// break off: they come back, and find it there.
    async fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        if let Err(error) = self.recorder.leave(self.log()).await {
            tracing::debug!(%error, "another replica goes on from an older part of a response");
        }
        Self::wake_readers(self.state());
    }

    /// Leaves the response to the replica that generates it now, and ends its readers' streams.
    fn give_up(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        Self::wake_readers(self.state());
    }

    fn wake_readers(mut state: MutexGuard<'_, LiveState>) {
        let waiting = std::mem::take(&mut state.waiting);
        // The lock first: those who are woken take it.
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Collects the records of one flush.
    async fn step(&self, generation: &mut ResponseGeneration) -> Generated {
        poll_fn(|context| generation.poll(context, &mut |delta| self.push(&delta))).await
    }

    fn push(&self, delta: &Delta) {
        let mut state = self.state();
        if state.push(delta) {
            Self::wake_readers(state);
        }
    }

    /// Shows the end to readers.
    fn show_end(&self) {
        let mut state = self.state();
        if let Some(ended) = state.ended.take() {
            state.log = ended;
        }
        Self::wake_readers(state);
    }

    /// Ends the response for its readers when its task is gone, unless it has ended already or goes
    /// on at another replica.
    fn break_off(&self) {
        // Its records cannot be trusted if they were being written when the task panicked.
        let is_open = self.state.lock().is_ok_and(|state| !state.log.is_ended());
        if is_open && !self.is_left.load(Ordering::Relaxed) {
            let message = "The server failed while it generated this response.";
            self.push(&Delta::Error { code: "server_error".into(), message: message.into() });
            self.show_end();
        }
    }

    async fn save_if(&self, is_due: bool) -> Result<bool, StoreError> {
        if is_due { self.save().await } else { Ok(true) }
    }

    /// Stores the records so far; returns false if the response now belongs to another replica.
    async fn save(&self) -> Result<bool, StoreError> {
        let ended = self.state().ended.clone();
        self.recorder.save(ended.unwrap_or_else(|| self.log())).await
    }
}

impl LiveState {
    /// Returns true if there is an end, which readers may not see yet.
    fn has_end(&self) -> bool {
        self.ended.is_some() || self.log.is_ended()
    }

    /// Appends `delta`, which nobody sees yet if it is the end; returns true if there is more for
    /// readers. What comes behind the end is ignored.
    fn push(&mut self, delta: &Delta) -> bool {
        if self.has_end() {
            return false;
        }
        if !delta.is_last() && self.log.push(delta).is_ok() {
            return true;
        }
        let mut ended = self.log.clone();
        if !delta.is_last() || ended.push(delta).is_err() {
            let message = "The response is longer than the server keeps (--stream-log-bytes).";
            let full = Delta::Error { code: "too_long".into(), message: message.into() };
            ended.push(&full).expect("there is room for an end");
        }
        self.ended = Some(ended);
        false
    }
}

impl LiveReader {
    /// Adds a reader of `live`.
    pub fn new(live: Arc<LiveResponse>) -> Self {
        let number = {
            let mut state = live.state();
            state.readers += 1;
            state.readers
        };
        Self { live, number }
    }

    /// Returns a piece of the records from byte `at` on, and whether the response ends with it. If
    /// there is none, wakes the task of `context` when more arrives.
    pub fn poll_piece(&self, context: &mut Context<'_>, at: usize) -> (Vec<u8>, bool) {
        let mut state = self.live.state();
        let (piece, is_last) = state.log.piece(at);
        let piece = piece.to_vec();
        if piece.is_empty() && !is_last {
            state.waiting.insert(self.number, context.waker().clone());
        }
        (piece, is_last)
    }
}

impl LiveReader {
    /// Returns the reason why the response has no further records here, although it has not ended:
    /// another replica goes on with it.
    pub fn left(&self) -> Option<ApiError> {
        let is_left = self.live.is_left.load(Ordering::Relaxed);
        let is_open = || !self.live.state().log.is_ended();
        (is_left && is_open()).then(|| ApiError::unavailable(LEFT, TAKEN_RETRY_S))
    }
}

impl Drop for LiveReader {
    fn drop(&mut self) {
        self.live.state().waiting.remove(&self.number);
    }
}

impl EndedResponse<'_> {
    /// Returns the memory charge for a parsed copy.
    pub fn charged_bytes(&self) -> usize {
        let mut size = ValueSize::default();
        self.0.input().iter().for_each(|item| size.add(item));
        let state = self.0.state();
        let records = state.log.bytes();
        size.values += count_values(records);
        size.text_bytes += records.len();
        size.charged_bytes()
    }

    /// Returns a copy of the response in its stored form.
    pub fn copy(&self) -> StoredResponse {
        let (template, input) = (self.0.template.clone(), self.0.input().to_vec());
        StoredResponse { template, input, log: self.0.log(), request: None }
    }
}

#[cfg(test)]
mod tests {
    //! State left behind by a reader and by a task.
    use serde_json::json;

    use super::*;
    use crate::stored::KeptInput;
    use loquent_serving::blocking_workers::BlockingWorkers;
    use loquent_store::recorder::StoreTarget;
    use loquent_store::{AnswerFence, StoreLimits};

    fn live() -> Arc<LiveResponse> {
        let object = json!({"id": "resp_1"});
        let target = StoreTarget {
            store: Store::in_memory(StoreLimits::default()),
            workers: BlockingWorkers::new(1),
            kind: Kind::Response,
            owner: Owner::NOBODY,
            fence: AnswerFence::FIRST,
        };
        let (id, input) = ("resp_1".to_owned(), KeptInput::default());
        let recorder = ResponseRecorder { target, id, created_s: 0, input };
        let template = ResponseTemplate { object, background: true };
        let log = RecordLog::new(1 << 16);
        Arc::new(LiveResponse::new(NewResponse { recorder, template, log }))
    }

    #[tokio::test]
    async fn a_task_that_panics_leaves_nobody_waiting() {
        let (table, live) = (Arc::new(LiveResponses::default()), live());
        table.table().insert(live.key(), live.clone());
        let entry = LiveEntry { table: table.clone(), live: live.clone(), has_task: true };
        let task = tokio::spawn(async move {
            let _entry = entry;
            panic!("on purpose");
        });
        // Not before the task has begun to run: this waits for it.
        assert!(live.cancel().await.is_err(), "its end is not stored");
        assert!(task.await.unwrap_err().is_panic());
        assert!(table.find(Owner::NOBODY, "resp_1").is_none());
        let mut context = Context::from_waker(Waker::noop());
        let (piece, is_last) = LiveReader::new(live).poll_piece(&mut context, 0);
        assert!(is_last && !piece.is_empty(), "its readers hear of the end");
    }

    #[test]
    fn the_end_is_shown_after_it_is_stored() {
        let live = live();
        let reader = LiveReader::new(live.clone());
        let mut context = Context::from_waker(Waker::noop());
        live.push(&Delta::text("all"));
        let shown = reader.poll_piece(&mut context, 0).0.len();
        live.push(&Delta::Done);
        live.push(&Delta::text("behind the end"));
        assert!(live.ends(), "what is stored next has the end");
        assert_eq!(reader.poll_piece(&mut context, shown), (Vec::new(), false));
        assert_eq!(live.object()["status"], "in_progress");
        assert!(live.ended().is_none());
        live.show_end();
        let (piece, is_last) = reader.poll_piece(&mut context, shown);
        assert!(is_last && piece.len() < shown);
        assert_eq!(live.object()["status"], "completed");
    }

    #[test]
    fn a_reader_that_goes_leaves_no_waker() {
        let live = live();
        let mut context = Context::from_waker(Waker::noop());
        let (stays, goes) = (LiveReader::new(live.clone()), LiveReader::new(live.clone()));
        for reader in [&stays, &goes, &goes] {
            assert_eq!(reader.poll_piece(&mut context, 0), (Vec::new(), false));
        }
        assert_eq!(live.state().waiting.len(), 2);
        drop(goes);
        assert_eq!(live.state().waiting.len(), 1);
        live.push(&Delta::text("more"));
        assert!(live.state().waiting.is_empty());
        assert!(!stays.poll_piece(&mut context, 0).0.is_empty());
    }
}
