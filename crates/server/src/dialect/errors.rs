//! Errors in the words of the API that was asked. Whatever refuses a request, on its way or at its
//! route, says so by an [`ApiError`], which stays with the response; here it is written anew.

use axum::body::Body;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, Request, header};
use serde_json::Value;

use super::{messages, ollama};
use crate::error::ApiError;
use crate::request_log::REQUEST_ID_HEADER;

/// The APIs that have errors of their own; all others have OpenAI's.
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
        is_below(path, "/api").then_some(Self::Ollama)
    }
}

/// Writes the errors of `request` in the words of its API.
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

/// `response` with the error in it, if there is one, as `json`.
fn with_error(mut response: Response, json: impl FnOnce(&ApiError) -> Value) -> Response {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        *response.body_mut() = Body::from(json(&error).to_string());
        let headers = response.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    response
}
