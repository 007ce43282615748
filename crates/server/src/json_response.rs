//! JSON responses.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use serde_json::Value;

/// Returns a response with `value`.
pub fn json_response(value: &Value) -> Response {
    json_text(value.to_string())
}

/// Returns a response with JSON that is already written.
pub fn json_text(json: String) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], json).into_response()
}
