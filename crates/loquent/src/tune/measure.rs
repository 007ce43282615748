//! Measures a runner: the time of a decode step by batch size, and the speed of prompts.

use std::time::{Duration, Instant};

use loquent_infer::runner::{Batch, RunError, Runner, Sampled, Slot};
use loquent_infer::sampling::{Sampler, Sampling};
use loquent_infer::token::TokenId;
use loquent_sim::stats;

/// Tokens in each sequence when decoding is measured: a short chat.
pub const PROMPT_TOKENS: u32 = 64;
/// Steps that are not counted, while caches fill and threads wake up.
const WARM_UP_STEPS: u32 = 2;

/// Returns the usual sampling of chats: if a choice of settings depends on it, its cost counts.
pub fn chat_sampling() -> Sampling {
    Sampling { temperature: 1.0, top_p: 0.95, ..Sampling::default() }
}

/// Limits on the steps and the time for one figure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Minimum number of steps, even if they take longer than `time`.
    pub least_steps: u32,
    /// Maximum number of steps.
    pub most_steps: u32,
    /// Time after which no further step begins.
    pub time: Duration,
}

/// Reason why there is no figure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmeasured {
    /// The runner failed to compute a step.
    #[error(transparent)]
    Failed(#[from] RunError),
    /// `over` became true before there were enough steps.
    #[error("there was not enough time to measure this")]
    OutOfTime,
}

/// Returns true if the time is over. Called before every native call, so that a measurement exceeds
/// its time by one call at most.
pub type Over<'a> = &'a dyn Fn() -> bool;

fn run(
    runner: &mut dyn Runner,
    batch: &Batch,
    sampled: &mut Vec<Sampled>,
    over: Over<'_>,
) -> Result<(), Unmeasured> {
    if over() {
        return Err(Unmeasured::OutOfTime);
    }
    Ok(runner.run(batch, sampled)?)
}

/// Returns the median milliseconds of a step that decodes `rows` sequences of [`PROMPT_TOKENS`]
/// tokens, each sampled by `sampling`.
///
/// # Errors
/// If the runner fails, or the time is over before there are enough steps.
pub fn decode_ms(
    runner: &mut dyn Runner,
    rows: u16,
    sampling: &Sampling,
    effort: Effort,
    over: Over<'_>,
) -> Result<f64, Unmeasured> {
    let outcome = decode(runner, rows, sampling, effort, over);
    // Also after a failure: the next figure starts with empty slots.
    (0..rows).for_each(|row| runner.truncate(Slot(row), 0));
    outcome
}

fn decode(
    runner: &mut dyn Runner,
    rows: u16,
    sampling: &Sampling,
    effort: Effort,
    over: Over<'_>,
) -> Result<f64, Unmeasured> {
    for row in 0..rows {
        begin(runner, Slot(row), sampling.clone(), over)?;
    }
    let mut next: Vec<TokenId> = vec![1; rows.into()];
    let (mut batch, mut sampled, mut times) = (Batch::default(), Vec::new(), Vec::new());
    let began = Instant::now();
    // Every step adds a cell to every sequence, and the cache must hold them all to the end.
    let room = runner.capacity().kv_cells / u32::from(rows);
    let most = effort.most_steps.min(room.saturating_sub(PROMPT_TOKENS + 1));
    for step in 0..most + WARM_UP_STEPS {
        batch.clear();
        for row in 0..rows {
            batch.push(Slot(row), PROMPT_TOKENS + step, &[next[usize::from(row)]], true);
        }
        sampled.clear();
        let started = Instant::now();
        match run(runner, &batch, &mut sampled, over) {
            // Enough steps for a figure: better this one than none.
            Err(Unmeasured::OutOfTime) if times.len() >= effort.least_steps as usize => break,
            outcome => outcome?,
        }
        let took = started.elapsed();
        for row in &sampled {
            // A row whose sampling failed repeats its token: only speed is measured here.
            if let Ok(choice) = &row.outcome {
                next[row.slot.index()] = choice.token;
            }
        }
        if step >= WARM_UP_STEPS {
            times.push(took.as_secs_f64() * 1e3);
        }
        if began.elapsed() > effort.time && times.len() >= effort.least_steps as usize {
            break;
        }
    }
    Ok(stats::median(times).unwrap_or(f64::NAN))
}

