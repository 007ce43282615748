//! The logs that this replica shares: its own answers', and those of other replicas that it
//! follows.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use loquent_proto::AnswerHandle;
use tokio::sync::Notify;

use super::followed::FollowedLog;
use super::slot::LogSlot;
use super::state::{GivenBack, NewsSink};
use crate::store::shared::connection::{SharedConnection, StoreHealth};

/// How often what is due is looked for. What somebody at another replica reads is delayed by half
/// of it here, and by as much again there.
pub const TICK: Duration = Duration::from_millis(20);
/// How long the log of an answer is kept that goes on. It is as long again from each write on.
pub(super) const KEEP_RUNNING: Duration = Duration::from_secs(6 * 60 * 60);
/// How long the end of this process waits for what is not stored yet.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);
/// The fence of an answer's first owner.
const FIRST_FENCE: u64 = 1;

/// The logs of all answers that this replica shares.
pub struct SharedLogs {
    /// The way to the store.
    pub(super) connection: SharedConnection,
    /// How long logs are kept.
    pub(super) times: LogTimes,
    slots: Mutex<Vec<Arc<LogSlot>>>,
    /// Those that are written, of answers that have ended and are still kept here.
    shelved: Mutex<Vec<Arc<LogSlot>>>,
    followed: Mutex<Vec<Arc<FollowedLog>>>,
    /// Those of answers that are left to other replicas once they are written.
    leaving: Mutex<Vec<Arc<LogSlot>>>,
    /// There is a first slot.
    first_slot: Notify,
    /// There is a first log to follow.
    first_followed: Notify,
}

/// How long the store keeps a log, after each write.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogTimes {
    /// Of an answer that goes on.
    pub running: Duration,
    /// Of one that has ended.
    pub ended: Duration,
}

impl SharedLogs {
    /// Shares logs by `connection`; those of answers that have ended are kept for `ended`.
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

    /// Shares the answer with `handle`, whose task is `task`. It is written at once, before it has
    /// any bytes, so that other replicas know it when its client does.
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

    /// Writes what `slot` gets.
    pub(super) fn add(&self, slot: LogSlot) -> Arc<LogSlot> {
        let slot = Arc::new(slot);
        if self.connection.health() != StoreHealth::Well {
            slot.release();
        }
        self.add_again(slot.clone());
        slot
    }

    /// Writes what `slot` gets from now on, once more.
    pub(super) fn add_again(&self, slot: Arc<LogSlot>) {
        self.slots().push(slot);
        self.first_slot.notify_one();
    }

    /// Puts away what is written, for as long as it is kept here.
    pub(super) fn shelve(&self, written: Vec<Arc<LogSlot>>) {
        if written.is_empty() {
            return;
        }
        let mut shelved = self.shelved.lock().expect("nothing panics under this lock");
        shelved.extend(written);
        shelved.retain(|slot| slot.is_kept());
    }

    /// All that is put away.
    pub(super) fn take_shelved(&self) -> Vec<Arc<LogSlot>> {
        std::mem::take(&mut *self.shelved.lock().expect("nothing panics under this lock"))
    }

    /// Follows `log`.
    pub fn follow(&self, log: FollowedLog) {
        self.followed().push(Arc::new(log));
        self.first_followed.notify_one();
    }

    /// Waits, within a bound, until all that this replica's answers have is stored.
    pub async fn flush(&self) {
        let flushed = async {
            while self.slots().iter().any(|slot| slot.is_waiting()) {
                tokio::time::sleep(TICK).await;
            }
        };
        if tokio::time::timeout(FLUSH_LIMIT, flushed).await.is_err() {
            tracing::warn!("not all answers could be stored before the end");
        }
    }

    /// Whether the store can be used, as of the last call.
    pub fn is_well(&self) -> bool {
        self.connection.health() == StoreHealth::Well
    }

    /// Leaves an answer to other replicas, once [`Self::leave_all`] is called.
    pub fn leave(&self, slot: Arc<LogSlot>) {
        self.leaving.lock().expect("nothing panics under this lock").push(slot);
    }

    /// Writes what there is of all answers that are left to other replicas, and gives them back.
    pub async fn leave_all(&self) {
        self.flush().await;
        let leaving =
            std::mem::take(&mut *self.leaving.lock().expect("nothing panics under this lock"));
        for slot in leaving {
            self.release(&slot.id, slot.fence, GivenBack::Unused).await;
        }
    }

    /// Resolves when there is something to write, or may be.
    pub(super) async fn wait_for_slots(&self) {
        while self.slots().is_empty() {
            // Remembered while nobody waits, so that none falls in between.
            self.first_slot.notified().await;
        }
    }

    /// Resolves when there is a log to follow.
    pub(super) async fn wait_for_followed(&self) {
        while self.followed().is_empty() {
            self.first_followed.notified().await;
        }
    }

    /// What waits to be written of each log.
    pub(super) fn slots(&self) -> MutexGuard<'_, Vec<Arc<LogSlot>>> {
        self.slots.lock().expect("nothing panics under this lock")
    }

    /// Other replicas' logs.
    pub(super) fn followed(&self) -> MutexGuard<'_, Vec<Arc<FollowedLog>>> {
        self.followed.lock().expect("nothing panics under this lock")
    }
}
