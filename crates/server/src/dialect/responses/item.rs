//! One item of a response's output while it is being generated.

use serde_json::{Value, json};

/// What an item is, and what it has so far.
#[derive(Debug)]
pub enum ItemBody {
    /// Text of the answer.
    Message {
        /// The text.
        text: String,
        /// Log-probabilities of its tokens, where the request asks for them.
        logprobs: Vec<Value>,
    },
    /// What the model thought.
    Reasoning {
        /// The text.
        text: String,
    },
    /// A call of a function.
    Call {
        /// Its number among the answer's calls.
        index: u32,
        /// The id that its output refers to.
        call_id: String,
        /// The function.
        name: String,
        /// Its arguments as JSON.
        arguments: String,
    },
}

/// An item that is being generated.
#[derive(Debug)]
pub struct OpenItem {
    /// Its id: the response's, and its place.
    pub id: String,
    /// What it is.
    pub body: ItemBody,
}

impl ItemBody {
    /// The beginning of the ids of such items.
    pub const fn id_prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::Call { .. } => "fc",
        }
    }
}

impl OpenItem {
    /// The item with all that it has.
    pub fn json(&self, status: &str) -> Value {
        self.object(status, self.part().into_iter().collect())
    }

    /// The item as it is announced.
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

    /// Whether its text is in a part of its content.
    pub const fn has_content(&self) -> bool {
        !matches!(self.body, ItemBody::Call { .. })
    }

    /// The one part of its content; calls have none.
    pub fn part(&self) -> Option<Value> {
        match &self.body {
            ItemBody::Message { text, logprobs } => Some(json!({
                "type": "output_text", "annotations": [], "logprobs": logprobs, "text": text,
            })),
            ItemBody::Reasoning { text } => Some(json!({"type": "reasoning_text", "text": text})),
            ItemBody::Call { .. } => None,
        }
    }

    /// That part as it is announced.
    pub fn empty_part(&self) -> Option<Value> {
        let mut part = self.part()?;
        part["text"] = "".into();
        if part.get("logprobs").is_some() {
            part["logprobs"] = json!([]);
        }
        Some(part)
    }
}
