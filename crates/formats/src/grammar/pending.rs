//! Computes masks while the engine decodes: when a token is chosen, a worker advances the grammar
//! and computes the next mask. Rows without a grammar have no overhead.
//!
//! The engine waits only for masks that are expected any moment, and at most [`WAIT_LIMIT`]. A row
//! whose mask will take longer is left out of the engine's steps until the mask is ready.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use loquent_infer::sampling::Constraint;
use loquent_infer::token::{RowError, TokenId};

use super::panics::quietly;
use super::worker::{Lane, Workers};
use crate::sync::mpsc::Receiver;

/// A row is planned before its mask is ready if that should take at most this long: about the time
/// of a step, during which the mask is computed.
const EXPECTED_IN_TIME: Duration = Duration::from_millis(5);
/// Maximum wait of the engine for a mask that was expected in time.
const WAIT_LIMIT: Duration = Duration::from_millis(500);
/// Maximum time for a mask. llguidance bounds its steps; this also bounds the time in the queue.
const MASK_LIMIT: Duration = Duration::from_secs(10);

/// Returns the error of a grammar whose next mask takes too long.
fn too_slow() -> RowError {
    RowError::Constraint("its next mask takes too long".into())
}

/// A completion's grammar with the mask of its current state.
pub(super) struct Position {
    pub(super) matcher: Matcher,
    pub(super) mask: Result<SimpleVob, String>,
}

impl Position {
    fn advance(mut self, tokens: &[TokenId]) -> Self {
        if tokens.is_empty() {
            return self;
        }
        let Self { matcher, .. } = &mut self;
        let mask =
            quietly(|| matcher.consume_tokens(tokens).and_then(|()| matcher.compute_mask_or_eos()));
        self.mask = mask.map_err(|error| error.to_string());
        self
    }
}

enum MaskState {
    /// A worker is computing the mask.
    Computing { outcome: Receiver<Position>, since: Instant },
    /// The mask can be read.
    Ready(Box<Position>),
    /// The grammar cannot be followed further.
    Failed(RowError),
}

/// Constraint on a completion, with masks computed by workers.
pub(super) struct Pending {
    workers: Workers,
    lane: Arc<Lane>,
    state: MaskState,
}

impl Pending {
    /// Starts computing the state of the grammar after `generated` tokens.
    pub(super) fn start(
        workers: Workers,
        lane: Arc<Lane>,
        first: Arc<Mutex<Position>>,
        generated: Vec<TokenId>,
    ) -> Self {
        let outcome = workers.run(&lane, move || {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner);
            let (matcher, mask) = (first.matcher.deep_clone(), first.mask.clone());
            drop(first);
            Position { matcher, mask }.advance(&generated)
        });
        Self { workers, lane, state: MaskState::Computing { outcome, since: Instant::now() } }
    }

    /// Takes the mask if it arrives within `wait`.
    fn receive(&mut self, wait: Duration) {
        let MaskState::Computing { outcome, since } = &self.state else { return };
        self.state = match outcome.recv_timeout(wait) {
            Ok(position) => MaskState::Ready(Box::new(position)),
            Err(RecvTimeoutError::Disconnected) => MaskState::Failed(RowError::OutOfStep),
            Err(RecvTimeoutError::Timeout) if since.elapsed() > MASK_LIMIT => {
                MaskState::Failed(too_slow())
            }
            Err(RecvTimeoutError::Timeout) => return,
        };
    }
}

impl Constraint for Pending {
    fn is_ready(&mut self) -> bool {
        self.receive(Duration::ZERO);
        let in_time = || self.workers.expected(&self.lane).is_some_and(|t| t <= EXPECTED_IN_TIME);
        !matches!(self.state, MaskState::Computing { .. }) || in_time()
    }

    fn allowed(&mut self) -> Result<&[u32], RowError> {
        self.receive(WAIT_LIMIT);
        if let MaskState::Computing { .. } = self.state {
            self.state = MaskState::Failed(too_slow());
        }
        match &self.state {
            MaskState::Ready(position) => match &position.mask {
                Ok(mask) => Ok(mask.as_slice()),
                Err(error) => Err(RowError::Constraint(error.clone())),
            },
            MaskState::Failed(why) => Err(why.clone()),
            MaskState::Computing { .. } => Err(too_slow()),
        }
    }

    fn accept(&mut self, token: TokenId) {
        // A token without a mask is a fault of whoever chose it, a stage on another machine for
        // example: its sequence fails, the engine does not.
        let unasked = MaskState::Failed(RowError::OutOfStep);
        if let MaskState::Ready(position) = std::mem::replace(&mut self.state, unasked) {
            let outcome = self.workers.run(&self.lane, move || position.advance(&[token]));
            self.state = MaskState::Computing { outcome, since: Instant::now() };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sync::mpsc::{Sender, channel};

    use super::*;

    /// A constraint whose mask waits for the sender to be dropped.
    fn held_up() -> (Pending, Sender<()>) {
        let workers = Workers::start_some(1).unwrap();
        let (release, held) = channel::<()>();
        let (never, outcome) = channel();
        let lane = Arc::<Lane>::default();
        let blocker = workers.run(&lane, move || drop((held.recv(), never)));
        drop(blocker);
        let state = MaskState::Computing { outcome, since: Instant::now() };
        (Pending { workers, lane, state }, release)
    }

    #[test]
    fn a_mask_that_does_not_come_fails_its_row_only_after_a_bounded_wait() {
        let (mut pending, release) = held_up();
        assert!(!pending.is_ready(), "no mask was measured, so none is expected in time");
        let failed = too_slow();
        assert_eq!(pending.allowed(), Err(failed.clone()));
        assert!(pending.is_ready(), "the row is planned, to fail");
        assert_eq!(pending.allowed(), Err(failed));
        drop(release);
    }

    #[test]
    fn a_token_without_a_mask_fails_its_row_only() {
        let (mut pending, release) = held_up();
        pending.accept(7);
        let failed = RowError::OutOfStep;
        assert_eq!(pending.allowed(), Err(failed));
        drop(release);
    }
}
