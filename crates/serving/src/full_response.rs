//! The response to a request that does not stream, as one of OpenAI's objects.

use loquent_infer::vocab::Vocab;
use serde_json::{Value, json};

use crate::api::logprobs::LogprobsFormat;
use crate::api::request::Endpoint;
use crate::full_answer::{FullAnswer, FullCall, FullCompletion};

/// Returns the response for a complete `answer`.
pub fn full_response(answer: &FullAnswer, vocab: &dyn Vocab) -> Value {
    let FullAnswer { head, completions, usage, .. } = answer;
    let object = match head.endpoint {
        Endpoint::Chat => "chat.completion",
        Endpoint::Text => "text_completion",
    };
    let choice =
        |(index, one): (usize, &FullCompletion)| one.choice_json(head.endpoint, index, vocab);
    let choices: Vec<Value> = completions.iter().enumerate().map(choice).collect();
    let mut response = json!({
        "id": head.id, "object": object, "created": head.created_s, "model": head.model,
        "choices": choices, "usage": usage.json(),
    });
    if let Some(fingerprint) = &head.fingerprint {
        response["system_fingerprint"] = fingerprint.as_str().into();
    }
    response
}

impl FullCompletion {
    fn choice_json(&self, endpoint: Endpoint, index: usize, vocab: &dyn Vocab) -> Value {
        let logprobs = match self.logprobs.as_slice() {
            [] => Value::Null,
            some => LogprobsFormat::of(endpoint).json(vocab, some),
        };
        let mut choice = match endpoint {
            Endpoint::Chat => json!({
                "index": index, "message": self.message(),
                "logprobs": logprobs, "finish_reason": self.finish_reason,
            }),
            Endpoint::Text => json!({
                "index": index, "text": self.text,
                "logprobs": logprobs, "finish_reason": self.finish_reason,
            }),
        };
        if let Some(stop) = &self.stop_reason {
            choice["stop_reason"] = stop.as_str().into();
        }
        choice
    }

    /// Returns the completion as an assistant's chat message.
    pub fn message(&self) -> Value {
        let only_calls = self.text.is_empty() && !self.calls.is_empty();
        let content = if only_calls { Value::Null } else { self.text.as_str().into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |call: &FullCall| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}
