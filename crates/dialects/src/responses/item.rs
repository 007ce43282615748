//! One output item of a response while it is generated.

use serde_json::{Value, json};

/// Kind of an item, and its content so far.
#[derive(Debug)]
pub enum ItemBody {
    /// Text of the answer.
    Message {
        /// The text.
        text: String,
        /// Log-probabilities of its tokens, if the request asks for them.
        logprobs: Vec<Value>,
    },
    /// The model's reasoning.
    Reasoning {
        /// The text.
        text: String,
        /// True if the client asked for a summary, and reads nothing else.
        as_summary: bool,
    },
    /// A call of a function or of a custom tool.
    Call {
        /// Kind of the tool.
        kind: ToolKind,
        /// Index among the answer's calls.
        index: u32,
        /// The id that the call's output refers to.
        call_id: String,
        /// Name of the function.
        name: String,
        /// The function's namespace, if it has one.
        namespace: Option<String>,
        /// Arguments as JSON; of a custom tool, whose member `input` has its text.
        arguments: String,
    },
}

/// Kind of a tool that the model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolKind {
    /// A function with arguments as JSON.
    Function,
    /// A custom tool, which takes a text. The model knows it as a function of one argument.
    Custom,
}

impl ToolKind {
    /// Returns the member of an item that has what the model wrote for the tool.
    const fn content(self) -> &'static str {
        match self {
            Self::Function => "arguments",
            Self::Custom => "input",
        }
    }
}

/// Returns the text that a call of a custom tool has in its whole `arguments`; all of them if the
/// model wrote something else than asked for.
pub fn custom_input(arguments: &str) -> String {
    parse_input(arguments).unwrap_or_else(|| arguments.to_owned())
}

fn parse_input(arguments: &str) -> Option<String> {
    let parsed: Value = serde_json::from_str(arguments).ok()?;
    parsed["input"].as_str().map(str::to_owned)
}

/// An item that is being generated.
#[derive(Debug)]
pub struct OpenItem {
    /// Id of the item: the response's id and the item's index.
    pub id: String,
    /// Kind and content so far.
    pub body: ItemBody,
}

impl ItemBody {
    /// Returns the prefix of the ids of such items.
    pub const fn id_prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::Call { kind: ToolKind::Function, .. } => "fc",
            Self::Call { kind: ToolKind::Custom, .. } => "ctc",
        }
    }
}

impl OpenItem {
    /// Returns the item with its content so far.
    pub fn json(&self, status: &str) -> Value {
        self.object(status, self.part().into_iter().collect())
    }

    /// Returns the item as first announced, without content.
    pub fn announced(&self) -> Value {
        let mut item = self.object("in_progress", Vec::new());
        if let ItemBody::Call { kind, .. } = self.body {
            item[kind.content()] = "".into();
        }
        item
    }

    fn object(&self, status: &str, content: Vec<Value>) -> Value {
        match &self.body {
            ItemBody::Message { .. } => json!({
                "id": self.id, "type": "message", "status": status, "role": "assistant",
                "content": content,
            }),
            // Nobody but the server has written it, so nothing in it has to be encrypted.
            ItemBody::Reasoning { as_summary, .. } => {
                // The client sends the content back, whatever it shows.
                let summary = content.iter().filter(|_| *as_summary).map(summary_part);
                json!({
                    "id": self.id, "type": "reasoning", "status": status,
                    "summary": summary.collect::<Vec<_>>(), "content": content,
                    "encrypted_content": null,
                })
            }
            ItemBody::Call { kind: ToolKind::Custom, call_id, name, arguments, .. } => {
                // Half of the arguments is half of some JSON, not of the text.
                let input = match status {
                    "in_progress" => parse_input(arguments).unwrap_or_default(),
                    _ => custom_input(arguments),
                };
                json!({
                    "id": self.id, "type": "custom_tool_call", "status": status,
                    "call_id": call_id, "name": name, "input": input,
                })
            }
            ItemBody::Call { call_id, name, namespace, arguments, .. } => {
                let mut item = json!({
                    "id": self.id, "type": "function_call", "status": status, "call_id": call_id,
                    "name": name, "arguments": arguments,
                });
                if let Some(namespace) = namespace {
                    item["namespace"] = namespace.as_str().into();
                }
                item
            }
        }
    }

    /// Returns true if the item's text is announced as a summary.
    pub const fn is_summary(&self) -> bool {
        matches!(self.body, ItemBody::Reasoning { as_summary: true, .. })
    }

    /// Returns the member of events that numbers the parts of the item; `None` for calls.
    pub const fn part_index(&self) -> Option<&'static str> {
        match &self.body {
            ItemBody::Reasoning { as_summary: true, .. } => Some("summary_index"),
            ItemBody::Message { .. } | ItemBody::Reasoning { .. } => Some("content_index"),
            ItemBody::Call { .. } => None,
        }
    }

    /// Returns the members of an event that say where in the output the item's part is.
    pub fn place(&self, output_index: usize) -> Value {
        let mut place = json!({"item_id": self.id, "output_index": output_index});
        if let Some(member) = self.part_index() {
            place[member] = 0.into();
        }
        place
    }

    /// Returns the only part of the content; `None` for calls.
    pub fn part(&self) -> Option<Value> {
        match &self.body {
            ItemBody::Message { text, logprobs } => Some(json!({
                "type": "output_text", "annotations": [], "logprobs": logprobs, "text": text,
            })),
            ItemBody::Reasoning { text, .. } => {
                Some(json!({"type": "reasoning_text", "text": text}))
            }
            ItemBody::Call { .. } => None,
        }
    }

    /// Returns that part as first announced, without text.
    pub fn empty_part(&self) -> Option<Value> {
        let mut part = self.part()?;
        part["text"] = "".into();
        if part.get("logprobs").is_some() {
            part["logprobs"] = json!([]);
        }
        Some(part)
    }
}

/// Returns a part of a reasoning's content as a part of its summary.
pub fn summary_part(part: &Value) -> Value {
    json!({"type": "summary_text", "text": part["text"]})
}
