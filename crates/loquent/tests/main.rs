//! The tests of this package that run its program or use its library, as one binary, which links once;
//! `tidy`, which reads the repository alone, has one of its own.

mod chat;
mod chat_stand_in;
mod demo;
mod help;
mod hub;
mod hub_stand_in;
mod in_process;
mod kv_layout;
mod link;
mod models;
#[cfg(feature = "llama")]
mod process;
mod roofline;
mod signals;
mod stages;
mod terminal;
mod tune;
