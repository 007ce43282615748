//! Compares the results of the stages with those of the whole model, number by number.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use loquent_engine::llama::{
    CpuSharing, Embeddings, LlamaLayers, LlamaModel, LlamaRunner, LoadOptions, RunnerOptions,
};
use loquent_engine::staged::{Embed, Layers};
use loquent_infer::runner::{Batch, Runner, Sampled, Slot};
use loquent_infer::sampling::{SampledToken, Sampler, Sampling, Scratch};
use loquent_infer::token::TokenId;

/// Tokens of the prompt, which is computed in one batch.
const PROMPT_TOKENS: u32 = 24;
/// Tokens to generate, each computed in a separate batch.
const STEPS: usize = 24;

/// Generates with the whole model and with the stages from a prompt of arbitrary tokens,
/// and compares tokens and the log-probabilities of the 20 best. Returns the number of tokens.
///
/// # Errors
/// If they differ, or if a file cannot be loaded.
pub(super) fn verify(whole: &Path, files: &[PathBuf]) -> anyhow::Result<usize> {
    let (entry, stages) = files.split_first().context("a split has an entry file")?;
    let expected = whole_choices(whole)?;
    let choices = staged_choices(entry, stages)?;
    for (step, (expected, choice)) in expected.iter().zip(&choices).enumerate() {
        if expected != choice {
            super::differ(step, &format!("{expected:?}"), &format!("{choice:?}"))?;
        }
    }
    Ok(expected.len())
}

fn options() -> RunnerOptions {
    RunnerOptions { slots: 1, kv_cells: 256, batch_tokens: 64, ..RunnerOptions::default() }
}

fn load(path: &Path) -> anyhow::Result<Arc<LlamaModel>> {
    Ok(LlamaModel::load(path, &LoadOptions::default(), |_| true)?)
}

fn sampler() -> Sampler {
    // Log-probabilities show differences that are too small to change a token.
    Sampler::new(Sampling { logprobs: Some(20), ..Sampling::default() }, &[], &[])
}

/// Returns tokens from all over the vocabulary: real text would leave most embeddings unused.
fn prompt(vocab: u32) -> Vec<TokenId> {
    (1..=PROMPT_TOKENS).map(|i| (u64::from(i) * 7919 % u64::from(vocab)) as TokenId).collect()
}

fn whole_choices(path: &Path) -> anyhow::Result<Vec<SampledToken>> {
    let model = load(path)?;
    let mut tokens = prompt(model.info().vocab_size);
    let mut runner = LlamaRunner::new(model, &options())?;
    runner.assign(Slot(0), sampler());
    let (mut computed, mut choices) = (0, Vec::new());
    while choices.len() < STEPS {
        let (mut batch, mut sampled): (_, Vec<Sampled>) = (Batch::default(), Vec::new());
        batch.push(Slot(0), computed as u32, &tokens[computed..], true);
        computed = tokens.len();
        runner.run(&batch, &mut sampled)?;
        let choice = sampled.pop().context("one row was asked for")?.outcome?;
        tokens.push(choice.token);
        choices.push(choice);
    }
    Ok(choices)
}

fn staged_choices(entry: &Path, stages: &[PathBuf]) -> anyhow::Result<Vec<SampledToken>> {
    let mut embeddings = Embeddings::open(entry)?;
    let stages = stages
        .iter()
        .map(|path| Ok(LlamaLayers::new(load(path)?, &options(), &CpuSharing::default())?));
    let mut stages = stages.collect::<anyhow::Result<Vec<LlamaLayers>>>()?;
    let (mut sampler, mut scratch) = (sampler(), Scratch::default());
    let mut tokens = prompt(stages.last().context("a split has stages")?.sizes().vocab);
    let (mut computed, mut choices) = (0, Vec::new());
    while choices.len() < STEPS {
        let mut batch = Batch::default();
        batch.push(Slot(0), computed as u32, &tokens[computed..], true);
        computed = tokens.len();
        let mut rows = Vec::new();
        embeddings.append(&batch.tokens, &mut rows)?;
        // In this process, without a network: what is verified is the files.
        for stage in &mut stages {
            stage.compute(&rows, &batch.spans)?;
            rows = stage.hidden().to_vec();
        }
        let last = stages.last_mut().expect("there are stages");
        let choice = sampler.sample(last.logits(batch.tokens.len() - 1), &mut scratch)?;
        tokens.push(choice.token);
        choices.push(choice);
    }
    Ok(choices)
}
