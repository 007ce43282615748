//! Answers as OpenAI's JSON: chunks for streams, one object otherwise.
//!
//! A stream's envelope is rendered once; a chunk is the envelope with an escaped text in it.

use std::io::Write;
use std::sync::Arc;

use loquent_infer::runner::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::{Value, json};

use super::request::Endpoint;
use crate::choice::{End, Flush, TokenLogprobs};

/// Stands for minus infinity in JSON, as in OpenAI's answers.
const MIN_LOGPROB: f32 = -9999.0;

/// What all chunks and the whole answer have in common.
#[derive(Debug, Clone)]
pub struct Head {
    /// Which endpoint answers.
    pub endpoint: Endpoint,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// The model that answers, whatever was asked for.
    pub model: String,
    /// Unix time in seconds.
    pub created_s: u64,
}

/// Token counts of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, each prompt counted once.
    pub prompt_tokens: u64,
    /// Of those, from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated for all completions.
    pub completion_tokens: u64,
}

impl Usage {
    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

/// Renders a stream's chunks.
pub struct Chunks {
    endpoint: Endpoint,
    vocab: Arc<dyn Vocab>,
    /// `data: {"id":…,"choices":[{"index":`.
    envelope: Vec<u8>,
    /// The same for chunks without choices.
    bare: Value,
    usage_in_chunks: UsageInChunks,
    /// Bytes of text sent so far: the event id.
    offset: u64,
    started: Vec<bool>,
    text_offsets: Vec<usize>,
}

/// What stands under `usage` in chunks with choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageInChunks {
    /// No such field.
    Absent,
    /// `null`: the request asked for usage, which comes last.
    Null,
    /// The counts so far.
    Counts,
}

impl Chunks {
    /// Chunks of an answer with `choices` completions.
    pub fn new(head: &Head, choices: usize, usage: UsageInChunks, vocab: Arc<dyn Vocab>) -> Self {
        let object = match head.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Text => "text_completion",
        };
        let bare = json!({"id": head.id, "object": object, "created": head.created_s, "model": head.model});
        let mut envelope = b"data: ".to_vec();
        envelope.extend_from_slice(bare.to_string().as_bytes());
        envelope.pop();
        envelope.extend_from_slice(b",\"choices\":[{\"index\":");
        Self {
            endpoint: head.endpoint,
            vocab,
            envelope,
            bare,
            usage_in_chunks: usage,
            offset: 0,
            started: vec![false; choices],
            text_offsets: vec![0; choices],
        }
    }

    /// Appends the events of `flush` to `out`; its error, if any, is the caller's business.
    pub fn flush(&mut self, flush: &Flush, usage: &Usage, out: &mut Vec<u8>) {
        let index = flush.choice as usize;
        if !std::mem::replace(&mut self.started[index], true) && self.endpoint == Endpoint::Chat {
            self.event(flush.choice, out, usage, |_, out| {
                out.extend_from_slice(br#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#);
            });
        }
        if !flush.text.is_empty() || !flush.logprobs.is_empty() {
            self.offset += flush.text.len() as u64;
            self.event(flush.choice, out, usage, |chunks, out| chunks.content(flush, out));
            self.text_offsets[index] += flush.text.chars().count();
        }
        if let Some(reason) = flush.end.as_ref().and_then(|end| end.reason.name()) {
            let endpoint = self.endpoint;
            self.event(flush.choice, out, usage, |_, out| {
                out.extend_from_slice(match endpoint {
                    Endpoint::Chat => br#""delta":{},"logprobs":null,"finish_reason":""#.as_slice(),
                    Endpoint::Text => br#""text":"","logprobs":null,"finish_reason":""#.as_slice(),
                });
                out.extend_from_slice(reason.as_bytes());
                out.push(b'"');
            });
        }
    }

    /// Appends text that is no completion: an echoed prompt.
    pub fn echo(&mut self, choice: u32, text: &str, out: &mut Vec<u8>) {
        let flush = Flush { choice, text: text.to_owned(), ..Flush::default() };
        self.flush(&flush, &Usage::default(), out);
    }

    /// Appends the chunk that carries usage, with `timings` beside it where wanted.
    pub fn usage(&self, usage: &Usage, timings: Option<Value>, out: &mut Vec<u8>) {
        let mut chunk = self.bare.clone();
        chunk["choices"] = json!([]);
        chunk["usage"] = usage.json();
        if let Some(timings) = timings {
            chunk["loquent_timings"] = timings;
        }
        let _ = write!(out, "id: {}\ndata: {chunk}\n\n", self.offset);
    }

    /// Appends the end of a complete stream.
    pub fn done(&self, out: &mut Vec<u8>) {
        let _ = write!(out, "id: {}\ndata: [DONE]\n\n", self.offset);
    }

    fn event(
        &self,
        index: u32,
        out: &mut Vec<u8>,
        usage: &Usage,
        body: impl FnOnce(&Self, &mut Vec<u8>),
    ) {
        let _ = writeln!(out, "id: {}", self.offset);
        out.extend_from_slice(&self.envelope);
        let _ = write!(out, "{index},");
        body(self, out);
        out.extend_from_slice(b"}]");
        match self.usage_in_chunks {
            UsageInChunks::Absent => {}
            UsageInChunks::Null => out.extend_from_slice(b",\"usage\":null"),
            UsageInChunks::Counts => {
                let _ = write!(out, ",\"usage\":{}", usage.json());
            }
        }
        out.extend_from_slice(b"}\n\n");
    }

    fn content(&self, flush: &Flush, out: &mut Vec<u8>) {
        let (before, after) = match self.endpoint {
            Endpoint::Chat => ("\"delta\":{\"content\":", "},\"logprobs\":"),
            Endpoint::Text => ("\"text\":", ",\"logprobs\":"),
        };
        out.extend_from_slice(before.as_bytes());
        let _ = serde_json::to_writer(&mut *out, &flush.text);
        out.extend_from_slice(after.as_bytes());
        if flush.logprobs.is_empty() {
            out.extend_from_slice(b"null");
        } else {
            let start = self.text_offsets[flush.choice as usize];
            let _ = write!(
                out,
                "{}",
                logprobs_json(self.endpoint, &*self.vocab, &flush.logprobs, start)
            );
        }
        out.extend_from_slice(b",\"finish_reason\":null");
    }
}

