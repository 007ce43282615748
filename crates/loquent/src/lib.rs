//! The parts of the `loquent` command that are its own: serving, the local proxy, model download,
//! terminal chat, measuring the engine without HTTP, tuning it, splitting it.

pub mod bundled;
pub mod chat;
pub mod connect;
pub mod hub;
pub mod in_process;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod serve;
#[cfg(feature = "llama")]
pub mod split;
#[cfg(feature = "llama")]
pub mod stage;
pub mod tune;
