//! Requests that are asked again: a client whose connection died before it learned the
//! answer's name asks once more, with the same key, and joins the answer under way (S-4.9).
//!
//! The table holds what is being admitted and what is kept, nothing else: an entry lives in
//! the answer's own, so both are forgotten together.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use http::HeaderValue;
use loquent_proto::AnswerHandle;
use loquent_proto::headers::REPEAT_HEADER;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::api::request::Endpoint;
use crate::error::ApiError;

/// Longest key.
const MAX_KEY_BYTES: usize = 128;

/// Who asks, under which key.
type Id = (u64, Box<str>);

/// One request's part of the table.
struct Known {
    /// Of what was asked: another question under the same key is a mistake.
    digest: u64,
    name: watch::Receiver<Option<AnswerHandle>>,
}

/// All requests with a key whose answers are kept or being admitted.
#[derive(Default)]
pub struct Repeats {
    known: Mutex<HashMap<Id, Known>>,
    hasher: RandomState,
}

/// A request that may be asked again: who asks with which key, and what.
pub struct Repeatable {
    id: Id,
    digest: u64,
}

/// What a request with a key is.
pub enum Place {
    /// Nobody has asked it before.
    First(First),
    /// It was asked before; tells the answer's name once that is known.
    Again(Again),
}

/// The first of its key. Dropped before [`Self::split`] it leaves the place to the next.
pub struct First {
    name: watch::Sender<Option<AnswerHandle>>,
    entry: Registered,
}

/// A later one.
pub struct Again(watch::Receiver<Option<AnswerHandle>>);

/// An entry of the table, removed when this is dropped.
pub struct Registered {
    repeats: Arc<Repeats>,
    id: Id,
}

impl Repeats {
    /// A request to `endpoint` with `key` and the members `question` of its body, asked by whoever has `asker` for an API
    /// key; `None` without a key.
    ///
    /// # Errors
    /// 400 for a key that is none.
    pub fn repeatable(
        &self,
        asker: Option<&[u8]>,
        key: Option<&HeaderValue>,
        endpoint: Endpoint,
        question: &Map<String, Value>,
    ) -> Result<Option<Repeatable>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        let text = key.to_str().ok().filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len()));
        let Some(text) = text else {
            let message = "The idempotency key must have 1 to 128 visible ASCII characters.";
            return Err(ApiError::invalid_param(REPEAT_HEADER, message));
        };
        let id = (self.hasher.hash_one(asker), text.into());
        let mut digest = self.hasher.build_hasher();
        endpoint.hash(&mut digest);
        // The way it is asked by is no part of the question (S-5.1).
        hash_members(question.iter().filter(|(name, _)| *name != "resumable"), &mut digest);
        Ok(Some(Repeatable { id, digest: digest.finish() }))
    }

    /// Takes the place of the first request of its key, or finds who has it.
    ///
    /// # Errors
    /// 400 if that one asked something else.
    pub fn enter(self: &Arc<Self>, request: &Repeatable) -> Result<Place, ApiError> {
        let mut known = self.known();
        if let Some(before) = known.get(&request.id) {
            if before.digest != request.digest {
                let message = "This idempotency key came with another request before.";
                return Err(ApiError::invalid_param(REPEAT_HEADER, message));
            }
            return Ok(Place::Again(Again(before.name.clone())));
        }
        let (name, told) = watch::channel(None);
        known.insert(request.id.clone(), Known { digest: request.digest, name: told });
        let entry = Registered { repeats: self.clone(), id: request.id.clone() };
        Ok(Place::First(First { name, entry }))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Id, Known>> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl First {
    /// Where to tell the answer's name once it can be found by it, and the entry, with which
    /// the place ends.
    pub fn split(self) -> (watch::Sender<Option<AnswerHandle>>, Registered) {
        (self.name, self.entry)
    }
}

impl Again {
    /// The answer's name; `None` if the first was refused, or its answer forgotten.
    pub async fn name(mut self) -> Option<AnswerHandle> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|name| *name)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.repeats.known().remove(&self.id);
    }
}

/// Hashes a value, whatever the order of its objects' members.
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

    fn repeatable(repeats: &Repeats, asker: &[u8], key: &str, question: &str) -> Repeatable {
        let key = HeaderValue::from_str(key).unwrap();
        let question = serde_json::from_str(question).unwrap();
        repeats.repeatable(Some(asker), Some(&key), Endpoint::Chat, &question).unwrap().unwrap()
    }

    #[tokio::test]
    async fn one_request_of_a_key_is_the_first_until_it_is_forgotten() {
        let repeats = Arc::new(Repeats::default());
        let request = repeatable(&repeats, b"asker", "key", r#"{"a":1,"b":[2]}"#);
        let Ok(Place::First(first)) = repeats.enter(&request) else { panic!("not the first") };
        let same = repeatable(&repeats, b"asker", "key", r#"{"b":[2],"resumable":true,"a":1}"#);
        let Ok(Place::Again(again)) = repeats.enter(&same) else { panic!("the first again") };
        let name = AnswerHandle { id: [1; 16], token: [2; 16] };
        let (named, entry) = first.split();
        named.send_replace(Some(name));
        drop(named);
        assert_eq!(again.name().await, Some(name));
        let other = repeatable(&repeats, b"asker", "key", r#"{"a":1,"b":[3]}"#);
        assert!(repeats.enter(&other).is_err());
        for stranger in [("somebody", "key"), ("asker", "another key")] {
            let stranger =
                repeatable(&repeats, stranger.0.as_bytes(), stranger.1, r#"{"a":1,"b":[2]}"#);
            assert!(matches!(repeats.enter(&stranger), Ok(Place::First(_))));
        }
        drop(entry);
        assert!(matches!(repeats.enter(&request), Ok(Place::First(_))));
        assert!(repeats.known().is_empty());
    }

    #[tokio::test]
    async fn who_waits_for_a_refused_request_learns_it() {
        let repeats = Arc::new(Repeats::default());
        let request = repeatable(&repeats, b"", "key", "{}");
        let Ok(Place::First(first)) = repeats.enter(&request) else { panic!("not the first") };
        let Ok(Place::Again(again)) = repeats.enter(&request) else { panic!("the first again") };
        drop(first);
        assert_eq!(again.name().await, None);
        assert!(matches!(repeats.enter(&request), Ok(Place::First(_))));
    }

    #[test]
    fn keys_are_bounded() {
        let repeats = Repeats::default();
        for bad in ["".to_owned(), "k".repeat(129)] {
            let key = HeaderValue::from_str(&bad).unwrap();
            assert!(
                repeats.repeatable(None, Some(&key), Endpoint::Chat, &Map::new()).is_err(),
                "{bad:?}"
            );
        }
        assert!(repeats.repeatable(None, None, Endpoint::Chat, &Map::new()).unwrap().is_none());
    }
}
