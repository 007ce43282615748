//! A stored chat completion: two lines of JSON, the completion and the messages that it answers.
//! Lists and single reads need only the first line, and copy it unparsed.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use loquent_infer::vocab::Vocab;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::stored_chats::request::ListFilter;
use loquent_serving::api::part_text::PartText;
use loquent_serving::api::stored_chat::ChatToStore;
use loquent_serving::error::ApiError;
use loquent_serving::full_answer::FullAnswer;
use loquent_serving::full_response::full_response;
use loquent_store::object::{ListPage, Progress, StoredObject};
use loquent_store::recorder::RecordedObject;

/// A chat whose answer is stored.
pub struct StoredChat {
    /// The stored parts of the request.
    pub chat: ChatToStore,
    /// The vocabulary of the answer's tokens.
    pub vocab: Arc<dyn Vocab>,
}

impl RecordedObject for StoredChat {
    fn object(&self, answer: &FullAnswer) -> StoredObject {
        let mut completion = full_response(answer, &*self.vocab);
        let members = completion.as_object_mut().expect("a completion is an object");
        // Behind the answer's own members, which have OpenAI's order.
        members.extend(self.chat.shown.clone());
        object(&answer.head.id, answer.head.created_s, &completion, &self.chat.messages)
    }
}

fn object(id: &str, created_s: u64, completion: &Value, messages: &str) -> StoredObject {
    // Compact JSON has no line ends of its own.
    let json = Bytes::from(format!("{completion}\n{messages}"));
    StoredObject { id: id.to_owned(), created_s, progress: Progress::Ended, json }
}

/// Returns the completion's JSON.
pub fn completion(stored: &StoredObject) -> &[u8] {
    lines(stored).0
}

fn lines(stored: &StoredObject) -> (&[u8], &[u8]) {
    let end = stored.json.iter().position(|byte| *byte == b'\n').unwrap_or(stored.json.len());
    let (first, second) = stored.json.split_at(end);
    (first, second.get(1..).unwrap_or_default())
}

/// Returns the stored completion with other metadata.
///
/// # Errors
/// 500 if it cannot be read.
pub fn with_metadata(stored: &StoredObject, metadata: Value) -> Result<StoredObject, ApiError> {
    let (first, messages) = lines(stored);
    // The messages, by far the longer line, are copied unread.
    // A member can be added to an object only.
    let mut completion: Map<String, Value> = serde_json::from_slice(first).map_err(unreadable)?;
    completion.insert("metadata".to_owned(), metadata);
    let completion = Value::from(completion);
    let messages = str::from_utf8(messages).map_err(unreadable)?;
    Ok(object(&stored.id, stored.created_s, &completion, messages))
}

/// Members of a completion that lists filter by.
#[derive(Deserialize)]
struct Summary {
    model: String,
    metadata: Option<HashMap<String, String>>,
}

impl ListFilter {
    /// Returns true if the list includes this completion.
    pub fn accepts(&self, stored: &StoredObject) -> bool {
        if self.model.is_none() && self.metadata.is_empty() {
            // Without a filter nothing has to be parsed.
            return true;
        }
        // Two members alone: a list may look through all that its owner has.
        let Ok(summary) = serde_json::from_slice::<Summary>(completion(stored)) else {
            return false;
        };
        let metadata = summary.metadata.unwrap_or_default();
        let has = |(key, value): &(String, String)| metadata.get(key) == Some(value);
        self.model.as_ref().is_none_or(|model| *model == summary.model)
            && self.metadata.iter().all(has)
    }
}

