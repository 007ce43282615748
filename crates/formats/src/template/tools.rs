//! Tools for models whose chat template does not support them: they are described in a system
//! message, and past calls are written in the format that the model is asked to use.

use serde_json::{Value, json};

use super::{ChatMessage, with_parsed_arguments};
use crate::grammar::{CallSyntax, ThinkTags};

/// Abilities of a model, inferred from its template's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// True if the template writes tool definitions and calls itself.
    pub tools: bool,
    /// Format of calls.
    pub calls: CallSyntax,
    /// Tags around the reasoning with which answers may begin.
    pub thinks: Option<ThinkTags>,
}

impl Abilities {
    pub(super) fn of(source: &str) -> Self {
        // A search in the source is enough: these words occur in a template where it handles them.
        Self {
            tools: source.contains("tools") || source.contains("tool_calls"),
            calls: CallSyntax::of_template(source),
            thinks: ThinkTags::of_template(source),
        }
    }
}

const HOW_TO_CALL: &str = "You can call the functions below. To call one, answer with its name and arguments as \
     JSON between tags, one call after the other, and nothing else:\n\
     <tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"ARGUMENT\": VALUE}}\n</tool_call>\n\
     The results come back between <tool_response> and </tool_response>. The functions, each with the JSON \
     schema of its arguments:";

/// Converts `messages` for a template without tools: `tools` are described in the system message,
/// calls and their results become text.
pub(super) fn as_text(messages: &[ChatMessage], tools: &[Value]) -> Vec<ChatMessage> {
    let mut written: Vec<ChatMessage> = Vec::with_capacity(messages.len() + 1);
    if !tools.is_empty() {
        written.push(ChatMessage::new("system", describe(tools)));
    }
    for (i, message) in messages.iter().enumerate() {
        match (message.role.as_str(), written.last_mut()) {
            // One system message, the user's words first: many templates refuse a second one.
            ("system", Some(first)) if i == 0 => {
                let own = message.content.clone().unwrap_or_default();
                let description = first.content.take().unwrap_or_default();
                first.content = Some(format!("{own}\n\n{description}"));
            }
            // Results of several calls are one turn of the user.
            ("tool", Some(last)) if is_response(last) => {
                let text = last.content.get_or_insert_default();
                text.push('\n');
                text.push_str(&response(message));
            }
            ("tool", _) => written.push(ChatMessage::new("user", response(message))),
            _ if !message.tool_calls.is_empty() => written.push(with_calls_as_text(message)),
            _ => written.push(message.clone()),
        }
    }
    written
}

fn describe(tools: &[Value]) -> String {
    let mut text = HOW_TO_CALL.to_owned();
    for tool in tools {
        let function = tool.get("function").unwrap_or(tool);
        text.push('\n');
        text.push_str(&function.to_string());
    }
    text
}

const RESPONSE: &str = "<tool_response>";

fn is_response(message: &ChatMessage) -> bool {
    message.role == "user"
        && message.content.as_deref().is_some_and(|text| text.starts_with(RESPONSE))
}

fn response(message: &ChatMessage) -> String {
    format!("{RESPONSE}\n{}\n</tool_response>", message.content.as_deref().unwrap_or_default())
}

fn with_calls_as_text(message: &ChatMessage) -> ChatMessage {
    let mut lines: Vec<String> =
        message.content.iter().filter(|text| !text.is_empty()).cloned().collect();
    for call in message.tool_calls.iter().cloned().map(with_parsed_arguments) {
        let function = &call["function"];
        let call = json!({"name": function["name"], "arguments": function["arguments"]});
        lines.push(format!("<tool_call>\n{call}\n</tool_call>"));
    }
    ChatMessage { content: Some(lines.join("\n")), tool_calls: Vec::new(), ..message.clone() }
}
