//! `loquent bench delivery`: the same tokens at the same times over real sockets, by several
//! ways of delivery, through the same emulated link with the same seeds.
//!
//! [`sse`] is a server-sent event stream on kernel TCP under a chosen congestion control;
//! [`udp`] drives the simulator's schemes over UDP sockets (Eloquent as in the paper, and our
//! sender and receiver bare); [`serve`] is the real `loquent serve` with the native client over
//! QUIC, or with server-sent events. [`testbed`] is the emulated network under all of them, with a
//! path and a loss schedule for each stream, the very one of the simulator's session of the
//! same number; [`starts`] lets them begin together. [`metrics`] turns arrivals into figures, [`report`] prints them.

pub mod cells;
pub mod cli;
pub mod metrics;
pub mod plan;
pub mod report;
pub mod run;
pub mod serve;
pub mod sse;
pub mod starts;
pub mod testbed;
pub mod udp;

mod plot;
