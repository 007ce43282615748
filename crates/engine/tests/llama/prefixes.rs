//! A prompt whose beginning comes from the cache, in other cells and other batches than when it is
//! computed as a whole: to the last bit the same with our kernels, and otherwise the same but for
//! how sums are rounded.

use std::num::NonZeroU16;
use std::sync::Arc;

use loquent_engine::KvType;
use loquent_engine::llama::{LlamaModel, LlamaRunner, LoadOptions, RunnerOptions};
use loquent_infer::runner::{Batch, Runner, SavedSpan, Slot};
use loquent_infer::sampling::{Logprobs, Sampler, Sampling};
use loquent_infer::token::TokenId;

use super::kernels::{can_run, models};
use super::random_model::{self, Defect, Width};

const PROMPT: u32 = 20;
const STEPS: u32 = 6;
/// The slot of the sequence, that of the one that it shares its beginning with, and the others'.
const SLOTS: (Slot, Slot, [Slot; 3]) = (Slot(6), Slot(5), [Slot(0), Slot(1), Slot(2)]);

/// How the prompt gets into the cache.
#[derive(Debug, Clone, Copy)]
enum Way {
    Whole,
    /// So many of its tokens were another sequence's, which is gone.
    Shared(usize),
    /// The same behind other sequences' cells.
    SharedInCompany(usize),
    /// So many of its tokens were computed behind other sequences' cells. The others took the
    /// cells that these left: before the first ones.
    Around(usize),
    /// So many of its tokens were computed in another process and restored here.
    Restored(usize),
    /// The same; there and here cells of other sequences, some of them gone, lay around.
    RestoredAround(usize),
}

/// The prompt of sequence number `sequence`.
fn prompt(sequence: u32) -> Vec<TokenId> {
    (0..PROMPT).map(|i| (sequence * 31 + i * 7) % 200).collect()
}

fn compute(runner: &mut LlamaRunner, slot: Slot, tokens: &[TokenId], start: usize) {
    let mut batch = Batch::default();
    batch.push(slot, start as u32, tokens, false);
    runner.run(&batch, &mut Vec::new()).expect("the prompt runs");
}

/// The log-probabilities of the tokens behind the prompt `tokens`.
fn run(
    model: &Arc<LlamaModel>,
    kv_type: KvType,
    tokens: &[TokenId],
    way: Way,
) -> Vec<Vec<(TokenId, f32)>> {
    let threads = Some(NonZeroU16::MIN);
    let options = RunnerOptions {
        slots: 7,
        kv_cells: 512,
        kv_type,
        threads,
        saves_spans: true,
        ..RunnerOptions::default()
    };
    let new_runner = || LlamaRunner::new(model.clone(), &options).expect("a context");
    let mut runner = new_runner();
    let (slot, donor, company) = SLOTS;
    if let Way::SharedInCompany(_) | Way::Around(_) | Way::RestoredAround(_) = way {
        (10..).zip(company).for_each(|(n, slot)| compute(&mut runner, slot, &prompt(n), 0));
    }
    let sampling = Sampling { logprobs: Some(8), ..Sampling::default() };
    runner.assign(slot, Sampler::new(sampling, tokens, &[]));
    match way {
        Way::Whole => compute(&mut runner, slot, tokens, 0),
        Way::Shared(len) | Way::SharedInCompany(len) => {
            compute(&mut runner, donor, &tokens[..len], 0);
            runner.fork(donor, slot, len as u32);
            runner.truncate(donor, 0);
            compute(&mut runner, slot, &tokens[len..], len);
        }
        Way::Around(len) => {
            compute(&mut runner, slot, &tokens[..len], 0);
            company.iter().for_each(|&other| runner.truncate(other, 0));
            compute(&mut runner, slot, &tokens[len..], len);
        }
        Way::Restored(len) => {
            let saved = save(&mut new_runner(), &tokens[..len], 0);
            restore(&mut runner, slot, &saved, len);
            compute(&mut runner, slot, &tokens[len..], len);
        }
        Way::RestoredAround(len) => {
            let mut other = new_runner();
            company.iter().for_each(|&slot| compute(&mut other, slot, &prompt(8), 0));
            let saved = save(&mut other, &tokens[..len], len / 2);
            // Holes between the company's cells, which were written before.
            runner.truncate(company[0], 0);
            runner.truncate(company[1], 3);
            restore(&mut runner, slot, &saved, len);
            compute(&mut runner, slot, &tokens[len..], len);
        }
    }
    let step = |i| {
        let mut batch = Batch::default();
        batch.push(slot, PROMPT + i, &[(i * 13) % 200], true);
        let mut sampled = Vec::new();
        runner.run(&batch, &mut sampled).expect("the step runs");
        let token = sampled.remove(0).outcome.expect("a token");
        let Logprobs { top, .. } = *token.logprobs.expect("asked for");
        top
    };
    (0..STEPS).map(step).collect()
}

