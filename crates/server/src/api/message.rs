//! The messages of a chat request.

use serde_json::Value;

use super::fields::{Fields, kind_of};
use crate::error::ApiError;

/// Most messages in one request.
const MAX_MESSAGES: usize = 4096;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions; OpenAI's `developer` is the same.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl Role {
    /// The role's name in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text, its parts joined.
    pub content: String,
    /// What else a template may want (`name`, `tool_calls`, `tool_call_id`), as it came.
    pub extras: serde_json::Map<String, Value>,
}

/// Takes `messages` from a chat request.
///
/// # Errors
/// 400 with the place of the message that is wrong.
pub fn parse_messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let items = fields
        .array("messages")?
        .ok_or_else(|| fields.error("messages", "is required."))?;
    if items.is_empty() {
        return Err(fields.error("messages", "must hold at least one message."));
    }
    if items.len() > MAX_MESSAGES {
        return Err(fields.error("messages", format!("has more than {MAX_MESSAGES} entries.")));
    }
    let parse = |(index, item)| {
        let mut message = fields.nested(&format!("messages[{index}]"), item)?;
        parse_message(&mut message)
    };
    items.into_iter().enumerate().map(parse).collect()
}

fn parse_message(fields: &mut Fields) -> Result<Message, ApiError> {
    let role = match fields.string("role")?.as_deref() {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        Some(other) => {
            let known = "must be system, developer, user, assistant or tool";
            return Err(fields.error("role", format!("{known}, not '{other}'.")));
        }
        None => return Err(fields.error("role", "is required.")),
    };
    let mut extras = serde_json::Map::new();
    for name in ["name", "tool_call_id", "tool_calls"] {
        if let Some(value) = fields.take(name) {
            extras.insert(name.into(), value);
        }
    }
    let content = match fields.take("content") {
        Some(content) => parse_content(fields, content)?,
        None if role == Role::Assistant => String::new(),
        None => return Err(fields.error("content", "is required.")),
    };
    Ok(Message {
        role,
        content,
        extras,
    })
}

fn parse_content(fields: &Fields, content: Value) -> Result<String, ApiError> {
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
                let wrong = format!("'{other}' is not supported: this model reads text only.");
                return Err(part.error("type", wrong));
            }
            None => return Err(part.error("type", "is required.")),
        }
    }
    Ok(text)
}
