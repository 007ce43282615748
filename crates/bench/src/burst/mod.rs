//! `loquent bench burst`: the number of readers that a server can start at once, over QUIC.
//!
//! The readers behave as in `loquent sim burst` ([`loquent_sim::burst`]): each starts with the
//! first token that arrives and reads on at its own speed. Here each is a real client with its own
//! connection. [`run`] plays bursts, [`report`] prints the outcomes.

pub mod cli;
pub mod report;
pub mod run;
