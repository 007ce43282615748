//! [`Runner`] of the simulated engine: accounts for cells, waits, and samples like a real one.

use std::ops::Range;

use loquent_infer::embedding::Embedder;
use loquent_infer::runner::{
    Batch, Capacity, RunError, Runner, Sampled, SavedSpan, Scores, Slot, Span,
};
use loquent_infer::sampling::{Sampler, Scratch, score};
use loquent_infer::token::{RowError, TokenId};

use super::cells::Cells;
use super::embedder::SimEmbedder;
use super::pace::{StepPace, StepPacer};
use super::text::SimText;
use loquent_infer::sim_vocab::{SIZE, TURN_END};

/// Logit of the text's next token. All others have 0: even at temperature 1 the text comes as
/// written (except for one token in 10^14).
const WANTED: f32 = 40.0;
/// Logit of the end token once the text is over: the next word is second.
const OVER: f32 = 80.0;

/// Rows of logits in a batch with scored prompts: few enough that every test's prompt needs several
/// batches.
const SCORE_ROWS: u32 = 24;

/// A failure that happens once. Steps are the calls of [`Runner::run`], from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The row of one sequence fails (if it samples at that step).
    Row {
        /// Slot of the sequence.
        slot: Slot,
        /// Number of the step.
        step: u64,
        /// The error that the row returns.
        error: RowError,
    },
    /// A whole batch fails.
    Batch {
        /// Number of the step.
        step: u64,
        /// The error that the call returns.
        error: RunError,
    },
}

/// Options of a [`SimRunner`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimOptions {
    /// Sizes; with `shares_prefix` false, [`Runner::fork`] panics.
    pub capacity: Capacity,
    /// Time of the steps.
    pub pace: StepPace,
    /// Failures, each at its step.
    pub faults: Vec<Fault>,
}

impl Default for SimOptions {
    /// 16 slots, 65,536 cells, contexts of 16,384, batches of 2,048; no pace, no faults.
    fn default() -> Self {
        let capacity = Capacity {
            slots: 16,
            kv_cells: 65_536,
            context_tokens: 16_384,
            batch_tokens: 2_048,
            shares_prefix: true,
        };
        Self { capacity, pace: StepPace::None, faults: Vec::new() }
    }
}

/// The simulated engine.
///
/// # Panics
/// Methods panic if they are called against the rules: a span that does not continue its slot, a
/// slot twice in a batch, sizes beyond the capacity, sampling without a sampler, a fork into a slot
/// in use.
#[derive(Debug)]
pub struct SimRunner {
    capacity: Capacity,
    faults: Vec<Fault>,
    pacer: StepPacer,
    cells: Cells,
    embedder: SimEmbedder,
    samplers: Vec<Option<Sampler>>,
    /// Answer in progress of each slot, once it is known.
    answers: Vec<Option<SimText>>,
    logits: Vec<f32>,
    scratch: Scratch,
    steps: u64,
}

impl SimRunner {
    /// Creates an engine whose slots are all empty.
    pub fn new(options: SimOptions) -> Self {
        let SimOptions { capacity, pace, faults } = options;
        Self {
            capacity,
            faults,
            pacer: StepPacer::new(pace),
            cells: Cells::new(capacity.kv_cells, capacity.slots),
            embedder: SimEmbedder::new(capacity),
            samplers: (0..capacity.slots).map(|_| None).collect(),
            answers: vec![None; capacity.slots.into()],
            logits: Vec::with_capacity(SIZE),
            scratch: Scratch::default(),
            steps: 0,
        }
    }

    /// Number of KV cells held by no slot.
    pub fn free_cells(&self) -> usize {
        self.cells.free()
    }

