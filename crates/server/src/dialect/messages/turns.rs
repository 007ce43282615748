//! Translates the messages of Anthropic's API, whose content is blocks, to those of a chat
//! completion.

use serde_json::{Value, json};

use crate::api::fields::{Fields, kind_of};
use crate::error::{ApiError, quoted};

/// Appends the chat messages for `messages` in `fields`.
///
/// # Errors
/// 400 with the position of the invalid block.
pub fn lower_messages(fields: &mut Fields, chat: &mut Vec<Value>) -> Result<(), ApiError> {
    let turns = fields.array("messages")?;
    let turns = turns.ok_or_else(|| fields.error("messages", "is required."))?;
    for (index, turn) in turns.into_iter().enumerate() {
        lower_turn(fields.nested(&format!("messages[{index}]"), turn)?, chat)?;
    }
    Ok(())
}

fn lower_turn(mut turn: Fields, chat: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = turn.string("role")?;
    let content = turn.take("content").ok_or_else(|| turn.error("content", "is required."))?;
    match role.as_deref() {
        Some("user") => lower_user(&turn, content, chat),
        Some("assistant") => lower_assistant(&turn, content, chat),
        Some("system") => {
            let text = text_of(&turn, "content", content, "\n")?;
            chat.push(json!({"role": "system", "content": text}));
            Ok(())
        }
        Some(other) => {
            let wrong = format!("must be user or assistant, not '{}'.", quoted(other));
            Err(turn.error("role", wrong))
        }
        None => Err(turn.error("role", "is required.")),
    }
}

/// Translates a user's message. Tool results become messages of their own, in their place.
fn lower_user(turn: &Fields, content: Value, chat: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut text: Option<String> = None;
    for block in blocks(turn, "content", content)? {
        let mut block = block?;
        match kind(&mut block)?.as_str() {
            "tool_result" => {
                chat.extend(text.take().map(user));
                chat.push(tool_result(block)?);
            }
            other => text.get_or_insert_default().push_str(&text_block(block, other)?),
        }
    }
    chat.extend(text.map(user));
    Ok(())
}

fn user(text: String) -> Value {
    json!({"role": "user", "content": text})
}

fn tool_result(mut block: Fields) -> Result<Value, ApiError> {
    let id = block.string("tool_use_id")?;
    let id = id.ok_or_else(|| block.error("tool_use_id", "is required."))?;
    let mut text = match block.take("content") {
        None => String::new(),
        Some(content) => text_of(&block, "content", content, "\n")?,
    };
    if block.boolean("is_error")? == Some(true) {
        // A chat completion has no other place for it, and the model must know.
        text.insert_str(0, "Error: ");
    }
    Ok(json!({"role": "tool", "tool_call_id": id, "content": text}))
}

fn lower_assistant(turn: &Fields, content: Value, chat: &mut Vec<Value>) -> Result<(), ApiError> {
    let (mut text, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks(turn, "content", content)? {
        let mut block = block?;
        match kind(&mut block)?.as_str() {
            "thinking" => thinking.push_str(&block.string("thinking")?.unwrap_or_default()),
            // Only Anthropic can read it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(tool_use(block)?),
            other => text.push_str(&text_block(block, other)?),
        }
    }
    let only_calls = text.is_empty() && !calls.is_empty();
    let content = if only_calls { Value::Null } else { text.into() };
    let mut message = json!({"role": "assistant", "content": content});
    if !thinking.is_empty() {
        message["reasoning_content"] = thinking.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    chat.push(message);
    Ok(())
}

fn tool_use(mut block: Fields) -> Result<Value, ApiError> {
    let mut required = |name: &str| {
        let value = block.string(name)?;
        value.ok_or_else(|| block.error(name, "is required."))
    };
    let (id, name) = (required("id")?, required("name")?);
    let arguments = match block.take("input") {
        None => "{}".to_owned(),
        Some(input @ Value::Object(_)) => input.to_string(),
        Some(other) => {
            let wrong = format!("must be an object, not {}.", kind_of(&other));
            return Err(block.error("input", wrong));
        }
    };
    let function = json!({"name": name, "arguments": arguments});
    Ok(json!({"id": id, "type": "function", "function": function}))
}

/// Returns the text of `content`, a string or text blocks, with `between` between the blocks.
///
/// # Errors
/// 400 for a block that is not text.
pub fn text_of(
    fields: &Fields,
    name: &str,
    content: Value,
    between: &str,
) -> Result<String, ApiError> {
    let mut text = String::new();
    for (index, block) in blocks(fields, name, content)?.enumerate() {
        let mut block = block?;
        let kind = kind(&mut block)?;
        text.push_str(if index == 0 { "" } else { between });
        text.push_str(&text_block(block, &kind)?);
    }
    Ok(text)
}

/// Returns the blocks of `content` in order; a string is one text block.
fn blocks<'a>(
    fields: &'a Fields,
    name: &'a str,
    content: Value,
) -> Result<impl Iterator<Item = Result<Fields, ApiError>> + use<'a>, ApiError> {
    let blocks = match content {
        Value::Array(blocks) => blocks,
        text @ Value::String(_) => vec![json!({"type": "text", "text": text})],
        other => {
            let wrong = "must be a string or an array of content blocks";
            return Err(fields.error(name, format!("{wrong}, not {}.", kind_of(&other))));
        }
    };
    let nested = move |(index, block)| fields.nested(&format!("{name}[{index}]"), block);
    Ok(blocks.into_iter().enumerate().map(nested))
}

fn kind(block: &mut Fields) -> Result<String, ApiError> {
    block.string("type")?.ok_or_else(|| block.error("type", "is required."))
}

/// Returns the text of a block of `kind`.
fn text_block(mut block: Fields, kind: &str) -> Result<String, ApiError> {
    match kind {
        "text" => block.string("text")?.ok_or_else(|| block.error("text", "is required.")),
        "document" => document(block),
        other => {
            let wrong = quoted(other);
            let wrong = format!("'{wrong}' is not supported here: this server accepts text only.");
            Err(block.error("type", wrong))
        }
    }
}

/// Returns a document's text, under its title. Sources other than plain text are files and refused.
fn document(mut block: Fields) -> Result<String, ApiError> {
    let title = block.string("title")?;
    let source = block.object("source")?;
    let mut source = source.ok_or_else(|| block.error("source", "is required."))?;
    let text = match source.string("type")?.as_deref() {
        Some("text") => source.string("data")?,
        Some("content") => match source.take("content") {
            Some(content) => Some(text_of(&source, "content", content, "\n")?),
            None => None,
        },
        _ => return Err(source.error("type", "must be text: this server reads no files.")),
    };
    let text = text.ok_or_else(|| source.error("data", "is required."))?;
    Ok(match title {
        Some(title) => format!("{title}\n\n{text}\n\n"),
        None => format!("{text}\n\n"),
    })
}
