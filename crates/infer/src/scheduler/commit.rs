//! What a batch's outcome does to its sequences: tokens, ends, and recovery from failures.

use std::time::Duration;

use super::{KvAfterEnd, Scheduler};
use crate::request::{Finish, SequenceEvent, Step};
use crate::runner::{Batch, RunError, Runner, Sampled, Slot, Span};

impl Scheduler {
    /// Takes in what the runner sampled for `batch` and reports it for each completion.
    pub fn commit(
        &mut self,
        started: Duration,
        now: Duration,
        runner: &mut dyn Runner,
        batch: &Batch,
        sampled: &[Sampled],
    ) -> Step {
        // Three passes over the batch, in this order. First all spans are booked as computed, so
        // that ends below see an account that agrees with the runner's cache. Then samples are
        // taken, which may end sequences. Last come the ends that were asked for while the batch
        // was in flight; they take no token of this step.
        let mut step = self.open_step(started, now, batch);
        let drafted: usize = batch.spans.iter().map(|span| span.draft).sum();
        // A suspect that was computed alone without a failure is innocent.
        if self.suspects.front() == batch.spans.first().map(|span| &span.slot) {
            self.suspects.pop_front();
        }
        for span in &batch.spans {
            self.complete(span.slot);
            self.kv.append(span.slot, &batch.tokens[span.tokens.clone()]);
            if span.draft > 0 {
                self.cut_rejected(runner, span, sampled);
            }
        }
        for one in sampled {
            if self.sequence(one.slot).ending.is_none() {
                step.events.push(self.take_sample(started, now, runner, one));
            }
        }
        self.end_marked(runner, batch);
        let (decode_rows, took) =
            (batch.spans.len() - prefill_spans(batch).count(), now.saturating_sub(started));
        // Both models learn from clean measurements only: a step with drafts does not show how
        // long one without takes, and one with prompts does not show what rows cost.
        if drafted == 0 {
            self.budget.observe(decode_rows, step.prefill_tokens, took);
        }
        if step.prefill_tokens == 0 {
            self.speculator.observe_step(batch.tokens.len(), took);
        }
        step
    }

    /// Cuts rejected draft tokens off the cache: of n sampled tokens all but the last were
    /// accepted. A sequence that ends takes no more tokens, so its whole draft goes.
    fn cut_rejected(&mut self, runner: &mut dyn Runner, span: &Span, sampled: &[Sampled]) {
        let goes_on = self.sequence(span.slot).ending.is_none();
        let tokens = sampled.iter().filter(|one| goes_on && one.slot == span.slot).count();
        let accepted = tokens.saturating_sub(1).min(span.draft);
        let known = span.start + (span.tokens.len() - span.draft) as u32;
        // The last sampled token is in no cell yet: the next step computes it. So the cells kept
        // are those of the known tokens and of the accepted draft.
        self.kv.truncate(span.slot, known + accepted as u32);
        runner.truncate(span.slot, known + accepted as u32);
        if let Some(sequence) = &mut self.active[span.slot.index()] {
            let stats = &mut sequence.acceptance;
            self.speculator.observe_draft(stats, span.draft as u32, accepted as u32);
        }
    }

    /// The runner failed on `batch`: makes room, or isolates the sequence at fault.
    pub fn recover(
        &mut self,
        started: Duration,
        now: Duration,
        runner: &mut dyn Runner,
        batch: &Batch,
        error: &RunError,
    ) -> Step {
        let mut step = self.open_step(started, now, batch);
        if let RunError::Lost(_) = error {
            step.events = self.lose(started, runner, error);
            return step;
        }
        batch.spans.iter().for_each(|span| self.complete(span.slot));
        match error {
            RunError::Lost(_) => unreachable!("handled before"),
            // The account had promised room, so the back end needs more cells than are counted
            // here. Without the youngest sequence the others can be planned again.
            RunError::CacheFull => match self.youngest_not_in_flight() {
                Some(youngest) if !self.yield_cells(runner, youngest) => {
                    step.events.push(self.fail(started, runner, youngest, error.to_string()));
                }
                _ => {}
            },
            RunError::Backend(_) => match batch.spans.as_slice() {
                [only] => {
                    step.events.push(self.fail(started, runner, only.slot, error.to_string()))
                }
                // Which one failed is not known. None loses a token: the spans are cut off again
                // and computed one by one.
                spans => {
                    self.suspects.extend(spans.iter().map(|span| span.slot));
                    for span in spans {
                        runner.truncate(span.slot, span.start);
                    }
                }
            },
        }
        self.end_marked(runner, batch);
        step
    }

