//! The task that drives one answer over successive paths.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loquent_proto::{AnswerHandle, Position};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::quic::{QuicPath, RESUME_TIMEOUT};
use super::quic_lanes::QuicLanes;
use super::reader::{Answer, AnswerItem, AnswerStatus};
use super::reading_again::ReplayReader;
use super::sse::SsePath;
use super::state::{AnswerState, PathOutcome};
use crate::ClientError;
use crate::backoff::Backoff;
use crate::connections::Connections;

/// Maximum steps that may be queued for the reader.
const MAX_STEPS: usize = 64;
/// A path that was heard from for so long has worked, even if it brought no record: longer than a
/// silent one over QUIC lasts (S-4.10), shorter than the pause between two heartbeats.
const WORKED_FOR: Duration = Duration::from_secs(8);

/// The path that an answer arrives on.
pub(super) enum AnswerPath {
    Quic(Box<QuicLanes>),
    Sse(Box<SsePath>),
}

impl AnswerPath {
    /// Returns the time when the server was last heard from. Over QUIC, silence ends the path
    /// within seconds.
    fn heard_at(&self) -> Instant {
        match self {
            Self::Quic(_) => Instant::now(),
            Self::Sse(sse) => sse.heard_at(),
        }
    }
}

/// Drives one answer.
struct Driver {
    state: AnswerState,
    /// The latest losses.
    trouble: Option<Trouble>,
}

/// Path losses between which there was neither progress nor a path that worked.
struct Trouble {
    /// Position that the answer had reached.
    reached: u64,
    since: Instant,
    backoff: Backoff,
}

impl Trouble {
    /// Returns the trouble after the loss of a path that was heard from for `lived`, `before`
    /// being the trouble until then. After progress, and after a path that worked while there was
    /// nothing to say, as during a long prefill, the full `limit` is available again.
    fn after(before: Option<Self>, reached: u64, lived: Duration, limit: Duration) -> Self {
        match before {
            Some(before) if before.reached >= reached && lived < WORKED_FOR => before,
            _ => Self { reached, since: Instant::now(), backoff: Backoff::new(limit) },
        }
    }

    fn next_pause(&mut self) -> Option<Duration> {
        self.backoff.next(self.since.elapsed(), rand::random())
    }
}

/// Starts an answer over `path`, from position number `cursor`.
pub(super) fn start(
    connections: &Connections,
    handle: AnswerHandle,
    path: AnswerPath,
    cursor: u64,
) -> Answer {
    let (items, receiver) = mpsc::channel(MAX_STEPS);
    let status = Arc::new(AnswerStatus::default());
    let state = AnswerState {
        connections: connections.clone(),
        handle,
        items,
        status: Arc::clone(&status),
        waiting: VecDeque::new(),
        cursor,
        seen_until: cursor,
        receiver: None,
        epoch: 0,
        has_one_path: false,
        server_error: None,
        again: ReplayReader::from_offset(cursor),
    };
    let mut driver = Driver { state, trouble: None };
    driver.note_transport(&path);
    let (task, over) = oneshot::channel();
    tokio::spawn(async move {
        driver.run(path).await;
        drop(task);
    });
    Answer::new(receiver, status, handle, over)
}

/// Starts an answer over the event stream of `path`, from its beginning.
pub(crate) fn start_sse(connections: &Connections, handle: AnswerHandle, path: SsePath) -> Answer {
    start(connections, handle, AnswerPath::Sse(Box::new(path)), 0)
}

/// Resumes the answer of `handle` from position number `cursor`, over the transport that connects
/// first.
///
/// # Errors
/// [`ClientError::Gone`], or a failure to reach the server.
pub(crate) async fn resume(
    connections: &Connections,
    handle: AnswerHandle,
    cursor: u64,
) -> Result<Answer, ClientError> {
    let path = reach(connections, handle, None, cursor).await?;
    Ok(start(connections, handle, path, cursor))
}

