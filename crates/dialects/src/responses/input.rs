//! Items of a response's input: validated, normalised, and translated to chat messages.

use serde_json::{Map, Value, json};

use super::summary;
use super::tools::chat_name;
use loquent_serving::api::fields::{Fields, kind_of};
use loquent_serving::api::part_text::PartText;
use loquent_serving::error::{ApiError, quoted};

/// Maximum number of items in a conversation: as many as a chat may have messages.
pub const MAX_ITEMS: usize = 4096;

/// Calls of tools other than functions that a client runs.
const CLIENTS_CALLS: &[&str] =
    &["custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"];
/// Outputs of these calls.
const CLIENTS_OUTPUTS: &[&str] = &[
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "tool_search_output",
];
/// Items of which a model learns only that they were there, but for this server's compactions.
const UNREADABLE: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "compaction",
    "compaction_summary",
    "context_compaction",
];

/// Takes `input` as normalised items.
///
/// # Errors
/// 400 with the position of the invalid item.
pub fn parse_input(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let items = match fields.take("input") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![message("user", &text)]),
        Some(Value::Array(items)) => items,
        Some(other) => {
            let wrong = "must be a string or an array of items";
            return Err(fields.error("input", format!("{wrong}, not {}.", kind_of(&other))));
        }
    };
    // Before the items are read, each of which takes several allocations.
    check_count(items.len())?;
    let answered = items.iter().rposition(is_answer).unwrap_or(0);
    let parse = |(index, item)| {
        let fields = fields.nested(&format!("input[{index}]"), item)?;
        // Of an image that is kept, the parser of chats knows whether the model sees it.
        let keeps_images = index < answered || fields.keeps_images();
        parse_item(fields, keeps_images)
    };
    items.into_iter().enumerate().map(parse).collect()
}

/// Returns true if an item is a part of the model's answers.
fn is_answer(item: &Value) -> bool {
    item["role"] == "assistant" || item["type"].as_str().is_some_and(|kind| kind.ends_with("_call"))
}

/// Checks the number of items in a conversation.
///
/// # Errors
/// 400 for more than [`MAX_ITEMS`].
pub fn check_count(items: usize) -> Result<(), ApiError> {
    match items <= MAX_ITEMS {
        true => Ok(()),
        false => {
            let message = format!("'input': the conversation has more than {MAX_ITEMS} items.");
            Err(ApiError::invalid_param("input", message))
        }
    }
}

fn message(role: &str, text: &str) -> Value {
    message_of(role, vec![text_part(role, text)])
}

fn message_of(role: &str, content: Vec<Value>) -> Value {
    json!({"type": "message", "status": "completed", "role": role, "content": content})
}

fn text_part(role: &str, text: &str) -> Value {
    match role {
        "assistant" => json!({"type": "output_text", "annotations": [], "text": text}),
        _ => json!({"type": "input_text", "text": text}),
    }
}

fn parse_item(mut fields: Fields, keeps_images: bool) -> Result<Value, ApiError> {
    // The API lets messages and references leave their type out.
    let kind = match fields.string("type")? {
        Some(kind) => kind,
        None if fields.map().contains_key("role") => "message".to_owned(),
        None if fields.map().contains_key("id") => "item_reference".to_owned(),
        None => return Err(fields.error("type", "is required.")),
    };
    let id = fields.string("id")?;
    let mut item = match kind.as_str() {
        "message" => parse_message(&mut fields, keeps_images)?,
        "function_call" => parse_call(&mut fields)?,
        "function_call_output" => parse_call_output(&mut fields)?,
        "reasoning" => parse_reasoning(&mut fields)?,
        "item_reference" => {
            let id = id.as_deref().ok_or_else(|| fields.error("id", "is required."))?;
            json!({"type": "item_reference", "id": id})
        }
        other => parse_foreign(&mut fields, other)?,
    };
    if let Some(id) = id {
        item["id"] = id.into();
    }
    Ok(item)
}

/// Parses an item of a conversation that was begun elsewhere: a call of one of OpenAI's own tools,
/// the output of one, or a summary that only OpenAI's servers can read. It is kept as it is.
fn parse_foreign(fields: &mut Fields, kind: &str) -> Result<Value, ApiError> {
    let is_call = CLIENTS_CALLS.contains(&kind);
    if !is_call && !CLIENTS_OUTPUTS.contains(&kind) && !UNREADABLE.contains(&kind) {
        let message = format!(
            "'{}' is not supported: this server takes messages, calls and their outputs, \
             reasoning, compactions and item references.",
            quoted(kind)
        );
        return Err(fields.error("type", message));
    }
    let mut item = json!({"type": kind, "status": "completed"});
    for (name, value) in fields.map() {
        item[name] = value.clone();
    }
    Ok(item)
}

