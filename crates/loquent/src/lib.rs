//! The parts of the `loquent` command that are its own: serving, model download, terminal chat.

pub mod bundled;
pub mod chat;
mod chat_format;
pub mod hub;
pub mod serve;
