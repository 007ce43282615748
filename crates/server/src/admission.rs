//! Admission: a permit for every completion, returned whichever way the completion ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use loquent_infer::admission::{Admission, Bounds, Refusal};

use crate::clock::Clock;

/// Counts the completions that were admitted and have not reached the engine, because their
/// prompts are being tokenized. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PendingPrompts(Arc<AtomicUsize>);

impl PendingPrompts {
    /// Whether the engine should expect more work at once.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Issues permits. Its lock is taken per completion, never per token.
#[derive(Debug, Clone)]
pub struct AdmissionGate {
    admission: Arc<Mutex<Admission>>,
    clock: Clock,
    pending: PendingPrompts,
}

impl AdmissionGate {
    /// A gate without any permit issued, which counts admitted prompts in `pending`.
    pub fn new(bounds: Bounds, clock: Clock, pending: PendingPrompts) -> Self {
        Self { admission: Arc::new(Mutex::new(Admission::new(bounds))), clock, pending }
    }

    /// Permits for all of a request's completions, or for none of them.
    ///
    /// # Errors
    /// [`Refusal::Requests`] when too many are in flight.
    pub fn enter(&self, completions: usize) -> Result<Vec<Permit>, Refusal> {
        self.with(|admission| admission.enter(completions))?;
        self.pending.0.fetch_add(completions, Ordering::Relaxed);
        let permit = || Permit { gate: self.clone(), queued_tokens: 0, is_pending: true };
        Ok((0..completions).map(|_| permit()).collect())
    }

    /// Whether one more completion would be admitted now.
    ///
    /// # Errors
    /// [`Refusal::Requests`] when too many are in flight.
    pub fn check_room(&self) -> Result<(), Refusal> {
        self.with(|admission| admission.check_room(1))
    }

    /// Completions running or waiting.
    pub fn in_flight(&self) -> usize {
        self.with(|admission| admission.inflight())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Admission) -> T) -> T {
        act(&mut self.admission.lock().expect("admission does not panic"))
    }
}

/// Admits one completion until it is dropped.
#[derive(Debug)]
pub struct Permit {
    gate: AdmissionGate,
    queued_tokens: usize,
    /// Whether it is counted in the gate's [`PendingPrompts`].
    is_pending: bool,
}

impl Permit {
    /// The completion has reached the engine: its prompt is no longer pending.
    pub fn arrive(&mut self) {
        if std::mem::take(&mut self.is_pending) {
            self.gate.pending.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The prompt joins the queue.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] when the queue is full.
    pub fn enqueue(&mut self, prompt_tokens: usize) -> Result<(), Refusal> {
        self.gate.with(|admission| admission.enqueue(prompt_tokens))?;
        self.queued_tokens = prompt_tokens;
        Ok(())
    }

    /// The prompt has left the queue.
    pub fn dequeue(&mut self) {
        let tokens = std::mem::take(&mut self.queued_tokens);
        if tokens > 0 {
            self.gate.with(|admission| admission.dequeue(tokens));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.dequeue();
        self.arrive();
        let now = self.gate.clock.now();
        self.gate.with(|admission| admission.leave(now));
    }
}

#[cfg(test)]
mod tests {
    //! An admitted request counts as pending until it reaches the engine or is given up.
    use super::*;

    #[test]
    fn a_prompt_is_pending_until_it_arrives_or_its_permit_is_dropped() {
        let bounds = Bounds { max_inflight_requests: 2, max_queued_tokens: 100 };
        let pending = PendingPrompts::default();
        let gate = AdmissionGate::new(bounds, Clock::start(), pending.clone());
        assert!(!pending.any());
        let mut permits = gate.enter(2).unwrap();
        assert!(gate.enter(1).is_err() && pending.any());
        permits[0].arrive();
        permits[0].arrive();
        assert!(pending.any(), "the other prompt is still being tokenized");
        drop(permits);
        assert!(!pending.any());
        assert_eq!(gate.in_flight(), 0);
    }
}
