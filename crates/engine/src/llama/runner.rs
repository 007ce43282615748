//! The [`Runner`] over a llama.cpp context.

use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;

use loquent_infer::embedding::Embedder;
use loquent_infer::runner::{
    Batch, Capacity, Preemption, RunError, Runner, Sampled, SavedSpan, Scores, Slot, Span,
};
use loquent_infer::sampling::{Sampler, Scratch, score};
use loquent_infer::token::{RowError, TokenId};

use super::context::Context;
use super::memory::{available_bytes, ggml_type, kv_bytes};
use super::spans::SpareSlot;
use super::threads::{ThreadPool, at_most_processors, physical_cores};
use super::{History, LlamaModel, LoadError, MAX_SLOTS, sys};
use crate::{KvType, isolate};

/// Use of the fused attention kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// If the back end has it for this model, except with [`KvType::F32`]: it would round such a
    /// cache to 16 bits, and its kernels for few and for many tokens differ by about 1e-3 in the
    /// logits, so that greedy text might depend on the rest of the batch.
    #[default]
    Auto,
    /// Also with [`KvType::F32`].
    On,
    /// Never. A sequence with NaN then breaks the others of a unified cache.
    Off,
}

/// Models smaller than this compute with one thread by default: their layers are done before other
/// threads have met at a barrier. A model of 2 MiB decodes two to three times faster with one
/// thread than with two on a busy machine of two cores (`--example decode_speed`), and leaves a
/// core for the server.
pub const SMALL_MODEL_BYTES: u64 = 32 << 20;

/// Minimum rows of logits for drafts, in a context with fewer slots: enough for one stream with
/// [`loquent_infer::speculation::MAX_DRAFT_TOKENS`] minus one.
const LEAST_OUTPUTS: u16 = 16;

/// Minimum rows of logits of a context, so that prompts can be scored in parts that are not much
/// slower than whole ones. A row is vocabulary x 4 bytes, allocated on first use.
const SCORE_OUTPUTS: u16 = 64;

/// Sizes and threads of a [`LlamaRunner`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerOptions {
    /// Maximum sequences with KV at once, kept prefixes included; up to [`MAX_SLOTS`].
    pub slots: u16,
    /// KV cells of all slots together (rounded up to 256 by llama.cpp).
    pub kv_cells: u32,
    /// Maximum tokens of a sequence; 0 for the length that the model was trained with.
    pub context_tokens: u32,
    /// Maximum tokens in one call of the runner.
    pub batch_tokens: u32,
    /// Maximum tokens in one pass through the layers; a larger batch takes several passes.
    pub pass_tokens: u32,
    /// Compute threads, the engine thread included; `None` for the physical cores, but one for
    /// models below [`SMALL_MODEL_BYTES`].
    pub threads: Option<NonZeroU16>,
    /// Level of spinning of idle compute threads before they sleep, 0 (none) to 100.
    pub poll: u32,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// One KV buffer for all slots (needed to share prefixes) instead of one each.
    pub kv_unified: bool,
    /// Use of the fused attention kernel.
    pub flash_attention: FlashAttention,
    /// Let keys and values be saved and restored ([`Runner::save`]), if the model and the other
    /// options allow that.
    pub saves_spans: bool,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            slots: 16,
            kv_cells: 4096,
            context_tokens: 0,
            batch_tokens: 512,
            pass_tokens: 512,
            threads: None,
            poll: 0,
            kv_type: KvType::default(),
            kv_unified: true,
            flash_attention: FlashAttention::default(),
            saves_spans: false,
        }
    }
}

/// Batched decoding and sampling with llama.cpp, on one thread.
pub struct LlamaRunner {
    context: Context,
    capacity: Capacity,
    vocab_size: u32,
    samplers: Vec<Option<Sampler>>,
    scratch: Scratch,
    /// Maximum rows of logits of a batch.
    output_rows: u32,
    /// Maximum rows of logits of a batch with drafts.
    draft_rows: u32,
    /// How much of a sequence's past is kept, which determines where it can be cut.
    history: History,
    /// True if cells may hold NaN (see `isolate`), until all slots have been freed.
    tainted: bool,
    /// Slots whose past could not be cut and is therefore gone, until they are freed.
    lost: Vec<bool>,
    /// The sequence behind those of all slots through which keys and values are saved and restored;
    /// empty between calls.
    spare: Option<SpareSlot>,
    preemption: Preemption,
    embedder: Option<Box<dyn Embedder>>,
}

