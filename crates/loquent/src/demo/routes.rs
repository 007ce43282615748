//! `/v1/lab/live`: the API with which the laboratory's page shows the demonstration's link live.
//!
//! `GET /v1/lab/live` returns the locations of the two doors; other servers lack this route, which
//! is how the page detects them. `POST /v1/lab/live/runs` prepares a run in some weather, `POST
//! /v1/lab/live/runs/{run}/begin` starts the weather, and `GET /v1/lab/live/events` reports the
//! fates of packets as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::network::{LiveNetwork, NetworkKind, door};
use super::news::{DemoLane, LaneCounts, LanePacket, LinkNews};
use crate::demo::network_conditions::NetworkConditions;

/// Maximum size of a request body, in bytes.
const MAX_BODY_BYTES: usize = 1024;
/// Maximum number of pages that watch the link at once.
const MAX_WATCHERS: usize = 8;
/// Maximum packets in one event, so that a slow page gets its news in pieces.
const MAX_PACKETS_PER_EVENT: usize = 256;
/// Interval between events with packets.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// Time for which storms are sent to the page in advance, in µs.
const STORMS_US: u64 = 180_000_000;

/// Description of the demonstration, sent to the page before a run.
#[derive(Debug, Clone)]
pub struct LiveOffer {
    /// Port of the server.
    pub port: u16,
    /// NetworkConditions from the command line.
    pub weather: NetworkConditions,
    /// Question of both columns.
    pub question: String,
    /// Maximum length of an answer, in tokens.
    pub max_tokens: u32,
    /// Speed of each answer, in tokens per second.
    pub tokens_per_s: f64,
}

struct Live {
    offer: LiveOffer,
    network: Arc<LiveNetwork>,
    watchers: Arc<Semaphore>,
}

/// Returns the routes of the live laboratory over `network`.
pub fn routes(offer: LiveOffer, network: Arc<LiveNetwork>) -> Router {
    let watchers = Arc::new(Semaphore::new(MAX_WATCHERS));
    Router::new()
        .route("/v1/lab/live", get(describe))
        .route("/v1/lab/live/runs", post(prepare))
        .route("/v1/lab/live/runs/{run}/begin", post(begin))
        .route("/v1/lab/live/events", get(events))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::new(Live { offer, network, watchers }))
}

async fn describe(State(live): State<Arc<Live>>) -> Response {
    let offer = &live.offer;
    let url = |lane| format!("http://{}/", door(lane, offer.port));
    reply(&json!({
        "network": live.network.kind(),
        "tcp_url": url(DemoLane::Tcp),
        "loquent_url": url(DemoLane::Loquent),
        "weather": offer.weather,
        "question": offer.question,
        "max_tokens": offer.max_tokens,
        "tokens_per_s": offer.tokens_per_s,
    }))
}

async fn prepare(State(live): State<Arc<Live>>, body: Bytes) -> Response {
    let weather = match serde_json::from_slice::<NetworkConditions>(&body) {
        Ok(weather) => weather,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match live.network.prepare(&weather) {
        Ok(run) => reply(&json!({"run": run, "storms_ms": weather.storms(STORMS_US)})),
        Err(message) => refuse(StatusCode::BAD_REQUEST, &message),
    }
}

async fn begin(State(live): State<Arc<Live>>, Path(run): Path<String>) -> Response {
    match run.parse().is_ok_and(|run| live.network.begin(run)) {
        true => reply(&json!({})),
        false => refuse(StatusCode::CONFLICT, "Another run has taken the link, or it has begun."),
    }
}

async fn events(State(live): State<Arc<Live>>) -> Response {
    let Ok(place) = live.watchers.clone().try_acquire_owned() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "Too many pages watch this link.");
    };
    let news = live.network.news().clone();
    let watching = Watching { packets: news.watch(), news, told: None, _place: place };
    let body = stream::unfold(watching, async |mut watching| {
        let event = watching.next_event().await?;
        Some((Ok::<_, Infallible>(event), watching))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(body)).into_response()
}

/// A page that watches the link.
struct Watching {
    packets: broadcast::Receiver<LanePacket>,
    news: LinkNews,
    /// Counts last sent to the page.
    told: Option<[LaneCounts; 2]>,
    _place: OwnedSemaphorePermit,
}

/// Data of one event.
#[derive(Debug, Serialize)]
struct PacketsEvent {
    run: u64,
    /// Packets as rows; see [`LanePacket::row`].
    packets: Vec<[f64; 5]>,
    /// Packets missed because the page was too slow.
    missed: u64,
    /// Counts of both columns since the run began.
    counts: [LaneCounts; 2],
}

impl Watching {
    /// Returns the next event, or a comment if nothing has happened, which detects that the page is
    /// gone.
    async fn next_event(&mut self) -> Option<String> {
        const QUIET: Duration = Duration::from_secs(10);
        if self.told.is_none() {
            // At once, so that the page knows that it misses nothing of a run that begins now.
            self.told = Some(self.news.counts());
            return Some(": the link is watched\n\n".into());
        }
        let first = match tokio::time::timeout(QUIET, self.packets.recv()).await {
            Err(_) => return Some(":\n\n".into()),
            Ok(Err(RecvError::Closed)) => return None,
            Ok(received) => received,
        };
        // What comes shortly after goes with it: an event for each packet would be many.
        tokio::time::sleep(TELL_EVERY).await;
        let mut event =
            PacketsEvent { run: 0, packets: Vec::new(), missed: 0, counts: self.news.counts() };
        // An error here says that this page was too slow; the next packet comes all the same.
        event.add(first.ok(), 0);
        while event.packets.len() < MAX_PACKETS_PER_EVENT {
            match self.packets.try_recv() {
                Ok(packet) => event.add(Some(packet), 0),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => event.add(None, missed),
                Err(_) => break,
            }
        }
        let data = serde_json::to_string(&event).expect("numbers become JSON");
        Some(format!("event: packets\ndata: {data}\n\n"))
    }
}

impl PacketsEvent {
    /// Adds a packet. A packet of a newer run replaces all earlier ones.
    fn add(&mut self, packet: Option<LanePacket>, missed: u64) {
        self.missed += missed;
        let Some(packet) = packet else { return };
        if packet.run != self.run {
            (self.run, self.packets) = (packet.run, Vec::new());
        }
        self.packets.push(packet.row());
    }
}

fn reply(value: &Value) -> Response {
    let json = HeaderValue::from_static("application/json");
    let headers = [
        (header::CONTENT_TYPE, json),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, value.to_string()).into_response()
}

/// Returns a refusal in the API's format.
fn refuse(status: StatusCode, message: &str) -> Response {
    let mut response =
        reply(&json!({"error": {"message": message, "type": "invalid_request_error"}}));
    *response.status_mut() = status;
    response
}

/// Returns a human-readable description of `kind`.
pub fn network_text(kind: NetworkKind) -> &'static str {
    match kind {
        NetworkKind::Kernel => "kernel TCP and QUIC over an emulated link",
        NetworkKind::Modelled => {
            "modelled: QUIC over a lossy relay, beside the simulator's TCP (root has the kernel's)"
        }
    }
}
