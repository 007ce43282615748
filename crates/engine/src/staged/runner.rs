//! The [`Runner`] whose layers are elsewhere.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquent_infer::remote::RemoteStages;
use loquent_infer::runner::{Batch, Capacity, Pipeline, RunError, Runner, Sampled, Slot, Span};
use loquent_infer::sampling::{Constraint, Sampler};
use loquent_infer::token::{RowError, TokenId};

use super::groups::{Groups, Observation, Policy};
use super::head::{Cluster, Session};
use super::wire::{Done, Lap, Message, Rows};
use crate::isolate;

/// Turns tokens into hidden states.
pub trait Embed: Send {
    /// Tokens that have a row.
    fn rows(&self) -> u64;

    /// Appends the row of each token to `out`.
    ///
    /// # Errors
    /// When the rows cannot be read.
    fn append(&mut self, tokens: &[TokenId], out: &mut Vec<f32>) -> io::Result<()>;
}

/// A batch on its way, or what is left of one.
struct Flight {
    batch: Batch,
    /// The numbers of its parts on the wire.
    ids: Range<u64>,
    /// Parts still out.
    missing: usize,
    submitted: Instant,
    /// Sequences in all batches in flight when it was submitted, its own included.
    sequences: usize,
    sampled: Vec<Sampled>,
    error: Option<RunError>,
    /// Time in each stage, summed over the parts.
    trace: Vec<Lap>,
    /// Whether it was computed in parts in which sequences cannot break each other.
    is_apart: bool,
}

/// Batched decoding over stages.
pub struct StagedRunner {
    cluster: Cluster,
    embed: Box<dyn Embed>,
    capacity: Capacity,
    /// `None` once it is lost, until a batch is submitted.
    session: Option<Arc<Session>>,
    flights: VecDeque<Flight>,
    next_id: u64,
    /// Positions of each slot in the stages.
    lens: Vec<u32>,
    /// What each slot's answer must look like: followed here, where the vocabulary is.
    constraints: Vec<Option<Box<dyn Constraint>>>,
    /// Whether cells may hold NaN: see `isolate`. Until all slots have been freed.
    tainted: bool,
    policy: Policy,
    epoch: Instant,
}

