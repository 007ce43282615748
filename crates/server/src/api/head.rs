//! What every chunk of an answer, and the full response, begin with.

use serde_json::{Value, json};

use super::request::Endpoint;

/// What all chunks of an answer, and a full response, have in common.
#[derive(Debug, Clone)]
pub struct AnswerHead {
    /// Which endpoint answers.
    pub endpoint: Endpoint,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// The model that answers, whatever was asked for.
    pub model: String,
    /// Unix time in seconds.
    pub created_s: u64,
    /// OpenAI's name of a server's configuration; an upstream's own.
    pub fingerprint: Option<String>,
}

/// What an answer is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerName {
    /// Its id.
    pub id: String,
    /// When it began, Unix time in seconds.
    pub created_s: u64,
}

impl AnswerName {
    /// That of an answer whose chunks begin with `meta`; `None` if that has none.
    pub fn of_meta(meta: &str) -> Option<Self> {
        let meta: Value = serde_json::from_str(meta).ok()?;
        Some(Self { id: meta["id"].as_str()?.to_owned(), created_s: meta["created"].as_u64()? })
    }
}

impl AnswerHead {
    /// What every chunk begins with.
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