/// Returns a page of the messages that a stored completion answers.
///
/// # Errors
/// 500 if they cannot be read; 400 for a page after a message that does not exist.
pub fn messages(stored: &StoredObject, page: &ListPage) -> Result<Value, ApiError> {
    let messages: Vec<Value> = serde_json::from_slice(lines(stored).1).map_err(unreadable)?;
    let mut all: Vec<Value> = messages
        .into_iter()
        .enumerate()
        .map(|(at, message)| stored_message(format!("{}-{at}", stored.id), message))
        .collect();
    if page.newest_first {
        all.reverse();
    }
    let begin = match &page.after {
        None => 0,
        Some(after) => {
            let at = all.iter().position(|message| message["id"] == after.as_str());
            at.ok_or_else(|| {
                ApiError::invalid_param("after", "'after' is not the id of a message.")
            })? + 1
        }
    };
    let has_more = all.len() > begin + page.limit;
    let data: Vec<Value> = all.into_iter().skip(begin).take(page.limit).collect();
    Ok(list_page(data, has_more))
}

/// Returns a page of a list in OpenAI's form. The objects in `data` have ids.
pub fn list_page(data: Vec<Value>, has_more: bool) -> Value {
    let id = |one: Option<&Value>| one.map_or(Value::Null, |one| one["id"].clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    json!({
        "object": "list", "data": data, "first_id": first_id, "last_id": last_id,
        "has_more": has_more,
    })
}

/// Returns a message in the API's format: its text in `content`, and its parts, if it has several,
/// separately.
fn stored_message(id: String, message: Value) -> Value {
    let Value::Object(mut message) = message else { return json!({"id": id}) };
    let content = message.remove("content").unwrap_or(Value::Null);
    let (text, parts) = match content {
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            (PartText::joined(texts).into(), Value::Array(parts))
        }
        text => (text, Value::Null),
    };
    let role = message.remove("role").unwrap_or(Value::Null);
    let mut shown = json!({"id": id, "role": role, "content": text, "content_parts": parts});
    let members = shown.as_object_mut().expect("a message is an object");
    members.insert("name".to_owned(), Value::Null);
    // The id of its place, which pages go by, wins over the client's.
    members.extend(message.into_iter().filter(|(name, _)| name != "id"));
    shown
}

fn unreadable(error: impl std::fmt::Display) -> ApiError {
    ApiError::internal(format!("A stored object cannot be read: {error}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(messages: &Value) -> StoredObject {
        let completion = json!({"id": "c", "model": "m", "metadata": {"k": "v"}});
        object("c", 1, &completion, &messages.to_string())
    }

    fn page(after: Option<&str>, limit: usize, newest_first: bool) -> ListPage {
        ListPage { after: after.map(str::to_owned), limit, newest_first }
    }

    #[test]
    fn messages_have_ids_parts_and_pages() {
        let stored = stored(&json!([
            {"role": "system", "content": "a\nb"},
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
            {"role": "assistant", "tool_calls": [{"id": "t"}]},
        ]));
        let all = messages(&stored, &page(None, 9, false)).unwrap();
        assert_eq!(all["data"][0]["content"], "a\nb");
        assert_eq!(all["data"][0]["content_parts"], Value::Null);
        assert_eq!(all["data"][1]["content"], "c\nd");
        assert_eq!(all["data"][1]["content_parts"][1]["text"], "d");
        assert_eq!(all["data"][2]["tool_calls"][0]["id"], "t");
        assert_eq!((&all["first_id"], &all["last_id"]), (&json!("c-0"), &json!("c-2")));
        let next = messages(&stored, &page(Some("c-2"), 1, true)).unwrap();
        assert_eq!((&next["data"][0]["id"], &next["has_more"]), (&json!("c-1"), &json!(true)));
        assert!(messages(&stored, &page(Some("x"), 1, true)).is_err());
    }

    #[test]
    fn metadata_is_replaced_and_the_rest_stays() {
        let changed = with_metadata(&stored(&json!([1])), json!({"n": "w"})).unwrap();
        let filter = |key: &str, value: &str| ListFilter {
            model: Some("m".to_owned()),
            metadata: vec![(key.to_owned(), value.to_owned())],
        };
        assert!(filter("n", "w").accepts(&changed) && !filter("k", "v").accepts(&changed));
        assert!(!ListFilter { model: Some("x".into()), ..filter("n", "w") }.accepts(&changed));
        assert_eq!(lines(&changed).1, b"[1]");
    }
}
