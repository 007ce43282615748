//! Remaining budgets of a key, in the headers that OpenAI sends.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use loquent_infer::admission::BudgetLevel;

const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Adds the levels of the request and token budgets to a response's headers.
pub fn add_rate_headers(levels: [Option<BudgetLevel>; 2], headers: &mut HeaderMap) {
    for (names, level) in [REQUESTS, TOKENS].into_iter().zip(levels) {
        let Some(BudgetLevel { limit, remaining, reset }) = level else { continue };
        let values = [limit.to_string(), remaining.to_string(), short_duration(reset)];
        for (name, value) in names.into_iter().zip(values) {
            headers.extend(HeaderValue::try_from(value).map(|value| (name, value)));
        }
    }
}

/// Formats a duration as OpenAI does: `12ms`, `1.5s`, `6m0s`. Rounds up to milliseconds.
fn short_duration(duration: Duration) -> String {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (minutes, ms) = (ms / 60_000, ms % 60_000);
    let seconds = ms as f64 / 1e3;
    if minutes == 0 { format!("{seconds}s") } else { format!("{minutes}m{seconds}s") }
}

#[cfg(test)]
mod tests {
    //! Tests that the headers are OpenAI's, and absent without a limit.
    use super::*;

    #[test]
    fn durations_are_written_as_openai_does() {
        let written = |ns| short_duration(Duration::from_nanos(ns));
        assert_eq!(written(0), "0ms");
        assert_eq!(written(11_000_001), "12ms");
        assert_eq!(written(1_500_000_000), "1.5s");
        assert_eq!(written(360_000_000_000), "6m0s");
        assert_eq!(written(90_951_000_000), "1m30.951s");
    }

    #[test]
    fn each_budget_has_three_headers() {
        let mut headers = HeaderMap::new();
        add_rate_headers([None, None], &mut headers);
        assert!(headers.is_empty());
        let level = BudgetLevel { limit: 60, remaining: 59, reset: Duration::from_secs(1) };
        add_rate_headers([Some(level), None], &mut headers);
        assert_eq!(headers.len(), 3);
        assert_eq!(headers["x-ratelimit-limit-requests"], "60");
        assert_eq!(headers["x-ratelimit-remaining-requests"], "59");
        assert_eq!(headers["x-ratelimit-reset-requests"], "1s");
    }
}
