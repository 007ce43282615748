//! Endpoints for `loquent doctor --url`: a paced stream of events, whose arrival times show whether
//! a proxy or network buffers them, and a report whether the client's QUIC packets arrived.
//!
//! Both need a key if the server has keys, and neither reaches an upstream server.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use crate::app::App;
use crate::json_response::json_response;
use crate::sse::event_stream;
use loquent_serving::error::ApiError;
use loquent_serving::peer::PeerAddress;

/// Number of events of a stream, and the pause between two: long enough to tell a buffered stream
/// from a slow network, and short enough not to keep anyone waiting.
const EVENTS: u32 = 16;
const PAUSE: Duration = Duration::from_millis(100);
/// `Retry-After` in seconds while all places are taken.
const RETRY_S: u64 = 2;

/// Returns the routes, for requests whose key was already checked.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/probe/events", get(events)).route("/v1/probe/udp", get(udp))
}

async fn events(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let busy =
        || ApiError::overloaded("As many probes as the server takes are under way.", RETRY_S);
    let place = app.probe_places.take().ok_or_else(busy)?;
    let started = Instant::now();
    let body = PacedEvents {
        started,
        sent: 0,
        pause: Box::pin(tokio::time::sleep_until(started)),
        _place: place,
    };
    Ok(event_stream(Body::new(body)))
}

/// Returns the address that the server sees for the client, and the time since a QUIC handshake
/// from that address began.
async fn udp(
    State(app): State<Arc<App>>,
    peer: Option<Extension<PeerAddress>>,
    headers: HeaderMap,
) -> Response {
    let address =
        peer.map(|Extension(peer)| app.config.trusted_proxies.client_address(peer, &headers));
    let last = address.and_then(|address| app.links.arrivals.last(address));
    let ago = last.map(|at| app.clock.now().saturating_sub(at).as_secs_f64());
    json_response(&json!({ "address": address, "handshake_s_ago": ago }))
}

/// Events that each contain the time when they were written.
struct PacedEvents {
    started: Instant,
    sent: u32,
    pause: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for PacedEvents {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.sent == EVENTS {
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(context));
        let now = Instant::now();
        let at_ms = (now - self.started).as_secs_f64() * 1e3;
        let event = json!({ "n": self.sent, "of": EVENTS, "at_ms": at_ms });
        self.sent += 1;
        self.pause.as_mut().reset(now + PAUSE);
        let bytes = Bytes::from(format!("data: {event}\n\n"));
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::connection_limits::ProbePermits;

    #[tokio::test(start_paused = true)]
    async fn events_say_when_they_were_written() {
        let places = ProbePermits::default();
        let mut others: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        others.pop();
        let started = Instant::now();
        let body = PacedEvents {
            started,
            sent: 0,
            pause: Box::pin(tokio::time::sleep_until(started)),
            _place: places.take().unwrap(),
        };
        let text = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let events: Vec<_> = text.split_terminator("\n\n").collect();
        assert_eq!(events.len(), EVENTS as usize);
        assert_eq!(events[0], r#"data: {"n":0,"of":16,"at_ms":0.0}"#);
        assert_eq!(started.elapsed().as_millis() / 100, 15, "paced");
        assert!(places.take().is_some(), "the place is free again");
        drop(others);
    }
}
