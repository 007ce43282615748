//! The logs that this replica shares: those of its own answers, and those of other replicas that it
//! follows.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use loquent_proto::AnswerHandle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::followed::FollowedLog;
use super::offers::OthersOffers;
use super::slot::LogSlot;
use super::state::{GivenBack, NewsSink};
use loquent_store::StoreError;
use loquent_store::shared::connection::{NoticeWriter, SharedConnection, StoreHealth};

/// Interval between checks for due work. Bytes read at another replica are delayed by half of it
/// here, and by as much again there.
pub const TICK: Duration = Duration::from_millis(20);
/// Time for which the log of an unfinished answer is kept after each write.
pub(super) const KEEP_RUNNING: Duration = Duration::from_secs(6 * 60 * 60);
/// Time limit for storing the remaining bytes when this process ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);
/// Interval of attempts to tell the store of an answer that was stopped or given back.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Time for which a replica that shuts down waits before it asks for the offers of the others:
/// those that are stopped with it have withdrawn theirs by then.
const STOPPED_TOGETHER: Duration = Duration::from_millis(500);
/// Fence of an answer's first owner.
const FIRST_FENCE: u64 = 1;

/// The logs of all answers that this replica shares.
pub struct SharedLogs {
    /// Connection to the store.
    pub(super) connection: SharedConnection,
    /// Retention times of logs.
    pub(super) times: LogTimes,
    slots: Mutex<Vec<Arc<LogSlot>>>,
    /// Fully written slots of ended answers that are still kept here.
    shelved: Mutex<Vec<Arc<LogSlot>>>,
    followed: Mutex<Vec<Arc<FollowedLog>>>,
    /// Slots of answers to release to other replicas once they are written.
    leaving: Mutex<Vec<Arc<LogSlot>>>,
    /// Notified when a slot is added.
    first_slot: Notify,
    /// Notified when a log to follow is added.
    first_followed: Notify,
}

/// Time for which the store keeps a log after each write.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogTimes {
    /// For an unfinished answer.
    pub running: Duration,
    /// For an answer that has ended.
    pub ended: Duration,
}

/// Repeats `call` until the store answers it, or has forgotten the answer in any case.
pub(super) async fn until_answered<F>(call: impl Fn() -> F)
where
    F: Future<Output = Result<(), StoreError>>,
{
    let begun = Instant::now();
    while call().await.is_err() && begun.elapsed() < KEEP_RUNNING {
        tokio::time::sleep(TELL_EVERY).await;
    }
}

/// Waits, within a time limit, while the store lacks bytes: while `is_waiting`.
async fn wait_while(is_waiting: impl Fn() -> bool) {
    let written = async {
        while is_waiting() {
            tokio::time::sleep(TICK).await;
        }
    };
    if tokio::time::timeout(FLUSH_LIMIT, written).await.is_err() {
        tracing::warn!("not all answers could be stored before the end");
    }
}

impl SharedLogs {
    /// Shares logs over `connection`. The logs of ended answers are kept for `ended`.
    pub(super) fn new(connection: SharedConnection, ended: Duration) -> Self {
        Self {
            connection,
            times: LogTimes { running: KEEP_RUNNING, ended },
            slots: Mutex::default(),
            shelved: Mutex::default(),
            followed: Mutex::default(),
            leaving: Mutex::default(),
            first_slot: Notify::new(),
            first_followed: Notify::new(),
        }
    }

    /// Shares the answer with `handle` and the task `task`. The answer is written at once, before
    /// it has any bytes, so that other replicas know it as soon as its client does.
    pub fn share(
        &self,
        handle: &AnswerHandle,
        request: Option<Arc<[u8]>>,
        task: Arc<dyn NewsSink>,
    ) -> Arc<LogSlot> {
        let slot = LogSlot::new(handle, FIRST_FENCE, task);
        let slot = slot.with_request(request.unwrap_or_default());
        slot.touch();
        self.add(slot)
    }

    /// Adds a slot to be written.
    pub(super) fn add(&self, slot: LogSlot) -> Arc<LogSlot> {
        let slot = Arc::new(slot);
        if self.connection.health() != StoreHealth::Well {
            slot.release();
        }
        self.add_again(slot.clone());
        slot
    }

