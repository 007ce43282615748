//! Downloads of models: the routes of LM Studio's API, and a way to stop one.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use http::Request as HttpRequest;
use serde_json::{Value, json};

use crate::app::App;
use crate::json_response::json_response;
use crate::models::{Download, DownloadEnd};
use loquent_serving::caller::Caller;
use loquent_serving::clock::{rfc3339, unix_time_s};
use loquent_serving::error::{ApiError, quoted};
use loquent_serving::identity::Identity;

type Shared = State<Arc<App>>;

/// Words for what a request asks, in errors.
pub const DOWNLOADING: &str = "Downloading a model";

/// Returns the routes, which need a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/models/download", get(list).post(download))
        .route("/api/v1/models/download/status/{id}", get(status).delete(stop))
}

/// `POST /api/v1/models/download`: begins to download a model, or continues what was broken off.
async fn download(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    Caller::of(&head).identity.check_manages(DOWNLOADING)?;
    let body = app.bodies.receive(&mut head, body).await?;
    let asked = body.parse(|mut fields| {
        let model = fields.string("model")?.ok_or_else(|| fields.error("model", "is required."))?;
        let quantization = fields.string("quantization")?.map(|tag| format!(":{tag}"));
        Ok(model + &quantization.unwrap_or_default())
    });
    let asked = asked.await?;
    Ok(json_response(&described(&*app.models.download(&asked)?)))
}

/// `GET /api/v1/models/download`: the latest downloads, the last one first.
async fn list(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
) -> Result<Response, ApiError> {
    let downloads = app.models.downloads()?;
    identity.check_manages(DOWNLOADING)?;
    let data: Vec<_> = downloads.latest().iter().map(|download| described(download)).collect();
    Ok(json_response(&json!({"data": data})))
}

/// `GET /api/v1/models/download/status/{id}`.
async fn status(
    State(app): Shared,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
) -> Result<Response, ApiError> {
    Ok(json_response(&described(&*managed(&app, &id, &identity)?)))
}

/// `DELETE /api/v1/models/download/status/{id}`: stops a download. What it has received is kept.
async fn stop(
    State(app): Shared,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
) -> Result<Response, ApiError> {
    let download = managed(&app, &id, &identity)?;
    download.progress.stop();
    Ok(json_response(&described(&download)))
}

/// Returns the download with the id `id`, for a client that may stop it.
///
/// # Errors
/// 403 for a client that may not manage the server, 404 for an unknown id.
fn managed(app: &App, id: &str, identity: &Identity) -> Result<Arc<Download>, ApiError> {
    identity.check_manages(DOWNLOADING)?;
    let found = app.models.downloads()?.find(id);
    let none = || ApiError::not_offered(format!("There is no download '{}'.", quoted(id)));
    found.ok_or_else(none)
}

/// Returns a download in LM Studio's form.
fn described(download: &Download) -> Value {
    let (done_bytes, total_bytes) = download.progress.bytes();
    let mut shown = json!({
        "job_id": download.id, "requested": download.asked, "downloaded_bytes": done_bytes,
        "total_size_bytes": total_bytes, "started_at": rfc3339(download.started_s),
    });
    match download.end() {
        None => {
            let rate = download.bytes_per_second();
            shown["status"] = "downloading".into();
            shown["bytes_per_second"] = rate.into();
            if rate > 0.0 && total_bytes > 0 {
                let rest_s = total_bytes.saturating_sub(done_bytes) as f64 / rate;
                let at_s = unix_time_s().saturating_add(rest_s as u64);
                shown["estimated_completion"] = rfc3339(at_s).into();
            }
        }
        Some(DownloadEnd::Completed { model, at_s }) => {
            shown["status"] = "completed".into();
            shown["model"] = model.as_str().into();
            shown["completed_at"] = rfc3339(*at_s).into();
        }
        // A later request for the model continues it.
        Some(DownloadEnd::Stopped) => shown["status"] = "paused".into(),
        Some(DownloadEnd::Failed { why }) => {
            shown["status"] = "failed".into();
            shown["error"] = why.as_str().into();
        }
    }
    shown
}
