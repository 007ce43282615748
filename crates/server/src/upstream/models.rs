//! The model of requests that name none: the first one that the upstream lists. It is asked once in
//! a while, and by each key that clients bring, since what a key may use is its owner's business.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderValue;
use loquent_proto::json::{members, put_string};
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use crate::clock::Clock;

/// How long a name is used: a server that loads another model is followed soon.
const FRESH: Duration = Duration::from_secs(60);
/// How long a failure counts. Meanwhile requests go out without a model, as clients sent them.
const FAILURE_FRESH: Duration = Duration::from_secs(2);
/// Keys whose model is remembered; more begin anew.
const MAX_KEYS: usize = 256;
/// Largest body that is read for its model on its way through: what is larger names one, or is
/// refused by the upstream. The list of members takes less than 2 MiB.
const MAX_READ_BYTES: usize = 256 * 1024;

/// What the upstream listed, and when.
#[derive(Debug, Clone)]
struct Listed {
    at: Duration,
    model: Option<String>,
}

impl Listed {
    fn is_fresh(&self, now: Duration) -> bool {
        let limit = if self.model.is_some() { FRESH } else { FAILURE_FRESH };
        now.saturating_sub(self.at) < limit
    }
}

/// What is known for one key; whoever asks holds it, so that others with the key wait for the
/// answer instead of asking too.
type ListedSlot = Arc<AsyncMutex<Option<Listed>>>;

/// The upstream's first model, by the key that asks.
#[derive(Debug, Default)]
pub struct FirstModels {
    hasher: RandomState,
    listed: Mutex<HashMap<u64, ListedSlot>>,
}

impl FirstModels {
    /// The first model for those who come with `key`; `ask` fetches the list, as JSON.
    pub async fn of<F>(
        &self,
        clock: Clock,
        key: Option<&HeaderValue>,
        ask: impl FnOnce() -> F,
    ) -> Option<String>
    where
        F: Future<Output = Option<Value>>,
    {
        let slot = self.slot(key);
        let mut listed = slot.lock().await;
        if let Some(known) = listed.as_ref().filter(|known| known.is_fresh(clock.now())) {
            return known.model.clone();
        }
        let model = first_model(ask().await.as_ref());
        *listed = Some(Listed { at: clock.now(), model: model.clone() });
        model
    }

    /// Takes in a list that was fetched with `key` for another reason.
    pub async fn note(&self, clock: Clock, key: Option<&HeaderValue>, list: Option<&Value>) {
        let listed = Listed { at: clock.now(), model: first_model(list) };
        *self.slot(key).lock().await = Some(listed);
    }

    /// [`Self::of`], without asking.
    pub async fn known(&self, key: Option<&HeaderValue>) -> Option<String> {
        self.slot(key).lock().await.as_ref()?.model.clone()
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

fn first_model(list: Option<&Value>) -> Option<String> {
    // An index that is absent gives null: a list of another form has no first model.
    list.and_then(|list| list["data"][0]["id"].as_str().map(str::to_owned))
}

/// Whether the JSON object `body` names no model.
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

/// `body`, a JSON object that names no model, with `model` in front of its members. An empty one
/// that it may have comes later, and would count.
pub fn with_model(body: &[u8], model: &str) -> Vec<u8> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let mut filled = b"{\"model\":".to_vec();
    put_string(&mut filled, model);
    for (name, value) in members(text).unwrap_or_default() {
        if name != "model" {
            filled.extend_from_slice(format!(",\"{name}\":{value}").as_bytes());
        }
    }
    filled.push(b'}');
    filled
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
        let filled: Value = serde_json::from_slice(&filled).unwrap();
        assert_eq!(filled, json!({"model": "q\"x", "input": ["a,b"]}));
    }

    #[tokio::test]
    async fn the_list_is_asked_once_for_each_key() {
        let (models, clock) = (FirstModels::default(), Clock::start());
        let list =
            |id: &'static str| async move { Some(json!({"data": [{"id": id}, {"id": "z"}]})) };
        let key = HeaderValue::from_static("Bearer a");
        assert_eq!(models.of(clock, Some(&key), || list("x")).await.as_deref(), Some("x"));
        assert_eq!(models.of(clock, Some(&key), || list("y")).await.as_deref(), Some("x"));
        assert_eq!(models.of(clock, None, || list("y")).await.as_deref(), Some("y"));
        let other = HeaderValue::from_static("Bearer b");
        assert_eq!(models.of(clock, Some(&other), || async { None }).await, None);
        assert_eq!(models.of(clock, Some(&other), || list("z")).await, None, "not at once again");
    }
}