fn parse_message(fields: &mut Fields, keeps_images: bool) -> Result<Value, ApiError> {
    let role = fields.string("role")?.ok_or_else(|| fields.error("role", "is required."))?;
    if !["user", "system", "developer", "assistant"].contains(&role.as_str()) {
        let known = "must be user, assistant, system or developer";
        return Err(fields.error("role", format!("{known}, not '{}'.", quoted(&role))));
    }
    let content = fields.take("content");
    let content = content.ok_or_else(|| fields.error("content", "is required."))?;
    let parts = parse_parts(fields, "content", content, keeps_images)?;
    let shown = parts.into_iter().map(|part| match part {
        InputPart::Text(text) => text_part(&role, &text),
        InputPart::Image(image) => image,
    });
    Ok(message_of(&role, shown.collect()))
}

/// A part of a content.
enum InputPart {
    Text(String),
    /// An image, as the client sent it.
    Image(Value),
}

impl InputPart {
    fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }

    /// Returns the part as one of an input's content.
    fn into_input(self) -> Value {
        match self {
            Self::Text(text) => text_part("user", &text),
            Self::Image(image) => image,
        }
    }
}

/// Returns the parts of a content, which is a string or an array of parts. Images are refused
/// unless `keeps_images`.
fn parse_parts(
    fields: &Fields,
    name: &str,
    content: Value,
    keeps_images: bool,
) -> Result<Vec<InputPart>, ApiError> {
    let Value::Array(parts) = content else {
        let texts = parse_texts(fields, name, content)?;
        return Ok(texts.into_iter().map(InputPart::Text).collect());
    };
    let parse = |(index, part): (usize, Value)| {
        if keeps_images && part["type"] == "input_image" {
            return Ok(InputPart::Image(part));
        }
        parse_text(fields.nested(&format!("{name}[{index}]"), part)?).map(InputPart::Text)
    };
    parts.into_iter().enumerate().map(parse).collect()
}

/// Returns the texts of a content, which is a string or an array of parts.
fn parse_texts(fields: &Fields, name: &str, content: Value) -> Result<Vec<String>, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(vec![text]),
        Value::Array(parts) => parts,
        other => {
            let wrong = "must be a string or an array of text parts";
            return Err(fields.error(name, format!("{wrong}, not {}.", kind_of(&other))));
        }
    };
    let parse = |(index, part)| parse_text(fields.nested(&format!("{name}[{index}]"), part)?);
    parts.into_iter().enumerate().map(parse).collect()
}

fn parse_text(mut part: Fields) -> Result<String, ApiError> {
    let kind = part.string("type")?.ok_or_else(|| part.error("type", "is required."))?;
    let member = match kind.as_str() {
        "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => "text",
        "refusal" => "refusal",
        other => {
            let wrong = quoted(other);
            let wrong = format!("'{wrong}' is not supported: this server accepts text only.");
            return Err(part.error("type", wrong));
        }
    };
    part.string(member)?.ok_or_else(|| part.error(member, "is required."))
}

fn parse_call(fields: &mut Fields) -> Result<Value, ApiError> {
    let mut required =
        |name: &str| fields.string(name)?.ok_or_else(|| fields.error(name, "is required."));
    let mut call = json!({
        "type": "function_call", "status": "completed", "call_id": required("call_id")?,
        "name": required("name")?, "arguments": required("arguments")?,
    });
    if let Some(namespace) = fields.string("namespace")? {
        call["namespace"] = namespace.into();
    }
    Ok(call)
}

fn parse_call_output(fields: &mut Fields) -> Result<Value, ApiError> {
    let call_id = fields.string("call_id")?;
    let call_id = call_id.ok_or_else(|| fields.error("call_id", "is required."))?;
    let output = fields.take("output");
    let output = output.ok_or_else(|| fields.error("output", "is required."))?;
    let parts = parse_parts(fields, "output", output, true)?;
    let output: Value = match parts.iter().any(|part| matches!(part, InputPart::Image(_))) {
        false => PartText::joined(parts.into_iter().filter_map(InputPart::into_text)).into(),
        true => parts.into_iter().map(InputPart::into_input).collect(),
    };
    Ok(json!({
        "type": "function_call_output", "status": "completed", "call_id": call_id,
        "output": output,
    }))
}

