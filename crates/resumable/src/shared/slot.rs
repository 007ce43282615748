//! The bytes of one answer's log waiting to be written to the store.
//!
//! The answer's task adds bytes as its log grows; the writer of all logs takes them when they are
//! due. Nothing waits for the store: while it is unavailable, bytes stay here up to a limit, and
//! the rest stays in the log until there is room.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use loquent_proto::AnswerHandle;
use tokio::sync::SetOnce;
use tokio::time::Instant;

use super::epochs::Epochs;
use super::offers::OthersOffers;
use super::reply::{AppendOutcome, Appended};
use super::state::{LogState, NewsSink, StoreNews, hash_of};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Maximum waiting bytes of one log.
pub const SLOT_BYTES: usize = 64 * 1024;
/// Time for which bytes are gathered while nobody at another replica waits for them.
const GATHER: Duration = Duration::from_millis(80);
/// Time for which another replica's reader counts after the store last reported it. The store is
/// asked once a second; if it does not reply, nobody is known to read.
const READ_FOR: Duration = Duration::from_secs(3);

/// The queue of one answer's log for the store.
pub struct LogSlot {
    /// The answer's id, in hex digits.
    pub id: String,
    /// The hash of the answer's token, in hex digits.
    pub token_hash: String,
    /// Fence with which the owner writes.
    pub fence: u64,
    /// Owners that the log has had, in the store's format.
    pub epochs: String,
    begun: Instant,
    task: Arc<dyn NewsSink>,
    waiting: Mutex<WaitingBytes>,
    stored: AtomicU64,
    /// Time until which another replica counts as reading the log, in milliseconds after `begun`.
    read_until_ms: AtomicU64,
    /// True while the store accepts writes.
    is_prompt: AtomicBool,
    /// True if the task waits for more bytes to be stored.
    wants_word: AtomicBool,
    /// Set once the store has replied about the log or cannot be used.
    announced: SetOnce<()>,
    /// Time when the task was first seen to have ended.
    orphaned: OnceLock<Instant>,
}

struct WaitingBytes {
    /// Log offset of the first byte in `bytes`.
    from: u64,
    bytes: Vec<u8>,
    state: LogState,
    /// Time of the next write; `None` if nothing waits.
    due: Option<Instant>,
    /// True if the task has more bytes than there is room for.
    wants_room: bool,
    /// True if somebody waits for the next bytes.
    is_awaited: bool,
    /// True if the store has lost the log and the task has not supplied it again yet.
    is_lost: bool,
    /// The request, for a replica that takes the answer over; empty if none can or the answer has
    /// ended.
    request: Arc<[u8]>,
}

/// A piece of a log on its way to the store.
pub struct WaitingPiece {
    /// Log offset of the first byte.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// State of the answer once the bytes are stored.
    pub state: LogState,
}

impl LogSlot {
    /// Creates a slot for the answer with `handle` and the task `task`.
    pub fn new(handle: &AnswerHandle, fence: u64, task: Arc<dyn NewsSink>) -> Self {
        let waiting = WaitingBytes {
            from: 0,
            bytes: Vec::new(),
            state: LogState::Running,
            due: None,
            wants_room: false,
            is_awaited: false,
            is_lost: false,
            request: Arc::default(),
        };
        Self {
            id: handle.id_hex(),
            token_hash: hash_of(&handle.token),
            fence,
            epochs: String::new(),
            begun: Instant::now(),
            task,
            waiting: Mutex::new(waiting),
            stored: AtomicU64::new(0),
            read_until_ms: AtomicU64::new(0),
            is_prompt: AtomicBool::new(true),
            wants_word: AtomicBool::new(false),
            announced: SetOnce::new(),
            orphaned: OnceLock::new(),
        }
    }

    /// Adds the answer's request.
    pub fn with_request(mut self, request: Arc<[u8]>) -> Self {
        self.waiting.get_mut().expect("nobody else has it").request = request;
        self
    }

