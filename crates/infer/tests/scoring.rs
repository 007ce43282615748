//! Prompts' log-probabilities: each token's exactly once, in order and from the tokens before it,
//! through prefix caches, preemptions and failed batches.

use std::collections::HashMap;
use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::request::{Finish, Tag, Work};
use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::{Logprobs, SampledToken, Sampler};
use loquent_infer::scheduler::{Limits, Scheduler};
use loquent_infer::speculation::Speculation;
use loquent_infer::token::TokenId;
use proptest::prelude::*;

const SCORE_ROWS: u32 = 6;

/// Scores a token by all tokens before it, and fails the batches of the given numbers.
struct ScoringRunner {
    slots: Vec<Vec<TokenId>>,
    kv_cells: u32,
    fails: Vec<u64>,
    runs: u64,
}

/// A number that shows which tokens came before.
fn logprob(before: &[TokenId], token: TokenId) -> f32 {
    let hash = before
        .iter()
        .chain([&token])
        .fold(7u32, |hash, token| hash.wrapping_mul(31).wrapping_add(*token));
    -((hash % 1000) as f32) - 1.0
}

impl Runner for ScoringRunner {
    fn capacity(&self) -> Capacity {
        let (slots, context_tokens, batch_tokens) = (4, 40, 24);
        Capacity {
            slots,
            kv_cells: self.kv_cells,
            context_tokens,
            batch_tokens,
            shares_prefix: true,
        }
    }

    fn assign(&mut self, _: Slot, _: Sampler) {}

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        let rows: usize = (0..batch.spans.len()).map(|span| batch.rows_of(span)).sum();
        assert!(batch.scores.is_empty() || rows <= SCORE_ROWS as usize, "{rows} rows of logits");
        self.runs += 1;
        if self.fails.contains(&self.runs) {
            return Err(RunError::Backend("as planned".into()));
        }
        for (index, span) in batch.spans.iter().enumerate() {
            let tokens = &mut self.slots[span.slot.index()];
            tokens.truncate(span.start as usize);
            assert_eq!(tokens.len(), span.start as usize, "a span that does not go on");
            tokens.extend_from_slice(&batch.tokens[span.tokens.clone()]);
            for (at, &token) in
                batch.scores_of(index).iter().flat_map(|one| one.targets.iter()).enumerate()
            {
                let chosen = logprob(&tokens[..span.start as usize + at + 1], token);
                let logprobs = Some(Box::new(Logprobs { chosen, top: Vec::new() }));
                sampled.push(Sampled {
                    slot: span.slot,
                    outcome: Ok(SampledToken { token, logprobs }),
                });
            }
            if span.sample {
                let choice = SampledToken { token: tokens.len() as TokenId % 3, logprobs: None };
                sampled.push(Sampled { slot: span.slot, outcome: Ok(choice) });
            }
        }
        Ok(())
    }

    fn score_rows(&self) -> Option<u32> {
        Some(SCORE_ROWS)
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.slots[to.index()] = self.slots[from.index()][..len as usize].to_vec();
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.slots[slot.index()].truncate(len as usize);
    }
}

fn limits() -> Limits {
    Limits {
        max_batch_size: 4,
        prefill_max_tokens: 16,
        itl_target: ItlTarget::Unbounded,
        prefix_cache: true,
        speculation: Speculation::Off,
        queue_timeout: None,
    }
}

/// What was reported of each completion: its prompt's scores, its tokens, its end.
type Reports = HashMap<Tag, (Vec<SampledToken>, usize, Option<Finish>)>;

fn serve(works: Vec<Work>, kv_cells: u32, fails: Vec<u64>) -> Reports {
    let mut runner = ScoringRunner { slots: vec![Vec::new(); 4], kv_cells, fails, runs: 0 };
    let mut scheduler = Scheduler::new(runner.capacity(), limits(), vec![99]);
    let mut reports = Reports::new();
    works.into_iter().for_each(|work| scheduler.submit(Duration::ZERO, work));
    let mut batch = Batch::default();
    for ms in 0..10_000 {
        if !scheduler.has_work() {
            return reports;
        }
        let now = Duration::from_millis(ms);
        scheduler.plan(now, &mut runner, &mut batch);
        assert!(!batch.is_empty(), "work that is never planned");
        let mut sampled = Vec::new();
        let step = match runner.run(&batch, &mut sampled) {
            Ok(()) => scheduler.commit(now, now, &mut runner, &batch, &sampled),
            Err(error) => scheduler.recover(now, now, &mut runner, &batch, &error),
        };
        for event in step.events {
            let report = reports.entry(event.tag).or_default();
            assert!(report.2.is_none(), "an event after the end");
            assert!(event.scores.is_none() || report.1 == 0, "scores behind the first token");
            report.0.extend(event.scores.iter().flat_map(|scores| scores.iter().cloned()));
            report.1 += usize::from(event.token.is_some());
            report.2 = event.finish;
        }
    }
    panic!("work that never ends");
}

fn expected(prompt: &[TokenId]) -> Vec<(TokenId, f32)> {
    (1..prompt.len()).map(|at| (prompt[at], logprob(&prompt[..at], prompt[at]))).collect()
}

fn found(scores: &[SampledToken]) -> Vec<(TokenId, f32)> {
    let chosen = |one: &SampledToken| one.logprobs.as_ref().unwrap().chosen;
    scores.iter().map(|one| (one.token, chosen(one))).collect()
}

proptest! {
    #[test]
    fn every_prompt_token_is_scored_once_and_in_its_place(
        prompts in prop::collection::vec(
            (prop::collection::vec(0u32..3, 1..30), any::<bool>(), 1u32..10), 1..8,
        ),
        kv_cells in 40u32..120,
        fails in prop::collection::vec(1u64..20, 0..2),
    ) {
        let works = prompts.iter().enumerate().map(|(tag, (prompt, scored, max_tokens))| Work {
            tag: Tag(tag as u64),
            prompt: prompt.clone(),
            max_tokens: *max_tokens,
            score_prompt: scored.then_some(0),
            ..Work::default()
        });
        let reports = serve(works.collect(), kv_cells, fails);
        for (tag, (prompt, scored, _)) in prompts.iter().enumerate() {
            let (scores, tokens, finish) = &reports[&Tag(tag as u64)];
            if let Some(Finish::Failed(_)) = finish {
                continue; // a batch of its own failed
            }
            prop_assert!(*tokens > 0);
            let wanted = if *scored { expected(prompt) } else { Vec::new() };
            prop_assert_eq!(found(scores), wanted);
        }
    }
}

#[test]
fn a_cached_prompt_is_scored_all_the_same() {
    let prompt: Vec<TokenId> = (0..20).collect();
    let work = |tag, score_prompt| Work {
        tag: Tag(tag),
        prompt: prompt.clone(),
        max_tokens: 1,
        score_prompt,
        ..Work::default()
    };
    let reports = serve(vec![work(0, None), work(1, Some(0)), work(2, Some(0))], 120, vec![]);
    assert!(reports[&Tag(0)].0.is_empty());
    for tag in [1, 2] {
        assert_eq!(found(&reports[&Tag(tag)].0), expected(&prompt));
    }
}