/// Parses reasoning in this server's format. A summary is not the model's own reasoning, and
/// another server's encrypted content cannot be read: both are returned unchanged, and the model
/// does not see them.
fn parse_reasoning(fields: &mut Fields) -> Result<Value, ApiError> {
    let summary = fields.array("summary")?.unwrap_or_default();
    let texts = match fields.take("content") {
        None => Vec::new(),
        Some(content) => parse_texts(fields, "content", content)?,
    };
    let part = |text: String| json!({"type": "reasoning_text", "text": text});
    let content: Vec<Value> = texts.into_iter().map(part).collect();
    Ok(json!({
        "type": "reasoning", "status": "completed", "summary": summary, "content": content,
        "encrypted_content": fields.string("encrypted_content")?,
    }))
}

/// Gives an id to each item without one, made of the id `response` and the item's index.
pub fn name_items(items: &mut [Value], response: &str) {
    let digits = response.trim_start_matches("resp_");
    for (index, item) in items.iter_mut().enumerate() {
        if item.get("id").is_some() {
            continue;
        }
        let prefix = match item["type"].as_str() {
            Some("function_call") => "fc",
            Some("function_call_output") => "fco",
            Some("reasoning") => "rs",
            Some("message") | None => "msg",
            Some(_) => "item",
        };
        item["id"] = format!("{prefix}_{digits}i{index:04x}").into();
    }
}

/// Returns the id of the response to which an item of this server belongs.
pub fn response_of_item(id: &str) -> Option<String> {
    /// Number of digits of a response's id.
    const DIGITS: usize = 32;
    // Not by an index: a client's id may have a character across that byte.
    let digits = id.split_once('_')?.1.get(..DIGITS)?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| format!("resp_{digits}"))
}

/// Converts a conversation to chat messages that begin with `instructions`.
pub fn messages(instructions: Option<&str>, items: &[Value]) -> Vec<Value> {
    let mut messages = Messages::default();
    if let Some(text) = instructions {
        messages.put_message("system", text.to_owned());
    }
    items.iter().for_each(|item| messages.put(item));
    messages.finish()
}

/// Chat messages under construction: the assistant's reasoning, text and calls, which the API has
/// as several items, become one message of a chat.
#[derive(Default)]
struct Messages {
    all: Vec<Value>,
    turn: Map<String, Value>,
}

impl Messages {
    fn put(&mut self, item: &Value) {
        let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        match item["type"].as_str() {
            Some("message") => match item["role"].as_str() {
                Some("assistant") => self.put_said(texts_of(&item["content"])),
                Some("user") => self.put_user(chat_content(&item["content"])),
                Some(role) => self.put_message(role, texts_of(&item["content"])),
                None => {}
            },
            Some("reasoning") => self.put_thought(texts_of(&item["content"])),
            Some("function_call") => {
                let name = chat_name(&text("name"), item["namespace"].as_str());
                self.put_call(&text("call_id"), &name, text("arguments"));
            }
            Some("function_call_output") => {
                self.end_turn();
                self.all.push(json!({
                    "role": "tool", "tool_call_id": text("call_id"),
                    "content": chat_content(&item["output"]),
                }));
            }
            Some(kind) => self.put_foreign(kind, item),
            None => {}
        }
    }

    /// Appends an item of OpenAI's own tools, as far as a model can use it.
    fn put_foreign(&mut self, kind: &str, item: &Value) {
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default();
        if CLIENTS_CALLS.contains(&kind) {
            let named = item["name"].as_str();
            let name = named.unwrap_or_else(|| kind.strip_suffix("_call").unwrap_or(kind));
            self.put_call(id, name, foreign_arguments(item));
        } else if CLIENTS_OUTPUTS.contains(&kind) {
            self.end_turn();
            let content = foreign_output(item);
            self.all.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        } else if kind == "web_search_call" {
            let query = item["action"]["query"].as_str().unwrap_or_default();
            self.put_said(format!("(Searched the web: {query})"));
        } else if kind.contains("compaction") {
            let summary = summary::recalled(item).unwrap_or_else(|| UNREADABLE_SUMMARY.to_owned());
            self.put_message("user", summary);
        }
    }

    fn put_user(&mut self, content: Value) {
        self.end_turn();
        self.all.push(json!({"role": "user", "content": content}));
    }

    fn put_message(&mut self, role: &str, text: String) {
        self.end_turn();
        let role = if role == "developer" { "system" } else { role };
        // Many templates know one message of the system, at the beginning.
        if let ([first], "system") = (self.all.as_mut_slice(), role)
            && first["role"] == "system"
        {
            let before = first["content"].as_str().unwrap_or_default();
            first["content"] = format!("{before}\n\n{text}").into();
            return;
        }
        self.all.push(json!({"role": role, "content": text}));
    }