    /// Sets the log's `epochs`, and the `offset` below which the store has everything.
    pub fn beginning_at(mut self, offset: u64, epochs: &Epochs) -> Self {
        self.epochs = epochs.to_text();
        self.waiting.get_mut().expect("nobody else has it").from = offset;
        self.stored = AtomicU64::new(offset);
        self
    }

    /// Adds the bytes that `read` appends. `read` receives the maximum number of bytes, and returns
    /// true if the log has no more; `state` then applies once all of them are stored. Bytes that
    /// are `awaited` are not gathered. Returns the number of bytes added.
    pub fn put(
        &self,
        state: LogState,
        awaited: bool,
        read: impl FnOnce(usize, &mut Vec<u8>) -> bool,
    ) -> usize {
        let mut waiting = self.waiting();
        let before = waiting.bytes.len();
        let is_all = read(SLOT_BYTES.saturating_sub(before), &mut waiting.bytes);
        waiting.wants_room = !is_all;
        if is_all {
            waiting.state = state;
        }
        (waiting.is_awaited, waiting.is_lost) = (awaited, false);
        let due = Instant::now() + self.gather(&waiting);
        waiting.due = Some(waiting.due.map_or(due, |earlier| earlier.min(due)));
        waiting.bytes.len() - before
    }

    /// Starts over from the log's beginning, because the store has lost the log.
    pub fn restart(&self) {
        let mut waiting = self.waiting();
        (waiting.from, waiting.due, waiting.state) = (0, None, LogState::Running);
        waiting.bytes.clear();
        self.stored.store(0, Ordering::Relaxed);
    }

    /// Marks the answer as over, so that the store forgets it.
    pub fn stop(&self) {
        self.end_as(LogState::Stopped);
    }

    /// Tells the store that the answer continues here but cannot be stored completely.
    pub fn give_up(&self) {
        self.end_as(LogState::Lost);
    }

    fn end_as(&self, state: LogState) {
        let mut waiting = self.waiting();
        waiting.bytes.clear();
        waiting.is_lost = false;
        waiting.state = state;
        waiting.due = Some(Instant::now());
    }

    /// Discards the waiting bytes and writes nothing more, so that another replica can have the
    /// answer.
    pub fn let_go(&self) {
        let mut waiting = self.waiting();
        waiting.bytes.clear();
        waiting.is_lost = false;
        (waiting.due, waiting.state) = (None, LogState::Stopped);
    }

    /// Schedules a query of the store about the answer, even if nothing is to be written.
    pub fn touch(&self) {
        self.waiting().due.get_or_insert_with(Instant::now);
    }

    /// True if the store is to be asked about the answer regularly: while it is generated, and
    /// while another replica reads it, which keeps it.
    pub fn is_looked_after(&self) -> bool {
        match self.waiting().state {
            LogState::Running => true,
            LogState::Ended => self.is_read(),
            LogState::Stopped | LogState::Lost => false,
        }
    }

    /// True if one of the `others` can take the answer over.
    pub fn can_be_taken_by(&self, others: &OthersOffers) -> bool {
        let request = {
            let waiting = self.waiting();
            let is_there = waiting.state == LogState::Running && !waiting.is_lost;
            is_there.then(|| waiting.request.clone())
        };
        // Without the lock: it may be long.
        request.is_some_and(|request| others.cover(&request))
    }

    /// True if something is to be written, or may be later.
    pub fn is_of_use(&self) -> bool {
        let may_come = {
            let waiting = self.waiting();
            let is_read = waiting.state == LogState::Ended && self.is_read();
            waiting.state == LogState::Running || waiting.is_lost || is_read
        };
        self.is_waiting() || may_come && !self.task.is_gone()
    }

    /// True if the store has all of an answer that is still kept here.
    pub fn is_kept(&self) -> bool {
        self.waiting().state == LogState::Ended && !self.task.is_gone()
    }

    /// True if a write is due or scheduled.
    pub fn is_waiting(&self) -> bool {
        self.waiting().due.is_some()
    }

