//! llama-server's resumable streams: a completion sent with `X-Conversation-Id` continues when its
//! connection is lost, `GET /v1/stream?conv_id=…&from=…` returns its events from a byte on, and
//! `DELETE` stops it.

pub mod events;
