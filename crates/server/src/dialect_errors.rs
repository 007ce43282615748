//! Errors in the format of the requested API. Middleware and routes refuse a request with an
//! [`ApiError`], which stays with the response; this module renders it in the API's format.

use axum::body::Body;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, Request, header};
use serde_json::Value;

use loquent_dialects::{messages, ollama};
use loquent_serving::error::ApiError;
use loquent_serving::request_log::REQUEST_ID_HEADER;

/// APIs with their own error format; all others use OpenAI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Messages,
    Ollama,
}

impl Dialect {
    fn of(request: &Request<Body>) -> Option<Self> {
        let is_below = |path: &str, folder: &str| {
            path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let path = request.uri().path();
        if is_below(path, "/v1/messages") || request.headers().contains_key(messages::VERSION) {
            return Some(Self::Messages);
        }
        // LM Studio's API is below /api/v1, and has OpenAI's errors.
        (is_below(path, "/api") && !is_below(path, "/api/v1")).then_some(Self::Ollama)
    }
}

/// Renders the errors of `request` in the format of its API.
pub async fn translate(request: Request<Body>, next: Next) -> Response {
    let dialect = Dialect::of(&request);
    let response = next.run(request).await;
    match dialect {
        None => response,
        Some(Dialect::Messages) => for_messages(response),
        Some(Dialect::Ollama) => with_error(response, ollama::error_json),
    }
}

fn for_messages(response: Response) -> Response {
    let Some(id) = response.headers().get(REQUEST_ID_HEADER).cloned() else { return response };
    let mut response = with_error(response, |error| {
        let mut json = messages::error_json(error);
        json["request_id"] = String::from_utf8_lossy(id.as_bytes()).into();
        json
    });
    response.headers_mut().insert(messages::REQUEST_ID, id);
    response
}

/// Replaces the body of `response` with its error rendered by `json`, if it has one.
fn with_error(mut response: Response, json: impl FnOnce(&ApiError) -> Value) -> Response {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        *response.body_mut() = Body::from(json(&error).to_string());
        let headers = response.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    response
}
