//! Batches: the same tokens alone and in company, shared and cut pasts, bad rows, full caches.
//!
//! With F32 KV, where llama.cpp's kernels for one and for many tokens agree to 2e-6 in the
//! logits of the random model; its least margin between the best two is 1e-3.

use std::num::NonZeroU16;
use std::sync::Arc;

use loquent_engine::KvType;
use loquent_engine::llama::{LlamaModel, LlamaRunner, LlamaVocab, RunnerOptions};
use loquent_infer::runner::{Batch, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::{Sampler, Sampling};
use loquent_infer::token::{RowError, TokenId};
use loquent_infer::vocab::{Encode, Vocab};

use super::random_model::Defect;

const STEPS: usize = 24;

fn runner(model: Arc<LlamaModel>, slots: u16, kv_cells: u32) -> LlamaRunner {
    runner_with(KvType::F32, model, slots, kv_cells)
}

fn runner_with(kv_type: KvType, model: Arc<LlamaModel>, slots: u16, kv_cells: u32) -> LlamaRunner {
    let options = RunnerOptions {
        slots,
        kv_cells,
        batch_tokens: 2048,
        kv_type,
        // Compute threads wait for each other spinning: with one, tests run side by side.
        threads: NonZeroU16::new(1),
        ..RunnerOptions::default()
    };
    LlamaRunner::new(model, &options).expect("a context")
}

/// Sixteen prompts of different lengths.
fn prompts(model: &Arc<LlamaModel>) -> Vec<Vec<TokenId>> {
    let vocab = LlamaVocab::new(model.clone());
    let topics = ["tokens", "a stream", "the server", "losses on the way", "nothing at all"];
    let how = Encode { add_bos: true, parse_special: true };
    let prompt = |i: usize| {
        let topic = format!("{} {i}", topics[i % topics.len()].repeat(1 + i / 5));
        let text =
            format!("<|im_start|>user\nWhat about {topic}?<|im_end|>\n<|im_start|>assistant\n");
        vocab.encode(&text, how).unwrap()
    };
    (0..16).map(prompt).collect()
}

/// Puts sequences into slots 0.. and decodes `steps` tokens of each, one batch a step.
struct Session {
    runner: LlamaRunner,
    sequences: Vec<Vec<TokenId>>,
    /// Positions with KV.
    computed: Vec<usize>,
}

impl Session {
    fn new(runner: LlamaRunner, sequences: &[Vec<TokenId>]) -> Self {
        let computed = vec![0; sequences.len()];
        let mut session = Self { runner, sequences: sequences.to_vec(), computed };
        for (i, sequence) in sequences.iter().enumerate() {
            let sampler = Sampler::new(Sampling::default(), sequence, &[]);
            session.runner.assign(Slot(i as u16), sampler);
        }
        session
    }

    /// Computes what is missing of every sequence and samples one token of each.
    fn step(&mut self) -> Vec<Sampled> {
        let mut batch = Batch::default();
        for (i, sequence) in self.sequences.iter().enumerate() {
            let from = self.computed[i];
            batch.push(Slot(i as u16), from as u32, &sequence[from..], true);
            self.computed[i] = sequence.len();
        }
        let mut sampled = Vec::new();
        self.runner.run(&batch, &mut sampled).expect("the batch runs");
        for row in &sampled {
            if let Ok(choice) = &row.outcome {
                self.sequences[row.slot.index()].push(choice.token);
            }
        }
        sampled
    }

    fn generate(mut self, steps: usize) -> Vec<Vec<TokenId>> {
        (0..steps).for_each(|_| _ = self.step());
        self.sequences
    }
}

fn alone(model: &Arc<LlamaModel>, prompt: &[TokenId], steps: usize) -> Vec<TokenId> {
    Session::new(runner(model.clone(), 1, 512), &[prompt.to_vec()]).generate(steps).remove(0)
}

fn check_batched(model: &Arc<LlamaModel>) {
    let prompts = prompts(model);
    let together = Session::new(runner(model.clone(), 16, 4096), &prompts).generate(STEPS);
    for (i, prompt) in prompts.iter().enumerate() {
        assert_eq!(together[i], alone(model, prompt, STEPS), "sequence {i}");
    }
}

#[test]
fn batched_equals_alone() {
    check_batched(&super::random());
}

#[test]
fn batched_equals_alone_on_the_bundled_model() {
    if let Some(model) = super::bundled() {
        check_batched(&model);
    }
}

#[test]
fn a_shared_prefix_equals_a_computed_one() {
    let models = [Some(super::random()), super::bundled()];
    for model in models.into_iter().flatten() {
        let prompt = prompts(&model).swap_remove(15);
        let expected = alone(&model, &prompt, STEPS);
        let shared = prompt.len() / 2;
        let sequences = [prompt[..shared + 3].to_vec(), prompt.clone()];
        let mut session = Session::new(runner(model, 2, 1024), &sequences[..1]);
        session.step();
        session.runner.fork(Slot(0), Slot(1), shared as u32);
        session.runner.assign(Slot(1), Sampler::new(Sampling::default(), &prompt, &[]));
        session.sequences.push(prompt);
        session.computed.push(shared);
        // The first sequence goes on beside it and is then freed: the shared part stays.
        session.step();
        session.runner.truncate(Slot(0), 0);
        let mut batch = Batch::default();
        for step in 1..STEPS {
            let sequence = &mut session.sequences[1];
            batch.clear();
            batch.push(Slot(1), sequence.len() as u32 - 1, &sequence[sequence.len() - 1..], true);
            let mut sampled = Vec::new();
            session.runner.run(&batch, &mut sampled).unwrap();
            sequence.push(sampled[0].outcome.as_ref().unwrap().token);
            assert_eq!(sequence.last(), expected.get(sequence.len() - 1), "step {step}");
        }
    }
}

#[test]
fn a_cut_sequence_goes_on_as_it_would_have() {
    let models = [Some(super::random()), super::bundled()];
    for model in models.into_iter().flatten() {
        let prompt = prompts(&model).swap_remove(7);
        let expected = alone(&model, &prompt, STEPS);
        let mut session = Session::new(runner(model, 1, 512), std::slice::from_ref(&prompt));
        (0..10).for_each(|_| _ = session.step());
        let kept = prompt.len() + 4;
        session.runner.truncate(Slot(0), kept as u32 - 1);
        session.sequences[0].truncate(kept);
        session.computed[0] = kept - 1;
        assert_eq!(session.generate(STEPS - 4), [expected]);
    }
}

#[test]
fn what_was_given_up_is_computed_again_as_if_nothing_had_been() {
    let models = [Some(super::random()), super::bundled()];
    for model in models.into_iter().flatten() {
        let mut sequences = prompts(&model);
        sequences.truncate(2);
        let expected: Vec<_> = sequences.iter().map(|one| alone(&model, one, STEPS)).collect();
        let late = sequences.pop().unwrap();
        let mut session = Session::new(runner(model, 2, 1024), &sequences);
        (0..3).for_each(|_| _ = session.step());
        // One goes on, the other one begins.
        session.runner.assign(Slot(1), Sampler::new(Sampling::default(), &late, &[]));
        let (from, mut sampled) = (session.computed[0], Vec::new());
        let mut batch = Batch { is_spare: true, ..Batch::default() };
        batch.push(Slot(0), from as u32, &session.sequences[0][from..], true);
        batch.push(Slot(1), 0, &late, true);
        let preemption = session.runner.preemption().expect("it keeps its whole past");
        preemption.ask();
        for _ in 0..2 {
            assert_eq!(session.runner.run(&batch, &mut sampled), Err(RunError::Preempted));
        }
        // Nobody gives up what others wait for.
        session.sequences.push(late);
        session.computed.push(0);
        session.step();
        // Asked for at any moment, it is given up or complete.
        for pause_us in [0, 20, 100, 500, 2000] {
            preemption.withdraw();
            let asks = preemption.clone();
            let asking = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_micros(pause_us));
                asks.ask();
            });
            let mut batch = Batch { is_spare: true, ..Batch::default() };
            for (slot, sequence) in (0..).map(Slot).zip(&session.sequences) {
                batch.push(slot, sequence.len() as u32 - 1, &sequence[sequence.len() - 1..], true);
            }
            match session.runner.run(&batch, &mut sampled) {
                Err(error) => assert_eq!(error, RunError::Preempted),
                Ok(()) => {
                    for row in sampled.drain(..) {
                        let slot = row.slot.index();
                        session.computed[slot] = session.sequences[slot].len();
                        session.sequences[slot].push(row.outcome.unwrap().token);
                    }
                }
            }
            asking.join().unwrap();
        }
        while session.sequences[1].len() < expected[1].len() {
            session.step();
        }
        assert_eq!(session.sequences[0][..expected[0].len()], expected[0]);
        assert_eq!(session.sequences[1], expected[1]);
    }
}

