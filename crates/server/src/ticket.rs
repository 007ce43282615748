//! A completion's place under the server's bounds, given back whichever way it ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use loquent_infer::admission::{Admission, Bounds, Refusal};

use crate::clock::Clock;

/// How many completions were let in and have not reached the engine: their prompts are being
/// tokenized. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Coming(Arc<AtomicUsize>);

impl Coming {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Hands out tickets. Its lock is taken per completion, never per token.
#[derive(Debug, Clone)]
pub struct Gate {
    admission: Arc<Mutex<Admission>>,
    clock: Clock,
    coming: Coming,
}

impl Gate {
    /// A gate with everything free, which counts in `coming` whom it let in.
    pub fn new(bounds: Bounds, clock: Clock, coming: Coming) -> Self {
        Self { admission: Arc::new(Mutex::new(Admission::new(bounds))), clock, coming }
    }

    /// Places for all of a request's completions, or for none.
    ///
    /// # Errors
    /// [`Refusal::Requests`] when too many are in flight.
    pub fn enter(&self, completions: usize) -> Result<Vec<Ticket>, Refusal> {
        self.with(|admission| admission.enter(completions))?;
        self.coming.0.fetch_add(completions, Ordering::Relaxed);
        let ticket = || Ticket { gate: self.clone(), queued_tokens: 0, coming: true };
        Ok((0..completions).map(|_| ticket()).collect())
    }

    /// Completions running or waiting.
    pub fn inflight(&self) -> usize {
        self.with(|admission| admission.inflight())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Admission) -> T) -> T {
        act(&mut self.admission.lock().expect("admission does not panic"))
    }
}

/// One completion's place; dropping it gives it back.
#[derive(Debug)]
pub struct Ticket {
    gate: Gate,
    queued_tokens: usize,
    /// It counts as coming.
    coming: bool,
}

impl Ticket {
    /// The engine has it: it is no longer coming.
    pub fn arrive(&mut self) {
        if std::mem::take(&mut self.coming) {
            self.gate.coming.0.fetch_sub(1, Ordering::Relaxed);
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

impl Drop for Ticket {
    fn drop(&mut self) {
        self.dequeue();
        self.arrive();
        let now = self.gate.clock.now();
        self.gate.with(|admission| admission.leave(now));
    }
}

#[cfg(test)]
mod tests {
    //! Whoever was let in counts as coming until it arrives or gives up.
    use super::*;

    #[test]
    fn coming_ends_with_arrival_or_with_the_ticket() {
        let bounds = Bounds { max_inflight_requests: 2, max_queued_tokens: 100 };
        let coming = Coming::default();
        let gate = Gate::new(bounds, Clock::start(), coming.clone());
        assert!(!coming.any());
        let mut tickets = gate.enter(2).unwrap();
        assert!(gate.enter(1).is_err() && coming.any());
        tickets[0].arrive();
        tickets[0].arrive();
        assert!(coming.any(), "the other one is still on its way");
        drop(tickets);
        assert!(!coming.any());
        assert_eq!(gate.inflight(), 0);
    }
}
