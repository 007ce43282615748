//! The [`Embedder`] over a llama.cpp context of its own, beside that of the runner.
//!
//! llama.cpp pools the token vectors of one batch. If an input comes in several batches, its parts
//! are combined here: a causal model's tokens see only those before them, so the parts' vectors
//! equal those of the whole.

use std::sync::Arc;

use loquent_infer::embedding::{Embedder, EmbedderCapacity};
use loquent_infer::runner::{Batch, RunError, Slot, Span};

use super::context::Context;
use super::runner::{check, params, threads};
use super::threads::ThreadPool;
use super::{LlamaModel, LoadError, RunnerOptions, sys};
use crate::Pooling;
use loquent_formats::gguf::Value;

/// Maximum inputs in progress.
const SLOTS: u16 = 32;
/// Maximum bytes of logits that llama.cpp allocates. It computes them for every token of a causal
/// model although none are needed, so they bound the batch.
const LOGITS_BYTES: u64 = 64 << 20;
/// Minimum tokens of a batch, however large the vocabulary.
const LEAST_BATCH_TOKENS: u32 = 64;

/// Intermediate result of an input whose parts are being computed.
#[derive(Debug, Clone, Default)]
struct Partial {
    tokens: u32,
    /// Sum of all token vectors, or the single relevant one.
    vector: Vec<f64>,
}

/// Embeddings with llama.cpp, on one thread.
pub struct LlamaEmbedder {
    context: Context,
    capacity: EmbedderCapacity,
    pooling: Pooling,
    vocab_size: u32,
    partial: Vec<Partial>,
}

/// Properties of a model that concern embeddings, from its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingTraits {
    /// Pooling method; `None` if the file does not specify one.
    pub pooling: Option<Pooling>,
    /// True if a token sees only those before it; otherwise the model does not generate text.
    pub is_causal: bool,
}

impl LlamaModel {
    /// Reads the properties that concern embeddings from the model's file.
    ///
    /// # Errors
    /// [`LoadError::Backend`] for a model that ranks texts instead.
    pub fn embedding_traits(&self) -> Result<EmbeddingTraits, LoadError> {
        let header = self.header();
        let pooling = match header.model_number("pooling_type") {
            Some(1) => Some(Pooling::Mean),
            Some(2) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            Some(4) => {
                let why = "it ranks pairs of texts (a reranker), which is not supported";
                return Err(LoadError::Backend(why.into()));
            }
            _ => None,
        };
        let architecture = header.architecture().unwrap_or_default();
        let causal = header.get(&format!("{architecture}.attention.causal"));
        Ok(EmbeddingTraits { pooling, is_causal: causal != Some(&Value::Bool(false)) })
    }
}

impl LlamaEmbedder {
    /// Creates a context of `model` for inputs of up to `options.context_tokens`, with memory for
    /// one of the longest.
    ///
    /// # Errors
    /// [`LoadError::TooLarge`] if the KV cache does not fit, [`LoadError::Backend`] otherwise.
    pub fn new(
        model: Arc<LlamaModel>,
        options: &RunnerOptions,
        pooling: Pooling,
    ) -> Result<Self, LoadError> {
        let is_causal = model.embedding_traits()?.is_causal;
        let (context_train, vocab_size) = (model.info().context_train, model.info().vocab_size);
        let longest = match options.context_tokens {
            0 => context_train,
            // Learned positions end with those that the model was trained with.
            tokens => tokens.min(context_train.max(1)),
        };
        let batch_tokens = batch_tokens(is_causal, longest, vocab_size);
        // One batch may hold several inputs, together longer than the longest.
        let cells = longest.max(batch_tokens);
        let options = RunnerOptions {
            slots: SLOTS,
            kv_cells: cells,
            context_tokens: longest,
            batch_tokens,
            pass_tokens: batch_tokens,
            kv_unified: true,
            ..options.clone()
        };
        check(&model, &options)?;
        let threads = threads(&model, &options);
        let mut params = params(&options, threads);
        // One pass per batch: llama.cpp pools what is in one pass.
        params.n_ubatch = params.n_batch;
        // Every token is an output where token vectors are pooled.
        params.n_outputs_max = params.n_batch;
        params.embeddings = true;
        params.pooling_type = native(pooling);
        let pool = ThreadPool::new(threads, options.poll);
        let context = Context::new(model, params, pool).map_err(LoadError::Backend)?;
        // llama.cpp may have rounded it down.
        let (_, _, native_batch_tokens) = context.sizes();
        let capacity = EmbedderCapacity {
            slots: SLOTS,
            cells,
            input_tokens: longest,
            batch_tokens: batch_tokens.min(native_batch_tokens),
            in_parts: is_causal,
            width: context.embedding_width(),
        };
        let partial = vec![Partial::default(); SLOTS.into()];
        let mut embedder = Self { context, capacity, pooling, vocab_size, partial };
        embedder.warm_up().map_err(|error| LoadError::Backend(error.to_string()))?;
        Ok(embedder)
    }