/// Returns a path to the answer of `handle`: QUIC if it is up within the head start, else HTTP.
/// QUIC resumes from `kept`, or from the beginning; HTTP resumes from position number `cursor`.
async fn reach(
    connections: &Connections,
    handle: AnswerHandle,
    kept: Option<Position>,
    cursor: u64,
) -> Result<AnswerPath, ClientError> {
    if let Some(quic) = connections.quic().await {
        let packets = quic.packets_received();
        let resuming = QuicPath::resume(&quic, handle, kept.unwrap_or_default());
        // What was seen of another owner's log cannot be told from what is new in this one.
        let is_same = |path: &QuicPath| {
            kept.is_some() || cursor == 0 || path.epoch == Position::of(cursor).epoch
        };
        match tokio::time::timeout(RESUME_TIMEOUT, resuming).await {
            Ok(Ok(path)) if is_same(&path) => {
                let lanes = QuicLanes::new(connections, path);
                return Ok(AnswerPath::Quic(Box::new(lanes)));
            }
            Ok(Ok(path)) => tracing::debug!(epoch = path.epoch, "resume over QUIC: another owner"),
            // From the beginning it may be gone, and still be there from the cursor.
            Ok(Err(ClientError::Gone)) if kept.is_some() || cursor == 0 => {
                return Err(ClientError::Gone);
            }
            Ok(Err(ClientError::Gone)) => {}
            // Over HTTP it would take another reader's place in turn (S-2.6).
            Ok(Err(ClientError::Superseded)) => return Err(ClientError::Superseded),
            Ok(Err(error)) => tracing::debug!("resume over QUIC: {error}"),
            Err(_) if quic.packets_received() == packets => connections.give_up(&quic),
            Err(_) => tracing::debug!("resume over QUIC: no answer within {RESUME_TIMEOUT:?}"),
        }
    }
    SsePath::resume(connections, handle, cursor).await.map(|path| AnswerPath::Sse(Box::new(path)))
}

impl Driver {
    async fn run(mut self, first: AnswerPath) {
        let _counted = self.state.connections.count_answer();
        let mut path = first;
        loop {
            let began = Instant::now();
            let outcome = match &mut path {
                AnswerPath::Quic(quic) => quic.carry(&mut self.state).await,
                AnswerPath::Sse(sse) => sse.carry(&mut self.state).await,
            };
            let lost = match outcome {
                PathOutcome::Complete => return self.finish(path, Ok(())).await,
                PathOutcome::Failed(error) => return self.finish(path, Err(error)).await,
                PathOutcome::Cancelled => return self.cancel(Some(path)).await,
                PathOutcome::Upgrade => ClientError::Broken("moving to QUIC".into()),
                PathOutcome::Lost(error) => error,
            };
            tracing::debug!("answer {}: {lost}", self.state.handle.id_hex());
            self.state.has_one_path |= lost == ClientError::Superseded;
            let lived = path.heard_at().saturating_duration_since(began);
            // Before a new path is looked for: its stream tells the server that this one ended.
            drop(path);
            self.state.status.is_lost.store(true, Ordering::Relaxed);
            path = match self.recover(lost, lived).await {
                Ok(Some(found)) => found,
                Ok(None) => return self.cancel(None).await,
                Err(error) => {
                    let end = self.state.deliver_rest().await.unwrap_or(Err(error));
                    let _ = self.state.items.send(AnswerItem::End(end)).await;
                    return;
                }
            };
        }
    }

