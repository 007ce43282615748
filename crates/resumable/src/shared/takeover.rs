//! Takes over an answer whose owner has ended: this replica becomes its owner, generates it again,
//! and continues after the part that the store has.
//!
//! The random seed is kept with the request, so the second answer equals the first if the engine is
//! deterministic. It is compared with everything in the log ([`Replay`]). If it differs, another
//! replica may have more luck; the third one ends the answer with an error, because no other end
//! would be consistent.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use loquent_proto::{AnswerHandle, Delta, Position, Replay, position};
use redis::Script;

use super::epochs::Epochs;
use super::followed::{FollowedLog, Follower};
use super::kept_request::{self, REQUEST_BYTES, ReplayableRequest};
use super::logs::{SharedLogs, until_answered};
use super::offers::TakeoverOffer;
use super::reply::{self, Taken};
use super::slot::LogSlot;
use super::state::{GivenBack, NewsSink};
use crate::generation::Generation;
use loquent_serving::active_request::ActiveRequest;
use loquent_serving::api::head::AnswerName;
use loquent_serving::api::request::StreamParams;
use loquent_serving::error::ApiError;
use loquent_serving::records::RecordContext;
use loquent_store::shared::connection::SharedConnection;
use loquent_store::shared::objects::FENCE_KEPT;
use loquent_store::shared::reply::StoreReply;
use loquent_store::{AnswerFence, StoreError};

/// Maximum bytes of a log to compare with.
const LOG_BYTES: usize = 4 << 20;
/// Part of the numbers left among which the number of the next epoch is drawn. It is random: after
/// the store has lost a takeover, the next one gets another number, in all but one of 16,384 cases.
/// For more than a hundred owners there are numbers left.
const EPOCH_PART: u64 = 8;
/// Time for which a replica with another answer leaves this one to the others, in seconds.
const DIFFERS_RETRY_S: u64 = 30;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/take.lua")));
static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));

/// An answer being generated again.
pub struct SecondAnswer {
    /// Its generation.
    pub generation: Generation,
    /// First records of the answer.
    pub first: Vec<Delta>,
}

impl SecondAnswer {
    /// Starts the generation of the answer to `request`.
    pub fn open(request: ActiveRequest, context: &RecordContext<'_>) -> Self {
        let mut first = Vec::new();
        let generation = Generation::open(request, context, &mut |delta| first.push(delta));
        Self { generation, first }
    }
}

/// Facts about an answer for the replica that takes it over.
pub struct FirstAnswer {
    /// Name by which readers know the answer.
    pub name: Option<AnswerName>,
    /// Fence with which the answer is generated from here on.
    pub fence: AnswerFence,
    /// Streaming parameters in place of those of the request, if any.
    pub stream: Option<StreamParams>,
    /// Tokens of the answer that its owners have counted so far.
    pub tokens: u64,
}

/// Starts requests again: the interface to the rest of the server.
pub trait TakeoverStarter: Send + Sync {
    /// Returns true if requests can be started now.
    fn is_ready(&self) -> bool;

    /// Returns the models with which requests can be started now.
    fn offers(&self) -> Vec<TakeoverOffer>;

    /// Checks that `request` can be started.
    ///
    /// # Errors
    /// When there is no such model.
    fn check(&self, request: &ReplayableRequest) -> Result<(), ApiError>;

    /// Starts `request`, whose original answer is `first`.
    fn begin(
        &self,
        request: ReplayableRequest,
        first: FirstAnswer,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>>;
}

/// Outcome for an answer whose owner has ended.
pub enum TakeoverOutcome {
    /// This replica owns the answer now.
    Owned(Box<OwnedAnswer>),
    /// The answer still belongs to another replica, or there is more of its log.
    Follow(Follower),
    /// The answer cannot continue here, for this reason.
    Lost(String),
}

/// An answer that was taken over.
pub struct OwnedAnswer {
    /// The answer, generated from its beginning.
    pub answer: SecondAnswer,
    /// Content of the log to compare with; `None` if the log is empty.
    pub replay: Option<Replay>,
    /// Owners that the log has had, including this one.
    pub epochs: Epochs,
    /// True if the answer ends with an error should it differ from the log: other replicas had no
    /// more luck.
    pub is_last: bool,
    /// Queue of the rest for the store.
    pub slot: Arc<LogSlot>,
    /// This replica's claim to the answer.
    pub claim: TakeoverClaim,
}

/// The claim to an answer that this replica has taken over. If dropped before the answer's task has
/// it, for example because the client left, the answer is given back: an owner that does not
/// generate the answer would keep all others from it.
pub struct TakeoverClaim(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl TakeoverClaim {
    /// Creates a claim that `give_back` gives up.
    pub fn new(give_back: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(give_back)))
    }

    /// Keeps the answer: its task has it, and tells the store of its end.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for TakeoverClaim {
    fn drop(&mut self) {
        let Some(give_back) = self.0.take() else { return };
        // Without a runtime this process ends, and the others see that by themselves.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(give_back);
        }
    }
}

/// Returns the name that an answer with the records `log` has for its readers.
pub fn name_in(log: &[u8]) -> Option<AnswerName> {
    match Delta::decode(log) {
        Ok(Some((_, Some(Delta::Open { meta })))) => AnswerName::of_meta(&meta),
        _ => None,
    }
}

