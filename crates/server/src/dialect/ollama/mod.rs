//! Ollama's API, for the desktop apps that know nothing else: `/api/chat`, `/api/generate`,
//! `/api/embed` and what they ask of a server's models.

pub mod embed;
mod events;
mod keep_alive;
mod models;
mod object;
pub mod request;
mod routes;

use serde_json::{Value, json};

use crate::error::ApiError;

pub use routes::routes;

/// The body that says `error`.
pub fn error_json(error: &ApiError) -> Value {
    json!({"error": error.to_string()})
}
