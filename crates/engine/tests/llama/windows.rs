//! A model with sliding windows, whose past can be shared and cut as long as what the next token
//! sees is there.

use std::num::NonZeroU16;

use loquent_engine::llama::{History, LlamaRunner, RunnerOptions};
use loquent_formats::gguf::{TensorSpec, Value};
use loquent_infer::runner::{Runner, Slot};
use loquent_infer::sampling::{Sampler, Sampling};
use loquent_infer::token::{RowError, TokenId};

use super::random_model::{self, vocabulary};
use super::recurrent::run;

const WIDTH: u64 = 64;
/// Of two heads; they share their keys and values.
const HEAD: u64 = WIDTH / 2;
/// Five with a window, then one without.
const LAYERS: u32 = 6;
const WINDOW: u32 = 16;
const CELLS: u32 = 256;

/// The keys of a random Gemma 3.
fn metadata() -> Vec<(String, Value)> {
    let mut metadata = vec![("general.architecture".to_owned(), Value::string("gemma3"))];
    for (key, value) in [
        ("context_length", 1024),
        ("embedding_length", WIDTH as u32),
        ("block_count", LAYERS),
        ("feed_forward_length", 2 * WIDTH as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", HEAD as u32),
        ("attention.value_length", HEAD as u32),
        ("attention.sliding_window", WINDOW),
    ] {
        metadata.push((format!("gemma3.{key}"), Value::u32(value)));
    }
    let epsilon = "gemma3.attention.layer_norm_rms_epsilon".to_owned();
    metadata.push((epsilon, Value::F32(1e-6)));
    metadata
}

fn tensors() -> Vec<TensorSpec> {
    let mut tensors = vec![
        TensorSpec::f32("token_embd.weight", &[WIDTH, vocabulary().len() as u64]),
        TensorSpec::f32("output_norm.weight", &[WIDTH]),
    ];
    for layer in 0..LAYERS {
        for (name, dims) in [
            ("attn_norm", &[WIDTH][..]),
            ("attn_q", &[WIDTH, WIDTH]),
            ("attn_k", &[WIDTH, HEAD]),
            ("attn_v", &[WIDTH, HEAD]),
            ("attn_output", &[WIDTH, WIDTH]),
            ("attn_q_norm", &[HEAD]),
            ("attn_k_norm", &[HEAD]),
            ("post_attention_norm", &[WIDTH]),
            ("ffn_norm", &[WIDTH]),
            ("ffn_gate", &[WIDTH, 2 * WIDTH]),
            ("ffn_up", &[WIDTH, 2 * WIDTH]),
            ("ffn_down", &[2 * WIDTH, WIDTH]),
            ("post_ffw_norm", &[WIDTH]),
        ] {
            tensors.push(TensorSpec::f32(format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    tensors
}

fn runner() -> LlamaRunner {
    let model = random_model::load(metadata(), &tensors(), |_, _| {});
    assert_eq!(model.info().history, History::Window(WINDOW));
    let options = RunnerOptions {
        slots: 4,
        kv_cells: CELLS,
        threads: NonZeroU16::new(1),
        ..RunnerOptions::default()
    };
    let mut runner = LlamaRunner::new(model, &options).unwrap();
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    for slot in 0..4 {
        runner.assign(Slot(slot), Sampler::new(greedy.clone(), &[], &[]));
    }
    runner
}

/// Tokens of a text that no other seed gives.
fn text(seed: u32, count: usize) -> Vec<TokenId> {
    (0..count as u32).map(|i| (i * 37 + i / 7 * 11 + seed * 101) % 251).collect()
}

#[test]
fn a_prefix_is_shared_as_long_as_its_window_is_there() {
    let mut runner = runner();
    assert!(runner.capacity().shares_prefix && !runner.holds_all());
    assert_eq!(runner.verify_rows(), None, "no drafts: they may have to be cut off");
    let asked = text(0, 100);
    // Slot 1 has the first cells, and slot 0 those after them.
    run(&mut runner, &[(1, 0, &text(1, 60))]);
    let undisturbed = run(&mut runner, &[(0, 0, &asked)]);
    run(&mut runner, &[(2, 0, &text(2, 96))]);
    assert!(runner.holds(Slot(0), 10) && runner.holds(Slot(0), 100), "nothing is lost so far");

    // All cells are taken. The next token finds none that is free before those of slot 0 whose
    // positions nothing of slot 0 sees any more.
    runner.truncate(Slot(1), 0);
    run(&mut runner, &[(1, 0, &text(3, 60))]);
    runner.truncate(Slot(2), 90);
    run(&mut runner, &[(2, 90, &text(4, 1))]);
    assert!(!runner.holds(Slot(0), 10), "its first position is gone");
    assert!(runner.holds(Slot(0), 30) && runner.holds(Slot(0), 100));

    for slot in [1, 2] {
        runner.truncate(Slot(slot), 0);
    }
    for len in [30, 99] {
        runner.fork(Slot(0), Slot(3), len);
        let rest = &asked[len as usize..];
        assert_eq!(run(&mut runner, &[(3, len, rest)]), undisturbed, "from {len} on");
        runner.truncate(Slot(3), 0);
    }
    // A cut that would leave a hole costs the sequence, and nothing else.
    runner.truncate(Slot(0), 10);
    assert_eq!(run(&mut runner, &[(0, 10, &asked[10..])]), [Err(RowError::OutOfStep)]);
}
