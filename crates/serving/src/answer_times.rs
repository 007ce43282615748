//! Durations of an answer, and llama-server's `timings` made of them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::usage::Usage;

/// Durations of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerTimes {
    /// Time to the first token.
    pub prompt: Duration,
    /// Time from the first token to the last.
    pub generation: Duration,
    /// Time from the request's arrival to the end.
    pub total: Duration,
}

impl AnswerTimes {
    /// Returns llama-server's `timings` of an answer with these counts. The prompt's time includes
    /// its wait for a place in the batch; the first token comes with the prompt, so that the rates
    /// of generation are those of the others.
    pub fn llama_timings(&self, usage: &Usage) -> Value {
        let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        let decoded = usage.completion_tokens.saturating_sub(1);
        json!({
            "cache_n": usage.cached_tokens,
            "prompt_n": computed,
            "prompt_ms": ms(self.prompt),
            "prompt_per_token_ms": each_ms(computed, self.prompt),
            "prompt_per_second": rate(computed, self.prompt),
            "predicted_n": usage.completion_tokens,
            "predicted_ms": ms(self.generation),
            "predicted_per_token_ms": each_ms(decoded, self.generation),
            "predicted_per_second": rate(decoded, self.generation),
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn each_ms(tokens: u64, time: Duration) -> f64 {
    ms(time) / tokens.max(1) as f64
}

fn rate(tokens: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => tokens as f64 / time.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_computed_prompts_and_decode_steps() {
        let usage =
            Usage { prompt_tokens: 12, cached_tokens: 2, completion_tokens: 5, ..Usage::default() };
        let prompt = Duration::from_millis(100);
        let times = AnswerTimes { prompt, generation: prompt * 4, total: prompt * 5 };
        let shown = times.llama_timings(&usage);
        for (name, value) in [
            ("cache_n", 2.0),
            ("prompt_n", 10.0),
            ("prompt_per_token_ms", 10.0),
            ("prompt_per_second", 100.0),
            ("predicted_n", 5.0),
            ("predicted_ms", 400.0),
            ("predicted_per_token_ms", 100.0),
            ("predicted_per_second", 10.0),
        ] {
            assert_eq!(shown[name].as_f64(), Some(value), "{name}");
        }
        let one = Usage { completion_tokens: 1, ..usage };
        let shown = AnswerTimes { generation: Duration::ZERO, ..times }.llama_timings(&one);
        for name in ["predicted_per_second", "predicted_ms", "predicted_per_token_ms"] {
            assert_eq!(shown[name], 0.0, "{name}");
        }
    }
}
