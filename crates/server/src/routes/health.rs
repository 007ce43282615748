//! The routes of the server's own state: health, readiness and metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, header};
use serde_json::json;

use crate::app::App;
use crate::json_response::json_response;
use crate::models::ModelEntry;
use crate::routes::passthrough::sole_upstream;
use loquent_serving::error::ApiError;

type Shared = State<Arc<App>>;

/// Returns the routes, which are open to everybody.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/live", get(live))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
}

/// Answers 200 unless the engine has failed for good: supervisors restart a process that is not
/// alive, and one that still loads its model is.
async fn live(State(app): Shared) -> Result<Response, ApiError> {
    app.alive()?;
    Ok(json_response(&json!({"status": "alive"})))
}

async fn health(State(app): Shared) -> Result<Response, ApiError> {
    app.alive()?;
    // 503 while the model loads, as llama-server has it.
    app.models.first()?;
    let mut health = json!({"status": "ok"});
    if app.store.shared().is_some() {
        // Not a failure: answers go on without it, and a restart would not bring it back.
        health["store"] = json!(if app.store.outage().is_some() { "away" } else { "ok" });
    }
    if let Some(why) = app.service().and_then(|service| service.health().outage()) {
        // The process is of use nevertheless: its answers go on when the engine is back.
        health["engine"] = json!({"status": "lost", "reason": why});
    }
    Ok(json_response(&health))
}

async fn ready(State(app): Shared) -> Result<Response, ApiError> {
    app.ready()?;
    app.models.check_servers()?;
    let mut model = app.models.first()?.name().to_owned();
    let mut id = Some(model.clone());
    if let Some(upstream) = sole_upstream(&app) {
        upstream.check_ready().await?;
        // Only a name that the upstream has told can be asked for.
        id = upstream.known_model().await;
        model = id.clone().unwrap_or(model);
    }
    Ok(json_response(&json!({"status": "ready", "model": model, "model_id": id})))
}

async fn metrics(State(app): Shared) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4");
    let model = app.models.first().map(ModelEntry::name).unwrap_or_default();
    let text = app.metrics.render_as(app.config.metrics_names, model);
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}