    /// Embeds one token, so that the first request does not wait for buffers.
    fn warm_up(&mut self) -> Result<(), RunError> {
        let mut batch = Batch::default();
        batch.push(Slot(0), 0, &[0], true);
        self.embed(&batch, &mut Vec::new())
    }

    /// Returns an error for an invalid batch, on which llama.cpp would abort the process.
    fn check_batch(&self, batch: &Batch) -> Result<(), RunError> {
        let EmbedderCapacity { slots, batch_tokens, input_tokens, in_parts, .. } = self.capacity;
        let mut covered = 0;
        let mut is_sound = (1..=batch_tokens as usize).contains(&batch.tokens.len())
            && batch.tokens.iter().all(|&token| token < self.vocab_size);
        for span in &batch.spans {
            let end = span.start as usize + span.tokens.len();
            is_sound &= span.slot.0 < slots
                && end <= input_tokens as usize
                && span.tokens.start == covered
                && !span.tokens.is_empty()
                && (in_parts || (span.start == 0 && span.sample));
            covered = span.tokens.end;
            // `&&`, since an unsound slot is no index.
            is_sound = is_sound && self.partial[span.slot.index()].tokens == span.start;
        }
        match is_sound && covered == batch.tokens.len() {
            true => Ok(()),
            false => Err(RunError::Backend("invalid batch of embeddings".into())),
        }
    }

    /// Adds the vector that llama.cpp pooled for `span` to its input's intermediate result.
    fn take_in(&mut self, span: &Span) {
        let len = span.tokens.len();
        let pooled = self.context.embedding(span.slot.0, self.capacity.width);
        let partial = &mut self.partial[span.slot.index()];
        // A sum over thousands of tokens would lose digits in 32 bits.
        let pooled = pooled.iter().map(|&x| f64::from(x));
        match self.pooling {
            Pooling::Mean => {
                // Weighted by its tokens, since parts may differ in length.
                partial.vector.resize(self.capacity.width as usize, 0.0);
                let parts = partial.vector.iter_mut().zip(pooled);
                parts.for_each(|(sum, mean)| *sum += mean * len as f64);
            }
            // The first token was in the first part.
            Pooling::Cls if span.start > 0 => {}
            // Each part's last token replaces the one before, up to the input's own.
            Pooling::Cls | Pooling::Last => {
                partial.vector.clear();
                partial.vector.extend(pooled);
            }
        }
        partial.tokens += len as u32;
    }
}

impl Embedder for LlamaEmbedder {
    fn capacity(&self) -> EmbedderCapacity {
        self.capacity
    }

    fn embed(&mut self, batch: &Batch, vectors: &mut Vec<Vec<f32>>) -> Result<(), RunError> {
        let computed = self.check_batch(batch).and_then(|()| self.context.decode_all(batch));
        if let Err(error) = computed {
            // Part of it may have been computed; whoever retries begins with empty slots.
            batch.spans.iter().for_each(|span| self.clear(span.slot));
            return Err(error);
        }
        for span in &batch.spans {
            self.take_in(span);
            // The last part of its input.
            if span.sample {
                let Partial { tokens, vector } = &self.partial[span.slot.index()];
                let parts = if self.pooling == Pooling::Mean { f64::from(*tokens) } else { 1.0 };
                vectors.push(vector.iter().map(|x| (x / parts) as f32).collect());
                self.clear(span.slot);
            }
        }
        Ok(())
    }

    fn clear(&mut self, slot: Slot) {
        if let Some(partial) = self.partial.get_mut(slot.index()) {
            *partial = Partial::default();
            self.context.remove(slot.0, 0);
        }
    }
}

/// Tokens of a batch, such that an input that comes whole fits, and a causal model's logits do.
fn batch_tokens(is_causal: bool, longest: u32, vocab_size: u32) -> u32 {
    match is_causal {
        true => {
            let row_bytes = 4 * u64::from(vocab_size.max(1));
            let most = (LOGITS_BYTES / row_bytes).min(512) as u32;
            most.max(LEAST_BATCH_TOKENS).min(longest.max(1))
        }
        // More than the longest, where that is short: short inputs share a batch.
        false => longest.max(512),
    }
}

fn native(pooling: Pooling) -> sys::llama_pooling_type {
    match pooling {
        Pooling::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
        Pooling::Cls => sys::LLAMA_POOLING_TYPE_CLS,
        Pooling::Last => sys::LLAMA_POOLING_TYPE_LAST,
    }
}
