//! Compaction: the model sums a conversation up, and an item with the summary takes the
//! conversation's place in later requests (OpenAI's `POST /v1/responses/compact`).

use serde_json::{Value, json};

use super::request::{ResponseRequest, Truncation};
use super::summary;
use loquent_serving::api::fields::Fields;
use loquent_serving::error::ApiError;

/// Maximum number of tokens of a summary, unless the request sets one.
const SUMMARY_TOKENS: u32 = 1024;
/// The last message of the conversation that is summed up.
const ASK: &str = "Summarise our conversation so far, so that it can go on from your summary \
                   alone: what I want, decisions, facts, names, numbers, file paths and code that \
                   matter, what is done and what is left. Write only the summary.";
/// Parameters of a chat completion that would make the answer something else than a summary.
const NOT_OF_SUMMARIES: &[&str] =
    &["grammar", "parallel_tool_calls", "response_format", "structured_outputs", "tool_choice"];

/// Reads the request for a compaction as one for the response that is the summary.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn read(fields: Fields) -> Result<ResponseRequest, ApiError> {
    let mut asked = ResponseRequest::read(fields)?;
    if asked.streams || asked.template.background {
        let name = if asked.streams { "stream" } else { "background" };
        return Err(ApiError::invalid_param(name, format!("'{name}': a compaction comes whole.")));
    }
    if asked.input.is_empty() && asked.previous.is_none() {
        let message = "'input' or 'previous_response_id' is required.";
        return Err(ApiError::invalid_param("input", message));
    }
    asked.stores = false;
    // A summary of a part, unnoticed, loses what the client meant to keep.
    asked.truncation = Truncation::Disabled;
    for name in NOT_OF_SUMMARIES.iter().chain(&["tools"]) {
        asked.chat.remove(*name);
    }
    asked.chat.entry("max_completion_tokens").or_insert_with(|| SUMMARY_TOKENS.into());
    asked.input.push(json!({
        "type": "message", "status": "completed", "role": "user",
        "content": [{"type": "input_text", "text": ASK}],
    }));
    Ok(asked)
}

/// Returns the object of the compaction whose summary is the text of `response`.
///
/// # Errors
/// 500 if the model wrote no text.
pub fn object(response: &Value) -> Result<Value, ApiError> {
    let output = response["output"].as_array().into_iter().flatten();
    let parts = output.filter_map(|item| item["content"].as_array()).flatten();
    let texts = parts.filter(|part| part["type"] == "output_text");
    let summary: String = texts.filter_map(|part| part["text"].as_str()).collect();
    let summary = summary.trim();
    if summary.is_empty() {
        return Err(ApiError::internal("The model wrote no summary. Ask again."));
    }
    let id = response["id"].as_str().unwrap_or_default();
    let item = summary::item(&id.replacen("resp_", "cmp_", 1), summary);
    Ok(json!({
        "id": id,
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [item],
        "usage": response["usage"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &Value) -> Result<ResponseRequest, ApiError> {
        read(Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn nothing_but_a_summary_is_asked_for() {
        let asked = parse(&json!({
            "model": "m", "input": "Hello", "truncation": "auto", "tool_choice": "required",
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "text": {"format": {"type": "json_object"}},
        }))
        .unwrap();
        assert!(!asked.stores && asked.truncation == Truncation::Disabled);
        let names: Vec<&str> = asked.chat.keys().map(String::as_str).collect();
        assert_eq!(names, ["model", "max_completion_tokens"]);
        assert_eq!(asked.input.len(), 2);
        assert_eq!(asked.input[1]["content"][0]["text"], ASK);
        for (body, param) in [
            (json!({"input": "a", "stream": true}), "stream"),
            (json!({"input": "a", "background": true}), "background"),
            (json!({"input": []}), "input"),
            (json!({}), "input"),
        ] {
            assert_eq!(parse(&body).unwrap_err().json()["error"]["param"], param);
        }
    }

    #[test]
    fn a_summary_comes_back_as_it_was_written() {
        let response = json!({
            "id": "resp_1", "created_at": 5, "usage": {"input_tokens": 3},
            "output": [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"type": "message", "content": [{"type": "output_text", "text": " They met. "}]},
            ],
        });
        let compaction = object(&response).unwrap();
        assert_eq!(compaction["object"], "response.compaction");
        assert_eq!(compaction["output"][0]["id"], "cmp_1");
        let recalled = summary::recalled(&compaction["output"][0]).unwrap();
        assert!(recalled.ends_with(":\nThey met."), "{recalled}");
        assert!(object(&json!({"id": "resp_2", "output": []})).is_err());
    }
}
