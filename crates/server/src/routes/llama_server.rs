//! llama-server's own routes, which its tools and clients use: `/completion`, `/apply-template` and
//! `/slots`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::Request as HttpRequest;
use serde_json::{Value, json};

use crate::app::App;
use crate::json_response::{json_response, json_text};
use crate::routes::infill::complete;
use crate::routes::passthrough::other_method;
use crate::routes::tokenize::ModelRequest;
use crate::service::Service;
use loquent_dialects::infill::completion::lower;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::{Chat, Prompt};
use loquent_serving::error::ApiError;

type Shared = State<Arc<App>>;

/// Returns the routes, for clients whose key has been checked.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/completion", post(completion))
        .route("/apply-template", post(apply_template))
        // Its other methods may be an upstream server's.
        .route("/slots", get(slots).fallback(other_method))
}

async fn completion(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    complete(&app, request, lower).await
}

/// `POST /apply-template`: the prompt that a conversation becomes.
async fn apply_template(
    State(app): Shared,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| Ok((Chat::parse(fields)?, fields.charge()));
    let ModelRequest { service, class, asked } = ModelRequest::read(&app, request, read).await?;
    let (mut chat, charge) = asked;
    check_engine(&service)?;
    let prompt = service.prompts().for_tokenize(class, move |prompts| {
        // Held as long as the conversation.
        let _charge = charge;
        prompts.model().give_reasoning(&mut chat);
        prompts.render(Prompt::Chat(Box::new(chat)))
    });
    Ok(json_text(json!({"prompt": prompt.await?}).to_string()))
}

/// `GET /slots`: how many completions are computed. Their texts are their clients' alone.
///
/// # Errors
/// 503 while the model loads, 404 with an upstream server.
async fn slots(State(app): Shared) -> Result<Response, ApiError> {
    let service = app.models.first()?.use_when_loaded().await?;
    let (slots, busy) = (check_engine(&service)?, service.in_flight());
    let context = service.model().context_tokens;
    let slot = |id: usize| json!({"id": id, "n_ctx": context, "is_processing": id < busy});
    Ok(json_response(&(0..slots).map(slot).collect::<Vec<Value>>().into()))
}

/// Returns the number of completions that the engine computes at once.
///
/// # Errors
/// 404 with an upstream server, whose properties are unknown here.
fn check_engine(service: &Service) -> Result<usize, ApiError> {
    service.slots().ok_or_else(|| {
        let message = "An upstream server answers, which has such routes itself. Ask it, or allow \
                       the route with --upstream-route.";
        ApiError::not_offered(message)
    })
}
