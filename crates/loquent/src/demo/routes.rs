//! `/v1/lab/live`: what the page of the laboratory needs to show the demonstration's link live.
//!
//! `GET /v1/lab/live` says where the two doors are; a server without them has no such route, which
//! is how the page knows. `POST /v1/lab/live/runs` prepares a run in some weather, `POST
//! /v1/lab/live/runs/{run}/begin` lets the weather begin, and `GET /v1/lab/live/events` tells, as
//! server-sent events, what happens to the packets.

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
use super::weather::Weather;

/// Longest body of a request, in bytes.
const MAX_BODY_BYTES: usize = 1024;
/// Pages that may watch the link at once.
const MAX_WATCHERS: usize = 8;
/// Packets of one event, so that a page that was slow gets its news in pieces.
const MAX_PACKETS_PER_EVENT: usize = 256;
/// How often packets are told.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// How far ahead the page is told of storms, in µs.
const STORMS_US: u64 = 180_000_000;

/// What the page is told of the demonstration before it runs.
#[derive(Debug, Clone)]
pub struct LiveOffer {
    /// The server's port.
    pub port: u16,
    /// The weather that the command line asks for.
    pub weather: Weather,
    /// The question of both columns.
    pub question: String,
    /// Longest answer, in tokens.
    pub max_tokens: u32,
    /// The speed of each answer.
    pub tokens_per_s: f64,
}

struct Live {
    offer: LiveOffer,
    network: Arc<LiveNetwork>,
    watchers: Arc<Semaphore>,
}

/// The routes of the live laboratory over `network`.
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
    let weather = match serde_json::from_slice::<Weather>(&body) {
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
    /// The sums that the page was told last.
    told: Option<[LaneCounts; 2]>,
    _place: OwnedSemaphorePermit,
}

/// The data of one event.
#[derive(Debug, Serialize)]
struct PacketsEvent {
    run: u64,
    /// See [`LanePacket::row`].
    packets: Vec<[f64; 5]>,
    /// Packets that this page was too slow for.
    missed: u64,
    /// Sums of both columns since the run began.
    counts: [LaneCounts; 2],
}

impl Watching {
    /// The next event, or a comment where nothing has happened, which shows when the page is gone.
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
    /// Adds a packet. One of a newer run replaces those before it.
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

/// A refusal in the form of the API's.
fn refuse(status: StatusCode, message: &str) -> Response {
    let mut response =
        reply(&json!({"error": {"message": message, "type": "invalid_request_error"}}));
    *response.status_mut() = status;
    response
}

/// What kind of network `kind` is, for people.
pub fn network_text(kind: NetworkKind) -> &'static str {
    match kind {
        NetworkKind::Kernel => "kernel TCP and QUIC over an emulated link",
        NetworkKind::Modelled => {
            "modelled: QUIC over a lossy relay, beside the simulator's TCP (root has the kernel's)"
        }
    }
}
