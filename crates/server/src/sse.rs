//! The body of a streamed answer: server-sent events, written as they come.
//!
//! Headers and a first comment leave as soon as the request is admitted, then a comment
//! whenever nothing else did for a while, so that proxies keep the connection and a
//! client knows that it is queued. A stream that breaks ends with an error event and an
//! aborted connection: clients take a clean end for a complete answer.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::{Body, Frame};
use loquent_proto::headers::IGNORED_HEADER;
use tokio::time::{Instant, Sleep};

use crate::answering::Answering;
use crate::api::answer::Chunks;
use crate::error::ApiError;

/// Bytes gathered into one frame while more is ready.
const FRAME_BYTES: usize = 16 * 1024;

/// The connection is torn down because the stream broke.
#[derive(Debug, thiserror::Error)]
#[error("the stream broke off: {0}")]
pub struct BrokenStream(pub ApiError);

enum State {
    /// Nothing was sent yet; the first frame is ready.
    Opening(Vec<u8>),
    /// Between the first comment and the end.
    Streaming,
    /// The error event is with the connection, which gets one chance to send it.
    Breaking(ApiError),
    /// The next poll tears the connection down.
    Broken(ApiError),
    /// All was sent.
    Done,
}

/// A streamed answer's body.
pub struct SseBody {
    answering: Answering,
    chunks: Chunks,
    state: State,
    heartbeat: Heartbeat,
    /// Where events are written before they leave; its memory stays.
    events: Vec<u8>,
}

/// Comments in a stream's silence.
pub struct Heartbeat {
    period: Duration,
    silence: Pin<Box<Sleep>>,
    /// When the timer ends, and whom it will wake.
    due: Instant,
    armed: Option<Waker>,
    last_frame: Instant,
    /// That was just now.
    fresh: bool,
}

impl Heartbeat {
    /// A comment after each `period` of silence.
    pub fn new(period: Duration) -> Self {
        let silence = Box::pin(tokio::time::sleep(period));
        let due = silence.deadline();
        Self { period, silence, due, armed: None, last_frame: Instant::now(), fresh: true }
    }

    /// Something was written.
    pub fn reset(&mut self) {
        self.last_frame = Instant::now();
        self.fresh = true;
    }

    /// The comment that is due.
    ///
    /// Asked between any two frames, and nearly always in vain: the timer itself is asked only
    /// when it is due or has to learn of another waker.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let armed = self.armed.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        let now = if std::mem::take(&mut self.fresh) { self.last_frame } else { Instant::now() };
        if armed && now < self.due {
            return Poll::Pending;
        }
        loop {
            self.armed = Some(context.waker().clone());
            ready!(self.silence.as_mut().poll(context));
            let (now, due) = (Instant::now(), self.last_frame + self.period);
            let over = now >= due;
            self.due = if over { now + self.period } else { due };
            self.silence.as_mut().reset(self.due);
            if over {
                return Poll::Ready(Bytes::from_static(b": waiting\n\n"));
            }
        }
    }
}

impl SseBody {
    /// Streams `answering` as `chunks`, with a comment after each `heartbeat` of silence.
    /// `preface` leaves at once.
    pub fn new(
        answering: Answering,
        chunks: Chunks,
        preface: Vec<u8>,
        heartbeat: Duration,
    ) -> Self {
        Self {
            answering,
            chunks,
            state: State::Opening(preface),
            heartbeat: Heartbeat::new(heartbeat),
            events: Vec::new(),
        }
    }

    /// Gathers all events that are ready.
    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        self.events.clear();
        while self.events.len() < FRAME_BYTES {
            let Poll::Ready(flush) = self.answering.poll_flush(context) else {
                break;
            };
            let Some(flush) = flush else {
                self.finish();
                break;
            };
            self.chunks.flush(&flush, &|| self.answering.usage(), &mut self.events);
            if let Some(error) = flush.end.and_then(|end| end.reason.error()) {
                self.break_off(error);
                break;
            }
        }
        if self.events.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(Bytes::copy_from_slice(&self.events))
    }

    fn finish(&mut self) {
        if !self.answering.is_complete() {
            return self.break_off(ApiError::internal("The engine has stopped."));
        }
        if self.answering.stream.include_usage {
            let timings = self.answering.stream.include_timings.then(|| self.answering.timings());
            let usage = self.answering.usage_json();
            self.chunks.usage(usage, self.answering.extra(), timings, &mut self.events);
        }
        self.chunks.done(&mut self.events);
        self.state = State::Done;
    }

    fn break_off(&mut self, error: ApiError) {
        self.events.extend_from_slice(format!("data: {}\n\n", error.json()).as_bytes());
        self.state = State::Breaking(error);
    }
}

impl Body for SseBody {
    type Data = Bytes;
    type Error = BrokenStream;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenStream>>> {
        let this = &mut *self;
        match &mut this.state {
            State::Opening(preface) => {
                let preface = std::mem::take(preface);
                this.state = State::Streaming;
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(preface)))));
            }
            State::Streaming => {}
            State::Breaking(error) => {
                // The connection flushes what it has when the body is pending.
                this.state = State::Broken(error.clone());
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            State::Broken(error) => return Poll::Ready(Some(Err(BrokenStream(error.clone())))),
            State::Done => return Poll::Ready(None),
        }
        let frame = match this.poll_events(context) {
            Poll::Ready(events) => events,
            Poll::Pending => ready!(this.heartbeat.poll(context)),
        };
        this.heartbeat.reset();
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }
}

/// A response whose body is a stream of events.
pub fn event_stream(body: axum::body::Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Names the request's parameters that had no effect in a header of `response`.
pub fn with_ignored(mut response: Response, ignored: &str) -> Response {
    if let Ok(ignored) = HeaderValue::from_str(ignored)
        && !ignored.is_empty()
    {
        response.headers_mut().insert(IGNORED_HEADER, ignored);
    }
    response
}
