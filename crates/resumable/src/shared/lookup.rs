//! Finds an answer in the store, stops it there, and reads its log from the beginning.

use std::sync::LazyLock;
use std::time::Duration;

use loquent_proto::{AnswerHandle, Position};
use redis::Script;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::epochs::Epochs;
use super::followed::{MOST_BYTES, whole_records};
use super::logs::{KEEP_RUNNING, SharedLogs, TICK, until_answered};
use super::reply::{self, FoundAnswer, OwnerState, ReadLog};
use super::state::{LogState, hash_of};
use loquent_store::StoreError;
use loquent_store::shared::connection::SharedConnection;
use loquent_store::shared::reply::StoreReply;

/// Time limit for a reader to wait for a store, or a mirror, that is behind it.
pub const AHEAD_LIMIT: Duration = Duration::from_secs(1);

static FIND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/find.lua")));
static STOP: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/stop.lua")));

impl SharedLogs {
    /// Returns true if the store has the answer with `handle`. An answer that was stopped or has
    /// another token does not count.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn has(&self, handle: &AnswerHandle) -> Result<bool, StoreError> {
        let mut call = SharedConnection::invocation(&FIND);
        call.arg(handle.id_hex());
        let found = reply::found(StoreReply(self.connection.run(&call).await?))?;
        let hash = hash_of(&handle.token);
        Ok(found.is_some_and(|FoundAnswer { token_hash, state }| {
            let is_same = bool::from(token_hash.as_bytes().ct_eq(hash.as_bytes()));
            is_same && !matches!(state, LogState::Stopped | LogState::Lost)
        }))
    }

    /// Stops the answer with `handle` at any owner; returns whether there was one.
    ///
    /// # Errors
    /// When the store cannot be used: the answer may then continue.
    pub async fn stop(&self, handle: &AnswerHandle) -> Result<bool, StoreError> {
        let mut call = SharedConnection::invocation(&STOP);
        call.arg(handle.id_hex()).arg(self.times.ended.as_millis() as u64);
        call.arg(KEEP_RUNNING.as_millis() as u64);
        Ok(StoreReply(self.connection.run(&call).await?).flag()?)
    }

    /// Stops the answer with `handle` like [`Self::stop`], and returns once the store has answered.
    pub async fn stop_surely(&self, handle: &AnswerHandle) {
        until_answered(|| async { self.stop(handle).await.map(drop) }).await;
    }

    /// Reads the log of the answer with `handle` from its beginning, and passes it piece by piece
    /// to `take`, at least up to `position` and to its current end. Returns the end of what was
    /// read and the owners of the log, if it reaches that far and has that position.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn load(
        &self,
        handle: &AnswerHandle,
        position: Position,
        take: &mut (dyn FnMut(&[u8]) -> bool + Send),
    ) -> Result<Option<(u64, Epochs)>, StoreError> {
        let (id, begun, mut next) = (handle.id_hex(), Instant::now(), 0);
        let mut known: Option<Epochs> = None;
        loop {
            let mut read = self.read(&[(&*id, next)]).await?;
            let Some(ReadLog { bytes, owner, epochs, .. }) = read.pop() else { return Ok(None) };
            let goes_on = known.is_none_or(|known| epochs.go_on_from(&known, next));
            let Some(offset) = epochs.offset_of(position).filter(|_| goes_on) else {
                return Ok(None);
            };
            let (len, is_last) = whole_records(&bytes);
            if len > 0 && !take(&bytes[..len]) {
                return Ok(None);
            }
            next += len as u64;
            let is_all = bytes.len() < MOST_BYTES;
            if next >= offset && is_all || is_last {
                return Ok((next >= offset).then_some((next, epochs)));
            }
            if len == 0 {
                // It is ahead of the store, by what its owner has not written yet.
                if owner == OwnerState::None || begun.elapsed() >= AHEAD_LIMIT {
                    return Ok(None);
                }
                tokio::time::sleep(TICK).await;
            }
            known = Some(epochs);
        }
    }
}
