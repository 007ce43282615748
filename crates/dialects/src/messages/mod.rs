//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

mod error;
pub mod events;
pub mod object;
pub mod request;
mod turns;

pub use error::error_json;

/// Header with which Anthropic's clients state their version of the API.
pub const VERSION: &str = "anthropic-version";
/// Header of a response that identifies the request.
pub const REQUEST_ID: &str = "request-id";
