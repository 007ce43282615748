//! The body of a kept answer as server-sent events: pieces of the log as chunks (S-5).

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use loquent_proto::Delta;
use loquent_proto::chunk::ChunkWriter;
use tokio::sync::mpsc;

use super::Piece;
use crate::error::ApiError;
use crate::sse::{BrokenStream, Heartbeat};

/// Pieces that wait for the connection: one under way and one ready.
pub const MAX_PIECES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Streaming,
    /// What is written is flushed before the connection is broken.
    Breaking,
    Broken,
    Done,
}

/// A kept answer's body from some offset on.
pub struct FollowBody {
    pieces: mpsc::Receiver<Piece>,
    chunks: ChunkWriter,
    preface: Vec<u8>,
    state: State,
    heartbeat: Heartbeat,
}

impl FollowBody {
    /// Streams `pieces` as `chunks`, with a comment after each `heartbeat` of silence.
    pub fn new(pieces: mpsc::Receiver<Piece>, chunks: ChunkWriter, heartbeat: Duration) -> Self {
        let preface = b": admitted\n\n".to_vec();
        let heartbeat = Heartbeat::new(heartbeat);
        Self { pieces, chunks, preface, state: State::Streaming, heartbeat }
    }

    /// The events of a piece; notes the log's end.
    fn events(&mut self, piece: &Piece) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        while let Ok(Some((len, delta))) = Delta::decode(&piece.bytes[at..]) {
            at += len;
            let Some(delta) = delta else { continue };
            if self.chunks.write(Some(piece.offset + at as u64), &delta, &mut out).is_err() {
                self.state = State::Breaking;
                return out;
            }
            if matches!(delta, Delta::Error { .. }) {
                self.state = State::Breaking;
            }
        }
        if piece.is_last && self.state == State::Streaming {
            self.state = State::Done;
        }
        out
    }

    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        loop {
            match ready!(self.pieces.poll_recv(context)) {
                // Another reader has taken the place, or the answer was stopped (S-5.4).
                None => return Poll::Ready(None),
                Some(piece) => {
                    let events = self.events(&piece);
                    if !events.is_empty() || piece.is_last {
                        return Poll::Ready(Some(events));
                    }
                }
            }
        }
    }
}

impl Body for FollowBody {
    type Data = Bytes;
    type Error = BrokenStream;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenStream>>> {
        let this = &mut *self;
        if !this.preface.is_empty() {
            let preface = std::mem::take(&mut this.preface);
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from(preface)))));
        }
        match this.state {
            State::Streaming => {}
            State::Done => return Poll::Ready(None),
            State::Breaking => {
                // The connection flushes what it has when the body is pending.
                this.state = State::Broken;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            State::Broken => return Poll::Ready(Some(Err(BrokenStream(lost())))),
        }
        let frame = match this.poll_events(context) {
            Poll::Ready(Some(events)) => Bytes::from(events),
            Poll::Ready(None) => return Poll::Ready(Some(Err(BrokenStream(lost())))),
            Poll::Pending => ready!(this.heartbeat.poll(context)),
        };
        this.heartbeat.reset();
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }
}

fn lost() -> ApiError {
    ApiError::internal("the answer failed, was stopped, or goes on elsewhere")
}
