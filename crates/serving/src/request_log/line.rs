//! Lines of the request log, and their writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use tokio::time::Instant;

use super::id::RequestId;
use crate::identity::ApiKey;
use crate::metrics::Carriers;
use crate::usage::Usage;

/// Target of the log lines, for filters.
const TARGET: &str = "loquent::requests";
/// Maximum lines per second for requests without an answer. Refused clients can retry at once, and
/// must not be able to fill the disk.
const MAX_OTHERS_PER_S: u32 = 20;
/// Maximum characters of a name from outside.
const MAX_NAME_CHARS: usize = 128;

/// An entry of the request log.
#[derive(Debug)]
pub enum RequestLine {
    /// An answer has ended.
    Answer(AnswerLine),
    /// A request without an answer.
    Other(OtherLine),
}

/// An answer that has ended, successfully or not.
#[derive(Debug)]
pub struct AnswerLine {
    /// Id of the request; `None` for a request from within this process.
    pub request: Option<RequestId>,
    /// Id of the answer in the API.
    pub answer: String,
    /// The model that answered.
    pub model: String,
    /// API key of the request.
    pub key: Option<Arc<ApiKey>>,
    /// Token counts.
    pub usage: Usage,
    /// Time from the request's arrival to the first token.
    pub first_token: Option<Duration>,
    /// Time from the first token to the last.
    pub generation: Option<Duration>,
    /// Time from the request's arrival to the end.
    pub took: Duration,
    /// Carriers of the answer.
    pub carriers: Carriers,
    /// Reasons why its completions ended, by their names in metrics.
    pub ends: Vec<&'static str>,
}

/// A request that was refused, or that was answered without a completion.
#[derive(Debug)]
pub struct OtherLine {
    /// Id of the request.
    pub request: RequestId,
    /// API key of the request, if known.
    pub key: Option<Arc<ApiKey>>,
    /// The HTTP method.
    pub method: Method,
    /// The path without its query.
    pub path: String,
    /// The HTTP status.
    pub status: u16,
    /// Code of the error.
    pub error: Option<&'static str>,
    /// Time from the arrival to the response, if known.
    pub took: Option<Duration>,
}

impl AnswerLine {
    /// Returns the tokens per second after the first one, over all completions.
    fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.generation.filter(|time| !time.is_zero())?.as_secs_f64();
        let firsts = self.ends.len() as u64;
        let later = self.usage.completion_tokens.checked_sub(firsts).filter(|&n| n > 0)?;
        Some(tenths(later as f64 / seconds))
    }

    /// Returns the distinct reasons why its completions ended.
    fn end(&self) -> String {
        let mut ends = self.ends.clone();
        ends.sort_unstable();
        ends.dedup();
        ends.join(",")
    }
}

/// Writes the lines of the request log.
pub struct RequestLineWriter {
    missed: Arc<AtomicU64>,
    others: LineRate,
}

impl RequestLineWriter {
    /// Creates a writer that also reports the number of `missed` lines.
    pub fn new(missed: Arc<AtomicU64>) -> Self {
        Self { missed, others: LineRate::new(Instant::now()) }
    }

    /// Writes `line`, unless there are too many of its kind.
    pub fn write(&mut self, line: &RequestLine) {
        let missed = self.missed.swap(0, Ordering::Relaxed);
        if missed > 0 {
            tracing::warn!(
                target: TARGET,
                missed,
                "requests are missing here: this log is not read, or not written, fast enough"
            );
        }
        match line {
            RequestLine::Answer(line) => write_answer(line),
            RequestLine::Other(line) => {
                let (is_due, left_out) = self.others.take(Instant::now());
                if left_out > 0 {
                    tracing::info!(target: TARGET, left_out, "further requests without an answer");
                }
                if is_due {
                    write_other(line);
                }
            }
        }
    }
}

