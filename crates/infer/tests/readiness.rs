//! A sequence that cannot be sampled yet is left out of the steps, and nobody waits for it.

use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::request::{Tag, Work};
use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::{SampledToken, Sampler};
use loquent_infer::scheduler::{Limits, Scheduler};
use loquent_infer::speculation::Speculation;

/// Samples token 5 always. A slot that is not ready must not sample.
#[derive(Default)]
struct MaskedRunner {
    unready: Option<Slot>,
}

impl Runner for MaskedRunner {
    fn capacity(&self) -> Capacity {
        let (slots, kv_cells, context_tokens, batch_tokens) = (4, 1000, 100, 100);
        Capacity { slots, kv_cells, context_tokens, batch_tokens, shares_prefix: true }
    }

    fn assign(&mut self, _: Slot, _: Sampler) {}

    fn is_ready(&mut self, slot: Slot) -> bool {
        self.unready != Some(slot)
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        for span in batch.spans.iter().filter(|span| span.sample) {
            assert_ne!(Some(span.slot), self.unready, "it would have to wait");
            let choice = SampledToken { token: 5, logprobs: None };
            sampled.push(Sampled { slot: span.slot, outcome: Ok(choice) });
        }
        Ok(())
    }

    fn fork(&mut self, _: Slot, _: Slot, _: u32) {}

    fn truncate(&mut self, _: Slot, _: u32) {}
}

/// One step; the tags that got a token.
fn step(scheduler: &mut Scheduler, runner: &mut MaskedRunner) -> Vec<u64> {
    let (now, mut batch, mut sampled) = (Duration::ZERO, Batch::default(), Vec::new());
    scheduler.plan(now, runner, &mut batch);
    if batch.is_empty() {
        return Vec::new();
    }
    runner.run(&batch, &mut sampled).unwrap();
    let step = scheduler.commit(now, now, runner, &batch, &sampled);
    step.events.iter().map(|event| event.tag.0).collect()
}

fn scheduler(runner: &MaskedRunner, prompts: &[usize]) -> Scheduler {
    let limits = Limits {
        max_batch_size: 4,
        prefill_max_tokens: 64,
        itl_target: ItlTarget::Unbounded,
        prefix_cache: false,
        speculation: Speculation::Off,
        queue_timeout: None,
    };
    let mut scheduler = Scheduler::new(runner.capacity(), limits, vec![]);
    for (tag, &len) in (0..).zip(prompts) {
        let prompt = vec![9 + tag as u32; len];
        let work = Work { tag: Tag(tag), prompt, max_tokens: 20, ..Work::default() };
        scheduler.submit(Duration::ZERO, work);
    }
    scheduler
}

#[test]
fn others_go_on_while_a_sequence_waits_for_its_mask() {
    let mut runner = MaskedRunner::default();
    let mut scheduler = scheduler(&runner, &[1, 1]);
    assert_eq!(step(&mut scheduler, &mut runner), [0, 1]);
    runner.unready = Some(Slot(0));
    for _ in 0..3 {
        assert_eq!(step(&mut scheduler, &mut runner), [1]);
        assert!(scheduler.awaits_runner());
    }
    runner.unready = None;
    assert_eq!(step(&mut scheduler, &mut runner), [0, 1]);
    assert!(!scheduler.awaits_runner());
}

#[test]
fn a_prompt_is_computed_up_to_its_last_token_meanwhile() {
    let mut runner = MaskedRunner { unready: Some(Slot(0)) };
    let mut scheduler = scheduler(&runner, &[30]);
    assert_eq!(step(&mut scheduler, &mut runner), [0u64; 0]);
    assert_eq!(scheduler.load().kv_used_cells, 29);
    assert_eq!(step(&mut scheduler, &mut runner), [0u64; 0], "nothing is left to compute");
    assert!(scheduler.awaits_runner(), "and the engine must look again");
    runner.unready = None;
    assert_eq!(step(&mut scheduler, &mut runner), [0]);
}