    /// Adds a slot to be written, possibly again.
    pub(super) fn add_again(&self, slot: Arc<LogSlot>) {
        self.slots().push(slot);
        self.first_slot.notify_one();
    }

    /// Puts fully written slots aside for as long as their answers are kept here.
    pub(super) fn shelve(&self, written: Vec<Arc<LogSlot>>) {
        if written.is_empty() {
            return;
        }
        let mut shelved = self.shelved.lock().expect("nothing panics under this lock");
        shelved.extend(written);
        shelved.retain(|slot| slot.is_kept());
    }

    /// Returns all slots put aside, and forgets them.
    pub(super) fn take_shelved(&self) -> Vec<Arc<LogSlot>> {
        std::mem::take(&mut *self.shelved.lock().expect("nothing panics under this lock"))
    }

    /// Follows `log`.
    pub fn follow(&self, log: FollowedLog) {
        self.followed().push(Arc::new(log));
        self.first_followed.notify_one();
    }

    /// Waits, within a time limit, until all bytes of this replica's answers are stored.
    pub async fn flush(&self) {
        wait_while(|| self.slots().iter().any(|slot| slot.is_waiting())).await;
    }

    /// Announces what `notice` writes to the other replicas from now on.
    pub fn announce_as(&self, notice: NoticeWriter) {
        self.connection.announce_as(notice);
    }

    /// Returns the offers of the other replicas.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn current_offers(&self) -> Result<OthersOffers, StoreError> {
        OthersOffers::ask(&self.connection).await
    }

    /// Withdraws this replica's offers, which has none any more, and returns those of the others.
    /// If answers depend on them, first waits for replicas that are stopped at the same time.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn offers_without_this(&self, depends: bool) -> Result<OthersOffers, StoreError> {
        self.connection.announce().await?;
        if depends {
            tokio::time::sleep(STOPPED_TOGETHER).await;
        }
        self.current_offers().await
    }

    /// Returns true if the store can be used, as of the last call.
    pub fn is_well(&self) -> bool {
        self.connection.health() == StoreHealth::Well
    }

    /// Marks an answer for release to other replicas by [`Self::leave_all`].
    pub fn leave(&self, slot: Arc<LogSlot>) {
        self.leaving.lock().expect("nothing panics under this lock").push(slot);
    }

    /// Writes the remaining bytes of the answers marked by [`Self::leave`], and releases these, all
    /// at once.
    pub async fn leave_all(self: &Arc<Self>) {
        let leaving =
            std::mem::take(&mut *self.leaving.lock().expect("nothing panics under this lock"));
        wait_while(|| leaving.iter().any(|slot| slot.is_waiting())).await;
        let mut releases = JoinSet::new();
        for slot in leaving {
            releases.spawn(self.clone().leave_one(slot));
        }
        while releases.join_next().await.is_some() {}
    }

    async fn leave_one(self: Arc<Self>, slot: Arc<LogSlot>) {
        if self.release(&slot.id, slot.fence, GivenBack::Unused).await.is_err() {
            // Until the store answers, or the end of this replica gives it back.
            tokio::spawn(async move {
                self.give_back(&slot.id, slot.fence, GivenBack::Unused).await;
            });
        }
    }

    /// Waits until there is a slot.
    pub(super) async fn wait_for_slots(&self) {
        while self.slots().is_empty() {
            // Remembered while nobody waits, so that none falls in between.
            self.first_slot.notified().await;
        }
    }

    /// Waits until there is a log to follow.
    pub(super) async fn wait_for_followed(&self) {
        while self.followed().is_empty() {
            self.first_followed.notified().await;
        }
    }

    /// Locks the slots to be written.
    pub(super) fn slots(&self) -> MutexGuard<'_, Vec<Arc<LogSlot>>> {
        self.slots.lock().expect("nothing panics under this lock")
    }

    /// Locks the followed logs of other replicas.
    pub(super) fn followed(&self) -> MutexGuard<'_, Vec<Arc<FollowedLog>>> {
        self.followed.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_until_the_store_answers_it() {
        let calls = Cell::new(0);
        let call = || async {
            calls.set(calls.get() + 1);
            if calls.get() < 4 { Err(StoreError::Failed("away".into())) } else { Ok(()) }
        };
        until_answered(call).await;
        assert_eq!(calls.get(), 4);
    }
}