/// Fills the empty `slot` with its own prompt and sampler.
fn begin(
    runner: &mut dyn Runner,
    slot: Slot,
    sampling: Sampling,
    over: Over<'_>,
) -> Result<(), Unmeasured> {
    let prompt: Vec<TokenId> =
        // Different in each slot, so that no prefix is shared; any tokens will do for speed.
        (0..PROMPT_TOKENS).map(|i| 1 + (i + u32::from(slot.0)) % 97).collect();
    runner.assign(slot, Sampler::new(sampling, &prompt, &[]));
    let longest = runner.capacity().batch_tokens as usize;
    let mut start = 0;
    for part in prompt.chunks(longest) {
        let mut batch = Batch::default();
        batch.push(slot, start, part, false);
        run(runner, &batch, &mut Vec::new(), over)?;
        start += part.len() as u32;
    }
    Ok(())
}

/// Returns the prompt tokens per second when `tokens` of them are computed in one step.
///
/// # Errors
/// If the runner fails, or the time is over before there are enough steps.
pub fn prefill_rate(
    runner: &mut dyn Runner,
    tokens: u32,
    effort: Effort,
    over: Over<'_>,
) -> Result<f64, Unmeasured> {
    let prompt: Vec<TokenId> = (0..tokens).map(|i| 1 + i % 97).collect();
    let (began, mut times) = (Instant::now(), Vec::new());
    // Round 0 is the warm-up.
    for round in 0..=effort.least_steps.max(1) {
        let mut batch = Batch::default();
        batch.push(Slot(0), 0, &prompt, false);
        let started = Instant::now();
        let outcome = run(runner, &batch, &mut Vec::new(), over);
        let took = started.elapsed();
        runner.truncate(Slot(0), 0);
        outcome?;
        if round > 0 {
            times.push(took.as_secs_f64());
        }
        if began.elapsed() > effort.time && !times.is_empty() {
            break;
        }
    }
    Ok(f64::from(tokens) / stats::median(times).unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    //! Checks that a runner of known pace is measured at that pace, and left empty.
    use loquent_engine::sim::{SimOptions, SimRunner, StepPace};
    use loquent_infer::runner::Capacity;

    use super::*;

    #[test]
    fn a_known_pace_is_found() {
        let step = Duration::from_millis(4);
        let capacity = Capacity {
            slots: 4,
            kv_cells: 512,
            context_tokens: 512,
            batch_tokens: 48, // less than the prompt, so that it comes in parts
            shares_prefix: true,
        };
        let options =
            SimOptions { capacity, pace: StepPace::Fixed { step }, ..SimOptions::default() };
        let mut runner = SimRunner::new(options);
        let effort = Effort { least_steps: 3, most_steps: 5, time: Duration::ZERO };
        // Twice: the first must have freed its slots. On a busy machine a late step may be followed
        // by an early one, which the bounds leave room for.
        for _ in 0..2 {
            let ms = decode_ms(&mut runner, 4, &Sampling::default(), effort, &|| false).unwrap();
            assert!(ms >= 2.5, "{ms} ms");
        }
        let rate = prefill_rate(&mut runner, 48, effort, &|| false).unwrap();
        assert!(rate <= 48.0 / 2.5e-3, "{rate} tokens/s");
    }

    #[test]
    fn when_time_is_over_no_further_call_is_made() {
        let capacity = Capacity {
            slots: 4,
            kv_cells: 512,
            context_tokens: 512,
            batch_tokens: 64,
            shares_prefix: true,
        };
        let mut runner = SimRunner::new(SimOptions { capacity, ..SimOptions::default() });
        let effort = Effort { least_steps: 5, most_steps: 50, time: Duration::from_secs(60) };
        // Asked once before each call, and true at the last question.
        for (calls, enough) in [(0, false), (4, false), (4 + WARM_UP_STEPS + 5, true)] {
            let asked = std::cell::Cell::new(0);
            let over = || asked.replace(asked.get() + 1) >= calls;
            let outcome = decode_ms(&mut runner, 4, &Sampling::default(), effort, &over);
            assert_eq!(asked.get(), calls + 1, "nothing is asked of the runner any more");
            assert_eq!(outcome.is_ok(), enough, "{outcome:?}");
            assert!(enough || outcome == Err(Unmeasured::OutOfTime));
        }
        assert_eq!(prefill_rate(&mut runner, 48, effort, &|| true), Err(Unmeasured::OutOfTime));
        // Its slots are free all the same.
        assert!(decode_ms(&mut runner, 4, &Sampling::default(), effort, &|| false).is_ok());
    }
}