impl StagedRunner {
    /// A runner over the connected stages of `cluster`.
    pub fn new(cluster: Cluster, embed: Box<dyn Embed>, groups: Groups) -> Self {
        let sizes = cluster.sizes();
        let least = |of: fn(&super::StageSizes) -> u32| sizes.iter().map(of).min().unwrap_or(0);
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
            policy: Policy::new(groups, sizes.len()),
            cluster,
            embed,
            capacity,
            flights: VecDeque::new(),
            next_id: 0,
            tainted: false,
            epoch: Instant::now(),
        }
    }

    fn send(&self, message: Message) {
        if let Some(session) = &self.session {
            session.send(message);
        }
    }

    /// Everything is lost, because of `why`.
    fn lose(&mut self, why: String) -> RunError {
        self.session = None;
        self.flights.clear();
        self.lens.fill(0);
        self.tainted = false;
        RunError::Lost(why)
    }

    fn live_session(&mut self) -> Result<Arc<Session>, RunError> {
        if self.session.is_none() {
            self.session = self.cluster.session();
            self.next_id = 0;
        }
        match &self.session {
            Some(session) => Ok(session.clone()),
            None => {
                let why = self.cluster.outage().unwrap_or_else(|| "it was just lost".into());
                Err(self.lose(why))
            }
        }
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

    /// Sends `batch`, in one part or in several, as flight number `at` in the queue.
    fn launch(&mut self, at: usize, batch: Batch, spans: &[usize]) -> Result<(), RunError> {
        let session = self.live_session()?;
        let first = self.next_id;
        let is_apart = self.tainted;
        let mut sampled = Vec::new();
        if is_apart {
            for part in isolate::cut(&batch, spans) {
                self.send_part(&session, &part.batch, &mut sampled)?;
            }
        } else {
            self.send_part(&session, &batch, &mut sampled)?;
        }
        let ids = first..self.next_id;
        let missing = (ids.end - ids.start) as usize;
        let flying = self.flights.iter().map(|flight| flight.batch.spans.len());
        let sequences = flying.sum::<usize>() + batch.spans.len();
        let flight = Flight {
            batch,
            ids,
            missing,
            submitted: Instant::now(),
            sequences,
            sampled,
            error: None,
            trace: Vec::new(),
            is_apart,
        };
        self.flights.insert(at, flight);
        self.note_waiting();
        Ok(())
    }

    /// Sends one part; rows that cannot be sampled, because their grammar ends in an error, are
    /// added to `failed` and computed like those of which no token is wanted.
    fn send_part(
        &mut self,
        session: &Session,
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
            match constraint.allowed().map(<[u32]>::to_vec) {
                Ok(allowed) => session.send(Message::Allow { slot: span.slot, allowed }),
                Err(error) => {
                    span.sample = false;
                    failed.push(Sampled { slot: span.slot, outcome: Err(error) });
                }
            }
        }
        let (failed, trace) = (Vec::new(), Vec::new());
        session.send(Message::Rows(Rows { id: self.next_id, spans, failed, trace, rows }));
        self.next_id += 1;
        Ok(())
    }

    /// Tells the grammars what was chosen.
    fn accept(&mut self, sampled: &[Sampled]) {
        for row in sampled {
            let constraint = &mut self.constraints[row.slot.index()];
            if let (Some(constraint), Ok(choice)) = (constraint, &row.outcome) {
                constraint.accept(choice.token);
            }
        }
    }

    fn note_waiting(&self) {
        if let Some(session) = &self.session {
            session.expect(self.flights.front().map(|flight| flight.submitted));
        }
    }

    /// Takes one answer in.
    fn absorb(&mut self, done: Done) -> Result<(), String> {
        let flight = self.flights.iter_mut().find(|flight| flight.ids.contains(&done.id));
        let Some(flight) = flight.filter(|flight| flight.missing > 0) else {
            return Err("the last stage answered what was not asked".into());
        };
        flight.missing -= 1;
        flight.trace.resize(done.trace.len().max(flight.trace.len()), Lap::default());
        for (sum, lap) in flight.trace.iter_mut().zip(&done.trace) {
            sum.wait_us = sum.wait_us.saturating_add(lap.wait_us);
            sum.compute_us = sum.compute_us.saturating_add(lap.compute_us);
        }
        match done.outcome {
            Ok(sampled) => {
                let known =
                    |row: &Sampled| flight.batch.spans.iter().any(|span| span.slot == row.slot);
                if !sampled.iter().all(known) {
                    return Err("the last stage answered for another sequence".into());
                }
                flight.sampled.extend(sampled);
            }
            Err(error) => flight.error = Some(error),
        }
        Ok(())
    }

    /// The oldest flight is complete: its outcome, or `None` when a part of it must be computed
    /// again.
    fn land(&mut self) -> Option<Result<Vec<Sampled>, RunError>> {
        let mut flight = self.flights.pop_front().expect("the caller saw it");
        self.measure(&flight);
        if let Some(error) = flight.error {
            return Some(Err(self.give_up(&flight.batch, error, flight.is_apart)));
        }
        let broken = |row: &Sampled| row.outcome == Err(RowError::NonFiniteLogits);
        if !flight.is_apart && flight.sampled.iter().any(broken) {
            // One of them is broken and may have broken the others: all once more, apart.
            self.tainted = true;
            let suspects: Vec<Slot> =
                flight.sampled.iter().filter(|row| broken(row)).map(|row| row.slot).collect();
            flight.sampled.retain(|row| !broken(row));
            if let Err(error) = self.compute_again(&flight, &suspects) {
                return Some(Err(error));
            }
            let again = self.flights.front_mut().expect("it was just launched");
            again.sampled.extend(flight.sampled);
            return None;
        }
        let sampled = in_order(&flight.batch, flight.sampled);
        self.accept(&sampled);
        Some(Ok(sampled))
    }

    fn compute_again(&mut self, flight: &Flight, suspects: &[Slot]) -> Result<(), RunError> {
        let spans = flight.batch.spans.iter().enumerate();
        let spans: Vec<usize> = spans
            .filter(|(_, span)| suspects.contains(&span.slot))
            .map(|(index, _)| index)
            .collect();
        for &index in &spans {
            let Span { slot, start, .. } = flight.batch.spans[index];
            tracing::warn!(slot = slot.0, "a sequence has no usable logits: computed apart");
            self.send(Message::Truncate { slot, len: start });
        }
        self.launch(0, flight.batch.clone(), &spans)
    }

    /// Puts the stages back to before `batch`, which failed in one of them.
    fn give_up(&mut self, batch: &Batch, error: RunError, is_apart: bool) -> RunError {
        for &Span { slot, start, .. } in &batch.spans {
            self.truncate(slot, start);
        }
        match error {
            // Some parts may be done and their tokens drawn: it cannot be tried again.
            RunError::CacheFull if is_apart => RunError::Backend(error.to_string()),
            error => error,
        }
    }

    /// Tells the policy, and whoever looks from outside, how long the batch took where.
    fn measure(&mut self, flight: &Flight) {
        let stay = |lap: &Lap| u64::from(lap.wait_us) + u64::from(lap.compute_us);
        let inside = Duration::from_micros(flight.trace.iter().map(stay).sum());
        let on_wires = flight.submitted.elapsed().saturating_sub(inside);
        let hop = on_wires / (flight.trace.len() as u32 + 1);
        let is_decode = flight.batch.tokens.len() == flight.batch.spans.len() && !flight.is_apart;
        if is_decode {
            self.policy.observe(&Observation {
                now: self.epoch.elapsed(),
                rows: flight.batch.spans.len(),
                sequences: flight.sequences,
                trace: &flight.trace,
                on_links: on_wires,
            });
        }
        self.cluster.note(flight.trace.clone(), hop, self.policy.groups());
    }
}

