//! Token counts of an answer: the server's own, and those that an upstream server reports.

use serde_json::{Map, Value, json};

/// Token counts of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, each prompt counted once.
    pub prompt_tokens: u64,
    /// Of those, from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated for all completions.
    pub completion_tokens: u64,
    /// Of those, reasoning, as far as it has ended.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// As JSON.
    pub fn json(&self) -> Value {
        let mut usage = json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        });
        if self.reasoning_tokens > 0 {
            usage["completion_tokens_details"] = json!({"reasoning_tokens": self.reasoning_tokens});
        }
        usage
    }
}

/// Token counts as they came, and as far as they are understood.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamUsage {
    /// The counts.
    pub usage: Usage,
    /// As they came.
    pub json: Value,
    /// What stood beside them, in a chunk of their own.
    pub extra: Map<String, Value>,
}
