//! Loquent's kernels and llama.cpp's through whole models, in processes of their own, against the
//! same weights in 32-bit floats.
//!
//! ggml is told of our kernels once for a process, whatever model it computes afterwards, so the
//! two sides never share one. Ours may be as far from the exact distributions as llama.cpp's is:
//! both round activations, and no more than that is asked of either.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod distributions;
mod process;

use std::path::Path;

use distributions::Divergence;
use loquent_engine::llama::{Isa, LlamaModel, LlamaVocab, LoadOptions, Quant, quantize};
use loquent_infer::vocab::{Encode, Vocab};
use process::{Kernels, Order};
use shape_model::{BuildOrder, Experts, ModelShape, build, vocab};

/// How many times as far from exact as llama.cpp's kernels ours may be. Measured: 0.88 to 1.04.
const FACTOR: f64 = 1.3;
/// The same where a router chooses: a little rounding makes it choose another expert, here on
/// the one side and there on the other.
const ROUTED_FACTOR: f64 = 3.0;
/// Lengths of the prompts: a first token; less than a part of the cache; more than a pass.
const PROMPTS: [usize; 3] = [1, 40, 700];

/// What the bundled model learnt from. A few positions, where two tokens are about as likely, make
/// most of the divergence: it takes many passages until it is the same whoever rounds.
const TEXTS: [&str; 7] = [
    "long.toml",
    "loquent.toml",
    "models.toml",
    "network.toml",
    "sentences.txt",
    "serving.toml",
    "streaming.toml",
];
/// Places in each of these texts.
const PASSAGES: usize = 3;

/// A model of few and small layers with the tensors of a known one.
fn small(name: &str) -> ModelShape {
    let shape = ModelShape::named(name).expect("a known shape");
    ModelShape {
        // One of Gemma's layers sees everything.
        layers: if shape.window.is_some() { 6 } else { 2 },
        width: 512,
        heads: 4,
        // Four heads to each group, or to each head its own.
        kv_heads: if shape.heads == shape.kv_heads { 4 } else { 1 },
        head_dim: 128,
        ffn: 768,
        experts: shape.experts.map(|_| Experts { count: 8, used: 2 }),
        // Prompts leave it.
        window: shape.window.map(|_| 100),
        vocab: 259,
        ..shape
    }
}

/// Tokens without a pattern, the same in every run.
fn tokens(count: usize) -> Vec<u32> {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % 256
    };
    (0..count).map(|_| next()).collect()
}

/// How far from the exact distributions llama.cpp's kernels are, and ours for each instruction
/// set.
struct Divergences {
    llama: Divergence,
    own: Vec<(Isa, Divergence)>,
}

