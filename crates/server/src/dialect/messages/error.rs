//! Errors in Anthropic's format.

use serde_json::{Value, json};

use crate::error::ApiError;

/// Returns the response body for `error`.
pub fn error_json(error: &ApiError) -> Value {
    let kind = match error.status() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.to_string()}})
}
