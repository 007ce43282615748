//! Input and output of the scheduler.

use std::time::Duration;

use crate::runner::RunError;
use crate::sampling::{SampledToken, Sampling};
use crate::tenant::{CacheDomain, Tenant};
use crate::token::{RowError, TokenId};

/// Name of a completion, chosen by the submitter; opaque to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(pub u64);

/// One completion to generate.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Work {
    /// Name of the completion, returned with every [`SequenceEvent`].
    pub tag: Tag,
    /// At least one token, at most the context size minus one.
    pub prompt: Vec<TokenId>,
    /// Maximum tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Temperature, filters, penalties, seed and grammar.
    pub sampling: Sampling,
    /// Report the log-probabilities of the prompt's tokens: `Some(k)` for each token's and those of
    /// the k most likely tokens in its place. Needs [`crate::runner::Runner::score_rows`].
    pub score_prompt: Option<u8>,
    /// Lower values go first; equals in order of arrival.
    pub priority: i32,
    /// Tenant whose share of the engine is used.
    pub tenant: Tenant,
    /// Domain within which prefixes are reused.
    pub cache_domain: CacheDomain,
    /// Number of tokens at the beginning of the prompt whose keys and values a store has: see
    /// [`crate::scheduler::StoreTraffic`].
    pub stored_tokens: u32,
}

/// Number of a [`RestoreOrder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RestoreId(pub u64);

/// A prompt whose beginning is to be read from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreOrder {
    /// Its number.
    pub id: RestoreId,
    /// Domain of the tokens.
    pub domain: CacheDomain,
    /// The beginning of the prompt that the store is said to have.
    pub tokens: Vec<TokenId>,
    /// Number of tokens that the cache has.
    pub cached: u32,
}

/// Reason why a completion ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model chose an end token.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
    /// The completion waited longer in the queue than the operator allows.
    Expired,
    /// The engine failed with this error.
    Failed(String),
    /// The request's own grammar or logit bias allows no further token, with the reason. The same
    /// request would end in the same way.
    Unsatisfiable(String),
    /// The engine was lost or held up and could not go on in time, with the reason. The same
    /// request may succeed later.
    Abandoned(String),
}

impl From<&RunError> for Finish {
    fn from(error: &RunError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<&RowError> for Finish {
    fn from(error: &RowError) -> Self {
        match error {
            RowError::NothingAllowed | RowError::Constraint(_) => {
                Self::Unsatisfiable(error.to_string())
            }
            RowError::TooSlow => Self::Abandoned(error.to_string()),
            RowError::NonFiniteLogits | RowError::OutOfStep => Self::Failed(error.to_string()),
        }
    }
}

/// Admission of a completion to the batch; reported with its first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Time of admission, on the clock of [`crate::scheduler::Scheduler::plan`].
    pub at: Duration,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
}

/// Effect of one step on one completion: a token, an end, or both.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceEvent {
    /// The completion's tag, from its [`Work`].
    pub tag: Tag,
    /// The new token, which may be the end token.
    pub token: Option<SampledToken>,
    /// The prompt's next tokens with their log-probabilities, if requested; the first token of a
    /// prompt has none.
    pub scores: Option<Box<[SampledToken]>>,
    /// Set on the last event.
    pub finish: Option<Finish>,
    /// Set on the first event of a completion that was computed at all.
    pub admitted: Option<Admitted>,
    /// Time from when this sequence's work was ready to the start of the native call.
    pub wait: Duration,
}

/// Outcome of one native decode for all its sequences.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// When the native call began.
    pub started: Duration,
    /// When its results were committed.
    pub finished: Duration,
    /// Sequences in the batch.
    pub rows: u32,
    /// Tokens of prefill chunks in the batch.
    pub prefill_tokens: u32,
    /// Sequences whose prompts had a part in the batch.
    pub prefills: u32,
    /// Events in batch order, at most one per row and accepted draft token.
    pub events: Vec<SequenceEvent>,
    /// True if the engine was lost: its sequences are put back and continue once it recovers.
    pub was_lost: bool,
    /// Progress of the prompts; set now and then, and only while any prompt waits or is being
    /// computed.
    pub standing: Option<Box<QueueStanding>>,
}

/// Progress of completions whose prompts are not computed yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStanding {
    /// Places in the batch.
    pub places: usize,
    /// Prompt tokens allowed in a step with answers.
    pub shared_tokens: u32,
    /// Prompt tokens allowed in a step without answers.
    pub prefill_tokens: u32,
    /// Completions without a place, in the order in which they are due for one.
    pub waiting: Vec<Tag>,
    /// Completions with a place, in the order in which they got it.
    pub computing: Vec<PrefillProgress>,
}

/// Progress of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillProgress {
    /// Name of the completion.
    pub tag: Tag,
    /// Tokens found in the prefix cache.
    pub cached: u32,
    /// Tokens in the cache now, including those found.
    pub known: u32,
}
