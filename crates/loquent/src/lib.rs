//! The subcommands of `loquent` that are implemented here: serving, the local proxy, model
//! download, terminal chat, the demonstration, benchmarks, tuning, and split models.

pub mod bench;
pub mod bundled;
pub mod chat;
pub mod connect;
#[cfg(target_os = "linux")]
pub mod demo;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod hub;
pub mod in_process;
mod lab;
mod model_args;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod serve;
pub mod shutdown;
#[cfg(feature = "llama")]
pub mod split;
#[cfg(feature = "llama")]
pub mod stage;
mod stage_args;
pub mod tune;
