//! How many readers can begin at once: bursts of answers on machines with measured step times, by
//! the scheduler that the server runs.
//!
//! All requests of a burst arrive together. A reader is content if its first token comes in time
//! and it hardly stalls as it reads on at its own speed. The figure is the largest burst of which
//! nearly all readers are content, with the best batch size of each policy.

mod engine;
mod figure;
mod plan;
mod reader;
mod report;
mod row;
mod search;
mod world;

pub use plan::{BurstPlan, Machine, Policy};
pub use reader::{BurstReader, ContentRule, ReaderOutcome};
pub use report::BurstReport;
pub use search::{LargestBurst, run};
pub use world::{BurstOutcome, play};

/// The plan that comes with the program.
pub const BUILT_IN: &str = include_str!("../../../../plans/burst.toml");
