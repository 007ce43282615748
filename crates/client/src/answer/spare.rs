//! Search for the second path of an answer, over the network that it does not come over yet.

use std::pin::Pin;
use std::time::Duration;

use loquent_proto::{AnswerHandle, Position};
use tokio::time::Instant;

use super::quic::{QuicPath, RESUME_TIMEOUT};
use crate::ClientError;
use crate::connections::Connections;

/// Interval between looks whether the network has a connection, each of which starts an attempt if
/// one may be made.
const LOOK_GAP: Duration = Duration::from_millis(250);
/// First and longest pause after a resume that failed; doubles with each.
const REST: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

type Resuming = Pin<Box<dyn Future<Output = Result<QuicPath, ClientError>> + Send>>;

enum SpareState {
    /// No second path is wanted.
    Off,
    /// Both paths are there.
    Found,
    /// The network is looked at again at this time.
    Resting(Instant),
    /// The server was asked for the answer over the network's connection.
    Resuming(Resuming),
}

/// The search. See the module's documentation.
pub(super) struct SpareSearch {
    state: SpareState,
    /// Failed resumes in a row.
    failures: u32,
}

impl SpareSearch {
    /// Begins at once if a second network is to be used.
    pub(super) fn new(connections: &Connections) -> Self {
        let state = match connections.networks() {
            1 => SpareState::Off,
            _ => SpareState::Resting(Instant::now()),
        };
        Self { state, failures: 0 }
    }

    /// Asks for the answer of `handle` from `position` on if it is time to and `network` has a
    /// connection.
    pub(super) fn start_due(
        &mut self,
        connections: &Connections,
        network: usize,
        handle: AnswerHandle,
        position: Position,
    ) {
        let now = Instant::now();
        if !matches!(self.state, SpareState::Resting(at) if at <= now) {
            return;
        }
        self.state = match connections.quic_on(network) {
            Some(quic) => {
                let connections = connections.clone();
                SpareState::Resuming(Box::pin(async move {
                    let packets = quic.packets_received();
                    let resuming = QuicPath::resume(&quic, handle, position);
                    tokio::time::timeout(RESUME_TIMEOUT, resuming).await.unwrap_or_else(|_| {
                        if quic.packets_received() == packets {
                            connections.give_up(&quic);
                        }
                        Err(ClientError::Broken("no answer to a resume".into()))
                    })
                }))
            }
            None => SpareState::Resting(now + LOOK_GAP),
        };
    }

    /// Returns true while a resume is under way.
    pub(super) fn is_resuming(&self) -> bool {
        matches!(self.state, SpareState::Resuming(_))
    }

    /// Waits for the outcome of a resume; forever if none is under way. Cancel safe.
    pub(super) async fn outcome(&mut self) -> Result<QuicPath, ClientError> {
        let SpareState::Resuming(resuming) = &mut self.state else {
            return std::future::pending().await;
        };
        let outcome = resuming.await;
        // Whatever comes of it is said by `note_found`, `note_failure` or `give_up`.
        self.state = SpareState::Found;
        outcome
    }

    /// Notes that both paths are there.
    pub(super) fn note_found(&mut self) {
        (self.state, self.failures) = (SpareState::Found, 0);
    }

    /// Notes that a path was lost; another one is looked for at once.
    pub(super) fn note_loss(&mut self) {
        if !matches!(self.state, SpareState::Off) {
            self.state = SpareState::Resting(Instant::now());
        }
    }

    /// Notes that a resume failed; the next one waits.
    pub(super) fn note_failure(&mut self) {
        let [first, longest] = REST;
        let rest = first.saturating_mul(1 << self.failures.min(8)).min(longest);
        self.failures += 1;
        self.state = SpareState::Resting(Instant::now() + rest);
    }

    /// Ends the search for good: another reader has the place (S-2.6).
    pub(super) fn give_up(&mut self) {
        self.state = SpareState::Off;
    }

    /// Returns the time of the next look.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            SpareState::Resting(at) => Some(at),
            SpareState::Off | SpareState::Found | SpareState::Resuming(_) => None,
        }
    }
}
