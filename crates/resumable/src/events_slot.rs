//! Connects an answer's task with the body of an event stream: pieces of the log go to the body,
//! and the amount that the connection has taken comes back.
//!
//! The task checks the slot whenever it has something for the body, so a body that keeps up never
//! wakes it. Only when the task has to wait for a body does it request a notification. The body's
//! id then enters the task's list of [`ReadyBodies`]: one wait covers any number of bodies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use loquent_proto::Position;
use tokio::sync::Notify;

use super::path_id::PathId;

/// Maximum pieces queued for the connection: one being sent and one ready.
const MAX_PIECES: usize = 2;

/// A piece of a log: whole records.
#[derive(Debug)]
pub struct LogPiece {
    /// Position of its first byte.
    pub position: Position,
    /// The records; empty if the reader already had all of an answer that has ended.
    pub bytes: Bytes,
    /// True if the log ends with this piece.
    pub is_last: bool,
}

/// The bodies that have made the progress an answer's task waits for.
#[derive(Default)]
pub struct ReadyBodies {
    ids: Mutex<Vec<PathId>>,
    news: Notify,
}

impl ReadyBodies {
    /// Waits for a body to be added. Cancel-safe: no notification is lost.
    pub async fn wait(&self) {
        // `notify_one` is remembered while nobody waits, so that no news falls between two waits.
        self.news.notified().await;
    }

    /// Empties the list and returns it.
    pub fn take(&self) -> Vec<PathId> {
        std::mem::take(&mut self.ids.lock().expect("nothing panics under this lock"))
    }

    fn add(&self, id: PathId) {
        self.ids.lock().expect("nothing panics under this lock").push(id);
        self.news.notify_one();
    }
}

#[derive(Default)]
struct SlotState {
    pieces: VecDeque<LogPiece>,
    taken: u64,
    /// True if the task waits for the body's next progress; reset by the first notification.
    wants_word: bool,
    /// The list of the task that attached the path, and the path's id in it.
    task: Option<(Arc<ReadyBodies>, PathId)>,
    is_task_gone: bool,
    /// True if a client has stopped the answer.
    is_stopped: bool,
    /// Waker of the body while it waits for a piece.
    body: Option<Waker>,
    is_body_gone: bool,
}

type Slot = Arc<Mutex<SlotState>>;

fn lock(slot: &Slot) -> MutexGuard<'_, SlotState> {
    slot.lock().expect("nothing panics under this lock")
}

/// Creates the two ends of an event stream that begins at log `offset`.
pub fn events_path(offset: u64) -> (EventsPath, EventsInbox) {
    let slot = Slot::new(Mutex::new(SlotState { taken: offset, ..SlotState::default() }));
    (EventsPath(slot.clone()), EventsInbox { slot, offset })
}

/// Progress of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyState {
    /// Log offset up to which the connection has taken the bytes from the body.
    pub taken: u64,
    /// True if there is room for a piece.
    pub has_room: bool,
    /// True if the body was dropped.
    pub is_gone: bool,
}

/// The task's end of an event stream. Dropping it ends the stream, cleanly only after the last
/// piece.
pub struct EventsPath(Slot);

impl EventsPath {
    /// Sends the body's notifications to `ready` under `id` from now on.
    pub fn report_to(&self, ready: Arc<ReadyBodies>, id: PathId) {
        lock(&self.0).task = Some((ready, id));
    }

    /// Returns the body's progress.
    pub fn look(&self) -> BodyState {
        Self::state(&lock(&self.0))
    }

    /// Like [`Self::look`], and requests a notification of the body's next progress.
    pub fn ask_for_word(&self) -> BodyState {
        let mut slot = lock(&self.0);
        // Under the same lock as the look: what the body does after it is reported.
        slot.wants_word = true;
        Self::state(&slot)
    }

    /// Gives the body a piece, for which it must have room.
    pub fn put(&self, piece: LogPiece) {
        let mut slot = lock(&self.0);
        slot.pieces.push_back(piece);
        let body = slot.body.take();
        // A body that runs at once, on another thread, would find the slot locked.
        drop(slot);
        body.into_iter().for_each(Waker::wake);
    }

