//! Requests, scheduling, KV accounting, sampling and detokenizing, without clock, threads or FFI:
//! the decisions of a serving engine as plain state machines.

pub mod admission;
pub mod budget;
pub mod detok;
pub mod embedding;
pub mod kv;
pub mod prompt_lookup;
pub mod rate;
pub mod reading;
pub mod remote;
pub mod request;
pub mod runner;
pub mod sampling;
pub mod scheduler;
pub mod share;
pub mod sim_vocab;
pub mod speculation;
pub mod stop;
pub mod tenant;
pub mod token;
pub mod turns;
pub mod vocab;
