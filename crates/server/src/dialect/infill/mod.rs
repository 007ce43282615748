//! llama-server's `/infill`: editors ask for the text between two others. It becomes a completion
//! with a `suffix`.

mod events;
pub mod request;
mod routes;

pub use routes::routes;
