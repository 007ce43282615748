//! Idempotency keys: a client whose connection died before it received the answer's handle repeats
//! the request with the same key, and joins the answer in progress (S-4.9).
//!
//! The table has an entry for each answer that is being admitted or is kept. The answer's own
//! entry owns it, so both are forgotten together.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use http::HeaderValue;
use loquent_proto::AnswerHandle;
use loquent_proto::headers::REPEAT_HEADER;
use serde_json::{Map, Value};
use tokio::sync::watch;

use loquent_serving::api::request::Endpoint;
use loquent_serving::error::ApiError;

/// Maximum key length in bytes (S-4.9).
const MAX_KEY_BYTES: usize = 128;

/// Hash of the API key, and the idempotency key: the keys of different clients are separate.
type RequestKey = (u64, Box<str>);

/// A request in the table.
struct KnownRequest {
    /// Digest of the body: another request with the same key is a client's mistake.
    digest: u64,
    handle: watch::Receiver<Option<AnswerHandle>>,
}

/// All requests with a key whose answers are being admitted or are kept.
#[derive(Default)]
pub struct IdempotencyKeys {
    known: Mutex<HashMap<RequestKey, KnownRequest>>,
    hasher: RandomState,
}

/// A request with an idempotency key.
pub struct IdempotentRequest {
    id: RequestKey,
    digest: u64,
}

/// Result of looking up a key.
pub enum KeyUse {
    /// The key is used for the first time.
    First(FirstRequest),
    /// The same request came before.
    Repeated(RepeatedRequest),
}

/// The first request with its key. If dropped before [`Self::split`], the next one becomes the
/// first.
pub struct FirstRequest {
    handle: watch::Sender<Option<AnswerHandle>>,
    entry: KeyEntry,
}

/// A later request with the same key.
pub struct RepeatedRequest(watch::Receiver<Option<AnswerHandle>>);

/// An entry of the table, removed on drop.
pub struct KeyEntry {
    keys: Arc<IdempotencyKeys>,
    id: RequestKey,
}

impl IdempotencyKeys {
    /// Creates a request to `endpoint` with the idempotency key `key` and the members `question` of
    /// its body, from a client with the API key `asker`; returns `None` without an idempotency key.
    ///
    /// # Errors
    /// 400 for an invalid key.
    pub fn idempotent(
        &self,
        asker: Option<&[u8]>,
        key: Option<&HeaderValue>,
        endpoint: Endpoint,
        question: &Map<String, Value>,
    ) -> Result<Option<IdempotentRequest>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        let text = key.to_str().ok().filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len()));
        let Some(text) = text else {
            let message = "The idempotency key must have 1 to 128 visible ASCII characters.";
            return Err(ApiError::invalid_param(REPEAT_HEADER, message));
        };
        let id = (self.hasher.hash_one(asker), text.into());
        let mut digest = self.hasher.build_hasher();
        endpoint.hash(&mut digest);
        // The same question may come over QUIC first and over HTTP then, which adds a member
        // (S-5.1).
        hash_members(question.iter().filter(|(name, _)| *name != "resumable"), &mut digest);
        Ok(Some(IdempotentRequest { id, digest: digest.finish() }))
    }

    /// Makes `request` the first with its key, or finds the first one.
    ///
    /// # Errors
    /// 400 if the key was used with another request.
    pub fn enter(self: &Arc<Self>, request: &IdempotentRequest) -> Result<KeyUse, ApiError> {
        let mut known = self.known();
        if let Some(before) = known.get(&request.id) {
            if before.digest != request.digest {
                let message = "This idempotency key was used with another request. Use a new key for each request.";
                return Err(ApiError::invalid_param(REPEAT_HEADER, message));
            }
            return Ok(KeyUse::Repeated(RepeatedRequest(before.handle.clone())));
        }
        let (handle, receiver) = watch::channel(None);
        known.insert(request.id.clone(), KnownRequest { digest: request.digest, handle: receiver });
        let entry = KeyEntry { keys: self.clone(), id: request.id.clone() };
        Ok(KeyUse::First(FirstRequest { handle, entry }))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<RequestKey, KnownRequest>> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl FirstRequest {
    /// Returns the sender for the answer's handle, to be used once the answer can be found by it,
    /// and the key's entry in the table.
    pub fn split(self) -> (watch::Sender<Option<AnswerHandle>>, KeyEntry) {
        (self.handle, self.entry)
    }
}

impl RepeatedRequest {
    /// Waits for the handle of the first request's answer; `None` if that request was refused, or
    /// its answer forgotten.
    pub async fn handle(mut self) -> Option<AnswerHandle> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|name| *name)
    }
}

