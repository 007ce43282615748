//! Takes over an answer whose owner has ended: this replica becomes its owner, generates it once
//! more, and goes on behind what the store has.
//!
//! The seed of its random numbers is kept with its request, so the second answer is the first one
//! wherever the engine is deterministic. It is compared with all that the log has ([`Replay`]);
//! where it differs, the answer ends with an error, since no other end would be of one piece.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use loquent_proto::{AnswerHandle, Delta, Replay};
use redis::Script;

use super::followed::{FollowedLog, Follower};
use super::kept_request::{self, KeptRequest, REQUEST_BYTES};
use super::logs::SharedLogs;
use super::reply::{self, Taken};
use super::slot::LogSlot;
use super::state::NewsSink;
use crate::active_request::ActiveRequest;
use crate::error::ApiError;
use crate::records::RecordWriter;
use crate::store::StoreError;
use crate::store::shared::connection::SharedConnection;
use crate::store::shared::reply::StoreReply;

/// Most bytes of a log that is compared.
const LOG_BYTES: usize = 4 << 20;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/take.lua")));

/// An answer that is generated once more.
pub struct SecondAnswer {
    /// Its request, under way.
    pub request: Box<ActiveRequest>,
    /// Writes its records.
    pub records: RecordWriter,
    /// Its first records.
    pub first: Vec<Delta>,
}

/// Begins requests once more: what this part needs of the server around it.
pub trait Successor: Send + Sync {
    /// Whether it can begin any now.
    fn is_ready(&self) -> bool;

    /// Begins `request`.
    fn begin(
        &self,
        request: KeptRequest,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>>;
}

/// What comes of an answer whose owner has ended.
pub enum Succession {
    /// This replica owns it now.
    Owned(Box<OwnedAnswer>),
    /// Another replica was faster.
    Follow(Follower),
    /// It cannot go on, for this reason.
    Lost(String),
}

/// An answer that was taken over.
pub struct OwnedAnswer {
    /// It, from its beginning.
    pub answer: SecondAnswer,
    /// What the log has of it.
    pub replay: Replay,
    /// Takes the rest to the store.
    pub slot: Arc<LogSlot>,
}

impl SharedLogs {
    /// Takes over the answer with `handle`, whose log ends at `head`, for its task here.
    pub async fn succeed(
        &self,
        handle: &AnswerHandle,
        head: u64,
        task: Arc<dyn NewsSink>,
        successor: &dyn Successor,
    ) -> Succession {
        if !successor.is_ready() {
            return Succession::Lost("this replica takes no requests now".into());
        }
        let taken = match self.take(handle).await {
            Ok(Taken::Ours { fence, head, request }) => (fence, head, request),
            Ok(Taken::Others) => {
                let (log, follower) = FollowedLog::new(handle);
                self.follow(log.beginning_at(head));
                return Succession::Follow(follower);
            }
            Ok(Taken::Never) => return Succession::Lost("its request is not stored".into()),
            Err(error) => return Succession::Lost(error.to_string()),
        };
        let (fence, stored_head, request) = taken;
        let begun = match stored_head == head {
            true => self.generate_again(handle, &request, successor).await,
            false => Err("its log has changed".into()),
        };
        match begun {
            Ok((answer, replay)) => {
                let slot = LogSlot::new(handle, fence, task).beginning_at(head);
                let slot = self.add(slot);
                Succession::Owned(Box::new(OwnedAnswer { answer, replay, slot }))
            }
            Err(why) => {
                // Nobody else is to try the same in vain.
                self.stop(handle).await;
                Succession::Lost(why)
            }
        }
    }

    async fn take(&self, handle: &AnswerHandle) -> Result<Taken, StoreError> {
        let mut call = SharedConnection::invocation(&TAKE);
        call.arg(handle.id_hex()).arg(self.connection.replica()).arg(REQUEST_BYTES);
        Ok(reply::taken(StoreReply(self.connection.run(&call).await?), REQUEST_BYTES)?)
    }

    async fn generate_again(
        &self,
        handle: &AnswerHandle,
        request: &[u8],
        successor: &dyn Successor,
    ) -> Result<(SecondAnswer, Replay), String> {
        let mut records = Vec::new();
        let mut take = |bytes: &[u8]| {
            records.extend_from_slice(bytes);
            records.len() <= LOG_BYTES
        };
        let loaded = self.load(handle, 0, &mut take).await;
        if !matches!(loaded, Ok(Some(_))) {
            return Err("its log cannot be read".into());
        }
        let replay = Replay::of(&records).map_err(|_| "its log has what cannot be compared")?;
        let request = kept_request::decode(request).ok_or("its request cannot be read")?;
        let answer = successor.begin(request).await.map_err(|error| error.to_string())?;
        Ok((answer, replay))
    }
}
