//! A log of another replica that is followed, and the pieces that result.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::{AnswerHandle, Delta};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::epochs::Epochs;
use super::reply::{OwnerState, ReadLog};
use super::state::LogState;

/// Maximum bytes read by one command.
pub const MOST_BYTES: usize = 256 * 1024;
/// Time for which readers wait for a store that is unavailable or has lost the log.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// Maximum pieces queued for the answer's task.
const MAX_PIECES: usize = 4;

/// A piece of a followed log, or a change of its state.
#[derive(Debug, PartialEq, Eq)]
pub enum FollowedPiece {
    /// The next whole records.
    Records(Vec<u8>),
    /// The owners of the log, which now include another one.
    Epochs(Epochs),
    /// A client has stopped the answer.
    Stopped,
    /// The replica that generated the answer ended before the answer did.
    Orphaned,
    /// The answer does not continue, for this reason.
    Lost(&'static str),
}

/// A log that is followed.
pub struct FollowedLog {
    /// The answer's id, in hex digits.
    pub id: String,
    /// Log offset to read next.
    pub next: AtomicU64,
    /// Sends pieces to the answer's task.
    pub pieces: mpsc::Sender<FollowedPiece>,
    /// Owners that the log has had.
    epochs: Mutex<Epochs>,
    /// Time since which the log or its store has been missing; `None` if neither is.
    missing_since: Mutex<Option<Instant>>,
}

/// The result of reading a log from the store.
#[derive(Debug, Clone, Copy)]
pub struct LogRead<'a> {
    /// The store's reply about the log.
    pub log: &'a ReadLog,
    /// True if an owner whose lease has expired is dead, and not just unheard.
    pub knows_the_dead: bool,
}

impl LogRead<'_> {
    /// True if no replica generates the answer any more.
    pub fn is_orphaned(&self) -> bool {
        match self.log.owner {
            OwnerState::Lives => false,
            OwnerState::Silent => self.knows_the_dead,
            OwnerState::None => true,
        }
    }
}

/// The task's end of a followed log. When dropped, the log is no longer followed.
pub struct Follower(mpsc::Receiver<FollowedPiece>);

impl Follower {
    /// Waits for the next piece.
    pub async fn next(&mut self) -> FollowedPiece {
        let ended = FollowedPiece::Lost("the server ends");
        self.0.recv().await.unwrap_or(ended)
    }

    /// Returns the next piece if it is available now.
    pub fn ready(&mut self) -> Option<FollowedPiece> {
        self.0.try_recv().ok()
    }
}

/// State of following a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// The log is still followed.
    On,
    /// The log is no longer followed.
    Over,
}

impl Following {
    /// True if the log is no longer followed.
    pub fn is_over(self) -> bool {
        self == Self::Over
    }
}

impl FollowedLog {
    /// Creates the followed log of the answer with `handle`, and the receiver of its pieces.
    pub fn new(handle: &AnswerHandle) -> (Self, Follower) {
        let (pieces, inbox) = mpsc::channel(MAX_PIECES);
        let (next, missing_since) = (AtomicU64::new(0), Mutex::new(None));
        let (id, epochs) = (handle.id_hex(), Mutex::default());
        (Self { id, next, pieces, epochs, missing_since }, Follower(inbox))
    }

    /// Begins at `offset`, in a log with `epochs`.
    pub fn beginning_at(self, offset: u64, epochs: Epochs) -> Self {
        Self { next: AtomicU64::new(offset), epochs: Mutex::new(epochs), ..self }
    }

    /// Sends what was read to the task; `None` if the store could not be asked.
    pub fn note(&self, known: Option<LogRead<'_>>) -> Following {
        let Some(known @ LogRead { log: read, .. }) = known else {
            return self.note_missing("its store cannot be reached");
        };
        match read.state {
            Some(LogState::Running | LogState::Ended) => {}
            Some(LogState::Stopped) => return self.end(FollowedPiece::Stopped),
            Some(LogState::Lost) => {
                return self.end(FollowedPiece::Lost("its owner could not store all of it"));
            }
            // The store may have lost it, and its owner writes it again.
            None => return self.note_missing("its store has lost it"),
        }
        let next = self.next.load(Ordering::Relaxed);
        if read.head < next {
            // Its owner, if it lives, writes it again from its beginning.
            return self.note_missing("its store has lost a part of it");
        }
        if let Some(following) = self.note_epochs(&read.epochs, next) {
            return following;
        }
        let (len, is_last) = whole_records(&read.bytes);
        let is_cut = len == 0 && !read.bytes.is_empty() && known.is_orphaned();
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
        if read.head == next && known.is_orphaned() {
            return self.end(FollowedPiece::Orphaned);
        }
        *self.missing() = None;
        Following::On
    }

