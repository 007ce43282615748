//! The routes of Anthropic's API.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::Request as HttpRequest;
use serde_json::json;

use crate::api::request::Prompt;
use crate::app::App;
use crate::dialect::messages::events::MessageEvents;
use crate::dialect::messages::object::message;
use crate::dialect::messages::request::lower;
use crate::error::ApiError;
use crate::json_response::json_response;
use crate::prompt_threads::WorkClass;
use crate::routes::generation::{generate, parse};
use crate::sse::{event_stream, with_ignored};

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
        prompts.encode(prompt, true).map(|tokens| tokens.len())
    });
    Ok(json_response(&json!({"input_tokens": counted.await?})))
}
