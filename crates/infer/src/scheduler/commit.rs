//! Applies the outcome of a batch to its sequences: tokens, ends, and recovery from failures.

use std::time::Duration;

use super::{Scheduler, Suspect};
use crate::request::{Finish, SequenceEvent, Step};
use crate::runner::{Batch, RunError, Runner, Sampled, Slot, Span};
use crate::token::RowError;

impl Scheduler {
    /// Applies the tokens that the runner sampled for `batch` and reports them for each completion.
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
        let mut step = open_step(started, now, batch);
        let drafted: usize = batch.spans.iter().map(|span| span.draft).sum();
        for span in &batch.spans {
            self.complete(span.slot);
            self.kv.append(span.slot, &batch.tokens[span.tokens.clone()]);
            if span.draft > 0 {
                self.cut_rejected(runner, span, sampled);
            }
            self.charge(span);
        }
        self.acquit();
        self.take_samples(&mut step, runner, batch, sampled);
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

    /// Charges the tenant for a span, except for tokens that are only recomputed because the
    /// sequence had been put back.
    fn charge(&mut self, span: &Span) {
        let (sequence, len) = (self.sequence(span.slot), self.kv.len(span.slot));
        let fresh = len.saturating_sub(span.start.max(sequence.charged_from));
        self.shares.charge(sequence.account, fresh);
    }

    /// Clears the first suspect once it was computed alone, up to the end of its failed span,
    /// without a failure.
    fn acquit(&mut self) {
        let innocent = |suspect: &Suspect| self.kv.len(suspect.slot) >= suspect.until;
        if self.suspects.front().is_some_and(innocent) {
            self.suspects.pop_front();
        }
    }

    /// Applies scores and samples of each span. A sequence whose span should have given something
    /// and did not fails: the missing part would never be computed again.
    fn take_samples(
        &mut self,
        step: &mut Step,
        runner: &mut dyn Runner,
        batch: &Batch,
        sampled: &[Sampled],
    ) {
        let (started, now) = (step.started, step.finished);
        let mut rest = sampled;
        for (index, span) in batch.spans.iter().enumerate() {
            let scored = batch.scores_of(index).map_or(0, |scores| scores.targets.len());
            let samples = if span.sample { 1 + span.draft } else { 0 };
            let most = &rest[..rest.len().min(scored + samples)];
            let count = most.iter().take_while(|one| one.slot == span.slot).count();
            let (own, others) = rest.split_at(count);
            rest = others;
            if scored + samples == 0 || self.sequence(span.slot).is_ending {
                continue;
            }
            // Scores come before what the same span samples.
            let (scores, own) = own.split_at(scored.min(own.len()));
            if scored > 0 {
                step.events.push(self.take_scores(started, runner, span.slot, scores, scored));
            }
            // It may have failed over its scores.
            if samples == 0 || self.active[span.slot.index()].is_none() {
                continue;
            }
            if own.is_empty() {
                let finish = (&RowError::OutOfStep).into();
                step.events.push(self.fail(started, runner, span.slot, finish));
            }
            for one in own {
                // The first of them may have been the last.
                if self.active[span.slot.index()].is_some() {
                    step.events.push(self.take_sample(started, now, runner, one));
                }
            }
        }
    }

    /// Reports the log-probabilities of `wanted` tokens of a prompt, or fails the sequence.
    fn take_scores(
        &mut self,
        started: Duration,
        runner: &mut dyn Runner,
        slot: Slot,
        rows: &[Sampled],
        wanted: usize,
    ) -> SequenceEvent {
        let scores: Result<Box<[_]>, RowError> =
            rows.iter().map(|row| row.outcome.clone()).collect();
        let scores = match scores {
            Ok(scores) if scores.len() == wanted => scores,
            Ok(_) => return self.fail(started, runner, slot, (&RowError::OutOfStep).into()),
            Err(error) => return self.fail(started, runner, slot, (&error).into()),
        };
        let sequence = self.active[slot.index()].as_mut().expect("scored slots run");
        sequence.scored += wanted;
        SequenceEvent {
            tag: sequence.tag,
            token: None,
            scores: Some(scores),
            finish: None,
            admitted: None,
            wait: Duration::ZERO,
        }
    }

