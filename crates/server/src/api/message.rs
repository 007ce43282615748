//! Parses the messages of a chat request.

use loquent_engine::template::ChatMessage;
use serde_json::Value;

use super::fields::{Fields, kind_of};
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
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let mut message = fields.nested(&format!("messages[{index}]"), item)?;
        messages.push(parse_message(&mut message)?);
        fields.ignore_rest(message);
    }
    Ok(messages)
}

fn parse_message(fields: &mut Fields) -> Result<ChatMessage, ApiError> {
    let role = parse_role(fields)?;
    let content = match fields.take("content") {
        Some(content) => Some(parse_content(fields, content)?),
        None if role == "assistant" => None,
        None => return Err(fields.error("content", "is required.")),
    };
    Ok(ChatMessage {
        role: role.into(),
        content,
        name: fields.string("name")?,
        tool_calls: parse_calls(fields)?,
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
    let calls = fields.array("tool_calls")?.unwrap_or_default();
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

fn parse_content(fields: &mut Fields, content: Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            let wrong = "must be a string or an array of text parts";
            return Err(fields.error("content", format!("{wrong}, not {}.", kind_of(&other))));
        }
    };
    let mut text = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = fields.nested(&format!("content[{index}]"), part)?;
        match part.string("type")?.as_deref() {
            Some("text" | "input_text" | "output_text") => {
                let piece = part.string("text")?;
                text.push_str(&piece.ok_or_else(|| part.error("text", "is required."))?);
            }
            Some(other) => {
                let wrong = quoted(other);
                let wrong = format!("'{wrong}' is not supported: this server accepts text only.");
                return Err(part.error("type", wrong));
            }
            None => return Err(part.error("type", "is required.")),
        }
        fields.ignore_rest(part);
    }
    Ok(text)
}
