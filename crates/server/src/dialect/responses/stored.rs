//! A response as the store keeps it: what its request said, the conversation, and its records.

use std::sync::Arc;
use std::time::Duration;

use loquent_proto::Delta;
use serde::Serialize;
use serde_json::Value;

use super::events::{EventRange, LOST, ResponseEvents};
use super::object::ResponseTemplate;
use super::record_log::RecordLog;
use crate::app::App;
use crate::blocking_workers::BlockingWorkers;
use crate::memory::{MemoryCharge, SMALL_BYTES};
use crate::store::{AnswerFence, Kind, Owner, Progress, Store, StoreError, StoredObject};

/// Separates the JSON from the records behind it; JSON as it is written here has none.
const SEPARATOR: u8 = b'\n';

/// A conversation that is kept until it is stored with its answer.
#[derive(Debug, Default)]
pub struct KeptInput {
    /// Items with ids, for readers before that.
    pub items: Vec<Value>,
    /// What the store keeps before the records.
    pub head: Arc<[u8]>,
    /// The same until it has ended, with the request, for a replica that takes it over; empty where
    /// none can.
    pub running: Arc<[u8]>,
    /// What both are charged to the memory of requests.
    pub charge: Option<Arc<MemoryCharge>>,
}

/// Where responses are stored, and who writes what is long.
#[derive(Debug, Clone)]
pub struct ResponseStore {
    store: Store,
    workers: BlockingWorkers,
}

impl ResponseStore {
    /// That of `app`.
    pub fn of(app: &App) -> Self {
        Self { store: app.store.clone(), workers: app.bodies.workers().clone() }
    }

    /// How long it keeps what is stored.
    pub const fn age(&self) -> Duration {
        self.store.age()
    }

    /// Stores the response `id`, which has `head` and so far the records of `log`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put(
        &self,
        named: (Owner, &str),
        created_s: u64,
        head: Arc<[u8]>,
        log: RecordLog,
    ) -> Result<(), StoreError> {
        self.checkpoint((named, AnswerFence::FIRST), created_s, head, log).await.map(drop)
    }

    /// Leaves the response `id`, which is incomplete, to other replicas.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn disown(&self, owner: Owner, id: &str) -> Result<(), StoreError> {
        self.store.disown(Kind::Response, owner, id).await
    }

    /// [`Self::put`] by who generates the response with a fence; whether it is still to be stored
    /// by that one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn checkpoint(
        &self,
        ((owner, id), fence): ((Owner, &str), AnswerFence),
        created_s: u64,
        head: Arc<[u8]>,
        log: RecordLog,
    ) -> Result<bool, StoreError> {
        let progress = if log.is_ended() { Progress::Ended } else { Progress::Running };
        let is_large = head.len() + log.bytes().len() > SMALL_BYTES;
        let write = move || Ok(StoredResponse::encode(&head, log.bytes()).into());
        let json = self.workers.run_if(is_large, write).await;
        let json = json.map_err(|_| StoreError::Unreadable)?;
        let object = StoredObject { id: id.to_owned(), created_s, progress, json };
        self.store.checkpoint(Kind::Response, owner, object, fence).await
    }
}

/// A response's JSON in the store.
#[derive(Serialize)]
struct StoredHead<'a> {
    object: &'a Value,
    background: bool,
    input: &'a [Value],
    /// Its request as a text, while it is generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
}

/// A response that is, or was, in the store.
#[derive(Debug, Clone)]
pub struct StoredResponse {
    /// What its request said.
    pub template: ResponseTemplate,
    /// The whole conversation before it, as items with ids.
    pub input: Vec<Value>,
    /// Its records.
    pub log: RecordLog,
    /// Its request, for a replica that takes it over.
    pub request: Option<String>,
}

impl StoredResponse {
    /// What the store keeps before the records; with `request` until they have their end.
    pub fn encode_head(
        template: &ResponseTemplate,
        input: &[Value],
        request: Option<&str>,
    ) -> Vec<u8> {
        let ResponseTemplate { object, background } = template;
        let head = StoredHead { object, background: *background, input, request };
        let mut bytes = serde_json::to_vec(&head).expect("a tree of values is JSON");
        bytes.push(SEPARATOR);
        bytes
    }

    /// The bytes for the store, of a response with `head` and `records`.
    pub fn encode(head: &[u8], records: &[u8]) -> Vec<u8> {
        [head, records].concat()
    }

    /// A response from the store; `None` if its bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == SEPARATOR)?;
        let mut head: Value = serde_json::from_slice(&bytes[..end]).ok()?;
        let Value::Array(input) = head["input"].take() else { return None };
        let background = head["background"] == true;
        let template = ResponseTemplate { object: head["object"].take(), background };
        let request = head["request"].as_str().map(str::to_owned);
        let log = RecordLog::from_bytes(bytes[end + 1..].to_vec());
        Some(Self { template, input, log, request })
    }

    /// Ends a response of which the server knows no end: it was restarted meanwhile.
    pub fn end_if_lost(mut self) -> Self {
        if !self.log.is_ended() {
            let message = "The server was restarted while it generated this response.".to_owned();
            let mut log = RecordLog::new(usize::MAX / 2);
            self.log.read(0, |delta| {
                log.push(&delta).expect("there is room");
            });
            let lost = Delta::Error { code: LOST.into(), message };
            log.push(&lost).expect("there is room");
            self.log = log;
        }
        self
    }

    /// Its object.
    pub fn object(&self) -> Value {
        object(&self.template, &self.log)
    }
}

/// The object of a response with the records of `log`.
pub fn object(template: &ResponseTemplate, log: &RecordLog) -> Value {
    let mut events = ResponseEvents::new(template.clone(), EventRange::Nothing);
    log.read(0, |delta| events.note(&delta));
    events.object()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> ResponseTemplate {
        let object = json!({"id": "resp_1", "instructions": "two\nlines"});
        ResponseTemplate { object, background: true }
    }

    #[test]
    fn a_response_comes_back_from_its_bytes_as_it_was() {
        let mut log = RecordLog::new(1 << 16);
        for delta in [Delta::text("a\n\u{0}é"), Delta::Done] {
            log.push(&delta).unwrap();
        }
        let input = vec![json!({"type": "message", "text": "line\nline"})];
        let head = StoredResponse::encode_head(&template(), &input, Some("{\"again\":1}"));
        let bytes = StoredResponse::encode(&head, log.bytes());
        let read = StoredResponse::decode(&bytes).unwrap().end_if_lost();
        assert_eq!(read.input, input);
        assert_eq!(read.request.as_deref(), Some("{\"again\":1}"));
        assert_eq!(read.log.bytes(), log.bytes());
        assert_eq!(read.object(), object(&template(), &log));
        assert!(StoredResponse::decode(b"").is_none());
        assert!(StoredResponse::decode(b"{}\n").is_none());
    }

    #[test]
    fn a_response_without_an_end_failed_with_what_there_was_of_it() {
        let mut log = RecordLog::new(1 << 16);
        log.push(&Delta::text("so far")).unwrap();
        let head = StoredResponse::encode_head(&template(), &[], None);
        let mut bytes = StoredResponse::encode(&head, log.bytes());
        bytes.extend_from_slice(&[40, 1, b'h', b'a']); // a record that was cut
        let object = StoredResponse::decode(&bytes).unwrap().end_if_lost().object();
        assert_eq!(object["status"], "failed");
        assert!(object["error"]["message"].as_str().unwrap().contains("restarted"));
        assert_eq!(object["output"][0]["content"][0]["text"], "so far");
        assert_eq!(object["output"][0]["status"], "incomplete");
    }
}
