//! All tests of this crate that use it from outside, as one binary, which links once.

#[path = "llama/main.rs"]
mod llama;
#[path = "stages/main.rs"]
mod stages;
