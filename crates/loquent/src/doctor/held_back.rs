//! Checks whether something on the path to a server holds events back: a proxy that buffers a
//! response makes every answer appear at once, at its end.
//!
//! The server's probe writes events at a known pace, each with the time at which it was written.
//! The delay of an event beyond the fastest one is the time for which it was held; the clocks need
//! not agree.

use std::time::{Duration, Instant};

use loquent_openai::HttpError;
use loquent_openai::http::{HttpClient, HttpResponse, json_request, refusal};
use loquent_proto::sse::Parser;
use serde::Deserialize;

use super::diagnosis::Diagnosis;

const CHECK: &str = "streaming";
const PATH: &str = "/v1/probe/events";
/// Time limit for the whole probe; unhindered it takes 1.5 s.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
/// Maximum bytes of one event, and of all events.
const MAX_EVENT_BYTES: usize = 4096;
const MAX_BYTES: usize = 256 << 10;
/// Noticeable delay in milliseconds. One lost packet on a long path causes less.
const NOTABLE_MS: f64 = 500.0;

/// One event of the probe.
#[derive(Debug, Clone, Copy)]
struct ProbeEvent {
    /// Time at which the server wrote it, in milliseconds since its first event.
    sent_ms: f64,
    /// Time of arrival, in milliseconds since the request.
    came_ms: f64,
}

/// Flow of the events on their path.
#[derive(Debug, Clone, Copy, PartialEq)]
enum EventFlow {
    /// Events arrived as written; `latest_ms` is the maximum delay.
    Free { latest_ms: f64 },
    /// Some were held back by up to `latest_ms`, and arrived together with later ones.
    InBursts { latest_ms: f64 },
    /// The first arrived when the last was written, or later.
    HeldToTheEnd { latest_ms: f64 },
}

impl EventFlow {
    /// Classifies the flow; returns `None` if there are too few events.
    fn of(events: &[ProbeEvent]) -> Option<Self> {
        // By the writer's clock: a stream that was held arrives in no time at all.
        let (first, last) = (events.first()?, events.last()?);
        let span = last.sent_ms - first.sent_ms;
        // The clocks' difference is in every delay alike, and gone once the least is taken off.
        let delay = |event: &ProbeEvent| event.came_ms - event.sent_ms;
        let least = events.iter().map(delay).fold(f64::INFINITY, f64::min);
        let latest_ms = events.iter().map(delay).fold(f64::NEG_INFINITY, f64::max) - least;
        if !(span >= NOTABLE_MS && latest_ms.is_finite()) {
            return None;
        }
        Some(match delay(first) - least {
            // The last ones always come soon after they were written, whoever holds them.
            held if held >= 0.6 * span => Self::HeldToTheEnd { latest_ms },
            _ if latest_ms >= NOTABLE_MS => Self::InBursts { latest_ms },
            _ => Self::Free { latest_ms },
        })
    }
}

/// Diagnoses the path of the server's events.
pub(super) async fn diagnose(http: &HttpClient) -> Diagnosis {
    let (mut proxy, mut seen) = (None, None);
    // A stall of the network can look like a proxy once, and hardly twice.
    for _ in 0..2 {
        let probed = tokio::time::timeout(PROBE_LIMIT, probe(http, &mut proxy)).await;
        let events = match probed {
            Ok(Ok(Some(events))) => events,
            Ok(Ok(None)) => return compressed(proxy.as_deref()),
            Ok(Err(error)) => return unprobed(&error),
            Err(_) => {
                let what = format!("a stream of 1.5 s did not end within {PROBE_LIMIT:?}");
                return Diagnosis::failure(CHECK, what, advice(proxy.as_deref()));
            }
        };
        seen = EventFlow::of(&events);
        if matches!(seen, Some(EventFlow::Free { .. })) {
            break;
        }
    }
    judge(seen, proxy.as_deref())
}

fn judge(seen: Option<EventFlow>, proxy: Option<&str>) -> Diagnosis {
    let by = proxy.map(|name| format!(" (it answers as {name})")).unwrap_or_default();
    match seen {
        None => Diagnosis::skipped(CHECK, "the stream was too short to tell"),
        Some(EventFlow::Free { latest_ms }) => {
            let what = format!("events arrive as they are written, at most {latest_ms:.0} ms late");
            Diagnosis::fine(CHECK, what)
        }
        Some(EventFlow::InBursts { latest_ms }) => Diagnosis::warning(
            CHECK,
            format!("events are held back for up to {latest_ms:.0} ms{by}: answers come in bursts"),
            format!("the network stalls, or a proxy collects. {}", advice(proxy)),
        ),
        Some(EventFlow::HeldToTheEnd { latest_ms }) => Diagnosis::failure(
            CHECK,
            format!(
                "a proxy holds the whole stream back{by}: its first event came {latest_ms:.0} ms \
                 late, with the last"
            ),
            advice(proxy),
        ),
    }
}

fn compressed(proxy: Option<&str>) -> Diagnosis {
    let by = proxy.map(|name| format!(" (it answers as {name})")).unwrap_or_default();
    let what = format!("a proxy compresses event streams{by}, and collects them for that");
    Diagnosis::warning(CHECK, what, advice(proxy))
}

