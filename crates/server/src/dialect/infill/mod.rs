//! llama-server's `/infill`: editors request the text between two others. It is translated to a
//! completion with a `suffix`.

mod events;
pub mod request;
mod routes;

pub use routes::routes;