/// Computes `tokens` in two parts, with cells before theirs set free in between, and saves them in
/// two spans.
fn save(runner: &mut LlamaRunner, tokens: &[TokenId], first: usize) -> [SavedSpan; 2] {
    let (slot, _, company) = SLOTS;
    runner.assign(slot, Sampler::new(Sampling::default(), tokens, &[]));
    if first > 0 {
        compute(runner, slot, &tokens[..first], 0);
        company.iter().for_each(|&other| runner.truncate(other, 0));
    }
    compute(runner, slot, &tokens[first..], first);
    let (half, len) = (tokens.len() as u32 * 2 / 3, tokens.len() as u32);
    let mut span = |positions| runner.save(slot, positions).expect("they are there");
    let saved = [span(0..half), span(half..len)];
    assert!(runner.save(slot, half..len + 1).is_err(), "one more than there are");
    saved
}

/// Restores the first `len` tokens of `slot`, of which it has none.
fn restore(runner: &mut LlamaRunner, slot: Slot, saved: &[SavedSpan; 2], len: usize) {
    let mut from = 0;
    for span in saved {
        // A damaged one leaves the slot as it is.
        for cut in [0, 11, 40, span.state.len() / 2, span.state.len() - 1] {
            let damaged = SavedSpan { state: span.state[..cut].to_vec(), ..span.clone() };
            assert!(runner.restore(slot, from..span.positions.end, &damaged).is_err(), "{cut}");
        }
        // Not all at once: the rest of a span may be wanted later.
        for to in [span.positions.end - 1, span.positions.end] {
            runner.restore(slot, from..to, span).expect("it was saved");
            from = to;
        }
    }
    assert_eq!(from, len as u32);
}

const WAYS: [Way; 11] = [
    Way::Shared(1),
    Way::Shared(13),
    Way::Shared(PROMPT as usize - 1),
    Way::SharedInCompany(1),
    Way::SharedInCompany(13),
    Way::Around(1),
    Way::Around(13),
    Way::Restored(4),
    Way::Restored(13),
    Way::RestoredAround(13),
    Way::RestoredAround(PROMPT as usize - 1),
];

#[test]
fn with_our_kernels_a_prefix_from_the_cache_changes_no_bit() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [own, _] = models(folder.path(), Width::BLOCKS);
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let whole = run(&own, kv_type, &prompt(3), Way::Whole);
        for way in WAYS {
            assert_eq!(run(&own, kv_type, &prompt(3), way), whole, "{kv_type:?}, {way:?}");
        }
    }
}

/// The largest difference between log-probabilities that both sides name.
fn difference(one: &[Vec<(TokenId, f32)>], other: &[Vec<(TokenId, f32)>]) -> f32 {
    let pairs = one.iter().flatten().zip(other.iter().flatten());
    assert!(pairs.clone().count() > 0);
    pairs.map(|(one, other)| (one.1 - other.1).abs()).fold(0.0, f32::max)
}

/// With a cache of 32-bit floats attention is llama.cpp's, which adds in the order of the cells and
/// a fixed number of them at a time: where a sequence lies changes the last bit. Weights of 32 bits
/// show that it is no more than that, since nothing rounds activations to 8 bits after it.
#[test]
fn with_a_cache_of_32_bits_a_prefix_from_the_cache_changes_rounding_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("f32.gguf");
    random_model::write(&path, Width::BLOCKS, Defect::None);
    let options = LoadOptions { mmap: false, ..LoadOptions::default() };
    let model = LlamaModel::load(&path, &options, |_| true).expect("the model loads");
    let whole = run(&model, KvType::F32, &prompt(3), Way::Whole);
    for way in WAYS {
        let most = difference(&run(&model, KvType::F32, &prompt(3), way), &whole);
        assert!(most < 1e-4, "{way:?}: {most}");
    }
    // One wrong token among those that are shared is far beyond that.
    let mut wrong = prompt(3);
    wrong[0] += 1;
    let most = difference(&run(&model, KvType::F32, &wrong, Way::Shared(13)), &whole);
    assert!(most > 1e-2, "{most}");
}