    /// Number of calls of [`Runner::run`] so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn check_batch(&self, batch: &Batch) {
        let most = self.capacity.batch_tokens as usize;
        assert!(!batch.is_empty() && batch.tokens.len() <= most, "a batch of 1 to {most} tokens");
        let mut slots = vec![false; self.capacity.slots.into()];
        let mut covered = 0;
        for Span { slot, start, tokens, .. } in &batch.spans {
            assert!(!std::mem::replace(&mut slots[slot.index()], true), "{slot:?} occurs twice");
            let have = self.cells.tokens(slot.index()).len();
            assert_eq!(*start as usize, have, "{slot:?} does not go on where it ended");
            let end = have + tokens.len();
            assert!(end <= self.capacity.context_tokens as usize, "{slot:?} beyond the context");
            assert!(tokens.start == covered && !tokens.is_empty(), "spans cover the tokens");
            covered = tokens.end;
        }
        assert_eq!(covered, batch.tokens.len(), "spans cover the tokens");
    }

    fn batch_fault(&mut self, step: u64) -> Option<RunError> {
        self.faults.iter().find_map(|fault| match fault {
            Fault::Batch { step: at, error } if *at == step => Some(error.clone()),
            _ => None,
        })
    }

    fn row_fault(&self, slot: Slot, step: u64) -> Option<RowError> {
        self.faults.iter().find_map(|fault| match fault {
            Fault::Row { slot: of, step: at, error } if *of == slot && *at == step => {
                Some(error.clone())
            }
            _ => None,
        })
    }

    /// Scores a prompt's tokens, each as if the answer to the preceding tokens began there.
    fn score(&mut self, span: &Span, scores: &Scores, sampled: &mut Vec<Sampled>) {
        for (behind, &target) in (span.start as usize + 1..).zip(&scores.targets) {
            let tokens = self.cells.tokens(span.slot.index());
            let answer = SimText::to(&tokens[..behind]);
            self.logits.clear();
            self.logits.resize(SIZE, 0.0);
            self.logits[answer.token(0) as usize] = WANTED;
            let outcome = score(&self.logits, target, scores.top, &mut self.scratch);
            sampled.push(Sampled { slot: span.slot, outcome });
        }
    }

    fn sample(&mut self, slot: Slot, step: u64) -> Sampled {
        if let Some(error) = self.row_fault(slot, step) {
            return Sampled { slot, outcome: Err(error) };
        }
        let sampler = self.samplers[slot.index()].as_mut().expect("a sampler was assigned");
        let tokens = self.cells.tokens(slot.index());
        // The sampler, not the cache, knows how many tokens the completion has: after a preemption
        // the cache is filled again from the prompt on.
        let i = sampler.generated();
        let prompt = &tokens[..tokens.len() - i as usize];
        let answer = self.answers[slot.index()].get_or_insert_with(|| SimText::to(prompt));
        let over = i >= answer.length;
        let (leader, lead) =
            if over { (TURN_END, OVER - WANTED) } else { (answer.token(i), WANTED) };
        // A row of logits is built only if the request could notice it, so that the simulation
        // itself costs next to nothing in measurements of the server.
        if let Some(choice) = sampler.choose_leader(leader, lead) {
            return Sampled { slot, outcome: Ok(choice) };
        }
        self.logits.clear();
        self.logits.resize(SIZE, 0.0);
        self.logits[answer.token(i) as usize] = WANTED;
        if over {
            self.logits[TURN_END as usize] = OVER;
        }
        Sampled { slot, outcome: sampler.sample(&mut self.logits, &mut self.scratch) }
    }
}

impl Runner for SimRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn assign(&mut self, slot: Slot, sampler: Sampler) {
        self.samplers[slot.index()] = Some(sampler);
        self.answers[slot.index()] = None;
    }

    fn is_ready(&mut self, slot: Slot) -> bool {
        self.samplers[slot.index()].as_mut().is_none_or(Sampler::is_ready)
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        self.check_batch(batch);
        let step = self.steps;
        self.steps += 1;
        // A failed batch has computed nothing, as `Runner::run` requires of a full cache.
        if let Some(error) = self.batch_fault(step) {
            return Err(error);
        }
        if batch.tokens.len() > self.cells.free() {
            return Err(RunError::CacheFull);
        }
        for span in &batch.spans {
            self.cells.append(span.slot.index(), &batch.tokens[span.tokens.clone()]);
        }
        for (index, span) in batch.spans.iter().enumerate() {
            if let Some(scores) = batch.scores_of(index) {
                self.score(span, scores, sampled);
            }
            if span.sample {
                let row = self.sample(span.slot, step);
                sampled.push(row);
            }
        }
        self.pacer.wait(step, batch);
        Ok(())
    }

    fn score_rows(&self) -> Option<u32> {
        Some(SCORE_ROWS)
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        assert!(self.capacity.shares_prefix, "this engine was set to share no prefixes");
        self.cells.share(from.index(), to.index(), len as usize);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        let partial = len > 0 && (len as usize) < self.cells.tokens(slot.index()).len();
        assert!(self.capacity.shares_prefix || !partial, "set to share no prefixes: no cuts");
        self.cells.cut(slot.index(), len as usize);
        if len == 0 {
            self.samplers[slot.index()] = None;
            self.answers[slot.index()] = None;
        }
    }

    fn saves_spans(&self) -> bool {
        self.capacity.shares_prefix
    }

    /// The keys and values of a token are the tokens up to it: a wrong one would show.
    fn save(&mut self, slot: Slot, positions: Range<u32>) -> Result<SavedSpan, String> {
        let tokens = &self.cells.tokens(slot.index())[..positions.end as usize];
        let state = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        Ok(SavedSpan { positions, state })
    }

    fn restore(
        &mut self,
        slot: Slot,
        positions: Range<u32>,
        span: &SavedSpan,
    ) -> Result<(), String> {
        let (from, to) = (positions.start as usize, positions.end as usize);
        let held = self.cells.tokens(slot.index());
        assert_eq!(held.len(), from, "{slot:?} does not go on where it ended");
        let words = span.state.chunks_exact(size_of::<TokenId>());
        let tokens: Vec<_> =
            words.map(|word| TokenId::from_le_bytes(word.try_into().expect("whole"))).collect();
        if tokens.len() < to || tokens[..from] != *held {
            return Err("these are another sequence's".to_owned());
        }
        self.cells.append(slot.index(), &tokens[from..to]);
        Ok(())
    }

    fn embedder(&mut self) -> Option<&mut dyn Embedder> {
        Some(&mut self.embedder)
    }
}

#[cfg(test)]
mod tests;
