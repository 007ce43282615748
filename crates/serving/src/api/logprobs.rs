//! Log-probabilities as OpenAI's JSON.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::{Map, Value, json};

use super::request::Endpoint;
use crate::flush::TokenLogprobs;

/// Replacement for minus infinity, which JSON lacks, as in OpenAI's answers.
const MIN_LOGPROB: f32 = -9999.0;

/// Returns the `logprobs` object of one chunk or full response.
pub fn logprobs_json(endpoint: Endpoint, vocab: &dyn Vocab, tokens: &[TokenLogprobs]) -> Value {
    match endpoint {
        Endpoint::Chat => {
            let entries = tokens.iter().filter_map(|one| chat_logprob(vocab, one));
            let content: Vec<Value> = entries.collect();
            json!({"content": content, "refusal": null})
        }
        Endpoint::Text => text_logprobs(vocab, tokens),
    }
}

fn chat_logprob(vocab: &dyn Vocab, one: &TokenLogprobs) -> Option<Value> {
    let logprobs = one.logprobs.as_ref()?;
    let entry = |token: TokenId, logprob: f32| {
        json!({
            "token": token_text(vocab, token),
            "logprob": logprob.max(MIN_LOGPROB),
            "bytes": vocab.piece(token),
        })
    };
    let mut chosen = entry(one.token, logprobs.chosen);
    chosen["top_logprobs"] =
        logprobs.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
    Some(chosen)
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
