//! The tests of this crate that use it from outside, as one binary, which links once; those of `costs`
//! have an allocator of their own.

mod batches;
mod collector;
mod connections;
mod responses;
mod sessions;
mod simulated;
mod stored_chats;
mod streams;
mod telemetry;
mod upstream;
