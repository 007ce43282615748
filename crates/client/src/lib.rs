//! The native client of Loquent and of any OpenAI-compatible server.
//!
//! [`Client`] requests an answer from a Loquent server over QUIC, or over HTTP where QUIC does not
//! get through, and reads an [`Answer`] exactly once across lost packets, lost connections and
//! address changes (`spec/session.md`). The layers below also work with any other server:
//! [`loquent_proto::sse`] parses event streams, [`loquent_openai`] sends HTTP/1.1 requests over
//! pooled connections and reads chunks, [`openai`] combines them. An answer counts as complete only
//! when its finish arrived.

pub mod openai;
pub mod reply;

mod answer;
mod backoff;
mod client;
mod config;
mod congestion;
mod connections;
mod discovery;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod known_servers;
mod message;
mod network;
mod quic_connection;
mod replaced_file;
mod request;
mod tls;
mod tunnel;
mod via;

pub use answer::{Answer, Asked, Content, Step, chunk_deltas};
pub use client::Client;
pub use config::{Config, MAX_NETWORKS};
pub use discovery::DeliveryOffer;
pub use error::ClientError;
pub use known_servers::Transport;
pub use loquent_proto::headers::{ID_HEADER, IGNORED_HEADER, REPEAT_HEADER, TOKEN_HEADER};
pub use loquent_proto::{AnswerHandle, PathMode};
pub use quic_connection::QuicPath;
pub use replaced_file::{FileReaders, replace_file, replace_file_safely};
pub use reply::Reply;
pub use request::Request;
pub use via::{NotANetwork, Via};
