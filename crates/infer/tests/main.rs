//! All tests of this crate that use it from outside, as one binary, which links once.

mod embedding;
mod readiness;
#[path = "scheduling/main.rs"]
mod scheduling;
mod scoring;