/// A whole answer, for requests that do not stream.
pub fn whole(head: &Head, choices: &[Whole], usage: &Usage, vocab: &dyn Vocab) -> Value {
    let object = match head.endpoint {
        Endpoint::Chat => "chat.completion",
        Endpoint::Text => "text_completion",
    };
    let choices: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, one)| one.json(head.endpoint, index, vocab))
        .collect();
    json!({
        "id": head.id, "object": object, "created": head.created_s, "model": head.model,
        "choices": choices, "usage": usage.json(),
    })
}

/// One completion, gathered from its flushes.
#[derive(Debug, Clone, Default)]
pub struct Whole {
    /// The text so far.
    pub text: String,
    logprobs: Vec<TokenLogprobs>,
    end: Option<Box<End>>,
}

impl Whole {
    /// Adds a flush.
    pub fn push(&mut self, flush: Flush) {
        self.text.push_str(&flush.text);
        self.logprobs.extend(flush.logprobs);
        self.end = flush.end.or(self.end.take());
    }

    fn json(&self, endpoint: Endpoint, index: usize, vocab: &dyn Vocab) -> Value {
        let logprobs = match self.logprobs.as_slice() {
            [] => Value::Null,
            some => logprobs_json(endpoint, vocab, some, 0),
        };
        let reason = self.end.as_ref().and_then(|end| end.reason.name());
        match endpoint {
            Endpoint::Chat => json!({
                "index": index,
                "message": {"role": "assistant", "content": self.text, "refusal": null},
                "logprobs": logprobs, "finish_reason": reason,
            }),
            Endpoint::Text => json!({
                "index": index, "text": self.text, "logprobs": logprobs, "finish_reason": reason,
            }),
        }
    }
}

fn logprobs_json(
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