    /// Returns a new path after the loss of one that was heard from for `lived`, or `None` if the
    /// reader has been dropped meanwhile.
    async fn recover(
        &mut self,
        lost: ClientError,
        lived: Duration,
    ) -> Result<Option<AnswerPath>, ClientError> {
        let state = &mut self.state;
        let epoch = state.epoch;
        let mut kept = state
            .receiver
            .as_ref()
            .map(|receiver| Position { epoch, offset: receiver.cumulative() });
        let reached = kept.unwrap_or_default().number().max(state.cursor);
        let limit = state.connections.config().resume_limit;
        self.trouble = Some(Trouble::after(self.trouble.take(), reached, lived, limit));
        let mut last = lost;
        while let Some(pause) = self.trouble.as_mut().and_then(Trouble::next_pause) {
            let attempt = async {
                tokio::time::sleep(pause).await;
                reach(&state.connections, state.handle, kept, state.cursor).await
            };
            let reached = tokio::select! {
                biased;
                () = state.items.closed() => return Ok(None),
                reached = attempt => reached,
            };
            match reached {
                Ok(path) => {
                    state.status.resumes.fetch_add(1, Ordering::Relaxed);
                    self.note_transport(&path);
                    return Ok(Some(path));
                }
                // It may be there, with less of it than this reader has (D-6.7).
                Err(ClientError::Gone) if state.read_again() => kept = None,
                Err(error @ (ClientError::Gone | ClientError::Superseded)) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn note_transport(&mut self, path: &AnswerPath) {
        let state = &mut self.state;
        let by_http = u8::from(matches!(path, AnswerPath::Sse(_)));
        if let AnswerPath::Quic(quic) = path {
            state.epoch = quic.epoch();
        }
        state.status.by_http.store(by_http, Ordering::Relaxed);
        state.status.is_lost.store(false, Ordering::Relaxed);
        if by_http == 1 {
            state.receiver = None;
        } else if state.receiver.is_none() {
            // From HTTP to QUIC the log is read from its beginning, since chunk writers need
            // its first records; what was handed out already is marked as seen.
            state.seen_until = state.cursor;
            if state.cursor > 0 {
                // All of the text passes once more, and can be compared later (D-6.7).
                state.again = ReplayReader::from_offset(0);
            }
        }
    }

    /// Reports the end of the answer to the reader, and confirms to the server that everything
    /// arrived, if it did. A path of which nothing more is wanted ends (S-4.5).
    async fn finish(mut self, path: AnswerPath, end: Result<(), ClientError>) {
        let unreadable = matches!(end, Err(ClientError::Malformed(_)));
        let has_last_record = matches!(end, Ok(()) | Err(ClientError::Stream(_)));
        let end = self.state.deliver_rest().await.unwrap_or(end);
        let AnswerState { connections, items, mut receiver, .. } = self.state;
        let _ = items.send(AnswerItem::End(end)).await;
        drop(items);
        match (path, &mut receiver) {
            (AnswerPath::Quic(quic), Some(receiver)) if unreadable => {
                quic.stop(&connections, receiver).await;
            }
            (AnswerPath::Quic(quic), Some(receiver)) if has_last_record => {
                quic.linger(&connections, receiver).await;
            }
            (path, _) => drop(path),
        }
    }

    /// Handles the reader's cancellation: tells the server, unless the answer is to be kept.
    async fn cancel(mut self, path: Option<AnswerPath>) {
        let keep = self.state.status.keep.load(Ordering::Relaxed);
        let AnswerState { connections, handle, receiver, .. } = &mut self.state;
        match (path, receiver) {
            // A stream that ends without a STOP is no cancellation (S-4.5).
            _ if keep => {}
            (Some(AnswerPath::Quic(quic)), Some(receiver)) => {
                quic.stop(connections, receiver).await;
            }
            _ => connections.forget(*handle).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_losses_without_a_path_that_worked_count_together() {
        const LIMIT: Duration = Duration::from_secs(90);
        const SINCE_THEN: Duration = Duration::from_secs(100);
        let mut trouble = Trouble::after(None, 7, Duration::ZERO, LIMIT);
        assert!(trouble.next_pause().is_some());
        tokio::time::advance(SINCE_THEN).await;
        // A proxy ended it after heartbeats alone: the prompt is long.
        let mut trouble = Trouble::after(Some(trouble), 7, Duration::from_secs(10), LIMIT);
        assert!(trouble.next_pause().is_some(), "the server was there until now");
        tokio::time::advance(SINCE_THEN).await;
        let mut trouble = Trouble::after(Some(trouble), 7, Duration::from_secs(5), LIMIT);
        assert_eq!(trouble.next_pause(), None, "nothing came on this one");
        let mut trouble = Trouble::after(Some(trouble), 8, Duration::ZERO, LIMIT);
        assert!(trouble.next_pause().is_some(), "there was progress");
    }
}
