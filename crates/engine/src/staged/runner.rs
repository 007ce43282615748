//! [`Runner`] whose layers are computed by stages.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquent_infer::remote::RemoteStages;
use loquent_infer::runner::{
    Batch, Capacity, Pipeline, Recovery, RunError, Runner, Sampled, Slot, Span,
};
use loquent_infer::sampling::{Constraint, Sampler};
use loquent_infer::token::{RowError, TokenId};

use super::StageSizes;
use super::answer_check::{check_rows, check_timings};
use super::coordinator::{Cluster, ClusterSession};
use super::pipeline_depth::{BatchObservation, DepthPolicy, PipelineDepth};
use super::wire::{Done, Rows, StageMessage, StageTiming};
use crate::isolate;

/// Converts tokens to hidden states.
pub trait Embed: Send {
    /// Number of tokens that have a row.
    fn rows(&self) -> u64;

    /// Appends the row of each token to `out`.
    ///
    /// # Errors
    /// Error of the operating system if the rows cannot be read.
    fn append(&mut self, tokens: &[TokenId], out: &mut Vec<f32>) -> io::Result<()>;
}

/// A batch in the stages, and the answers to it so far.
struct StagedBatch {
    batch: Batch,
    /// Numbers of its parts on the wire.
    ids: Range<u64>,
    /// Number of parts without an answer yet.
    missing: usize,
    submitted: Instant,
    /// Sequences in all batches in flight at its submission, its own included.
    sequences: usize,
    sampled: Vec<Sampled>,
    error: Option<RunError>,
    /// Time in each stage, summed over the parts.
    timings: Vec<StageTiming>,
    /// True if it was sent in parts, in which sequences cannot break each other.
    is_isolated: bool,
}

impl StagedBatch {
    /// Adds the answer to one part.
    fn add_answer(&mut self, done: Done) -> Result<(), String> {
        self.missing -= 1;
        self.timings.resize(done.timings.len().max(self.timings.len()), StageTiming::default());
        for (sum, timing) in self.timings.iter_mut().zip(&done.timings) {
            sum.wait_us = sum.wait_us.saturating_add(timing.wait_us);
            sum.compute_us = sum.compute_us.saturating_add(timing.compute_us);
        }
        match done.outcome {
            Ok(sampled) => {
                let is_known =
                    |row: &Sampled| self.batch.spans.iter().any(|span| span.slot == row.slot);
                if !sampled.iter().all(is_known) {
                    return Err("the last stage answered for another sequence".into());
                }
                self.sampled.extend(sampled);
            }
            Err(error) => self.error = Some(error),
        }
        Ok(())
    }
}

/// Batched decoding over stages.
pub struct StagedRunner {
    cluster: Cluster,
    embed: Box<dyn Embed>,
    capacity: Capacity,
    stages: usize,
    /// `None` from the loss of a session until there is another.
    session: Option<Arc<ClusterSession>>,
    /// Batches in the order of collection, oldest first.
    in_flight: VecDeque<StagedBatch>,
    next_id: u64,
    /// Number of positions of each slot in the stages.
    lens: Vec<u32>,
    /// Grammar of each slot. Followed here, because the stages have no vocabulary.
    constraints: Vec<Option<Box<dyn Constraint>>>,
    /// True if cells may hold NaN (see `isolate`), until all slots have been freed.
    is_tainted: bool,
    policy: DepthPolicy,
    epoch: Instant,
}

impl StagedRunner {
    /// Creates a runner over the connected stages of `cluster`.
    pub fn new(cluster: Cluster, embed: Box<dyn Embed>, depth: PipelineDepth) -> Self {
        let sizes = cluster.sizes();
        let least = |of: fn(&StageSizes) -> u32| sizes.iter().map(of).min().unwrap_or(0);
        let capacity = Capacity {
            slots: sizes.iter().map(|sizes| sizes.slots).min().unwrap_or(0),
            kv_cells: least(|sizes| sizes.kv_cells),
            context_tokens: least(|sizes| sizes.context_tokens),
            batch_tokens: least(|sizes| sizes.batch_tokens),
            shares_prefix: sizes.iter().all(|sizes| sizes.shares_prefix),
        };
        Self {
            session: cluster.session(),
            lens: vec![0; capacity.slots.into()],
            constraints: (0..capacity.slots).map(|_| None).collect(),
            policy: DepthPolicy::new(depth, sizes.len()),
            stages: sizes.len(),
            cluster,
            embed,
            capacity,
            in_flight: VecDeque::new(),
            next_id: 0,
            is_tainted: false,
            epoch: Instant::now(),
        }
    }

