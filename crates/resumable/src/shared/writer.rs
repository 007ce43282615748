//! Writes the logs of this replica's answers to the store: all due pieces with one command, so that
//! many answers need hardly more commands than one.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Script;
use tokio::time::Instant;

use super::logs::{LogTimes, SharedLogs, TICK};
use super::reply::{self, Appended};
use super::slot::{LogSlot, WaitingPiece};
use loquent_store::StoreError;
use loquent_store::shared::connection::{REPLICA_LEASE, SharedConnection};
use loquent_store::shared::reply::StoreReply;

/// Interval of queries about each answer that is still generated or read by another replica, even
/// if nothing is written: whether it was stopped or taken over, and whether anybody reads it.
const TOUCH_EVERY: Duration = Duration::from_secs(1);
/// Interval of queries about each answer that has ended, while it is kept here.
pub(super) const TOUCH_ENDED_EVERY: Duration = Duration::from_secs(5);
/// Delay after a failure before the store is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(250);
/// Time for which a log waits for an unavailable store after its answer is forgotten here.
const ABANDON_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of logs in one command.
const MAX_LOGS: usize = 256;
/// Maximum bytes in one command, unless a single log has more.
const MAX_BYTES: usize = 1 << 20;

static APPEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/append.lua")));

/// Logs still due after one command: some or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DueLogs {
    More,
    None,
}

impl SharedLogs {
    /// Writes due pieces. Never returns.
    pub(super) async fn keep_written(self: Arc<Self>) {
        let mut touched = Instant::now();
        loop {
            // An idle replica waits for its next answer.
            self.wait_for_slots().await;
            tokio::time::sleep(TICK).await;
            if touched.elapsed() >= TOUCH_EVERY {
                touched = Instant::now();
                self.slots()
                    .iter()
                    .filter(|slot| slot.is_looked_after())
                    .for_each(|slot| slot.touch());
            }
            // What comes meanwhile is the next tick's: a quick store would get a command a token.
            while self.write_due().await == Ok(DueLogs::More) {}
            let written = self.slots().extract_if(.., |slot| !slot.is_of_use()).collect();
            self.shelve(written);
        }
    }

    /// Asks the store about ended answers, `every` so often and when the store has lost this
    /// replica's lease, and so writes them again if they are lost: a restart of the store may lose
    /// all of them, a failover the newest. Never returns.
    pub(super) async fn keep_shelved(self: Arc<Self>, every: Duration) {
        let mut lapses = self.connection.lapses();
        loop {
            // Either way, it is time to ask. The sender lives as long as the connection does.
            drop(tokio::time::timeout(every, lapses.changed()).await);
            for slot in self.take_shelved() {
                slot.touch();
                self.add_again(slot);
            }
        }
    }

    /// Writes the due pieces with one command, and returns whether more are due.
    ///
    /// # Errors
    /// When the store cannot be used; returns only after a delay, so that the caller may try again.
    async fn write_due(&self) -> Result<DueLogs, StoreError> {
        let (now, mut bytes) = (Instant::now(), 0);
        let mut due: Vec<(Arc<LogSlot>, WaitingPiece)> = Vec::new();
        for slot in self.slots().iter() {
            let Some(piece) = slot.due(now) else { continue };
            bytes += piece.bytes.len() + slot.request_with(&piece).len();
            due.push((slot.clone(), piece));
            if due.len() >= MAX_LOGS || bytes >= MAX_BYTES {
                break;
            }
        }
        if due.is_empty() {
            return Ok(DueLogs::None);
        }
        let appended = match self.append(&due).await {
            Ok(appended) => appended,
            Err(error) => return Err(self.rest_after(error).await),
        };
        for ((slot, piece), appended) in due.iter().zip(appended) {
            slot.note(piece, appended);
        }
        let is_full = due.len() >= MAX_LOGS || bytes >= MAX_BYTES;
        Ok(if is_full { DueLogs::More } else { DueLogs::None })
    }

    /// Backs off after a store error. Readers continue without the store; unsent pieces stay
    /// queued.
    async fn rest_after(&self, error: StoreError) -> StoreError {
        // The connection has logged why.
        tracing::debug!(%error, "logs were not stored");
        self.slots().retain(|slot| !slot.is_abandoned(ABANDON_AFTER));
        self.slots().iter().for_each(|slot| slot.release());
        tokio::time::sleep(RETRY_AFTER).await;
        error
    }

    async fn append(
        &self,
        due: &[(Arc<LogSlot>, WaitingPiece)],
    ) -> Result<Vec<Appended>, StoreError> {
        let LogTimes { running, ended } = self.times;
        let mut call = SharedConnection::invocation(&APPEND);
        call.arg(self.connection.replica());
        call.arg(running.as_millis() as u64).arg(ended.as_millis() as u64);
        call.arg(REPLICA_LEASE.as_millis() as u64);
        for (slot, piece) in due {
            call.arg(&slot.id).arg(slot.fence).arg(piece.offset).arg(piece.state.name());
            call.arg(&slot.token_hash).arg(&piece.bytes[..]).arg(&*slot.request_with(piece));
            call.arg(&slot.epochs);
        }
        let value = self.connection.run(&call).await?;
        Ok(reply::appended(StoreReply(value), due.len())?)
    }
}
