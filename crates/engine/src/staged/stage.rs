//! Work of one stage on each message, without any network: positions, samplers, one native call per
//! batch.

use std::time::Instant;

use loquent_infer::runner::{RunError, Sampled, Slot, Span};
use loquent_infer::sampling::{Constraint, Sampler, Scratch};
use loquent_infer::token::{RowError, TokenId};

use super::wire::{Done, Rows, StageMessage, StageTiming, StageTotals};
use super::{Layers, StageSizes};

/// Position of a sequence in this stage. The stage alone decides it: a batch that assumes another
/// position fails for that sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotPosition {
    /// Number of computed positions.
    At(u32),
    /// Unknown after an impossible request, until the slot is freed.
    Broken,
}

/// Tokens that the runner allows next: the stage's side of a grammar, which the runner follows.
struct AllowedTokens {
    allowed: Vec<u32>,
    is_used: bool,
}

impl Constraint for AllowedTokens {
    fn allowed(&mut self) -> Result<&[u32], RowError> {
        if self.is_used { Err(RowError::OutOfStep) } else { Ok(&self.allowed) }
    }

    fn accept(&mut self, _token: TokenId) {
        self.is_used = true;
    }
}

/// Layers with the state of their sequences.
pub struct Stage {
    layers: Box<dyn Layers>,
    sizes: StageSizes,
    positions: Vec<SlotPosition>,
    samplers: Vec<Option<Sampler>>,
    scratch: Scratch,
    totals: StageTotals,
}

impl Stage {
    /// Creates a stage without sequences; `layers` are wiped.
    pub fn new(mut layers: Box<dyn Layers>) -> Self {
        layers.wipe();
        let sizes = layers.sizes();
        let slots = usize::from(sizes.slots);
        Self {
            layers,
            sizes,
            positions: vec![SlotPosition::At(0); slots],
            samplers: (0..slots).map(|_| None).collect(),
            scratch: Scratch::default(),
            totals: StageTotals::default(),
        }
    }

    /// Position in the model, and sizes.
    pub fn sizes(&self) -> StageSizes {
        self.sizes
    }

    /// Totals since the stage was created.
    pub fn totals(&self) -> StageTotals {
        self.totals
    }

    /// Returns the layers, for another session.
    pub fn into_layers(self) -> Box<dyn Layers> {
        self.layers
    }

    /// Handles `message`, which arrived at `arrived`. Returns the message to send on: to the next
    /// stage, or a [`StageMessage::Done`] to the runner; `None` if there is nothing to send, or if
    /// a stage does not accept this kind of message.
    pub fn handle(&mut self, message: StageMessage, arrived: Instant) -> Option<StageMessage> {
        let is_last = self.sizes.keys.is_last();
        match message {
            StageMessage::Rows(rows) => {
                // Around sampling too: threads of another stage would slow it down as well.
                self.layers.begin();
                let answer = self.compute(rows, arrived);
                self.layers.end();
                return Some(answer);
            }
            StageMessage::Aborted { id, timings, error } => {
                return Some(self.pass_on(id, timings, error));
            }
            StageMessage::Fork { from, to, len } => self.fork(from, to, len),
            StageMessage::Truncate { slot, len } => self.truncate(slot, len),
            StageMessage::Wipe => self.wipe(),
            StageMessage::Assign { slot, ref sampler } if is_last => {
                if let Some(place) = self.samplers.get_mut(slot.index()) {
                    *place = Some((**sampler).clone().into());
                }
            }
            StageMessage::Allow { slot, allowed } if is_last => {
                if let Some(Some(sampler)) = self.samplers.get_mut(slot.index()) {
                    sampler.constrain(Some(Box::new(AllowedTokens { allowed, is_used: false })));
                }
                return None;
            }
            // For the last stage: only passed on.
            StageMessage::Assign { .. } | StageMessage::Allow { .. } => {}
            _ => return None,
        }
        (!is_last).then_some(message)
    }

    fn place(&mut self, slot: Slot) -> Option<&mut SlotPosition> {
        self.positions.get_mut(slot.index())
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        let shares = self.sizes.shares_prefix && from != to;
        let source = self.place(from).copied();
        let sound = shares && matches!(source, Some(SlotPosition::At(have)) if have >= len);
        let Some(place) = self.place(to) else { return };
        // The heir fails with its next batch, alone; nothing has to be answered here.
        let sound = sound && *place == SlotPosition::At(0);
        *place = if sound { SlotPosition::At(len) } else { SlotPosition::Broken };
        if sound {
            self.layers.fork(from, to, len);
        }
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        let Some(&place) = self.positions.get(slot.index()) else { return };
        self.positions[slot.index()] = match place {
            SlotPosition::At(have) if have <= len => place,
            // Which positions it has is unknown, so only freeing it repairs it.
            SlotPosition::Broken if len > 0 => place,
            _ if self.layers.truncate(slot, len) => SlotPosition::At(len),
            _ => SlotPosition::Broken,
        };
    }

    fn wipe(&mut self) {
        self.layers.wipe();
        self.positions.fill(SlotPosition::At(0));
        self.samplers.iter_mut().for_each(|sampler| *sampler = None);
    }

