//! An answer's path over server-sent events: pieces of its log for the response's body.

use std::time::Duration;

use loquent_proto::backlog::{Backlog, BacklogAction, BacklogLimits};
use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::{Delta, Log, Micros, Sender};
use tokio::sync::mpsc;

use super::LogPiece;

/// Log bytes in one piece: about one TLS record of chunks, and little enough that two of them
/// in the body's queue hardly count next to the log.
const PIECE_BYTES: u64 = 16 * 1024;

/// A reader of the log: a cursor, and where its pieces go.
pub struct EventReader {
    pieces: mpsc::Sender<LogPiece>,
    /// Everything below was handed to the response's body.
    next: u64,
    /// Anything that the body does not take counts as paused: TCP's own buffers lie behind it.
    backlog: Backlog,
}

impl EventReader {
    /// A reader that goes on from log `offset`, and is cut off if it takes nothing for
    /// `stall_limit`.
    pub fn new(pieces: mpsc::Sender<LogPiece>, offset: u64, stall_limit: Duration) -> Self {
        let stall_limit = Some(Micros::from(stall_limit));
        let backlog = Backlog::new(BacklogLimits { pause_bytes: 1, stall_limit });
        Self { pieces, next: offset, backlog }
    }

    /// Whether [`Self::hand_on`] has something: records, or the log's end.
    pub fn has_news(&self, log: &Log) -> bool {
        self.next < log.head() || log.is_ended()
    }

    /// Resolves when the body has room, with true; with false when it is gone. Without news
    /// only the latter matters.
    pub async fn room(&self, has_news: bool) -> bool {
        match has_news {
            true => self.pieces.reserve().await.is_ok(),
            false => {
                self.pieces.closed().await;
                false
            }
        }
    }

    /// Gives the body its next piece, for which there is room; returns whether the path goes
    /// on. `failed`: the answer ended with an error.
    pub fn hand_on(&mut self, now: Micros, sender: &mut Sender, failed: bool) -> bool {
        let log = sender.log();
        let (offset, head) = (self.next, log.head());
        // Up to a record more than a piece, so that one that begins in it is whole.
        let most = PIECE_BYTES + MAX_RECORD_BYTES as u64 + 2;
        let mut bytes = Vec::new();
        log.read(offset..head.min(offset + most), &mut bytes).expect("kept until handed on");
        if bytes.len() as u64 > PIECE_BYTES {
            bytes.truncate(whole_records(&bytes, PIECE_BYTES as usize));
        }
        self.next += bytes.len() as u64;
        let is_last = self.next == head && log.is_ended();
        // A reader that had all of a failed answer must not get a clean end now.
        let nothing_left = bytes.is_empty() && failed;
        let gone =
            nothing_left || self.pieces.try_send(LogPiece { offset, bytes, is_last }).is_err();
        self.backlog.note_progress(now);
        // From here on TCP delivers it: the log may drop it when it needs the room.
        sender.acknowledge(self.next).expect("handed on from the log");
        !gone && !is_last
    }

    /// Whether the reader still counts as one at `now`; false once it has taken nothing for
    /// the stall limit.
    pub fn check(&mut self, now: Micros, log: &Log) -> bool {
        let unread = (log.head() - self.next) as usize;
        self.backlog.handle(now, unread, 0) != BacklogAction::End
    }

    /// When [`Self::check`] fails unless the reader takes something.
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.backlog.ends_at()
    }
}

/// The length of the whole records at the front of `bytes`, at most `most` but at least one.
fn whole_records(bytes: &[u8], most: usize) -> usize {
    let mut end = 0;
    while let Ok(Some((len, _))) = Delta::decode(&bytes[end..]) {
        if end > 0 && end + len > most {
            break;
        }
        end += len;
    }
    end
}