    /// Records the owners of the log; returns whether to follow it further if they have changed.
    fn note_epochs(&self, epochs: &Epochs, next: u64) -> Option<Following> {
        let mut known = self.epochs.lock().expect("nothing panics under this lock");
        if *known == *epochs {
            return None;
        }
        if !epochs.go_on_from(&known, next) {
            let why = "its new owner has less of it than was read here";
            return Some(self.end(FollowedPiece::Lost(why)));
        }
        known.clone_from(epochs);
        // There is room: only this task sends, and it has looked. The records come next time.
        let _ = self.pieces.try_send(FollowedPiece::Epochs(epochs.clone()));
        Some(Following::On)
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

/// Returns the length of the whole records at the front of `bytes`, and whether the log ends with
/// them.
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

    /// Returns the reply for a log read from offset `next` on.
    fn read_from(next: u64, bytes: &[u8]) -> ReadLog {
        let head = next + bytes.len() as u64;
        let (state, owner) = (Some(LogState::Running), OwnerState::Lives);
        ReadLog { state, owner, head, bytes: bytes.to_vec(), epochs: Epochs::default() }
    }

    /// Applies the reply of a store that has long worked without a pause.
    fn note(log: &FollowedLog, read: &ReadLog) -> Following {
        log.note(Some(LogRead { log: read, knows_the_dead: true }))
    }

    fn read(bytes: &[u8]) -> ReadLog {
        read_from(0, bytes)
    }

    #[test]
    fn half_a_record_waits_for_the_rest() {
        let (log, mut follower) = log();
        let whole = records(&[Delta::text("one"), Delta::text("two")]);
        let cut = whole.len() - 1;
        assert_eq!(note(&log, &read(&whole[..cut])), Following::On);
        let first = records(&[Delta::text("one")]);
        assert_eq!(follower.ready(), Some(FollowedPiece::Records(first.clone())));
        assert_eq!(log.next.load(Ordering::Relaxed), first.len() as u64);
    }

    #[test]
    fn the_last_record_ends_it_and_so_does_a_stop() {
        let (log, mut follower) = log();
        let all = records(&[Delta::text("all"), Delta::Done]);
        let last = ReadLog { owner: OwnerState::Silent, ..read(&all) };
        assert_eq!(note(&log, &last), Following::Over);
        assert_eq!(follower.ready(), Some(FollowedPiece::Records(all)));
        let (log, mut follower) = self::log();
        let stopped = ReadLog { state: Some(LogState::Stopped), ..read(&[]) };
        assert_eq!(note(&log, &stopped), Following::Over);
        assert_eq!(follower.ready(), Some(FollowedPiece::Stopped));
    }

    #[test]
    fn a_log_is_orphaned_where_it_ends_alone() {
        let (log, mut follower) = log();
        let first = records(&[Delta::text("one")]);
        note(&log, &ReadLog { owner: OwnerState::Silent, ..read(&first) });
        assert_eq!(follower.ready(), Some(FollowedPiece::Records(first.clone())));
        let at = first.len() as u64;
        // There is more, for which other logs have left no room.
        let more = ReadLog { owner: OwnerState::Silent, head: at + 9, ..read_from(at, &[]) };
        assert_eq!((note(&log, &more), follower.ready()), (Following::On, None));
        let dead = ReadLog { owner: OwnerState::Silent, ..read_from(at, &[]) };
        assert_eq!(note(&log, &dead), Following::Over);
        assert_eq!(follower.ready(), Some(FollowedPiece::Orphaned));
    }

    #[test]
    fn a_log_that_was_cut_is_lost_and_not_waited_for_in_vain() {
        let whole = records(&[Delta::text("one")]);
        let (log, mut follower) = log();
        let cut = ReadLog { owner: OwnerState::Silent, ..read(&whole[..whole.len() - 1]) };
        assert_eq!(note(&log, &cut), Following::Over);
        assert!(matches!(follower.ready(), Some(FollowedPiece::Lost(_))));
        // One that is shorter than what was read of it may be written again.
        let (log, mut follower) = self::log();
        note(&log, &read(&whole));
        assert!(follower.ready().is_some());
        let shorter = ReadLog { owner: OwnerState::Silent, ..read(&[]) };
        assert_eq!((note(&log, &shorter), follower.ready()), (Following::On, None));
    }

    #[test]
    fn a_silent_owner_is_not_dead_while_the_store_was_away() {
        let (log, mut follower) = log();
        let silent = ReadLog { owner: OwnerState::Silent, ..read(&[]) };
        let unsure = LogRead { log: &silent, knows_the_dead: false };
        assert_eq!((log.note(Some(unsure)), follower.ready()), (Following::On, None));
        let ended = ReadLog { owner: OwnerState::None, ..read(&[]) };
        let told = LogRead { log: &ended, knows_the_dead: false };
        assert_eq!(log.note(Some(told)), Following::Over);
        assert_eq!(follower.ready(), Some(FollowedPiece::Orphaned), "it has said so itself");
    }

    #[test]
    fn another_owners_log_is_followed_only_as_far_as_both_are_the_same() {
        let first = records(&[Delta::text("one")]);
        let at = first.len() as u64;
        for (start, goes_on) in [(at, true), (at - 1, false)] {
            let (log, mut follower) = log();
            note(&log, &read(&first));
            assert_eq!(follower.ready(), Some(FollowedPiece::Records(first.clone())));
            let epochs = Epochs::parse(&format!("7:{start}")).unwrap();
            let second = records(&[Delta::text("two")]);
            let more = ReadLog { epochs: epochs.clone(), ..read_from(at, &second) };
            let following = note(&log, &more);
            assert_eq!(following == Following::On, goes_on);
            if goes_on {
                assert_eq!(follower.ready(), Some(FollowedPiece::Epochs(epochs)));
                note(&log, &more);
                assert_eq!(follower.ready(), Some(FollowedPiece::Records(second)));
            } else {
                assert!(matches!(follower.ready(), Some(FollowedPiece::Lost(_))));
            }
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_whole_records_or_none(bytes: Vec<u8>) {
            let (len, _) = whole_records(&bytes);
            prop_assert!(len <= bytes.len());
            let (log, _follower) = log();
            note(&log, &read(&bytes));
            prop_assert_eq!(log.next.load(Ordering::Relaxed), len as u64);
        }
    }
}
