//! A log of another replica that is followed, and what comes of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::{AnswerHandle, Delta};
use tokio::sync::mpsc;

use super::reply::ReadLog;
use super::state::LogState;

/// Most bytes that one command reads.
pub const MOST_BYTES: usize = 256 * 1024;
/// How long readers wait for a store that is away, and for one that has lost the log.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// Pieces that wait for the answer's task.
const MAX_PIECES: usize = 4;

/// What comes of following a log.
#[derive(Debug, PartialEq, Eq)]
pub enum FollowedPiece {
    /// Its next records, whole.
    Records(Vec<u8>),
    /// A client has stopped the answer.
    Stopped,
    /// The replica that generated it has ended before it.
    Orphaned,
    /// It does not go on, for this reason.
    Lost(&'static str),
}

/// A log that is followed.
pub struct FollowedLog {
    /// The answer's id, in hex digits.
    pub id: String,
    /// Log offset of what is read next.
    pub next: AtomicU64,
    /// Where its pieces go.
    pub pieces: mpsc::Sender<FollowedPiece>,
    /// Since when nothing can be learned of it.
    missing_since: Mutex<Option<Instant>>,
}

/// The task's end of a log that is followed; dropped, nobody follows it.
pub struct Follower(mpsc::Receiver<FollowedPiece>);

impl Follower {
    /// The next piece.
    pub async fn next(&mut self) -> FollowedPiece {
        let ended = FollowedPiece::Lost("the server ends");
        self.0.recv().await.unwrap_or(ended)
    }

    /// The next piece if it is there.
    pub fn ready(&mut self) -> Option<FollowedPiece> {
        self.0.try_recv().ok()
    }
}

/// Whether a log is followed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// It is.
    On,
    /// It is not any more.
    Over,
}

impl Following {
    /// Whether it is not any more.
    pub fn is_over(self) -> bool {
        self == Self::Over
    }
}

impl FollowedLog {
    /// The log of the answer with `handle`, and who gets it.
    pub fn new(handle: &AnswerHandle) -> (Self, Follower) {
        let (pieces, inbox) = mpsc::channel(MAX_PIECES);
        let (next, missing_since) = (AtomicU64::new(0), Mutex::new(None));
        (Self { id: handle.id_hex(), next, pieces, missing_since }, Follower(inbox))
    }

    /// The same from `offset` on.
    pub fn beginning_at(self, offset: u64) -> Self {
        Self { next: AtomicU64::new(offset), ..self }
    }

    /// Hands on what was read; `None` if the store could not be asked.
    pub fn note(&self, read: Option<&ReadLog>) -> Following {
        let Some(read) = read else { return self.note_missing("its store cannot be reached") };
        match read.state {
            Some(LogState::Running | LogState::Ended) => {}
            Some(LogState::Stopped) => return self.end(FollowedPiece::Stopped),
            // The store may have lost it, and its owner writes it again.
            None => return self.note_missing("its store has lost it"),
        }
        let next = self.next.load(Ordering::Relaxed);
        if read.head < next {
            // Its owner, if it lives, writes it again from its beginning.
            return self.note_missing("its store has lost a part of it");
        }
        let (len, is_last) = whole_records(&read.bytes);
        let is_cut = len == 0 && !read.bytes.is_empty() && !read.owner_lives;
        if is_cut || len == 0 && read.bytes.len() > MAX_RECORD_BYTES + 8 {
            return self.end(FollowedPiece::Lost("its log cannot be read"));
        }
        if len > 0 {
            self.next.fetch_add(len as u64, Ordering::Relaxed);
            // There is room: only this task sends, and it has looked.
            let _ = self.pieces.try_send(FollowedPiece::Records(read.bytes[..len].to_vec()));
        }
        if is_last {
            return Following::Over;
        }
        // Other logs may have left no room for what there is more of this one.
        if read.head == next && !read.owner_lives {
            return self.end(FollowedPiece::Orphaned);
        }
        *self.missing() = None;
        Following::On
    }

    fn note_missing(&self, why: &'static str) -> Following {
        let since = *self.missing().get_or_insert_with(Instant::now);
        if since.elapsed() < LOST_AFTER {
            return Following::On;
        }
        self.end(FollowedPiece::Lost(why))
    }

    fn end(&self, piece: FollowedPiece) -> Following {
        let _ = self.pieces.try_send(piece);
        Following::Over
    }