    fn send(&self, message: StageMessage) {
        if let Some(session) = &self.session {
            session.send(message);
        }
    }

    /// Resets the state after the stages' was lost because of `why`.
    fn lose(&mut self, why: String) -> RunError {
        self.session = None;
        self.in_flight.clear();
        self.lens.fill(0);
        self.is_tainted = false;
        RunError::Lost(why)
    }

    /// Returns the session that has the samplers and pasts of the sequences. A newer session of the
    /// cluster does not count: see [`Runner::poll_recovery`].
    fn live_session(&mut self) -> Result<Arc<ClusterSession>, RunError> {
        match &self.session {
            Some(session) => Ok(session.clone()),
            None => {
                let why = self.outage();
                Err(self.lose(why))
            }
        }
    }

    fn outage(&self) -> String {
        self.cluster.outage().unwrap_or_else(|| "it was just lost".into())
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), RunError> {
        let broken = |what: &str| Err(RunError::Backend(format!("invalid batch: {what}")));
        if batch.tokens.is_empty() || batch.tokens.len() > self.capacity.batch_tokens as usize {
            return broken("its size");
        }
        if batch.tokens.iter().any(|&token| u64::from(token) >= self.embed.rows()) {
            return broken("a token outside the vocabulary");
        }
        Ok(())
    }

    /// Sends `batch`, in one part or in several, and inserts it at position `at` of the queue. Of
    /// an isolated batch only `spans` are sent.
    fn send_batch(&mut self, at: usize, batch: Batch, spans: &[usize]) -> Result<(), RunError> {
        let session = self.live_session()?;
        let first = self.next_id;
        let is_isolated = self.is_tainted;
        let mut sampled = Vec::new();
        if is_isolated {
            for part in isolate::cut(&batch, spans) {
                self.send_part(&session, &part.batch, &mut sampled)?;
            }
        } else {
            self.send_part(&session, &batch, &mut sampled)?;
        }
        let ids = first..self.next_id;
        let missing = (ids.end - ids.start) as usize;
        let earlier = self.in_flight.iter().map(|earlier| earlier.batch.spans.len());
        let sequences = earlier.sum::<usize>() + batch.spans.len();
        let sent = StagedBatch {
            batch,
            ids,
            missing,
            submitted: Instant::now(),
            sequences,
            sampled,
            error: None,
            timings: Vec::new(),
            is_isolated,
        };
        self.in_flight.insert(at, sent);
        self.update_deadline();
        Ok(())
    }

    /// Sends one part. A row whose grammar returns an error cannot be sampled: it is added to
    /// `failed`, and computed like a row that does not sample.
    fn send_part(
        &mut self,
        session: &ClusterSession,
        part: &Batch,
        failed: &mut Vec<Sampled>,
    ) -> Result<(), RunError> {
        let mut rows = Vec::new();
        let read = self.embed.append(&part.tokens, &mut rows);
        read.map_err(|error| RunError::Backend(format!("embeddings: {error}")))?;
        for span in &part.spans {
            self.lens[span.slot.index()] = span.start + span.tokens.len() as u32;
        }
        let mut spans: Vec<Span> = part.spans.clone();
        for span in spans.iter_mut().filter(|span| span.sample) {
            let Some(constraint) = &mut self.constraints[span.slot.index()] else { continue };
            // Before the rows, since the last stage samples as soon as it has them.
            match constraint.allowed().map(<[u32]>::to_vec) {
                Ok(allowed) => session.send(StageMessage::Allow { slot: span.slot, allowed }),
                Err(error) => {
                    span.sample = false;
                    failed.push(Sampled { slot: span.slot, outcome: Err(error) });
                }
            }
        }
        let (failed, timings) = (Vec::new(), Vec::new());
        session.send(StageMessage::Rows(Rows { id: self.next_id, spans, failed, timings, rows }));
        self.next_id += 1;
        Ok(())
    }

