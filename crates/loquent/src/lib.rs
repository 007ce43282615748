//! The parts of the `loquent` command that are its own: serving, model download, terminal chat.

pub mod bundled;
pub mod chat;
pub mod hub;
pub mod serve;