    fn compute(&mut self, mut rows: Rows, arrived: Instant) -> StageMessage {
        let started = Instant::now();
        self.drop_misplaced(&mut rows);
        let computed = match rows.spans.is_empty() {
            true => Ok(()),
            false => self.layers.compute(&rows.rows, &rows.spans),
        };
        if let Err(error) = computed {
            let timing = self.note(&rows, arrived, started);
            self.forget(&rows.spans, &error);
            rows.timings.push(timing);
            return self.pass_on(rows.id, rows.timings, error);
        }
        for span in &rows.spans {
            self.positions[span.slot.index()] =
                SlotPosition::At(span.start + span.tokens.len() as u32);
        }
        let sampled = self.sizes.keys.is_last().then(|| self.sample(&rows));
        let timing = self.note(&rows, arrived, started);
        rows.timings.push(timing);
        if let Some(sampled) = sampled {
            return StageMessage::Done(Done {
                id: rows.id,
                timings: rows.timings,
                outcome: Ok(sampled),
            });
        }
        // The message is reused: the next stage needs the same spans with other rows.
        rows.rows.clear();
        if !rows.spans.is_empty() {
            rows.rows.extend_from_slice(self.layers.hidden());
        }
        StageMessage::Rows(rows)
    }

    /// Passes a failed batch on: it goes through all stages too, so that answers come in order.
    fn pass_on(&self, id: u64, timings: Vec<StageTiming>, error: RunError) -> StageMessage {
        match self.sizes.keys.is_last() {
            true => StageMessage::Done(Done { id, timings, outcome: Err(error) }),
            false => StageMessage::Aborted { id, timings, error },
        }
    }

    /// Cuts off the positions that a failed native call may have left in the cache.
    fn forget(&mut self, spans: &[Span], error: &RunError) {
        // Then nothing was computed, and the positions are still right.
        if *error == RunError::CacheFull {
            return;
        }
        for span in spans {
            let cut = self.layers.truncate(span.slot, span.start);
            if !cut {
                self.positions[span.slot.index()] = SlotPosition::Broken;
            }
        }
    }

    /// Removes from a batch the sequences whose position here differs from the one that the batch
    /// assumes.
    fn drop_misplaced(&mut self, rows: &mut Rows) {
        let sizes = self.sizes;
        let mut seen = vec![false; self.positions.len()];
        let is_sound = |span: &Span, seen: &mut [bool]| {
            let end = u64::from(span.start) + span.tokens.len() as u64;
            let place = self.positions.get(span.slot.index());
            // A slot that comes twice would compute its positions twice.
            place == Some(&SlotPosition::At(span.start))
                && end <= u64::from(sizes.context_tokens)
                && !std::mem::replace(&mut seen[span.slot.index()], true)
        };
        if rows.spans.iter().all(|span| is_sound(span, &mut seen)) {
            return;
        }
        seen.fill(false);
        // The rows are one block without gaps, so those that remain move up.
        let (mut kept, mut floats) = (Vec::new(), Vec::new());
        for span in std::mem::take(&mut rows.spans) {
            if !is_sound(&span, &mut seen) {
                tracing::warn!(slot = span.slot.0, start = span.start, "a sequence is out of step");
                rows.failed.push((span.slot, RowError::OutOfStep));
                continue;
            }
            let (from, len) = (span.tokens.start, span.tokens.len());
            let at = floats.len() / sizes.width;
            floats.extend_from_slice(&rows.rows[from * sizes.width..(from + len) * sizes.width]);
            kept.push(Span { tokens: at..at + len, ..span });
        }
        rows.spans = kept;
        rows.rows = floats;
    }

    /// Returns a row for each span that samples, and one for each that failed. Other spans are
    /// checked for NaN too, which would corrupt all later positions.
    fn sample(&mut self, rows: &Rows) -> Vec<Sampled> {
        let failed = rows.failed.iter().cloned();
        let mut sampled: Vec<Sampled> =
            failed.map(|(slot, error)| Sampled { slot, outcome: Err(error) }).collect();
        for span in &rows.spans {
            let slot = span.slot;
            let logits = self.layers.logits(span.tokens.end - 1);
            let outcome = if !span.sample {
                // A fold without an early exit becomes vector code; `any` would not.
                match logits.iter().fold(false, |nan, logit| nan | logit.is_nan()) {
                    true => Err(RowError::NonFiniteLogits),
                    false => continue,
                }
            } else {
                match &mut self.samplers[slot.index()] {
                    Some(sampler) => sampler.sample(logits, &mut self.scratch),
                    None => Err(RowError::OutOfStep),
                }
            };
            sampled.push(Sampled { slot, outcome });
        }
        sampled
    }

    fn note(&mut self, rows: &Rows, arrived: Instant, started: Instant) -> StageTiming {
        let wait_us = started.saturating_duration_since(arrived).as_micros() as u64;
        let compute_us = started.elapsed().as_micros() as u64;
        let spans = rows.spans.len() as u64;
        let totals = &mut self.totals;
        totals.batches += 1;
        totals.spans += spans;
        totals.busy_us += compute_us;
        totals.wait_us += wait_us;
        totals.longest_wait_us = totals.longest_wait_us.max(wait_us);
        totals.most_spans = totals.most_spans.max(spans);
        let short = |us: u64| u32::try_from(us).unwrap_or(u32::MAX);
        StageTiming { wait_us: short(wait_us), compute_us: short(compute_us) }
    }
}
