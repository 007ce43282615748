//! Our kernels through a whole model: that they are used, and that a row does not depend on others.
//!
//! ggml keeps them for the whole process, so attention is ours on both sides here: how close they
//! are to llama.cpp's is for `shape-model`'s tests (`kernels`), in processes of their own.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use loquent_engine::KvType;
use loquent_engine::llama::{
    Isa, LlamaModel, LlamaRunner, LoadOptions, Quant, RunnerOptions, own_kernels_lack, quantize,
};
use loquent_formats::gguf::{GgufWriter, Header, ReadLimits, TensorSpec, TensorType};
use loquent_infer::runner::{Batch, Runner, Slot};
use loquent_infer::sampling::{Logprobs, Sampler, Sampling};
use loquent_infer::token::TokenId;

use super::random_model::{self, Defect, Width};

const SEQUENCES: u16 = 7;
const PROMPT: u32 = 20;
const STEPS: u32 = 6;

pub(crate) fn can_run() -> bool {
    loquent_needs::Need::Avx2.is_met(Isa::Avx2.is_available(), "this processor lacks AVX2")
}

/// Reason why our kernels cannot compute a matrix of 512 weights of this type, which take `bytes`.
fn lack(kind: TensorType, bytes: usize) -> Option<String> {
    let spec = TensorSpec { name: "blk.0.ffn_up.weight".into(), dims: vec![256, 2], kind };
    let mut writer = GgufWriter::start(Vec::new(), &[], &[spec]).unwrap();
    writer.data(&vec![0; bytes]).unwrap();
    let file = writer.finish().unwrap();
    let size = file.len() as u64;
    own_kernels_lack(&Header::read(file.as_slice(), size, ReadLimits::default()).unwrap())
}

#[test]
fn the_format_without_a_kernel_is_named() {
    if !can_run() {
        return;
    }
    let (iq1_s, q8_0) = (TensorType(19), TensorType(8));
    assert_eq!(lack(iq1_s, 2 * 50).as_deref(), Some("IQ1_S has none of ours"));
    assert_eq!(lack(q8_0, 16 * 34), None);
    assert_eq!(lack(TensorType::F16, 512 * 2), None);
}

/// Writes the random model to `folder` with its weights as `quant`.
fn stored_model(folder: &Path, width: Width, quant: Quant) -> PathBuf {
    let (plain, stored) = (folder.join("f32.gguf"), folder.join(format!("{quant}.gguf")));
    random_model::write(&plain, width, Defect::None);
    quantize(&plain, &stored, quant, 1).expect("quantised");
    stored
}

/// The random model as Q4_K_M (which mixes in Q6_K), loaded with our kernels and with
/// llama.cpp's.
pub(crate) fn models(folder: &Path, width: Width) -> [Arc<LlamaModel>; 2] {
    let stored = stored_model(folder, width, Quant::Q4KM);
    [true, false].map(|own_kernels| {
        let options = LoadOptions { mmap: false, own_kernels, ..LoadOptions::default() };
        LlamaModel::load(&stored, &options, |_| true).expect("the model loads")
    })
}

/// The random model with its weights as `quant`, loaded with our kernels.
fn own_model(folder: &Path, width: Width, quant: Quant) -> Arc<LlamaModel> {
    let stored = stored_model(folder, width, quant);
    let model = LlamaModel::load(&stored, &LoadOptions::default(), |_| true);
    let model = model.expect("the model loads");
    assert!(model.uses_own_kernels(), "{quant}");
    model
}

/// Weights in blocks, and floats.
const QUANTS: [Quant; 4] = [Quant::Q4KM, Quant::F16, Quant::Bf16, Quant::F32];

/// A token that depends on sequence and position alone: both sides compute the same text.
fn token(sequence: u16, position: u32) -> TokenId {
    (u32::from(sequence) * 31 + position * 7) % 200
}

/// The log-probabilities of the last steps of `sequences`, computed in one batch per step, after
/// their prompts in chunks of `chunk` tokens.
fn run(model: &Arc<LlamaModel>, sequences: &[u16], chunk: usize) -> Vec<Vec<Logprobs>> {
    let options = RunnerOptions {
        slots: SEQUENCES,
        kv_cells: 512,
        kv_type: KvType::F16,
        threads: NonZeroU16::new(2),
        ..RunnerOptions::default()
    };
    let mut runner = LlamaRunner::new(model.clone(), &options).expect("a context");
    let sampling = Sampling { logprobs: Some(8), ..Sampling::default() };
    for &sequence in sequences {
        let prompt: Vec<TokenId> = (0..PROMPT).map(|i| token(sequence, i)).collect();
        runner.assign(Slot(sequence), Sampler::new(sampling.clone(), &prompt, &[]));
        for (i, tokens) in prompt.chunks(chunk).enumerate() {
            let mut batch = Batch::default();
            batch.push(Slot(sequence), (i * chunk) as u32, tokens, false);
            runner.run(&batch, &mut Vec::new()).expect("the prompt runs");
        }
    }
    let step = |i: u32| {
        let mut batch = Batch::default();
        for &sequence in sequences {
            batch.push(Slot(sequence), PROMPT + i, &[token(sequence, PROMPT + i)], true);
        }
        let mut sampled = Vec::new();
        runner.run(&batch, &mut sampled).expect("the step runs");
        let logprobs = |row: loquent_infer::runner::Sampled| {
            *row.outcome.expect("a token").logprobs.expect("asked for")
        };
        sampled.into_iter().map(logprobs).collect()
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn own_kernels_are_used_and_close_to_llama_cpps() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let all: Vec<u16> = (0..SEQUENCES).collect();
    let [own, llama] = models(folder.path(), Width::BLOCKS).map(|model| run(&model, &all, 20));
    let pairs = || own.iter().flatten().zip(llama.iter().flatten());
    let mut furthest = 0.0f32;
    for (own, llama) in pairs() {
        for (token, logprob) in &own.top {
            // Where both name it among the best; the last ranks may differ.
            if let Some((_, other)) = llama.top.iter().find(|(t, _)| t == token) {
                furthest = furthest.max((logprob - other).abs());
            }
        }
        let first = own.top[0].0;
        assert!(llama.top.iter().take(4).any(|(t, _)| *t == first), "the best token is far off");
    }
    println!("log-probabilities differ by up to {furthest}");
    // Less than three times as much as is measured: 0.076.
    assert!(furthest < 0.2, "{furthest}");
    assert!(pairs().any(|(own, llama)| own != llama), "two ways to compute round alike");
}

#[test]
fn a_sequence_does_not_depend_on_its_company() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let all: Vec<u16> = (0..SEQUENCES).collect();
    for quant in QUANTS {
        let own = own_model(folder.path(), Width::BLOCKS, quant);
        let together = run(&own, &all, 20);
        for &sequence in &all {
            let alone = run(&own, &[sequence], 20);
            for (alone, together) in alone.iter().zip(&together) {
                // Bit by bit.
                assert_eq!(alone[0], together[usize::from(sequence)], "{quant}, {sequence}");
            }
        }
    }
}

#[test]
fn a_prompt_does_not_depend_on_its_chunks() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for quant in QUANTS {
        let own = own_model(folder.path(), Width::PARTS, quant);
        let whole = run(&own, &[3], 20);
        for chunk in [1, 3, 8, 17] {
            assert_eq!(run(&own, &[3], chunk), whole, "{quant}, chunks of {chunk}");
        }
    }
}
