//! Measures the times of decode steps and of prompts.
//!
//! Steps choose the most probable token. The cost of other sampling depends on the weights: with
//! the flat probabilities of random ones, top-p examines nearly the whole vocabulary.

use std::fmt;
use std::time::{Duration, Instant};

use loquent_engine::llama::{OperationTimes, with_operation_times};
use loquent_infer::runner::{Batch, RunError, Runner, Slot};
use loquent_infer::sampling::Sampling;
use loquent_infer::token::TokenId;
use loquent_sim::stats;

use crate::tune::measure::{Effort, Over, PROMPT_TOKENS, Unmeasured, decode_ms};

/// Limits on the steps and the time for one decode figure.
const EFFORT: Effort = Effort { least_steps: 4, most_steps: 24, time: Duration::from_millis(1500) };
/// Average number of tokens that a row of a decode step sees: its prompt and half of the steps.
pub(super) const PAST: u32 = PROMPT_TOKENS + 12;
/// Maximum number of runs of a prompt, and the time after which it is not run again.
const PROMPT_ROUNDS: usize = 3;
const PROMPT_TIME: Duration = Duration::from_secs(8);

/// A measured step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Step {
    /// One token for each of `rows` sequences of `past` tokens.
    Decode { rows: u16, past: u32 },
    /// A whole prompt, from its first token on.
    Prompt { tokens: u32 },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode { rows: 1, .. } => f.write_str("decode, 1 row"),
            Self::Decode { rows, .. } => write!(f, "decode, {rows} rows"),
            Self::Prompt { tokens } => write!(f, "prompt of {tokens}"),
        }
    }
}

impl Step {
    /// Returns the number of tokens of one step.
    pub(super) fn tokens(self) -> u32 {
        match self {
            Self::Decode { rows, .. } => rows.into(),
            Self::Prompt { tokens } => tokens,
        }
    }
}

/// A step and its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub(super) step: Step,
    pub(super) ms: f64,
    /// Average times of a prompt's operations, if Loquent's kernels computed it.
    pub(super) spent: Option<OperationTimes>,
}

/// Measures the steps `wanted`, in order; returns fewer if the time runs out. Calls `tell` before
/// each. Prompts are computed in parts of `pass` tokens.
///
/// # Errors
/// If the runner fails.
pub(super) fn measure(
    runner: &mut dyn Runner,
    wanted: &[Step],
    pass: u32,
    over: Over<'_>,
    tell: &mut dyn FnMut(Step),
) -> Result<Vec<Measured>, RunError> {
    let mut measured = Vec::new();
    for &step in wanted {
        tell(step);
        let outcome = match step {
            Step::Decode { rows, .. } => {
                decode_ms(runner, rows, &Sampling::default(), EFFORT, over).map(|ms| (ms, None))
            }
            Step::Prompt { tokens } => prompt_ms(runner, tokens, pass, over),
        };
        match outcome {
            Ok((ms, spent)) => measured.push(Measured { step, ms, spent }),
            Err(Unmeasured::OutOfTime) => break,
            Err(Unmeasured::Failed(error)) => return Err(error),
        }
    }
    Ok(measured)
}

/// Returns the median milliseconds of a prompt, and the average times of its operations.
fn prompt_ms(
    runner: &mut dyn Runner,
    tokens: u32,
    pass: u32,
    over: Over<'_>,
) -> Result<(f64, Option<OperationTimes>), Unmeasured> {
    let (began, mut times) = (Instant::now(), Vec::new());
    let mut spent = OperationTimes::default();
    while times.len() < PROMPT_ROUNDS && (times.is_empty() || began.elapsed() < PROMPT_TIME) {
        let (outcome, operations) =
            with_operation_times(|| prompt_once(runner, tokens, pass, over));
        // Also after a failure: the next figure starts with an empty slot.
        runner.truncate(Slot(0), 0);
        match outcome {
            Err(Unmeasured::OutOfTime) if !times.is_empty() => break,
            outcome => times.push(outcome?),
        }
        spent.products += operations.products;
        spent.attention += operations.attention;
    }
    let rounds = u32::try_from(times.len()).unwrap_or(1).max(1);
    let OperationTimes { products, attention } = spent;
    let spent = OperationTimes { products: products / rounds, attention: attention / rounds };
    let spent = (!products.is_zero()).then_some(spent);
    Ok((stats::median(times).unwrap_or(f64::NAN), spent))
}

fn prompt_once(
    runner: &mut dyn Runner,
    tokens: u32,
    pass: u32,
    over: Over<'_>,
) -> Result<f64, Unmeasured> {
    let prompt: Vec<TokenId> = (0..tokens).map(|i| 1 + i % 97).collect();
    let (began, mut start) = (Instant::now(), 0);
    for part in prompt.chunks(pass.max(1) as usize) {
        if over() {
            return Err(Unmeasured::OutOfTime);
        }
        let mut batch = Batch::default();
        batch.push(Slot(0), start, part, false);
        runner.run(&batch, &mut Vec::new())?;
        start += part.len() as u32;
    }
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    //! Tests with a runner of a known pace: the measured values, and the end of the measurement.
    use loquent_engine::sim::{SimOptions, SimRunner, StepPace};
    use loquent_infer::runner::Capacity;

    use super::*;

    fn runner(step: Duration) -> SimRunner {
        let capacity = Capacity {
            slots: 4,
            kv_cells: 1024,
            context_tokens: 1024,
            batch_tokens: 64,
            shares_prefix: true,
        };
        let pace = StepPace::Fixed { step };
        SimRunner::new(SimOptions { capacity, pace, ..SimOptions::default() })
    }

    #[test]
    fn prompts_come_in_passes() {
        let mut runner = runner(Duration::from_millis(4));
        let wanted = [Step::Decode { rows: 2, past: PAST }, Step::Prompt { tokens: 130 }];
        let mut told = Vec::new();
        let tell = &mut |step: Step| told.push(step.to_string());
        let measured = measure(&mut runner, &wanted, 64, &|| false, tell).unwrap();
        assert_eq!(told, ["decode, 2 rows", "prompt of 130"]);
        assert_eq!(measured.iter().map(|one| one.step).collect::<Vec<_>>(), wanted);
        // Three passes, of which a busy machine may compute one late and the next one early.
        assert!(measured[1].ms >= 2.0 * 4.0 && measured[0].ms < measured[1].ms, "{measured:?}");
    }

    #[test]
    fn what_fits_the_time_is_kept() {
        let mut runner = runner(Duration::ZERO);
        let (first, second) = (Step::Prompt { tokens: 64 }, Step::Decode { rows: 1, past: PAST });
        let calls = std::cell::Cell::new(0);
        let over = || calls.replace(calls.get() + 1) >= PROMPT_ROUNDS;
        let measured = measure(&mut runner, &[first, second], 64, &over, &mut |_| {}).unwrap();
        assert_eq!(measured.iter().map(|one| one.step).collect::<Vec<_>>(), [first]);
    }
}
