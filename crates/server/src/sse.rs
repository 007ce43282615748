//! The body of every streamed answer: server-sent events, written as they become ready.
//!
//! Headers are sent as soon as the request is admitted, then a heartbeat after every period of
//! silence, so that proxies keep the connection. A stream that breaks ends with an error event and
//! an aborted connection: clients take a clean end for a complete answer.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::{Body, Frame};
use loquent_proto::headers::IGNORED_HEADER;
use tokio::time::{Instant, Sleep};

use loquent_serving::active_request::ActiveRequest;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::{EventSource, EventWriter, StreamStatus, write_record};
use loquent_serving::metrics::GaugeGuard;
use loquent_serving::records::{RecordContext, RecordWriter};

/// Maximum bytes gathered into one frame while more are ready: one TLS record, and enough that the
/// cost of one more system call is negligible.
const FRAME_BYTES: usize = 16 * 1024;
/// Error that tears the connection down because the stream broke.
#[derive(Debug, thiserror::Error)]
#[error("the stream broke off: {0}")]
pub struct BrokenStream(pub ApiError);

enum BodyPhase {
    /// Nothing has been sent yet; the first frame is ready.
    Opening(Vec<u8>),
    /// Between the first events and the end.
    Streaming,
    /// The last events were passed to the connection, which gets one chance to send them.
    Breaking(ApiError),
    /// The next poll tears the connection down.
    Broken(ApiError),
    /// Everything was sent.
    Done,
}

/// Body of a streamed answer.
pub struct SseBody<S> {
    source: S,
    phase: BodyPhase,
    heartbeat: Heartbeat,
    /// Buffer for events before they are sent, reused for each frame.
    events: Vec<u8>,
}

impl<S: EventSource> SseBody<S> {
    /// Streams `source`, with an event after each `heartbeat` of silence. Sends `preface` at once.
    pub fn new(source: S, preface: Vec<u8>, heartbeat: Duration) -> Self {
        let phase = BodyPhase::Opening(preface);
        Self { source, phase, heartbeat: Heartbeat::new(heartbeat), events: Vec::new() }
    }

    /// Polls for the next events, or a heartbeat in their place; `None` if the phase has changed
    /// and there is nothing to send.
    fn poll_stream(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.events.clear();
        let status = self.source.poll_events(context, &mut self.events);
        let is_open = matches!(status, StreamStatus::Open);
        match status {
            StreamStatus::Open => {}
            StreamStatus::Complete => self.phase = BodyPhase::Done,
            StreamStatus::Broken(error) => self.phase = BodyPhase::Breaking(error),
        }
        let frame = match self.events.is_empty() {
            false => Bytes::copy_from_slice(&self.events),
            true if is_open => {
                ready!(self.heartbeat.poll(context));
                self.source.heartbeat()
            }
            true => return Poll::Ready(None),
        };
        self.heartbeat.reset();
        Poll::Ready(Some(frame))
    }
}

impl<S: EventSource> Body for SseBody<S> {
    type Data = Bytes;
    type Error = BrokenStream;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenStream>>> {
        let this = &mut *self;
        loop {
            match &mut this.phase {
                BodyPhase::Opening(preface) => {
                    let preface = std::mem::take(preface);
                    this.phase = BodyPhase::Streaming;
                    if preface.is_empty() {
                        continue;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from(preface)))));
                }
                BodyPhase::Streaming => {
                    if let Some(frame) = ready!(this.poll_stream(context)) {
                        return Poll::Ready(Some(Ok(Frame::data(frame))));
                    }
                }
                BodyPhase::Breaking(error) => {
                    // The connection flushes what it has when the body is pending. An error
                    // returned now would discard the last events.
                    this.phase = BodyPhase::Broken(error.clone());
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                BodyPhase::Broken(error) => {
                    return Poll::Ready(Some(Err(BrokenStream(error.clone()))));
                }
                BodyPhase::Done => return Poll::Ready(None),
            }
        }
    }
}

