//! The APIs that Loquent offers beside OpenAI's chat: each translates its request to the fields of
//! a chat completion, so that everything after parsing (limits, templates, tools, upstream servers)
//! knows only one kind of request, and writes its events from the answer's records.

pub mod chosen_ids;
#[cfg(test)]
mod compatibility;
pub mod durable;
pub mod errors;
pub mod infill;
pub mod lowered;
pub mod messages;
pub mod ollama;
#[cfg(test)]
mod openapi;
pub mod paths;
pub mod responses;
pub mod stored_chats;
pub mod ui_stream;
