//! The read side of Durable Streams at `/v1/streams/{id}`: a kept answer is a stream that clients
//! catch up with and follow by offsets. A request without an `offset` is one of Loquent's own
//! (`resumable/routes.rs`).
//!
//! The stream has the chunks of a chat completion as JSON messages, or with `as=text` the answer's
//! text. Its offsets are those of the answer's log.

pub mod content;
pub mod cursor;
pub mod request;
