//! A full answer as Anthropic's message.

use serde_json::{Value, json};

use loquent_serving::api::head::AnswerHead;
use loquent_serving::full_answer::{FullAnswer, FullCall, FullCompletion};
use loquent_serving::usage::Usage;

/// The signature of every thinking block. Anthropic's clients send it back with the block; here it
/// proves nothing and is not checked.
pub const SIGNATURE: &str = "unsigned";

/// Form in which a client receives the thinking: its text, or only a sign of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThinkingDisplay {
    /// The block contains the text.
    #[default]
    Shown,
    /// The block is empty.
    Omitted,
}

/// Returns the message of a complete `answer`.
pub fn message(answer: &FullAnswer, thinking: ThinkingDisplay) -> Value {
    let nothing = FullCompletion::default();
    // There is one: the API has no parameter for more.
    let only = answer.completions.first().unwrap_or(&nothing);
    let AnswerHead { id, model, .. } = &answer.head;
    let mut message = open_message(&message_id(id), model, answer.usage);
    let (reason, sequence) =
        stop_reason(only.finish_reason.as_deref(), only.stop_reason.as_deref());
    message["content"] = content(only, thinking).into();
    message["stop_reason"] = reason.into();
    message["stop_sequence"] = sequence.into();
    message
}

/// Returns a message without any content yet.
pub fn open_message(id: &str, model: &str, usage: Usage) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage_json(usage),
    })
}

/// Converts an OpenAI completion's `id` to a message id.
pub fn message_id(id: &str) -> String {
    format!("msg_{}", id.strip_prefix("chatcmpl-").unwrap_or(id))
}

/// Formats token counts; Anthropic counts cached tokens separately.
pub fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    })
}

/// Returns Anthropic's name for the reason why an answer ended, and the stop sequence if one ended
/// it.
pub fn stop_reason<'a>(
    reason: Option<&'a str>,
    stop: Option<&'a str>,
) -> (&'a str, Option<&'a str>) {
    match (reason.unwrap_or("stop"), stop) {
        ("stop", Some(stop)) => ("stop_sequence", Some(stop)),
        ("stop", None) => ("end_turn", None),
        ("length", _) => ("max_tokens", None),
        ("tool_calls", _) => ("tool_use", None),
        ("content_filter", _) => ("refusal", None),
        (other, _) => (other, None),
    }
}

fn content(completion: &FullCompletion, display: ThinkingDisplay) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !completion.reasoning.is_empty() {
        let thinking = match display {
            ThinkingDisplay::Shown => &*completion.reasoning,
            ThinkingDisplay::Omitted => "",
        };
        blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": SIGNATURE}));
    }
    if !completion.text.is_empty() {
        blocks.push(json!({"type": "text", "text": completion.text}));
    }
    blocks.extend(completion.calls.iter().map(tool_use));
    blocks
}

fn tool_use(call: &FullCall) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input()})
}