    /// True if the task was seen to have ended at least `after` ago.
    pub fn is_abandoned(&self, after: Duration) -> bool {
        self.task.is_gone() && self.orphaned.get_or_init(Instant::now).elapsed() >= after
    }

    /// Returns the piece to write at `now`, if any. Its bytes stay here until [`Self::note`].
    pub fn due(&self, now: Instant) -> Option<WaitingPiece> {
        let waiting = self.waiting();
        waiting.due.filter(|due| *due <= now)?;
        let (offset, bytes) = (waiting.from, waiting.bytes.clone());
        Some(WaitingPiece { offset, bytes, state: waiting.state })
    }

    /// Returns the request to store with `piece`: only with the first bytes, because it does not
    /// change.
    pub fn request_with(&self, piece: &WaitingPiece) -> Arc<[u8]> {
        let is_first = piece.offset == 0 && piece.state == LogState::Running;
        if is_first { self.waiting().request.clone() } else { Arc::default() }
    }

    /// Waits until other replicas can find the answer, or the store cannot be used.
    pub async fn announced(&self) {
        self.announced.wait().await;
    }

    /// Applies the store's reply about `piece`, and sends the resulting news to the answer's task.
    pub fn note(&self, piece: &WaitingPiece, appended: Appended) {
        let _ = self.announced.set(());
        let news = match appended.outcome {
            AppendOutcome::Stored => self.note_stored(piece),
            AppendOutcome::Lost => Some(StoreNews::Lost),
            AppendOutcome::Taken => Some(StoreNews::Taken),
            AppendOutcome::Stopped => Some(StoreNews::Stopped),
        };
        let was_read = self.is_read();
        let until = self.begun.elapsed() + READ_FOR;
        let until_ms = if appended.is_read { until.as_millis() as u64 } else { 0 };
        self.read_until_ms.store(until_ms, Ordering::Relaxed);
        let is_new = was_read != appended.is_read;
        if let Some(news) = news.or(is_new.then_some(StoreNews::Progress)) {
            match appended.outcome {
                AppendOutcome::Stored => {}
                AppendOutcome::Lost => {
                    let mut waiting = self.waiting();
                    waiting.due = None;
                    waiting.is_lost = matches!(waiting.state, LogState::Running | LogState::Ended);
                }
                // Nothing of it is written any more.
                AppendOutcome::Taken | AppendOutcome::Stopped => {
                    let mut waiting = self.waiting();
                    (waiting.due, waiting.state) = (None, LogState::Stopped);
                }
            }
            self.task.tell(news);
        }
    }

    fn note_stored(&self, piece: &WaitingPiece) -> Option<StoreNews> {
        let mut waiting = self.waiting();
        let end = piece.offset + piece.bytes.len() as u64;
        self.stored.store(end, Ordering::Release);
        self.is_prompt.store(true, Ordering::Relaxed);
        let is_awaited = self.wants_word.swap(false, Ordering::AcqRel);
        let word = is_awaited.then_some(StoreNews::Progress);
        if waiting.from != piece.offset || waiting.bytes.len() < piece.bytes.len() {
            // Restarted or stopped meanwhile.
            return word;
        }
        waiting.bytes.drain(..piece.bytes.len());
        waiting.from = end;
        if piece.state == LogState::Ended {
            // Nobody has to generate it any more.
            waiting.request = Arc::default();
        }
        let is_done = waiting.bytes.is_empty() && waiting.state == piece.state;
        // What came meanwhile is gathered anew.
        waiting.due = (!is_done).then(|| Instant::now() + self.gather(&waiting));
        std::mem::take(&mut waiting.wants_room).then_some(StoreNews::Progress).or(word)
    }

    /// Returns the time for which the waiting bytes are gathered.
    fn gather(&self, waiting: &WaitingBytes) -> Duration {
        let is_urgent = waiting.is_awaited || waiting.state != LogState::Running || self.is_read();
        if is_urgent { Duration::ZERO } else { GATHER }
    }