#[test]
fn a_prompt_in_chunks_equals_a_whole_one() {
    let model = super::random();
    let prompt = prompts(&model).swap_remove(15);
    let expected = alone(&model, &prompt, 8);
    let mut session = Session::new(runner(model, 1, 512), &[prompt]);
    let whole = session.sequences[0].len();
    let mut batch = Batch::default();
    for start in (0..whole - 1).step_by(7) {
        let end = (start + 7).min(whole - 1);
        batch.clear();
        batch.push(Slot(0), start as u32, &session.sequences[0][start..end], false);
        let mut sampled = Vec::new();
        session.runner.run(&batch, &mut sampled).unwrap();
        assert!(sampled.is_empty());
    }
    session.computed[0] = whole - 1;
    assert_eq!(session.generate(8), [expected]);
}

#[test]
fn a_broken_sequence_fails_alone() {
    let model = super::load_random(Defect::NanToken(b'Z'.into()));
    let mut prompts = prompts(&model);
    prompts.truncate(4);
    // F16, since without flash attention nothing keeps sequences apart.
    let f16 = |model: &Arc<LlamaModel>, slots| runner_with(KvType::F16, model.clone(), slots, 1024);
    let alone = |prompt| Session::new(f16(&model, 1), &[prompt]).generate(8).remove(0);
    let expected: Vec<_> = prompts.iter().cloned().map(alone).collect();
    let mut broken = prompts[1].clone();
    broken[3] = b'Z'.into();
    let sequences = [prompts[0].clone(), broken, prompts[2].clone(), prompts[3].clone()];
    let mut session = Session::new(f16(&model, 4), &sequences);
    let sampled = session.step();
    assert_eq!(sampled[1].outcome, Err(RowError::NonFiniteLogits));
    assert!([0, 2, 3].iter().all(|&i| sampled[i].outcome.is_ok()), "{sampled:?}");
    // Its slot serves another sequence afterwards, in the same cells.
    session.runner.truncate(Slot(1), 0);
    session.runner.assign(Slot(1), Sampler::new(Sampling::default(), &prompts[1], &[]));
    session.sequences[1] = prompts[1].clone();
    session.computed[1] = 0;
    let sequences = session.generate(8);
    for i in [0, 2, 3] {
        assert_eq!(sequences[i][..expected[i].len()], expected[i], "sequence {i}");
    }
    assert_eq!(sequences[1], expected[1]);
}

