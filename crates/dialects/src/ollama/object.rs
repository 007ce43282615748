//! Objects of Ollama's answers: the lines of a stream, and a full answer.

use std::time::Duration;

use loquent_infer::vocab::Vocab;
use serde_json::{Map, Value, json};

use loquent_serving::answer_times::AnswerTimes;
use loquent_serving::api::logprobs::LogprobsFormat;
use loquent_serving::clock::timestamp;
use loquent_serving::full_answer::{FullAnswer, FullCall, FullCompletion};
use loquent_serving::usage::Usage;

/// The endpoint whose format an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `/api/chat`: the text is in a message.
    Chat,
    /// `/api/generate`: the text is the response.
    Generate,
}

/// Content of a line, or of the full answer.
#[derive(Debug, Clone, Default)]
pub struct LineContent<'a> {
    /// Text of the answer.
    pub text: &'a str,
    /// Text of the reasoning before it.
    pub thinking: &'a str,
    /// Tool calls.
    pub calls: &'a [FullCall],
    /// Log-probabilities of its tokens, null if the request asks for none.
    pub logprobs: Value,
}

/// Returns the members of an object with the content `piece`.
pub fn members(shape: Shape, model: &str, piece: &LineContent<'_>) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert("model".into(), model.into());
    members.insert("created_at".into(), timestamp().into());
    match shape {
        Shape::Chat => {
            let mut message = json!({"role": "assistant", "content": piece.text});
            if !piece.thinking.is_empty() {
                message["thinking"] = piece.thinking.into();
            }
            if !piece.calls.is_empty() {
                message["tool_calls"] = piece.calls.iter().map(call_json).collect();
            }
            members.insert("message".into(), message);
        }
        Shape::Generate => {
            members.insert("response".into(), piece.text.into());
            if !piece.thinking.is_empty() {
                members.insert("thinking".into(), piece.thinking.into());
            }
        }
    }
    if !piece.logprobs.is_null() {
        members.insert("logprobs".into(), piece.logprobs.clone());
    }
    members.insert("done".into(), false.into());
    members
}

/// Adds the members of an answer's last object: the reason it ended, and its usage and times.
pub fn finish(
    members: &mut Map<String, Value>,
    reason: Option<&str>,
    usage: Usage,
    times: AnswerTimes,
) {
    let reason = match reason {
        None | Some("tool_calls") => "stop",
        Some(other) => other,
    };
    let nanos = |time: Duration| Value::from(time.as_nanos() as u64);
    members.insert("done".into(), true.into());
    members.insert("done_reason".into(), reason.into());
    members.insert("total_duration".into(), nanos(times.total));
    members.insert("load_duration".into(), 0.into());
    members.insert("prompt_eval_count".into(), usage.prompt_tokens.into());
    members.insert("prompt_eval_duration".into(), nanos(times.prompt));
    members.insert("eval_count".into(), usage.completion_tokens.into());
    members.insert("eval_duration".into(), nanos(times.generation));
}

/// Returns the object that answers an empty prompt: the model is loaded, or `unloads`.
pub fn loaded(shape: Shape, model: &str, unloads: bool) -> Value {
    let mut members = members(shape, model, &LineContent::default());
    members.insert("done".into(), true.into());
    members.insert("done_reason".into(), if unloads { "unload" } else { "load" }.into());
    members.into()
}

/// Returns the object of a complete `answer`, whose tokens are those of `vocab`.
pub fn full(shape: Shape, model: &str, answer: &FullAnswer, vocab: &dyn Vocab) -> Value {
    let nothing = FullCompletion::default();
    // There is one: the API has no parameter for more.
    let only = answer.completions.first().unwrap_or(&nothing);
    let logprobs = match only.logprobs.as_slice() {
        [] => Value::Null,
        some => LogprobsFormat::Chat.json(vocab, some)["content"].take(),
    };
    let (text, thinking, calls) = (&only.text, &only.reasoning, &only.calls);
    let piece = LineContent { text, thinking, calls, logprobs };
    let mut members = members(shape, model, &piece);
    finish(&mut members, only.finish_reason.as_deref(), answer.usage, answer.times);
    members.into()
}

fn call_json(call: &FullCall) -> Value {
    let function = json!({"index": call.index, "name": call.name, "arguments": call.input()});
    json!({"id": call.id, "function": function})
}
