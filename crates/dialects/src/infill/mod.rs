//! llama-server's own completions: `/completion`, and `/infill`, by which editors request the text
//! between two others. Both are translated to a completion, `/infill` to one with a `suffix`, and
//! have the same answers.

pub mod completion;
pub mod events;
pub mod object;
pub mod parameters;
pub mod request;
pub mod settings;
