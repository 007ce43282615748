//! Requests for what the store has: background responses and chats.

use std::fmt;

use loquent_serving::identity::Owner;
use serde_json::{Value, json};

/// Owner of all responses and chats.
pub const OWNER: Owner = Owner([7; 16]);

/// Request for a background response.
#[derive(Debug, Clone, Copy)]
pub enum ResponseRequest {
    /// Creates the response to the question with this seed.
    Create(u64),
    /// Reads its object.
    Retrieve(Owner),
    /// Reads its events from this number on.
    Stream(u64),
    /// Cancels it.
    Cancel,
    /// Deletes it.
    Delete,
}

impl fmt::Display for ResponseRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(_) => out.write_str("create"),
            Self::Retrieve(owner) => write!(out, "read{}", stranger(*owner)),
            Self::Stream(first) => write!(out, "stream from {first}"),
            Self::Cancel => out.write_str("cancel"),
            Self::Delete => out.write_str("delete"),
        }
    }
}

/// Request for a stored chat.
#[derive(Debug, Clone, Copy)]
pub enum ChatRequest {
    /// Reads it.
    Read(Owner),
    /// Replaces its metadata.
    Annotate,
    /// Deletes it.
    Delete,
}

impl fmt::Display for ChatRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(owner) => write!(out, "read{}", stranger(*owner)),
            Self::Annotate => out.write_str("annotate"),
            Self::Delete => out.write_str("delete"),
        }
    }
}

/// Returns what a history adds to a request with another key.
fn stranger(owner: Owner) -> &'static str {
    if owner == OWNER { "" } else { " with another key" }
}

/// Returns the metadata that a client gives a chat.
pub fn annotation() -> Value {
    json!({"note": "kept"})
}
