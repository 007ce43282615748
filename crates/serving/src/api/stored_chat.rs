//! `store` and `metadata` of a chat completion.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fields::{Fields, kind_of};
use crate::error::{ApiError, quoted};
use crate::memory::MemoryCharge;

/// Maximum number of `metadata` pairs, and maximum length of keys and values in characters
/// (OpenAI's limits).
pub const MAX_PAIRS: usize = 16;
const MAX_KEY_CHARS: usize = 64;
const MAX_VALUE_CHARS: usize = 512;

/// The request parameters that a stored completion shows, null if the request lacks them.
const SHOWN: [&str; 8] = [
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "tools",
    "tool_choice",
    "response_format",
];

/// The parts of a request that are stored beside the answer.
#[derive(Debug, Clone)]
pub struct ChatToStore {
    /// The request's messages as JSON.
    pub messages: String,
    /// Parameters shown in the completion.
    pub shown: Map<String, Value>,
    /// Memory charged for the messages.
    pub charge: Option<Arc<MemoryCharge>>,
}

impl ChatToStore {
    /// Takes `store` from a request; returns the parts to store with the answer if it is true.
    ///
    /// # Errors
    /// 400 if `store` or `metadata` is invalid.
    pub fn take(fields: &mut Fields) -> Result<Option<Box<Self>>, ApiError> {
        if !fields.boolean("store")?.unwrap_or(false) {
            return Ok(None);
        }
        // Both end here: an upstream server would store the answer a second time.
        let metadata = parse_metadata(fields)?;
        Ok(Some(Box::new(Self::of(fields, metadata))))
    }

    /// Returns the parts of the request in `fields` to be stored, with `metadata`.
    pub fn of(fields: &Fields, metadata: Value) -> Self {
        let map = fields.map();
        // Copies: the request itself still needs them.
        let shown_value = |name: &&str| map.get(*name).cloned().unwrap_or(Value::Null);
        let mut shown: Map<_, _> =
            SHOWN.iter().map(|name| ((*name).to_owned(), shown_value(name))).collect();
        shown.insert("input_user".to_owned(), shown_value(&"user"));
        shown.insert("metadata".to_owned(), metadata);
        let messages = map.get("messages").map_or_else(|| "[]".to_owned(), Value::to_string);
        Self { messages, shown, charge: fields.charge() }
    }

    /// Returns the request's metadata.
    pub fn metadata(&self) -> &Value {
        &self.shown["metadata"]
    }
}

/// Takes `metadata`; returns an empty object if the request has none.
///
/// # Errors
/// 400 if it is not an object with a few short strings.
pub fn parse_metadata(fields: &mut Fields) -> Result<Value, ApiError> {
    let map = match fields.take("metadata") {
        None => return Ok(json!({})),
        Some(Value::Object(map)) => map,
        Some(other) => {
            let wrong = format!("must be an object, not {}.", kind_of(&other));
            return Err(fields.error("metadata", wrong));
        }
    };
    if map.len() > MAX_PAIRS {
        return Err(fields.error("metadata", format!("has more than {MAX_PAIRS} pairs.")));
    }
    for (key, value) in &map {
        let key_fits = key.chars().count() <= MAX_KEY_CHARS;
        let value_fits = |text: &str| text.chars().count() <= MAX_VALUE_CHARS;
        if !key_fits || !value.as_str().is_some_and(value_fits) {
            let wrong = format!(
                "must map keys of at most {MAX_KEY_CHARS} characters to strings of at most \
                 {MAX_VALUE_CHARS}; '{}' does not.",
                quoted(key)
            );
            return Err(fields.error("metadata", wrong));
        }
    }
    Ok(Value::Object(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: Value) -> Result<Option<Box<ChatToStore>>, ApiError> {
        ChatToStore::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn only_what_asks_for_it_is_stored() {
        for body in [json!({}), json!({"store": false}), json!({"store": null, "metadata": {}})] {
            assert!(take(body).unwrap().is_none());
        }
        let chat = take(json!({"store": true, "messages": [1], "seed": 7, "metadata": {"a": "b"}}));
        let chat = chat.unwrap().unwrap();
        assert_eq!(chat.messages, "[1]");
        assert_eq!((&chat.shown["seed"], &chat.shown["top_p"]), (&json!(7), &Value::Null));
        assert_eq!(chat.shown["metadata"], json!({"a": "b"}));
    }

    #[test]
    fn metadata_is_a_few_short_strings() {
        let many: Map<_, _> = (0..17).map(|n| (n.to_string(), json!("x"))).collect();
        for wrong in [json!("x"), json!({"a": 1}), json!({"k".repeat(65): "x"}), many.into()] {
            let error = take(json!({"store": true, "metadata": wrong})).unwrap_err();
            assert_eq!(error.json()["error"]["param"], "metadata");
        }
        assert!(take(json!({"store": true, "metadata": {"k": "v".repeat(513)}})).is_err());
        assert!(take(json!({"store": true, "metadata": {"k": "v".repeat(512)}})).is_ok());
        assert!(take(json!({"store": "yes"})).is_err());
    }
}
