//! Proof that a file works: llama.cpp loads it, tokenizes with it and decodes.

use std::collections::HashSet;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use loquent_engine::llama::{
    LlamaEmbedder, LlamaModel, LlamaRunner, LlamaVocab, LoadOptions, RunnerOptions,
};
use loquent_infer::embedding::Embedder;
use loquent_infer::runner::{Batch, Runner, Sampled, Slot};
use loquent_infer::sampling::{Sampler, Sampling};
use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, Vocab};

/// A text with what tokenizers stumble over: scripts, an emoji, control characters, runs of spaces.
const TEXT: &str = "The quick brown fox, 12 grüße — 世界 🦀\n\tfn main() {}   \u{1}";
const KV_CELLS: u32 = 1024;

/// Result of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeTrial {
    /// llama.cpp's words for the model's kind, size and quantisation.
    pub description: String,
    /// Number of tokens of the prompt that is decoded first.
    pub prompt_tokens: usize,
    /// Tokens decoded after it, greedily.
    pub tokens: Vec<TokenId>,
    /// Time that decoding took, prefill not counted.
    pub decoding: Duration,
}

impl DecodeTrial {
    /// Different tokens among those decoded.
    pub fn distinct(&self) -> usize {
        self.tokens.iter().collect::<HashSet<_>>().len()
    }
}

/// Loads the model at `path` and decodes `count` tokens with `threads` threads (0 for one per
/// physical core).
///
/// # Errors
/// A file that does not load, a text that does not come back from its tokens, logits that are no
/// numbers.
pub fn trial(path: &Path, count: usize, threads: u32) -> anyhow::Result<DecodeTrial> {
    let model = LlamaModel::load(path, &LoadOptions::default(), |_| true)?;
    let vocab = LlamaVocab::new(model.clone());
    let prompt = vocab.encode(TEXT, Encode { add_bos: false, parse_special: false })?;
    let back: Vec<u8> = prompt.iter().flat_map(|token| vocab.piece(*token)).copied().collect();
    ensure!(back == TEXT.as_bytes(), "the tokens spell {:?}", String::from_utf8_lossy(&back));
    let threads = NonZeroU16::new(u16::try_from(threads)?);
    let options =
        RunnerOptions { slots: 1, kv_cells: KV_CELLS, threads, ..RunnerOptions::default() };
    let mut runner = LlamaRunner::new(model.clone(), &options)?;
    runner.assign(Slot(0), Sampler::new(Sampling::default(), &prompt, &[]));
    let mut tokens = vec![step(&mut runner, 0, &prompt)?];
    let started = Instant::now();
    for at in (prompt.len() as u32..).take(count - 1) {
        tokens.push(step(&mut runner, at, &tokens[tokens.len() - 1..])?);
    }
    let description = model.info().description.clone();
    Ok(DecodeTrial {
        description,
        prompt_tokens: prompt.len(),
        tokens,
        decoding: started.elapsed(),
    })
}

/// Loads the embedding model at `path` and embeds a text with `threads` threads (0: one per
/// physical core), pooled as its file says.
///
/// # Errors
/// A file that does not load, is no embedding model's, or gives numbers that are not finite.
pub fn embedding_trial(path: &Path, threads: u32) -> anyhow::Result<Vec<f32>> {
    let model = LlamaModel::load(path, &LoadOptions::default(), |_| true)?;
    let pooling = model.embedding_traits()?.pooling.context("no embedding model")?;
    let threads = NonZeroU16::new(u16::try_from(threads)?);
    let options = RunnerOptions { context_tokens: KV_CELLS, threads, ..RunnerOptions::default() };
    let mut embedder = LlamaEmbedder::new(model.clone(), &options, pooling)?;
    let (mut batch, mut vectors) = (Batch::default(), Vec::new());
    batch.push(Slot(0), 0, &LlamaVocab::new(model).encode_input(TEXT)?, true);
    embedder.embed(&batch, &mut vectors)?;
    let vector = vectors.pop().context("nothing was embedded")?;
    ensure!(vector.iter().all(|x| x.is_finite()), "the vector is not finite");
    Ok(vector)
}

/// Decodes `tokens` from position `start` and samples the one after them.
fn step(runner: &mut LlamaRunner, start: u32, tokens: &[TokenId]) -> anyhow::Result<TokenId> {
    let (mut batch, mut sampled) = (Batch::default(), Vec::<Sampled>::new());
    batch.push(Slot(0), start, tokens, true);
    runner.run(&batch, &mut sampled)?;
    let row = sampled.pop().context("nothing was sampled")?;
    Ok(row.outcome?.token)
}
