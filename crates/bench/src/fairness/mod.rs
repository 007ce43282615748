//! `loquent bench fairness`: the bandwidth that token streams leave to downloads on the same
//! bottleneck.
//!
//! Downloads on kernel TCP share an emulated low-rate link with nothing, with token streams as
//! server-sent events on kernel TCP, and with as many of Loquent's streams. Loquent is fair if the
//! downloads get nearly what the event streams would leave them. [`bottleneck`] is the link,
//! [`download`] the bulk transfers, [`run`] the trials; the streams themselves come from
//! [`crate::delivery`]. [`figures`] turns trials into figures, and [`report`] prints them.

pub mod bottleneck;
pub mod cli;
pub mod download;
pub mod figures;
pub mod plan;
pub mod report;
pub mod run;
