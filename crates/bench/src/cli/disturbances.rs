//! Options for requests that disturb the measured ones.

use clap::Args;

use super::check;
use crate::BenchError;
use crate::plan::{Extras, Inject};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Disturbances")]
pub(super) struct DisturbanceArgs {
    /// Add N readers that stop reading until the run ends
    #[arg(long, value_name = "N", default_value_t = 0)]
    slow_readers: usize,
    /// Chunks that a slow reader reads first
    #[arg(long, value_name = "N", default_value_t = 4, hide_short_help = true)]
    slow_reader_after: usize,
    /// Tokens of a slow reader's answer [default: --max-tokens]
    #[arg(long, value_name = "N", hide_short_help = true)]
    slow_reader_max_tokens: Option<u32>,
    /// Add N readers that disconnect early
    #[arg(long, value_name = "N", default_value_t = 0)]
    disconnects: usize,
    /// Chunks that such a reader reads first
    #[arg(long, value_name = "N", default_value_t = 4, hide_short_help = true)]
    disconnect_after: usize,
    /// Send prompts of N tokens during the run
    #[arg(long, value_name = "N")]
    inject_prompt_tokens: Option<usize>,
    /// When to send the first of them, after the start
    #[arg(long, value_name = "MS", default_value_t = 1000.0)]
    inject_at_ms: f64,
    /// Number of injected prompts
    #[arg(long, value_name = "N", default_value_t = 1)]
    inject_count: usize,
    /// Time between injected prompts
    #[arg(long, value_name = "MS", default_value_t = 1000.0, hide_short_help = true)]
    inject_every_ms: f64,
    /// Tokens of an injected prompt's answer
    #[arg(long, value_name = "N", default_value_t = 8, hide_short_help = true)]
    inject_max_tokens: u32,
    /// Also run each case undisturbed, in turn, and compare
    #[arg(long)]
    control: bool,
}

impl DisturbanceArgs {
    /// Returns the disturbances of each case: one, or with `--control` none and then one.
    pub(super) fn resolve(&self, max_tokens: u32) -> Result<Vec<Extras>, BenchError> {
        let extras = self.extras(max_tokens)?;
        if !self.control {
            return Ok(vec![extras]);
        }
        check(extras != Extras::default(), "--control needs a disturbance to leave out")?;
        Ok(vec![Extras::default(), extras])
    }

    fn extras(&self, max_tokens: u32) -> Result<Extras, BenchError> {
        let inject = self.inject()?;
        if self.slow_readers + self.disconnects == 0 && inject.is_none() {
            return Ok(Extras::default());
        }
        Ok(Extras {
            slow_readers: self.slow_readers,
            slow_reader_after: self.slow_reader_after,
            slow_reader_max_tokens: self.slow_reader_max_tokens.unwrap_or(max_tokens),
            leavers: self.disconnects,
            leave_after: self.disconnect_after,
            inject,
        })
    }

    fn inject(&self) -> Result<Option<Inject>, BenchError> {
        let times_ms = 0.0..1e9;
        check(
            times_ms.contains(&self.inject_at_ms),
            "--inject-at-ms must be at least 0 and less than 1e9",
        )?;
        check(
            times_ms.contains(&self.inject_every_ms),
            "--inject-every-ms must be at least 0 and less than 1e9",
        )?;
        check(self.inject_max_tokens > 0, "--inject-max-tokens must be at least 1")?;
        let Some(prompt_tokens) = self.inject_prompt_tokens else {
            return Ok(None);
        };
        check(
            (1..=10_000_000).contains(&prompt_tokens),
            "--inject-prompt-tokens must be 1 to 10000000",
        )?;
        Ok(Some(Inject {
            prompt_tokens,
            at_s: self.inject_at_ms / 1e3,
            count: self.inject_count,
            every_s: self.inject_every_ms / 1e3,
            max_tokens: self.inject_max_tokens,
        }))
    }
}
