//! Maps prompts to upstream servers: requests whose prompts share a beginning go to the same
//! server, which has that beginning in its prefix cache.
//!
//! Each pair of a prompt key and a server has a pseudo-random weight, and the prompt belongs to the
//! server with the highest weight (rendezvous hashing: Thaler and Ravishankar, 1998). When a server
//! leaves, only its own prompts move; they return when it does. The mapping depends neither on the
//! order of the servers nor on this process: several proxies in front of the same servers agree.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use loquent_serving::api::request::Endpoint;

/// Bytes of the first question that are hashed: enough to tell conversations apart, few enough that
/// questions about one long document map to the same server.
const QUESTION_BYTES: usize = 1024;
/// Bytes hashed of the messages before the first question.
const PREAMBLE_BYTES: usize = 64 * 1024;

/// Hash of the beginning of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PromptKey(pub u64);

impl PromptKey {
    /// Returns the key of a request's prompt; `None` if the prompt is missing or has an unknown
    /// form.
    ///
    /// The key of a conversation covers its system prompt and first question, which later turns do
    /// not change. A `prompt_cache_key` set by the client replaces it.
    pub fn of(endpoint: Endpoint, body: &Map<String, Value>) -> Option<Self> {
        let mut digest = Beginning { digest: Sha256::new(), left: PREAMBLE_BYTES };
        if let Some(chosen) = body.get("prompt_cache_key").and_then(Value::as_str) {
            digest.add("key", chosen);
            return Some(digest.finish());
        }
        match endpoint {
            Endpoint::Text => {
                let first = match body.get("prompt")? {
                    Value::Array(all) if !all.first()?.is_number() => all.first()?,
                    prompt => prompt,
                };
                digest.left = QUESTION_BYTES;
                digest.add_content("prompt", first);
            }
            Endpoint::Chat => {
                for message in body.get("messages")?.as_array()? {
                    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
                    let is_question = role == "user";
                    if is_question {
                        digest.left = QUESTION_BYTES;
                    }
                    digest.add_content(role, message.get("content").unwrap_or(&Value::Null));
                    if is_question {
                        break;
                    }
                }
            }
        }
        Some(digest.finish())
    }
}

/// Digest of a prompt's beginning.
struct Beginning {
    digest: Sha256,
    /// Bytes that may still be hashed.
    left: usize,
}

impl Beginning {
    fn add_content(&mut self, role: &str, content: &Value) {
        match content {
            Value::String(text) => self.add(role, text),
            Value::Array(parts) => {
                for part in parts {
                    if self.left == 0 {
                        break;
                    }
                    match part.get("text").and_then(Value::as_str) {
                        Some(text) => self.add(role, text),
                        None => self.add(role, &part.to_string()),
                    }
                }
            }
            other => self.add(role, &other.to_string()),
        }
    }

    fn add(&mut self, role: &str, text: &str) {
        let counted = &text.as_bytes()[..text.len().min(self.left)];
        self.left -= counted.len();
        // With its length, or "a" and "bc" would be the same as "ab" and "c".
        self.digest.update((role.len() as u64).to_le_bytes());
        self.digest.update(role);
        self.digest.update((counted.len() as u64).to_le_bytes());
        self.digest.update(counted);
    }

    fn finish(self) -> PromptKey {
        PromptKey(first_word(&self.digest.finalize()))
    }
}

/// Hash of a server's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerPoint(u64);

impl ServerPoint {
    /// Returns the point of the server at `url`.
    pub fn of(url: &str) -> Self {
        Self(first_word(&Sha256::digest(url)))
    }

    /// Returns the server's weight for the prompt.
    pub fn weight(self, key: PromptKey) -> u64 {
        // SplitMix64's finalizer: every bit of both words moves every bit of the result.
        let mut word = self.0 ^ key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

fn first_word(digest: &[u8]) -> u64 {
    u64::from_le_bytes(digest[..8].try_into().expect("a digest is longer"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(body: Value) -> Option<PromptKey> {
        PromptKey::of(Endpoint::Chat, body.as_object().unwrap())
    }

    fn chat(turns: &[(&str, &str)]) -> Option<PromptKey> {
        let message = |(role, text): &(&str, &str)| json!({"role": role, "content": text});
        key(json!({"messages": turns.iter().map(message).collect::<Vec<_>>()}))
    }

    #[test]
    fn a_conversation_keeps_its_key_and_others_have_their_own() {
        let first = chat(&[("system", "Be brief."), ("user", "Hello")]);
        let later =
            [("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"), ("user", "x")];
        assert_eq!(first, chat(&later));
        assert_ne!(first, chat(&[("system", "Be brief."), ("user", "Good day")]));
        assert_ne!(first, chat(&[("system", "Be long."), ("user", "Hello")]));
        assert_ne!(chat(&[("user", "ab"), ("user", "c")]), chat(&[("user", "a"), ("user", "bc")]));
        assert_ne!(chat(&[("system", "ab")]), chat(&[("systema", "b")]));
    }

    #[test]
    fn questions_about_one_document_belong_together() {
        let document = "x".repeat(QUESTION_BYTES);
        let about = |question: &str| chat(&[("user", &format!("{document} {question}"))]);
        assert_eq!(about("Who?"), about("When?"));
        let preamble = "y".repeat(PREAMBLE_BYTES);
        let long = |question: &str| chat(&[("system", &preamble), ("user", question)]);
        assert_ne!(long("Who?"), long("When?"), "a long preamble leaves the question its part");
    }

    #[test]
    fn every_form_of_a_prompt_has_a_key() {
        let parts =
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]});
        assert_eq!(key(parts), chat(&[("user", "Hi")]));
        let text = |prompt: Value| {
            PromptKey::of(Endpoint::Text, json!({"prompt": prompt}).as_object().unwrap())
        };
        assert_eq!(text(json!("a")), text(json!(["a", "b"])));
        assert_ne!(text(json!([1, 2])), text(json!([1, 3])));
        assert_eq!([text(json!([])), key(json!({})), key(json!({"messages": 1}))], [None; 3]);
        let chosen = |text: &str, key_: &str| {
            let messages = [json!({"role": "user", "content": text})];
            key(json!({"messages": messages, "prompt_cache_key": key_}))
        };
        assert_eq!(chosen("a", "k"), chosen("b", "k"));
        assert_ne!(chosen("a", "k"), chosen("a", "l"));
    }
}
