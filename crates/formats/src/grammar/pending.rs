//! Computes masks while the engine decodes: when a token is chosen, a worker advances the grammar
//! and computes the next mask. Rows without a grammar have no overhead.
//!
//! The engine waits only for masks that are expected any moment, and at most [`WAIT_LIMIT`]. A row
//! whose mask will take longer is left out of the engine's steps until the mask is ready.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
/// Maximum time for computing a mask. llguidance bounds its steps too.
const MASK_LIMIT: Duration = Duration::from_secs(10);
/// Maximum time for a mask with its time in the queue, which is that of other grammars.
const QUEUE_LIMIT: Duration = Duration::from_secs(60);

/// Returns true if a mask that was asked for `waited` ago, and has been computed for `ran` if at
/// all, is given up.
fn is_late(ran: Option<Duration>, waited: Duration) -> bool {
    ran.is_some_and(|ran| ran > MASK_LIMIT) || waited > QUEUE_LIMIT
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
    Computing {
        outcome: Receiver<Position>,
        /// When the mask was asked for.
        since: Instant,
        /// Set when it is the turn of the grammar.
        began: Arc<OnceLock<Instant>>,
    },
    /// The mask can be read.
    Ready(Box<Position>),
    /// The grammar cannot be followed further.
    Failed(RowError),
}

impl MaskState {
    /// Has `job` computed when it is the turn of `lane`.
    fn computing(
        workers: &Workers,
        lane: &Arc<Lane>,
        job: impl FnOnce() -> Position + Send + 'static,
    ) -> Self {
        let (since, began) = (Instant::now(), Arc::<OnceLock<Instant>>::default());
        let turn = began.clone();
        let outcome = workers.run(lane, move || {
            let _ = turn.set(Instant::now());
            job()
        });
        Self::Computing { outcome, since, began }
    }
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
        let state = MaskState::computing(&workers, &lane, move || {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner);
            let (matcher, mask) = (first.matcher.deep_clone(), first.mask.clone());
            drop(first);
            Position { matcher, mask }.advance(&generated)
        });
        Self { workers, lane, state }
    }

    /// Takes the mask if it arrives within `wait`.
    fn receive(&mut self, wait: Duration) {
        let MaskState::Computing { outcome, since, began } = &self.state else { return };
        let is_late = || is_late(began.get().map(Instant::elapsed), since.elapsed());
        self.state = match outcome.recv_timeout(wait) {
            Ok(position) => MaskState::Ready(Box::new(position)),
            Err(RecvTimeoutError::Disconnected) => MaskState::Failed(RowError::OutOfStep),
            Err(RecvTimeoutError::Timeout) if is_late() => MaskState::Failed(RowError::TooSlow),
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
            self.state = MaskState::Failed(RowError::TooSlow);
        }
        match &self.state {
            MaskState::Ready(position) => match &position.mask {
                Ok(mask) => Ok(mask.as_slice()),
                Err(error) => Err(RowError::Constraint(error.clone())),
            },
            MaskState::Failed(why) => Err(why.clone()),
            MaskState::Computing { .. } => Err(RowError::TooSlow),
        }
    }

    fn accept(&mut self, token: TokenId) {
        // A token without a mask is a fault of whoever chose it, a stage on another machine for
        // example: its sequence fails, the engine does not.
        let unasked = MaskState::Failed(RowError::OutOfStep);
        if let MaskState::Ready(position) = std::mem::replace(&mut self.state, unasked) {
            let job = move || position.advance(&[token]);
            self.state = MaskState::computing(&self.workers, &self.lane, job);
        }
    }
}

#[cfg(test)]
mod tests {
    use loquent_infer::request::Finish;

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
        let (since, began) = (Instant::now(), Arc::default());
        let state = MaskState::Computing { outcome, since, began };
        (Pending { workers, lane, state }, release)
    }

    #[test]
    fn a_mask_that_does_not_come_fails_its_row_only_after_a_bounded_wait() {
        let (mut pending, release) = held_up();
        assert!(!pending.is_ready(), "no mask was measured, so none is expected in time");
        let failed = RowError::TooSlow;
        assert_eq!(pending.allowed(), Err(failed.clone()));
        assert!(pending.is_ready(), "the row is planned, to fail");
        assert_eq!(pending.allowed(), Err(failed.clone()));
        drop(release);
        let ends = Finish::from(&failed);
        assert!(matches!(ends, Finish::Abandoned(_)), "the same request may succeed: {ends:?}");
    }

    #[test]
    fn a_mask_is_given_up_for_its_own_time_long_before_its_time_in_the_queue() {
        let [own, queue] = [MASK_LIMIT, QUEUE_LIMIT].map(|limit| limit + Duration::from_secs(1));
        assert!(is_late(Some(own), own));
        assert!(!is_late(None, own) && !is_late(Some(Duration::ZERO), own));
        assert!(is_late(None, queue) && is_late(Some(Duration::ZERO), queue));
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
