//! No header ends the process: loading it and a first step give a model or an error.
//!
//! Each number of a sound header, and each that llama.cpp would read if it were there, takes extreme
//! values. A key is tried in a process of its own, so that a crash is one failed test that names it.

use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;

use loquent_engine::llama::{LlamaModel, LlamaRunner, LoadError, LoadOptions, RunnerOptions};
use loquent_formats::gguf::{Array, Value, ValueKind};
use loquent_infer::runner::{Batch, Runner, Slot};
use loquent_infer::sampling::{Sampler, Sampling};

use super::random_model;

/// Names the key to the process that tries it.
const KEY: &str = "LOQUENT_TEST_HEADER_KEY";

const COUNTS: &str = "
    llama.context_length llama.embedding_length llama.block_count llama.feed_forward_length
    llama.attention.head_count llama.attention.head_count_kv llama.attention.key_length
    llama.attention.value_length llama.attention.sliding_window llama.rope.dimension_count
    llama.rope.scaling.original_context_length llama.vocab_size llama.expert_count
    llama.expert_used_count llama.expert_shared_count llama.expert_feed_forward_length
    llama.leading_dense_block_count llama.pooling_type general.file_type general.alignment
    tokenizer.ggml.bos_token_id tokenizer.ggml.eos_token_id
    tokenizer.ggml.eot_token_id tokenizer.ggml.unknown_token_id tokenizer.ggml.padding_token_id
    tokenizer.ggml.separator_token_id tokenizer.ggml.fim_pre_token_id
    tokenizer.ggml.token_type_count";
const SHORTS: &str = "split.count split.no";
const NUMBERS: &str = "
    llama.rope.freq_base llama.rope.scaling.factor llama.rope.scale_linear llama.logit_scale
    llama.attention.scale llama.attention.layer_norm_rms_epsilon llama.attention.clamp_kqv
    llama.rope.scaling.attn_factor llama.expert_weights_scale llama.residual_scale";
const LISTS: &str = "
    tokenizer.ggml.tokens tokenizer.ggml.token_type tokenizer.ggml.scores tokenizer.ggml.merges
    llama.attention.head_count llama.attention.head_count_kv llama.feed_forward_length
    llama.attention.sliding_window_pattern llama.rope.dimension_sections
    tokenizer.ggml.precompiled_charsmap";

fn values(key: &str) -> Vec<Value> {
    let is_of = |keys: &str| keys.split_whitespace().any(|listed| listed == key);
    let mut values = vec![Value::Bool(true), Value::string("64"), Value::F32(64.0)];
    if is_of(NUMBERS) {
        let extremes = [0.0, -0.0, -1.0, 1e-38, 1e38, f32::NAN, f32::INFINITY];
        values.extend(extremes.map(Value::F32));
    }
    if is_of(COUNTS) {
        let extremes = [0, 1, 2, 3, 5, 63, 65, 257, 1 << 16, i32::MAX as u32, 1 << 31, u32::MAX];
        values.extend(extremes.map(Value::u32));
    }
    if is_of(SHORTS) {
        let extremes = [0, 1, 2, 1 << 15, u16::MAX.into()];
        values.extend(extremes.map(|value| Value::Unsigned(ValueKind::U16, value)));
    }
    if is_of(LISTS) {
        let numbers = [vec![], vec![1], vec![0; 2], vec![i32::MAX; 260], vec![i32::MIN; 300]];
        values.extend(numbers.map(|list| Value::Array(Array::of_i32(list))));
        let texts = [vec![], vec![""], vec!["a b"; 260], vec!["\u{0}", " ", "  "], vec!["x"; 300]];
        values.extend(texts.map(|list| Value::Array(Array::of_strings(list))));
    }
    values
}

/// Loads a model with this header and takes one step.
fn load_and_run(path: &Path) -> Result<String, LoadError> {
    // 256 MiB: what a claim would need beyond it is refused, and not taken from the machine.
    let options = LoadOptions {
        mmap: false,
        kv_cells: 64,
        memory_bytes: Some(256 << 20),
        ..LoadOptions::default()
    };
    let model = LlamaModel::load(path, &options, |_| true)?;
    let options = RunnerOptions {
        slots: 1,
        kv_cells: 64,
        batch_tokens: 16,
        pass_tokens: 16,
        threads: NonZeroU16::new(1),
        ..RunnerOptions::default()
    };
    let mut runner = LlamaRunner::new(model, &options)?;
    let prompt = [1, 2];
    runner.assign(Slot(0), Sampler::new(Sampling::default(), &prompt, &[]));
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &prompt, true);
    let mut sampled = Vec::new();
    Ok(format!("{:?}", runner.run(&batch, &mut sampled)))
}

/// Does nothing unless started by the test below.
#[test]
fn one_key() {
    let Ok(key) = std::env::var(KEY) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for value in values(&key) {
        eprintln!("{value:?}");
        random_model::write_claiming(&path, &key, value);
        match load_and_run(&path) {
            Ok(outcome) => eprintln!("  a model; {outcome}"),
            Err(error) => eprintln!("  {error}"),
        }
    }
    eprintln!("survived");
}

#[test]
fn whatever_a_header_claims_the_process_goes_on() {
    let own = std::env::current_exe().unwrap();
    let failed: Vec<String> = [COUNTS, SHORTS, NUMBERS, LISTS]
        .iter()
        .flat_map(|keys| keys.split_whitespace())
        .filter_map(|key| {
            let mut child = Command::new(&own);
            child.args(["--exact", "llama::hostile_headers::one_key", "--nocapture"]);
            let output = child.env(KEY, key).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_alive = output.status.success() && text.contains("survived");
            (!is_alive).then(|| format!("{key}: {} after\n{text}", output.status))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
