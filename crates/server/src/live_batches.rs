//! The batches that this process runs, and when their next line may begin.
//!
//! A batch has the share of the server that others leave. Its lines take no place in admission, so
//! that nobody is refused because of them; a line begins only when no other request waits; and
//! while others are answered, one line runs at a time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use loquent_dialects::batches::batch::{BatchStatus, RequestBatch};
use loquent_serving::clock::unix_time_s;
use loquent_serving::identity::Owner;
use tokio::sync::Notify;

/// Maximum lines answered at once, while nobody else has a request.
pub const MAX_LINES_AT_ONCE: usize = 4;
/// Maximum batches that are worked on at once, one for each owner: each holds its input.
const MAX_WORKED_ON: usize = 4;
/// Maximum batches of an owner that are not finished.
const MAX_PER_OWNER: usize = 32;

const UNPOISONED: &str = "nothing panics under this lock";

/// A batch that this process runs.
#[derive(Debug)]
pub struct LiveBatch {
    owner: Owner,
    batch: Mutex<RequestBatch>,
    cancelled: Notify,
}

impl LiveBatch {
    /// Changes the batch; returns its new state.
    pub fn change(&self, change: impl FnOnce(&mut RequestBatch)) -> RequestBatch {
        let mut batch = self.batch.lock().expect(UNPOISONED);
        change(&mut batch);
        batch.clone()
    }

    /// Returns the batch as it is now.
    pub fn now(&self) -> RequestBatch {
        self.change(|_| {})
    }

    /// Begins to cancel the batch, unless its output is being written already. Returns it.
    pub fn cancel(&self) -> RequestBatch {
        let batch = self.change(|batch| {
            if matches!(batch.status, BatchStatus::Validating | BatchStatus::InProgress) {
                batch.enter(BatchStatus::Cancelling, unix_time_s());
            }
        });
        // One permit is kept for a runner that does not wait yet.
        self.cancelled.notify_one();
        batch
    }

    /// Waits until the batch is cancelled.
    pub async fn cancelled(&self) {
        while self.now().status != BatchStatus::Cancelling {
            self.cancelled.notified().await;
        }
    }
}

/// All batches that this process runs.
#[derive(Debug, Default)]
pub struct LiveBatches {
    state: Mutex<RunningBatches>,
    /// Another owner may have its turn.
    moved: Notify,
}

#[derive(Debug, Default)]
struct RunningBatches {
    batches: HashMap<String, Arc<LiveBatch>>,
    worked_on: HashSet<Owner>,
    /// Owners with batches that wait for work, and how many: the first who is not worked on is
    /// next.
    queue: VecDeque<(Owner, usize)>,
    answering: usize,
}

impl RunningBatches {
    /// Number of batches of `owner`.
    fn of(&self, owner: Owner) -> usize {
        self.batches.values().filter(|live| live.owner == owner).count()
    }

    fn place(&self, owner: Owner) -> Option<usize> {
        self.queue.iter().position(|(waiting, _)| *waiting == owner)
    }

    /// Begins work on a batch of `owner` if it is the owner's turn; returns true if so.
    fn take_turn(&mut self, owner: Owner) -> bool {
        let mut waiting = self.queue.iter().map(|(waiting, _)| *waiting);
        let next = waiting.find(|waiting| !self.worked_on.contains(waiting));
        let begins = self.worked_on.len() < MAX_WORKED_ON && next == Some(owner);
        begins && self.worked_on.insert(owner)
    }
}

/// The entry of a batch in the list, until dropped.
#[derive(Debug)]
pub struct BatchEntry {
    all: Arc<LiveBatches>,
    /// The batch.
    pub batch: Arc<LiveBatch>,
}

/// A batch is worked on until this is dropped.
#[derive(Debug)]
pub struct WorkPermit(Arc<LiveBatches>, Owner);

/// A batch of the owner waits for work until this is dropped.
struct Waiting<'a>(&'a LiveBatches, Owner);

/// A line is answered until this is dropped.
#[derive(Debug)]
pub struct LinePermit(Arc<LiveBatches>);

impl LiveBatches {
    fn state(&self) -> MutexGuard<'_, RunningBatches> {
        self.state.lock().expect(UNPOISONED)
    }

    /// Enters `batch`; `None` if it runs here already.
    pub fn enter(self: &Arc<Self>, owner: Owner, batch: RequestBatch) -> Option<BatchEntry> {
        self.enter_if(owner, batch, |state, batch| !state.batches.contains_key(&batch.id))
    }

    /// Enters the new `batch`; `None` if `owner` has too many.
    pub fn enter_new(self: &Arc<Self>, owner: Owner, batch: RequestBatch) -> Option<BatchEntry> {
        self.enter_if(owner, batch, |state, _| state.of(owner) < MAX_PER_OWNER)
    }

    fn enter_if(
        self: &Arc<Self>,
        owner: Owner,
        batch: RequestBatch,
        may_enter: impl FnOnce(&RunningBatches, &RequestBatch) -> bool,
    ) -> Option<BatchEntry> {
        let mut state = self.state();
        if !may_enter(&state, &batch) {
            return None;
        }
        let id = batch.id.clone();
        let live = LiveBatch { owner, batch: Mutex::new(batch), cancelled: Notify::new() };
        let live = Arc::new(live);
        state.batches.insert(id, live.clone());
        Some(BatchEntry { all: self.clone(), batch: live })
    }

    /// Returns the batch `id` of `owner`, if it runs here.
    pub fn find(&self, owner: Owner, id: &str) -> Option<Arc<LiveBatch>> {
        let found = self.state().batches.get(id).cloned();
        found.filter(|live| live.owner == owner)
    }

    /// Waits until a batch of `owner` may be worked on: owners take turns, so that many batches of
    /// one do not delay another's.
    pub async fn work_permit(self: &Arc<Self>, owner: Owner) -> WorkPermit {
        // Dropped after the turn is taken, and then wakes the next owner, who may have one too.
        let _waiting = self.wait(owner);
        loop {
            // Before the check: what moves in between is heard too.
            let moved = self.moved.notified();
            if self.state().take_turn(owner) {
                return WorkPermit(self.clone(), owner);
            }
            moved.await;
        }
    }

    fn wait(&self, owner: Owner) -> Waiting<'_> {
        let mut state = self.state();
        match state.place(owner) {
            Some(at) => state.queue[at].1 += 1,
            None => state.queue.push_back((owner, 1)),
        }
        Waiting(self, owner)
    }

    /// Returns a place for a line if it may begin now, where `in_flight` completions of others are
    /// running, and `waiting` of them have not begun.
    pub fn line_permit(self: &Arc<Self>, in_flight: usize, waiting: usize) -> Option<LinePermit> {
        let mut state = self.state();
        let most = if in_flight == 0 { MAX_LINES_AT_ONCE } else { 1 };
        let begins = waiting == 0 && state.answering < most;
        begins.then(|| {
            state.answering += 1;
            LinePermit(self.clone())
        })
    }
}

