//! Stored form of a response: the parameters of its request, the conversation, and its records.

use std::sync::Arc;

use loquent_proto::Delta;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::record_log::RecordLog;
use loquent_dialects::responses::events::{EventRange, LOST, ResponseEvents};
use loquent_dialects::responses::object::ResponseTemplate;
use loquent_serving::memory::MemoryCharge;

/// Separator between the JSON and the records; the JSON written here never contains it.
const SEPARATOR: u8 = b'\n';

/// A conversation kept until it is stored with its answer.
#[derive(Debug, Default)]
pub struct KeptInput {
    /// Items with ids, for readers before it is stored.
    pub items: Vec<Value>,
    /// The stored bytes before the records.
    pub head: Arc<[u8]>,
    /// The same bytes with the request, until the response has ended, for a replica that takes it
    /// over; empty if none can.
    pub running: Arc<[u8]>,
    /// Memory charged for both.
    pub charge: Option<Arc<MemoryCharge>>,
}

/// The JSON part of a stored response.
#[derive(Serialize)]
struct StoredHead<'a> {
    object: &'a Value,
    background: bool,
    input: &'a [Value],
    /// The request as text, while the response is generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
}

/// The same, read. What writes into the objects panics at anything else.
#[derive(Deserialize)]
struct ReadHead {
    object: Map<String, Value>,
    #[serde(default)]
    background: bool,
    input: Vec<Map<String, Value>>,
    request: Option<String>,
}

/// A response in its stored form.
#[derive(Debug, Clone)]
pub struct StoredResponse {
    /// The members of its object that come from the request.
    pub template: ResponseTemplate,
    /// The whole conversation before the response, as items with ids.
    pub input: Vec<Value>,
    /// The response's records.
    pub log: RecordLog,
    /// The request, for a replica that takes the response over.
    pub request: Option<String>,
}

impl StoredResponse {
    /// Encodes the stored bytes before the records; includes `request` until the response has
    /// ended.
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

    /// Concatenates `head` and `records` for the store.
    pub fn encode(head: &[u8], records: &[u8]) -> Vec<u8> {
        [head, records].concat()
    }

    /// Decodes a stored response; `None` if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == SEPARATOR)?;
        let head: ReadHead = serde_json::from_slice(&bytes[..end]).ok()?;
        let ReadHead { object, background, input, request } = head;
        let template = ResponseTemplate { object: object.into(), background };
        let input = input.into_iter().map(Value::Object).collect();
        let log = RecordLog::from_bytes(bytes[end + 1..].to_vec());
        Some(Self { template, input, log, request })
    }

    /// Ends a response whose end is missing because the server was restarted.
    pub fn end_if_lost(mut self) -> Self {
        if !self.log.is_ended() {
            let message = "The server was restarted while it generated this response.".to_owned();
            let lost = Delta::Error { code: LOST.into(), message };
            self.log.push(&lost).expect("there is room for an end");
        }
        self
    }

    /// Returns the response object.
    pub fn object(&self) -> Value {
        object(&self.template, &self.log)
    }
}

/// Returns the object of a response with the records of `log`.
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
        for other in
            ["", "{}\n", "7\n", r#"{"object":7,"input":[]}"#, r#"{"object":{},"input":[7]}"#]
        {
            assert!(StoredResponse::decode(format!("{other}\n").as_bytes()).is_none(), "{other}");
        }
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