#[test]
fn a_full_cache_changes_nothing() {
    let model = super::random();
    let prompt: Vec<TokenId> = (0..200).map(|i| 97 + i % 20).collect();
    let expected = alone(&model, &prompt, 8);
    let mut session = Session::new(runner(model, 2, 256), std::slice::from_ref(&prompt));
    session.step();
    session.runner.assign(Slot(1), Sampler::new(Sampling::default(), &prompt, &[]));
    let mut batch = Batch::default();
    batch.push(Slot(1), 0, &prompt, true);
    let mut sampled = Vec::new();
    assert_eq!(session.runner.run(&batch, &mut sampled), Err(RunError::CacheFull));
    assert!(sampled.is_empty());
    assert_eq!(session.generate(7), [expected]);
}

#[test]
fn broken_batches_are_refused_not_run() {
    let mut runner = runner(super::random(), 2, 256);
    let mut batch = Batch::default();
    let mut refused = |batch: &Batch| {
        let outcome = runner.run(batch, &mut Vec::new());
        assert!(matches!(outcome, Err(RunError::Backend(_))), "{outcome:?}");
    };
    refused(&batch);
    batch.push(Slot(0), 0, &[9999], false);
    refused(&batch);
    batch.clear();
    batch.push(Slot(2), 0, &[1], false);
    refused(&batch);
    batch.clear();
    batch.push(Slot(0), 5000, &[1], false);
    refused(&batch);
    batch.clear();
    batch.push(Slot(0), 0, &[1; 3000], false);
    refused(&batch);
}

#[test]
fn warming_up_leaves_no_trace() {
    let model = super::random();
    let prompt = prompts(&model).swap_remove(0);
    let expected = alone(&model, &prompt, 4);
    let mut warm = runner(model, 1, 512);
    warm.warm_up().unwrap();
    assert_eq!(Session::new(warm, &[prompt]).generate(4), [expected]);
}

#[test]
fn many_slots_and_own_caches_work() {
    let model = super::random();
    let prompts = prompts(&model);
    for (slots, kv_unified) in [(256, true), (16, false)] {
        let options = RunnerOptions {
            slots,
            kv_cells: 8192,
            batch_tokens: 2048,
            kv_type: KvType::F32,
            threads: NonZeroU16::new(1),
            kv_unified,
            ..RunnerOptions::default()
        };
        let runner = LlamaRunner::new(model.clone(), &options).unwrap();
        let capacity = runner.capacity();
        assert_eq!((capacity.slots, capacity.shares_prefix), (slots, kv_unified));
        let together = Session::new(runner, &prompts).generate(4);
        for (i, prompt) in prompts.iter().enumerate().step_by(5) {
            assert_eq!(together[i], alone(&model, prompt, 4), "sequence {i}");
        }
    }
}
