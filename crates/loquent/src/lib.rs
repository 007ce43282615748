//! The parts of the `loquent` command that are its own: model download and terminal chat.

pub mod chat;
pub mod hub;
