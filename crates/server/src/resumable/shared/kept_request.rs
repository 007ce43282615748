//! A resumable answer's request as the store has it: what another replica needs to generate the
//! answer once more.

use std::io;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::api::fields::Fields;
use crate::api::request::Endpoint;
use crate::trace_context::TraceParent;

/// Most bytes of a request that is kept. The answer to a longer one ends with its replica.
pub const REQUEST_BYTES: usize = 256 * 1024;
/// Most bytes of its body; the rest is for what is kept beside it.
const BODY_BYTES: usize = REQUEST_BYTES - 4096;

/// A request from the store.
pub struct KeptRequest {
    /// The model that answered it.
    pub model: String,
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// The seed of its random numbers, whether or not it named one.
    pub seed: u64,
    /// Its body.
    pub fields: Fields,
    /// The caller's place in a trace.
    pub trace_parent: Option<TraceParent>,
}

/// A request's body, to be kept once its seed is known.
pub struct AskedBody {
    endpoint: Endpoint,
    json: String,
}

impl AskedBody {
    /// That of a request to `endpoint`; `None` if it is too long.
    pub fn of(endpoint: Endpoint, body: &Map<String, Value>) -> Option<Self> {
        let mut json = BoundedJson(Vec::new());
        serde_json::to_writer(&mut json, body).ok()?;
        Some(Self { endpoint, json: String::from_utf8(json.0).ok()? })
    }

    /// As the store has it, for an answer of `model` with `seed` to a caller at `trace`.
    pub fn encode(&self, model: &str, seed: u64, trace: Option<&TraceParent>) -> Arc<[u8]> {
        let endpoint = match self.endpoint {
            Endpoint::Chat => "chat",
            Endpoint::Text => "text",
        };
        let (model, body) = (json!(model), &self.json);
        let trace = json!(trace.map(TraceParent::to_text));
        let text = format!(
            r#"{{"endpoint":"{endpoint}","model":{model},"seed":"{seed}","trace":{trace},"body":{body}}}"#
        );
        text.into_bytes().into()
    }
}

/// Takes JSON up to [`BODY_BYTES`]: a body of megabytes is not written out for nothing.
struct BoundedJson(Vec<u8>);

impl io::Write for BoundedJson {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > BODY_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The request that the store has as `bytes`; `None` if these are none.
pub fn decode(bytes: &[u8]) -> Option<KeptRequest> {
    if bytes.len() > REQUEST_BYTES {
        return None;
    }
    let outer = Fields::parse(bytes).ok()?;
    let text = |name: &str| outer.map().get(name).and_then(Value::as_str);
    let endpoint = match text("endpoint")? {
        "chat" => Endpoint::Chat,
        "text" => Endpoint::Text,
        _ => return None,
    };
    let (model, seed) = (text("model")?.to_owned(), text("seed")?.parse().ok()?);
    let body = outer.map().get("body")?.as_object()?.clone();
    let trace_parent = text("trace").and_then(TraceParent::parse);
    Some(KeptRequest { model, endpoint, seed, fields: outer.replaced(body), trace_parent })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_comes_back_as_it_was() {
        let body = json!({"messages": [{"role": "user", "content": "a \"quoted\" word"}]});
        let Value::Object(body) = body else { panic!("no object") };
        let asked = AskedBody::of(Endpoint::Chat, &body).unwrap();
        let trace = TraceParent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let kept = decode(&asked.encode("a \"model\"", u64::MAX, trace.as_ref())).unwrap();
        assert!(trace.is_some() && kept.trace_parent == trace);
        assert_eq!((&*kept.model, kept.seed), ("a \"model\"", u64::MAX));
        assert!(kept.endpoint == Endpoint::Chat && kept.fields.map() == &body);
        let without = decode(&asked.encode("m", 1, None)).unwrap();
        assert_eq!(without.trace_parent, None);
    }

    #[test]
    fn a_long_one_is_not_kept() {
        let body = |bytes| Map::from_iter([("prompt".to_owned(), json!("x".repeat(bytes)))]);
        assert!(AskedBody::of(Endpoint::Text, &body(BODY_BYTES)).is_none());
        let longest = AskedBody::of(Endpoint::Text, &body(BODY_BYTES - 16)).unwrap();
        assert!(decode(&longest.encode(&"m".repeat(1000), u64::MAX, None)).is_some());
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_a_request_or_none(
            bytes: Vec<u8>,
            text in r#"\{"endpoint":"[a-z"]{0,5}","model":[0-9"]{0,3},"seed":"[0-9-]{0,22}","body":[\[\]{}]{0,4}\}"#,
        ) {
            let _ = decode(&bytes);
            let _ = decode(text.as_bytes());
        }
    }
}