    /// Returns the log offset below which the store has everything.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Acquire)
    }

    /// Returns the end of the bytes that readers may have of a log that ends at `head`: the stored
    /// ones or, while the store does not work, all. If that is not all, the task is notified when
    /// more is stored.
    pub fn visible(&self, head: u64) -> u64 {
        if !self.is_prompt.load(Ordering::Relaxed) || self.stored() >= head {
            return head;
        }
        // Asked for first: what is stored from here on is told. A swap, as the writer's is: whoever
        // comes second sees what the other did before.
        self.wants_word.swap(true, Ordering::AcqRel);
        self.stored().min(head)
    }

    /// Records that the store does not work, so that nobody waits for it.
    pub fn release(&self) {
        let _ = self.announced.set(());
        if self.is_prompt.swap(false, Ordering::Relaxed) {
            self.task.tell(StoreNews::Progress);
        }
    }

    /// True if another replica reads the log.
    pub fn is_read(&self) -> bool {
        self.read_for().is_some()
    }

    /// Returns the time for which another replica still counts as reading the log without further
    /// reports; `None` if none does.
    pub fn read_for(&self) -> Option<Duration> {
        let until = Duration::from_millis(self.read_until_ms.load(Ordering::Relaxed));
        until.checked_sub(self.begun.elapsed()).filter(|left| !left.is_zero())
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingBytes> {
        self.waiting.lock().expect("nothing panics under this lock")
    }
}

#[cfg(all(test, loquent_loom))]
mod interleavings {
    //! The answer's task and the writer of the logs, in every order. Loom fails a test in which
    //! the task sleeps for ever.
    use std::time::Duration;

    use loom::sync::Notify;
    use loom::thread;
    use loquent_needs::interleavings::explore;

    use super::*;

    /// A task that is woken by its news.
    struct SleepingTask(Notify);

    impl NewsSink for SleepingTask {
        fn tell(&self, _news: StoreNews) {
            self.0.notify();
        }

        fn is_gone(&self) -> bool {
            false
        }
    }

    fn start() -> (Arc<LogSlot>, Arc<SleepingTask>) {
        let handle = AnswerHandle { id: [1; 16], token: [2; 16] };
        let task = Arc::new(SleepingTask(Notify::new()));
        (Arc::new(LogSlot::new(&handle, 1, task.clone())), task)
    }

    fn put(slot: &LogSlot, bytes: &[u8]) {
        slot.put(LogState::Running, true, |_, waiting| {
            waiting.extend_from_slice(bytes);
            true
        });
    }

    /// Writes what is due; true if anything was.
    fn write(slot: &LogSlot) -> bool {
        let Some(piece) = slot.due(Instant::now() + Duration::from_secs(3600)) else {
            return false;
        };
        let head = piece.offset + piece.bytes.len() as u64;
        let outcome = AppendOutcome::Stored;
        slot.note(&piece, Appended { outcome, head, is_read: false });
        true
    }

    #[test]
    fn a_task_that_waits_for_the_store_is_woken_when_its_bytes_are_there() {
        explore("a task and the writer of its log", || {
            let (slot, task) = start();
            put(&slot, b"abc");
            let writers = slot.clone();
            let writer = thread::spawn(move || assert!(write(&writers)));
            while slot.visible(3) < 3 {
                task.0.wait();
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn bytes_that_come_while_others_are_written_are_written_once() {
        explore("bytes that come while others are written", || {
            let (slot, _task) = start();
            put(&slot, b"abc");
            let writers = slot.clone();
            let writer = thread::spawn(move || assert!(write(&writers)));
            put(&slot, b"de");
            writer.join().unwrap();
            while write(&slot) {}
            assert_eq!((slot.stored(), slot.visible(5)), (5, 5));
        });
    }

    #[test]
    fn a_store_that_fails_holds_no_task() {
        explore("a store that fails beside a task that waits", || {
            let (slot, task) = start();
            put(&slot, b"abc");
            let failing = slot.clone();
            let writer = thread::spawn(move || failing.release());
            while slot.visible(3) < 3 {
                task.0.wait();
            }
            writer.join().unwrap();
        });
    }
}
