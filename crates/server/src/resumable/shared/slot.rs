//! What waits to be written of one answer's log.
//!
//! The answer's task puts bytes in as its log grows; the writer of all logs takes them when they
//! are due. Nothing waits for the store: while it is away the bytes stay here, within a bound, and
//! what does not fit stays in the log until there is room.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use loquent_proto::AnswerHandle;
use tokio::sync::SetOnce;

use super::epochs::Epochs;
use super::reply::{AppendOutcome, Appended};
use super::state::{LogState, NewsSink, StoreNews, hash_of};

/// Most bytes of one log that wait here.
pub const SLOT_BYTES: usize = 64 * 1024;
/// How long bytes are gathered that nobody at another replica waits for.
const GATHER: Duration = Duration::from_millis(80);
/// How long another replica's reader counts after the store has last told of it. The store is asked
/// once a second; where it does not reply, nobody is known to read.
const READ_FOR: Duration = Duration::from_secs(3);

/// See the module's documentation.
pub struct LogSlot {
    /// The answer's id, in hex digits.
    pub id: String,
    /// The hash of its token, in hex digits.
    pub token_hash: String,
    /// What its owner writes with.
    pub fence: u64,
    /// The owners that it has had, as the store has them.
    pub epochs: String,
    begun: Instant,
    task: Arc<dyn NewsSink>,
    waiting: Mutex<WaitingBytes>,
    stored: AtomicU64,
    /// Until when another replica counts as reading it, milliseconds after `begun`.
    read_until_ms: AtomicU64,
    /// The store takes what it is given.
    is_prompt: AtomicBool,
    /// The task waits for the next that is stored.
    wants_word: AtomicBool,
    /// The store has replied about the log once, or cannot be used.
    announced: SetOnce<()>,
    /// When it was first seen that the answer's task is gone.
    orphaned: OnceLock<Instant>,
}

struct WaitingBytes {
    /// Log offset of the first of them.
    from: u64,
    bytes: Vec<u8>,
    state: LogState,
    /// When they are to be written; `None` if nothing waits.
    due: Option<Instant>,
    /// The task has more than there is room for.
    wants_room: bool,
    /// Somebody waits for what comes next.
    is_awaited: bool,
    /// The store has lost the log, and the task has not handed it on again yet.
    is_lost: bool,
    /// The request, for who takes the answer over; empty if nobody can, or the answer has ended.
    request: Arc<[u8]>,
}

/// A piece of a log on its way to the store.
pub struct WaitingPiece {
    /// Log offset of its first byte.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The answer's state once they are there.
    pub state: LogState,
}

impl LogSlot {
    /// A slot for the answer with `handle`, whose task is `task`.
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

    /// The same with the answer's request.
    pub fn with_request(mut self, request: Arc<[u8]>) -> Self {
        self.waiting.get_mut().expect("nobody else has it").request = request;
        self
    }

    /// The same for a log with `epochs` of which the store has everything below `offset`.
    pub fn beginning_at(mut self, offset: u64, epochs: &Epochs) -> Self {
        self.epochs = epochs.to_text();
        self.waiting.get_mut().expect("nobody else has it").from = offset;
        self.stored = AtomicU64::new(offset);
        self
    }

    /// Adds what `read` appends, at most as much as it is told that there is room for. `state` is
    /// the answer's when all of it is stored. What is `awaited` is not gathered. Returns how many
    /// bytes it was.
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

    /// Begins anew: the store has lost the log.
    pub fn restart(&self) {
        let mut waiting = self.waiting();
        (waiting.from, waiting.due, waiting.state) = (0, None, LogState::Running);
        waiting.bytes.clear();
        self.stored.store(0, Ordering::Relaxed);
    }

    /// The answer is over, and the store is to forget it.
    pub fn stop(&self) {
        self.end_as(LogState::Stopped);
    }

    /// The answer goes on here, and the store cannot have all of it.
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

    /// Writes nothing more, and tells the store nothing: another replica is to have the answer.
    pub fn let_go(&self) {
        let mut waiting = self.waiting();
        waiting.bytes.clear();
        waiting.is_lost = false;
        (waiting.due, waiting.state) = (None, LogState::Stopped);
    }

    /// Asks the store about the answer soon, though nothing is to be written.
    pub fn touch(&self) {
        self.waiting().due.get_or_insert_with(Instant::now);
    }

