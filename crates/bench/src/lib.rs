//! Load generator and reports for any OpenAI-compatible server.
//!
//! [`cli`] turns arguments into a [`plan::LoadPlan`]; [`experiment`] runs its cases against its
//! targets in turn; [`drive`] sends one run's requests and keeps a [`record::RequestRecord`] of
//! each; [`summary`] turns records into the metrics that [`report`] prints, and [`verify`] rejects
//! impossible token totals.

pub mod arrivals;
pub mod burst;
pub mod cli;
#[cfg(target_os = "linux")]
pub mod delivery;
pub mod drive;
pub mod experiment;
#[cfg(target_os = "linux")]
pub mod fairness;
pub mod http_target;
#[cfg(target_os = "linux")]
pub mod link;
pub mod plan;
pub mod preset;
pub mod process;
pub mod prompts;
pub mod reconcile;
pub mod record;
pub mod report;
pub mod scrape;
pub mod summary;
pub mod target;
pub mod verify;

mod error;
mod expected_time;
mod stdout;

pub use error::BenchError;
pub use stdout::print;
pub use target::Target;
