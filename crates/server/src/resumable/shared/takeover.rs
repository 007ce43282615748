//! Takes over an answer whose owner has ended: this replica becomes its owner, generates it once
//! more, and goes on behind what the store has.
//!
//! The seed of its random numbers is kept with its request, so the second answer is the first one
//! wherever the engine is deterministic. It is compared with all that the log has ([`Replay`]);
//! where it differs, another replica may have more luck, and the third one ends the answer with an
//! error: no other end would be of one piece.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use loquent_proto::{AnswerHandle, Delta, Position, Replay, position};
use redis::Script;

use super::epochs::Epochs;
use super::followed::{FollowedLog, Follower};
use super::kept_request::{self, KeptRequest, REQUEST_BYTES};
use super::logs::SharedLogs;
use super::reply::{self, Taken};
use super::slot::LogSlot;
use super::state::{GivenBack, NewsSink};
use crate::active_request::ActiveRequest;
use crate::api::head::AnswerName;
use crate::error::ApiError;
use crate::records::RecordWriter;
use crate::store::shared::connection::SharedConnection;
use crate::store::shared::objects::FENCE_KEPT;
use crate::store::shared::reply::StoreReply;
use crate::store::{AnswerFence, StoreError};

/// Most bytes of a log that is compared.
const LOG_BYTES: usize = 4 << 20;
/// An epoch's number is up to so much above the one before: after the store has lost a takeover,
/// another one has another number.
const EPOCH_STEP: u64 = 512;
/// How long a replica with another answer leaves one to the others, seconds.
const DIFFERS_RETRY_S: u64 = 30;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/take.lua")));
static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));

/// An answer that is generated once more.
pub struct SecondAnswer {
    /// Its request, under way.
    pub request: Box<ActiveRequest>,
    /// Writes its records.
    pub records: RecordWriter,
    /// Its first records.
    pub first: Vec<Delta>,
}

/// What a replica that takes an answer over has to know of it.
pub struct FirstAnswer {
    /// What its readers know it by.
    pub name: Option<AnswerName>,
    /// What it is generated with from here on.
    pub fence: AnswerFence,
}

/// Begins requests once more: what this part needs of the server around it.
pub trait Successor: Send + Sync {
    /// Whether it can begin any now.
    fn is_ready(&self) -> bool;

    /// Whether it can begin `request`.
    ///
    /// # Errors
    /// When it has no such model.
    fn check(&self, request: &KeptRequest) -> Result<(), ApiError>;

    /// Begins `request`, whose answer was begun as `first`.
    fn begin(
        &self,
        request: KeptRequest,
        first: FirstAnswer,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>>;
}

/// What comes of an answer whose owner has ended.
pub enum Succession {
    /// This replica owns it now.
    Owned(Box<OwnedAnswer>),
    /// It is still another replica's, or there is more of its log.
    Follow(Follower),
    /// It cannot go on here, for this reason.
    Lost(String),
}

/// An answer that was taken over.
pub struct OwnedAnswer {
    /// It, from its beginning.
    pub answer: SecondAnswer,
    /// What the log has of it; `None` if that has nothing.
    pub replay: Option<Replay>,
    /// The owners that the log has had, this one included.
    pub epochs: Epochs,
    /// If it differs from what the log has, it ends with an error: others had no more luck.
    pub is_last: bool,
    /// Takes the rest to the store.
    pub slot: Arc<LogSlot>,
    /// That it is this replica's.
    pub claim: TakeoverClaim,
}

/// An answer that this replica has taken over. Dropped before the answer's task has it, it gives
/// the answer back: a replica that has it and does not generate it would keep all others from it.
pub struct TakeoverClaim {
    logs: Arc<SharedLogs>,
    id: String,
    fence: u64,
    is_kept: bool,
}

impl TakeoverClaim {
    /// The answer's task has it, and tells the store of its end.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for TakeoverClaim {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let (logs, id, fence) = (self.logs.clone(), std::mem::take(&mut self.id), self.fence);
        // Without a runtime this process ends, and the others see that by themselves.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { logs.release(&id, fence, GivenBack::Unused).await });
        }
    }
}

/// What was taken, or could be.
struct TakenAnswer {
    fence: u64,
    request: Vec<u8>,
    epochs: Epochs,
    is_last: bool,
}

/// An answer that could be taken over, as the store has it.
struct Heritage {
    request: KeptRequest,
    name: Option<AnswerName>,
    replay: Option<Replay>,
}

impl SharedLogs {
    /// Takes over the answer with `handle`, whose log ends at `head` and has had the owners of
    /// `epochs`, for its task here.
    pub async fn succeed(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        head: u64,
        epochs: Epochs,
        task: Arc<dyn NewsSink>,
        successor: &dyn Successor,
    ) -> Succession {
        match self.try_succeed(handle, head, task, successor).await {
            Ok(owned) => Succession::Owned(Box::new(owned)),
            Err(Refused::Lost(why)) => Succession::Lost(why),
            // Whoever follows learns what it is: a new owner, more of the log, or again none.
            Err(Refused::NotYet) => {
                let (log, follower) = FollowedLog::new(handle);
                self.follow(log.beginning_at(head, epochs));
                Succession::Follow(follower)
            }
        }
    }