    fn missing(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.missing_since.lock().expect("nothing panics under this lock")
    }
}

/// The length of the whole records at the front of `bytes`, and whether the log ends with them.
pub fn whole_records(bytes: &[u8]) -> (usize, bool) {
    let (mut end, mut is_last) = (0, false);
    while let Ok(Some((len, delta))) = Delta::decode(&bytes[end..]) {
        end += len;
        is_last = delta.is_some_and(|delta| delta.is_last());
        if is_last {
            break;
        }
    }
    (end, is_last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log() -> (FollowedLog, Follower) {
        FollowedLog::new(&AnswerHandle { id: [1; 16], token: [2; 16] })
    }

    fn records(deltas: &[Delta]) -> Vec<u8> {
        let mut bytes = Vec::new();
        deltas.iter().for_each(|delta| delta.encode(&mut bytes).unwrap());
        bytes
    }

    /// What there is of a log behind the first `next` bytes.
    fn read_from(next: u64, bytes: &[u8]) -> ReadLog {
        let head = next + bytes.len() as u64;
        ReadLog { state: Some(LogState::Running), owner_lives: true, head, bytes: bytes.to_vec() }
    }

    fn read(bytes: &[u8]) -> ReadLog {
        read_from(0, bytes)
    }

    #[test]
    fn half_a_record_waits_for_the_rest() {
        let (log, mut follower) = log();
        let whole = records(&[Delta::text("one"), Delta::text("two")]);
        let cut = whole.len() - 1;
        assert_eq!(log.note(Some(&read(&whole[..cut]))), Following::On);
        let first = records(&[Delta::text("one")]);
        assert_eq!(follower.ready(), Some(FollowedPiece::Records(first.clone())));
        assert_eq!(log.next.load(Ordering::Relaxed), first.len() as u64);
    }

    #[test]
    fn the_last_record_ends_it_and_so_does_a_stop() {
        let (log, mut follower) = log();
        let all = records(&[Delta::text("all"), Delta::Done]);
        let last = ReadLog { owner_lives: false, ..read(&all) };
        assert_eq!(log.note(Some(&last)), Following::Over);
        assert_eq!(follower.ready(), Some(FollowedPiece::Records(all)));
        let (log, mut follower) = self::log();
        let stopped = ReadLog { state: Some(LogState::Stopped), ..read(&[]) };
        assert_eq!(log.note(Some(&stopped)), Following::Over);
        assert_eq!(follower.ready(), Some(FollowedPiece::Stopped));
    }

    #[test]
    fn a_log_is_orphaned_where_it_ends_alone() {
        let (log, mut follower) = log();
        let first = records(&[Delta::text("one")]);
        log.note(Some(&ReadLog { owner_lives: false, ..read(&first) }));
        assert_eq!(follower.ready(), Some(FollowedPiece::Records(first.clone())));
        let at = first.len() as u64;
        // There is more, for which other logs have left no room.
        let more = ReadLog { owner_lives: false, head: at + 9, ..read_from(at, &[]) };
        assert_eq!((log.note(Some(&more)), follower.ready()), (Following::On, None));
        let dead = ReadLog { owner_lives: false, ..read_from(at, &[]) };
        assert_eq!(log.note(Some(&dead)), Following::Over);
        assert_eq!(follower.ready(), Some(FollowedPiece::Orphaned));
    }

    #[test]
    fn a_log_that_was_cut_is_lost_and_not_waited_for_in_vain() {
        let whole = records(&[Delta::text("one")]);
        let (log, mut follower) = log();
        let cut = ReadLog { owner_lives: false, ..read(&whole[..whole.len() - 1]) };
        assert_eq!(log.note(Some(&cut)), Following::Over);
        assert!(matches!(follower.ready(), Some(FollowedPiece::Lost(_))));
        // One that is shorter than what was read of it may be written again.
        let (log, mut follower) = self::log();
        log.note(Some(&read(&whole)));
        assert!(follower.ready().is_some());
        let shorter = ReadLog { owner_lives: false, ..read(&[]) };
        assert_eq!((log.note(Some(&shorter)), follower.ready()), (Following::On, None));
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_whole_records_or_none(bytes: Vec<u8>) {
            let (len, _) = whole_records(&bytes);
            prop_assert!(len <= bytes.len());
            let (log, _follower) = log();
            log.note(Some(&read(&bytes)));
            prop_assert_eq!(log.next.load(Ordering::Relaxed), len as u64);
        }
    }
}
