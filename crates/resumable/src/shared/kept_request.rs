//! A resumable answer's request as stored, with all that another replica needs to generate the
//! answer again.

use std::io;
use std::sync::Arc;

use loquent_proto::hex;
use serde_json::{Map, Value, json};

use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::Endpoint;
use loquent_serving::api::sampling::ResolvedSampling;
use loquent_serving::identity::Owner;
use loquent_serving::trace_context::TraceParent;

/// Maximum bytes of a stored request. The answer to a longer one ends with its replica.
pub const REQUEST_BYTES: usize = 256 * 1024;
/// Maximum bytes of the body; the rest is for the data stored with it.
const BODY_BYTES: usize = REQUEST_BYTES - 4096;

/// Facts that make an answer come out the same when it is generated again, and what else to do with
/// it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayInputs {
    /// Model that answers.
    pub model: String,
    /// Seed of the random numbers, whether or not the request named one.
    pub seed: u64,
    /// Sampling parameters that hold for the request, stated by it or not.
    pub sampling: ResolvedSampling,
    /// Number from which the ids of the answer's tool calls are derived.
    pub call_ids: u64,
    /// Unix time in seconds that its chat template saw as now.
    pub asked_at_s: u64,
    /// The caller's place in a trace.
    pub trace_parent: Option<TraceParent>,
    /// Owner and metadata of the stored answer, if the request asks to store it.
    pub stored: Option<ReplayMetadata>,
    /// Sender of the request.
    pub asker: ReplayAsker,
    /// Service that computes the answer.
    pub answered_by: KeptService,
}

/// Sender of a request, for a replica with the same keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayAsker {
    /// Owner of the API key.
    pub owner: Owner,
    /// Tenant whose share of a server the request uses.
    pub tenant: u64,
    /// Salt that separates the prefixes of the request's token, if it came with one.
    pub token_salt: Option<String>,
}

/// Service that computes answers: another one gives other answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptService {
    /// Fingerprint of the model, its engine and its settings; empty if unknown.
    pub fingerprint: String,
    /// Maximum length of a sequence, in tokens.
    pub context_tokens: u32,
}

impl KeptService {
    /// Returns why this service cannot continue an answer of `first`; `None` if it can, or if
    /// either is unknown.
    pub fn obstacle_to(&self, first: &Self) -> Option<&'static str> {
        if self.fingerprint.is_empty() || first.fingerprint.is_empty() {
            return None;
        }
        if self.fingerprint != first.fingerprint {
            return Some("Another version, other weights or other settings compute answers here.");
        }
        let is_shorter = self.context_tokens < first.context_tokens;
        is_shorter.then_some("The context here is shorter than that of the replica before.")
    }
}

/// Data to store with a chat that its body no longer contains.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayMetadata {
    /// Owner of the chat.
    pub owner: Owner,
    /// Metadata of the chat.
    pub metadata: Value,
}

/// A request from the store.
pub struct ReplayableRequest {
    /// Endpoint to which it was sent.
    pub endpoint: Endpoint,
    /// Facts about its answer.
    pub marks: ReplayInputs,
    /// Body of the request.
    pub fields: Fields,
}

/// A request's body, to be stored once its seed is known.
pub struct ReplayableBody {
    endpoint: Endpoint,
    json: String,
}

impl ReplayableBody {
    /// Encodes the body of a request to `endpoint`; returns `None` if it is too long.
    pub fn of(endpoint: Endpoint, body: &Map<String, Value>) -> Option<Self> {
        let mut json = BoundedJson(Vec::new());
        serde_json::to_writer(&mut json, body).ok()?;
        Some(Self { endpoint, json: String::from_utf8(json.0).ok()? })
    }

