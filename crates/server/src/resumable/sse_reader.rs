//! A resumable answer as server-sent events: pieces of its log, written as chunks (S-5).

use std::task::{Context, Poll};

use loquent_proto::Delta;
use loquent_proto::chunk::ChunkWriter;
use tokio::sync::mpsc;

use super::LogPiece;
use crate::error::ApiError;
use crate::sse::{EventSource, StreamStatus};

/// Pieces that wait for the connection: one on its way and one ready.
pub const MAX_PIECES: usize = 2;

/// Reads an answer's log from some offset on. Every event that completes a record has the log
/// offset behind it as its id (S-5.1).
pub struct LogReader {
    pieces: mpsc::Receiver<LogPiece>,
    chunks: ChunkWriter,
}

impl LogReader {
    /// Reads `pieces`; `chunks` has the state of the offset where they begin.
    pub fn new(pieces: mpsc::Receiver<LogPiece>, chunks: ChunkWriter) -> Self {
        Self { pieces, chunks }
    }

    /// Appends the events of a piece; whether the log goes on after it.
    fn write(&mut self, piece: &LogPiece, out: &mut Vec<u8>) -> StreamStatus {
        let mut at = 0;
        while let Ok(Some((len, delta))) = Delta::decode(&piece.bytes[at..]) {
            at += len;
            let Some(delta) = delta else { continue };
            let written = self.chunks.write(Some(piece.offset + at as u64), &delta, out);
            if written.is_err() || matches!(delta, Delta::Error { .. }) {
                return StreamStatus::Broken(lost());
            }
        }
        if piece.is_last { StreamStatus::Complete } else { StreamStatus::Open }
    }
}

impl EventSource for LogReader {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
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