    /// The engine lost everything: every running sequence fails, nothing is kept.
    fn lose(
        &mut self,
        at: Duration,
        runner: &mut dyn Runner,
        error: &RunError,
    ) -> Vec<SequenceEvent> {
        let mut events = Vec::new();
        for slot in self.order.clone() {
            self.complete(slot);
            match self.sequence(slot).ending {
                None => events.push(self.fail(at, runner, slot, error.to_string())),
                Some(_) => self.end(runner, slot, KvAfterEnd::Free),
            }
        }
        while self.evict(runner, None) {}
        debug_assert!(self.kv.is_empty() && self.suspects.is_empty());
        events
    }

    /// The sequence's batch is no longer in flight.
    fn complete(&mut self, slot: Slot) {
        if let Some(sequence) = &mut self.active[slot.index()] {
            self.in_flight -= std::mem::take(&mut sequence.in_flight);
        }
    }

    /// Ends those of the batch's sequences whose end was asked for while it was in flight.
    fn end_marked(&mut self, runner: &mut dyn Runner, batch: &Batch) {
        for span in &batch.spans {
            let sequence = self.active[span.slot.index()].as_ref();
            if let Some(kv) = sequence.and_then(|sequence| sequence.ending) {
                self.end(runner, span.slot, kv);
            }
        }
    }

    /// The youngest sequence that is in no batch in flight, so that it can be preempted or failed.
    pub(super) fn youngest_not_in_flight(&self) -> Option<Slot> {
        self.order.iter().copied().rev().find(|&slot| self.sequence(slot).in_flight == 0)
    }

    fn open_step(&self, started: Duration, now: Duration, batch: &Batch) -> Step {
        Step {
            started,
            finished: now,
            rows: batch.spans.len() as u32,
            prefill_tokens: prefill_spans(batch).map(|span| span.tokens.len() as u32).sum(),
            events: Vec::with_capacity(batch.spans.len()),
        }
    }

    /// Appends a sampled token to its sequence, and ends the sequence if it is the last.
    fn take_sample(
        &mut self,
        started: Duration,
        now: Duration,
        runner: &mut dyn Runner,
        sampled: &Sampled,
    ) -> SequenceEvent {
        let slot = sampled.slot;
        let choice = match &sampled.outcome {
            Ok(choice) => choice.clone(),
            Err(error) => return self.fail(started, runner, slot, error.to_string()),
        };
        let ends = self.end_tokens.contains(&choice.token);
        let context = self.capacity.context_tokens as usize;
        let sequence = self.active[slot.index()].as_mut().expect("sampled slots run");
        if let Some(draft) = sequence.unverified.take() {
            self.speculator.observe_unverified(&mut sequence.acceptance, draft == choice.token);
        }
        sequence.tokens.push(choice.token);
        let full = sequence.generated().len() as u32 >= sequence.max_tokens
            || sequence.tokens.len() >= context;
        let first = sequence.generated().len() == 1;
        let event = SequenceEvent {
            tag: sequence.tag,
            token: Some(choice),
            finish: if ends { Some(Finish::Stop) } else { full.then_some(Finish::Length) },
            admitted: sequence.admitted.filter(|_| first),
            wait: started.saturating_sub(sequence.ready_at),
        };
        sequence.ready_at = now;
        if event.finish.is_some() {
            self.end(runner, slot, KvAfterEnd::KeepPrefix);
        }
        event
    }

    /// Ends a sequence with an error. Its KV is freed: what it computed may be at fault.
    fn fail(
        &mut self,
        started: Duration,
        runner: &mut dyn Runner,
        slot: Slot,
        message: String,
    ) -> SequenceEvent {
        let sequence = self.remove(slot);
        self.free_slot(runner, slot);
        SequenceEvent {
            tag: sequence.tag,
            token: None,
            finish: Some(Finish::Failed(message)),
            admitted: sequence.admitted.filter(|_| sequence.generated().is_empty()),
            wait: started.saturating_sub(sequence.ready_at),
        }
    }
}

/// The spans that compute more than a decode row.
fn prefill_spans(batch: &Batch) -> impl Iterator<Item = &Span> {
    batch.spans.iter().filter(|span| span.tokens.len() - span.draft > 1)
}
