//! The `response` object.

use serde_json::{Value, json};

use crate::seams::Seams;
use loquent_serving::usage::Usage;

/// The members of a response object that come from the request and do not change.
#[derive(Debug, Clone)]
pub struct ResponseTemplate {
    /// The object, with placeholders for unknown members.
    pub object: Value,
    /// True if it is generated whether or not it has readers.
    pub background: bool,
}

/// Status of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseStatus {
    /// The engine has not started it.
    Queued,
    /// Being generated.
    InProgress,
    /// Ended by the model.
    Completed,
    /// Cut off, for this reason.
    Incomplete(&'static str),
    /// Ended with an error.
    Failed {
        /// Error code, for programs.
        code: String,
        /// Error message, for people.
        message: String,
    },
    /// Cancelled by its client.
    Cancelled,
}

impl ResponseStatus {
    /// Returns the API's name of the status.
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

    /// Returns the event that reports this status. The API has none for cancelled responses.
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

/// Properties of a response as a whole that come from its records.
#[derive(Debug, Clone, Default)]
pub struct ResponseFacts {
    /// The model that answered.
    pub model: Value,
    /// Time of creation, Unix time in seconds.
    pub created_s: Value,
    /// Time of completion, Unix time in seconds; null unless successful.
    pub completed_s: Value,
    /// Token counts.
    pub usage: Option<Usage>,
    /// Places where another upstream server went on.
    pub seams: Seams,
}

impl ResponseTemplate {
    /// Returns the response's id.
    pub fn id(&self) -> &str {
        self.object["id"].as_str().unwrap_or_default()
    }

    /// Returns true if the client asked for a summary of the reasoning.
    pub fn sums_up(&self) -> bool {
        self.object.pointer("/reasoning/summary").is_some_and(|summary| !summary.is_null())
    }

    /// Returns the whole object.
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
        if let Value::Object(members) = &mut object {
            facts.seams.tell(members);
        }
        object
    }
}

/// Maps an error code to the API's name for it.
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
