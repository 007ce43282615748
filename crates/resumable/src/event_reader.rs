//! An answer's reader over server-sent events: supplies pieces of the log to the response's body.

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

/// Log bytes in one piece: about one TLS record of chunks, and so few that two of them in the
/// body's queue hardly matter next to the log.
const PIECE_BYTES: u64 = 16 * 1024;

/// Cuts pieces from a log. Readers at the same offset share a piece.
#[derive(Default)]
pub struct PieceCutter {
    latest: Option<LatestPiece>,
    /// True if several readers can share a piece.
    pub is_shared: bool,
    /// Epoch of the bytes being cut.
    pub epoch: u64,
}

struct LatestPiece {
    offset: u64,
    /// Visible end of the log when the piece was cut.
    end: u64,
    bytes: Bytes,
}

impl PieceCutter {
    /// Returns whole records from `offset` to `end`, about [`PIECE_BYTES`] at most.
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

/// Returns the length of the whole records at the front of `bytes`: at most `most`, but at least
/// one record.
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

/// A reader of the log: a cursor, and the path for its pieces.
pub struct EventReader {
    path: EventsPath,
    /// Log offset below which everything was given to the response's body.
    next: u64,
    /// Log offset below which the connection has taken everything: the log needs to keep only the
    /// rest.
    taken: u64,
    /// Time when the connection last took something.
    heard: Micros,
    /// Counts any byte that the body does not take as a pause, because TCP's own buffers lie behind
    /// the body.
    backlog: Backlog,
}

impl EventReader {
    /// Creates a reader that continues from log `offset` and is cut off if it takes nothing for
    /// `stall_limit`.
    pub fn new(now: Micros, path: EventsPath, offset: u64, stall_limit: Duration) -> Self {
        let stall_limit = Some(Micros::from(stall_limit));
        let backlog = Backlog::new(BacklogLimits { pause_bytes: 1, stall_limit });
        Self { path, next: offset, taken: offset, heard: now, backlog }
    }

    /// Sends the body's notifications to `ready` under `id`.
    pub fn report_to(&self, ready: Arc<ReadyBodies>, id: PathId) {
        self.path.report_to(ready, id);
    }

    /// Returns the log offset up to which the connection has taken the answer, as last seen.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the time when the connection last took something, as last seen.
    pub const fn heard(&self) -> Micros {
        self.heard
    }

    /// Reads the connection's progress, and requests a notification of the next.
    pub fn ask_for_word(&mut self, now: Micros) {
        let taken = self.path.ask_for_word().taken;
        self.note_taken(now, taken);
    }

    /// Ends the path because a client has stopped the answer.
    pub fn stop(self) {
        self.path.stop();
    }

    /// Gives the body the pieces that it has room for, up to `visible`. `failed` means that the
    /// answer ended with an error.
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

    /// Returns the time at which [`Self::drive`] ends the path unless the reader takes something.
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

    /// Gives the body its next piece, for which there is room; returns the reason if the path is
    /// then over.
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
    use loquent_serving::event_writer::EventSource;

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
