//! Errors in Anthropic's format.

use serde_json::{Value, json};

use loquent_serving::error::{ApiError, ErrorFacts};

/// Returns the response body for `error`.
pub fn error_json(error: &ApiError) -> Value {
    let kind = match error.status() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    let mut json = json!({"type": "error", "error": {"type": kind, "message": message(error)}});
    if let Some(ErrorFacts::Lacking { error_code }) = error.facts() {
        json["error"]["details"] = json!({"error_code": error_code, "unsupported": []});
    }
    json
}

/// Returns the message of `error`. Clients find out by Anthropic's own words that a conversation
/// no longer fits, and then shorten it.
fn message(error: &ApiError) -> String {
    match error.facts() {
        Some(ErrorFacts::PromptTooLong { tokens, maximum }) => {
            format!("prompt is too long: {tokens} tokens > {maximum} maximum")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(error: &ApiError) -> Value {
        error_json(error)["error"].clone()
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_in_anthropics_words() {
        let exact = ApiError::context_length(84_000, 85_164, "messages");
        let wanted = "prompt is too long: 85164 tokens > 83999 maximum";
        assert_eq!(error_of(&exact)["message"], wanted);
        let estimated = ApiError::context_bytes(100, 3200, 20, "messages");
        let wanted = "prompt is too long: 100 tokens > 99 maximum";
        assert_eq!(error_of(&estimated)["message"], wanted);
    }

    #[test]
    fn an_upstreams_words_for_it_are_known() {
        let said = |message: &str| {
            error_of(&ApiError::of_upstream(&json!({"message": message, "code": 400})))["message"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let vllm = "This model's maximum context length is 2048 tokens. However, your request has \
                    3000 input tokens. Please reduce the length of the input messages.";
        assert_eq!(said(vllm), "prompt is too long: 3000 tokens > 2048 maximum");
        let both = "This model's maximum context length is 2048 tokens. However, you requested \
                    2100 tokens (100 in the messages, 2000 in the completion).";
        assert_eq!(said(both), both);
        assert_eq!(said("Something else."), "Something else.");
    }
}