    fn put_thought(&mut self, text: String) {
        if self.turn.contains_key("content") || self.turn.contains_key("tool_calls") {
            self.end_turn();
        }
        if !text.is_empty() {
            self.turn.insert("reasoning_content".into(), text.into());
        }
    }

    fn put_said(&mut self, text: String) {
        if self.turn.contains_key("content") || self.turn.contains_key("tool_calls") {
            self.end_turn();
        }
        self.turn.insert("content".into(), text.into());
    }

    fn put_call(&mut self, id: &str, name: &str, arguments: String) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        let calls = self.turn.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
    }

    fn end_turn(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        // A thought alone, which nothing was said after, is no message.
        if turn.contains_key("content") || turn.contains_key("tool_calls") {
            let mut message = Map::new();
            message.insert("role".into(), "assistant".into());
            message.insert("content".into(), Value::Null);
            message.extend(turn);
            self.all.push(message.into());
        }
    }

    fn finish(mut self) -> Vec<Value> {
        self.end_turn();
        self.all
    }
}

/// Text in place of a summary that OpenAI's servers have encrypted.
const UNREADABLE_SUMMARY: &str =
    "(An earlier part of this conversation was summed up in a form that only OpenAI can read.)";

/// Returns the arguments of a call of one of OpenAI's own tools, as JSON.
fn foreign_arguments(item: &Value) -> String {
    match ["action", "operation", "arguments"].iter().find_map(|name| item.get(name)) {
        Some(Value::String(text)) => text.clone(),
        Some(arguments) => arguments.to_string(),
        None => json!({"input": item["input"]}).to_string(),
    }
}

/// Returns the output of such a call as the content of a chat message.
fn foreign_output(item: &Value) -> Value {
    let is_part = |part: &Value| part["text"].is_string() || part["type"] == "input_image";
    let text = match ["output", "tools"].iter().find_map(|name| item.get(name)) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) if parts.iter().any(is_part) => {
            return chat_content(&item["output"]);
        }
        Some(output) => output.to_string(),
        None => String::new(),
    };
    text.into()
}

/// Returns a content in the form of chat messages: text, or parts if there are images.
fn chat_content(content: &Value) -> Value {
    let parts = match content {
        Value::Array(parts) => parts,
        text => return text.clone(),
    };
    if !parts.iter().any(|part| part["type"] == "input_image") {
        return texts_of(content).into();
    }
    let part = |part: &Value| match part["type"] == "input_image" {
        true => {
            let mut image = json!({"url": part["image_url"]});
            if let Some(detail) = part.get("detail") {
                image["detail"] = detail.clone();
            }
            json!({"type": "image_url", "image_url": image})
        }
        false => json!({"type": "text", "text": part["text"]}),
    };
    parts.iter().map(part).collect()
}

