//! The parts of the `loquent` command that are its own: serving, model download, terminal chat,
//! measuring the engine without HTTP.

pub mod bundled;
pub mod chat;
pub mod hub;
pub mod in_process;
pub mod serve;
#[cfg(feature = "llama")]
pub mod split;
#[cfg(feature = "llama")]
pub mod stage;
