//! The subcommands of `loquent` that are implemented here: serving, the local proxy, model
//! download, terminal chat, the demonstration, benchmarks, tuning, split models, shell completions
//! and manual pages.

pub mod bench;
mod book;
pub mod bundled;
pub mod chat;
pub mod completions;
pub mod config;
pub mod connect;
#[cfg(target_os = "linux")]
pub mod demo;
pub mod descriptors;
pub mod doctor;
#[cfg(feature = "llama")]
pub mod engine_process;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod hub;
pub mod in_process;
mod lab;
pub mod logging;
#[cfg(feature = "llama")]
mod machine_load;
pub mod man;
mod model_args;
#[cfg(feature = "llama")]
mod model_part;
pub mod models;
pub mod neighbour_flags;
mod own_program;
mod private_memory;
pub mod profile;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod run;
pub mod serve;
pub mod shutdown;
#[cfg(feature = "llama")]
pub mod split;
#[cfg(feature = "llama")]
pub mod stage;
mod stage_args;
pub mod trust;
pub mod tune;
mod user_folder;
mod validity;
mod via_args;
