//! The flags that select what `loquent serve` runs: a model, or a simulation.

use std::time::Duration;

use clap::Args;
use loquent_engine::sim::{StepPace, WorkTimes};

use crate::model_args::ModelArgs;

/// Source of answers: a model file, or the simulated engine.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    pub(crate) file: ModelArgs,
    /// Run a simulated engine instead of a model, for tests and measurements
    ///
    /// Each answer gets this many tokens per second; "inf" is as fast as possible. "9+3.96+1.37"
    /// are milliseconds of any step, of each answer in it and of each prompt token.
    #[arg(long, env = "LOQUENT_SIMULATE", value_name = "TOKENS_PER_S", value_parser = parse_pace,
          conflicts_with_all = ["wanted", "model", "hf"])]
    pub(crate) simulate: Option<StepPace>,
}

impl SourceArgs {
    /// Returns true if the bundled model is served, as no flag names another.
    pub(crate) fn is_demonstration(&self) -> bool {
        self.file.is_bundled() && self.simulate.is_none()
    }
}

/// Parses the step times of the simulated engine.
fn parse_pace(text: &str) -> Result<StepPace, String> {
    let pace = match text.split('+').collect::<Vec<_>>().as_slice() {
        [rate] => rate.parse::<f64>().ok().filter(|rate| *rate > 0.0).map(|rate| {
            let step = Duration::try_from_secs_f64(1.0 / rate);
            step.ok()
                .filter(|step| !step.is_zero())
                .map_or(StepPace::None, |step| StepPace::Fixed { step })
        }),
        [step, row, prompt_token] => step_work(step, row, prompt_token).map(StepPace::ByWork),
        _ => None,
    };
    pace.ok_or_else(|| {
        "give tokens per second, above 0, or \"inf\", or three times in ms as 9+3.96+1.37"
            .to_owned()
    })
}

fn step_work(step: &str, row: &str, prompt_token: &str) -> Option<WorkTimes> {
    let time = |text: &str| {
        let ms = text.parse::<f64>().ok().filter(|ms| (0.0..=60_000.0).contains(ms))?;
        Some(Duration::from_secs_f64(ms / 1_000.0))
    };
    Some(WorkTimes { step: time(step)?, row: time(row)?, prompt_token: time(prompt_token)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_a_rate_or_three_times() {
        let step = Duration::from_millis(20);
        assert_eq!(parse_pace("50"), Ok(StepPace::Fixed { step }));
        assert_eq!(parse_pace("inf"), Ok(StepPace::None));
        let us = Duration::from_micros;
        let work = WorkTimes { step: us(9_000), row: us(3_960), prompt_token: us(1_370) };
        assert_eq!(parse_pace("9+3.96+1.37"), Ok(StepPace::ByWork(work)));
        for wrong in ["", "0", "-1", "fast", "1+2", "1+2+3+4", "1+-2+3", "1+x+3", "nan"] {
            assert!(parse_pace(wrong).is_err(), "{wrong:?}");
        }
    }
}
