//! llama-server's resumable streams: a completion that is sent with `X-Conversation-Id` goes on
//! when its connection is lost, `GET /v1/stream?conv_id=…&from=…` gives its events from a byte on,
//! and `DELETE` stops it.

mod events;
mod routes;

pub use routes::{asked_id, routes, stream};
