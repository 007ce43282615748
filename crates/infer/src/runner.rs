//! What the scheduler asks of an engine: a [`Runner`] computes one batch of
//! token spans per call and samples at the end of the spans that ask for it.

use std::ops::Range;

use crate::sampling::{Choice, Sampler};

/// Index of a token in a model's vocabulary.
pub type TokenId = u32;

/// A sequence's place in the runner's KV cache, `0..Capacity::slots`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot as an index into per-slot tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a runner can hold; fixed from load to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that may have KV at once, those kept only as prefixes included.
    pub slots: u16,
    /// KV cells (one per token position) shared by all slots.
    pub kv_cells: u32,
    /// Longest sequence, prompt and completion together, in tokens.
    pub context_tokens: u32,
    /// Most tokens in one [`Batch`].
    pub batch_tokens: u32,
    /// Whether [`Runner::fork`] and a partial [`Runner::truncate`] work
    /// (recurrent and sliding-window models keep no such history).
    pub shares_prefix: bool,
}

/// Consecutive tokens of one sequence inside a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The sequence.
    pub slot: Slot,
    /// Position of the span's first token in its sequence.
    pub start: u32,
    /// The span's tokens, as a range of [`Batch::tokens`].
    pub tokens: Range<usize>,
    /// How many of them, at the end, are guesses to be checked: see [`Runner::checked_rows`].
    pub guessed: usize,
    /// Whether a token is sampled from the logits after the span's last token that is no guess.
    pub sample: bool,
}

/// One native decode: decode rows (spans of one token, and guesses) first, then prefill chunks.
/// A slot occurs at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The tokens of all spans, in order.
    pub tokens: Vec<TokenId>,
    /// The spans, in the order of their tokens.
    pub spans: Vec<Span>,
}

impl Batch {
    /// Appends a span of `tokens` of `slot` from position `start`.
    pub fn push(&mut self, slot: Slot, start: u32, tokens: &[TokenId], sample: bool) {
        debug_assert!(!tokens.is_empty(), "an empty span computes nothing");
        let from = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.spans.push(Span { slot, start, tokens: from..self.tokens.len(), guessed: 0, sample });
    }

    /// Appends guesses of what follows to the last span, which must sample.
    pub fn guess(&mut self, guesses: &[TokenId]) {
        let span = self.spans.last_mut().expect("guesses follow a span");
        debug_assert!(span.sample, "only what is sampled can be guessed");
        self.tokens.extend_from_slice(guesses);
        span.tokens.end += guesses.len();
        span.guessed += guesses.len();
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

/// The outcome of one sampling span.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The span's sequence.
    pub slot: Slot,
    /// The token, or why this sequence alone failed.
    pub outcome: Result<Choice, RowError>,
}

/// One sequence failed; its neighbours in the batch did not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The logits held no finite maximum: broken weights or an overflow.
    #[error("the model produced no usable probabilities (NaN or infinite logits)")]
    NonFiniteLogits,
    /// A constraint (logit bias, grammar) left no token to choose.
    #[error("every token is forbidden by the request's constraints")]
    NothingAllowed,
    /// A part of the engine holds other positions of the sequence than was assumed.
    #[error("the engine has lost its place in this sequence")]
    OutOfStep,
    /// The request's grammar could not be followed further.
    #[error("the answer's grammar cannot be followed: {0}")]
    Constraint(String),
}

/// The whole batch failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// No room in the KV cache. Nothing of the batch was computed; it may be
    /// tried again when sequences have been released.
    #[error("the KV cache is full")]
    CacheFull,
    /// The back end failed; the sequences of this batch are lost, others are not.
    #[error("the engine failed: {0}")]
    Backend(String),
    /// The engine lost all it held: every sequence, every kept prefix, every batch in flight.
    #[error("the engine was lost: {0}")]
    Lost(String),
}

/// Computes batches. All methods are called from one thread.
pub trait Runner: Send {
    /// What the runner can hold.
    fn capacity(&self) -> Capacity;

    /// Installs the sampler with which `slot` samples from now on.
    fn assign(&mut self, slot: Slot, sampler: Sampler);

    /// Computes `batch` and appends one [`Sampled`] per sampling span, in their order, and
    /// more where guesses agreed.
    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError>;

    /// Makes the empty slot `to` share the first `len` positions of `from`.
    fn fork(&mut self, from: Slot, to: Slot, len: u32);

    /// Forgets all positions of `slot` from `len` on; 0 frees it.
    fn truncate(&mut self, slot: Slot, len: u32);

    /// Rows of logits that a batch with guesses may ask for, one per span and one per guess;
    /// `None` where guesses cannot be checked. It may change between batches.
    ///
    /// After a span with guesses one token is sampled as always, and another after each guess
    /// that equals the token sampled before it: so the tokens are those that would have been
    /// sampled without guesses, each from the logits after the tokens before it. All n of
    /// them are appended in order; positions from the n-th guess on hold tokens that were not
    /// chosen, and must be cut off with [`Runner::truncate`] before the sequence goes on.
    fn checked_rows(&self) -> Option<u32> {
        None
    }

    /// The runner's way to compute several batches at once, where it has one.
    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        None
    }
}

/// A runner whose parts work on different batches at the same time. Batches in flight share
/// no sequence. What is asked of the [`Runner`] after a batch was submitted applies to the
/// state after that batch.
pub trait Pipeline {
    /// Most batches that may be in flight now, at least 1; it may change between batches.
    fn groups(&self) -> usize;

    /// Starts to compute `batch`.
    fn submit(&mut self, batch: &Batch) -> Result<(), RunError>;

    /// The outcome of the oldest batch in flight, if it is there, as of [`Runner::run`].
    /// [`RunError::Lost`] comes without a batch in flight too.
    fn try_collect(&mut self, sampled: &mut Vec<Sampled>) -> Option<Result<(), RunError>>;

    /// `wake` is called from any thread whenever [`Pipeline::try_collect`] may have something.
    fn on_arrival(&mut self, wake: Box<dyn Fn() + Send + Sync>);
}
