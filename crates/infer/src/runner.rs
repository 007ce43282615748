//! Interface between scheduler and engine: a [`Runner`] computes one batch of token spans per call
//! and samples at the end of the spans that ask for it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Capacity of a runner; fixed from load to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum sequences that have KV at once, kept prefixes included.
    pub slots: u16,
    /// KV cells (one per token position) shared by all slots.
    pub kv_cells: u32,
    /// Maximum tokens of a sequence, prompt and completion together.
    pub context_tokens: u32,
    /// Maximum tokens in one [`Batch`].
    pub batch_tokens: u32,
    /// True if [`Runner::fork`] and a partial [`Runner::truncate`] work, given that
    /// [`Runner::holds`] returns true (recurrent models keep no such history).
    pub shares_prefix: bool,
}

/// KV cells for each slot of a cache that all share: a usual prompt, and the answer up to where its
/// reader has text in hand.
const CELLS_PER_SLOT: u32 = 256;

/// Maximum slots by the size of the cache: one less than the sequences that llama.cpp has, since
/// the prefix cache on disk needs one.
const MOST_SLOTS: u16 = 255;

impl Capacity {
    /// Returns the slots of a cache of `kv_cells` that all share: twice the places of the batch, so
    /// that prefixes are kept and answers may rest, and more if there are cells for more.
    pub fn shared_slots(max_batch_size: u16, kv_cells: u32) -> u16 {
        // A slot without cells would only evict the prefix of another.
        let by_cells = (kv_cells / CELLS_PER_SLOT).min(MOST_SLOTS.into()) as u16;
        by_cells.max(max_batch_size.saturating_mul(2))
    }
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
    /// Number of its last tokens that are a draft to be verified: see [`Runner::verify_rows`].
    pub draft: usize,
    /// True if a token is sampled from the logits after the span's last token before the draft.
    pub sample: bool,
}

/// Prompt tokens whose log-probabilities are requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scores {
    /// Index of the span that these tokens follow.
    pub span: usize,
    /// Number of most likely tokens to report for each.
    pub top: u8,
    /// The token after each one of the span. The last token of a prompt is followed by the sampled
    /// one, so there may be one fewer.
    pub targets: Vec<TokenId>,
}

/// Keys and values of consecutive positions of a sequence, taken out of a runner's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedSpan {
    /// The positions.
    pub positions: Range<u32>,
    /// Their keys and values, in a form of the runner's own.
    pub state: Vec<u8>,
}

/// One native decode: decode rows (spans of one token and its draft) first, then prefill chunks. A
/// slot occurs at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Tokens of all spans, in order.
    pub tokens: Vec<TokenId>,
    /// The spans, in the order of their tokens.
    pub spans: Vec<Span>,
    /// Tokens to score, in the order of the spans.
    pub scores: Vec<Scores>,
    /// True if the batch may be given up when somebody else comes: see [`Preemption`].
    pub is_spare: bool,
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

    /// Requests scores for `targets`, the tokens that follow those of the last span: see
    /// [`Runner::score_rows`].
    pub fn push_scores(&mut self, top: u8, targets: &[TokenId]) {
        let span = self.spans.len() - 1;
        debug_assert!(
            targets.len() <= self.spans[span].tokens.len() && self.spans[span].draft == 0
        );
        self.scores.push(Scores { span, top, targets: targets.to_vec() });
    }

    /// Tokens to score for the span with this index.
    pub fn scores_of(&self, span: usize) -> Option<&Scores> {
        self.scores.iter().find(|scores| scores.span == span)
    }

    /// Rows of logits needed by the span with this index.
    pub fn rows_of(&self, span: usize) -> usize {
        match self.scores_of(span) {
            Some(_) => self.spans[span].tokens.len(),
            None => 1 + self.spans[span].draft,
        }
    }

    /// Empties the batch without freeing its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.scores.clear();
        self.is_spare = false;
    }

    /// Returns true if there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

/// Outcome of one sampling span.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Slot of the span's sequence.
    pub slot: Slot,
    /// The token, or the error if only this sequence failed.
    pub outcome: Result<SampledToken, RowError>,
}

