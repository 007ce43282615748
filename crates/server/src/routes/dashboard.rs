//! `GET /v1/dashboard/events`, for clients that may see the whole server's activity.

pub mod gather;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};

use crate::app::App;
use crate::dashboard::reader::DashboardEvents;
use crate::sse::{SseBody, event_stream};
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;

/// `Retry-After` in seconds while all places are taken.
const FULL_RETRY_S: u64 = 10;

/// Returns the dashboard's routes, for requests whose client has been identified.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/dashboard/events", get(events))
}

async fn events(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
) -> Result<Response, ApiError> {
    if !identity.may_watch() {
        let message = "The dashboard is for API keys with 'admin = true' in the server's file of \
                       keys (--api-key-file).";
        return Err(ApiError::needs_admin(message));
    }
    let full =
        || ApiError::overloaded("The dashboard has as many readers as it takes.", FULL_RETRY_S);
    let seat = app.dashboard.sit_down().ok_or_else(full)?;
    let (events, opening) = DashboardEvents::new(seat);
    Ok(event_stream(Body::new(SseBody::new(events, opening, app.config.heartbeat))))
}
