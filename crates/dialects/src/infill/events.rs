//! An answer's records as the events of llama-server's own completions.

use loquent_proto::{Delta, Error};
use serde_json::{Value, json};

use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;
use loquent_serving::full_answer::{FullAnswer, FullCompletion, stop_reason};
use loquent_serving::usage::Usage;

/// Writes one answer.
#[derive(Debug, Default)]
pub struct InfillEvents {
    model: String,
    reason: String,
    /// The stop string that ended the answer.
    word: Option<String>,
    usage: Usage,
}

impl EventWriter for InfillEvents {
    fn write(&mut self, _id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
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
            Delta::Done => {
                let end = CompletionEnd { reason: &self.reason, word: self.word.as_deref() };
                put(out, &object("", &self.model, &end, &self.usage));
            }
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
    object(&only.text, &answer.head.model, &end, &answer.usage)
}

/// CompletionEnd of an answer: OpenAI's reason, and the stop string if one ended it.
struct CompletionEnd<'a> {
    reason: &'a str,
    word: Option<&'a str>,
}

fn object(text: &str, model: &str, end: &CompletionEnd<'_>, usage: &Usage) -> Value {
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
    })
}

fn put(out: &mut Vec<u8>, event: &Value) {
    out.extend_from_slice(format!("data: {event}\n\n").as_bytes());
}
