//! The native client of Loquent and of any OpenAI-compatible server.
//!
//! [`loquent_proto::sse`] parses event streams, [`http`] speaks HTTP/1.1 over kept-alive
//! connections, [`openai`] puts the two together: a request goes out, timed
//! deltas come back, and an answer counts as complete only when its finish arrived.

pub mod http;
pub mod openai;

mod error;

pub use error::ClientError;
