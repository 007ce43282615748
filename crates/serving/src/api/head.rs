//! The fields at the beginning of every chunk and of the full response.

use serde_json::{Value, json};

use super::request::Endpoint;
use crate::clock::unix_time_s;

/// Fields that all chunks of an answer, and a full response, have in common.
#[derive(Debug, Clone)]
pub struct AnswerHead {
    /// The endpoint that the request was sent to.
    pub endpoint: Endpoint,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// The model that answers, which may differ from the requested one.
    pub model: String,
    /// Time of creation, Unix time in seconds.
    pub created_s: u64,
    /// `system_fingerprint`, OpenAI's name for a server's configuration. `None` until the model is
    /// loaded, and for an upstream server that sends none.
    pub fingerprint: Option<String>,
}

/// The id and creation time that identify an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerName {
    /// The answer's id.
    pub id: String,
    /// Time of creation, Unix time in seconds.
    pub created_s: u64,
}

impl AnswerName {
    /// Reads the name from `meta`, the fields at the beginning of an answer's chunks; `None` if
    /// they are missing.
    pub fn of_meta(meta: &str) -> Option<Self> {
        let meta: Value = serde_json::from_str(meta).ok()?;
        Some(Self { id: meta["id"].as_str()?.to_owned(), created_s: meta["created"].as_u64()? })
    }
}

impl AnswerHead {
    /// Returns the fields at the beginning of every chunk.
    pub fn json(&self) -> Value {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Text => "text_completion",
        };
        let mut json = json!({"id": self.id, "object": object, "created": self.created_s, "model": self.model});
        if let Some(fingerprint) = &self.fingerprint {
            json["system_fingerprint"] = fingerprint.as_str().into();
        }
        json
    }
}

/// Returns the `system_fingerprint` of a service with this `fingerprint`; `None` if that is empty.
pub fn system_fingerprint(fingerprint: &str) -> Option<String> {
    (!fingerprint.is_empty()).then(|| format!("fp_{fingerprint}"))
}

/// Creates the head of a new answer of `model`.
pub fn answer_head(endpoint: Endpoint, model: String) -> AnswerHead {
    let prefix = match endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Text => "cmpl",
    };
    AnswerHead {
        endpoint,
        id: format!("{prefix}-{:032x}", rand::random::<u128>()),
        model,
        created_s: unix_time_s(),
        fingerprint: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_in_every_chunk_if_it_is_known() {
        let mut head = answer_head(Endpoint::Chat, "m".into());
        for (known, shown) in [("", Value::Null), ("a1", "fp_a1".into())] {
            head.fingerprint = system_fingerprint(known);
            assert_eq!(head.json()["system_fingerprint"], shown);
        }
    }
}
