//! A virtual-time world that measures delivery schemes over lossy links.
//!
//! Nothing here waits: a session of 30 seconds takes about a millisecond. Every scheme meets the
//! same weather, decided by the seed alone, so differences between schemes are theirs.

pub mod channel;
pub mod check;
pub mod cli;
pub mod generate;
pub mod link;
pub mod metrics;
pub mod pacing;
pub mod plan;
pub mod plot;
pub mod report;
pub mod rng;
pub mod scheme;
pub mod study;
pub mod svg;
pub mod world;

pub use plan::{Plan, PlanError};
pub use report::{Report, run_plan};
pub use study::Watch;

/// The plans that come with the program, by name.
pub const BUILT_IN_PLANS: &[(&str, &str)] = &[
    ("fig5", include_str!("../plans/fig5.toml")),
    ("fig6", include_str!("../plans/fig6.toml")),
];
