//! Endpoints for `loquent doctor --url`: a paced stream of events, whose arrival times show whether
//! a proxy or network buffers them, and a report whether the client's QUIC packets arrived.
//!
//! Both need a key if the server has keys, and neither reaches an upstream server.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::app::App;
use crate::json_response::json_response;
use crate::paced_body::{Piece, paced_body};
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
    Ok(event_stream(paced_events(place)))
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

/// Returns events that each contain the time when they were written. The body holds `place`.
fn paced_events(place: OwnedSemaphorePermit) -> Body {
    let (started, mut sent) = (Instant::now(), 0);
    paced_body(PAUSE, move || {
        let _held = &place;
        let at_ms = started.elapsed().as_secs_f64() * 1e3;
        let event = json!({ "n": sent, "of": EVENTS, "at_ms": at_ms });
        sent += 1;
        let bytes = Bytes::from(format!("data: {event}\n\n"));
        if sent == EVENTS { Piece::Last(bytes) } else { Piece::More(bytes) }
    })
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
        let body = paced_events(places.take().unwrap());
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