fn write_answer(line: &AnswerLine) {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = line.usage;
    tracing::info!(
        target: TARGET,
        request = line.request.as_ref().map(|id| tracing::field::display(id.as_str())),
        answer = cut(&line.answer),
        key = key_name(line.key.as_deref()),
        model = cut(&line.model),
        prompt_tokens,
        cached_tokens,
        tokens = completion_tokens,
        ttft_ms = line.first_token.map(ms),
        tokens_per_s = line.tokens_per_s(),
        total_ms = ms(line.took),
        transport = %line.carriers,
        end = %line.end(),
        "answered"
    );
}

fn write_other(line: &OtherLine) {
    let (is_refused, method) = (line.status >= 400, &line.method);
    let what = if is_refused { "refused" } else { "served" };
    tracing::info!(
        target: TARGET,
        request = %line.request.as_str(),
        key = key_name(line.key.as_deref()),
        method = cut(method.as_str()),
        path = cut(&line.path),
        status = line.status,
        error = line.error,
        total_ms = line.took.map(ms),
        "{what}"
    );
}

fn key_name(key: Option<&ApiKey>) -> Option<&str> {
    key.map(|key| key.name.as_deref().unwrap_or("unnamed"))
}

/// Returns the beginning of a name from outside. The log's format quotes it.
fn cut(name: &str) -> &str {
    name.char_indices().nth(MAX_NAME_CHARS).map_or(name, |(end, _)| &name[..end])
}

fn ms(time: Duration) -> f64 {
    tenths(time.as_secs_f64() * 1e3)
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// Lets a limited number of lines pass per second, and counts the rest.
struct LineRate {
    since: Instant,
    passed: u32,
    left_out: u64,
}

impl LineRate {
    fn new(now: Instant) -> Self {
        Self { since: now, passed: 0, left_out: 0 }
    }

    /// Returns true if a line at `now` passes, and the number of lines left out in the previous
    /// second.
    fn take(&mut self, now: Instant) -> (bool, u64) {
        let mut before = 0;
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            before = self.left_out;
            *self = Self::new(now);
        }
        let is_due = self.passed < MAX_OTHERS_PER_S;
        self.passed += u32::from(is_due);
        self.left_out += u64::from(!is_due);
        (is_due, before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ends: &[&'static str], tokens: u64, generation: Option<Duration>) -> AnswerLine {
        AnswerLine {
            request: None,
            answer: "chatcmpl-1".into(),
            model: "m".into(),
            key: None,
            usage: Usage { completion_tokens: tokens, ..Usage::default() },
            first_token: Some(Duration::from_millis(20)),
            generation,
            took: Duration::from_secs(1),
            carriers: Carriers::default(),
            ends: ends.to_vec(),
        }
    }

    #[test]
    fn the_rate_is_that_after_the_first_tokens() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(line(&["stop"], 101, second).tokens_per_s(), Some(100.0));
        assert_eq!(line(&["stop", "length"], 102, second).tokens_per_s(), Some(100.0));
        for (tokens, time) in [(1, second), (0, second), (9, None), (9, Some(Duration::ZERO))] {
            assert_eq!(line(&["stop"], tokens, time).tokens_per_s(), None);
        }
    }

    #[test]
    fn each_way_to_end_is_named_once() {
        assert_eq!(line(&["stop", "length", "stop"], 3, None).end(), "length,stop");
    }

    #[test]
    fn a_flood_of_refusals_is_counted_instead() {
        let start = Instant::now();
        let mut rate = LineRate::new(start);
        let passed = (0..1000).filter(|_| rate.take(start).0).count();
        assert_eq!(passed, MAX_OTHERS_PER_S as usize);
        let later = start + Duration::from_secs(1);
        assert_eq!(rate.take(later), (true, 1000 - u64::from(MAX_OTHERS_PER_S)));
        assert_eq!(rate.take(later), (true, 0));
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(500)).chars().count(), MAX_NAME_CHARS);
    }
}