impl Drop for BatchEntry {
    fn drop(&mut self) {
        let id = self.batch.now().id;
        self.all.state().batches.remove(&id);
    }
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.worked_on.remove(&self.1);
        // The owner's other batches wait until everybody else has had a turn.
        if let Some(at) = state.place(self.1)
            && let Some(owner) = state.queue.remove(at)
        {
            state.queue.push_back(owner);
        }
        drop(state);
        self.0.moved.notify_waiters();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let Some(at) = state.place(self.1) {
            state.queue[at].1 -= 1;
            if state.queue[at].1 == 0 {
                state.queue.remove(at);
            }
        }
        drop(state);
        self.0.moved.notify_waiters();
    }
}

impl Drop for LinePermit {
    fn drop(&mut self) {
        self.0.state().answering -= 1;
    }
}

#[cfg(test)]
mod tests {
    use loquent_dialects::batches::batch::{BatchEndpoint, NewBatch};

    use super::*;

    #[test]
    fn lines_begin_when_nobody_waits_and_one_at_a_time_beside_others() {
        let all = Arc::new(LiveBatches::default());
        assert!(all.line_permit(1, 1).is_none(), "somebody waits");
        let first = all.line_permit(1, 0);
        assert!(first.is_some() && all.line_permit(1, 0).is_none(), "others are answered");
        let rest: Vec<_> = std::iter::from_fn(|| all.line_permit(0, 0)).collect();
        assert_eq!(rest.len(), MAX_LINES_AT_ONCE - 1);
        drop(rest);
        assert!(all.line_permit(1, 0).is_none());
        drop(first);
        assert!(all.line_permit(1, 0).is_some());
    }

    #[test]
    fn a_place_is_taken_before_the_batch_is_stored_and_free_if_it_is_not() {
        let all = Arc::new(LiveBatches::default());
        let enter = |owner: u8, at: usize| {
            let asked = NewBatch {
                input_file_id: "file-1".to_owned(),
                endpoint: BatchEndpoint::Responses,
                metadata: serde_json::Value::Null,
                ignored: Vec::new(),
            };
            all.enter_new(Owner([owner; 16]), RequestBatch::new(at.to_string(), asked, 0))
        };
        let mut entries: Vec<_> = (0..40).filter_map(|at| enter(1, at)).collect();
        assert_eq!(entries.len(), MAX_PER_OWNER);
        assert!(enter(2, 100).is_some(), "another owner has room");
        drop(entries.pop());
        assert!(enter(1, 101).is_some());
    }

    #[tokio::test]
    async fn owners_take_turns() {
        let all = Arc::new(LiveBatches::default());
        let owner = |number: u8| Owner([number; 16]);
        let mut held = vec![all.work_permit(owner(0)).await];
        let again = tokio::spawn({
            let all = all.clone();
            async move { all.work_permit(owner(0)).await }
        });
        // The owner's second batch waits, and others' do not.
        for number in 1..MAX_WORKED_ON as u8 {
            held.push(all.work_permit(owner(number)).await);
        }
        assert!(!again.is_finished());
        held.clear();
        drop(again.await.unwrap());
        assert!(all.state().worked_on.is_empty() && all.state().queue.is_empty());
    }

    #[tokio::test]
    async fn an_owner_of_many_batches_goes_behind_one_who_came_later() {
        let all = Arc::new(LiveBatches::default());
        let owner = |number: u8| Owner([number; 16]);
        let mut held = Vec::new();
        for number in 0..MAX_WORKED_ON as u8 {
            held.push(all.work_permit(owner(number)).await);
        }
        let mut waiters = Vec::new();
        for number in [0, 0, 0, 9] {
            let all = all.clone();
            waiters.push(tokio::spawn(async move { all.work_permit(owner(number)).await }));
            // Until it waits.
            tokio::task::yield_now().await;
        }
        assert_eq!(all.state().queue, [(owner(0), 3), (owner(9), 1)]);
        drop(held.remove(0));
        let late = waiters.pop().unwrap().await.unwrap();
        assert!(!waiters.iter().any(tokio::task::JoinHandle::is_finished));
        // Who stops waiting leaves no place behind.
        waiters.pop().unwrap().abort();
        drop(late);
        for waiter in waiters {
            drop(waiter.await.unwrap());
        }
        assert!(all.state().queue.is_empty());
    }
}
