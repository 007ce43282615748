//! HTTP handlers that know the whole server: each takes the [`App`](crate::app::App), parses a
//! request, asks the parts below it and writes the response. `http.rs` joins them to one router.
//!
//! Formats are not here: [`dialect`](crate::dialect) turns bodies into requests and answers into
//! events without knowing the server.

pub mod browser;
pub mod dashboard;
pub mod durable;
pub mod embeddings;
pub mod generation;
pub mod infill;
pub mod llama_server;
pub mod messages;
pub mod models;
pub mod observed;
pub mod ollama;
pub mod page;
pub mod parse_request;
pub mod path_probe;
pub mod props;
pub mod responses;
pub mod resumable;
pub mod stored_chats;
pub mod successor;
pub mod token;
pub mod tokenize;
pub mod ui_stream;
