//! One request on one connection: the connection it was sent on, and the bytes read from that
//! connection before.
//!
//! The pool does not reveal the connection of a request before it is sent. hyper asks the request's
//! body for its size right before it writes the head, in the task that also reads the response. The
//! connection's counters are noted at that moment, so every byte read later belongs to the
//! response.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use tokio::time::Instant;

use crate::metered::{ReadCounters, WireCounts};

/// Maximum time from a request to the failure that a stale connection explains: the server's
/// system answers the first byte with a reset.
const STALE_WITHIN: Duration = Duration::from_secs(1);

/// State of one request's connection.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    connection: OnceLock<CaptureConnection>,
    begun: Mutex<Option<Begun>>,
}

/// Connection of a request, with its counters at the start of the request.
#[derive(Debug, Clone)]
struct Begun {
    counters: Arc<ReadCounters>,
    before: WireCounts,
    at: Instant,
}

impl Exchange {
    /// Attaches a new exchange to `request`.
    pub(crate) fn attach(request: Request<Bytes>) -> (Request<RequestBody>, Arc<Self>) {
        let exchange = Arc::new(Self::default());
        let body = |bytes| RequestBody { bytes: Full::new(bytes), exchange: exchange.clone() };
        let mut request = request.map(body);
        let _ = exchange.connection.set(capture_connection(&mut request));
        (request, exchange)
    }

    /// Wire cost of the response so far.
    pub(crate) fn wire(&self) -> WireCounts {
        let Some(Begun { counters, before, .. }) = self.begun().clone() else {
            return WireCounts::default();
        };
        let now = counters.counts();
        WireCounts { bytes: now.bytes - before.bytes, reads: now.reads - before.reads }
    }

    /// Returns true if the request, which has just failed, may be sent again: its connection had
    /// served a request before, no byte of a response arrived, and the failure came at once. Then
    /// the server has most likely closed an idle connection without seeing the request.
    pub(crate) fn may_be_sent_again(&self) -> bool {
        self.begun().as_ref().is_some_and(|begun| {
            begun.before.bytes > 0
                && begun.counters.counts().bytes == begun.before.bytes
                && begun.at.elapsed() < STALE_WITHIN
        })
    }

    fn begun(&self) -> MutexGuard<'_, Option<Begun>> {
        // Each holder makes one assignment, which a panic cannot cut in half.
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_begin(&self) {
        let Some(counters) = self.counters() else { return };
        let mut begun = self.begun();
        // hyper may ask again while it writes. Only another connection is a new beginning: the pool
        // retries by itself if a connection is closed before the request was written.
        let is_same = begun.as_ref().is_some_and(|begun| Arc::ptr_eq(&begun.counters, &counters));
        if !is_same {
            let before = counters.counts();
            *begun = Some(Begun { counters, before, at: Instant::now() });
        }
    }

    fn counters(&self) -> Option<Arc<ReadCounters>> {
        let connected = self.connection.get()?.connection_metadata();
        let mut extras = Extensions::new();
        connected.as_ref()?.get_extras(&mut extras);
        extras.remove()
    }
}

/// Request body that notes when the request begins.
#[derive(Debug)]
pub(crate) struct RequestBody {
    bytes: Full<Bytes>,
    exchange: Arc<Exchange>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.bytes).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.note_begin();
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}