/// Computes each text's `prompts` by the model at `path` with all kernels, each in a process of its
/// own. `None`, with the reason printed, where there are no kernels of ours.
fn divergences(path: &Path, texts: &[Vec<Vec<u32>>]) -> Option<Divergences> {
    if Isa::available().next().is_none() {
        loquent_needs::Need::Avx2.lack("this processor has no instructions that our kernels need");
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plain = folder.path().join("exact.gguf");
    quantize(path, &plain, Quant::F32, 1).expect("weights as floats");
    let compute = |model: &Path, kernels| {
        let order =
            |prompts: &Vec<_>| Order { model: model.to_owned(), kernels, prompts: prompts.clone() };
        let one = |prompts| process::compute(&order(prompts), folder.path());
        texts.iter().flat_map(one).collect::<Vec<_>>()
    };
    let exact = compute(&plain, Kernels::Exact);
    let diverges = |kernels| Divergence::of(&exact, &compute(path, kernels));
    let own = Isa::available().map(|isa| (isa, diverges(Kernels::Own(isa))));
    Some(Divergences { llama: diverges(Kernels::Llama), own: own.collect() })
}

/// Asserts that ours are no further from exact than llama.cpp's by more than `factor`.
fn check(what: &str, path: &Path, texts: &[Vec<Vec<u32>>], factor: f64) {
    let Some(Divergences { llama, own }) = divergences(path, texts) else { return };
    println!("{what}: llama.cpp {llama:?}, own {own:?}");
    assert!(llama.mean_kl > 0.0, "{what}: rounding must show, or nothing is compared");
    for (isa, own) in &own {
        check_one(&format!("{what}, {}", isa.name()), own, &llama, factor);
    }
}

fn check_one(what: &str, own: &Divergence, llama: &Divergence, factor: f64) {
    assert!(own != llama, "{what}: two ways to compute round alike");
    assert!(own.median_kl <= factor * llama.median_kl, "{what}: {own:?}, llama.cpp's {llama:?}");
    assert!(own.mean_kl <= factor * llama.mean_kl, "{what}: {own:?}, llama.cpp's {llama:?}");
    // Random models' best tokens are close to each other: some positions are luck.
    assert!(own.top_agreement >= llama.top_agreement - 0.1, "{what}: {own:?}, {llama:?}");
}

fn check_shape(shape: ModelShape, quant: Quant, factor: f64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("model.gguf");
    let vocabulary = vocab::synthetic(shape.vocab, "qwen2").expect("a vocabulary");
    let order = BuildOrder { shape, vocabulary, seed: 3, quant, threads: 1, out: out.clone() };
    build(&order, &mut |_| {}).expect("the model is written");
    let prompts = PROMPTS.map(tokens).to_vec();
    check(&format!("{} {quant}", shape.name), &out, &[prompts], factor);
}

#[test]
fn llama() {
    let shape = small("llama-3.2-1b");
    check_shape(ModelShape { heads: 8, kv_heads: 2, head_dim: 64, ..shape }, Quant::Q4KM, FACTOR);
    check_shape(shape, Quant::Q6K, FACTOR);
    check_shape(shape, Quant::Q3KM, FACTOR);
    check_shape(shape, Quant::Q2K, FACTOR);
}

#[test]
fn qwen3() {
    check_shape(small("qwen3-0.6b"), Quant::Q4KM, FACTOR);
    check_shape(small("qwen3-0.6b"), Quant::Q5KM, FACTOR);
}

#[test]
fn gemma3_with_its_sliding_window() {
    check_shape(small("gemma3-1b"), Quant::Q4KM, FACTOR);
}

#[test]
fn gpt2() {
    let shape = ModelShape { heads: 8, kv_heads: 8, head_dim: 64, ..small("gpt2") };
    check_shape(shape, Quant::Q8_0, FACTOR);
    check_shape(shape, Quant::Q4KM, FACTOR);
}

#[test]
fn formats_of_blocks_of_32() {
    // Rows that end within 256 weights, as gpt-oss's do.
    let shape = ModelShape { width: 480, ffn: 800, ..small("qwen3-0.6b") };
    check_shape(shape, Quant::Q4_0, FACTOR);
    check_shape(shape, Quant::Iq4Nl, FACTOR);
    check_shape(small("qwen3-0.6b"), Quant::Iq4Xs, FACTOR);
}

#[test]
fn floats() {
    check_shape(small("qwen3-0.6b"), Quant::F16, FACTOR);
    check_shape(small("qwen3-0.6b"), Quant::Bf16, FACTOR);
}

#[test]
fn a_mixture_of_experts() {
    check_shape(small("tiny-moe"), Quant::Q4KM, ROUTED_FACTOR);
    check_shape(small("tiny-moe"), Quant::Mxfp4, ROUTED_FACTOR);
}

#[test]
fn the_bundled_model_on_its_own_texts() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let path = Path::new(root).join("models/loquent-tiny.gguf");
    let options = LoadOptions { vocab_only: true, own_kernels: false, ..LoadOptions::default() };
    let model = LlamaModel::load(&path, &options, |_| true).expect("the bundled model loads");
    let vocab = LlamaVocab::new(model);
    let prompts = |name: &&str| {
        let text = Path::new(root).join("tools/train-tiny/corpus").join(name);
        let text = std::fs::read_to_string(text).expect("a text");
        let how = Encode { add_bos: true, parse_special: false };
        let tokens = vocab.encode(&text, how).expect("tokens");
        let passages = tokens.chunks_exact(1000).take(PASSAGES);
        let prompts = |tokens: &[u32]| PROMPTS.map(|length| tokens[..length].to_vec()).to_vec();
        passages.map(prompts).collect::<Vec<_>>()
    };
    let prompts: Vec<_> = TEXTS.iter().flat_map(prompts).collect();
    assert_eq!(prompts.len(), TEXTS.len() * PASSAGES, "the texts are long enough");
    check("the bundled model", &path, &prompts, FACTOR);
}
