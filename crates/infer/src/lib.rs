//! Requests, scheduling, KV accounting, sampling and detokenizing, with neither
//! clock nor thread nor FFI: what a serving engine decides, as plain state machines.

pub mod runner;
pub mod sampling;
pub mod vocab;
