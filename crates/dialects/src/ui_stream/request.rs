//! Translates the body that the AI SDK's chat transports send to the fields of a chat completion.

use serde_json::Value;

use super::message::lower_message;
use crate::lowered::Lowered;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::Endpoint;
use loquent_serving::error::ApiError;

/// Parts of a request that only this API needs.
#[derive(Debug, Default)]
pub struct UiRequest {
    /// The chat's id.
    pub chat_id: Option<String>,
    /// True if the answer extends the last message, which is the assistant's, after the app has run
    /// its tools.
    pub continues: bool,
}

/// Translates the fields of a request to those of a chat completion that streams and can be
/// resumed.
///
/// # Errors
/// 400 with the name of the invalid parameter.
pub fn lower(mut fields: Fields) -> Result<Lowered<UiRequest>, ApiError> {
    let chat_id = fields.string("id")?;
    for name in ["trigger", "messageId"] {
        fields.take(name);
    }
    fields.integer("n", 1..=1)?;
    let items =
        fields.array("messages")?.ok_or_else(|| fields.error("messages", "is required."))?;
    let mut messages = Vec::with_capacity(items.len());
    let mut continues = false;
    for (index, item) in items.into_iter().enumerate() {
        let message = fields.nested(&format!("messages[{index}]"), item)?;
        // Each overwrites the one before: only the last message can be gone on with.
        continues = lower_message(message, &mut messages)?;
    }
    fields.put("messages", Value::Array(messages));
    fields.put("stream", Value::Bool(true));
    fields.put("resumable", Value::Bool(true));
    let kept = UiRequest { chat_id, continues };
    Ok(Lowered { endpoint: Endpoint::Chat, fields, ignored: Vec::new(), kept })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lowered(messages: Value) -> Result<(Value, bool), ApiError> {
        let body = json!({"id": "c", "trigger": "submit-message", "messages": messages});
        let lowered = lower(Fields::parse(body.to_string().as_bytes()).unwrap())?;
        let (mut map, request) = (lowered.fields.into_map(), lowered.kept);
        assert_eq!(request.chat_id.as_deref(), Some("c"));
        assert!(map["stream"] == true && map["resumable"] == true && map.len() == 3, "{map:?}");
        Ok((map.remove("messages").unwrap(), request.continues))
    }

    #[test]
    fn text_of_all_roles() {
        let text = |text: &str| json!({"type": "text", "text": text, "state": "done"});
        let (messages, continues) = lowered(json!([
            {"id": "1", "role": "system", "parts": [text("Be brief.")]},
            {"id": "2", "role": "user", "parts": [text("Good"), {"type": "data-x", "data": 1}, text("day")]},
            {"id": "3", "role": "assistant", "parts": [{"type": "step-start"},
                {"type": "reasoning", "text": "Hm."}, text("Hello."), {"type": "source-url", "url": "x"}]},
            {"id": "4", "role": "user", "parts": [text("Why?")]},
        ]))
        .unwrap();
        assert!(!continues);
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Good\nday"},
            {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."},
            {"role": "user", "content": "Why?"},
        ]);
        assert_eq!(messages, expected);
    }

    #[test]
    fn tool_calls_and_their_results() {
        let (messages, continues) = lowered(json!([
            {"role": "user", "parts": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "parts": [
                {"type": "step-start"},
                {"type": "tool-weather", "toolCallId": "a", "state": "output-available",
                    "input": {"city": "Rome"}, "output": {"sky": "clear"}},
                {"type": "dynamic-tool", "toolName": "time", "toolCallId": "b", "state": "output-error",
                    "input": {}, "errorText": "no clock"},
                {"type": "tool-weather", "toolCallId": "c", "state": "input-streaming"},
                {"type": "step-start"},
                {"type": "text", "text": "Clear."}]},
        ]))
        .unwrap();
        assert!(continues);
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let expected = json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "tool_calls": [
                call("a", "weather", r#"{"city":"Rome"}"#), call("b", "time", "{}")]},
            {"role": "tool", "tool_call_id": "a", "content": r#"{"sky":"clear"}"#},
            {"role": "tool", "tool_call_id": "b", "content": "no clock"},
            {"role": "assistant", "content": "Clear."},
        ]);
        assert_eq!(messages, expected);
    }

    #[test]
    fn messages_are_those_of_the_clients_transport() {
        let file: Value = serde_json::from_str(include_str!("messages.json")).unwrap();
        for case in file["cases"].as_array().unwrap() {
            let (messages, _) = lowered(case["ui"].clone()).unwrap();
            assert_eq!(messages, case["chat"], "{}", case["about"]);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let file = json!({"type": "file", "mediaType": "image/png"});
        for (message, named) in [
            (json!({"role": "user", "parts": [file]}), "'messages[0].parts[0].url'"),
            (json!({"role": "user", "content": "x"}), "'messages[0].parts'"),
            (json!({"role": "tool", "parts": []}), "'messages[0].role'"),
            (json!({"role": "user", "parts": [{"type": "text"}]}), "'messages[0].parts[0].text'"),
            (json!({"role": "assistant", "parts": [{"type": "tool-x"}]}), "parts[0].toolCallId'"),
            (json!(7), "'messages[0]'"),
        ] {
            let error = lowered(json!([message])).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