    /// Encodes the request for the store, with the `marks` of its answer; returns `None` if it is
    /// too long.
    pub fn encode(&self, marks: &ReplayInputs) -> Option<Arc<[u8]>> {
        let endpoint = match self.endpoint {
            Endpoint::Chat => "chat",
            Endpoint::Text => "text",
        };
        let ReplayInputs {
            model,
            seed,
            sampling,
            call_ids,
            trace_parent,
            stored,
            asker,
            answered_by,
            ..
        } = marks;
        let stored = stored.as_ref().map(|ReplayMetadata { owner, metadata }| {
            json!({"owner": hex::encode(&owner.0), "metadata": metadata})
        });
        // Numbers of 64 bits are texts: JSON's have fewer.
        let mut outer = json!({
            "endpoint": endpoint,
            "model": model,
            "seed": seed.to_string(),
            "sampling": sampling.to_json(),
            "call_ids": call_ids.to_string(),
            "asked_at": marks.asked_at_s,
            "trace": trace_parent.as_ref().map(TraceParent::to_text),
            "stored": stored,
            "owner": hex::encode(&asker.owner.0),
            "tenant": asker.tenant.to_string(),
            "token_salt": asker.token_salt,
            "fingerprint": answered_by.fingerprint,
            "context": answered_by.context_tokens,
        })
        .to_string();
        // The body is written already, and may be long.
        outer.pop();
        let text = format!(r#"{outer},"body":{}}}"#, self.json);
        (text.len() <= REQUEST_BYTES).then(|| text.into_bytes().into())
    }
}

/// Collects JSON up to [`BODY_BYTES`]: encoding a body of megabytes stops early.
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

/// Decodes a request from the store; returns `None` if `bytes` is not a valid one.
pub fn decode(bytes: &[u8]) -> Option<ReplayableRequest> {
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
    let marks = ReplayInputs {
        model: text("model")?.to_owned(),
        seed: text("seed")?.parse().ok()?,
        sampling: ResolvedSampling::from_json(outer.map().get("sampling")?)?,
        call_ids: text("call_ids")?.parse().ok()?,
        asked_at_s: outer.map().get("asked_at")?.as_u64()?,
        trace_parent: text("trace").and_then(TraceParent::parse),
        stored: match outer.map().get("stored") {
            None | Some(Value::Null) => None,
            Some(stored) => Some(metadata_of(stored)?),
        },
        asker: ReplayAsker {
            owner: Owner(hex::decode(text("owner")?)?),
            tenant: text("tenant")?.parse().ok()?,
            token_salt: text("token_salt").map(str::to_owned),
        },
        answered_by: KeptService {
            fingerprint: text("fingerprint")?.to_owned(),
            context_tokens: u32::try_from(outer.map().get("context")?.as_u64()?).ok()?,
        },
    };
    let body = outer.map().get("body")?.as_object()?.clone();
    Some(ReplayableRequest { endpoint, marks, fields: outer.replaced(body) })
}

fn metadata_of(stored: &Value) -> Option<ReplayMetadata> {
    let owner = Owner(hex::decode(stored["owner"].as_str()?)?);
    Some(ReplayMetadata { owner, metadata: stored.get("metadata")?.clone() })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use loquent_serving::api::sampling::GeneralSampling;

    fn marks(model: &str) -> ReplayInputs {
        ReplayInputs {
            model: model.to_owned(),
            seed: u64::MAX,
            sampling: GeneralSampling::Ollama.values(),
            call_ids: u64::MAX - 1,
            asked_at_s: 1_700_000_000,
            trace_parent: None,
            stored: None,
            asker: ReplayAsker::default(),
            answered_by: KeptService::default(),
        }
    }

    /// Returns an empty request for `model`, which `answered_by` answers, encoded for the store.
    pub(in crate::shared) fn encoded(model: &str, answered_by: KeptService) -> Arc<[u8]> {
        let marks = ReplayInputs { answered_by, ..marks(model) };
        ReplayableBody::of(Endpoint::Chat, &Map::new()).unwrap().encode(&marks).unwrap()
    }

    #[test]
    fn a_request_comes_back_as_it_was() {
        let body = json!({"messages": [{"role": "user", "content": "a \"quoted\" word"}]});
        let Value::Object(body) = body else { panic!("no object") };
        let asked = ReplayableBody::of(Endpoint::Chat, &body).unwrap();
        let trace = TraceParent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert!(trace.is_some());
        let stored = ReplayMetadata { owner: Owner([7; 16]), metadata: json!({"a": "b"}) };
        let asker =
            ReplayAsker { owner: Owner([8; 16]), tenant: u64::MAX, token_salt: Some("s".into()) };
        let answered_by = KeptService { fingerprint: "ab".into(), context_tokens: 4096 };
        let whole = ReplayInputs {
            trace_parent: trace,
            stored: Some(stored),
            asker,
            answered_by,
            ..marks("a \"model\"")
        };
        for marks in [whole, marks("m")] {
            let kept = decode(&asked.encode(&marks).unwrap()).unwrap();
            assert_eq!(kept.marks, marks);
            assert!(kept.endpoint == Endpoint::Chat && kept.fields.map() == &body);
        }
    }

    #[test]
    fn a_long_one_is_not_kept() {
        let body = |bytes| Map::from_iter([("prompt".to_owned(), json!("x".repeat(bytes)))]);
        assert!(ReplayableBody::of(Endpoint::Text, &body(BODY_BYTES)).is_none());
        let longest = ReplayableBody::of(Endpoint::Text, &body(BODY_BYTES - 16)).unwrap();
        assert!(decode(&longest.encode(&marks(&"m".repeat(1000))).unwrap()).is_some());
        assert!(longest.encode(&marks(&"m".repeat(4096))).is_none());
    }

    #[test]
    fn one_of_another_version_is_none() {
        let kept = String::from_utf8(encoded("m", KeptService::default()).to_vec()).unwrap();
        assert!(decode(kept.as_bytes()).is_some());
        let end = kept.len();
        for (from, to) in [
            ("\"chat\"", "\"songs\""),
            ("\"call_ids\"", "\"other\""),
            ("\"seed\":\"", "\"seed\":\"-"),
            ("\"top_k\":40", "\"top_k\":-40"),
            ("\"stored\":null", "\"stored\":{}"),
            ("\"body\":{}", "\"body\":[]"),
            (&kept[end / 2..], ""),
        ] {
            assert!(kept.contains(from) && decode(kept.replacen(from, to, 1).as_bytes()).is_none());
        }
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
