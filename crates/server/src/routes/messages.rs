//! The routes of Anthropic's API.

pub mod models;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::Request as HttpRequest;
use loquent_infer::vocab::Encode;
use serde_json::json;

use crate::app::App;
use crate::json_response::json_response;
use crate::routes::generation::{generate, parse};
use crate::sse::{event_stream, with_ignored};
use loquent_dialects::messages::events::MessageEvents;
use loquent_dialects::messages::object::message;
use loquent_dialects::messages::request::lower;
use loquent_serving::api::request::Prompt;
use loquent_serving::error::ApiError;
use loquent_serving::prompt_threads::WorkClass;

/// The routes, for clients whose key has been checked.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(create))
        .route("/v1/messages/count_tokens", post(count_tokens))
}

async fn create(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let generation = generate(&app, request, lower).await?;
    let ignored = anthropics_names(&generation.ignored);
    let response = match generation.streams {
        true => {
            let events = MessageEvents::new(generation.prompt_tokens(), generation.kept);
            event_stream(generation.stream(&app, events))
        }
        false => generation.full(&app, message).await?,
    };
    Ok(with_ignored(response, &ignored))
}

/// Returns a list of ignored parameters with the names that Anthropic's API has for them.
fn anthropics_names(ignored: &str) -> String {
    let theirs = ignored.split(", ").map(|name| match name {
        "reasoning_effort" => "output_config.effort",
        "thinking_token_budget" => "thinking.budget_tokens",
        name => name,
    });
    theirs.collect::<Vec<_>>().join(", ")
}

async fn count_tokens(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let mut request = parse(&app, request, lower).await?.request;
    let entry = app.models.find(request.model.as_deref())?;
    let service = entry.use_when_loaded().await?;
    if service.upstream().is_some() {
        let message = "The upstream server does not count tokens in this API. Ask it at /tokenize.";
        return Err(ApiError::not_offered(message));
    }
    let class = WorkClass::of_bytes(&request.identity, request.prompt_bytes());
    let prompt = request.prompts.pop();
    let counted = service.prompts().for_tokenize(class, move |prompts| {
        // Held as long as the prompt.
        let _charge = request.charge;
        let prompt = prompt.unwrap_or(Prompt::Tokens(Vec::new()));
        prompts.encode(prompt, Encode::PROMPT).map(|tokens| tokens.len())
    });
    Ok(json_response(&json!({"input_tokens": counted.await?})))
}
