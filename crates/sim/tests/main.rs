//! All tests of this crate that use it from outside, as one binary, which links once.

mod burst;
mod plans;
mod qoe;
mod trace;