impl LlamaRunner {
    /// Creates a context of `model` with memory for everything that `options` allows; nothing is
    /// allocated later.
    ///
    /// # Errors
    /// [`LoadError::TooLarge`] if the KV cache does not fit, [`LoadError::Backend`] otherwise.
    pub fn new(model: Arc<LlamaModel>, options: &RunnerOptions) -> Result<Self, LoadError> {
        check(&model, options)?;
        let threads = threads(&model, options);
        let pool = ThreadPool::new(threads, options.poll);
        let mut params = params(options, threads);
        let spare = spare_slot(&model, options, &mut params);
        let output_rows = params.n_outputs_max;
        let draft_rows = u32::from(options.slots.max(LEAST_OUTPUTS)).min(output_rows);
        let vocab_size = model.info().vocab_size;
        let (context_train, history) = (model.info().context_train, model.info().history);
        let context = Context::new(model, params, pool).map_err(LoadError::Backend)?;
        let (kv_cells, context_cells, batch_tokens) = context.sizes();
        // A longer context than the model was trained with is possible, but only if asked for.
        let longest = match options.context_tokens {
            0 => context_train,
            tokens => tokens,
        };
        let capacity = Capacity {
            slots: options.slots,
            kv_cells,
            context_tokens: longest.min(context_cells),
            batch_tokens: batch_tokens.min(options.batch_tokens),
            shares_prefix: options.kv_unified && history != History::State,
        };
        let samplers = (0..options.slots).map(|_| None).collect();
        let mut runner = Self {
            context,
            capacity,
            vocab_size,
            samplers,
            scratch: Scratch::default(),
            output_rows,
            draft_rows,
            history,
            tainted: false,
            lost: vec![false; options.slots.into()],
            spare,
            preemption: Preemption::default(),
            embedder: None,
        };
        if spare.is_some() {
            // Our kernels know a cache, and so the order of its cells, from its first pass on.
            runner.warm_up().map_err(|error| LoadError::Backend(error.to_string()))?;
        }
        Ok(runner)
    }

    /// Adds an embedder to this runner.
    pub fn with_embedder(self, embedder: impl Embedder + 'static) -> Self {
        Self { embedder: Some(Box::new(embedder)), ..self }
    }

    /// Computes one token in the empty slot 0 and discards it, so that the first request does not
    /// wait for buffers.
    ///
    /// # Errors
    /// [`RunError`] of that computation.
    pub fn warm_up(&mut self) -> Result<(), RunError> {
        let mut batch = Batch::default();
        batch.push(Slot(0), 0, &[0], false);
        let outcome = self.context.decode(&batch);
        self.context.remove(0, 0);
        outcome
    }

    /// Returns an error for an invalid batch, on which llama.cpp would abort the process.
    fn check_batch(&self, batch: &Batch) -> Result<(), RunError> {
        let broken = |what: &str| Err(RunError::Backend(format!("invalid batch: {what}")));
        if batch.tokens.is_empty() || batch.tokens.len() > self.capacity.batch_tokens as usize {
            return broken("its size");
        }
        if batch.tokens.iter().any(|&token| token >= self.vocab_size) {
            return broken("a token outside the vocabulary");
        }
        let rows: usize = (0..batch.spans.len()).map(|index| batch.rows_of(index)).sum();
        if rows > self.output_rows as usize {
            return broken("more rows of logits than there is room for");
        }
        let mut covered = 0;
        for span in &batch.spans {
            let end = span.start as usize + span.tokens.len();
            if span.slot.0 >= self.capacity.slots || end > self.capacity.context_tokens as usize {
                return broken("a slot or position outside the capacity");
            }
            if span.tokens.start != covered || span.tokens.len() <= span.draft {
                return broken("spans that do not cover its tokens");
            }
            covered = span.tokens.end;
        }
        if covered == batch.tokens.len() { Ok(()) } else { broken("tokens outside all spans") }
    }

    /// Computes `batch`, or a part of it that is then forgotten: see [`Runner::preemption`].
    fn decode(&mut self, batch: &Batch) -> Result<(), RunError> {
        if !batch.is_spare || self.preemption().is_none() {
            return self.context.decode(batch);
        }
        let outcome = self.context.decode_unless(&self.preemption, batch);
        if outcome == Err(RunError::Preempted) {
            // Of a batch of several passes some may have been completed.
            for span in &batch.spans {
                self.context.remove(span.slot.0, span.start);
            }
        }
        outcome
    }

