//! The interface between scheduler and engine: a [`Runner`] computes one batch of token spans
//! per call and samples at the end of the spans that ask for it.

use std::ops::Range;
use std::sync::Arc;

use crate::sampling::{SampledToken, Sampler};
use crate::token::{RowError, TokenId};

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
    /// Sequences that may have KV at once, kept prefixes included.
    pub slots: u16,
    /// KV cells (one per token position) shared by all slots.
    pub kv_cells: u32,
    /// Longest sequence, prompt and completion together, in tokens.
    pub context_tokens: u32,
    /// Most tokens in one [`Batch`].
    pub batch_tokens: u32,
    /// Whether [`Runner::fork`] and a partial [`Runner::truncate`] work, where [`Runner::holds`]
    /// says so (recurrent models keep no such history).
    pub shares_prefix: bool,
}

/// Consecutive tokens of one sequence inside a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The slot of the sequence.
    pub slot: Slot,
    /// Position of the span's first token in its sequence.
    pub start: u32,
    /// The span's tokens, as a range of [`Batch::tokens`].
    pub tokens: Range<usize>,
    /// How many of them, at the end, are draft tokens to be verified: see [`Runner::verify_rows`].
    pub draft: usize,
    /// Whether a token is sampled from the logits after the span's last token before the draft.
    pub sample: bool,
}

/// Tokens of a prompt whose log-probabilities are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scores {
    /// The span behind whose tokens they come, by its number.
    pub span: usize,
    /// How many of the most likely tokens to give beside each.
    pub top: u8,
    /// The token behind each of the span's. Behind the last of a prompt comes what is sampled, so
    /// there may be one less.
    pub targets: Vec<TokenId>,
}

/// One native decode: decode rows (spans of one token and its draft) first, then prefill chunks.
/// A slot occurs at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The tokens of all spans, in order.
    pub tokens: Vec<TokenId>,
    /// The spans, in the order of their tokens.
    pub spans: Vec<Span>,
    /// What is to be scored, in the order of the spans.
    pub scores: Vec<Scores>,
}

impl Batch {
    /// Appends a span of `tokens` of `slot` from position `start`.
    pub fn push(&mut self, slot: Slot, start: u32, tokens: &[TokenId], sample: bool) {
        debug_assert!(!tokens.is_empty(), "an empty span computes nothing");
        let from = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.spans.push(Span { slot, start, tokens: from..self.tokens.len(), draft: 0, sample });
    }

    /// Appends draft tokens to the last span, which must sample.
    pub fn push_draft(&mut self, draft: &[TokenId]) {
        let span = self.spans.last_mut().expect("a draft follows a span");
        debug_assert!(span.sample, "only a span that samples can verify a draft");
        self.tokens.extend_from_slice(draft);
        span.tokens.end += draft.len();
        span.draft += draft.len();
    }

    /// Has `targets`, the tokens behind those of the last span, scored: see [`Runner::score_rows`].
    pub fn push_scores(&mut self, top: u8, targets: &[TokenId]) {
        let span = self.spans.len() - 1;
        debug_assert!(
            targets.len() <= self.spans[span].tokens.len() && self.spans[span].draft == 0
        );
        self.scores.push(Scores { span, top, targets: targets.to_vec() });
    }

    /// What is to be scored behind the tokens of the span of this number.
    pub fn scores_of(&self, span: usize) -> Option<&Scores> {
        self.scores.iter().find(|scores| scores.span == span)
    }

    /// Rows of logits that the span of this number needs.
    pub fn rows_of(&self, span: usize) -> usize {
        match self.scores_of(span) {
            Some(_) => self.spans[span].tokens.len(),
            None => 1 + self.spans[span].draft,
        }
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.scores.clear();
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

/// The outcome of one sampling span.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The slot of the span's sequence.
    pub slot: Slot,
    /// The token, or why this sequence alone failed.
    pub outcome: Result<SampledToken, RowError>,
}

/// The whole batch failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// No room in the KV cache. Nothing of the batch was computed; it may be
    /// tried again after sequences were freed.
    #[error("the KV cache is full")]
    CacheFull,
    /// The back end failed; the sequences of this batch are lost, others are not.
    #[error("the engine failed: {0}")]
    Backend(String),
    /// The engine lost all it held: every sequence, every kept prefix, every batch in flight. It is
    /// given no batch until [`Runner::poll_recovery`] says that it is back.
    #[error("the engine was lost: {0}")]
    Lost(String),
}

/// Whether an engine that was lost computes again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// It is back, and holds nothing.
    Ready,
    /// Not yet; the text is what is the matter.
    Pending(String),
    /// It will not come back by itself; the text says why.
    Never(String),
}

/// What an embedder can hold; fixed from load to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedderCapacity {
    /// Inputs that may be in progress at once.
    pub slots: u16,
    /// Tokens of all inputs in progress together.
    pub cells: u32,
    /// Longest input in tokens.
    pub input_tokens: u32,
    /// Most tokens in one batch; at least `input_tokens` unless inputs come in parts.
    pub batch_tokens: u32,
    /// Whether an input may be computed in parts, one after the other. Not so where every token
    /// attends to all others.
    pub in_parts: bool,
    /// Numbers of a vector.
    pub width: u32,
}

/// Turns inputs into vectors. All methods are called from one thread.
pub trait Embedder: Send {
    /// The sizes of this embedder, which do not change.
    fn capacity(&self) -> EmbedderCapacity;

