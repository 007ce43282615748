//! Responses of JSON.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use serde_json::Value;

/// A response of `value`.
pub fn json_response(value: &Value) -> Response {
    json_text(value.to_string())
}

/// A response of JSON that has been written already.
pub fn json_text(json: String) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], json).into_response()
}
