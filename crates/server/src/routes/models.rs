//! The list of models, and loading and unloading by request: the routes of OpenAI's and Anthropic's
//! APIs, of llama-server and of LM Studio's API.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderMap, Request as HttpRequest};
use serde_json::json;

use crate::app::App;
use crate::json_response::json_response;
use crate::models::ModelEntry;
use crate::routes::messages::models as anthropic;
use loquent_dialects::messages::VERSION;
use loquent_serving::caller::Caller;
use loquent_serving::error::ApiError;

type Shared = State<Arc<App>>;

/// Returns the routes, which need a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/models/load", post(load))
        .route("/v1/models/unload", post(unload))
        .route("/api/v1/models/load", post(load_and_wait))
        .route("/api/v1/models/unload", post(unload_instance))
}

async fn models(State(app): Shared, headers: HeaderMap) -> Result<Response, ApiError> {
    app.models.first()?;
    if headers.contains_key(VERSION) {
        return Ok(json_response(&anthropic::models(&app.models)));
    }
    let cards: Vec<_> = app.models.entries().map(ModelEntry::card).collect();
    Ok(json_response(&json!({"object": "list", "data": cards})))
}

async fn model(
    State(app): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let entry = app.models.named(&id)?;
    if headers.contains_key(VERSION) {
        return Ok(json_response(&anthropic::model(entry)));
    }
    Ok(json_response(&entry.card()))
}

/// `POST /v1/models/load`: begins to load a model. Its entry in `/v1/models` shows the progress.
async fn load(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    let entry = asked(&app, request, "model").await?;
    entry.preload();
    Ok(json_response(&json!({"success": true})))
}

/// `POST /v1/models/unload`: unloads a model once its running answers have ended.
async fn unload(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    let_go(&asked(&app, request, "model").await?)?;
    Ok(json_response(&json!({"success": true})))
}

/// `POST /api/v1/models/load`: loads a model, and responds once it is in memory.
async fn load_and_wait(
    State(app): Shared,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let (entry, began) = (asked(&app, request, "model").await?, Instant::now());
    let used = entry.use_when_loaded().await?;
    let kind = if used.generates() { "llm" } else { "embedding" };
    Ok(json_response(&json!({
        "type": kind, "instance_id": entry.name(), "status": "loaded",
        "load_time_seconds": began.elapsed().as_secs_f64(),
    })))
}

/// `POST /api/v1/models/unload`.
async fn unload_instance(
    State(app): Shared,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let entry = asked(&app, request, "instance_id").await?;
    let_go(&entry)?;
    Ok(json_response(&json!({"instance_id": entry.name()})))
}

/// Returns the model named by the member `name` of a request's body.
///
/// # Errors
/// 403 for clients that may not load or unload models.
async fn asked(
    app: &App,
    request: HttpRequest<Body>,
    name: &'static str,
) -> Result<ModelEntry, ApiError> {
    let (mut head, body) = request.into_parts();
    Caller::of(&head).identity.check_manages("Loading and unloading a model")?;
    let body = app.bodies.receive(&mut head, body).await?;
    let id = body.parse(move |mut fields| fields.string(name)).await?;
    let missing = || ApiError::invalid_param(name, format!("'{name}' is required."));
    app.models.named(&id.ok_or_else(missing)?).cloned()
}

fn let_go(entry: &ModelEntry) -> Result<(), ApiError> {
    if !entry.is_kept() {
        let why = format!(
            "The model '{}' is always there: only one of several models, or one with \
             --model-idle-s, can be unloaded.",
            entry.name()
        );
        return Err(ApiError::invalid_param("model", why));
    }
    match entry.unload() {
        true => Ok(()),
        false => {
            let why = format!("The model '{}' is not loaded.", entry.name());
            Err(ApiError::invalid_param("model", why))
        }
    }
}
