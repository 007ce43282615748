//! Masks computed while the engine decodes: when a token is chosen, a worker advances the grammar
//! and computes the next mask; the engine waits only for masks that are not ready by then. Rows
//! without a grammar pay nothing.

use std::io;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use loquent_infer::sampling::Constraint;
use loquent_infer::token::{RowError, TokenId};

/// Most threads that compute masks. Half of the processors at most: the engine needs the others.
const MAX_WORKERS: usize = 4;

/// A completion's grammar with the mask of its state.
struct Position {
    matcher: Matcher,
    mask: Result<SimpleVob, String>,
}

impl Position {
    fn at(mut matcher: Matcher) -> Self {
        let mask = matcher.compute_mask_or_eos().map_err(|error| error.to_string());
        Self { matcher, mask }
    }

    fn advance(mut self, tokens: &[TokenId]) -> Self {
        match self.matcher.consume_tokens(tokens) {
            Ok(()) => Self::at(self.matcher),
            Err(error) => Self { mask: Err(error.to_string()), ..self },
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The threads; they end when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Workers {
    jobs: Sender<Job>,
}

impl Workers {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..cores.div_ceil(2).min(MAX_WORKERS) {
            let queue = queue.clone();
            thread::Builder::new().name("grammar".into()).spawn(move || work(&queue))?;
        }
        Ok(Self { jobs })
    }

    /// Runs `job` on a worker, which sends its outcome to the receiver.
    fn run(&self, job: impl FnOnce() -> Position + Send + 'static) -> Receiver<Position> {
        let (done, outcome) = channel();
        let job = Box::new(move || {
            // The completion may have been cancelled meanwhile.
            let _ = done.send(job());
        });
        // Without workers the receiver reports the loss.
        let _ = self.jobs.send(job);
        outcome
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        // Waiting under the lock is meant: one idle worker waits for a job, the others for it.
        let next = queue.lock().map(|queue| queue.recv());
        match next {
            Ok(Ok(job)) => job(),
            _ => return,
        }
    }
}

enum MaskState {
    /// A worker computes it.
    Computing(Receiver<Position>),
    /// The mask can be read.
    Ready(Box<Position>),
    /// Placeholder while a position moves to a worker.
    Moving,
}

/// A completion's constraint, whose masks workers compute.
pub(super) struct Pending {
    workers: Workers,
    state: MaskState,
}

impl Pending {
    /// The grammar after `generated` tokens.
    pub(super) fn start(
        workers: Workers,
        pristine: Arc<Mutex<Matcher>>,
        generated: Vec<TokenId>,
    ) -> Self {
        let outcome = workers.run(move || {
            let matcher = match pristine.lock() {
                Ok(matcher) => matcher.deep_clone(),
                Err(poisoned) => poisoned.into_inner().deep_clone(),
            };
            let position = Position { matcher, mask: Err(String::new()) };
            position.advance(&generated)
        });
        Self { workers, state: MaskState::Computing(outcome) }
    }
}

impl Constraint for Pending {
    fn allowed(&mut self) -> Result<&[u32], RowError> {
        if let MaskState::Computing(outcome) = &self.state {
            let lost = |_| RowError::Constraint("its thread was lost".into());
            self.state = MaskState::Ready(Box::new(outcome.recv().map_err(lost)?));
        }
        let MaskState::Ready(position) = &self.state else {
            unreachable!("a mask was computed or is being computed");
        };
        match &position.mask {
            Ok(mask) => Ok(mask.as_slice()),
            Err(error) => Err(RowError::Constraint(error.clone())),
        }
    }

    fn accept(&mut self, token: TokenId) {
        match std::mem::replace(&mut self.state, MaskState::Moving) {
            MaskState::Ready(position) => {
                let next = self.workers.run(move || position.advance(&[token]));
                self.state = MaskState::Computing(next);
            }
            _ => unreachable!("a token is chosen from a mask"),
        }
    }
}
