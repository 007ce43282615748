//! Embeddings of the random model: pooled as asked, whatever the batches, and those of a
//! bidirectional model as computed by hand.

use std::sync::Arc;

use loquent_engine::llama::{LlamaEmbedder, LlamaModel, RunnerOptions};
use loquent_engine::{KvType, Pooling};
use loquent_infer::embedding::Embedder;
use loquent_infer::runner::{Batch, Slot};
use loquent_infer::token::TokenId;

fn embedder(model: Arc<LlamaModel>, pooling: Pooling) -> LlamaEmbedder {
    let options = RunnerOptions {
        threads: Some(std::num::NonZeroU16::MIN),
        context_tokens: 256,
        // With which llama.cpp's kernels for one and for many tokens agree.
        kv_type: KvType::F32,
        ..RunnerOptions::default()
    };
    LlamaEmbedder::new(model, &options, pooling).expect("a context")
}

/// The vector of `tokens`, computed in parts of these lengths and a last one of what is left.
fn vector(embedder: &mut LlamaEmbedder, tokens: &[TokenId], parts: &[usize]) -> Vec<f32> {
    let (mut start, mut vectors, mut batch) = (0, Vec::new(), Batch::default());
    for len in parts.iter().copied().chain([usize::MAX]) {
        let end = tokens.len().min(start + len.min(tokens.len()));
        batch.clear();
        batch.push(Slot(3), start as u32, &tokens[start..end], end == tokens.len());
        embedder.embed(&batch, &mut vectors).unwrap();
        start = end;
        if start == tokens.len() {
            break;
        }
    }
    assert_eq!(vectors.len(), 1);
    vectors.pop().unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(|i| (i * 37 + 11) % 250).collect()
}

#[test]
fn the_mean_is_that_of_the_tokens_computed_by_hand() {
    let tokens = tokens(40);
    // In a causal model the last vector of each beginning is that of its last token.
    let mut last = embedder(super::random(), Pooling::Last);
    let each: Vec<Vec<f32>> =
        (1..=tokens.len()).map(|len| vector(&mut last, &tokens[..len], &[])).collect();
    let sum = |at: usize| each.iter().map(|vector| f64::from(vector[at])).sum::<f64>();
    let by_hand: Vec<f32> =
        (0..each[0].len()).map(|at| (sum(at) / tokens.len() as f64) as f32).collect();
    let mut mean = embedder(super::random(), Pooling::Mean);
    let pooled = vector(&mut mean, &tokens, &[]);
    for (pooled, by_hand) in pooled.iter().zip(&by_hand) {
        assert!((pooled - by_hand).abs() < 1e-4, "{pooled} is not {by_hand}");
    }
    assert!(cosine(&pooled, &by_hand) > 0.99999);
    let mut cls = embedder(super::random(), Pooling::Cls);
    assert!(cosine(&vector(&mut cls, &tokens, &[]), &each[0]) > 0.99999);
}

#[test]
fn parts_and_neighbours_change_no_vector() {
    let tokens = tokens(50);
    for pooling in Pooling::ALL {
        let mut embedder = embedder(super::random(), pooling);
        let whole = vector(&mut embedder, &tokens, &[]);
        for parts in [&[1, 30][..], &[7, 7, 7], &[49]] {
            let parted = vector(&mut embedder, &tokens, parts);
            assert!(cosine(&whole, &parted) > 0.9999, "{pooling} in parts of {parts:?}");
        }
        // Beside others in one batch, two of which go on in the next.
        let (mut batch, mut vectors) = (Batch::default(), Vec::new());
        batch.push(Slot(0), 0, &tokens[10..20], true);
        batch.push(Slot(1), 0, &tokens, true);
        batch.push(Slot(2), 0, &tokens[..20], false);
        embedder.embed(&batch, &mut vectors).unwrap();
        batch.clear();
        batch.push(Slot(0), 0, &tokens[..5], true);
        batch.push(Slot(2), 20, &tokens[20..], true);
        embedder.embed(&batch, &mut vectors).unwrap();
        assert_eq!(vectors.len(), 4);
        assert!(cosine(&whole, &vectors[1]) > 0.9999 && cosine(&whole, &vectors[3]) > 0.9999);
        assert!(cosine(&whole, &vectors[0]) < 0.9999, "another text has another vector");
    }
}

#[test]
fn a_batch_against_the_rules_is_an_error() {
    let mut embedder = embedder(super::random(), Pooling::Mean);
    let capacity = embedder.capacity();
    assert!(capacity.in_parts && capacity.width == 64);
    let mut refused = |slot: u16, start: u32, tokens: &[TokenId]| {
        let mut batch = Batch::default();
        batch.push(Slot(slot), start, tokens, true);
        embedder.embed(&batch, &mut Vec::new()).is_err()
    };
    assert!(refused(0, 0, &[999_999]), "a token outside the vocabulary");
    assert!(refused(capacity.slots, 0, &[1]), "a slot that there is not");
    assert!(refused(0, 5, &[1]), "a part without those before it");
    assert!(refused(0, 0, &vec![1; capacity.batch_tokens as usize + 1]), "too many tokens");
    assert!(!refused(0, 0, &[1, 2, 3]), "a sound batch after all of them");
}
