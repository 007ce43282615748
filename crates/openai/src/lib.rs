//! Client of any OpenAI-compatible server: pooled HTTP/1.1 or one HTTP/2 connection, with TLS, and
//! a parser for its chunks.
//!
//! [`http::HttpClient`] sends requests to one server; [`chunk::ChunkEvent`] parses the events of a
//! streamed completion. [`loquent_proto::sse`] splits event streams into events.

pub mod api_key;
pub mod chunk;
pub mod headers;
pub mod http;
pub mod tls;

mod base_url;
mod dial;
mod error;
mod exchange;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod look_up;
mod metered;

pub use base_url::BaseUrl;
pub use dial::{BoxFuture, Dial, Io, host_dial};
pub use error::{HttpError, causes};
pub use metered::WireCounts;

/// HTTP version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0 or HTTP/1.1: one connection for each request in flight.
    One,
    /// HTTP/2, by ALPN or by prior knowledge: one connection for all.
    Two,
}
