//! The laboratory's route: streams the simulator's events of one run as lines of JSON, for the page
//! `/lab`.
//!
//! A run is computed on a blocking thread and never waits for its reader: its output is bounded, so
//! that all of it fits into memory. A run holds its permit until its last byte is sent.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use http::header;
use loquent_server::ApiError;
use loquent_sim::lab::{self, LabSettings, SettingFault, SettingRange};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Maximum concurrent runs, each with at most a few megabytes that its reader has not taken. Chosen
/// by hand: a run takes a fraction of a second, and other requests need the processor more.
const MAX_RUNS: usize = 4;
/// `Retry-After` while all permits are taken, in seconds.
const RETRY_S: u64 = 1;

/// Permits for runs.
#[derive(Debug, Clone)]
struct RunPermits(Arc<Semaphore>);

/// Returns the laboratory's routes.
pub(crate) fn routes() -> Router {
    let places = RunPermits(Arc::new(Semaphore::new(MAX_RUNS)));
    Router::new().route("/v1/lab/run", get(run)).with_state(places)
}

async fn run(
    State(places): State<RunPermits>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let settings = settings(&query.unwrap_or_default())?;
    let busy = || ApiError::overloaded("The laboratory has enough runs at once.", RETRY_S);
    let place = places.0.try_acquire_owned().map_err(|_| busy())?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        // Whoever asks again after an update of the server should see its simulator.
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, start(settings, place)).into_response())
}

/// Parses the settings of a query; missing ones use the default.
fn settings(query: &str) -> Result<LabSettings, ApiError> {
    let mut settings = LabSettings::default();
    let mut seen = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if seen.contains(&name) {
            return Err(ApiError::invalid_param(name, "A setting may be given once."));
        }
        settings.set(&name, &value).map_err(|fault| {
            let hint = match fault {
                SettingFault::Unknown => {
                    let known = SettingRange::ALL.map(|range| range.name).join(", ");
                    format!("{fault} There are {known}.")
                }
                SettingFault::OutOfRange(_) => fault.to_string(),
            };
            ApiError::invalid_param(name.clone(), hint)
        })?;
        seen.push(name);
    }
    Ok(settings)
}

/// Starts a run and returns its body, which ends with the run.
fn start(settings: LabSettings, place: OwnedSemaphorePermit) -> Body {
    let place = Arc::new(place);
    let (lines, told) = mpsc::unbounded_channel();
    let of_work = place.clone();
    tokio::task::spawn_blocking(move || {
        lab::run(&settings, &mut |chunk| match lines.send(chunk) {
            Ok(()) => ControlFlow::Continue(()),
            // The reader is gone.
            Err(_) => ControlFlow::Break(()),
        });
        drop(of_work);
    });
    let next = async |(mut told, place): (mpsc::UnboundedReceiver<Vec<u8>>, _)| {
        let chunk = Bytes::from(told.recv().await?);
        Some((Ok::<_, std::convert::Infallible>(chunk), (told, place)))
    };
    Body::from_stream(stream::unfold((told, place), next))
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use http::{Request, StatusCode};
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;

    const MOST_BYTES: usize = 16 << 20;

    async fn ask(routes: &Router, query: &str) -> Response {
        let request = Request::get(format!("/v1/lab/run?{query}")).body(Body::empty()).unwrap();
        routes.clone().oneshot(request).await.unwrap()
    }

    async fn body(response: Response) -> Bytes {
        to_bytes(response.into_body(), MOST_BYTES).await.unwrap()
    }

    #[tokio::test]
    async fn the_same_query_gives_the_same_lines() {
        let routes = routes();
        let query = "rtt_ms=100&loss_percent=20&burst_ms=300&tokens_per_s=30&tokens=60&seed=5";
        let first = body(ask(&routes, query).await).await;
        assert_eq!(first, body(ask(&routes, query).await).await);
        assert_ne!(first, body(ask(&routes, &query.replace("seed=5", "seed=6")).await).await);
        let run: Value = serde_json::from_slice(first.split(|it| *it == b'\n').next().unwrap())
            .expect("the first line is JSON");
        assert_eq!((&run["kind"], &run["settings"]["seed"]), (&"run".into(), &5.into()));
        let names = run["lanes"].as_array().unwrap().iter().map(|lane| &lane["scheme"]);
        assert_eq!(names.collect::<Vec<_>>(), ["tcp", "duplication", "eloquent", "loquent"]);
    }

    #[tokio::test]
    async fn malformed_settings_are_refused_by_name() {
        for (query, named) in [
            ("rtt_ms=-1", "rtt_ms"),
            ("rtt_ms=1e99", "rtt_ms"),
            ("rtt_ms=NaN", "rtt_ms"),
            ("rtt_ms=", "rtt_ms"),
            ("tokens=20.5", "tokens"),
            ("tokens=1000000", "tokens"),
            ("seed=1&seed=2", "seed"),
            ("sessions=9", "sessions"),
            ("loss_percent=99", "loss_percent"),
        ] {
            let response = ask(&routes(), query).await;
            assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{query}");
            let error: Value = serde_json::from_slice(&body(response).await).unwrap();
            assert_eq!(error["error"]["param"], named, "{query}");
        }
    }

    #[tokio::test]
    async fn a_run_has_its_place_until_it_is_read_or_given_up() {
        let routes = routes();
        let mut unread = Vec::new();
        for _ in 0..MAX_RUNS {
            let response = ask(&routes, "").await;
            assert_eq!(response.status(), StatusCode::OK);
            unread.push(response);
        }
        let refused = ask(&routes, "").await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
        for response in unread {
            body(response).await;
        }
        // The work gives its half of a place back just after its last line.
        while ask(&routes, "").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    }
}
