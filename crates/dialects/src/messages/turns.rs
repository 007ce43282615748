//! Translates the messages of Anthropic's API, whose content is blocks, to those of a chat
//! completion.

use serde_json::{Value, json};

use loquent_serving::api::fields::{Fields, kind_of};
use loquent_serving::api::media::{MediaUse, replaced};
use loquent_serving::api::part_text::PartText;
use loquent_serving::error::{ApiError, quoted};

/// Chat messages under construction.
#[derive(Default)]
pub struct LoweredTurns {
    /// The messages.
    pub chat: Vec<Value>,
    /// Places of blocks that the model cannot read.
    pub ignored: Vec<String>,
}

/// Appends the chat messages for `messages` in `fields`.
///
/// # Errors
/// 400 with the position of the invalid block.
pub fn lower_messages(fields: &mut Fields, lowered: &mut LoweredTurns) -> Result<(), ApiError> {
    let turns = fields.array("messages")?;
    let turns = turns.ok_or_else(|| fields.error("messages", "is required."))?;
    let answered = turns.iter().rposition(|turn| turn["role"] == "assistant").unwrap_or(0);
    for (index, turn) in turns.into_iter().enumerate() {
        let turn = fields.nested(&format!("messages[{index}]"), turn)?;
        lower_turn(turn, index < answered, lowered)?;
    }
    Ok(())
}

fn lower_turn(mut turn: Fields, is_past: bool, lowered: &mut LoweredTurns) -> Result<(), ApiError> {
    let chat = &mut lowered.chat;
    let role = turn.string("role")?;
    let content = turn.take("content").ok_or_else(|| turn.error("content", "is required."))?;
    match role.as_deref() {
        Some("user") => lower_user(&turn, content, is_past, lowered),
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
fn lower_user(
    turn: &Fields,
    content: Value,
    is_past: bool,
    lowered: &mut LoweredTurns,
) -> Result<(), ApiError> {
    let LoweredTurns { chat, ignored } = lowered;
    let media = MediaUse::of(turn, is_past);
    let mut said: Option<Content> = None;
    let mut is_empty = true;
    for block in blocks(turn, "content", content)? {
        is_empty = false;
        let mut block = block?;
        match kind(&mut block)?.as_str() {
            "tool_result" => {
                chat.extend(said.take().map(Content::into_user));
                chat.push(tool_result(block, ignored)?);
            }
            other => said.get_or_insert_default().push(block, other, media, ignored)?,
        }
    }
    // A turn without blocks is a turn.
    chat.extend(said.or_else(|| is_empty.then(Content::default)).map(Content::into_user));
    Ok(())
}

/// Content of a chat message: text, and images for an upstream server.
#[derive(Default)]
struct Content {
    /// Parts before the last text.
    parts: Vec<Value>,
    text: PartText,
}

impl Content {
    /// Appends a block of `kind`.
    fn push(
        &mut self,
        block: Fields,
        kind: &str,
        media: MediaUse,
        ignored: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        match kind {
            "image" if media == MediaUse::PassedOn => {
                self.end_text();
                self.parts.push(image(block)?);
            }
            "image" => self.text.push_other(replaced(&block, kind, media, ignored)?),
            "document" if media != MediaUse::Refused && !is_text(&block) => {
                self.text.push_other(replaced(&block, kind, media, ignored)?);
            }
            other => self.text.push_part(&text_block(block, other)?),
        }
        Ok(())
    }

    fn end_text(&mut self) {
        let text = std::mem::take(&mut self.text).into_string();
        if !text.is_empty() {
            self.parts.push(json!({"type": "text", "text": text}));
        }
    }

    /// Returns the content of a message: text, unless there are images.
    fn into_value(mut self) -> Value {
        if self.parts.is_empty() {
            return self.text.into_string().into();
        }
        self.end_text();
        self.parts.into()
    }

    fn into_user(self) -> Value {
        json!({"role": "user", "content": self.into_value()})
    }
}

/// Returns true if a document's source is text or content blocks.
fn is_text(document: &Fields) -> bool {
    let source = document.map().get("source").map(|source| &source["type"]);
    source.is_some_and(|kind| kind == "text" || kind == "content")
}

/// Translates an image to a part of a chat message.
fn image(mut block: Fields) -> Result<Value, ApiError> {
    let source = block.object("source")?;
    let mut source = source.ok_or_else(|| block.error("source", "is required."))?;
    let mut required = |name: &str| {
        let value = source.string(name)?;
        value.ok_or_else(|| source.error(name, "is required."))
    };
    let url = match required("type")?.as_str() {
        "url" => required("url")?,
        "base64" => format!("data:{};base64,{}", required("media_type")?, required("data")?),
        _ => return Err(source.error("type", "must be base64 or url.")),
    };
    Ok(json!({"type": "image_url", "image_url": {"url": url}}))
}

fn tool_result(mut block: Fields, ignored: &mut Vec<String>) -> Result<Value, ApiError> {
    let id = block.string("tool_use_id")?;
    let id = id.ok_or_else(|| block.error("tool_use_id", "is required."))?;
    let mut said = Content::default();
    if block.boolean("is_error")? == Some(true) {
        // A chat completion has no other place for it, and the model must know.
        said.text.push_other("Error: ");
    }
    let media = MediaUse::of(&block, true);
    if let Some(content) = block.take("content") {
        for (index, inner) in blocks(&block, "content", content)?.enumerate() {
            let mut inner = inner?;
            let kind = kind(&mut inner)?;
            said.text.push_other(if index == 0 { "" } else { "\n" });
            match kind.as_str() {
                "tool_reference" => said.text.push_other(&tool_reference(inner)?),
                other => said.push(inner, other, media, ignored)?,
            }
        }
    }
    Ok(json!({"role": "tool", "tool_call_id": id, "content": said.into_value()}))
}

/// Returns a line about a tool that the client's own tool search has found. Its definition is in
/// the prompt already: chat templates have no place for one that comes later.
fn tool_reference(mut block: Fields) -> Result<String, ApiError> {
    let name = block.string("tool_name")?;
    let name = name.ok_or_else(|| block.error("tool_name", "is required."))?;
    Ok(format!("The tool {name} can be called."))
}

fn lower_assistant(turn: &Fields, content: Value, chat: &mut Vec<Value>) -> Result<(), ApiError> {
    let (mut text, mut thinking, mut calls) = (PartText::default(), String::new(), Vec::new());
    for block in blocks(turn, "content", content)? {
        let mut block = block?;
        let kind = kind(&mut block)?;
        match kind.as_str() {
            "thinking" => thinking.push_str(&block.string("thinking")?.unwrap_or_default()),
            // Only Anthropic can read it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(tool_use(block)?),
            other => {
                text.push_part(&text_block(block, other)?);
                continue;
            }
        }
        // An answer's text around a call has no newline there, and must be found in the cache.
        text.push_other("");
    }
    let text = text.into_string();
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
