//! Token counts of an answer.

use loquent_openai::chunk::ReportedUsage;
use loquent_proto::Delta;
use serde_json::{Value, json};

/// Token counts of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens; each prompt counts once, whatever `n` is.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated, over all completions.
    pub completion_tokens: u64,
    /// Reasoning tokens of the completions that have ended.
    pub reasoning_tokens: u64,
}

/// Requests and tokens of many answers, as the ledger of usage sums them up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageCounts {
    /// Requests admitted.
    pub requests: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache, of those.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
}

impl UsageCounts {
    /// Returns the tokens that budgets count: prompts and answers.
    pub const fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    /// Combines each count with the same one of `other`.
    fn zip(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            requests: combine(self.requests, other.requests),
            prompt_tokens: combine(self.prompt_tokens, other.prompt_tokens),
            cached_tokens: combine(self.cached_tokens, other.cached_tokens),
            completion_tokens: combine(self.completion_tokens, other.completion_tokens),
        }
    }

    /// Returns the sum, which stops at the largest number.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// Returns what was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }
}

impl Usage {
    /// Returns the counts as OpenAI's `usage` object.
    pub fn json(&self) -> Value {
        let mut usage = json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens.saturating_add(self.completion_tokens),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        });
        if self.reasoning_tokens > 0 {
            usage["completion_tokens_details"] = json!({"reasoning_tokens": self.reasoning_tokens});
        }
        usage
    }

    /// Returns the counts as a record of the log.
    pub const fn to_delta(self) -> Delta {
        Delta::Usage {
            prompt: self.prompt_tokens,
            completion: self.completion_tokens,
            cached: self.cached_tokens,
            reasoning: self.reasoning_tokens,
        }
    }

    /// Parses the counts in the members of an upstream server's last chunk.
    pub fn of_members(json: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(json).ok()?;
        let usage =
            ReportedUsage::from_json(json.get("usage").filter(|it| it.is_object())?.clone());
        Self::of_delta(&usage.to_delta())
    }

    /// Returns the counts of a [`Delta::Usage`]; `None` for other kinds.
    pub const fn of_delta(delta: &Delta) -> Option<Self> {
        match *delta {
            Delta::Usage { prompt, completion, cached, reasoning } => Some(Self {
                prompt_tokens: prompt,
                cached_tokens: cached,
                completion_tokens: completion,
                reasoning_tokens: reasoning,
            }),
            _ => None,
        }
    }
}
