//! The `response` object.

use serde_json::{Value, json};

use crate::usage::Usage;

/// What a response's request said: the members of its object that do not change.
#[derive(Debug, Clone)]
pub struct ResponseTemplate {
    /// The object, with room for what is not known yet.
    pub object: Value,
    /// Whether it is generated whether or not anybody reads it.
    pub background: bool,
}

/// How a response stands, or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseStatus {
    /// The engine has not begun with it.
    Queued,
    /// It is being generated.
    InProgress,
    /// The model ended it.
    Completed,
    /// It was cut for this reason.
    Incomplete(&'static str),
    /// It broke off.
    Failed {
        /// For programs.
        code: String,
        /// For people.
        message: String,
    },
    /// Its client cancelled it.
    Cancelled,
}

impl ResponseStatus {
    /// The API's name of it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The event that ends a stream of such a response; the API has none of its own for cancelled
    /// ones.
    pub const fn event(&self) -> &'static str {
        match self {
            Self::Queued => "response.queued",
            Self::InProgress => "response.in_progress",
            Self::Completed => "response.completed",
            Self::Incomplete(_) | Self::Cancelled => "response.incomplete",
            Self::Failed { .. } => "response.failed",
        }
    }
}

/// What the records say of a response as a whole.
#[derive(Debug, Clone, Default)]
pub struct ResponseFacts {
    /// The model that answers.
    pub model: Value,
    /// Unix time in seconds.
    pub created_s: Value,
    /// Unix time in seconds of a successful end.
    pub completed_s: Value,
    /// What it took.
    pub usage: Option<Usage>,
}

impl ResponseTemplate {
    /// The response's id.
    pub fn id(&self) -> &str {
        self.object["id"].as_str().unwrap_or_default()
    }

    /// The whole object.
    pub fn render(
        &self,
        status: &ResponseStatus,
        facts: &ResponseFacts,
        output: &[Value],
    ) -> Value {
        let mut object = self.object.clone();
        object["created_at"] = facts.created_s.clone();
        object["model"] = facts.model.clone();
        object["status"] = status.name().into();
        object["output"] = output.to_vec().into();
        match status {
            ResponseStatus::Failed { code, message } => {
                object["error"] = json!({"code": error_code(code), "message": message});
            }
            ResponseStatus::Incomplete(reason) => {
                object["incomplete_details"] = json!({"reason": reason});
            }
            ResponseStatus::Completed => object["completed_at"] = facts.completed_s.clone(),
            ResponseStatus::Queued | ResponseStatus::InProgress | ResponseStatus::Cancelled => {}
        }
        if let Some(usage) = facts.usage {
            object["usage"] = usage_json(usage);
        }
        object
    }
}

/// The API's name of an error's code.
fn error_code(code: &str) -> &'static str {
    match code {
        "rate_limit_exceeded" | "server_overloaded" => "rate_limit_exceeded",
        "context_length_exceeded" => "invalid_prompt",
        _ => "server_error",
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}
