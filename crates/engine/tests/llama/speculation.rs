//! Speculative decoding: whatever is drafted, the text is the one that comes without drafts.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use loquent_engine::KvType;
use loquent_engine::llama::{LlamaModel, LlamaRunner, LlamaVocab, RunnerOptions};
use loquent_infer::budget::ItlTarget;
use loquent_infer::request::{Tag, Work};
use loquent_infer::runner::{Batch, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::{SampledToken, Sampler, Sampling};
use loquent_infer::scheduler::{Limits, Load, Scheduler};
use loquent_infer::speculation::Speculation;
use loquent_infer::token::{RowError, TokenId};
use loquent_infer::vocab::{Encode, Vocab};

use super::random_model::{Defect, Width};

fn runner(model: Arc<LlamaModel>, kv_type: KvType, slots: u16) -> LlamaRunner {
    let options = RunnerOptions {
        slots,
        kv_cells: 1024,
        kv_type,
        // Compute threads wait for each other spinning: with one, tests run side by side.
        threads: NonZeroU16::new(1),
        ..RunnerOptions::default()
    };
    LlamaRunner::new(model, &options).expect("a context")
}

/// The engine's loop: what all `works` (tags 0, 1, …) come to.
fn generate(
    mut runner: LlamaRunner,
    works: &[Work],
    speculation: Speculation,
) -> (Vec<Vec<SampledToken>>, Load) {
    let limits = Limits {
        max_batch_size: works.len(),
        prefill_max_tokens: 64,
        itl_target: ItlTarget::Unbounded,
        prefix_cache: true,
        speculation,
        queue_timeout: None,
    };
    let mut scheduler = Scheduler::new(runner.capacity(), limits, vec![]);
    works.iter().for_each(|work| scheduler.submit(Duration::ZERO, work.clone()));
    let mut generated = vec![Vec::new(); works.len()];
    let (mut batch, mut sampled) = (Batch::default(), Vec::new());
    let mut now = Duration::ZERO;
    while scheduler.has_work() {
        scheduler.plan(now, &mut runner, &mut batch);
        sampled.clear();
        runner.run(&batch, &mut sampled).expect("the batch runs");
        let started = now;
        now += Duration::from_millis(10);
        let step = scheduler.commit(started, now, &mut runner, &batch, &sampled);
        for event in step.events {
            generated[event.tag.0 as usize].extend(event.token);
        }
    }
    (generated, scheduler.load())
}

/// A request to go on with a text that says everything twice.
fn work(model: &Arc<LlamaModel>, tag: u64, sampling: Sampling) -> Work {
    let line = format!("the server streams tokens {tag} to every reader, ");
    let how = Encode { add_bos: true, parse_special: true };
    let prompt = LlamaVocab::new(model.clone()).encode(&line.repeat(2), how).unwrap();
    Work { tag: Tag(tag), prompt, max_tokens: 60, sampling, ..Work::default() }
}

fn samplings() -> [Sampling; 3] {
    let greedy = Sampling::default();
    let drawn = Sampling { temperature: 0.8, top_p: 0.9, seed: 7, ..Sampling::default() };
    let penalised = Sampling { frequency_penalty: 0.4, logprobs: Some(3), ..Sampling::default() };
    [greedy, drawn, penalised]
}

fn tokens(choices: &[Vec<SampledToken>]) -> Vec<Vec<TokenId>> {
    choices.iter().map(|one| one.iter().map(|choice| choice.token).collect()).collect()
}

#[test]
fn drafts_change_no_text() {
    for model in [Some(super::random()), super::bundled()].into_iter().flatten() {
        let mut drafted_tokens = 0;
        for works in [1, 3].map(|n| -> Vec<Work> {
            let samplings = samplings().into_iter().take(n).enumerate();
            samplings.map(|(i, sampling)| work(&model, i as u64, sampling)).collect()
        }) {
            let run = |how| generate(runner(model.clone(), KvType::F32, 8), &works, how);
            let (plain, _) = run(Speculation::Off);
            assert!(plain.iter().all(|choices| choices.len() == 60));
            for how in [Speculation::Fixed(1), Speculation::Fixed(9), Speculation::Auto] {
                let (drafted, load) = run(how);
                assert_eq!(tokens(&drafted), tokens(&plain), "{how:?}");
                assert!(load.accepted_tokens <= load.draft_tokens);
                drafted_tokens += load.draft_tokens;
            }
        }
        // Whether a single answer repeats what came before depends on the processor's rounding.
        assert!(drafted_tokens > 0, "the prompts repeat themselves");
    }
}

/// With our kernels a row is computed alike in any batch: alone, not one bit differs. (With
/// other sequences, cells of rejected draft tokens are taken by these, so that sums over cells
/// are in another order.)
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn with_our_kernels_not_a_bit_changes() {
    if !super::kernels::can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [model, _] = super::kernels::models(folder.path(), Width::BLOCKS);
    let greedy = Sampling { logprobs: Some(3), ..Sampling::default() };
    let works = [work(&model, 0, greedy)];
    let run = |how| generate(runner(model.clone(), KvType::F16, 8), &works, how);
    let (plain, _) = run(Speculation::Off);
    let (drafted, load) = run(Speculation::Fixed(5));
    assert_eq!(drafted, plain);
    assert!(load.draft_tokens > 0, "the prompt repeats itself");
}

/// One decode row of `slot` with a draft after `known`.
fn verify(
    runner: &mut LlamaRunner,
    slot: Slot,
    at: u32,
    known: TokenId,
    draft: &[TokenId],
) -> Vec<Sampled> {
    let (mut batch, mut sampled) = (Batch::default(), Vec::new());
    batch.push(slot, at, &[known], true);
    batch.push_draft(draft);
    runner.run(&batch, &mut sampled).expect("the batch runs");
    sampled
}

#[test]
fn a_draft_that_breaks_the_numbers_is_only_rejected() {
    let broken = TokenId::from(b'Z');
    let model = super::load_random(Defect::NanToken(broken));
    let Work { prompt, .. } = work(&model, 0, Sampling::default());
    let mut runner = runner(model, KvType::F16, 2);
    runner.assign(Slot(0), Sampler::new(Sampling::default(), &prompt, &[]));
    let at = prompt.len() as u32 - 1;
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &prompt[..at as usize], false);
    runner.run(&batch, &mut Vec::new()).expect("the prompt runs");
    let sampled = verify(&mut runner, Slot(0), at, prompt[at as usize], &[broken, broken]);
    assert_eq!(sampled.len(), 1);
    let next = sampled[0].outcome.as_ref().expect("the known token's logits are sound").token;
    runner.truncate(Slot(0), at + 1);
    let sampled = verify(&mut runner, Slot(0), at + 1, next, &[]);
    assert!(sampled[0].outcome.is_ok(), "what was cut off is gone");
    // The known token itself broken: the row fails, whatever is drafted after it.
    runner.truncate(Slot(0), at + 1);
    let sampled = verify(&mut runner, Slot(0), at + 1, broken, &[next]);
    let outcomes: Vec<_> = sampled.into_iter().map(|row| row.outcome).collect();
    assert_eq!(outcomes, [Err(RowError::NonFiniteLogits)]);
    assert_eq!(runner.verify_rows(), None, "until all is freed");
}

#[test]
fn more_draft_tokens_than_rows_of_logits_are_refused() {
    let mut runner = runner(super::random(), KvType::F32, 2);
    // Scored prompts have more rows than drafts, and a batch has room for either.
    let rows = runner.score_rows().expect("its logits are at hand") as usize;
    assert!(rows >= 16);
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &[65], true);
    batch.push_draft(&vec![65; rows]);
    let outcome = runner.run(&batch, &mut Vec::new());
    assert!(matches!(outcome, Err(RunError::Backend(_))), "{outcome:?}");
}
