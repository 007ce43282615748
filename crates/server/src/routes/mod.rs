//! HTTP handlers that know the whole server: each takes the [`App`](crate::app::App), parses a
//! request, asks the parts below it and writes the response. `http.rs` joins them to one router.
//!
//! Formats are not here: [`loquent_dialects`] turns bodies into requests and answers into
//! events without knowing the server.

pub mod authorize;
pub mod batches;
pub mod browser;
pub mod completions;
pub mod dashboard;
pub mod downloads;
pub mod durable;
pub mod embeddings;
pub mod files;
pub mod generation;
pub mod health;
pub mod infill;
pub mod llama_server;
pub mod messages;
pub mod models;
pub mod observed;
pub mod ollama;
pub mod page;
pub mod parse_request;
pub mod passthrough;
pub mod path_probe;
pub mod props;
pub mod responses;
pub mod resumable;
pub mod stored_chats;
pub mod successor;
pub mod token;
pub mod tokenize;
pub mod ui_stream;
pub mod usage;

use std::sync::Arc;

use axum::Router;

use crate::app::App;

/// Returns the routes of all APIs, for clients whose key has been checked.
pub fn api(offers_ollama: bool) -> Router<Arc<App>> {
    Router::new()
        .merge(completions::routes())
        .merge(tokenize::routes())
        .merge(props::routes())
        .merge(ui_stream::routes())
        .merge(infill::routes())
        .merge(llama_server::routes())
        .merge(stored_chats::routes())
        .merge(responses::routes())
        .merge(embeddings::routes())
        .merge(files::routes())
        .merge(batches::routes())
        .merge(messages::routes())
        .merge(models::routes())
        .merge(downloads::routes())
        .merge(ollama::routes(offers_ollama))
}
