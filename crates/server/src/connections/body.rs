//! Bodies of requests and responses on a TCP connection, with their timing: a request's body must
//! arrive in time, and a response's body records whether it waits for the client or the server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Buf, Bytes};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::activity::{Activity, ExchangePhase};
use super::limits::{BodyPace, TcpLimits};
use loquent_serving::error::SlowBody;

/// Bytes of an unread body that are read after all, so that its connection can be kept.
const LARGEST_REST: usize = 64 * 1024;
/// Time that the rest of an unread body has to arrive. One round trip in most networks: a client
/// that sends a small body right after the head has sent it by then.
const REST_WAIT: Duration = Duration::from_millis(250);

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
    /// `None` only while it is dropped.
    body: Option<Incoming>,
    /// Receives the body if it is dropped before its end.
    unread: Option<oneshot::Sender<Incoming>>,
    exchange: Arc<Exchange>,
    pace: BodyPace,
    /// Timer for the deadline, created at the first wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    /// Returns the body of the request of `exchange`, whose head has just arrived, and what is
    /// left of it once it has been dropped.
    pub fn new(body: Incoming, exchange: Arc<Exchange>, limits: &TcpLimits) -> (Self, UnreadBody) {
        let (unread, rest) = oneshot::channel();
        let (body, unread, pace) = (Some(body), Some(unread), BodyPace::begin(limits));
        (Self { body, unread, exchange, pace, timer: None }, UnreadBody(rest))
    }

    /// Resolves when the body is overdue.
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let due: tokio::time::Instant = self.pace.due().into();
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
        let body = this.body.as_mut().expect("there until it is dropped");
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            ready!(this.poll_overdue(context));
            return Poll::Ready(Some(Err(axum::Error::new(SlowBody))));
        };
        let received = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        this.pace.note(received.map_or(0, Buf::remaining));
        if frame.is_none() {
            this.exchange.activity.received(this.exchange.number);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, |body| body.size_hint())
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.exchange.activity.received(self.exchange.number);
        if let (Some(body), Some(unread)) = (self.body.take(), self.unread.take())
            && !body.is_end_stream()
        {
            // Nobody receives it if the response is on its way: the connection ends after that.
            let _ = unread.send(body);
        }
    }
}

/// Rest of a request's body that was dropped before its end, as when the head alone is refused.
pub struct UnreadBody(oneshot::Receiver<Incoming>);

impl UnreadBody {
    /// Reads the rest, if there is one; returns whether the connection can have another request.
    ///
    /// An HTTP/1.1 server that answers early has to read the whole body or close the connection
    /// (RFC 9112, section 9.3). Small bodies are worth it: clients often send head and body in two
    /// packets. A body that waits for `100 Continue` never comes.
    pub async fn read(mut self, expects_continue: bool) -> bool {
        let Ok(body) = self.0.try_recv() else { return true };
        if expects_continue || body.size_hint().lower() > LARGEST_REST as u64 {
            return false;
        }
        tokio::time::timeout(REST_WAIT, read_rest(body)).await.unwrap_or(false)
    }
}

async fn read_rest(body: Incoming) -> bool {
    let mut rest = Limited::new(body, LARGEST_REST);
    while let Some(frame) = rest.frame().await {
        if frame.is_err() {
            return false;
        }
    }
    true
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
