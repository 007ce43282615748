//! An answer's reader over server-sent events: pieces of its log for the response's body.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use loquent_proto::backlog::{Backlog, BacklogAction, BacklogLimits};
use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::message::Code;
use loquent_proto::{Delta, Log, Micros, Position};

use super::events_slot::{EventsPath, LogPiece, ReadyBodies};
use super::path_id::PathId;
use super::reader_status::{ReaderEnd, ReaderStatus};

/// Log bytes in one piece: about one TLS record of chunks, and little enough that two of them
/// in the body's queue hardly count next to the log.
const PIECE_BYTES: u64 = 16 * 1024;

/// Cuts pieces from a log. Readers who are at the same place share one.
#[derive(Default)]
pub struct PieceCutter {
    latest: Option<LatestPiece>,
    /// More than one reader is there to share.
    pub is_shared: bool,
    /// The epoch of what is cut.
    pub epoch: u64,
}

struct LatestPiece {
    offset: u64,
    /// Where the log ended for its readers when it was cut.
    end: u64,
    bytes: Bytes,
}

impl PieceCutter {
    /// Whole records from `offset` to `end`, about [`PIECE_BYTES`] at most.
    fn cut(&mut self, log: &Log, offset: u64, end: u64) -> Bytes {
        let latest = self.latest.as_ref().filter(|it| (it.offset, it.end) == (offset, end));
        if let Some(latest) = latest {
            return latest.bytes.clone();
        }
        let bytes = Bytes::from(records_from(log, offset, end));
        // A lone reader's piece has one owner, and costs no count of owners.
        self.latest = self.is_shared.then(|| LatestPiece { offset, end, bytes: bytes.clone() });
        bytes
    }
}

fn records_from(log: &Log, offset: u64, end: u64) -> Vec<u8> {
    // Up to a record more than a piece, so that one that begins in it is whole.
    let most = PIECE_BYTES + MAX_RECORD_BYTES as u64 + 2;
    let mut bytes = Vec::new();
    log.read(offset..end.min(offset + most), &mut bytes).expect("kept until handed on");
    if bytes.len() as u64 > PIECE_BYTES {
        bytes.truncate(whole_records(&bytes, PIECE_BYTES as usize));
    }
    bytes
}

/// The length of the whole records at the front of `bytes`, at most `most` but at least one.
pub fn whole_records(bytes: &[u8], most: usize) -> usize {
    let mut end = 0;
    while let Ok(Some((len, _))) = Delta::decode(&bytes[end..]) {
        if end > 0 && end + len > most {
            break;
        }
        end += len;
    }
    end
}

/// A reader of the log: a cursor, and where its pieces go.
pub struct EventReader {
    path: EventsPath,
    /// Everything below was handed to the response's body.
    next: u64,
    /// The connection has taken everything below: only from there on must the log keep it.
    taken: u64,
    /// When it last took something.
    heard: Micros,
    /// Anything that the body does not take counts as paused: TCP's own buffers lie behind it.
    backlog: Backlog,
}

impl EventReader {
    /// A reader that goes on from log `offset`, and is cut off if it takes nothing for
    /// `stall_limit`.
    pub fn new(now: Micros, path: EventsPath, offset: u64, stall_limit: Duration) -> Self {
        let stall_limit = Some(Micros::from(stall_limit));
        let backlog = Backlog::new(BacklogLimits { pause_bytes: 1, stall_limit });
        Self { path, next: offset, taken: offset, heard: now, backlog }
    }

    /// Reports the body to `ready` under `id`.
    pub fn report_to(&self, ready: Arc<ReadyBodies>, id: PathId) {
        self.path.report_to(ready, id);
    }

    /// The log offset up to which the connection has taken the answer, as far as is known here.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// When the connection last took something, as far as is known here.
    pub const fn heard(&self) -> Micros {
        self.heard
    }

    /// Asks how far the connection is, and for word of the next that it takes.
    pub fn ask_for_word(&mut self, now: Micros) {
        let taken = self.path.ask_for_word().taken;
        self.note_taken(now, taken);
    }

    /// Ends the path of an answer that a client has stopped.
    pub fn stop(self) {
        self.path.stop();
    }