    /// Computes `batch` in one call. Appends a row per sampling span with usable logits; returns
    /// the numbers of all spans with unusable logits, sampling or not.
    fn compute(
        &mut self,
        batch: &Batch,
        sampled: &mut Vec<Sampled>,
    ) -> Result<Vec<usize>, RunError> {
        self.decode(batch)?;
        let mut broken = Vec::new();
        for (i, span) in batch.spans.iter().enumerate() {
            let before = sampled.len();
            if let Some(scores) = batch.scores_of(i)
                && !self.score_span(span, scores, sampled)
            {
                broken.push(i);
                continue;
            }
            if !span.sample {
                let logits = self.context.logits(span.tokens.end - 1);
                let logits = logits.expect("every span's last token has logits");
                // The fold has no early exit and so becomes vector code.
                let has_nan = logits.iter().fold(false, |nan, logit| nan | logit.is_nan());
                broken.extend(has_nan.then_some(i));
                continue;
            }
            if !self.sample_span(batch, span, sampled) {
                sampled.truncate(before);
                broken.push(i);
            }
        }
        Ok(broken)
    }

    /// Scores the tokens after those of the span; returns false, and appends nothing, if a row has
    /// no usable logits.
    fn score_span(&mut self, span: &Span, scores: &Scores, sampled: &mut Vec<Sampled>) -> bool {
        let before = sampled.len();
        for (row, &target) in span.tokens.clone().zip(&scores.targets) {
            let logits = self.context.logits(row).expect("a scored span's tokens have logits");
            let outcome = score(logits, target, scores.top, &mut self.scratch);
            if outcome.is_err() {
                sampled.truncate(before);
                return false;
            }
            sampled.push(Sampled { slot: span.slot, outcome });
        }
        true
    }

    /// Samples after the span's last known token and after each accepted draft token; returns false
    /// if the first of these rows has no usable logits.
    fn sample_span(&mut self, batch: &Batch, span: &Span, sampled: &mut Vec<Sampled>) -> bool {
        let sampler = self.samplers[span.slot.index()].as_mut();
        let sampler = sampler.expect("a sampler was assigned before sampling");
        let first = span.tokens.end - 1 - span.draft;
        for row in first..span.tokens.end {
            let logits = self.context.logits(row).expect("a sampled token has logits");
            let outcome = sampler.sample(logits, &mut self.scratch);
            if outcome == Err(RowError::NonFiniteLogits) {
                // After a draft token: the next step meets it again, as a row of its own.
                return row > first;
            }
            let drafted = batch.tokens[..span.tokens.end].get(row + 1);
            let accepted = outcome.as_ref().is_ok_and(|one| Some(&one.token) == drafted);
            sampled.push(Sampled { slot: span.slot, outcome });
            if !accepted {
                break;
            }
        }
        true
    }

    /// Computes the spans numbered `spans` of `batch` in parts in which a broken sequence cannot
    /// affect others; sequences that still give no usable logits are broken themselves.
    fn compute_apart(
        &mut self,
        batch: &Batch,
        spans: &[usize],
        sampled: &mut Vec<Sampled>,
    ) -> Result<(), RunError> {
        for (n, part) in isolate::cut(batch, spans).iter().enumerate() {
            let broken = self.compute(&part.batch, sampled).map_err(|error| match error {
                // Some parts are done and their tokens drawn: it cannot be tried again.
                RunError::CacheFull if n > 0 => RunError::Backend(error.to_string()),
                error => error,
            })?;
            for index in broken.into_iter().filter_map(|i| part.ends[i]) {
                let span = &batch.spans[index];
                tracing::warn!(slot = span.slot.0, "a sequence has no usable logits");
                if span.sample {
                    let outcome = Err(RowError::NonFiniteLogits);
                    sampled.push(Sampled { slot: span.slot, outcome });
                }
            }
        }
        Ok(())
    }

    /// Drops the positions of `slot` from `len` on, or all of them if the model cannot drop a part:
    /// its sequence then fails at its next span, instead of continuing from another past.
    fn cut(&mut self, slot: Slot, len: u32) {
        let window = matches!(self.history, History::Window(_));
        // llama.cpp would cut there, too, and go on without the positions that are gone.
        let gone = window && len > 0 && !self.holds(slot, len);
        let removed = !gone && self.context.remove(slot.0, len);
        if !removed {
            tracing::warn!(slot = slot.0, "this model's past cannot be cut: a sequence is lost");
            self.context.remove(slot.0, 0);
        }
        let lost = &mut self.lost[slot.index()];
        // A lost slot is empty, so that cutting it seems to work until it is freed.
        *lost = !removed || (*lost && len > 0);
    }