/// An answer without a log: events that its reader misses are lost, so they have no ids.
pub struct DirectAnswer<W> {
    request: ActiveRequest,
    records: RecordWriter,
    events: W,
    _counted: GaugeGuard,
}

impl<W: EventWriter> DirectAnswer<W> {
    /// Creates the answer to `request` in the format of `events`, and the events that begin it.
    pub fn open(
        request: ActiveRequest,
        context: &RecordContext<'_>,
        mut events: W,
    ) -> (Self, Vec<u8>) {
        let mut preface = Vec::new();
        let records = RecordWriter::open(&request, context, &mut |delta| {
            events.write(None, &delta, &mut preface).expect("the first record opens the log");
        });
        let counted = request.count_stream();
        (Self { request, records, events, _counted: counted }, preface)
    }

    fn break_off(&mut self, error: ApiError, out: &mut Vec<u8>) -> StreamStatus {
        self.events.write_error(&error, out);
        StreamStatus::Broken(error)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> StreamStatus {
        if !self.request.is_complete() {
            return self.break_off(ApiError::internal("The engine has stopped."), out);
        }
        let mut written = Ok(());
        self.records.finish_stream(&self.request, &mut |delta| {
            written = written.and_then(|()| self.events.write(None, &delta, out));
        });
        match written {
            Ok(()) => StreamStatus::Complete,
            Err(error) => self.break_off(ApiError::internal(error.to_string()), out),
        }
    }
}

impl<W: EventWriter> EventSource for DirectAnswer<W> {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        while out.len() < FRAME_BYTES {
            let Poll::Ready(flush) = self.request.poll_flush(context) else {
                break;
            };
            let Some(flush) = flush else {
                return self.finish(out);
            };
            let error = flush.error();
            let mut written = Ok(());
            let Self { request, records, events, .. } = self;
            records.flush(flush, || request.usage(), &mut |delta| {
                written = written.and_then(|()| write_record(events, None, &delta, out));
            });
            // Only an upstream server's members can be unwritable.
            let unwritable = written.err().map(|error| ApiError::bad_gateway(error.to_string()));
            if let Some(error) = error.or(unwritable) {
                return self.break_off(error, out);
            }
        }
        StreamStatus::Open
    }

    fn heartbeat(&self) -> Bytes {
        self.events.heartbeat()
    }
}

/// Timer for the events sent while a stream is silent.
pub struct Heartbeat {
    period: Duration,
    silence: Pin<Box<Sleep>>,
    /// End of the timer.
    due: Instant,
    /// Waker of the task that the timer wakes.
    armed: Option<Waker>,
    last_frame: Instant,
    /// True if `last_frame` was just set, so that the clock need not be read again.
    fresh: bool,
}

impl Heartbeat {
    /// Creates a heartbeat after each `period` of silence.
    pub fn new(period: Duration) -> Self {
        let silence = Box::pin(tokio::time::sleep(period));
        let due = silence.deadline();
        Self { period, silence, due, armed: None, last_frame: Instant::now(), fresh: true }
    }

    /// Records that a frame was written.
    pub fn reset(&mut self) {
        self.last_frame = Instant::now();
        self.fresh = true;
    }

    /// Resolves when one is due.
    ///
    /// Polled between any two frames, and hardly ever due: the timer itself, whose registration
    /// takes a lock, is polled only when it is due or must wake another task.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
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
                return Poll::Ready(());
            }
        }
    }
}

/// Returns a response whose body is a stream of events.
pub fn event_stream(body: axum::body::Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Lists the request's parameters that had no effect in a header of `response`.
pub fn with_ignored(mut response: Response, ignored: &str) -> Response {
    if let Ok(ignored) = HeaderValue::from_str(ignored)
        && !ignored.is_empty()
    {
        response.headers_mut().insert(IGNORED_HEADER, ignored);
    }
    response
}