fn texts_of(content: &Value) -> String {
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    PartText::joined(parts.iter().filter_map(|part| part["text"].as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({"input": input}).to_string();
        parse_input(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn a_turn_of_the_assistant_is_one_message() {
        let items = parse(&json!([
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "sun"},
            {"type": "function_call_output", "call_id": "b",
             "output": [{"type": "input_text", "text": "ra"}, {"type": "input_text", "text": "in"}]},
            {"role": "assistant", "content": "Both."},
        ]))
        .unwrap();
        let messages = messages(Some("Be brief."), &items);
        let roles: Vec<&str> = messages.iter().filter_map(|one| one["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "assistant"]);
        assert_eq!(messages[2]["reasoning_content"], "hm");
        assert_eq!(messages[2]["content"], "Wait.");
        assert_eq!(messages[2]["tool_calls"][1]["function"]["name"], "g");
        assert_eq!(messages[4]["content"], "ra\nin");
    }

    #[test]
    fn a_conversation_begun_elsewhere_goes_on() {
        let items = parse(&json!([
            {"role": "user", "content": "What is here?"},
            {"type": "compaction", "encrypted_content": "gAAAA"},
            {"type": "local_shell_call", "call_id": "a", "status": "completed",
             "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "a", "output": "main.rs"},
            {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "b",
             "output": [{"type": "input_text", "text": "Done."}]},
            {"type": "web_search_call", "status": "completed",
             "action": {"type": "search", "query": "rust"}},
            {"type": "function_call", "call_id": "c", "namespace": "mcp__adder", "name": "add",
             "arguments": "{}"},
            {"type": "shell_call_output", "call_id": "d", "output": [{"stdout": "x", "stderr": ""}]},
        ]))
        .unwrap();
        assert_eq!(items[2]["action"]["command"][0], "ls");
        assert_eq!(items[7]["namespace"], "mcp__adder");
        let all = messages(None, &items);
        let roles: Vec<&str> = all.iter().filter_map(|one| one["role"].as_str()).collect();
        let wanted =
            ["user", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool"];
        assert_eq!(roles, wanted);
        let shell = &all[2]["tool_calls"][0];
        assert_eq!(
            (&shell["id"], &shell["function"]["name"]),
            (&json!("a"), &json!("local_shell"))
        );
        assert!(shell["function"]["arguments"].as_str().unwrap().contains("ls"));
        let patch: Value = serde_json::from_str(
            all[4]["tool_calls"][0]["function"]["arguments"].as_str().unwrap(),
        )
        .unwrap();
        assert_eq!(patch["input"], "*** Begin");
        assert_eq!((&all[3]["content"], &all[5]["content"]), (&json!("main.rs"), &json!("Done.")));
        assert_eq!(all[6]["tool_calls"][0]["function"]["name"], "mcp__adder__add");
        assert!(all[6]["content"].as_str().unwrap().contains("rust"));
        assert!(all[7]["content"].as_str().unwrap().contains("stdout"));
    }

    #[test]
    fn images_of_the_past_are_kept_for_whoever_sees_them() {
        let image = json!({"type": "input_image", "image_url": "data:image/png;base64,AA=="});
        let call =
            json!({"type": "function_call", "call_id": "a", "name": "view", "arguments": "{}"});
        let text = json!({"type": "input_text", "text": "Look:"});
        let output =
            json!({"type": "function_call_output", "call_id": "a", "output": [text, image]});
        let user = json!({"role": "user", "content": [image]});
        let items = parse(&json!([user, call, output])).unwrap();
        let all = messages(None, &items);
        let url = "data:image/png;base64,AA==";
        assert_eq!(all[0]["content"][0]["image_url"]["url"], url);
        assert_eq!(all[2]["content"][0], json!({"type": "text", "text": "Look:"}));
        assert_eq!(all[2]["content"][1]["image_url"]["url"], url);
        // A question with an image is refused, unless an upstream server is asked.
        assert!(parse(&json!([call, user])).is_err());
        let body = json!({"input": [user]}).to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        fields.keep_images();
        assert!(parse_input(&mut fields).is_ok());
    }

    #[test]
    fn instructions_and_developers_messages_are_one_system_message() {
        let items = parse(&json!([
            {"role": "developer", "content": "b"},
            {"role": "user", "content": "c"},
        ]));
        let messages = messages(Some("a"), &items.unwrap());
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0], json!({"role": "system", "content": "a\n\nb"}));
    }

    #[test]
    fn wrong_items_are_named() {
        for (input, name) in [
            (json!(1), "input"),
            (json!([1]), "input[0]"),
            (json!([{}]), "input[0].type"),
            (json!([{"type": "computer_call"}]), "input[0].type"),
            (json!([{"role": "user"}]), "input[0].content"),
            (json!([{"role": "tool", "content": "x"}]), "input[0].role"),
            (
                json!([{"role": "user", "content": [{"type": "input_image"}]}]),
                "input[0].content[0].type",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_text"}]}]),
                "input[0].content[0].text",
            ),
            (json!([{"type": "function_call", "call_id": "a"}]), "input[0].name"),
            (json!([{"type": "function_call_output", "call_id": "a"}]), "input[0].output"),
            (json!([{"type": "item_reference"}]), "input[0].id"),
        ] {
            let error = parse(&input).unwrap_err().json();
            assert_eq!(error["error"]["param"], name, "{input}");
        }
        let many = vec![json!({"role": "user", "content": ""}); MAX_ITEMS + 1];
        assert!(parse(&many.into()).is_err());
    }

    #[test]
    fn items_are_named_after_their_response() {
        let mut items = parse(&json!([{"role": "user", "content": "a"}])).unwrap();
        let id = format!("resp_{:032x}", 7);
        name_items(&mut items, &id);
        let named = items[0]["id"].as_str().unwrap();
        assert_eq!(response_of_item(named).unwrap(), id);
        for foreign in ["", "msg_", "msg_é", "msg_67ccd2bed1ec8190b14f964abc05", "x"] {
            assert_eq!(response_of_item(foreign), None, "{foreign}");
        }
    }
}
