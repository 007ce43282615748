//! The tests of this crate that use it from outside, as one binary, which links once; those of `costs`
//! have an allocator of their own.

mod collector;
#[path = "connections/main.rs"]
mod connections;
#[path = "responses/main.rs"]
mod responses;
#[path = "sessions/main.rs"]
mod sessions;
mod simulated;
#[path = "stored_chats/main.rs"]
mod stored_chats;
#[path = "streams/main.rs"]
mod streams;
mod telemetry;
#[path = "upstream/main.rs"]
mod upstream;
