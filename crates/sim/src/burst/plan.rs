//! Burst plans, as TOML.

use serde::{Deserialize, Serialize};

use super::reader::ContentRule;
use crate::plan::PlanError;

/// Largest burst that is tried; a larger one would take too long to search.
pub const MAX_READERS: usize = 1_024;

/// Bursts of answers on machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstPlan {
    /// One-line title for tables and figures.
    pub title: String,
    /// Question that the plan answers, for its reader.
    #[serde(default)]
    pub about: String,
    /// Tokens of each answer.
    pub answer_tokens: u32,
    /// Reading speed of the readers.
    pub reading_tokens_per_s: f64,
    /// Round trip between server and reader.
    pub rtt_ms: f64,
    /// Conditions for readers to be content.
    pub content: ContentRule,
    /// Prompt lengths, each with separate bursts.
    pub prompt_tokens: Vec<u32>,
    /// Batch sizes from which the best is chosen.
    pub batch_sizes: Vec<usize>,
    /// The machines.
    pub machine: Vec<Machine>,
    /// Claims of the plan; every run checks them.
    #[serde(default)]
    pub claim: Vec<BurstClaim>,
}

/// A machine with measured step durations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name in tables and figures.
    pub name: String,
    /// Description of the measurement and its setup.
    pub measured: String,
    /// Steps without prompts: pairs of the number of answers and the duration of a step.
    /// Interpolated and extrapolated linearly.
    pub decode_ms: Vec<(f64, f64)>,
    /// Additional duration per prompt token.
    pub prompt_token_ms: f64,
}

impl Machine {
    /// Describes the first parameter that is out of range, if there is one.
    pub fn fault(&self) -> Option<String> {
        let table = &self.decode_ms;
        let grows = table.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let starts = table.first().is_some_and(|(rows, _)| *rows >= 1.0);
        let unsorted = "decode_ms lacks rows of 1 or more in ascending order".to_owned();
        within("prompt_token_ms", self.prompt_token_ms, 0.001, 60_000.0)
            .or_else(|| (!(grows && starts)).then_some(unsorted))
            .or_else(|| table.iter().find_map(|(_, ms)| within("decode_ms", *ms, 0.001, 60_000.0)))
    }

    /// Returns the duration of a step that advances `rows` answers and computes `prompt_tokens`.
    pub fn step_ms(&self, rows: usize, prompt_tokens: usize) -> f64 {
        // The piece of the line on which the rows lie, or the nearest one.
        let x = rows as f64;
        let above = self.decode_ms.partition_point(|(at, _)| *at < x);
        let last = self.decode_ms.len() - 1;
        let ((from, low), (to, high)) = match above.clamp(1, last.max(1)) {
            _ if last == 0 => ((0.0, 0.0), self.decode_ms[0]),
            above => (self.decode_ms[above - 1], self.decode_ms[above]),
        };
        let rows_ms = low + (high - low) / (to - from) * (x - from);
        rows_ms.max(0.0) + self.prompt_token_ms * prompt_tokens as f64
    }
}

/// Describes `value` if it is out of range.
pub(crate) fn within(name: &str, value: f64, least: f64, most: f64) -> Option<String> {
    let fits = (least..=most).contains(&value);
    (!fits).then(|| format!("{name} is not in {least}..={most}"))
}

/// A statement about the largest bursts on a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstClaim {
    /// Name of the machine.
    pub machine: String,
    /// Length of the prompts.
    pub prompt_tokens: u32,
    /// Minimum ratio of the largest burst by need to that of first come, first served.
    pub ratio_at_least: f64,
}

/// Order in which requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// First come, first served: the server has no information about readers.
    FirstCome,
    /// The reader who runs dry first is served first: the server knows the unread tokens of each
    /// reader.
    ByNeed,
}

impl Policy {
    /// Both policies, in the order of tables.
    pub const ALL: [Self; 2] = [Self::FirstCome, Self::ByNeed];

