//! A runner in virtual time: computes the duration of each step, and always samples the same token.

use std::time::Duration;

use loquent_infer::runner::{Batch, Capacity, RunError, Runner, Sampled, Slot, Span};
use loquent_infer::sampling::{SampledToken, Sampler};

use super::plan::Machine;

/// A runner whose steps take no real time; see the module's documentation.
pub struct TimedRunner {
    capacity: Capacity,
}

impl TimedRunner {
    /// Creates a runner with room for `sequences` of `context_tokens`, in batches of `batch_size`.
    pub fn new(sequences: usize, context_tokens: u32, batch_size: usize) -> Self {
        let slots = u16::try_from(2 * batch_size).expect("plans bound it");
        // Enough for all to their ends: bursts are to be limited by time, not by memory.
        let kv_cells = sequences as u32 * context_tokens + context_tokens;
        let batch_tokens = 2_048.max(u32::from(slots));
        let capacity =
            Capacity { slots, kv_cells, context_tokens, batch_tokens, shares_prefix: true };
        Self { capacity }
    }
}

impl Runner for TimedRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn assign(&mut self, _slot: Slot, _sampler: Sampler) {}

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        let samples = batch.spans.iter().filter(|span| span.sample);
        sampled.extend(samples.map(|span| Sampled {
            slot: span.slot,
            outcome: Ok(SampledToken { token: 0, logprobs: None }),
        }));
        Ok(())
    }

    fn fork(&mut self, _from: Slot, _to: Slot, _len: u32) {}

    fn truncate(&mut self, _slot: Slot, _len: u32) {}
}

/// Returns the duration of `batch` on `machine`.
pub fn step_time(machine: &Machine, batch: &Batch) -> Duration {
    let is_row = |span: &&Span| span.tokens.len() == 1;
    let rows = batch.spans.iter().filter(is_row).count();
    // A prompt's last token alone costs what a row does, or little less.
    let prompt_tokens = batch.tokens.len() - rows;
    Duration::from_secs_f64(machine.step_ms(rows, prompt_tokens) / 1_000.0)
}
