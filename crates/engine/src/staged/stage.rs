//! What one stage does with what it is told, without any network: positions, samplers, one
//! native call per batch.

use std::time::Instant;

use loquent_infer::runner::{RunError, Sampled, Slot, Span};
use loquent_infer::sampling::{Constraint, Sampler, Scratch};
use loquent_infer::token::{RowError, TokenId};

use super::wire::{Done, Lap, Message, Rows, Totals};
use super::{Layers, StageSizes};

/// Where a sequence stands in this stage. The stage alone decides: a batch that assumes
/// another position fails for that sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// So many positions are computed.
    At(u32),
    /// It was asked for something impossible; until it is freed.
    Broken,
}

/// What the runner said of a sequence's next token; its grammar is followed there.
struct Told {
    allowed: Vec<u32>,
    is_used: bool,
}

impl Constraint for Told {
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
    places: Vec<Place>,
    samplers: Vec<Option<Sampler>>,
    scratch: Scratch,
    totals: Totals,
}

impl Stage {
    /// A stage with nothing in it.
    pub fn new(mut layers: Box<dyn Layers>) -> Self {
        layers.wipe();
        let sizes = layers.sizes();
        let slots = usize::from(sizes.slots);
        Self {
            layers,
            sizes,
            places: vec![Place::At(0); slots],
            samplers: (0..slots).map(|_| None).collect(),
            scratch: Scratch::default(),
            totals: Totals::default(),
        }
    }

    /// What it holds.
    pub fn sizes(&self) -> StageSizes {
        self.sizes
    }

    /// What it has done so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The layers, to be used by another session.
    pub fn into_layers(self) -> Box<dyn Layers> {
        self.layers
    }

    /// Does what `message`, which came at `arrived`, asks for; gives what is to be sent on: to
    /// the next stage, or a [`Message::Done`] to the runner. `None` when nothing is, or
    /// when the message is none that a stage is told.
    pub fn handle(&mut self, message: Message, arrived: Instant) -> Option<Message> {
        let is_last = self.sizes.keys.is_last();
        match message {
            Message::Rows(rows) => {
                self.layers.begin();
                let answer = self.compute(rows, arrived);
                self.layers.end();
                return Some(answer);
            }
            Message::Aborted { id, trace, error } => return Some(self.pass_on(id, trace, error)),
            Message::Fork { from, to, len } => self.fork(from, to, len),
            Message::Truncate { slot, len } => self.truncate(slot, len),
            Message::Wipe => self.wipe(),
            Message::Assign { slot, ref sampler } if is_last => {
                if let Some(place) = self.samplers.get_mut(slot.index()) {
                    *place = Some((**sampler).clone().into());
                }
            }
            Message::Allow { slot, allowed } if is_last => {
                if let Some(Some(sampler)) = self.samplers.get_mut(slot.index()) {
                    sampler.constrain(Some(Box::new(Told { allowed, is_used: false })));
                }
                return None;
            }
            Message::Assign { .. } | Message::Allow { .. } => {}
            _ => return None,
        }
        (!is_last).then_some(message)
    }

    fn place(&mut self, slot: Slot) -> Option<&mut Place> {
        self.places.get_mut(slot.index())
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        let shares = self.sizes.shares_prefix && from != to;
        let source = self.place(from).copied();
        let sound = shares && matches!(source, Some(Place::At(have)) if have >= len);
        let Some(place) = self.place(to) else { return };
        let sound = sound && *place == Place::At(0);
        *place = if sound { Place::At(len) } else { Place::Broken };
        if sound {
            self.layers.fork(from, to, len);
        }
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        let Some(&place) = self.places.get(slot.index()) else { return };
        self.places[slot.index()] = match place {
            Place::At(have) if have <= len => place,
            Place::Broken if len > 0 => place,
            _ if self.layers.truncate(slot, len) => Place::At(len),
            _ => Place::Broken,
        };
    }

    fn wipe(&mut self) {
        self.layers.wipe();
        self.places.fill(Place::At(0));
        self.samplers.iter_mut().for_each(|sampler| *sampler = None);
    }

    fn compute(&mut self, mut rows: Rows, arrived: Instant) -> Message {
        let started = Instant::now();
        self.drop_misplaced(&mut rows);
        let computed = match rows.spans.is_empty() {
            true => Ok(()),
            false => self.layers.compute(&rows.rows, &rows.spans),
        };
        if let Err(error) = computed {
            let lap = self.note(&rows, arrived, started);
            self.forget(&rows.spans, &error);
            rows.trace.push(lap);
            return self.pass_on(rows.id, rows.trace, error);
        }
        for span in &rows.spans {
            self.places[span.slot.index()] = Place::At(span.start + span.tokens.len() as u32);
        }
        let sampled = self.sizes.keys.is_last().then(|| self.sample(&rows));
        let lap = self.note(&rows, arrived, started);
        rows.trace.push(lap);
        if let Some(sampled) = sampled {
            return Message::Done(Done { id: rows.id, trace: rows.trace, outcome: Ok(sampled) });
        }
        rows.rows.clear();
        if !rows.spans.is_empty() {
            rows.rows.extend_from_slice(self.layers.hidden());
        }
        Message::Rows(rows)
    }

    /// A failed batch goes its way, so that answers come in order.
    fn pass_on(&self, id: u64, trace: Vec<Lap>, error: RunError) -> Message {
        match self.sizes.keys.is_last() {
            true => Message::Done(Done { id, trace, outcome: Err(error) }),
            false => Message::Aborted { id, trace, error },
        }
    }

    /// After a failure nobody knows what the cache holds beyond the batch's beginnings.
    fn forget(&mut self, spans: &[Span], error: &RunError) {
        if *error == RunError::CacheFull {
            return;
        }
        for span in spans {
            let cut = self.layers.truncate(span.slot, span.start);
            if !cut {
                self.places[span.slot.index()] = Place::Broken;
            }
        }
    }

    /// Takes sequences that do not stand where the batch says out of it.
    fn drop_misplaced(&mut self, rows: &mut Rows) {
        let sizes = self.sizes;
        let mut seen = vec![false; self.places.len()];
        let is_sound = |span: &Span, seen: &mut [bool]| {
            let end = u64::from(span.start) + span.tokens.len() as u64;
            let place = self.places.get(span.slot.index());
            place == Some(&Place::At(span.start))
                && end <= u64::from(sizes.context_tokens)
                && !std::mem::replace(&mut seen[span.slot.index()], true)
        };
        if rows.spans.iter().all(|span| is_sound(span, &mut seen)) {
            return;
        }
        seen.fill(false);
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

    /// One row for each sampling span, and one for each that failed. Rows of other spans are
    /// looked at too: their logits show whether the past is sound.
    fn sample(&mut self, rows: &Rows) -> Vec<Sampled> {
        let failed = rows.failed.iter().cloned();
        let mut sampled: Vec<Sampled> =
            failed.map(|(slot, error)| Sampled { slot, outcome: Err(error) }).collect();
        for span in &rows.spans {
            let slot = span.slot;
            let logits = self.layers.logits(span.tokens.end - 1);
            let outcome = if !span.sample {
                // The fold has no early exit and so becomes vector code.
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

    fn note(&mut self, rows: &Rows, arrived: Instant, started: Instant) -> Lap {
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
        Lap { wait_us: short(wait_us), compute_us: short(compute_us) }
    }
}