    /// Returns the name in tables and figures.
    pub fn label(self) -> &'static str {
        match self {
            Self::FirstCome => "first come, first served",
            Self::ByNeed => "by need",
        }
    }
}

impl BurstPlan {
    /// Parses and checks the text of a plan; `name` is for messages.
    ///
    /// # Errors
    /// If it is not a burst plan, or a part of it is out of range.
    pub fn parse(name: &str, text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|source| PlanError::Parse {
            path: name.to_owned(),
            source: Box::new(source),
        })?;
        match plan.fault() {
            Some(fault) => Err(PlanError::Senseless(format!("{name}: {fault}"))),
            None => Ok(plan),
        }
    }

    fn fault(&self) -> Option<String> {
        let of_all = within("answer_tokens", self.answer_tokens.into(), 1.0, 10_000.0)
            .or_else(|| within("reading_tokens_per_s", self.reading_tokens_per_s, 0.5, 50.0))
            .or_else(|| within("rtt_ms", self.rtt_ms, 0.0, 10_000.0))
            .or_else(|| within("ttft_s", self.content.ttft_s, 0.001, 3_600.0))
            .or_else(|| within("stall_share", self.content.stall_share, 0.0, 0.99))
            .or_else(|| within("readers_share", self.content.readers_share, 0.01, 1.0))
            .or_else(|| self.prompt_tokens.is_empty().then(|| "prompt_tokens is empty".into()))
            .or_else(|| self.batch_sizes.is_empty().then(|| "batch_sizes is empty".into()))
            .or_else(|| self.machine.is_empty().then(|| "there is no machine".into()));
        let prompts = || {
            self.prompt_tokens
                .iter()
                .find_map(|&tokens| within("prompt_tokens", tokens.into(), 1.0, 100_000.0))
        };
        let batches = || {
            let most = MAX_READERS as f64;
            self.batch_sizes.iter().find_map(|&size| within("batch_sizes", size as f64, 1.0, most))
        };
        let machines = || self.machine.iter().find_map(Machine::fault);
        let claims = || {
            let unknown = |claim: &&BurstClaim| {
                !self.machine.iter().any(|machine| machine.name == claim.machine)
                    || !self.prompt_tokens.contains(&claim.prompt_tokens)
            };
            let claim = self.claim.iter().find(unknown)?;
            Some(format!(
                "a claim is about {} with prompts of {}, which the plan lacks",
                claim.machine, claim.prompt_tokens
            ))
        };
        of_all.or_else(prompts).or_else(batches).or_else(machines).or_else(claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_lie_on_straight_lines_between_what_was_measured() {
        let (name, measured) = (String::new(), String::new());
        let decode_ms = vec![(1.0, 10.0), (3.0, 14.0), (5.0, 24.0)];
        let machine = Machine { name, measured, decode_ms, prompt_token_ms: 0.5 };
        let steps = [0, 1, 2, 3, 4, 7].map(|rows| machine.step_ms(rows, 0));
        assert_eq!(steps, [8.0, 10.0, 12.0, 14.0, 19.0, 34.0]);
        assert_eq!(machine.step_ms(2, 8), 16.0);
    }

    #[test]
    fn plans_out_of_range_are_refused() {
        let built_in = super::super::BUILT_IN;
        assert!(BurstPlan::parse("burst", built_in).is_ok());
        for (part, wrong, word) in [
            ("answer_tokens = 300", "answer_tokens = 0", "answer_tokens"),
            ("rtt_ms = 50.0", "rtt_ms = -1.0", "rtt_ms"),
            ("decode_ms = [[1, ", "decode_ms = [[0, ", "decode_ms"),
            ("batch_sizes = [", "batch_sizes = [5000, ", "batch_sizes"),
            ("prompt_tokens = 128", "prompt_tokens = 129", "a claim"),
        ] {
            assert!(built_in.contains(part), "{part}");
            let refused = BurstPlan::parse("burst", &built_in.replacen(part, wrong, 1));
            assert!(refused.unwrap_err().to_string().contains(word), "{wrong}");
        }
    }
}
