//! `loquent bench delivery`: the same tokens at the same times over real sockets, by several
//! ways of delivery, through the same emulated link with the same seeds.
//!
//! [`sse`] is a server-sent event stream on kernel TCP under a chosen congestion control;
//! [`udp`] drives the simulator's schemes over UDP sockets (Eloquent as in the paper, and our
//! sender and receiver bare); [`serve`] is the real `loquent serve` with the native client over
//! QUIC, or with server-sent events. [`stage`] is the emulated network under all of them, with a
//! path and a course of losses for each stream, the very one of the simulator's session of the
//! same number. [`judge`] turns arrivals into figures, [`report`] prints them.

pub mod cli;
pub mod judge;
pub mod plan;
pub mod report;
pub mod run;
pub mod serve;
pub mod sse;
pub mod stage;
pub mod udp;

mod plot;
