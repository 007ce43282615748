//! What goes into the scheduler and what comes out of it.

use std::time::Duration;

use crate::sampling::{SampledToken, Sampling};
use crate::tenant::{CacheDomain, Tenant};
use crate::token::TokenId;

/// A name that the submitter gives to a completion; opaque to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(pub u64);

/// One completion to generate.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Work {
    /// Returned with every [`SequenceEvent`].
    pub tag: Tag,
    /// At least one token, at most the context's size less one.
    pub prompt: Vec<TokenId>,
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Temperature, filters, penalties, seed and grammar.
    pub sampling: Sampling,
    /// Report the log-probabilities of the prompt's tokens: `Some(k)` for those of each token and
    /// of the k most likely in its place. Needs [`crate::runner::Runner::score_rows`].
    pub score_prompt: Option<u8>,
    /// Lower goes first; equals in order of arrival.
    pub priority: i32,
    /// Whose share of the engine it takes.
    pub tenant: Tenant,
    /// Whose prefixes it may reuse, and who may reuse its own.
    pub cache_domain: CacheDomain,
}

/// Why a completion ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model chose an end token.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
    /// It waited longer in the queue than the operator allows.
    Expired,
    /// The engine failed; the text is the error.
    Failed(String),
    /// The engine was lost and did not come back in time; the text says why. The same request may
    /// succeed later.
    Abandoned(String),
}

/// How a completion entered the batch; reported with its first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// When, on the clock of [`crate::scheduler::Scheduler::plan`].
    pub at: Duration,
    /// Prompt tokens that the prefix cache held.
    pub cached_tokens: u32,
}

/// What one step did to one completion: a token, an end, or both.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceEvent {
    /// The completion's tag, from its [`Work`].
    pub tag: Tag,
    /// The new token, the ending one included.
    pub token: Option<SampledToken>,
    /// The prompt's next tokens with their log-probabilities, where they are wanted; its first
    /// token has none.
    pub scores: Option<Box<[SampledToken]>>,
    /// Set on the last event.
    pub finish: Option<Finish>,
    /// Set on the first event of a completion that was computed at all.
    pub admitted: Option<Admitted>,
    /// From when this sequence's work was ready to when the native call began.
    pub wait: Duration,
}

/// The outcome of one native decode for all its sequences, handed over at once.
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
    /// At most one per row and accepted draft token, in batch order.
    pub events: Vec<SequenceEvent>,
    /// The engine was lost: what it computed is put back and goes on when it is back.
    pub was_lost: bool,
    /// Now and then, and only while any prompt waits or is being computed.
    pub standing: Option<Box<Standing>>,
}

/// Where the completions stand whose prompts are not computed yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Places in the batch.
    pub places: usize,
    /// Prompt tokens that a step with answers may have.
    pub shared_tokens: u32,
    /// Prompt tokens that a step without answers may have.
    pub prefill_tokens: u32,
    /// Those without a place, in the order in which they are due for one.
    pub waiting: Vec<Tag>,
    /// Those with a place, in the order in which they got it.
    pub computing: Vec<PromptStanding>,
}

/// How much of a prompt is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptStanding {
    /// Its completion.
    pub tag: Tag,
    /// Tokens that the prefix cache held.
    pub cached: u32,
    /// Tokens in the cache now, those included.
    pub known: u32,
}