    /// Cuts rejected draft tokens off the cache: of n sampled tokens all but the last were
    /// accepted. A sequence that ends takes no more tokens, so its whole draft is cut.
    fn cut_rejected(&mut self, runner: &mut dyn Runner, span: &Span, sampled: &[Sampled]) {
        let goes_on = !self.sequence(span.slot).is_ending;
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

    /// Handles a failure of the runner on `batch`: makes room, or isolates the sequence at fault.
    pub fn recover(
        &mut self,
        started: Duration,
        now: Duration,
        runner: &mut dyn Runner,
        batch: &Batch,
        error: &RunError,
    ) -> Step {
        let mut step = open_step(started, now, batch);
        if let RunError::Lost(_) = error {
            (step.events, step.was_lost) = (self.lose(started, runner, error), true);
            return step;
        }
        batch.spans.iter().for_each(|span| self.complete(span.slot));
        match error {
            RunError::Lost(_) => unreachable!("handled before"),
            // As if it had not been planned.
            RunError::Preempted => step = Step { started, finished: now, ..Step::default() },
            // The account had promised room, so the back end needs more cells than are counted
            // here. Without the youngest sequence the others can be planned again.
            RunError::CacheFull => match self.victim() {
                Some(victim) if !self.yield_cells(runner, victim) => {
                    step.events.push(self.fail(started, runner, victim, error.into()));
                }
                _ => {}
            },
            RunError::Backend(_) => match batch.spans.as_slice() {
                [only] => {
                    step.events.push(self.fail(started, runner, only.slot, error.into()));
                }
                // Which one failed is not known. None loses a token: the spans are cut off again
                // and computed one by one.
                spans => spans.iter().for_each(|span| self.suspect(runner, span)),
            },
        }
        self.end_marked(runner, batch);
        step
    }

    /// Cuts off a span of a failed batch; its sequence is then computed alone.
    fn suspect(&mut self, runner: &mut dyn Runner, span: &Span) {
        let slot = span.slot;
        let until = span.start + (span.tokens.len() - span.draft) as u32;
        self.suspects.push_back(Suspect { slot, until });
        // A model that holds no more than a part of the past cannot always forget the span alone.
        let can_cut = self.capacity.shares_prefix && runner.holds(slot, span.start);
        let kept = if can_cut { span.start } else { 0 };
        self.kv.truncate(slot, kept);
        runner.truncate(slot, kept);
        if kept == 0 {
            // Freeing a slot may have freed its sampler.
            runner.assign(slot, self.sequence(slot).sampler());
        }
    }

    /// Marks the sequence's batch as no longer in flight.
    pub(super) fn complete(&mut self, slot: Slot) {
        if let Some(sequence) = &mut self.active[slot.index()] {
            self.in_flight -= std::mem::take(&mut sequence.in_flight);
        }
    }

    /// Ends those of the batch's sequences whose end was requested while it was in flight.
    fn end_marked(&mut self, runner: &mut dyn Runner, batch: &Batch) {
        for span in &batch.spans {
            let sequence = self.active[span.slot.index()].as_ref();
            if sequence.is_some_and(|sequence| sequence.is_ending) {
                self.end(runner, span.slot);
            }
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
            Err(error) => return self.fail(started, runner, slot, error.into()),
        };
        let ends = self.end_tokens.contains(&choice.token);
        let context = self.capacity.context_tokens as usize;
        let sequence = self.active[slot.index()].as_mut().expect("sampled slots run");
        if let Some(draft) = sequence.unverified.take() {
            self.speculator.observe_unverified(&mut sequence.acceptance, draft == choice.token);
        }
        sequence.tokens.push(choice.token);
        (sequence.keeps_place, sequence.losses) = (false, 0);
        if let Some(reading) = &mut sequence.reading {
            reading.note_token(now);
        }
        let full = sequence.generated().len() as u32 >= sequence.max_tokens
            || sequence.tokens.len() >= context;
        let first = sequence.generated().len() == 1;
        let event = SequenceEvent {
            tag: sequence.tag,
            token: Some(choice),
            scores: None,
            finish: if ends { Some(Finish::Stop) } else { full.then_some(Finish::Length) },
            admitted: sequence.admitted.filter(|_| first),
            wait: started.saturating_sub(sequence.ready_at),
        };
        sequence.ready_at = now;
        if event.finish.is_some() {
            self.end(runner, slot);
        }
        event
    }

    /// Ends a sequence that failed. Its KV is freed, since the failure may have corrupted it.
    pub(super) fn fail(
        &mut self,
        started: Duration,
        runner: &mut dyn Runner,
        slot: Slot,
        finish: Finish,
    ) -> SequenceEvent {
        let sequence = self.remove(slot);
        self.shares.leave(sequence.account, sequence.paused);
        self.free_slot(runner, slot);
        SequenceEvent {
            tag: sequence.tag,
            token: None,
            scores: None,
            finish: Some(finish),
            admitted: sequence.admitted.filter(|_| sequence.generated().is_empty()),
            wait: started.saturating_sub(sequence.ready_at),
        }
    }
}

fn open_step(started: Duration, now: Duration, batch: &Batch) -> Step {
    Step {
        started,
        finished: now,
        rows: batch.spans.len() as u32,
        prefill_tokens: prefill_spans(batch).map(|span| span.tokens.len() as u32).sum(),
        prefills: prefill_spans(batch).count() as u32,
        events: Vec::with_capacity(batch.spans.len()),
        was_lost: false,
        standing: None,
    }
}

/// Returns the spans that compute more than a decode row.
fn prefill_spans(batch: &Batch) -> impl Iterator<Item = &Span> {
    batch.spans.iter().filter(|span| span.tokens.len() - span.draft > 1)
}
