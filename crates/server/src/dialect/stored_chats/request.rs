//! Storage parameters of requests: `store` and `metadata` of a chat completion, and the queries of
//! lists.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, kind_of};
use crate::error::{ApiError, quoted};
use crate::memory::MemoryCharge;
use crate::store::object::ListPage;

/// Maximum number of `metadata` pairs, and maximum length of keys and values in characters
/// (OpenAI's limits).
const MAX_PAIRS: usize = 16;
const MAX_KEY_CHARS: usize = 64;
const MAX_VALUE_CHARS: usize = 512;
/// Default and maximum number of objects per page.
const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

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

/// Filter of a list of stored completions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Includes only completions of this model.
    pub model: Option<String>,
    /// Includes only completions whose metadata has all these pairs.
    pub metadata: Vec<(String, String)>,
}

/// The parsed query of a list.
#[derive(Debug)]
pub struct ListQuery {
    /// The requested page.
    pub page: ListPage,
    /// The filter.
    pub filter: ListFilter,
    /// Names of ignored query parameters.
    pub ignored: Vec<String>,
}

/// Parses the query of a list.
///
/// # Errors
/// 400 with the name of the invalid parameter.
pub fn parse_list(query: Option<&str>) -> Result<ListQuery, ApiError> {
    let mut page = ListPage { after: None, limit: DEFAULT_LIMIT, newest_first: false };
    let (mut filter, mut ignored) = (ListFilter::default(), Vec::new());
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "after" => page.after = Some(value.into_owned()),
            "limit" => page.limit = parse_limit(&value)?,
            "order" => page.newest_first = parse_order(&value)?,
            "model" => filter.model = Some(value.into_owned()),
            other => match metadata_key(other) {
                Some(key) => filter.metadata.push((key.to_owned(), value.into_owned())),
                None => ignored.push(other.to_owned()),
            },
        }
    }
    if filter.metadata.len() > MAX_PAIRS {
        let message = format!("'metadata' has more than {MAX_PAIRS} pairs.");
        return Err(ApiError::invalid_param("metadata", message));
    }
    Ok(ListQuery { page, filter, ignored })
}

/// Returns the metadata key in the query parameter `name`.
fn metadata_key(name: &str) -> Option<&str> {
    name.strip_prefix("metadata[")?.strip_suffix(']')
}

fn parse_limit(text: &str) -> Result<usize, ApiError> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| {
        let message = format!("'limit' must be between 1 and {MAX_LIMIT}, not '{}'.", quoted(text));
        ApiError::invalid_param("limit", message)
    })
}

fn parse_order(text: &str) -> Result<bool, ApiError> {
    match text {
        "asc" => Ok(false),
        "desc" => Ok(true),
        other => {
            let message = format!("'order' must be 'asc' or 'desc', not '{}'.", quoted(other));
            Err(ApiError::invalid_param("order", message))
        }
    }
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

    #[test]
    fn queries_are_decoded_and_bounded() {
        let query =
            "limit=3&order=desc&after=a%20b&model=m&metadata%5Bk+1%5D=v%26&metadata[x]=y&z=1";
        let ListQuery { page, filter, ignored } = parse_list(Some(query)).unwrap();
        assert_eq!((page.after.as_deref(), page.limit, page.newest_first), (Some("a b"), 3, true));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(filter.metadata, [pair("k 1", "v&"), pair("x", "y")]);
        assert_eq!((filter.model.as_deref(), ignored), (Some("m"), vec!["z".to_owned()]));
        assert_eq!(parse_list(None).unwrap().filter, ListFilter::default());
        let many = "metadata[a]=b&".repeat(17);
        for wrong in ["limit=0", "limit=101", "limit=x", "order=up", &many] {
            assert!(parse_list(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
