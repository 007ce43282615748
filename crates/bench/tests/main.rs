//! All tests of this crate that use it from outside, as one binary, which links once.

mod delivery;
mod fairness;
mod generator;
mod in_process;
mod link;
mod sse_server;
