//! The answer to a request that does not stream, as one of OpenAI's objects.

use loquent_infer::vocab::Vocab;
use loquent_proto::Delta;
use serde_json::{Value, json};

use super::head::AnswerHead;
use super::logprobs::logprobs_json;
use super::request::Endpoint;
use crate::flush::{Flush, TokenLogprobs};
use crate::usage::Usage;

/// The response of complete `completions`.
pub fn full_response(
    head: &AnswerHead,
    completions: &[FullCompletion],
    usage: &Usage,
    vocab: &dyn Vocab,
) -> Value {
    let object = match head.endpoint {
        Endpoint::Chat => "chat.completion",
        Endpoint::Text => "text_completion",
    };
    let choice =
        |(index, one): (usize, &FullCompletion)| one.choice_json(head.endpoint, index, vocab);
    let choices: Vec<Value> = completions.iter().enumerate().map(choice).collect();
    json!({
        "id": head.id, "object": object, "created": head.created_s, "model": head.model,
        "choices": choices, "usage": usage.json(),
    })
}

/// One completion, put together from its flushes.
#[derive(Debug, Clone, Default)]
pub struct FullCompletion {
    text: String,
    reasoning: String,
    calls: Vec<FullCall>,
    logprobs: Vec<TokenLogprobs>,
    finish_reason: Option<String>,
}

#[derive(Debug, Clone)]
struct FullCall {
    index: u32,
    id: String,
    name: String,
    arguments: String,
}

impl FullCompletion {
    /// A completion whose text begins with `echo`, the repeated prompt.
    pub fn with_echo(echo: &str) -> Self {
        Self { text: echo.to_owned(), ..Self::default() }
    }

    /// Adds a flush.
    pub fn push(&mut self, flush: Flush) {
        flush.deltas.into_iter().for_each(|delta| self.push_delta(delta));
        self.logprobs.extend(flush.logprobs);
    }

    /// About how many bytes its JSON has.
    pub fn bytes(&self) -> usize {
        /// About what a token takes in JSON: its text, its bytes and its log-probability.
        const TOKEN_BYTES: usize = 128;
        let tokens = self.logprobs.iter().map(|one| 1 + one.logprobs.top.len()).sum::<usize>();
        self.text.len() + self.reasoning.len() + tokens * TOKEN_BYTES
    }

    fn push_delta(&mut self, delta: Delta) {
        match delta {
            Delta::Text { text, .. } => self.text.push_str(&text),
            Delta::Reasoning { text, .. } => self.reasoning.push_str(&text),
            Delta::ToolCall { index, id, name, arguments, .. } => match self.calls.last_mut() {
                Some(last) if last.index == index => last.arguments.push_str(&arguments),
                _ => self.calls.push(FullCall { index, id, name, arguments }),
            },
            Delta::Finish { reason, .. } => self.finish_reason = Some(reason),
            // Records of the whole answer, and an upstream's, whose full responses pass as
            // they are.
            _ => {}
        }
    }

    fn choice_json(&self, endpoint: Endpoint, index: usize, vocab: &dyn Vocab) -> Value {
        let logprobs = match self.logprobs.as_slice() {
            [] => Value::Null,
            some => logprobs_json(endpoint, vocab, some, 0),
        };
        match endpoint {
            Endpoint::Chat => json!({
                "index": index, "message": self.message(),
                "logprobs": logprobs, "finish_reason": self.finish_reason,
            }),
            Endpoint::Text => json!({
                "index": index, "text": self.text,
                "logprobs": logprobs, "finish_reason": self.finish_reason,
            }),
        }
    }

    fn message(&self) -> Value {
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
