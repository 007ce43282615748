//! `loquent bench delivery`: several schemes deliver the same tokens at the same times over real
//! sockets, through the same emulated link with the same seeds.
//!
//! [`sse`] is a server-sent event stream on kernel TCP with a chosen congestion control; [`quic`]
//! is the same on one reliable QUIC stream; [`udp`] drives the simulator's schemes over UDP sockets
//! (Eloquent as in the paper, and Loquent's sender and receiver without QUIC); [`serve`] is the
//! real `loquent serve` with the native client over QUIC, or with server-sent events. [`testbed`]
//! is the emulated network below all of them. It gives each stream a path and the loss schedule of
//! the simulator's session with the same number. [`starts`] synchronizes the start of all streams,
//! [`metrics`] turns arrivals into metrics, and [`report`] prints them.

pub mod cells;
pub mod cli;
mod ends;
pub mod metrics;
pub mod plan;
pub mod quic;
pub mod report;
pub mod run;
pub mod serve;
pub mod sse;
pub mod starts;
pub mod testbed;
pub mod udp;

mod plot;