    async fn try_succeed(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        head: u64,
        task: Arc<dyn NewsSink>,
        successor: &dyn Successor,
    ) -> Result<OwnedAnswer, Refused> {
        if !successor.is_ready() {
            return Err(Refused::lost("this replica takes no requests now"));
        }
        // All that can be known before the answer is taken: one that this replica cannot go on with
        // is left to another.
        let looked = self.take(handle, head, TakeMode::Look).await?;
        let heritage = self.inspect(handle, &looked.request).await?;
        successor.check(&heritage.request).map_err(Refused::of)?;
        let taken = self.take(handle, head, TakeMode::Take).await?;
        let TakenAnswer { fence, epochs, is_last, .. } = taken;
        let claim =
            TakeoverClaim { logs: self.clone(), id: handle.id_hex(), fence, is_kept: false };
        let Heritage { request, name, replay } = heritage;
        let first = FirstAnswer { name, fence: AnswerFence(fence) };
        let answer = successor.begin(request, first).await.map_err(Refused::of)?;
        let slot = self.add(LogSlot::new(handle, fence, task).beginning_at(head, &epochs));
        Ok(OwnedAnswer { answer, replay, epochs, is_last, slot, claim })
    }

    /// What there is of an answer whose log ends at `head`, and in the mode [`TakeMode::Take`] the
    /// answer.
    async fn take(
        &self,
        handle: &AnswerHandle,
        head: u64,
        mode: TakeMode,
    ) -> Result<TakenAnswer, Refused> {
        let mut call = SharedConnection::invocation(&TAKE);
        call.arg(handle.id_hex()).arg(self.connection.replica()).arg(mode.name());
        call.arg(REQUEST_BYTES).arg(FENCE_KEPT.as_millis() as u64).arg(head);
        call.arg(rand::random_range(1..=EPOCH_STEP)).arg(position::MAX_EPOCH).arg(DIFFERS_RETRY_S);
        let taken = match self.connection.run(&call).await {
            Ok(value) => reply::taken(StoreReply(value), REQUEST_BYTES),
            // It may have run. Then it does no harm: what is ours and not generated can be taken.
            Err(_) => return Err(Refused::NotYet),
        };
        match taken {
            Ok(Taken::Ours { fence, head: stored, request, epochs, is_last }) if stored == head => {
                Ok(TakenAnswer { fence, request, epochs, is_last })
            }
            // The owner's last word came after its lease was over.
            Ok(Taken::Ours { .. } | Taken::Others) => Err(Refused::NotYet),
            Ok(Taken::Never) => Err(Refused::lost("its store does not have all of it")),
            Ok(Taken::Tried) => Err(Refused::lost("this replica has another answer")),
            Err(error) => Err(Refused::Lost(StoreError::from(error).to_string())),
        }
    }

    /// Reads what there is of an answer with `request`.
    async fn inspect(&self, handle: &AnswerHandle, request: &[u8]) -> Result<Heritage, Refused> {
        let unreadable = || Refused::lost("its request cannot be read");
        let request = kept_request::decode(request).ok_or_else(unreadable)?;
        let mut records = Vec::new();
        let mut take = |bytes: &[u8]| {
            records.extend_from_slice(bytes);
            records.len() <= LOG_BYTES
        };
        match self.load(handle, Position::default(), &mut take).await {
            Ok(Some(_)) => {}
            Ok(None) => return Err(Refused::lost("its log cannot be read")),
            Err(_) => return Err(Refused::NotYet),
        }
        let name = match Delta::decode(&records) {
            Ok(Some((_, Some(Delta::Open { meta })))) => AnswerName::of_meta(&meta),
            _ => None,
        };
        let incomparable = |_| Refused::lost("its log has what cannot be compared");
        let replay = match records.is_empty() {
            true => None,
            false => Some(Replay::of(&records).map_err(incomparable)?),
        };
        Ok(Heritage { request, name, replay })
    }

    /// Gives back the answer `id`, which this replica generates with `fence`, to whoever has a
    /// reader of it.
    pub async fn release(&self, id: &str, fence: u64, why: GivenBack) {
        let mut call = SharedConnection::invocation(&RELEASE);
        call.arg(id).arg(self.connection.replica()).arg(fence).arg(why.name());
        // Where this fails, it is free again when this replica ends, or has a reader of it.
        drop(self.connection.run(&call).await);
    }
}

/// Whether an answer is taken, or looked at.
#[derive(Debug, Clone, Copy)]
enum TakeMode {
    Look,
    Take,
}

impl TakeMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Take => "take",
        }
    }
}

/// Why an answer is not this replica's.
enum Refused {
    /// It may be soon, or somebody else's.
    NotYet,
    /// It cannot be, for this reason.
    Lost(String),
}

impl Refused {
    fn lost(why: &str) -> Self {
        Self::Lost(why.to_owned())
    }

    fn of(error: ApiError) -> Self {
        Self::Lost(error.to_string())
    }
}

#[cfg(test)]
mod tests;
