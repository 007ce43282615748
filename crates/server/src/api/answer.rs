//! Answers as OpenAI's JSON: chunks for streams, one object otherwise.
//!
//! A stream's envelope is rendered once; a chunk is the envelope with an escaped text in it.

use std::io::Write;
use std::sync::Arc;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::{Map, Value, json};

use super::request::{Endpoint, StreamParams};
use crate::flush::{CallPiece, End, Flush, TokenLogprobs};
use crate::usage::Usage;

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
    /// OpenAI's name of a server's configuration; an upstream's own.
    pub fingerprint: Option<String>,
}

impl Head {
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

impl UsageInChunks {
    /// As the request asked for it.
    pub fn asked_by(stream: StreamParams) -> Self {
        match stream {
            StreamParams { continuous_usage: true, .. } => Self::Counts,
            StreamParams { include_usage: true, .. } => Self::Null,
            _ => Self::Absent,
        }
    }
}

impl Chunks {
    /// Chunks of an answer with `choices` completions.
    pub fn new(head: &Head, choices: usize, usage: UsageInChunks, vocab: Arc<dyn Vocab>) -> Self {
        let bare = head.json();
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
    /// `usage` is asked for where chunks carry counts.
    pub fn flush(&mut self, flush: &Flush, usage: &dyn Fn() -> Usage, out: &mut Vec<u8>) {
        let index = flush.choice as usize;
        if !std::mem::replace(&mut self.started[index], true) && self.endpoint == Endpoint::Chat {
            self.event(flush.choice, out, usage, |_, out| {
                out.extend_from_slice(br#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#);
            });
        }
        if flush.has_payload() {
            self.offset += flush.text_bytes() as u64;
            self.content_event(flush, out, usage);
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
        self.flush(&flush, &Usage::default, out);
    }

    /// Appends the chunk that carries usage, with `timings` and what an upstream server said
    /// beside it.
    pub fn usage(
        &self,
        usage: Value,
        extra: Option<&Map<String, Value>>,
        timings: Option<Value>,
        out: &mut Vec<u8>,
    ) {
        let mut chunk = self.bare.clone();
        chunk["choices"] = json!([]);
        chunk["usage"] = usage;
        for (name, value) in extra.into_iter().flatten() {
            chunk[name] = value.clone();
        }
        if let Some(timings) = timings {
            chunk["loquent_timings"] = timings;
        }
        let _ = write!(out, "id: {}\ndata: {chunk}\n\n", self.offset);
    }

    /// Appends the end of a complete stream.
    pub fn done(&self, out: &mut Vec<u8>) {
        let _ = write!(out, "id: {}\ndata: [DONE]\n\n", self.offset);
    }

    /// The event of what `flush` holds, with what an upstream server said beside it.
    fn content_event(&self, flush: &Flush, out: &mut Vec<u8>, usage: &dyn Fn() -> Usage) {
        let extra = flush.extra.as_ref().map(|extra| &extra.chunk);
        self.event(flush.choice, out, usage, |chunks, out| chunks.content(flush, out));
        if let Some(extra) = extra.filter(|extra| !extra.is_empty()) {
            out.truncate(out.len() - "}\n\n".len());
            put_members(extra, out);
            out.extend_from_slice(b"}\n\n");
        }
    }

    fn event(
        &self,
        index: u32,
        out: &mut Vec<u8>,
        usage: &dyn Fn() -> Usage,
        body: impl FnOnce(&Self, &mut Vec<u8>),
    ) {
        out.extend_from_slice(b"id: ");
        put_number(self.offset, out);
        out.push(b'\n');
        out.extend_from_slice(&self.envelope);
        put_number(index.into(), out);
        out.push(b',');
        body(self, out);
        out.extend_from_slice(b"}]");
        match self.usage_in_chunks {
            UsageInChunks::Absent => {}
            UsageInChunks::Null => out.extend_from_slice(b",\"usage\":null"),
            UsageInChunks::Counts => {
                let _ = write!(out, ",\"usage\":{}", usage().json());
            }
        }
        out.extend_from_slice(b"}\n\n");
    }

    fn content(&self, flush: &Flush, out: &mut Vec<u8>) {
        match self.endpoint {
            Endpoint::Chat => chat_delta(flush, out),
            Endpoint::Text => {
                out.extend_from_slice(b"\"text\":");
                let _ = serde_json::to_writer(&mut *out, &flush.text);
            }
        }
        out.extend_from_slice(b",\"logprobs\":");
        if let Some(raw) = &flush.raw_logprobs {
            let _ = write!(out, "{raw}");
        } else if flush.logprobs.is_empty() {
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
        if let Some(extra) = &flush.extra {
            put_members(&extra.choice, out);
        }
    }
}

/// Digits without the machinery of [`std::fmt`], twice for every token.
fn put_number(number: u64, out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, &number);
}

/// `,"name":value` of each.
fn put_members(members: &Map<String, Value>, out: &mut Vec<u8>) {
    for (name, value) in members {
        let _ = write!(out, ",{}:{value}", Value::from(name.as_str()));
    }
}

/// `"delta":{…}` with what `flush` holds.
fn chat_delta(flush: &Flush, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"delta\":{");
    let empty = out.len();
    // Names that need no escaping.
    let member = |name: &str, out: &mut Vec<u8>| {
        let before: &[u8] = if out.len() == empty { b"\"" } else { b",\"" };
        [before, name.as_bytes(), b"\":"].iter().for_each(|part| out.extend_from_slice(part));
    };
    if !flush.reasoning.is_empty() {
        member("reasoning_content", out);
        let _ = serde_json::to_writer(&mut *out, &flush.reasoning);
    }
    // An empty content stands for tokens without text, whose log-probabilities are here.
    let silent = flush.reasoning.is_empty() && flush.calls.is_empty();
    if !flush.text.is_empty() || silent {
        member("content", out);
        let _ = serde_json::to_writer(&mut *out, &flush.text);
    }
    if !flush.calls.is_empty() {
        member("tool_calls", out);
        let calls: Vec<Value> = flush.calls.iter().map(call_delta).collect();
        let _ = serde_json::to_writer(&mut *out, &calls);
    }
    // Something of the above is always there.
    if let Some(extra) = &flush.extra {
        put_members(&extra.delta, out);
    }
    out.push(b'}');
}

fn call_delta(call: &CallPiece) -> Value {
    if call.name.is_empty() && call.id.is_empty() {
        return json!({"index": call.index, "function": {"arguments": call.arguments}});
    }
    json!({
        "index": call.index, "id": call.id, "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
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
    reasoning: String,
    calls: Vec<CallPiece>,
    logprobs: Vec<TokenLogprobs>,
    end: Option<Box<End>>,
}

impl Whole {
    /// Adds a flush.
    pub fn push(&mut self, flush: Flush) {
        self.text.push_str(&flush.text);
        self.reasoning.push_str(&flush.reasoning);
        for call in flush.calls {
            match self.calls.last_mut() {
                Some(last) if last.index == call.index => last.arguments.push_str(&call.arguments),
                _ => self.calls.push(call),
            }
        }
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
                "index": index, "message": self.message(),
                "logprobs": logprobs, "finish_reason": reason,
            }),
            Endpoint::Text => json!({
                "index": index, "text": self.text, "logprobs": logprobs, "finish_reason": reason,
            }),
        }
    }
}

impl Whole {
    fn message(&self) -> Value {
        let silent = self.text.is_empty() && !self.calls.is_empty();
        let content = if silent { Value::Null } else { self.text.as_str().into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |call: &CallPiece| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// The `logprobs` of one chunk or answer; `start` is how many characters came before.
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
