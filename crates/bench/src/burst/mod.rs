//! `loquent bench burst`: how many readers can begin at once at a server, over QUIC.
//!
//! The readers are those of `loquent sim burst` ([`loquent_sim::burst`]): each begins with the
//! first token that arrives and reads on at a speed of its own. Here they have real clients, each
//! with a connection of its own. [`run`] plays bursts, [`report`] prints what became of them.

pub mod cli;
pub mod report;
pub mod run;
