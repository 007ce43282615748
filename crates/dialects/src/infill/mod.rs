//! llama-server's `/infill`: editors request the text between two others. It is translated to a
//! completion with a `suffix`. Its `/completion` has the same answers.

pub mod completion;
pub mod events;
pub mod request;