    /// Whether the store is to be asked about the answer now and then: while it goes on, and as
    /// long as another replica reads it, which keeps it.
    pub fn is_looked_after(&self) -> bool {
        match self.waiting().state {
            LogState::Running => true,
            LogState::Ended => self.is_read(),
            LogState::Stopped | LogState::Lost => false,
        }
    }

    /// Whether another replica can take the answer over.
    pub fn can_be_taken(&self) -> bool {
        let waiting = self.waiting();
        let is_known = !waiting.request.is_empty() || self.fence > 1;
        is_known && waiting.state == LogState::Running && !waiting.is_lost
    }

    /// Whether anything is to be written, or may be later.
    pub fn is_of_use(&self) -> bool {
        let may_come = {
            let waiting = self.waiting();
            let is_read = waiting.state == LogState::Ended && self.is_read();
            waiting.state == LogState::Running || waiting.is_lost || is_read
        };
        self.is_waiting() || may_come && !self.task.is_gone()
    }

    /// Whether the store has all of an answer that is still kept here.
    pub fn is_kept(&self) -> bool {
        self.waiting().state == LogState::Ended && !self.task.is_gone()
    }

    /// Whether anything waits.
    pub fn is_waiting(&self) -> bool {
        self.waiting().due.is_some()
    }

    /// Whether the answer's task is gone for that long.
    pub fn is_abandoned(&self, after: Duration) -> bool {
        self.task.is_gone() && self.orphaned.get_or_init(Instant::now).elapsed() >= after
    }

    /// What is to be written at `now`, if anything is. It stays here until [`Self::note`].
    pub fn due(&self, now: Instant) -> Option<WaitingPiece> {
        let waiting = self.waiting();
        waiting.due.filter(|due| *due <= now)?;
        let (offset, bytes) = (waiting.from, waiting.bytes.clone());
        Some(WaitingPiece { offset, bytes, state: waiting.state })
    }

    /// What of the request goes to the store with `piece`: it does not change, so that it goes with
    /// the first bytes alone.
    pub fn request_with(&self, piece: &WaitingPiece) -> Arc<[u8]> {
        let is_first = piece.offset == 0 && piece.state == LogState::Running;
        if is_first { self.waiting().request.clone() } else { Arc::default() }
    }

    /// Resolves once other replicas can find the answer, or the store cannot be used.
    pub async fn announced(&self) {
        self.announced.wait().await;
    }

    /// Notes what became of `piece`, and tells the answer's task what it has to know.
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
        self.stored.store(end, Ordering::SeqCst);
        self.is_prompt.store(true, Ordering::Relaxed);
        let is_awaited = self.wants_word.swap(false, Ordering::SeqCst);
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

    /// How long what waits is gathered.
    fn gather(&self, waiting: &WaitingBytes) -> Duration {
        let is_urgent = waiting.is_awaited || waiting.state != LogState::Running || self.is_read();
        if is_urgent { Duration::ZERO } else { GATHER }
    }

    /// Log offset below which the store has everything.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::SeqCst)
    }

    /// What readers may have of a log that ends at `head`: what is stored, or while the store does
    /// not work, all of it. If that is not all, the task is told of the next that is stored.
    pub fn visible(&self, head: u64) -> u64 {
        if !self.is_prompt.load(Ordering::Relaxed) || self.stored() >= head {
            return head;
        }
        // Asked for first: what is stored from here on is told.
        self.wants_word.store(true, Ordering::SeqCst);
        self.stored().min(head)
    }

    /// The store does not work: nobody is to wait for it.
    pub fn release(&self) {
        let _ = self.announced.set(());
        if self.is_prompt.swap(false, Ordering::Relaxed) {
            self.task.tell(StoreNews::Progress);
        }
    }

    /// Whether another replica reads the log.
    pub fn is_read(&self) -> bool {
        self.read_for().is_some()
    }

    /// How long another replica counts as reading the log without further word of it; `None` if
    /// none does.
    pub fn read_for(&self) -> Option<Duration> {
        let until = Duration::from_millis(self.read_until_ms.load(Ordering::Relaxed));
        until.checked_sub(self.begun.elapsed()).filter(|left| !left.is_zero())
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingBytes> {
        self.waiting.lock().expect("nothing panics under this lock")
    }
}
