//! The OpenAI-compatible HTTP server: admission, the engine thread, delivery.

pub mod answering;
pub mod api;
pub mod app;
pub mod ask;
pub mod auth;
pub mod choice;
pub mod clock;
pub mod delivery;
pub mod engine_thread;
pub mod error;
pub mod flow;
pub mod flush;
pub mod http;
mod https;
pub mod metrics;
pub mod model;
pub mod otel;
mod page;
pub mod quic;
pub mod server;
pub mod service;
pub mod sse;
pub mod streams;
pub mod ticket;
pub mod trace_context;
pub mod upstream;
pub mod usage;
