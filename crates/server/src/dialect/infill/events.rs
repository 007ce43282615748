//! An answer's records as the events of llama-server's own completions.

use loquent_proto::{Delta, Error};
use serde_json::{Value, json};

use crate::dialect::EventWriter;
use crate::error::ApiError;
use crate::full_answer::FullAnswer;

/// Writes one answer.
#[derive(Debug, Default)]
pub struct InfillEvents {
    model: String,
    reason: String,
    tokens: [u64; 2],
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
            Delta::Usage { prompt, completion, .. } => self.tokens = [*prompt, *completion],
            Delta::Done => put(out, &object("", &self.model, &self.reason, self.tokens)),
            _ => {}
        }
        Ok(())
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        put(out, &error.json());
    }
}

/// The answer as one object.
pub fn whole(answer: &FullAnswer) -> Value {
    let (text, reason) = answer.completions.first().map_or(("", ""), |completion| {
        (completion.text.as_str(), completion.finish_reason.as_deref().unwrap_or_default())
    });
    let tokens = [answer.usage.prompt_tokens, answer.usage.completion_tokens];
    object(text, &answer.head.model, reason, tokens)
}

fn object(text: &str, model: &str, reason: &str, [prompt, completion]: [u64; 2]) -> Value {
    json!({
        "index": 0,
        "content": text,
        "stop": true,
        "model": model,
        "stop_type": if reason == "length" { "limit" } else { "eos" },
        "tokens_evaluated": prompt,
        "tokens_predicted": completion,
    })
}

fn put(out: &mut Vec<u8>, event: &Value) {
    out.extend_from_slice(format!("data: {event}\n\n").as_bytes());
}