/// The rows in the order of the batch's spans, one of each sequence, failures first.
fn in_order(batch: &Batch, mut sampled: Vec<Sampled>) -> Vec<Sampled> {
    let place = |slot| batch.spans.iter().position(|span| span.slot == slot);
    sampled.sort_by_key(|row| (place(row.slot), row.outcome.is_ok()));
    sampled.dedup_by_key(|row| row.slot);
    sampled
}

impl Pipeline for StagedRunner {
    fn depth(&self) -> usize {
        self.policy.groups()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunError> {
        self.check_batch(batch)?;
        let all: Vec<usize> = (0..batch.spans.len()).collect();
        self.launch(self.flights.len(), batch.clone(), &all)
    }

    fn try_collect(&mut self, sampled: &mut Vec<Sampled>) -> Option<Result<(), RunError>> {
        loop {
            let session = self.session.clone()?;
            if self.flights.front().is_some_and(|flight| flight.missing == 0) {
                let landed = self.land();
                self.note_waiting();
                match landed {
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
                    if let Err(why) = self.absorb(done) {
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
        // A session that was lost is noticed when the batch is submitted.
        if self.session.is_none() {
            self.session = self.cluster.session();
            self.next_id = 0;
        }
        self.send(Message::Assign { slot, sampler: Box::new((&sampler).into()) });
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
        self.send(Message::Fork { from, to, len });
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        let place = &mut self.lens[slot.index()];
        *place = len.min(*place);
        self.send(Message::Truncate { slot, len });
        if self.tainted && self.lens.iter().all(|&len| len == 0) {
            self.send(Message::Wipe);
            self.tainted = false;
        }
    }

    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        Some(self)
    }
}
