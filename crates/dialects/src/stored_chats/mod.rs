//! Stored chat completions: those requested with `store: true`, to be listed, read, annotated and
//! deleted later.

pub mod object;
pub mod request;
