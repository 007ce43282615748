//! A completion's place under the server's bounds, given back whichever way it ends.

use std::sync::{Arc, Mutex};

use loquent_infer::admission::{Admission, Bounds, Refusal};

use crate::clock::Clock;

/// Hands out tickets. Its lock is taken per completion, never per token.
#[derive(Debug, Clone)]
pub struct Gate {
    admission: Arc<Mutex<Admission>>,
    clock: Clock,
}

impl Gate {
    /// A gate with everything free.
    pub fn new(bounds: Bounds, clock: Clock) -> Self {
        Self { admission: Arc::new(Mutex::new(Admission::new(bounds))), clock }
    }

    /// Places for all of a request's completions, or for none.
    ///
    /// # Errors
    /// [`Refusal::Requests`] when too many are in flight.
    pub fn enter(&self, completions: usize) -> Result<Vec<Ticket>, Refusal> {
        self.with(|admission| admission.enter(completions))?;
        let ticket = || Ticket { gate: self.clone(), queued_tokens: 0 };
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
}

impl Ticket {
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
        let now = self.gate.clock.now();
        self.gate.with(|admission| admission.leave(now));
    }
}
