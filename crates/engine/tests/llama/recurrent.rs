//! A recurrent model, whose past cannot be cut: what needs that fails one sequence, never the
//! process.

use std::num::NonZeroU16;

use loquent_engine::llama::{LlamaRunner, RunnerOptions};
use loquent_formats::gguf::{TensorSpec, Value};
use loquent_infer::runner::{Batch, Runner, Sampled, Slot};
use loquent_infer::sampling::{Sampler, Sampling};
use loquent_infer::token::{RowError, TokenId};

use super::random_model::{self, vocabulary};

const WIDTH: u64 = 64;
const INNER: u64 = 2 * WIDTH;
const STATE: u64 = 16;
const RANK: u64 = 4;
const CONVOLUTION: u64 = 4;

/// The keys of a random Mamba of two layers.
fn metadata() -> Vec<(String, Value)> {
    let mut metadata = vec![("general.architecture".to_owned(), Value::string("mamba"))];
    for (key, value) in [
        ("context_length", 1024),
        ("embedding_length", WIDTH),
        ("feed_forward_length", 0),
        ("attention.head_count", 0),
        ("block_count", 2),
        ("ssm.conv_kernel", CONVOLUTION),
        ("ssm.inner_size", INNER),
        ("ssm.state_size", STATE),
        ("ssm.time_step_rank", RANK),
    ] {
        metadata.push((format!("mamba.{key}"), Value::u32(value as u32)));
    }
    let epsilon = "mamba.attention.layer_norm_rms_epsilon".to_owned();
    metadata.push((epsilon, Value::F32(1e-5)));
    metadata
}

fn tensors() -> Vec<TensorSpec> {
    let mut tensors = vec![
        TensorSpec::f32("token_embd.weight", &[WIDTH, vocabulary().len() as u64]),
        TensorSpec::f32("output_norm.weight", &[WIDTH]),
    ];
    for layer in 0..2 {
        for (name, dims) in [
            ("attn_norm.weight", &[WIDTH][..]),
            ("ssm_in.weight", &[WIDTH, 2 * INNER]),
            ("ssm_conv1d.weight", &[CONVOLUTION, INNER]),
            ("ssm_conv1d.bias", &[INNER]),
            ("ssm_x.weight", &[INNER, RANK + 2 * STATE]),
            ("ssm_dt.weight", &[RANK, INNER]),
            ("ssm_dt.bias", &[INNER]),
            ("ssm_a", &[STATE, INNER]),
            ("ssm_d", &[INNER]),
            ("ssm_out.weight", &[INNER, WIDTH]),
        ] {
            tensors.push(TensorSpec::f32(format!("blk.{layer}.{name}"), dims));
        }
    }
    tensors
}

fn runner() -> LlamaRunner {
    let model = random_model::load(metadata(), &tensors(), |tensor, values| {
        if tensor.name.ends_with("ssm_a") {
            // The state fades: its factors are exponentials of these.
            values.iter_mut().for_each(|value| *value = -1.0 - value.abs());
        }
    });
    let options = RunnerOptions {
        slots: 2,
        kv_cells: 256,
        threads: NonZeroU16::new(1),
        ..RunnerOptions::default()
    };
    LlamaRunner::new(model, &options).unwrap()
}

/// Runs one batch; the outcomes of its slots in order.
pub fn run(
    runner: &mut LlamaRunner,
    spans: &[(u16, u32, &[TokenId])],
) -> Vec<Result<TokenId, RowError>> {
    let (mut batch, mut sampled) = (Batch::default(), Vec::new());
    spans.iter().for_each(|(slot, start, tokens)| batch.push(Slot(*slot), *start, tokens, true));
    runner.run(&batch, &mut sampled).unwrap();
    let slots: Vec<u16> = sampled.iter().map(|row: &Sampled| row.slot.0).collect();
    assert_eq!(slots, spans.iter().map(|span| span.0).collect::<Vec<_>>());
    sampled.into_iter().map(|row| row.outcome.map(|choice| choice.token)).collect()
}

#[test]
fn a_cut_that_a_recurrent_model_cannot_make_fails_its_sequence_alone() {
    let mut runner = runner();
    assert!(!runner.capacity().shares_prefix);
    for slot in [0, 1] {
        runner.assign(Slot(slot), Sampler::new(Sampling::default(), &[], &[]));
    }
    let begun = run(&mut runner, &[(0, 0, &[1, 2, 3]), (1, 0, &[4, 5, 6])]);
    assert!(begun.iter().all(Result::is_ok), "{begun:?}");
    // As after a batch that failed: positions are to be forgotten, which this model cannot.
    runner.truncate(Slot(0), 2);
    let after = run(&mut runner, &[(0, 2, &[3]), (1, 3, &[7])]);
    assert_eq!(after[0], Err(RowError::OutOfStep));
    assert!(after[1].is_ok(), "{after:?}");
    // A cut of nothing is none, and a slot that was freed is as good as new.
    runner.truncate(Slot(1), 4);
    assert!(run(&mut runner, &[(1, 4, &[8])])[0].is_ok());
    runner.truncate(Slot(0), 0);
    assert_eq!(run(&mut runner, &[(0, 0, &[1, 2, 3])])[0], begun[0]);
}
