//! An answer's records as the events of llama-server's own completions.

use std::time::Duration;

use loquent_proto::{Delta, Error};
use serde_json::{Value, json};

use crate::stream_times::StreamTimes;
use loquent_serving::active_request::AnswerTimes;
use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;
use loquent_serving::full_answer::{FullAnswer, FullCompletion, stop_reason};
use loquent_serving::usage::Usage;

/// Writes one answer.
#[derive(Debug)]
pub struct InfillEvents {
    model: String,
    reason: String,
    /// The stop string that ended the answer.
    word: Option<String>,
    usage: Usage,
    times: StreamTimes,
}

impl InfillEvents {
    /// Returns a writer for the answer to a request that arrived at `arrived` on `clock`.
    pub fn new(clock: Clock, arrived: Duration) -> Self {
        Self {
            model: String::new(),
            reason: String::new(),
            word: None,
            usage: Usage::default(),
            times: StreamTimes::new(clock, arrived),
        }
    }

    fn end(&self) -> Value {
        let end = CompletionEnd { reason: &self.reason, word: self.word.as_deref() };
        object("", &self.model, &end, &self.usage, self.times.times())
    }
}

impl EventWriter for InfillEvents {
    fn write(&mut self, _id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        self.times.note(delta);
        match delta {
            Delta::Open { meta } => {
                let meta: Value = serde_json::from_str(meta).map_err(|_| Error::Malformed)?;
                self.model = meta["model"].as_str().unwrap_or_default().to_owned();
            }
            // An empty text carries log-probabilities, which this API has no place for.
            Delta::Text { text, .. } if text.is_empty() => {}
            Delta::Text { text, choice, .. } => {
                put(out, &json!({"index": choice, "content": text, "stop": false}));
            }
            Delta::Finish { reason, .. } => self.reason = reason.clone(),
            Delta::Usage { .. } => self.usage = Usage::of_delta(delta).unwrap_or(self.usage),
            // An upstream server's counts.
            Delta::Other { json, .. } => {
                self.usage = Usage::of_members(json).unwrap_or(self.usage);
                self.word = stop_reason(json).or(self.word.take());
            }
            Delta::Done => put(out, &self.end()),
            _ => {}
        }
        Ok(())
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        put(out, &error.json());
    }
}

/// Returns the answer as one object.
pub fn whole(answer: &FullAnswer) -> Value {
    let nothing = FullCompletion::default();
    let only = answer.completions.first().unwrap_or(&nothing);
    let reason = only.finish_reason.as_deref().unwrap_or_default();
    let end = CompletionEnd { reason, word: only.stop_reason.as_deref() };
    object(&only.text, &answer.head.model, &end, &answer.usage, answer.times)
}

/// End of an answer: OpenAI's reason, and the stop string if one ended it.
struct CompletionEnd<'a> {
    reason: &'a str,
    word: Option<&'a str>,
}

fn object(
    text: &str,
    model: &str,
    end: &CompletionEnd<'_>,
    usage: &Usage,
    times: AnswerTimes,
) -> Value {
    let kind = match (end.reason, end.word) {
        ("length", _) => "limit",
        (_, Some(_)) => "word",
        _ => "eos",
    };
    json!({
        "index": 0,
        "content": text,
        "stop": true,
        "model": model,
        "stop_type": kind,
        "stopping_word": end.word.unwrap_or_default(),
        "truncated": false,
        "tokens_cached": usage.cached_tokens,
        "tokens_evaluated": usage.prompt_tokens,
        "tokens_predicted": usage.completion_tokens,
        "timings": timings(usage, times),
    })
}

/// Returns llama-server's `timings`. The prompt's time includes its wait for a place in the batch.
fn timings(usage: &Usage, times: AnswerTimes) -> Value {
    let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let rate = |tokens: u64, time: Duration| match time.is_zero() {
        true => 0.0,
        false => tokens as f64 / time.as_secs_f64(),
    };
    let each = |tokens: u64, time: Duration| ms(time) / tokens.max(1) as f64;
    json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": ms(times.prompt),
        "prompt_per_token_ms": each(computed, times.prompt),
        "prompt_per_second": rate(computed, times.prompt),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": ms(times.generation),
        "predicted_per_token_ms": each(usage.completion_tokens, times.generation),
        "predicted_per_second": rate(usage.completion_tokens, times.generation),
    })
}

fn put(out: &mut Vec<u8>, event: &Value) {
    out.extend_from_slice(format!("data: {event}\n\n").as_bytes());
}