/// Failure of the whole batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// No room in the KV cache. Nothing of the batch was computed; it may be retried after
    /// sequences were freed.
    #[error("the KV cache is full")]
    CacheFull,
    /// The batch was given up for somebody else: see [`Preemption`]. Nothing of it was computed,
    /// and it may be retried.
    #[error("the batch was given up for others")]
    Preempted,
    /// The back end failed; the sequences of this batch are lost, others are not.
    #[error("the engine failed: {0}")]
    Backend(String),
    /// The engine lost its whole state: every sequence, kept prefix and batch in flight. It gets no
    /// batch until [`Runner::poll_recovery`] returns [`Recovery::Ready`].
    #[error("the engine was lost: {0}")]
    Lost(String),
}

/// Recovery state of an engine that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// The engine is back, and empty.
    Ready,
    /// Not yet, with the reason.
    Pending(String),
    /// The engine will not come back by itself, with the reason.
    Never(String),
}

/// Capacity of an embedder; fixed from load to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedderCapacity {
    /// Maximum inputs in progress at once.
    pub slots: u16,
    /// Maximum tokens of all inputs in progress together.
    pub cells: u32,
    /// Maximum tokens of one input.
    pub input_tokens: u32,
    /// Maximum tokens in one batch; at least `input_tokens` unless `in_parts`.
    pub batch_tokens: u32,
    /// True if an input may be computed in successive parts. False if every token attends to all
    /// others.
    pub in_parts: bool,
    /// Numbers in a vector.
    pub width: u32,
}

/// Converts inputs to vectors. All methods are called from one thread.
pub trait Embedder: Send {
    /// Capacity of this embedder, which does not change.
    fn capacity(&self) -> EmbedderCapacity;

    /// Computes `batch` and appends the vector of each span that samples, in order. Such a span is
    /// the last of its input, whose slot is then empty. Vectors are not normalized.
    ///
    /// # Errors
    /// [`RunError`] if the whole batch failed; the slots of its spans are then empty.
    fn embed(&mut self, batch: &Batch, vectors: &mut Vec<Vec<f32>>) -> Result<(), RunError>;

    /// Discards everything computed in `slot`.
    fn clear(&mut self, slot: Slot);
}

/// Abilities of a runner; fixed from load to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerAbilities {
    /// True if it generates text.
    pub generates: bool,
    /// True if it computes the log-probabilities of prompt tokens.
    pub scores_prompts: bool,
    /// Capacity of its embedder, if it has one.
    pub embeds: Option<EmbedderCapacity>,
}

/// Request, from another thread, to give up the current batch if it is
/// [spare](Batch::is_spare): see [`Runner::preemption`].
#[derive(Debug, Clone, Default)]
pub struct Preemption(Arc<AtomicBool>);

