//! Parses the messages of a chat request.

use loquent_formats::template::ChatMessage;
use serde_json::{Value, json};

use super::fields::{Fields, kind_of};
use super::media::{MediaUse, replaced};
use super::part_text::PartText;
use crate::error::{ApiError, quoted};

/// Maximum number of messages in one request. Chosen by hand: far above any conversation, and
/// bounded because templates take time per message.
const MAX_MESSAGES: usize = 4096;

/// Takes `messages` from a chat request.
///
/// # Errors
/// 400 with the index of the invalid message.
pub fn parse_messages(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    let items =
        fields.array("messages")?.ok_or_else(|| fields.error("messages", "is required."))?;
    if items.is_empty() {
        return Err(fields.error("messages", "must hold at least one message."));
    }
    if items.len() > MAX_MESSAGES {
        return Err(fields.error("messages", format!("has more than {MAX_MESSAGES} entries.")));
    }
    let answered = items.iter().rposition(|item| item["role"] == "assistant").unwrap_or(0);
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let mut message = fields.nested(&format!("messages[{index}]"), item)?;
        messages.push(parse_message(&mut message, index < answered)?);
        fields.ignore_rest(message);
    }
    Ok(messages)
}

/// Parses a message; `is_past` is true if the assistant has answered it.
fn parse_message(fields: &mut Fields, is_past: bool) -> Result<ChatMessage, ApiError> {
    let role = parse_role(fields)?;
    let media = MediaUse::of(fields, is_past || role == "tool");
    let tool_calls = parse_calls(fields)?;
    let content = match fields.take("content") {
        Some(content) => Some(parse_content(fields, content, media)?),
        None if role != "assistant" => return Err(fields.error("content", "is required.")),
        // Templates expect null beside calls only.
        None => tool_calls.is_empty().then(String::new),
    };
    Ok(ChatMessage {
        role: role.into(),
        content,
        name: fields.string("name")?,
        tool_calls,
        tool_call_id: fields.string("tool_call_id")?,
        reasoning_content: parse_reasoning(fields)?,
    })
}

/// Takes the reasoning of an assistant's message, under either of the names that servers use.
fn parse_reasoning(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let other = fields.string("reasoning")?;
    Ok(fields.string("reasoning_content")?.or(other))
}

/// Takes the tool calls of an assistant's message: unchanged, but with the members that templates
/// require checked.
fn parse_calls(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut calls = fields.array("tool_calls")?.unwrap_or_default();
    // The older form of a single call, whose result has the role `function`.
    if let Some(function) = fields.take("function_call") {
        calls.push(json!({"type": "function", "function": function}));
    }
    for (index, call) in calls.iter().enumerate() {
        let mut call = fields.nested(&format!("tool_calls[{index}]"), call.clone())?;
        let function = call.object("function")?;
        let mut function = function.ok_or_else(|| call.error("function", "is required."))?;
        if function.string("name")?.is_none() {
            return Err(function.error("name", "is required."));
        }
        let arguments = function.take("arguments");
        if !matches!(arguments, None | Some(Value::String(_) | Value::Object(_))) {
            return Err(function.error("arguments", "must be a string of JSON or an object."));
        }
    }
    Ok(calls)
}

/// Takes the role, translated to the name that chat templates use.
fn parse_role(fields: &mut Fields) -> Result<&'static str, ApiError> {
    match fields.string("role")?.as_deref() {
        Some("system" | "developer") => Ok("system"),
        Some("user") => Ok("user"),
        Some("assistant") => Ok("assistant"),
        Some("tool" | "function") => Ok("tool"),
        Some(other) => {
            let known = "must be system, developer, user, assistant or tool";
            Err(fields.error("role", format!("{known}, not '{}'.", quoted(other))))
        }
        None => Err(fields.error("role", "is required.")),
    }
}

fn parse_content(fields: &mut Fields, content: Value, media: MediaUse) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            let wrong = "must be a string or an array of text parts";
            return Err(fields.error("content", format!("{wrong}, not {}.", kind_of(&other))));
        }
    };
    let (mut text, mut ignored) = (PartText::default(), Vec::new());
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = fields.nested(&format!("content[{index}]"), part)?;
        match part.string("type")?.as_deref() {
            Some("text" | "input_text" | "output_text") => {
                let piece = part.string("text")?;
                text.push_part(&piece.ok_or_else(|| part.error("text", "is required."))?);
            }
            Some(other) => {
                text.push_other(replaced(&part, other, media, &mut ignored)?);
                continue;
            }
            None => return Err(part.error("type", "is required.")),
        }
        fields.ignore_rest(part);
    }
    fields.ignore(ignored);
    Ok(text.into_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(message: &Value) -> Result<ChatMessage, ApiError> {
        let body = json!({"messages": [message]}).to_string();
        parse_messages(&mut Fields::parse(body.as_bytes()).unwrap()).map(|mut all| all.remove(0))
    }

    #[test]
    fn an_assistant_without_words_has_none_beside_calls_only() {
        let silent = json!({"role": "assistant", "content": null, "reasoning_content": "Hm."});
        assert_eq!(parse(&silent).unwrap().content.as_deref(), Some(""));
        let call =
            json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let calling = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        assert_eq!(parse(&calling).unwrap().content, None);
        assert!(parse(&json!({"role": "user", "content": null})).is_err());
    }

    #[test]
    fn parts_of_text_are_lines() {
        let part = |text: &str| json!({"type": "text", "text": text});
        let user = json!({"role": "user", "content": [part("Context:"), part(""), part("Why?")]});
        assert_eq!(parse(&user).unwrap().content.as_deref(), Some("Context:\nWhy?"));
    }

    #[test]
    fn an_image_is_refused_in_a_question_only() {
        let image =
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
        let user = json!({"role": "user", "content": [{"type": "text", "text": "See:"}, image]});
        let tool = json!({"role": "tool", "tool_call_id": "a", "content": [image]});
        let answer = json!({"role": "assistant", "content": "I see."});
        let read = |messages: Value| {
            let body = json!({"messages": messages}).to_string();
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            let texts = parse_messages(&mut fields).map(|all| {
                all.into_iter().filter_map(|it| it.content).collect::<Vec<_>>().join("|")
            });
            (texts, fields.rest())
        };
        assert!(read(json!([user])).0.is_err() && read(json!([answer, user])).0.is_err());
        let line = "[image: this model reads text only]";
        let (texts, ignored) = read(json!([user, answer, tool]));
        assert_eq!(texts.unwrap(), format!("See:{line}|I see.|{line}"));
        let names = ["messages[0].content[1] (image_url)", "messages[2].content[0] (image_url)"];
        assert_eq!(ignored, names);
        let unknown = json!({"role": "tool", "tool_call_id": "a", "content": [{"type": "x"}]});
        assert!(read(json!([unknown])).0.is_err());
    }

    #[test]
    fn a_call_in_the_older_form_is_a_call() {
        let function = json!({"name": "f", "arguments": "{}"});
        let older = json!({"role": "assistant", "content": null, "function_call": function});
        let message = parse(&older).unwrap();
        assert_eq!(message.tool_calls[0]["function"], function);
        let wrong =
            json!({"role": "assistant", "content": "", "function_call": {"arguments": "{}"}});
        assert!(parse(&wrong).is_err());
    }
}
