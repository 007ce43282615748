//! Models listed by a server; the first one serves requests that name none. The list is requested
//! at intervals, and separately for each client key, since the models available may depend on the
//! key.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use loquent_proto::json::{members, put_string};
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use loquent_serving::clock::Clock;

/// Validity of a list: short, so that a server that loads another model is soon noticed.
const FRESH: Duration = Duration::from_secs(60);
/// Validity of a failure. Meanwhile requests are sent without a model, as clients sent them.
const FAILURE_FRESH: Duration = Duration::from_secs(2);
/// Maximum number of keys whose models are remembered; the memory is cleared when it is full.
const MAX_KEYS: usize = 256;
/// Largest body parsed for its model on its way through: a larger one names a model, or the
/// upstream refuses it. The list of members takes less than 2 MiB.
const MAX_READ_BYTES: usize = 256 * 1024;
/// Largest body in which the model's name is replaced on its way through.
const MAX_NAMED_BYTES: usize = 8 << 20;

/// Maximum number of remembered models of a list.
const MAX_MODELS: usize = 64;
/// Longest remembered model name, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Names that a server listed, and the time of the list.
#[derive(Debug, Clone)]
struct Listed {
    at: Duration,
    models: Arc<[String]>,
}

impl Listed {
    fn is_fresh(&self, now: Duration) -> bool {
        let limit = if self.models.is_empty() { FAILURE_FRESH } else { FRESH };
        now.saturating_sub(self.at) < limit
    }
}

/// List for one key. The lock is held during a request to the server, so that others with the same
/// key wait for its response instead of sending their own.
type ListedSlot = Arc<AsyncMutex<Option<Listed>>>;

/// A server's models, by client key.
#[derive(Debug, Default)]
pub struct ListedModels {
    hasher: RandomState,
    listed: Mutex<HashMap<u64, ListedSlot>>,
}

impl ListedModels {
    /// Returns the models available to `key`; `ask` fetches the list, as JSON.
    pub async fn of<F>(
        &self,
        clock: Clock,
        key: Option<&HeaderValue>,
        ask: impl FnOnce() -> F,
    ) -> Arc<[String]>
    where
        F: Future<Output = Option<Value>>,
    {
        let slot = self.slot(key);
        let mut listed = slot.lock().await;
        if let Some(known) = listed.as_ref().filter(|known| known.is_fresh(clock.now())) {
            return known.models.clone();
        }
        let models = listed_models(ask().await.as_ref());
        *listed = Some(Listed { at: clock.now(), models: models.clone() });
        models
    }

    /// Stores a list that was fetched with `key` for another purpose.
    pub async fn note(&self, clock: Clock, key: Option<&HeaderValue>, list: Option<&Value>) {
        let listed = Listed { at: clock.now(), models: listed_models(list) };
        *self.slot(key).lock().await = Some(listed);
    }

    /// Returns the first model that [`Self::of`] would return, without a request to the server.
    pub async fn known(&self, key: Option<&HeaderValue>) -> Option<String> {
        self.slot(key).lock().await.as_ref()?.models.first().cloned()
    }

    fn slot(&self, key: Option<&HeaderValue>) -> ListedSlot {
        // Keys are secrets, which need not lie in memory; the hasher's seed makes collisions luck.
        let key = self.hasher.hash_one(key.map(HeaderValue::as_bytes));
        let mut listed = self.listed.lock().expect("nothing panics under this lock");
        if listed.len() >= MAX_KEYS && !listed.contains_key(&key) {
            listed.clear();
        }
        listed.entry(key).or_default().clone()
    }
}

/// Returns the names in a list; empty if the list has another form.
fn listed_models(list: Option<&Value>) -> Arc<[String]> {
    let all = list.and_then(|list| list.get("data")?.as_array());
    let names = all.into_iter().flatten().filter_map(|model| model.get("id")?.as_str());
    let names = names.filter(|name| name.len() <= MAX_NAME_BYTES).take(MAX_MODELS);
    names.map(str::to_owned).collect()
}

