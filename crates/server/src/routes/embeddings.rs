//! `POST /v1/embeddings`, and the handling of embedding requests in any API.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::Request as HttpRequest;

use crate::app::App;
use crate::json_response::json_text;
use crate::service::embedding;
use crate::sse::with_ignored;
use loquent_serving::api::embeddings::Embedded;
use loquent_serving::api::embeddings::{EmbeddingRequest, number_bytes, response_json};
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::header_list;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;
use loquent_serving::memory::{MemoryCharge, SMALL_BYTES};

/// Returns the route of embeddings.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/embeddings", post(embeddings))
}

async fn embeddings(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let read = |fields: Fields| {
        let request = EmbeddingRequest::read(fields)?;
        let encoding = request.encoding;
        let write = move |model: &str, embedded: &Embedded| {
            response_json(model, &embedded.vectors, encoding, embedded.tokens)
        };
        Ok((request, write))
    };
    embed(&app, request, read).await
}

/// Embeds the inputs that `read` finds in the fields of a request. The closure that `read` also
/// returns writes the response from the model's name and the vectors.
///
/// # Errors
/// Those of the body, of `read`, and of [`embedding::embed`].
pub async fn embed<W: FnOnce(&str, &Embedded) -> String + Send + 'static>(
    app: &App,
    request: HttpRequest<Body>,
    read: impl FnOnce(Fields) -> Result<(EmbeddingRequest, W), ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    // Before the body is taken.
    app.models.check_embeds()?;
    app.models.check_room()?;
    let body = app.bodies.receive(&mut head, body).await?;
    let identity = head.extensions.get::<Identity>().cloned().unwrap_or_default();
    let (request, write) = body.parse(read).await?;
    let service = app.models.find(request.model.as_deref())?.use_when_loaded().await?;
    let capacity = embedding::capacity(&service)?;
    let (ignored, encoding) = (header_list(&request.unknown()), request.encoding);
    let width = request.dimensions.unwrap_or(capacity.width as usize).min(capacity.width as usize);
    let numbers = request.inputs.len() * width;
    let bytes = numbers * number_bytes(encoding);
    // The vectors and the response exist at the same time.
    let mut charge = MemoryCharge::of(&identity);
    app.bodies.memory().take(&mut charge, bytes + numbers * size_of::<f32>()).await?;
    let embedded = embedding::embed(&service, request, &identity).await?;
    let render = move || Ok(write(&service.model().name, &embedded));
    let json = app.bodies.workers().run_if(bytes > SMALL_BYTES, render).await?;
    Ok(with_ignored(json_text(json), &ignored))
}