    /// Ends the stream because a client has stopped the answer.
    pub fn stop(self) {
        lock(&self.0).is_stopped = true;
    }

    fn state(slot: &SlotState) -> BodyState {
        let has_room = slot.pieces.len() < MAX_PIECES;
        BodyState { taken: slot.taken, has_room, is_gone: slot.is_body_gone }
    }
}

impl Drop for EventsPath {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.is_task_gone = true;
        // The body may live long, and would keep the task's list alive.
        slot.task = None;
        let body = slot.body.take();
        drop(slot);
        body.into_iter().for_each(Waker::wake);
    }
}

/// The body's end of an event stream.
pub struct EventsInbox {
    slot: Slot,
    offset: u64,
}

impl EventsInbox {
    /// Returns the log offset where the stream begins.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// True if the path ended because a client has stopped the answer.
    pub fn is_stopped(&self) -> bool {
        lock(&self.slot).is_stopped
    }

    /// Polls for the next piece, and reports that the connection has `taken` everything below that
    /// offset. Returns `None` if the task has ended the path.
    pub fn poll_piece(&self, context: &mut Context<'_>, taken: u64) -> Poll<Option<LogPiece>> {
        let mut slot = lock(&self.slot);
        let has_moved = std::mem::replace(&mut slot.taken, taken) != taken;
        let polled = match slot.pieces.pop_front() {
            Some(piece) => Poll::Ready(Some(piece)),
            None if slot.is_task_gone => Poll::Ready(None),
            None => {
                let waker = context.waker();
                if slot.body.as_ref().is_none_or(|known| !known.will_wake(waker)) {
                    slot.body = Some(waker.clone());
                }
                Poll::Pending
            }
        };
        if (has_moved || polled.is_ready()) && std::mem::take(&mut slot.wants_word) {
            let task = slot.task.clone();
            drop(slot);
            report(task);
        }
        polled
    }
}

impl Drop for EventsInbox {
    fn drop(&mut self) {
        let mut slot = lock(&self.slot);
        slot.is_body_gone = true;
        // Nobody will take them, and the task may look only later.
        slot.pieces.clear();
        let task = slot.task.take();
        drop(slot);
        report(task);
    }
}

fn report(task: Option<(Arc<ReadyBodies>, PathId)>) {
    if let Some((ready, id)) = task {
        ready.add(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64) -> LogPiece {
        let position = Position { epoch: 0, offset };
        LogPiece { position, bytes: Bytes::from_static(b"x"), is_last: false }
    }

    #[test]
    fn a_body_gives_word_only_where_it_was_asked_to() {
        let (path, inbox) = events_path(0);
        let (ready, id) = (Arc::new(ReadyBodies::default()), PathId::next());
        path.report_to(ready.clone(), id);
        let mut context = Context::from_waker(Waker::noop());
        path.put(piece(0));
        assert!(inbox.poll_piece(&mut context, 0).is_ready());
        assert!(inbox.poll_piece(&mut context, 1).is_pending());
        assert!(ready.take().is_empty(), "it keeps up");
        path.put(piece(1));
        path.put(piece(2));
        assert!(!path.ask_for_word().has_room);
        assert!(inbox.poll_piece(&mut context, 1).is_ready());
        assert_eq!(ready.take(), [id]);
        assert!(inbox.poll_piece(&mut context, 2).is_ready());
        assert!(ready.take().is_empty(), "asked once");
        drop(inbox);
        assert_eq!(ready.take(), [id], "its end is always reported");
        assert!(path.look().is_gone);
    }

    #[test]
    fn a_body_has_what_was_put_before_the_task_left() {
        let (path, inbox) = events_path(0);
        let mut context = Context::from_waker(Waker::noop());
        path.put(piece(0));
        drop(path);
        assert!(matches!(inbox.poll_piece(&mut context, 0), Poll::Ready(Some(_))));
        assert!(matches!(inbox.poll_piece(&mut context, 1), Poll::Ready(None)));
    }
}