    /// Advances the grammars by the chosen tokens.
    fn advance_constraints(&mut self, sampled: &[Sampled]) {
        for row in sampled {
            let constraint = &mut self.constraints[row.slot.index()];
            if let (Some(constraint), Ok(choice)) = (constraint, &row.outcome) {
                constraint.accept(choice.token);
            }
        }
    }

    /// Updates the deadline, which counts from the submission of the oldest batch.
    fn update_deadline(&self) {
        if let Some(session) = &self.session {
            session.expect(self.in_flight.front().map(|oldest| oldest.submitted));
        }
    }

    /// Adds an answer to its batch; returns an error if the last stage answered wrongly.
    fn take_answer(&mut self, done: Done) -> Result<(), String> {
        check_timings(&done, self.stages)?;
        let asked = self.in_flight.iter_mut().find(|batch| batch.ids.contains(&done.id));
        match asked.filter(|batch| batch.missing > 0) {
            Some(batch) => batch.add_answer(done),
            None => Err("the last stage answered a batch that is not in flight".into()),
        }
    }

    /// Ends the oldest batch, which has all its answers. Returns its outcome, or `None` if a part
    /// of it must be computed again.
    fn complete_oldest(&mut self) -> Option<Result<Vec<Sampled>, RunError>> {
        let mut oldest = self.in_flight.pop_front().expect("the caller has seen it");
        self.measure(&oldest);
        if let Some(error) = oldest.error {
            return Some(Err(self.roll_back(&oldest.batch, error, oldest.is_isolated)));
        }
        if let Err(why) = check_rows(&oldest.batch, &oldest.sampled, self.embed.rows()) {
            if let Some(session) = &self.session {
                self.cluster.lose(session, why.clone());
            }
            return Some(Err(self.lose(why)));
        }
        let is_broken = |row: &Sampled| row.outcome == Err(RowError::NonFiniteLogits);
        if !oldest.is_isolated && oldest.sampled.iter().any(is_broken) {
            // One sequence is broken and may have broken others: llama.cpp's attention lets NaN
            // spread within a native call. All suspects are computed again, isolated.
            self.is_tainted = true;
            let suspects: Vec<Slot> =
                oldest.sampled.iter().filter(|row| is_broken(row)).map(|row| row.slot).collect();
            oldest.sampled.retain(|row| !is_broken(row));
            if let Err(error) = self.compute_again(&oldest, &suspects) {
                return Some(Err(error));
            }
            // It took the place of the old one, so that batches are collected in order.
            let again = self.in_flight.front_mut().expect("it was just sent");
            again.sampled.extend(oldest.sampled);
            return None;
        }
        let sampled = in_order(&oldest.batch, oldest.sampled);
        self.advance_constraints(&sampled);
        Some(Ok(sampled))
    }

    fn compute_again(&mut self, old: &StagedBatch, suspects: &[Slot]) -> Result<(), RunError> {
        let spans = old.batch.spans.iter().enumerate();
        let spans: Vec<usize> = spans
            .filter(|(_, span)| suspects.contains(&span.slot))
            .map(|(index, _)| index)
            .collect();
        for &index in &spans {
            let Span { slot, start, .. } = old.batch.spans[index];
            tracing::warn!(slot = slot.0, "a sequence has no usable logits: computing it alone");
            self.send(StageMessage::Truncate { slot, len: start });
        }
        self.send_batch(0, old.batch.clone(), &spans)
    }

    /// Returns the stages to their state before `batch`, which failed in one of them.
    fn roll_back(&mut self, batch: &Batch, error: RunError, is_isolated: bool) -> RunError {
        for &Span { slot, start, .. } in &batch.spans {
            self.truncate(slot, start);
        }
        match error {
            // The scheduler tries a batch again after `CacheFull`. Here some parts may be done
            // and their tokens sampled, which would draw random numbers twice.
            RunError::CacheFull if is_isolated => RunError::Backend(error.to_string()),
            error => error,
        }
    }