    /// Computes `batch` and appends the vector of each span that samples, in their order: such a
    /// span is the last of its input, whose slot is empty afterwards. Vectors have any length.
    ///
    /// # Errors
    /// [`RunError`] when the whole batch failed; the slots of its spans are empty then.
    fn embed(&mut self, batch: &Batch, vectors: &mut Vec<Vec<f32>>) -> Result<(), RunError>;

    /// Forgets what was computed in `slot`.
    fn clear(&mut self, slot: Slot);
}

/// What a runner does; fixed from load to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerAbilities {
    /// Whether it continues texts.
    pub generates: bool,
    /// Whether it gives the log-probabilities of prompts' tokens.
    pub scores_prompts: bool,
    /// Whether it turns texts into vectors, and which.
    pub embeds: Option<EmbedderCapacity>,
}

/// Ends, from another thread, what a runner is doing: see [`Runner::interrupt`].
pub type Interrupt = Arc<dyn Fn(&str) + Send + Sync>;

/// Computes batches. All methods are called from one thread.
pub trait Runner: Send {
    /// The sizes of this runner, which do not change.
    fn capacity(&self) -> Capacity;

    /// Installs the sampler with which `slot` samples from now on.
    fn assign(&mut self, slot: Slot, sampler: Sampler);

    /// Computes `batch` and appends one [`Sampled`] per sampling span, in their order, and one
    /// more for each draft token that was accepted.
    ///
    /// # Errors
    /// [`RunError`] when the whole batch failed; nothing of it may be taken from `sampled` then.
    /// A failure of one sequence is no error here: it is in that sequence's [`Sampled`].
    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError>;

    /// After [`RunError::Lost`]: whether batches can be computed again. Does not block, and is
    /// asked again until it is so; slots are empty then and have no samplers.
    fn poll_recovery(&mut self) -> Recovery {
        Recovery::Ready
    }

    /// What ends a call that hangs, with the reason for it: such a call of [`Runner::run`] then
    /// returns [`RunError::Lost`]. Without a call under way the next batch is lost. `None` where
    /// nothing but the end of this process would help.
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }

    /// Whether `slot` can be sampled without a long wait, for its grammar's mask for example. Spans
    /// of slots that are not ready should not sample. Does not block.
    fn is_ready(&mut self, _slot: Slot) -> bool {
        true
    }

    /// Whether a sequence can go on from the first `len` positions of `slot`: all that it attends
    /// to then is still there. Asked before a fork or a cut of a runner that
    /// [shares prefixes](Capacity::shares_prefix); a slot's own end is always held.
    fn holds(&self, _slot: Slot, _len: u32) -> bool {
        true
    }

    /// Whether [`Runner::holds`] is true of all that was computed. Fixed from load to drop.
    fn holds_all(&self) -> bool {
        true
    }

    /// Makes the empty slot `to` share the first `len` positions of `from`.
    fn fork(&mut self, from: Slot, to: Slot, len: u32);

    /// Forgets all positions of `slot` from `len` on; 0 frees it.
    fn truncate(&mut self, slot: Slot, len: u32);

    /// Most rows of logits in a batch with draft tokens: one per span and one per draft token.
    /// `None` if this runner cannot verify drafts. It may change between batches.
    ///
    /// A span with a draft samples one token as always, and one more after each draft token
    /// that equals the token sampled before it. So the tokens are those that would have been
    /// sampled without a draft, each from the logits after the tokens before it. All n of them
    /// are appended in order. Positions from the n-th draft token on hold rejected tokens and
    /// must be cut off with [`Runner::truncate`] before the sequence goes on.
    fn verify_rows(&self) -> Option<u32> {
        None
    }

    /// Most rows of logits in a batch with scored prompts: one per token of a scored span, and one
    /// for each other span. `None` if this runner cannot score prompts.
    ///
    /// [`Runner::run`] appends a [`Sampled`] for each of the span's targets, with that token and
    /// its log-probabilities, before what the span samples; or one with an error.
    fn score_rows(&self) -> Option<u32> {
        None
    }

    /// Its way to turn texts into vectors, if it has one.
    fn embedder(&mut self) -> Option<&mut dyn Embedder> {
        None
    }

    /// What it does. One that continues no texts must never be given a batch.
    fn abilities(&mut self) -> RunnerAbilities {
        let embeds = self.embedder().map(|embedder| embedder.capacity());
        RunnerAbilities { generates: true, scores_prompts: self.score_rows().is_some(), embeds }
    }

    /// This runner as a [`Pipeline`], if it can compute several batches at once.
    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        None
    }
}

/// A runner whose parts work on different batches at the same time. Batches in flight share
/// no sequence. A call of the [`Runner`] after a batch was submitted applies to the state
/// after that batch.
pub trait Pipeline {
    /// Most batches that may be in flight now, at least 1; it may change between batches.
    fn depth(&self) -> usize;

    /// Starts to compute `batch`.
    ///
    /// # Errors
    /// [`RunError`] when the batch cannot be started; it is not in flight then.
    fn submit(&mut self, batch: &Batch) -> Result<(), RunError>;

    /// The outcome of the oldest batch in flight, as of [`Runner::run`]; `None` while it is
    /// still computing. [`RunError::Lost`] may also come while no batch is in flight.
    fn try_collect(&mut self, sampled: &mut Vec<Sampled>) -> Option<Result<(), RunError>>;

    /// Registers `wake`, which is called from any thread when [`Pipeline::try_collect`] may
    /// return something.
    fn on_arrival(&mut self, wake: Box<dyn Fn() + Send + Sync>);
}
