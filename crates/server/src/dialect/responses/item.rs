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
    },
    /// A call of a function.
    Call {
        /// Index among the answer's calls.
        index: u32,
        /// The id that the call's output refers to.
        call_id: String,
        /// Name of the function.
        name: String,
        /// Arguments as JSON.
        arguments: String,
    },
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
            Self::Call { .. } => "fc",
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
        if let ItemBody::Call { .. } = self.body {
            item["arguments"] = "".into();
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
            ItemBody::Reasoning { .. } => json!({
                "id": self.id, "type": "reasoning", "status": status, "summary": [],
                "content": content, "encrypted_content": null,
            }),
            ItemBody::Call { call_id, name, arguments, .. } => json!({
                "id": self.id, "type": "function_call", "status": status, "call_id": call_id,
                "name": name, "arguments": arguments,
            }),
        }
    }

    /// Returns true if the item's text is in a part of its content.
    pub const fn has_content(&self) -> bool {
        !matches!(self.body, ItemBody::Call { .. })
    }

    /// Returns the only part of the content; `None` for calls.
    pub fn part(&self) -> Option<Value> {
        match &self.body {
            ItemBody::Message { text, logprobs } => Some(json!({
                "type": "output_text", "annotations": [], "logprobs": logprobs, "text": text,
            })),
            ItemBody::Reasoning { text } => Some(json!({"type": "reasoning_text", "text": text})),
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
