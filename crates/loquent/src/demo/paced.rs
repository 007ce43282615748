//! A runner that generates at reading speed.
//!
//! The bundled model generates faster than anybody reads, and an answer that is over at once shows
//! nothing of its delivery.

use std::time::{Duration, Instant};

use loquent_infer::runner::{Batch, Capacity, Embedder, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::Sampler;

/// Delays the steps of another runner.
pub struct PacedRunner {
    inner: Box<dyn Runner>,
    step: Duration,
    /// Time at which the last step ended.
    last: Option<Instant>,
}

impl PacedRunner {
    /// Limits the runner `inner` to `tokens_per_s` for each answer. Verifies no drafts, which would
    /// produce several tokens in one step.
    pub fn new(inner: Box<dyn Runner>, tokens_per_s: f64) -> Self {
        Self { inner, step: Duration::from_secs_f64(1.0 / tokens_per_s), last: None }
    }

    /// Waits until the next step is due. Only the engine's thread waits, and it has nothing else to
    /// do.
    fn wait(&mut self) {
        let now = Instant::now();
        // After a pause the rhythm begins anew rather than catching up.
        let due = self.last.map_or(now, |last| (last + self.step).max(now));
        std::thread::sleep(due - now);
        // When it was due and not when the thread woke: lateness must not add up.
        self.last = Some(due);
    }
}

impl Runner for PacedRunner {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        self.inner.assign(slot, sampler);
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        // A prompt is read as fast as it can be.
        if batch.spans.iter().any(|span| span.tokens.len() == 1 && span.sample) {
            self.wait();
        }
        self.inner.run(batch, sampled)
    }

    fn is_ready(&mut self, slot: Slot) -> bool {
        self.inner.is_ready(slot)
    }

    fn holds(&self, slot: Slot, len: u32) -> bool {
        self.inner.holds(slot, len)
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.inner.fork(from, to, len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.inner.truncate(slot, len);
    }

    fn score_rows(&self) -> Option<u32> {
        self.inner.score_rows()
    }

    fn embedder(&mut self) -> Option<&mut dyn Embedder> {
        self.inner.embedder()
    }
}