    /// Gives the body what it has room for, of what lies below `visible`. `failed`: the answer
    /// ended with an error.
    pub fn drive(
        &mut self,
        now: Micros,
        (log, visible): (&Log, u64),
        failed: bool,
        cutter: &mut PieceCutter,
    ) -> ReaderStatus {
        loop {
            let body = self.path.look();
            self.note_taken(now, body.taken);
            if body.is_gone {
                return ReaderStatus::Over(ReaderEnd::Left);
            }
            if self.next < log.base() {
                return ReaderStatus::Over(ReaderEnd::FellBehind);
            }
            // A body with room may wait without news, and news for a body without room; only then
            // does its word wake the task.
            let is_all = log.is_ended() && visible == log.head();
            let has_news = self.next < visible || is_all;
            if !has_news || !(body.has_room || self.path.ask_for_word().has_room) {
                break;
            }
            if let Some(end) = self.hand_on(now, (log, visible), failed, cutter) {
                return ReaderStatus::Over(end);
            }
        }
        let unread = visible.saturating_sub(self.next) as usize;
        match self.backlog.handle(now, unread, 0) {
            BacklogAction::End => ReaderStatus::Over(ReaderEnd::Broken(Code::BrokenOff)),
            _ => ReaderStatus::Reading,
        }
    }

    /// When [`Self::drive`] ends the path unless the reader takes something.
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.backlog.ends_at()
    }

    fn note_taken(&mut self, now: Micros, taken: u64) {
        // The first look comes before anything was handed on.
        let taken = taken.min(self.next);
        if taken > self.taken {
            (self.taken, self.heard) = (taken, now);
        }
    }

    /// Gives the body its next piece, for which there is room; why the path is over, if it is.
    fn hand_on(
        &mut self,
        now: Micros,
        (log, visible): (&Log, u64),
        failed: bool,
        cutter: &mut PieceCutter,
    ) -> Option<ReaderEnd> {
        let offset = self.next;
        let bytes = cutter.cut(log, offset, visible.max(offset));
        if bytes.is_empty() && failed {
            // It had all of a failed answer, and must not get a clean end now.
            return Some(ReaderEnd::Broken(Code::BrokenOff));
        }
        self.next += bytes.len() as u64;
        let is_last = self.next == log.head() && log.is_ended();
        let position = Position { epoch: cutter.epoch, offset };
        self.path.put(LogPiece { position, bytes, is_last });
        self.backlog.note_progress(now);
        is_last.then_some(ReaderEnd::Complete)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use loquent_proto::chunk::ChunkWriter;

    use super::super::sse_reader::{LogReader, events_path};
    use super::*;
    use crate::sse::EventSource;

    const NOW: Micros = Micros::ZERO;

    fn log() -> Log {
        let mut log = Log::new(1 << 20);
        let meta = r#"{"id":"a","object":"chat.completion.chunk","created":1,"model":"m"}"#;
        log.push(&Delta::Open { meta: meta.into() }).unwrap();
        log.push(&Delta::text("token")).unwrap();
        log
    }

    #[test]
    fn what_the_connection_has_not_taken_does_not_count() {
        let log = log();
        let (path, inbox) = events_path(0);
        let mut reader = EventReader::new(NOW, path, 0, Duration::from_secs(1));
        let mut body = LogReader::new(inbox, ChunkWriter::new());
        let mut context = Context::from_waker(Waker::noop());
        let mut out = Vec::new();
        let mut drive = || {
            let source = (&log, log.head());
            let status = reader.drive(NOW, source, false, &mut PieceCutter::default());
            assert_eq!(status, ReaderStatus::Reading);
            reader.taken()
        };
        assert_eq!(drive(), 0, "it waits in the body's queue");
        body.poll_events(&mut context, &mut out);
        assert_eq!(drive(), 0, "the body has just given it to the connection");
        out.clear();
        body.poll_events(&mut context, &mut out);
        assert_eq!(drive(), log.head(), "the connection asks for more");
    }

    #[test]
    fn readers_at_the_same_place_share_a_piece() {
        let log = log();
        let mut cutter = PieceCutter { is_shared: true, ..PieceCutter::default() };
        let head = log.head();
        let (first, second) = (cutter.cut(&log, 0, head), cutter.cut(&log, 0, head));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!(cutter.cut(&log, head, head).len(), 0);
    }

    #[test]
    fn what_is_not_visible_yet_waits() {
        let mut log = log();
        let visible = log.head();
        log.push(&Delta::text("more")).unwrap();
        let (path, inbox) = events_path(0);
        let mut reader = EventReader::new(NOW, path, 0, Duration::from_secs(1));
        let mut body = LogReader::new(inbox, ChunkWriter::new());
        let mut context = Context::from_waker(Waker::noop());
        let mut read = |visible| {
            let (mut cutter, mut out) = (PieceCutter::default(), Vec::new());
            assert_eq!(
                reader.drive(NOW, (&log, visible), false, &mut cutter),
                ReaderStatus::Reading
            );
            body.poll_events(&mut context, &mut out);
            String::from_utf8(out).unwrap()
        };
        let first = read(visible);
        assert!(first.contains("token") && !first.contains("more"), "{first}");
        assert_eq!(read(visible), "");
        assert!(read(log.head()).contains("more"));
    }
}
