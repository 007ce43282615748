//! A virtual-time world that measures delivery schemes over lossy links.
//!
//! Time is virtual: a session of 30 seconds takes about a millisecond. Every scheme meets the same
//! losses, determined only by the seed, so a difference between schemes is due to the schemes.

pub mod burst;
pub mod campaign;
pub mod channel;
pub mod chart;
pub mod check;
pub mod cli;
pub mod events;
pub mod figures;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod generate;
pub mod lab;
pub mod link;
pub mod metrics;
pub mod observer;
pub mod plan;
pub mod qoe;
pub mod race;
pub mod reader;
pub mod report;
pub mod rng;
pub mod scheme;
pub mod stats;
pub mod study;
pub mod sweep;
pub mod trace;
pub mod world;

pub use plan::{Plan, PlanError};
pub use report::{Report, run_plan};
pub use study::ProgressReport;

/// The built-in plans, by name.
pub const BUILT_IN_PLANS: &[(&str, &str)] = &[
    ("bad-weather", include_str!("../../../plans/bad-weather.toml")),
    ("campaign", include_str!("../../../plans/campaign.toml")),
    ("channels", include_str!("../../../plans/channels.toml")),
    ("fast-generators", include_str!("../../../plans/fast-generators.toml")),
    ("fig5", include_str!("../../../plans/fig5.toml")),
    ("fig6", include_str!("../../../plans/fig6.toml")),
    ("fig7", include_str!("../../../plans/fig7.toml")),
    ("hidden-tab", include_str!("../../../plans/hidden-tab.toml")),
    ("narrow-links", include_str!("../../../plans/narrow-links.toml")),
    ("outages", include_str!("../../../plans/outages.toml")),
    ("pacing", include_str!("../../../plans/pacing.toml")),
    ("padding", include_str!("../../../plans/padding.toml")),
    ("pareto", include_str!("../../../plans/pareto.toml")),
];
