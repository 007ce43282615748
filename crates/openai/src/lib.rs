//! Client of any OpenAI-compatible server: pooled HTTP/1.1 or one connection of HTTP/2, with
//! TLS, and the reader of its chunks.
//!
//! [`http::HttpClient`] sends requests to one server; [`chunk::ChunkEvent`] reads the events of
//! a streamed completion. Event streams are cut into events by [`loquent_proto::sse`].

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
mod metered;

pub use base_url::BaseUrl;
pub use dial::{BoxFuture, Dial, Io};
pub use error::{HttpError, causes};
pub use metered::WireCounts;

/// The version of HTTP that a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0 or HTTP/1.1: a connection for each request under way.
    One,
    /// HTTP/2, by ALPN or by prior knowledge: one connection for all.
    Two,
}
