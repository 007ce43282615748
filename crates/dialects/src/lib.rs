//! The APIs that Loquent offers beside OpenAI's chat, as pure functions: neither axum nor tokio.
//!
//! Each dialect is a folder that does two things. It lowers its request to the fields of a chat
//! completion ([`Lowered`](lowered::Lowered)), so that everything after parsing (limits,
//! templates, tools, upstream servers) knows one kind of request. And it writes its own events
//! and objects from the records of an answer
//! ([`EventWriter`](loquent_serving::event_writer::EventWriter)). A table lists how each
//! parameter is handled ([`Parameter`](loquent_serving::api::parameter_table::Parameter));
//! `docs/compatibility.md`, `docs/openapi.json` and `docs/api-reference.md` are generated from
//! the tables by this crate's tests.
//!
//! ```
//! use loquent_dialects::messages::request::lower;
//! use loquent_serving::api::fields::Fields;
//!
//! let body = br#"{"max_tokens": 9, "system": "Be brief.",
//!                 "messages": [{"role": "user", "content": "Hello!"}]}"#;
//! let lowered = lower(Fields::parse(body).expect("JSON")).expect("it is valid");
//! let messages = &lowered.fields.map()["messages"];
//! assert_eq!(messages[0]["role"], "system");
//! assert_eq!(messages[1]["content"], "Hello!");
//! ```

pub mod batches;
#[cfg(test)]
mod chat_parameters;
#[cfg(test)]
mod compatibility;
pub mod durable;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod infill;
pub mod lowered;
pub mod messages;
pub mod ollama;
#[cfg(test)]
mod openapi;
pub mod paths;
pub mod responses;
mod seams;
pub mod stored_chats;
pub mod stream_times;
pub mod ui_stream;
