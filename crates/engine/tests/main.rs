//! All tests of this crate that use it from outside, as one binary, which links once.

mod llama;
mod stages;