impl Preemption {
    /// Asks for it, until [`Preemption::withdraw`] is called.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Takes all requests so far back.
    pub fn withdraw(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Returns true if it has been asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Aborts, from another thread, the current call of a runner: see [`Runner::interrupt`].
pub type Interrupt = Arc<dyn Fn(&str) + Send + Sync>;

/// Computes batches. All methods are called from one thread.
pub trait Runner: Send {
    /// Capacity of this runner, which does not change.
    fn capacity(&self) -> Capacity;

    /// Sets the sampler that `slot` uses from now on.
    fn assign(&mut self, slot: Slot, sampler: Sampler);

    /// Computes `batch` and appends one [`Sampled`] per sampling span, in order, and one more for
    /// each accepted draft token.
    ///
    /// # Errors
    /// [`RunError`] if the whole batch failed; `sampled` must then be ignored. The failure of one
    /// sequence is not an error here, but is reported in that sequence's [`Sampled`].
    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError>;

    /// Returns, after [`RunError::Lost`], whether batches can be computed again. Does not block,
    /// and is called again until it returns [`Recovery::Ready`]; slots are then empty and have no
    /// samplers.
    fn poll_recovery(&mut self) -> Recovery {
        Recovery::Ready
    }

    /// Returns a function that aborts a hanging call, given the reason. That call of
    /// [`Runner::run`] then returns [`RunError::Lost`]; if no call is running, the next batch is
    /// lost. `None` if only ending this process would help.
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }

    /// Returns the means to have a [spare](Batch::is_spare) batch given up, which then fails with
    /// [`RunError::Preempted`]; `None` if this runner completes every batch. Fixed from load to
    /// drop.
    fn preemption(&self) -> Option<Preemption> {
        None
    }

    /// Returns true if `slot` can be sampled without a long wait, such as for its grammar's mask.
    /// Spans of slots that are not ready should not sample. Does not block.
    fn is_ready(&mut self, _slot: Slot) -> bool {
        true
    }

    /// Returns true if a sequence can continue from the first `len` positions of `slot`, because
    /// everything that it attends to is still there. Called before a fork or a cut of a runner that
    /// [shares prefixes](Capacity::shares_prefix); a slot's own end is always held.
    fn holds(&self, _slot: Slot, _len: u32) -> bool {
        true
    }

    /// Returns true if [`Runner::holds`] is true of everything that was computed. Fixed from load
    /// to drop.
    fn holds_all(&self) -> bool {
        true
    }

    /// Makes the empty slot `to` share the first `len` positions of `from`.
    fn fork(&mut self, from: Slot, to: Slot, len: u32);

    /// Drops all positions of `slot` from `len` on; 0 frees it.
    fn truncate(&mut self, slot: Slot, len: u32);

    /// Returns true if [`Runner::save`] and [`Runner::restore`] work. Fixed from load to drop.
    fn saves_spans(&self) -> bool {
        false
    }

    /// Copies the keys and values of `positions` of `slot`. A runner with the same model and
    /// settings can [restore](Runner::restore) them, in this process or another.
    ///
    /// # Errors
    /// The reason, if they cannot be saved.
    fn save(&mut self, _slot: Slot, _positions: Range<u32>) -> Result<SavedSpan, String> {
        Err("this engine cannot save keys and values".to_owned())
    }

    /// Appends those of `span` to `slot` that are at `positions`, which begin where the slot ends.
    /// The tokens up to their end must be those of the sequence that was saved.
    ///
    /// # Errors
    /// The reason, if they cannot be restored; the slot is then as before.
    fn restore(
        &mut self,
        _slot: Slot,
        _positions: Range<u32>,
        _span: &SavedSpan,
    ) -> Result<(), String> {
        Err("this engine cannot restore keys and values".to_owned())
    }

    /// Maximum rows of logits in a batch with draft tokens: one per span and one per draft token.
    /// `None` if this runner cannot verify drafts. It may change between batches.
    ///
    /// A span with a draft samples one token as always, and one more after each draft token that
    /// equals the token sampled before it. The tokens are therefore those that would have been
    /// sampled without a draft, each from the logits after the tokens before it. All n of them are
    /// appended in order. Positions from the n-th draft token on hold rejected tokens and must be
    /// cut off with [`Runner::truncate`] before the sequence continues.
    fn verify_rows(&self) -> Option<u32> {
        None
    }

    /// Maximum rows of logits in a batch with scored prompts: one per token of a scored span, and
    /// one for each other span. `None` if this runner cannot score prompts.
    ///
    /// [`Runner::run`] appends, before the span's sampled token, a [`Sampled`] for each of the
    /// span's targets with that token and its log-probabilities; or a single one with an error.
    fn score_rows(&self) -> Option<u32> {
        None
    }

    /// The embedder of this runner, if it has one.
    fn embedder(&mut self) -> Option<&mut dyn Embedder> {
        None
    }

    /// Abilities of this runner. One that does not generate text must never be given a batch.
    fn abilities(&mut self) -> RunnerAbilities {
        let embeds = self.embedder().map(|embedder| embedder.capacity());
        RunnerAbilities { generates: true, scores_prompts: self.score_rows().is_some(), embeds }
    }

    /// This runner as a [`Pipeline`], if it can compute several batches at once.
    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        None
    }
}

/// A runner whose parts work on different batches at the same time. Batches in flight share no
/// sequence. A call of the [`Runner`] after a batch was submitted applies to the state after that
/// batch.
pub trait Pipeline {
    /// Maximum batches in flight now, at least 1; may change between batches.
    fn depth(&self) -> usize;

    /// Starts to compute `batch`.
    ///
    /// # Errors
    /// [`RunError`] if the batch cannot be started; it is then not in flight.
    fn submit(&mut self, batch: &Batch) -> Result<(), RunError>;

    /// Returns the outcome of the oldest batch in flight, as [`Runner::run`] does; `None` while it
    /// is still being computed. [`RunError::Lost`] may also come while no batch is in flight.
    fn try_collect(&mut self, sampled: &mut Vec<Sampled>) -> Option<Result<(), RunError>>;

    /// Registers `wake`, which is called from any thread when [`Pipeline::try_collect`] may have a
    /// result.
    fn on_arrival(&mut self, wake: Box<dyn Fn() + Send + Sync>);
}
