//! Quality of experience of bursts, with loss on the links: the real scheduler by need against
//! first come, first served and against Andes, with the metrics of the literature
//! ([`Expectation`]).
//!
//! All requests of a burst arrive together. The engine's steps take virtual time, and each answer
//! is delivered over a link of its own by a real scheme ([`crate::scheme`]). The result for each
//! case and contender is a curve, mean QoE by number of readers, and the largest burst of a given
//! QoE.

mod andes;
mod delivery;
mod figure;
mod metric;
mod plan;
mod report;
mod study;
mod world;

pub use andes::{AndesRequest, AndesScheduler, ModelledReader};
pub use metric::{Expectation, QoeSummary, ReaderQoe};
pub use plan::{Contender, QoeCase, QoeClaim, QoePlan, QoePolicy};
pub use report::QoeReport;
pub use study::{Curve, QoePoint, plays, run};
pub use world::{BurstSetting, play};

/// The built-in plan.
pub const BUILT_IN: &str = include_str!("../../../../plans/qoe.toml");