/// Returns the number of tokens that the records `log` have.
pub fn tokens_in(log: &[u8]) -> u64 {
    let (mut at, mut tokens) = (0, 0);
    while let Ok(Some((len, delta))) = Delta::decode(&log[at..]) {
        tokens += delta.map_or(0, |delta| u64::from(delta.tokens()));
        at += len;
    }
    tokens
}

/// An answer that was taken over, or could be.
struct TakenAnswer {
    fence: u64,
    request: Vec<u8>,
    epochs: Epochs,
    is_last: bool,
}

/// The stored data of an answer that could be taken over.
struct Heritage {
    request: ReplayableRequest,
    name: Option<AnswerName>,
    tokens: u64,
    replay: Option<Replay>,
}

impl SharedLogs {
    /// Takes over the answer with `handle` for its task here. Its log ends at `head` and has had
    /// the owners of `epochs`.
    pub async fn succeed(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        head: u64,
        epochs: Epochs,
        task: Arc<dyn NewsSink>,
        successor: &dyn TakeoverStarter,
    ) -> TakeoverOutcome {
        match self.try_succeed(handle, head, &epochs, task, successor).await {
            Ok(owned) => TakeoverOutcome::Owned(Box::new(owned)),
            Err(Refused::Lost(why)) => TakeoverOutcome::Lost(why),
            // Whoever follows learns what it is: a new owner, more of the log, or again none.
            Err(Refused::NotYet) => {
                let (log, follower) = FollowedLog::new(handle);
                self.follow(log.beginning_at(head, epochs));
                TakeoverOutcome::Follow(follower)
            }
        }
    }

    async fn try_succeed(
        self: &Arc<Self>,
        handle: &AnswerHandle,
        head: u64,
        epochs: &Epochs,
        task: Arc<dyn NewsSink>,
        successor: &dyn TakeoverStarter,
    ) -> Result<OwnedAnswer, Refused> {
        if !successor.is_ready() {
            return Err(Refused::lost("this replica takes no requests now"));
        }
        // All that can be known before the answer is taken: one that this replica cannot go on with
        // is left to another.
        let TakenAnswer { request: kept, .. } =
            self.take(handle, head, epochs, TakeMode::Look).await?;
        let heritage = self.inspect(handle, &kept).await?;
        successor.check(&heritage.request).map_err(Refused::of)?;
        let taken = self.take(handle, head, epochs, TakeMode::Take).await?;
        let TakenAnswer { fence, epochs, is_last, .. } = taken;
        let (logs, id) = (self.clone(), handle.id_hex());
        let give_back = async move { logs.give_back(&id, fence, GivenBack::Unused).await };
        let claim = TakeoverClaim::new(give_back);
        let Heritage { request, name, tokens, replay } = heritage;
        let first = FirstAnswer { name, fence: AnswerFence(fence), stream: None, tokens };
        let answer = successor.begin(request, first).await.map_err(Refused::of)?;
        // With its request, for a store that loses the answer and gets it again from here.
        let slot = LogSlot::new(handle, fence, task).with_request(kept.into());
        let slot = self.add(slot.beginning_at(head, &epochs));
        Ok(OwnedAnswer { answer, replay, epochs, is_last, slot, claim })
    }

    /// Looks at an answer whose log ends at `head` and has had the owners of `epochs`, as far as is
    /// known here; in the mode [`TakeMode::Take`], takes it over.
    async fn take(
        &self,
        handle: &AnswerHandle,
        head: u64,
        epochs: &Epochs,
        mode: TakeMode,
    ) -> Result<TakenAnswer, Refused> {
        let mut call = SharedConnection::invocation(&TAKE);
        call.arg(handle.id_hex()).arg(self.connection.replica()).arg(mode.name());
        call.arg(REQUEST_BYTES).arg(FENCE_KEPT.as_millis() as u64).arg(head);
        // The first owners draw from most numbers: answers have few.
        let left = position::MAX_EPOCH.saturating_sub(epochs.current());
        call.arg(self.connection.entropy().draw_in(1..=(left / EPOCH_PART).max(1)));
        call.arg(position::MAX_EPOCH).arg(DIFFERS_RETRY_S);
        call.arg(epochs.to_text());
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

    /// Reads the stored data of an answer with `request`.
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
        let (name, tokens) = (name_in(&records), tokens_in(&records));
        let incomparable = |_| Refused::lost("its log has what cannot be compared");
        let replay = match records.is_empty() {
            true => None,
            false => Some(Replay::of(&records).map_err(incomparable)?),
        };
        Ok(Heritage { request, name, tokens, replay })
    }

    /// Gives back the answer `id`, which this replica has taken over with `fence`, to any replica
    /// that has a reader of it. Returns once the store has answered.
    pub async fn give_back(&self, id: &str, fence: u64, why: GivenBack) {
        // Until then its other readers would wait for a replica that does not generate it.
        until_answered(|| self.release(id, fence, why)).await;
    }

    /// Tries to give an answer back, like [`Self::give_back`].
    ///
    /// # Errors
    /// When the store cannot be used: the answer is then free when this replica ends, or has a
    /// reader of it.
    pub async fn release(&self, id: &str, fence: u64, why: GivenBack) -> Result<(), StoreError> {
        let mut call = SharedConnection::invocation(&RELEASE);
        call.arg(id).arg(self.connection.replica()).arg(fence).arg(why.name());
        self.connection.run(&call).await.map(drop)
    }
}

/// Mode of an attempt to take over an answer.
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

/// Reason why an answer does not belong to this replica.
enum Refused {
    /// The answer may be available soon, or belong to another replica.
    NotYet,
    /// The answer cannot be taken over here, for this reason.
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
