//! Follows the logs of other replicas' answers: asks the store for all of them at once, a few times
//! per token.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use loquent_proto::AnswerHandle;
use redis::Script;

use super::followed::{FollowedLog, LogRead, MOST_BYTES};
use super::logs::{SharedLogs, TICK};
use super::reply::{self, ReadLog};
use super::state::LogState;
use loquent_store::StoreError;
use loquent_store::shared::connection::{REPLICA_LEASE, SharedConnection};
use loquent_store::shared::reply::StoreReply;

/// Maximum number of logs read by one command.
const MAX_LOGS: usize = 64;
/// Time for which the store remembers that a log was read.
const READING: Duration = Duration::from_millis(1500);

static READ: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/read.lua")));

impl SharedLogs {
    /// Reads new bytes of the followed logs. Never returns.
    pub(super) async fn keep_followed(self: Arc<Self>) {
        loop {
            self.wait_for_followed().await;
            tokio::time::sleep(TICK).await;
            self.followed().retain(|log| !log.pieces.is_closed());
            // Whoever has not taken what came before gets no more: its reader is slow.
            let ready: Vec<Arc<FollowedLog>> =
                self.followed().iter().filter(|log| log.pieces.capacity() > 0).cloned().collect();
            for logs in ready.chunks(MAX_LOGS) {
                let read = self.read_logs(logs).await;
                let knows_the_dead = self.connection.knows_the_dead();
                for (at, log) in logs.iter().enumerate() {
                    let read = read.as_ref().ok().map(|read| &read[at]);
                    let read = read.map(|log| LogRead { log, knows_the_dead });
                    if log.note(read).is_over() {
                        self.followed().retain(|known| !Arc::ptr_eq(known, log));
                    }
                }
            }
        }
    }

    /// Returns true if the answer with `handle` was stopped.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn is_stopped(&self, handle: &AnswerHandle) -> Result<bool, StoreError> {
        // Behind every log: only its state is of interest.
        let read = self.read(&[(&handle.id_hex(), u64::from(u32::MAX))]).await?;
        Ok(read.first().is_some_and(|log| log.state == Some(LogState::Stopped)))
    }

    async fn read_logs(&self, logs: &[Arc<FollowedLog>]) -> Result<Vec<ReadLog>, StoreError> {
        let mut from: Vec<(&str, u64)> = Vec::new();
        from.extend(logs.iter().map(|log| (&*log.id, log.next.load(Ordering::Relaxed))));
        self.read(&from).await
    }

    /// Reads logs, each from its offset on.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub(super) async fn read(&self, from: &[(&str, u64)]) -> Result<Vec<ReadLog>, StoreError> {
        let mut call = SharedConnection::invocation(&READ);
        call.arg(self.connection.replica()).arg(READING.as_millis() as u64).arg(MOST_BYTES);
        call.arg(REPLICA_LEASE.as_millis() as u64);
        for (id, offset) in from {
            call.arg(*id).arg(*offset);
        }
        let value = self.connection.run(&call).await?;
        Ok(reply::read(StoreReply(value), from.len(), MOST_BYTES)?)
    }
}
