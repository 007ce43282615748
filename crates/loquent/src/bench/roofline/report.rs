//! Results of `--roofline`: the machine's limits, and the steps compared with them.

use std::time::Duration;

use loquent_engine::llama::{MachineLimits, MultiplyPeak, OperationTimes};

use super::steps::{Measured, Step};
use super::work::{LimitedBy, ModelWork, StepLimit, StepWork};

/// All results shown.
#[derive(Debug, serde::Serialize)]
pub(super) struct Roofline {
    pub(super) model: String,
    pub(super) machine: String,
    pub(super) kernels: String,
    pub(super) threads: u16,
    pub(super) limits: Limits,
    /// Steps in the order of measurement; fewer if the time ran out.
    pub(super) steps: Vec<RooflineRow>,
    /// True if something is missing because the time ran out or Ctrl-C was pressed.
    pub(super) incomplete: bool,
}

/// The machine's limits, as written to the JSON report.
#[derive(Debug, serde::Serialize)]
pub(super) struct Limits {
    pub(super) read_bytes_per_s: f64,
    /// Products of 8-bit integers per second by instruction set.
    pub(super) int8_per_s: Vec<(&'static str, f64)>,
    /// Products of 32-bit floats per second, with the instruction set.
    pub(super) float_per_s: Option<(&'static str, f64)>,
    pub(super) has_amx: bool,
}

impl From<&MachineLimits> for Limits {
    fn from(limits: &MachineLimits) -> Self {
        let int8_per_s = limits.int8.iter().map(|peak| (peak.name, peak.per_s)).collect();
        let float_per_s = limits.float.map(|peak| (peak.name, peak.per_s));
        let MachineLimits { read_bytes_per_s, has_amx, .. } = *limits;
        Self { read_bytes_per_s, int8_per_s, float_per_s, has_amx }
    }
}

/// A step compared with its limit.
#[derive(Debug, serde::Serialize)]
pub(super) struct RooflineRow {
    #[serde(flatten)]
    pub(super) step: Step,
    pub(super) ms: f64,
    pub(super) limit_ms: f64,
    pub(super) limited_by: LimitedBy,
    #[serde(flatten)]
    pub(super) limit: StepLimit,
    /// Ratio of the limit to the step's time: 1 is the best that the machine can do.
    pub(super) reached: f64,
    /// Operations of a prompt, if Loquent's kernels computed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) operations: Option<Operations>,
}

/// Times of a prompt's operations, and the share of the processor's peak that each kind reaches.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Operations {
    pub(super) products_ms: f64,
    pub(super) products_reached: f64,
    pub(super) attention_ms: f64,
    pub(super) attention_reached: f64,
}

impl Operations {
    fn new(spent: OperationTimes, needed: &StepWork, machine: &MachineLimits) -> Self {
        let share = |count: f64, peak: Option<MultiplyPeak>, spent: Duration| match peak {
            Some(peak) if !spent.is_zero() => count / peak.per_s / spent.as_secs_f64(),
            _ => 0.0,
        };
        let OperationTimes { products, attention } = spent;
        Self {
            products_ms: products.as_secs_f64() * 1e3,
            products_reached: share(needed.int8, machine.best_int8(), products),
            attention_ms: attention.as_secs_f64() * 1e3,
            attention_reached: share(needed.attention, machine.float, attention),
        }
    }
}

impl RooflineRow {
    pub(super) fn new(
        measured: Measured,
        work: &ModelWork,
        pass: u32,
        machine: &MachineLimits,
    ) -> Self {
        let Measured { step, ms, spent } = measured;
        let needed = match step {
            Step::Decode { rows, past } => work.decode(rows.into(), past),
            Step::Prompt { tokens } => work.prompt(tokens, pass),
        };
        let limit = StepLimit::new(&needed, machine);
        let (limit_ms, limited_by) = (limit.ms(), limit.by());
        let operations = spent.map(|spent| Operations::new(spent, &needed, machine));
        Self { step, ms, limit_ms, limited_by, limit, reached: limit_ms / ms, operations }
    }
}
