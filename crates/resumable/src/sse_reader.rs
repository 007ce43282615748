//! A resumable answer as server-sent events: pieces of its log, written as chunks (S-5).

use std::task::{Context, Poll};

use bytes::Bytes;
use loquent_proto::{Delta, Position};

pub use super::events_slot::{EventsInbox, events_path};

use super::events_slot::LogPiece;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::{EventSource, EventWriter, StreamStatus, write_record};

/// Reads an answer's log from an offset on. Every event that completes a record has the position
/// after it as its id (S-5.1).
pub struct LogReader<W> {
    inbox: EventsInbox,
    events: W,
    /// Log offset up to which the connection has taken the events.
    taken: u64,
    /// Log offset after the last piece written.
    written: u64,
}

impl<W: EventWriter> LogReader<W> {
    /// Creates a reader of `inbox`; `events` has the state at the offset where it begins.
    pub fn new(inbox: EventsInbox, events: W) -> Self {
        let written = inbox.offset();
        Self { inbox, events, taken: written, written }
    }

    /// Returns the writer of the events.
    pub fn events(&self) -> &W {
        &self.events
    }

    /// True if the stream ends early because a client has stopped the answer.
    pub fn is_stopped(&self) -> bool {
        self.inbox.is_stopped()
    }

    /// Appends the events of a piece; returns whether the log continues after it.
    fn write(&mut self, piece: &LogPiece, out: &mut Vec<u8>) -> StreamStatus {
        let Position { epoch, offset } = piece.position;
        self.written = offset + piece.bytes.len() as u64;
        let mut at = 0;
        while let Ok(Some((len, delta))) = Delta::decode(&piece.bytes[at..]) {
            at += len;
            let Some(delta) = delta else { continue };
            let id = Some(Position { epoch, offset: offset + at as u64 }.number());
            let written = write_record(&mut self.events, id, &delta, out);
            if written.is_err() || matches!(delta, Delta::Error { .. }) {
                return StreamStatus::Broken(lost());
            }
        }
        if piece.is_last { StreamStatus::Complete } else { StreamStatus::Open }
    }
}

impl<W: EventWriter> EventSource for LogReader<W> {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        // It asks for more, so that the connection has what was written before.
        self.taken = self.written;
        self.poll_more(context, out)
    }

    fn heartbeat(&self) -> Bytes {
        self.events.heartbeat()
    }
}

impl<W: EventWriter> LogReader<W> {
    /// Like [`EventSource::poll_events`], but before the connection has taken the
    /// previous events.
    pub fn poll_more(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        while out.is_empty() {
            match self.inbox.poll_piece(context, self.taken) {
                Poll::Pending => break,
                // The answer was stopped, or this reader was too slow for its log (S-5.4).
                Poll::Ready(None) => return StreamStatus::Broken(lost()),
                Poll::Ready(Some(piece)) => match self.write(&piece, out) {
                    StreamStatus::Open => {}
                    ended => return ended,
                },
            }
        }
        StreamStatus::Open
    }
}

fn lost() -> ApiError {
    ApiError::internal("the answer failed or was stopped, or its reader was too slow")
}
