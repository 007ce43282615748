//! llama-server's `/infill`: editors request the text between two others. It is translated to a
//! completion with a `suffix`.

pub mod events;
pub mod request;
