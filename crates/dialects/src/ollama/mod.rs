//! Ollama's API, for desktop apps that support no other: `/api/chat`, `/api/generate`, `/api/embed`
//! and queries about the server's models.

pub mod embed;
pub mod events;
mod keep_alive;
pub mod object;
pub mod request;

use serde_json::{Value, json};

use loquent_serving::error::ApiError;

/// Returns the response body for `error`.
pub fn error_json(error: &ApiError) -> Value {
    json!({"error": error.to_string()})
}
