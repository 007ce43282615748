//! Bodies of requests and responses on a TCP connection, with their timing: a request's body must
//! arrive in time, and a response's body records whether it waits for the client or the server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::activity::{Activity, ExchangePhase};
use super::limits::TcpLimits;
use loquent_serving::error::SlowBody;

/// One request and its response on a connection; ends when dropped.
pub struct Exchange {
    activity: Arc<Activity>,
    number: usize,
}

impl Exchange {
    /// Begins an exchange when a request's head has arrived.
    pub fn begin(activity: &Arc<Activity>) -> Arc<Self> {
        Arc::new(Self { activity: activity.clone(), number: activity.begin() })
    }

    fn note(&self, phase: ExchangePhase) {
        self.activity.note(self.number, phase);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.activity.end(self.number, Instant::now());
    }
}

/// A request's body, which fails if it arrives too slowly.
pub struct RequestBody {
    body: Incoming,
    exchange: Arc<Exchange>,
    /// Deadline for the end of the body; received bytes extend it, up to `longest_wait` from now.
    due: Instant,
    longest_wait: Duration,
    bytes_per_s: u64,
    /// Timer for the deadline, created at the first wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    /// Returns the body of the request of `exchange`, whose head has just arrived.
    pub fn new(body: Incoming, exchange: Arc<Exchange>, limits: &TcpLimits) -> Self {
        let longest_wait = limits.request_timeout;
        let (due, bytes_per_s) = (Instant::now() + longest_wait, limits.body_bytes_per_s.max(1));
        Self { body, exchange, due, longest_wait, bytes_per_s, timer: None }
    }

    /// Resolves when the body is overdue.
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let due: tokio::time::Instant = self.due.into();
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(context)
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            ready!(this.poll_overdue(context));
            return Poll::Ready(Some(Err(axum::Error::new(SlowBody))));
        };
        let received = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let bytes = received.map_or(0, Buf::remaining) as u64;
        // What came fast earns no long silence: it is held in memory meanwhile.
        let earned = Duration::from_micros(bytes.saturating_mul(1_000_000) / this.bytes_per_s);
        this.due = (this.due + earned).min(Instant::now() + this.longest_wait);
        if frame.is_none() {
            this.exchange.activity.received(this.exchange.number);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.exchange.activity.received(self.exchange.number);
    }
}

/// A response's body, which records whether it waits for the client or the server.
pub struct ResponseBody {
    body: Body,
    exchange: Arc<Exchange>,
}

impl ResponseBody {
    /// Returns the body of the response of `exchange`.
    pub fn new(body: Body, exchange: Arc<Exchange>) -> Self {
        exchange.note(ExchangePhase::Answering);
        Self { body, exchange }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let outcome = Pin::new(&mut self.body).poll_frame(context);
        // It is polled when the piece before has left for the client.
        self.exchange.note(match outcome {
            Poll::Pending => ExchangePhase::Answering,
            Poll::Ready(_) => ExchangePhase::Sending { since: Instant::now() },
        });
        outcome
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
