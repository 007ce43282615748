//! The flags that set sampling parameters for requests that leave them open.

use std::ops::RangeInclusive;

use clap::Args;
use loquent_server::StatedSampling;

/// Sampling parameters of requests that set none. They win over those of the model;
/// docs/sampling.md has the whole order.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature for requests that set none, 0 (always the likeliest token) to 2 [default: the
    /// model's, else 0.8]
    #[arg(long, env = "LOQUENT_TEMPERATURE", value_name = "T", value_parser = parse_temperature)]
    temperature: Option<f32>,
    /// Sample from the N likeliest tokens, 0 from all, for requests that do not say [default: the
    /// model's, else 40]
    #[arg(long, env = "LOQUENT_TOP_K", value_name = "N")]
    top_k: Option<u32>,
    /// Sample from the likeliest tokens with this total probability, 0 to 1, for requests that do
    /// not say [default: the model's, else 0.95]
    #[arg(long, env = "LOQUENT_TOP_P", value_name = "P", value_parser = parse_share)]
    top_p: Option<f32>,
    /// Drop tokens less likely than this share of the likeliest one, 0 to 1, for requests that do
    /// not say [default: the model's, else 0.05]
    #[arg(long, env = "LOQUENT_MIN_P", value_name = "P", value_parser = parse_share)]
    min_p: Option<f32>,
    /// Divide the logits of tokens that have occurred by this, 0.01 to 10, for requests that do not
    /// say; 1 is off [default: the model's, else 1]
    #[arg(long, env = "LOQUENT_REPEAT_PENALTY", value_name = "X", value_parser = parse_penalty)]
    repeat_penalty: Option<f32>,
    /// Seed of the random numbers for requests that set none [default: a random one for each]
    #[arg(long, env = "LOQUENT_SEED", value_name = "N")]
    pub(super) seed: Option<u64>,
}

impl SamplingArgs {
    /// Returns what the flags state.
    pub(crate) fn stated(&self) -> StatedSampling {
        StatedSampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
        }
    }
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    parse_within(text, 0.0..=2.0)
}

fn parse_share(text: &str) -> Result<f32, String> {
    parse_within(text, 0.0..=1.0)
}

fn parse_penalty(text: &str) -> Result<f32, String> {
    parse_within(text, 0.01..=10.0)
}

fn parse_within(text: &str, range: RangeInclusive<f32>) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("use a number from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_bounds_that_it_has_in_a_request() {
        assert_eq!(parse_temperature("0"), Ok(0.0));
        assert_eq!(parse_share("0.95"), Ok(0.95));
        assert_eq!(parse_penalty("0.01"), Ok(0.01));
        for wrong in ["", "hot", "nan", "inf", "-0.1", "2.1"] {
            assert!(parse_temperature(wrong).is_err(), "{wrong}");
        }
        assert!(parse_share("1.1").is_err() && parse_penalty("0").is_err());
    }
}
