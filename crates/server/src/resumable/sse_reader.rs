//! A resumable answer as server-sent events: pieces of its log, written as chunks (S-5).

use std::task::{Context, Poll};

use bytes::Bytes;
use loquent_proto::Delta;
use tokio::sync::{mpsc, watch};

use super::{EventsPath, LogPiece};
use crate::dialect::{EventWriter, write_record};
use crate::error::ApiError;
use crate::sse::{EventSource, StreamStatus};

/// Pieces that wait for the connection: one on its way and one ready.
const MAX_PIECES: usize = 2;

/// Reads an answer's log from some offset on. Every event that completes a record has the log
/// offset behind it as its id (S-5.1).
pub struct LogReader<W> {
    pieces: mpsc::Receiver<LogPiece>,
    events: W,
    /// Tells the answer's task how far the connection is.
    taken: watch::Sender<u64>,
    /// Log offset behind the piece that was written last.
    written: u64,
}

/// A reader's end of an event stream, before it is known what it reads.
pub struct EventsInbox {
    pieces: mpsc::Receiver<LogPiece>,
    taken: watch::Sender<u64>,
}

/// The two ends of an event stream, which begins at log `offset`.
pub fn events_path(offset: u64) -> (EventsPath, EventsInbox) {
    let (sender, pieces) = mpsc::channel(MAX_PIECES);
    let (taken, receiver) = watch::channel(offset);
    (EventsPath { pieces: sender, taken: receiver }, EventsInbox { pieces, taken })
}

impl<W: EventWriter> LogReader<W> {
    /// Reads what comes into `inbox`; `events` has the state of the offset where that begins.
    pub fn new(inbox: EventsInbox, events: W) -> Self {
        let EventsInbox { pieces, taken } = inbox;
        let written = *taken.borrow();
        Self { pieces, events, taken, written }
    }

    /// What writes the events.
    pub fn events(&self) -> &W {
        &self.events
    }

    /// Appends the events of a piece; whether the log goes on after it.
    fn write(&mut self, piece: &LogPiece, out: &mut Vec<u8>) -> StreamStatus {
        self.written = piece.offset + piece.bytes.len() as u64;
        let mut at = 0;
        while let Ok(Some((len, delta))) = Delta::decode(&piece.bytes[at..]) {
            at += len;
            let Some(delta) = delta else { continue };
            let id = Some(piece.offset + at as u64);
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
        let written = self.written;
        self.taken.send_if_modified(|taken| std::mem::replace(taken, written) != written);
        self.poll_more(context, out)
    }

    fn heartbeat(&self) -> Bytes {
        self.events.heartbeat()
    }
}

impl<W: EventWriter> LogReader<W> {
    /// [`EventSource::poll_events`] again, before the connection has what that one gave.
    pub fn poll_more(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        while out.is_empty() {
            match self.pieces.poll_recv(context) {
                Poll::Pending => break,
                // Another reader has taken over, or the answer was stopped (S-5.4).
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
    ApiError::internal("the answer failed, was stopped, or goes on elsewhere")
}
