//! Log-probabilities as JSON, in the formats of OpenAI's two endpoints and of llama-server.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::{Map, Value, json};

use super::request::Endpoint;
use crate::flush::TokenLogprobs;

/// Replacement for minus infinity, which JSON lacks, as in OpenAI's answers.
const MIN_LOGPROB: f32 = -9999.0;

/// Format of the log-probabilities of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogprobsFormat {
    /// The `logprobs` of chat completions.
    Chat,
    /// The `logprobs` of completions.
    Text,
    /// Members of llama-server's own completions: `tokens`, the ids of all tokens, and
    /// `completion_probabilities`.
    LlamaServer,
}

impl LogprobsFormat {
    /// Returns the format of OpenAI's `endpoint`.
    pub const fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Chat => Self::Chat,
            Endpoint::Text => Self::Text,
        }
    }

    /// Returns the object of one chunk or full response.
    pub fn json(self, vocab: &dyn Vocab, tokens: &[TokenLogprobs]) -> Value {
        let entries = |entry: fn(&dyn Vocab, TokenId, f32) -> Value| {
            let entries = tokens.iter().filter_map(|one| with_top(vocab, one, entry));
            entries.collect::<Vec<Value>>()
        };
        match self {
            Self::Chat => json!({"content": entries(chat_entry), "refusal": null}),
            Self::Text => text_logprobs(vocab, tokens),
            Self::LlamaServer => json!({
                "tokens": tokens.iter().map(|one| one.token).collect::<Vec<_>>(),
                "completion_probabilities": entries(llama_entry),
            }),
        }
    }
}

/// Returns the entry of a token, with those of the most likely ones; `None` if there are no
/// log-probabilities.
fn with_top(
    vocab: &dyn Vocab,
    one: &TokenLogprobs,
    entry: fn(&dyn Vocab, TokenId, f32) -> Value,
) -> Option<Value> {
    let logprobs = one.logprobs.as_ref()?;
    let mut chosen = entry(vocab, one.token, logprobs.chosen);
    let top = logprobs.top.iter().map(|&(token, logprob)| entry(vocab, token, logprob));
    chosen["top_logprobs"] = top.collect();
    Some(chosen)
}

fn chat_entry(vocab: &dyn Vocab, token: TokenId, logprob: f32) -> Value {
    json!({
        "token": token_text(vocab, token),
        "logprob": logprob.max(MIN_LOGPROB),
        "bytes": vocab.piece(token),
    })
}

fn llama_entry(vocab: &dyn Vocab, token: TokenId, logprob: f32) -> Value {
    let mut entry = chat_entry(vocab, token, logprob);
    entry["id"] = token.into();
    entry
}

fn text_logprobs(vocab: &dyn Vocab, tokens: &[TokenLogprobs]) -> Value {
    let chosen = |one: &TokenLogprobs| {
        one.logprobs.as_ref().map(|logprobs| logprobs.chosen.max(MIN_LOGPROB))
    };
    json!({
        "tokens": tokens.iter().map(|one| token_text(vocab, one.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(chosen).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(|one| best_by_text(vocab, one)).collect::<Vec<_>>(),
        "text_offset": tokens.iter().map(|one| one.offset).collect::<Vec<_>>(),
    })
}

/// Maps the texts of the most likely tokens and of the chosen one to their log-probabilities. Among
/// tokens with the same text the likeliest counts. `None` if there are no log-probabilities.
fn best_by_text(vocab: &dyn Vocab, one: &TokenLogprobs) -> Option<Map<String, Value>> {
    let logprobs = one.logprobs.as_ref()?;
    let mut best = Map::new();
    for &(token, logprob) in logprobs.top.iter().chain([&(one.token, logprobs.chosen)]) {
        best.entry(token_text(vocab, token)).or_insert_with(|| logprob.max(MIN_LOGPROB).into());
    }
    Some(best)
}

/// Returns a token as text. Bytes of incomplete characters are replaced, since `bytes` carries them
/// exactly.
fn token_text(vocab: &dyn Vocab, token: TokenId) -> String {
    let piece = vocab.piece(token);
    let bytes = if piece.is_empty() { vocab.name(token) } else { piece };
    String::from_utf8_lossy(bytes).into_owned()
}
