//! Log-probabilities as OpenAI's JSON.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::{Value, json};

use super::request::Endpoint;
use crate::flush::TokenLogprobs;

/// Stands for minus infinity, which JSON lacks, as in OpenAI's answers.
const MIN_LOGPROB: f32 = -9999.0;

/// The `logprobs` of one chunk or full response; `start` is how many characters of text came
/// before it.
pub fn logprobs_json(
    endpoint: Endpoint,
    vocab: &dyn Vocab,
    tokens: &[TokenLogprobs],
    start: usize,
) -> Value {
    match endpoint {
        Endpoint::Chat => {
            let content: Vec<Value> = tokens.iter().map(|one| chat_logprob(vocab, one)).collect();
            json!({"content": content, "refusal": null})
        }
        Endpoint::Text => text_logprobs(vocab, tokens, start),
    }
}

fn chat_logprob(vocab: &dyn Vocab, one: &TokenLogprobs) -> Value {
    let entry = |token: TokenId, logprob: f32| {
        json!({
            "token": token_text(vocab, token),
            "logprob": logprob.max(MIN_LOGPROB),
            "bytes": vocab.piece(token),
        })
    };
    let mut chosen = entry(one.token, one.logprobs.chosen);
    chosen["top_logprobs"] =
        one.logprobs.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
    chosen
}

fn text_logprobs(vocab: &dyn Vocab, tokens: &[TokenLogprobs], start: usize) -> Value {
    let mut offset = start;
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut top = Vec::with_capacity(tokens.len());
    for one in tokens {
        offsets.push(offset);
        offset += token_text(vocab, one.token).chars().count();
        let best: serde_json::Map<String, Value> = (one.logprobs.top.iter())
            .map(|&(token, logprob)| (token_text(vocab, token), logprob.max(MIN_LOGPROB).into()))
            .collect();
        top.push(best);
    }
    json!({
        "tokens": tokens.iter().map(|one| token_text(vocab, one.token)).collect::<Vec<_>>(),
        "token_logprobs":
            tokens.iter().map(|one| one.logprobs.chosen.max(MIN_LOGPROB)).collect::<Vec<_>>(),
        "top_logprobs": top,
        "text_offset": offsets,
    })
}

/// A token as text; bytes of half characters are replaced, as `bytes` carries them exactly.
fn token_text(vocab: &dyn Vocab, token: TokenId) -> String {
    let piece = vocab.piece(token);
    let bytes = if piece.is_empty() { vocab.name(token) } else { piece };
    String::from_utf8_lossy(bytes).into_owned()
}
