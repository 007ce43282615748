//! The route of llama-server's `/infill`, and the answers that its `/completion` has too.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::Request as HttpRequest;

use crate::app::App;
use crate::routes::generation::generate;
use crate::sse::{event_stream, with_ignored};
use loquent_dialects::infill::events::{InfillEvents, whole};
use loquent_dialects::infill::request::lower;
use loquent_dialects::lowered::Lowered;
use loquent_serving::api::fields::Fields;
use loquent_serving::error::ApiError;

/// The route, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/infill", post(infill))
}

async fn infill(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    complete(&app, request, lower).await
}

/// Answers a completion in llama-server's own form, which `lower` translates.
///
/// # Errors
/// Those of [`generate`] and of the answer.
pub async fn complete(
    app: &Arc<App>,
    request: HttpRequest<Body>,
    lower: fn(Fields) -> Result<Lowered<()>, ApiError>,
) -> Result<Response, ApiError> {
    let generation = generate(app, request, lower).await?;
    let ignored = generation.ignored.clone();
    let response = match generation.streams {
        true => {
            let events = InfillEvents::new(app.clock, generation.arrived);
            event_stream(generation.stream(app, events))
        }
        false => generation.full(app, |answer, ()| whole(answer)).await?,
    };
    Ok(with_ignored(response, &ignored))
}
