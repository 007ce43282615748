//! Errors of the proxy itself, in OpenAI's format.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::json;

/// Returns the body of an error response.
pub(super) fn error_json(message: &str, code: &str) -> serde_json::Value {
    json!({ "error": { "message": message, "type": "server_error", "param": null, "code": code } })
}

/// Returns a response that refuses a local request.
pub(super) fn refuse(status: StatusCode, message: &str, code: &str) -> Response {
    let mut body = error_json(message, code);
    if status.is_client_error() {
        body["error"]["type"] = "invalid_request_error".into();
    }
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