    /// Runs [`Self::compute_apart`] without the sequences whose past is lost, which fail alone.
    /// Sequences to be scored fail too: parts have no scores.
    fn compute_sound(
        &mut self,
        batch: &Batch,
        spans: Vec<usize>,
        sampled: &mut Vec<Sampled>,
    ) -> Result<(), RunError> {
        let slot = |&span: &usize| batch.spans[span].slot;
        let (lost, sound): (Vec<_>, Vec<_>) =
            spans.into_iter().partition(|span| self.lost[slot(span).index()]);
        let (scored, sound): (Vec<_>, Vec<_>) =
            sound.into_iter().partition(|&span| batch.scores_of(span).is_some());
        let sampling = lost
            .iter()
            .filter(|&&span| batch.spans[span].sample || batch.scores_of(span).is_some());
        sampled.extend(
            sampling.map(|span| Sampled { slot: slot(span), outcome: Err(RowError::OutOfStep) }),
        );
        // They ask for more rows than a part may have, and a model with NaN is of no use to them.
        let unusable = Err(RowError::NonFiniteLogits);
        sampled.extend(
            scored.iter().map(|span| Sampled { slot: slot(span), outcome: unusable.clone() }),
        );
        self.compute_apart(batch, &sound, sampled)
    }

    /// Sorts the rows from `from` on by the order of the batch's spans.
    fn in_order(batch: &Batch, sampled: &mut [Sampled]) {
        let place = |slot| batch.spans.iter().position(|span| span.slot == slot);
        sampled.sort_by_cached_key(|row| place(row.slot));
    }
}

impl Runner for LlamaRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        self.samplers[slot.index()] = Some(sampler);
    }

    fn is_ready(&mut self, slot: Slot) -> bool {
        self.samplers[slot.index()].as_mut().is_none_or(Sampler::is_ready)
    }

    fn preemption(&self) -> Option<Preemption> {
        // Only a whole history can be cut back to where it was before the batch.
        (self.history == History::Whole).then(|| self.preemption.clone())
    }

    fn verify_rows(&self) -> Option<u32> {
        // Where cells may hold NaN, batches are cut into parts, which leaves drafts out. A window
        // may lose, in the pass that computes a draft, what it needs if the draft is rejected.
        (self.history == History::Whole && !self.tainted).then_some(self.draft_rows)
    }

    fn score_rows(&self) -> Option<u32> {
        Some(self.output_rows)
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        self.check_batch(batch)?;
        // Callers may pass rows of earlier calls; only those of this one are put in order.
        let before = sampled.len();
        let any_lost = batch.spans.iter().any(|span| self.lost[span.slot.index()]);
        if self.tainted || any_lost {
            self.compute_sound(batch, (0..batch.spans.len()).collect(), sampled)?;
        } else {
            let suspects = self.compute(batch, sampled)?;
            if suspects.is_empty() {
                return Ok(());
            }
            // One of them is broken and may have broken the others: all are computed again, in
            // parts. Those that already sampled are not among them, so no token is drawn twice.
            self.tainted = true;
            for span in suspects.iter().map(|&i| &batch.spans[i]) {
                self.cut(span.slot, span.start);
            }
            self.compute_sound(batch, suspects, sampled)?;
        }
        Self::in_order(batch, &mut sampled[before..]);
        Ok(())
    }

    fn holds(&self, slot: Slot, len: u32) -> bool {
        match self.history {
            History::Whole => true,
            // llama.cpp overwrites cells of positions that the slot's next token does not see, and
            // then forgets all older ones of the slot. So what is left has no gaps.
            History::Window(window) => match self.context.oldest(slot.0) {
                Some(oldest) => oldest == 0 || oldest + window <= len + 1,
                None => len == 0,
            },
            History::State => false,
        }
    }

    fn holds_all(&self) -> bool {
        self.history == History::Whole
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        assert!(self.capacity.shares_prefix, "this model's past cannot be shared");
        debug_assert!(self.holds(from, len), "a prefix of which a part is gone");
        assert!(from != to && from.0.max(to.0) < self.capacity.slots, "slots in range");
        self.context.copy(from.0, to.0, len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        assert!(slot.0 < self.capacity.slots, "slot in range");
        self.cut(slot, len);
        if len > 0 {
            return;
        }
        // The sampler stays: a batch that failed from position 0 on is tried again with it.
        if self.tainted && (0..self.capacity.slots).all(|slot| self.context.is_empty(slot)) {
            self.context.wipe();
            self.tainted = false;
        }
    }

    fn saves_spans(&self) -> bool {
        self.spare.is_some()
    }

    fn save(&mut self, slot: Slot, positions: Range<u32>) -> Result<SavedSpan, String> {
        let spare = self.spare.ok_or("this engine was not set to save keys and values")?;
        if self.tainted || self.lost[slot.index()] {
            return Err("the cache may hold NaN".to_owned());
        }
        spare.save(&mut self.context, slot, positions)
    }

    fn restore(
        &mut self,
        slot: Slot,
        positions: Range<u32>,
        span: &SavedSpan,
    ) -> Result<(), String> {
        let spare = self.spare.ok_or("this engine was not set to restore keys and values")?;
        let from = positions.start;
        let restored = spare.restore(&mut self.context, slot, positions, span);
        if restored.is_err() {
            self.cut(slot, from);
        }
        restored
    }

    fn embedder(&mut self) -> Option<&mut dyn Embedder> {
        self.embedder.as_deref_mut().map(|embedder| embedder as &mut dyn Embedder)
    }
}

