//! Response bodies that are written piece by piece, with a pause between two.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Instant, Sleep};

/// One piece of a body.
pub enum Piece {
    /// A piece that others follow.
    More(Bytes),
    /// The end of the body.
    Last(Bytes),
}

/// Returns a body that calls `next` at once, and then after each `interval`.
pub fn paced_body(
    interval: Duration,
    next: impl FnMut() -> Piece + Send + Unpin + 'static,
) -> Body {
    let pause = Box::pin(tokio::time::sleep_until(Instant::now()));
    Body::new(PacedBody { pause, interval, next, is_over: false })
}

struct PacedBody<F> {
    pause: Pin<Box<Sleep>>,
    interval: Duration,
    next: F,
    is_over: bool,
}

impl<F: FnMut() -> Piece + Unpin> http_body::Body for PacedBody<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(context));
        let until = Instant::now() + self.interval;
        self.pause.as_mut().reset(until);
        let bytes = match (self.next)() {
            Piece::More(bytes) => bytes,
            Piece::Last(bytes) => {
                self.is_over = true;
                bytes
            }
        };
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}
