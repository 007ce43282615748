//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

mod error;
mod events;
mod models;
mod object;
pub mod request;
mod routes;
mod turns;

pub use error::error_json;
pub use models::{model, models};
pub use routes::routes;

/// The header by which Anthropic's clients say which version of the API they speak.
pub const VERSION: &str = "anthropic-version";
/// The header of a response that names the request.
pub const REQUEST_ID: &str = "request-id";