impl Drop for KeyEntry {
    fn drop(&mut self) {
        self.keys.known().remove(&self.id);
    }
}

/// Hashes a value independently of the order of its objects' members.
fn hash_json(value: &Value, digest: &mut impl Hasher) {
    match value {
        Value::Object(members) => hash_members(members.iter(), digest),
        Value::Array(values) => {
            digest.write_usize(values.len());
            values.iter().for_each(|value| hash_json(value, digest));
        }
        scalar => scalar.to_string().hash(digest),
    }
}

fn hash_members<'a>(
    members: impl Iterator<Item = (&'a String, &'a Value)>,
    digest: &mut impl Hasher,
) {
    let mut members: Vec<_> = members.collect();
    members.sort_unstable_by_key(|(name, _)| *name);
    digest.write_usize(members.len());
    for (name, value) in members {
        name.hash(digest);
        hash_json(value, digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed(keys: &IdempotencyKeys, asker: &[u8], key: &str, question: &str) -> IdempotentRequest {
        let key = HeaderValue::from_str(key).unwrap();
        let question = serde_json::from_str(question).unwrap();
        keys.idempotent(Some(asker), Some(&key), Endpoint::Chat, &question).unwrap().unwrap()
    }

    #[tokio::test]
    async fn one_request_of_a_key_is_the_first_until_it_is_forgotten() {
        let keys = Arc::new(IdempotencyKeys::default());
        let request = keyed(&keys, b"asker", "key", r#"{"a":1,"b":[2]}"#);
        let Ok(KeyUse::First(first)) = keys.enter(&request) else { panic!("not the first") };
        let same = keyed(&keys, b"asker", "key", r#"{"b":[2],"resumable":true,"a":1}"#);
        let Ok(KeyUse::Repeated(again)) = keys.enter(&same) else { panic!("the first again") };
        let name = AnswerHandle { id: [1; 16], token: [2; 16] };
        let (named, entry) = first.split();
        named.send_replace(Some(name));
        drop(named);
        assert_eq!(again.handle().await, Some(name));
        let other = keyed(&keys, b"asker", "key", r#"{"a":1,"b":[3]}"#);
        assert!(keys.enter(&other).is_err());
        for stranger in [("somebody", "key"), ("asker", "another key")] {
            let stranger = keyed(&keys, stranger.0.as_bytes(), stranger.1, r#"{"a":1,"b":[2]}"#);
            assert!(matches!(keys.enter(&stranger), Ok(KeyUse::First(_))));
        }
        drop(entry);
        assert!(matches!(keys.enter(&request), Ok(KeyUse::First(_))));
        assert!(keys.known().is_empty());
    }

    #[tokio::test]
    async fn waiting_for_a_refused_request_ends_without_a_handle() {
        let keys = Arc::new(IdempotencyKeys::default());
        let request = keyed(&keys, b"", "key", "{}");
        let Ok(KeyUse::First(first)) = keys.enter(&request) else { panic!("not the first") };
        let Ok(KeyUse::Repeated(again)) = keys.enter(&request) else { panic!("the first again") };
        drop(first);
        assert_eq!(again.handle().await, None);
        assert!(matches!(keys.enter(&request), Ok(KeyUse::First(_))));
    }

    #[test]
    fn keys_are_bounded() {
        let keys = IdempotencyKeys::default();
        for bad in ["".to_owned(), "k".repeat(129)] {
            let key = HeaderValue::from_str(&bad).unwrap();
            assert!(
                keys.idempotent(None, Some(&key), Endpoint::Chat, &Map::new()).is_err(),
                "{bad:?}"
            );
        }
        assert!(keys.idempotent(None, None, Endpoint::Chat, &Map::new()).unwrap().is_none());
    }
}