/// Makes room for a spare sequence in a context with `params`, if keys and values of `model` can be
/// saved and are to be.
fn spare_slot(
    model: &LlamaModel,
    options: &RunnerOptions,
    params: &mut sys::llama_context_params,
) -> Option<SpareSlot> {
    let can_save = options.kv_unified && model.info().history == History::Whole;
    if !options.saves_spans || !can_save || options.slots >= MAX_SLOTS {
        return None;
    }
    params.n_seq_max += 1;
    // llama.cpp has a row of logits for every sequence.
    params.n_batch = params.n_batch.max(params.n_seq_max);
    params.n_outputs_max = params.n_outputs_max.max(params.n_seq_max);
    Some(SpareSlot::behind(options.slots))
}

/// Returns the number of threads in `options`, or the one that suits the model.
pub(super) fn threads(model: &LlamaModel, options: &RunnerOptions) -> NonZeroU16 {
    let wanted = options.threads.unwrap_or_else(|| match model.info().size_bytes {
        0..SMALL_MODEL_BYTES => NonZeroU16::MIN,
        _ => physical_cores(),
    });
    at_most_processors(wanted)
}

pub(super) fn check(model: &LlamaModel, options: &RunnerOptions) -> Result<(), LoadError> {
    let refuse = |what: &str| Err(LoadError::Backend(what.to_owned()));
    if !model.has_weights() {
        return refuse("the model was loaded without weights");
    }
    if options.slots == 0 || options.slots > MAX_SLOTS {
        return refuse(&format!("{} slots; use 1 to {MAX_SLOTS}", options.slots));
    }
    if options.kv_cells == 0 || options.batch_tokens == 0 || options.pass_tokens == 0 {
        return refuse("context, batch and pass need at least one token");
    }
    if i32::try_from(options.kv_cells.max(options.batch_tokens)).is_err() {
        return refuse("context and batch are counted in 31 bits");
    }
    let kv_bytes = kv_bytes(model.header(), options.kv_cells, options.kv_type);
    let on_gpu = cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));
    match available_bytes() {
        Some(available_bytes) if kv_bytes > available_bytes && !on_gpu => {
            let weights_bytes = model.info().size_bytes;
            Err(LoadError::TooLarge { weights_bytes, kv_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

pub(super) fn params(options: &RunnerOptions, threads: NonZeroU16) -> sys::llama_context_params {
    // SAFETY: takes nothing and returns a plain struct by value.
    let mut params = unsafe { sys::llama_context_default_params() };
    params.n_ctx = options.kv_cells;
    // One decode row of every slot must fit a batch.
    params.n_batch = options.batch_tokens.max(options.slots.into());
    params.n_ubatch = options.pass_tokens.min(params.n_batch);
    params.n_seq_max = options.slots.into();
    // One row of logits per slot: a row is vocabulary x 4 bytes, so that a row for every
    // token of a batch would be hundreds of MiB.
    params.n_outputs_max = u32::from(options.slots.max(SCORE_OUTPUTS)).min(params.n_batch);
    params.n_threads = threads.get().into();
    params.n_threads_batch = threads.get().into();
    params.type_k = ggml_type(options.kv_type);
    params.type_v = ggml_type(options.kv_type);
    params.kv_unified = options.kv_unified;
    params.no_perf = true;
    params.flash_attn_type = match options.flash_attention {
        FlashAttention::Auto if options.kv_type == KvType::F32 => {
            sys::LLAMA_FLASH_ATTN_TYPE_DISABLED
        }
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    params
}

/// Ensures that [`TokenId`] has the size of llama.cpp's token numbers.
const _: () = assert!(size_of::<TokenId>() == size_of::<sys::llama_token>());
