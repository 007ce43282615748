//! Translates a UI message to chat messages. An assistant's message holds several steps of a
//! dialogue with tools; each becomes a message of its own, followed by its tools' results. The
//! client's chat transport does the same (`web/client/src/ui_messages.ts`); `messages.json` has
//! cases for both.

use serde_json::{Map, Value, json};

use loquent_serving::api::fields::Fields;
use loquent_serving::api::part_text::PartText;
use loquent_serving::error::{ApiError, quoted};

/// Appends `message` to `out`; returns true if it is the assistant's.
///
/// # Errors
/// 400 with the name of the invalid field.
pub fn lower_message(mut message: Fields, out: &mut Vec<Value>) -> Result<bool, ApiError> {
    let role = message.string("role")?.ok_or_else(|| message.error("role", "is required."))?;
    let parts = message.array("parts")?.ok_or_else(|| message.error("parts", "is required."))?;
    if !matches!(role.as_str(), "system" | "user" | "assistant") {
        let wrong = format!("must be system, user or assistant, not '{}'.", quoted(&role));
        return Err(message.error("role", wrong));
    }
    let is_assistant = role == "assistant";
    let (mut step, mut content) = (Step::default(), Vec::new());
    for (index, part) in parts.into_iter().enumerate() {
        let part = message.nested(&format!("parts[{index}]"), part)?;
        match Part::read(part)? {
            Part::Text(text) if is_assistant => step.text.push_part(&text),
            Part::Text(text) => content.push(json!({"type": "text", "text": text})),
            Part::File(file) if !is_assistant => content.push(file),
            Part::Reasoning(text) if is_assistant => step.reasoning.push_str(&text),
            Part::StepStart if is_assistant => std::mem::take(&mut step).finish(out),
            Part::Call(call) if is_assistant => step.calls.push(call),
            _ => {}
        }
    }
    match is_assistant {
        true => step.finish(out),
        false => out.push(json!({"role": role, "content": content_of(content)})),
    }
    Ok(is_assistant)
}

/// Returns parts as a content: text alone as text, which every server takes.
fn content_of(parts: Vec<Value>) -> Value {
    match parts.iter().all(|part| part["type"] == "text") {
        true => PartText::joined(parts.iter().filter_map(|part| part["text"].as_str())).into(),
        false => parts.into(),
    }
}

/// A part of a message, as far as a model can read it.
enum Part {
    Text(String),
    /// An image or another file, as a part of a chat message. The parser of chats knows whether
    /// the model sees it.
    File(Value),
    Reasoning(String),
    StepStart,
    Call(Call),
    /// Data and sources of the app, which are never sent to a model, or a call with incomplete
    /// input.
    Other,
}

/// A tool call, with its result if there is one.
struct Call {
    id: String,
    name: String,
    arguments: String,
    result: Option<String>,
}

impl Part {
    fn read(mut part: Fields) -> Result<Self, ApiError> {
        let kind = part.string("type")?.ok_or_else(|| part.error("type", "is required."))?;
        let text = |part: &mut Fields| {
            part.string("text")?.ok_or_else(|| part.error("text", "is required."))
        };
        Ok(match kind.as_str() {
            "text" => Self::Text(text(&mut part)?),
            "reasoning" => Self::Reasoning(text(&mut part)?),
            "step-start" => Self::StepStart,
            "file" => Self::File(read_file(part)?),
            "dynamic-tool" => {
                let name = part.string("toolName")?;
                let name = name.ok_or_else(|| part.error("toolName", "is required."))?;
                read_call(part, name)?
            }
            _ => match kind.strip_prefix("tool-") {
                Some(name) => read_call(part, name.to_owned())?,
                None => Self::Other,
            },
        })
    }
}

fn read_file(mut part: Fields) -> Result<Value, ApiError> {
    let url = part.string("url")?.ok_or_else(|| part.error("url", "is required."))?;
    if part.string("mediaType")?.is_some_and(|kind| kind.starts_with("image/")) {
        return Ok(json!({"type": "image_url", "image_url": {"url": url}}));
    }
    let mut file = json!({"file_data": url});
    if let Some(name) = part.string("filename")? {
        file["filename"] = name.into();
    }
    Ok(json!({"type": "file", "file": file}))
}

fn read_call(mut part: Fields, name: String) -> Result<Part, ApiError> {
    let id = part.string("toolCallId")?;
    let id = id.ok_or_else(|| part.error("toolCallId", "is required."))?;
    let state = part.string("state")?.unwrap_or_default();
    let error = part.string("errorText")?;
    let result = match state.as_str() {
        "input-streaming" => return Ok(Part::Other),
        "output-available" => Some(text_of(part.take("output").unwrap_or_default())),
        "output-error" => Some(error.unwrap_or_else(|| "The tool failed.".to_owned())),
        "output-denied" => Some("The user did not allow this call.".to_owned()),
        _ => None,
    };
    // A call whose input was no valid JSON has it as `rawInput`.
    let input = part.take("input").or_else(|| part.take("rawInput"));
    let arguments = input.map_or_else(|| "{}".to_owned(), text_of);
    Ok(Part::Call(Call { id, name, arguments, result }))
}

/// Returns a value as text for the model.
fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// One step of an assistant's message.
#[derive(Default)]
struct Step {
    text: PartText,
    reasoning: String,
    calls: Vec<Call>,
}

impl Step {
    /// Appends the step to `out`, unless it is empty.
    fn finish(self, out: &mut Vec<Value>) {
        let Self { text, reasoning, calls } = self;
        let text = text.into_string();
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        if !text.is_empty() {
            message.insert("content".to_owned(), text.into());
        }
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            let calls = calls.iter().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            });
            message.insert("tool_calls".to_owned(), Value::Array(calls.collect()));
        }
        if message.len() > 1 {
            out.push(Value::Object(message));
        }
        // Behind the message with the calls, as chat templates want them.
        let results = calls.into_iter().filter_map(|call| Some((call.id, call.result?)));
        out.extend(
            results.map(
                |(id, content)| json!({"role": "tool", "tool_call_id": id, "content": content}),
            ),
        );
    }
}