    /// Reports the times of a batch to the depth policy and to the cluster's statistics.
    fn measure(&mut self, finished: &StagedBatch) {
        let in_stage =
            |timing: &StageTiming| u64::from(timing.wait_us) + u64::from(timing.compute_us);
        let inside = Duration::from_micros(finished.timings.iter().map(in_stage).sum());
        let link_time = finished.submitted.elapsed().saturating_sub(inside);
        // One link more than stages: the last leads from the last stage back to the runner.
        let link_delay = link_time / (finished.timings.len() as u32 + 1);
        // Batches with prompts, and isolated ones, do not show what decoding costs.
        let is_decode = finished.batch.tokens.len() == finished.batch.spans.len();
        if is_decode && !finished.is_isolated {
            self.policy.observe(&BatchObservation {
                now: self.epoch.elapsed(),
                rows: finished.batch.spans.len(),
                sequences: finished.sequences,
                timings: &finished.timings,
                link_time,
            });
        }
        self.cluster.record_batch(finished.timings.clone(), link_delay, self.policy.depth());
    }
}

/// Sorts rows by the order of the batch's spans, and keeps one of each sequence: a failure if there
/// is one.
fn in_order(batch: &Batch, mut sampled: Vec<Sampled>) -> Vec<Sampled> {
    let place = |slot| batch.spans.iter().position(|span| span.slot == slot);
    sampled.sort_by_key(|row| (place(row.slot), row.outcome.is_ok()));
    sampled.dedup_by_key(|row| row.slot);
    sampled
}

impl Pipeline for StagedRunner {
    fn depth(&self) -> usize {
        self.policy.depth()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunError> {
        self.check_batch(batch)?;
        let all: Vec<usize> = (0..batch.spans.len()).collect();
        self.send_batch(self.in_flight.len(), batch.clone(), &all)
    }

    fn try_collect(&mut self, sampled: &mut Vec<Sampled>) -> Option<Result<(), RunError>> {
        loop {
            let session = self.session.clone()?;
            if self.in_flight.front().is_some_and(|oldest| oldest.missing == 0) {
                let completed = self.complete_oldest();
                self.update_deadline();
                match completed {
                    Some(Ok(rows)) => {
                        sampled.extend(rows);
                        return Some(Ok(()));
                    }
                    Some(Err(error)) => return Some(Err(error)),
                    None => continue,
                }
            }
            match session.try_next() {
                Ok(None) => return None,
                Ok(Some(done)) => {
                    if let Err(why) = self.take_answer(done) {
                        // The next turn of the loop gets the loss from the session.
                        self.cluster.lose(&session, why);
                    }
                }
                Err(why) => return Some(Err(self.lose(why))),
            }
        }
    }

    fn on_arrival(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.cluster.on_arrival(wake);
    }
}

impl Runner for StagedRunner {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn assign(&mut self, slot: Slot, mut sampler: Sampler) {
        self.constraints[slot.index()] = sampler.constrain(None);
        self.send(StageMessage::Assign { slot, sampler: Box::new((&sampler).into()) });
    }

    fn poll_recovery(&mut self) -> Recovery {
        if self.session.is_none() {
            self.session = self.cluster.session();
            self.next_id = 0;
        }
        match &self.session {
            Some(_) => Recovery::Ready,
            None => Recovery::Pending(self.outage()),
        }
    }

    fn is_ready(&mut self, slot: Slot) -> bool {
        self.constraints[slot.index()].as_mut().is_none_or(|constraint| constraint.is_ready())
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        self.submit(batch)?;
        loop {
            if let Some(outcome) = self.try_collect(sampled) {
                return outcome;
            }
            match &self.session {
                Some(session) => session.wait(),
                None => return Err(self.lose("it was just lost".into())),
            }
        }
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        assert!(self.capacity.shares_prefix, "this model's past cannot be shared");
        self.lens[to.index()] = len;
        self.send(StageMessage::Fork { from, to, len });
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        let place = &mut self.lens[slot.index()];
        *place = len.min(*place);
        self.send(StageMessage::Truncate { slot, len });
        // Only when no sequence is left can the cells be overwritten, and with them the NaN.
        if self.is_tainted && self.lens.iter().all(|&len| len == 0) {
            self.send(StageMessage::Wipe);
            self.is_tainted = false;
        }
    }

    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        Some(self)
    }
}
