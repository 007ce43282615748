//! The number of readers that can start at once: bursts of answers on machines with measured step
//! times, using the server's own scheduler.
//!
//! All requests of a burst arrive together. A reader is content if its first token arrives in time
//! and it hardly stalls as it reads on at its own speed. The result is the largest burst of which
//! nearly all readers are content, with the best batch size of each policy.

mod engine;
mod figure;
mod plan;
mod reader;
mod report;
mod row;
mod search;
mod world;

pub(crate) use engine::{TimedRunner, VirtualEngine};
pub(crate) use plan::within;
pub use plan::{BurstPlan, MAX_READERS, Machine, Policy};
pub use reader::{BurstReader, ContentRule, ReaderOutcome};
pub use report::BurstReport;
pub use search::{LargestBurst, run};
pub use world::{BurstOutcome, play};

/// The built-in burst plan.
pub const BUILT_IN: &str = include_str!("../../../../plans/burst.toml");
