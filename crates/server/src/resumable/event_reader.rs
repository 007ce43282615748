//! An answer's path over server-sent events: pieces of its log for the response's body.

use std::time::Duration;

use super::{EventsPath, LogPiece};
use loquent_proto::backlog::{Backlog, BacklogAction, BacklogLimits};
use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::{Delta, Log, Micros, Sender};

/// Log bytes in one piece: about one TLS record of chunks, and little enough that two of them
/// in the body's queue hardly count next to the log.
const PIECE_BYTES: u64 = 16 * 1024;

/// What the response's body has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEvent {
    /// It has room for a piece.
    Room,
    /// The connection has taken more of what the body gave it.
    Taken,
    /// It is gone.
    Gone,
}

/// A reader of the log: a cursor, and where its pieces go.
pub struct EventReader {
    path: EventsPath,
    /// Everything below was handed to the response's body.
    next: u64,
    /// Anything that the body does not take counts as paused: TCP's own buffers lie behind it.
    backlog: Backlog,
}

impl EventReader {
    /// A reader that goes on from log `offset`, and is cut off if it takes nothing for
    /// `stall_limit`.
    pub fn new(path: EventsPath, offset: u64, stall_limit: Duration) -> Self {
        let stall_limit = Some(Micros::from(stall_limit));
        let backlog = Backlog::new(BacklogLimits { pause_bytes: 1, stall_limit });
        Self { path, next: offset, backlog }
    }

    /// Whether [`Self::hand_on`] has something: records, or the log's end.
    pub fn has_news(&self, log: &Log) -> bool {
        self.next < log.head() || log.is_ended()
    }

    /// Resolves when the body does something. Without news, room for them does not matter.
    pub async fn wait(&mut self, has_news: bool) -> BodyEvent {
        let EventsPath { pieces, taken } = &mut self.path;
        tokio::select! {
            room = pieces.reserve(), if has_news => match room {
                Ok(_) => BodyEvent::Room,
                Err(_) => BodyEvent::Gone,
            },
            changed = taken.changed() => match changed {
                Ok(()) => BodyEvent::Taken,
                Err(_) => BodyEvent::Gone,
            },
        }
    }

    /// Acknowledges what the connection has taken: only from there on may the log drop it.
    pub fn acknowledge(&mut self, sender: &mut Sender) {
        let taken = *self.path.taken.borrow_and_update();
        sender.acknowledge(taken.min(self.next)).expect("handed on from the log");
    }

    /// Gives the body its next piece, for which there is room; returns whether the path goes
    /// on. `failed`: the answer ended with an error.
    pub fn hand_on(&mut self, now: Micros, log: &Log, failed: bool) -> bool {
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
            nothing_left || self.path.pieces.try_send(LogPiece { offset, bytes, is_last }).is_err();
        self.backlog.note_progress(now);
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

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use loquent_proto::SenderConfig;
    use loquent_proto::chunk::ChunkWriter;

    use super::super::sse_reader::{LogReader, events_path};
    use super::*;
    use crate::sse::EventSource;

    #[test]
    fn the_log_keeps_what_the_connection_has_not_taken() {
        let now = Micros::ZERO;
        let mut sender = Sender::new(now, 0, SenderConfig::default());
        let meta = r#"{"id":"a","object":"chat.completion.chunk","created":1,"model":"m"}"#;
        sender.push(now, &Delta::Open { meta: meta.into() }).unwrap();
        let text = Delta::Text { choice: 0, tokens: 1, text: "token".into() };
        let end = sender.push(now, &text).unwrap();
        sender.suspend();
        let (path, inbox) = events_path(0);
        let mut reader = EventReader::new(path, 0, Duration::from_secs(1));
        let mut body = LogReader::new(inbox, ChunkWriter::new());
        let mut context = Context::from_waker(Waker::noop());
        assert!(reader.hand_on(now, sender.log(), false));
        reader.acknowledge(&mut sender);
        assert_eq!(sender.cumulative(), 0, "it waits in the body's queue");
        let mut out = Vec::new();
        body.poll_events(&mut context, &mut out);
        reader.acknowledge(&mut sender);
        assert_eq!(sender.cumulative(), 0, "the body has just given it to the connection");
        body.poll_events(&mut context, &mut out);
        reader.acknowledge(&mut sender);
        assert_eq!(sender.cumulative(), end, "the connection asks for more");
    }
}