/// Returns the setting for a proxy, that of the detected one first.
fn advice(proxy: Option<&str>) -> String {
    let name = proxy.unwrap_or_default().to_ascii_lowercase();
    let known = [
        ("nginx", "nginx: proxy_buffering off; and no proxy_ignore_headers X-Accel-Buffering"),
        (
            "caddy",
            "Caddy: flush_interval -1 in reverse_proxy, and encode without text/event-stream",
        ),
        ("apache", "Apache: ProxyPass … flushpackets=on, and no mod_deflate for text/event-stream"),
    ];
    match known.iter().find(|(word, _)| name.contains(word)) {
        Some((_, advice)) => (*advice).to_owned(),
        None => format!(
            "let no proxy, virus scanner or compression collect text/event-stream ({})",
            known.map(|(_, advice)| advice).join("; ")
        ),
    }
}

fn unprobed(error: &HttpError) -> Diagnosis {
    match error {
        HttpError::Refused { status: 404 | 405 | 501, .. } => {
            Diagnosis::skipped(CHECK, "the server has no probe: it is older, or no Loquent server")
        }
        HttpError::Refused { status: 401 | 403, .. } => {
            Diagnosis::skipped(CHECK, "not checked without a valid API key")
        }
        HttpError::Broken { .. } => Diagnosis::failure(
            CHECK,
            format!("the stream broke off: {error}"),
            "something on the way cuts streams; raise its time limits for responses",
        ),
        other => Diagnosis::skipped(CHECK, format!("not checked: {other}")),
    }
}

/// Reads the probe's events; returns `None` if something compresses them. Stores the name of any
/// intermediary in `proxy`.
async fn probe(
    http: &HttpClient,
    proxy: &mut Option<String>,
) -> Result<Option<Vec<ProbeEvent>>, HttpError> {
    let started = Instant::now();
    let mut request = json_request(http::Method::GET, PATH, bytes::Bytes::new())?;
    // What browsers send; a proxy that compresses events collects them too.
    let encodings = http::HeaderValue::from_static("gzip");
    request.headers_mut().insert(http::header::ACCEPT_ENCODING, encodings);
    let response = http.send(request).await?;
    *proxy = intermediary(&response);
    if response.status().as_u16() != 200 {
        return Err(refusal(response).await);
    }
    if response.headers().contains_key(http::header::CONTENT_ENCODING) {
        return Ok(None);
    }
    read(response, started).await.map(Some)
}

/// Returns the name of an intermediary, if it identifies itself.
pub(super) fn intermediary(response: &HttpResponse) -> Option<String> {
    let headers = response.headers();
    let text =
        |name: &str| headers.get(name)?.to_str().ok().map(|text| text.chars().take(60).collect());
    text("via").or_else(|| text("server"))
}

/// # Errors
/// A broken connection.
async fn read(response: HttpResponse, started: Instant) -> Result<Vec<ProbeEvent>, HttpError> {
    #[derive(Deserialize)]
    struct Raw {
        at_ms: f64,
    }
    let mut body = response.into_body();
    let (mut parser, mut events, mut bytes) = (Parser::new(MAX_EVENT_BYTES), Vec::new(), 0);
    while let Some(piece) = body.piece().await? {
        bytes += piece.len();
        if bytes > MAX_BYTES {
            return Err(HttpError::TooLarge { limit_bytes: MAX_BYTES });
        }
        let came_ms = started.elapsed().as_secs_f64() * 1e3;
        let parsed = parser.push(&piece, |event| {
            if let Ok(raw) = serde_json::from_slice::<Raw>(event.data) {
                events.push(ProbeEvent { sent_ms: raw.at_ms, came_ms });
            }
        });
        if parsed.is_err() {
            break;
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::super::diagnosis::Severity;
    use super::*;

    /// Returns the flow of sixteen events at a pace of 100 ms whose arrival times are given by
    /// `way`.
    fn flow(way: impl Fn(f64) -> f64) -> Option<EventFlow> {
        let sent = (0..16).map(|n| f64::from(n) * 100.0);
        let events: Vec<_> =
            sent.map(|sent_ms| ProbeEvent { sent_ms, came_ms: way(sent_ms) }).collect();
        EventFlow::of(&events)
    }

    #[test]
    fn a_long_way_is_no_proxy() {
        assert_eq!(flow(|sent| sent + 900.0), Some(EventFlow::Free { latest_ms: 0.0 }));
        // Two lost packets hold three events up.
        let lossy = flow(|sent| if (300.0..600.0).contains(&sent) { 650.0 } else { sent });
        assert_eq!(lossy, Some(EventFlow::Free { latest_ms: 350.0 }));
    }

    #[test]
    fn what_holds_events_back_is_found() {
        let held = flow(|_| 1600.0);
        assert_eq!(held, Some(EventFlow::HeldToTheEnd { latest_ms: 1500.0 }));
        assert_eq!(judge(held, Some("nginx/1.22")).severity, Severity::Failure);
        assert!(judge(held, Some("nginx/1.22")).advice.unwrap().starts_with("nginx"));
        let bursts = flow(|sent| (sent / 700.0).ceil() * 700.0);
        assert!(matches!(bursts, Some(EventFlow::InBursts { .. })), "{bursts:?}");
        assert_eq!(judge(bursts, None).severity, Severity::Warning);
    }

    #[test]
    fn hostile_times_tell_nothing() {
        assert_eq!(EventFlow::of(&[]), None);
        let event = |sent_ms| ProbeEvent { sent_ms, came_ms: 1.0 };
        for sent in [[0.0, f64::NAN], [0.0, f64::INFINITY], [5.0, 5.0], [9e9, 0.0]] {
            assert_eq!(EventFlow::of(&sent.map(event)), None, "{sent:?}");
        }
    }
}