/// Returns true if the JSON object `body` names no model.
pub fn lacks_model(body: &[u8]) -> bool {
    if body.len() > MAX_READ_BYTES {
        return false;
    }
    let all = std::str::from_utf8(body).ok().and_then(members);
    all.is_some_and(|all| {
        let mut named = all.iter().filter(|(name, _)| *name == "model");
        named.all(|(_, value)| *value == "null") && !all.is_empty()
    })
}

/// Returns the model that the JSON object `body` names; the last one, as most servers read it.
pub fn model_of(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok().filter(|text| text.len() <= MAX_NAMED_BYTES)?;
    let all = members(text)?;
    let (_, value) = all.iter().rev().find(|(name, _)| is_model(name))?;
    serde_json::from_str(value).ok()
}

/// Returns `body` with `model` as its first member, in place of any that it names; `None` if it is
/// not a JSON object, or is very long.
pub fn with_model(body: &[u8], model: &str) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok().filter(|text| text.len() <= MAX_NAMED_BYTES)?;
    let mut filled = b"{\"model\":".to_vec();
    put_string(&mut filled, model);
    for (name, value) in members(text)? {
        if !is_model(name) {
            filled.extend_from_slice(format!(",\"{name}\":{value}").as_bytes());
        }
    }
    filled.push(b'}');
    Some(filled.into())
}

/// Returns true if a member's name, as written, means `model`: a server that decodes escapes would
/// use the last such member.
fn is_model(name: &str) -> bool {
    let unescaped = || serde_json::from_str::<String>(&format!("\"{name}\"")).ok();
    name == "model" || name.contains('\\') && unescaped().is_some_and(|name| name == "model")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_is_filled_in_only_where_none_is_named() {
        for (body, lacks) in [
            (r#"{"input":"a"}"#, true),
            (r#"{"model":null,"input":"a"}"#, true),
            (r#"{"input":{"model":"x"}}"#, true),
            (r#"{"model":"m","input":"a"}"#, false),
            (r#"{"model":""}"#, false),
            (r#"{"model":null,"model":"m"}"#, false),
            ("{}", false),
            ("[]", false),
            ("not JSON", false),
        ] {
            assert_eq!(lacks_model(body.as_bytes()), lacks, "{body}");
        }
        assert!(!lacks_model(format!(r#"{{"a":"{}"}}"#, "a".repeat(MAX_READ_BYTES)).as_bytes()));
        let filled = with_model(br#" {"model":null, "input": ["a,b"] } "#, "q\"x");
        let filled: Value = serde_json::from_slice(&filled.unwrap()).unwrap();
        assert_eq!(filled, json!({"model": "q\"x", "input": ["a,b"]}));
        assert_eq!(with_model(br#"{"model":"ours"}"#, "m").unwrap(), r#"{"model":"m"}"#);
        assert_eq!(with_model(br#"{"m\u006fdel":"x"}"#, "m").unwrap(), r#"{"model":"m"}"#);
        assert_eq!(with_model(b"[1]", "m"), None);
        assert_eq!(model_of(br#"{"model":"x","input":"a"}"#).as_deref(), Some("x"));
        assert!([&b"{}"[..], br#"{"model":1}"#, b""].iter().all(|body| model_of(body).is_none()));
    }

    #[tokio::test]
    async fn the_list_is_asked_once_for_each_key() {
        let (models, clock) = (ListedModels::default(), Clock::start());
        let list =
            |id: &'static str| async move { Some(json!({"data": [{"id": id}, {"id": "z"}]})) };
        let key = HeaderValue::from_static("Bearer a");
        assert_eq!(*models.of(clock, Some(&key), || list("x")).await, ["x", "z"]);
        assert_eq!(*models.of(clock, Some(&key), || list("y")).await, ["x", "z"]);
        assert_eq!(*models.of(clock, None, || list("y")).await, ["y", "z"]);
        assert_eq!(models.known(None).await.as_deref(), Some("y"));
        let other = HeaderValue::from_static("Bearer b");
        assert!(models.of(clock, Some(&other), || async { None }).await.is_empty());
        let again = models.of(clock, Some(&other), || list("z")).await;
        assert!(again.is_empty(), "not at once again");
    }
}
