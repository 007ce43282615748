//! Pieces of an answer, and their encoding as records of the log.
//!
//! A record is a length and a body; a body begins with a tag, its kind in the low four bits and the
//! choice in the high four (`spec/delivery.md`, section 3). The most common record, one token of
//! text, is shorter: one byte more than the text itself.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;
use crate::progress::Progress;
use crate::wire::{FieldReader, put_bytes, put_int};

/// Version of the record format, the first field of every [`Delta::Open`] (D-3.4).
pub const LOG_VERSION: u8 = 1;

/// Longest body of a record, bytes (D-3.2). Longer text is split by [`crate::Log::push`].
pub const MAX_RECORD_BYTES: usize = (1 << 14) - 1;

/// A first byte from here on begins a short record: the text of one token of the first choice,
/// whose length is in the byte's low bits (D-3.3).
pub const SHORT_TEXT: u8 = 0x80;

/// One step of an answer. `choice` numbers the parallel answers to one request, from 0.
///
/// `tokens` is the number of tokens in a delta. A delta is not a token, since tokens are merged
/// (stream interval) and some yield no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// First record: JSON that a client needs to render the rest.
    Open {
        /// JSON object; the server decides its members (id, model, created).
        meta: String,
    },
    /// Visible text, always whole characters.
    Text {
        /// Number of the answer.
        choice: u32,
        /// Tokens in this text.
        tokens: u32,
        /// The text.
        text: String,
    },
    /// Text of the model's reasoning; clients show it separately or not at all.
    Reasoning {
        /// Number of the answer.
        choice: u32,
        /// Tokens in this text.
        tokens: u32,
        /// The text.
        text: String,
    },
    /// A fragment of a tool call; `id` and `name` come with the first fragment.
    ToolCall {
        /// Number of the answer.
        choice: u32,
        /// Index of the call within this answer.
        index: u32,
        /// Tokens in this fragment.
        tokens: u32,
        /// The call's id; empty after the first fragment.
        id: String,
        /// The function's name; empty after the first fragment.
        name: String,
        /// The next piece of the arguments.
        arguments: String,
    },
    /// Log probabilities of the tokens since the last ones, as the JSON of one chunk.
    Logprobs {
        /// Number of the answer.
        choice: u32,
        /// JSON.
        json: String,
    },
    /// One answer has ended.
    Finish {
        /// Number of the answer.
        choice: u32,
        /// Reason, in OpenAI's terms (`stop`, `length`, `tool_calls`, …).
        reason: String,
    },
    /// Token counts so far; the last record counts.
    Usage {
        /// Tokens of the prompt.
        prompt: u64,
        /// Tokens generated.
        completion: u64,
        /// Tokens of the prompt that came from a cache.
        cached: u64,
        /// Tokens of `completion` that were reasoning.
        reasoning: u64,
    },
    /// The answer has failed and is incomplete; nothing follows.
    Error {
        /// Error code, for programs.
        code: String,
        /// Message, for people.
        message: String,
    },
    /// Other members of a chunk, as JSON (upstream servers' extensions).
    Other {
        /// Number of the answer.
        choice: u32,
        /// JSON object.
        json: String,
    },
    /// Progress of the answer before its first token; the last record counts.
    Progress(Progress),
    /// The answer is interrupted for now; the next content continues where it stopped.
    Pause {
        /// Reason, for people.
        why: String,
    },
    /// The answer is complete; nothing follows.
    Done,
}

mod kind {
    pub const OPEN: u8 = 0;
    pub const TEXT: u8 = 1;
    pub const TEXT_N: u8 = 2;
    pub const REASONING: u8 = 3;
    pub const REASONING_N: u8 = 4;
    pub const TOOL_CALL: u8 = 5;
    pub const LOGPROBS: u8 = 6;
    pub const FINISH: u8 = 7;
    pub const USAGE: u8 = 8;
    pub const ERROR: u8 = 9;
    pub const DONE: u8 = 10;
    pub const OTHER: u8 = 11;
    pub const PROGRESS: u8 = 12;
    pub const PAUSE: u8 = 14;
    /// The kind follows as an `int`, at least [`LEAST_LONG`] (D-3.1).
    pub const LONG: u8 = 15;
    pub const LEAST_LONG: u64 = 16;
}

impl Delta {
    /// Text of one token in the first answer: the most common delta.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { choice: 0, tokens: 1, text: text.into() }
    }

    /// Returns true if nothing may follow this delta: [`Delta::Done`] or [`Delta::Error`] (D-3.6).
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Done | Self::Error { .. })
    }

    /// Number of the answer that this delta belongs to; `None` for records of the whole log.
    pub const fn choice(&self) -> Option<u32> {
        match self {
            Self::Text { choice, .. }
            | Self::Reasoning { choice, .. }
            | Self::ToolCall { choice, .. }
            | Self::Logprobs { choice, .. }
            | Self::Finish { choice, .. }
            | Self::Other { choice, .. } => Some(*choice),
            Self::Open { .. }
            | Self::Usage { .. }
            | Self::Error { .. }
            | Self::Progress(_)
            | Self::Pause { .. }
            | Self::Done => None,
        }
    }

    /// Tokens in this delta.
    pub const fn tokens(&self) -> u32 {
        match self {
            Self::Text { tokens, .. }
            | Self::Reasoning { tokens, .. }
            | Self::ToolCall { tokens, .. } => *tokens,
            _ => 0,
        }
    }

    /// Bytes of text, JSON or arguments that this delta adds to chunks.
    pub const fn payload_bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } | Self::Reasoning { text, .. } => text.len(),
            Self::ToolCall { id, name, arguments, .. } => id.len() + name.len() + arguments.len(),
            Self::Logprobs { json, .. } | Self::Other { json, .. } => json.len(),
            Self::Finish { reason, .. } => reason.len(),
            Self::Error { code, message } => code.len() + message.len(),
            Self::Pause { why } => why.len(),
            Self::Open { .. } | Self::Usage { .. } | Self::Progress(_) | Self::Done => 0,
        }
    }

    /// Mutable token count, for kinds that have one.
    pub const fn tokens_mut(&mut self) -> Option<&mut u32> {
        match self {
            Self::Text { tokens, .. }
            | Self::Reasoning { tokens, .. }
            | Self::ToolCall { tokens, .. } => Some(tokens),
            _ => None,
        }
    }

    /// Appends the delta as one record (D-3.1).
    ///
    /// # Errors
    /// [`Error::DeltaTooLong`] if the body exceeds [`MAX_RECORD_BYTES`]; `out` is then unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        if let Self::Text { choice: 0, tokens: 1, text } = self
            && text.len() < usize::from(SHORT_TEXT)
        {
            out.push(SHORT_TEXT | text.len() as u8);
            out.extend_from_slice(text.as_bytes());
            return Ok(());
        }
        let mut body = Vec::with_capacity(32);
        self.encode_body(&mut body);
        if body.len() > MAX_RECORD_BYTES {
            return Err(Error::DeltaTooLong);
        }
        put_bytes(out, &body);
        Ok(())
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Open { meta } => {
                out.extend_from_slice(&[kind::OPEN, LOG_VERSION]);
                out.extend_from_slice(meta.as_bytes());
            }
            Self::Text { choice, tokens, text } => {
                put_text(out, [kind::TEXT, kind::TEXT_N], *choice, *tokens, text);
            }
            Self::Reasoning { choice, tokens, text } => {
                put_text(out, [kind::REASONING, kind::REASONING_N], *choice, *tokens, text);
            }
            Self::ToolCall { choice, index, tokens, id, name, arguments } => {
                put_tag(out, kind::TOOL_CALL, *choice);
                put_int(out, u64::from(*index));
                put_int(out, u64::from(*tokens));
                put_bytes(out, id.as_bytes());
                put_bytes(out, name.as_bytes());
                out.extend_from_slice(arguments.as_bytes());
            }
            Self::Logprobs { choice, json } => put_rest(out, kind::LOGPROBS, *choice, json),
            Self::Finish { choice, reason } => put_rest(out, kind::FINISH, *choice, reason),
            Self::Other { choice, json } => put_rest(out, kind::OTHER, *choice, json),
            Self::Usage { prompt, completion, cached, reasoning } => {
                put_tag(out, kind::USAGE, 0);
                for count in [prompt, completion, cached, reasoning] {
                    put_int(out, *count);
                }
            }
            Self::Error { code, message } => {
                put_tag(out, kind::ERROR, 0);
                put_bytes(out, code.as_bytes());
                out.extend_from_slice(message.as_bytes());
            }
            Self::Progress(progress) => {
                put_tag(out, kind::PROGRESS, 0);
                progress.encode(out);
            }
            Self::Pause { why } => put_rest(out, kind::PAUSE, 0, why),
            Self::Done => put_tag(out, kind::DONE, 0),
        }
    }

    /// Decodes the record at the front of `bytes` and returns it with its length; `None` if the
    /// record is incomplete. The record is `None` for a kind unknown to this version, which a
    /// receiver skips (D-3.5).
    ///
    /// # Errors
    /// Same as [`Self::decode_body`], or [`Error::Malformed`] for an impossible length.
    pub fn decode(bytes: &[u8]) -> Result<Option<(usize, Option<Self>)>, Error> {
        let Some(&first) = bytes.first() else {
            return Ok(None);
        };
        let mut r = FieldReader::new(bytes);
        if first >= SHORT_TEXT {
            r.byte()?;
            let len = usize::from(first - SHORT_TEXT);
            let Ok(text) = r.take(len) else {
                return Ok(None);
            };
            let text = FieldReader::new(text).rest_text()?;
            return Ok(Some((1 + len, Some(Self::text(text)))));
        }
        match r.bytes() {
            Err(Error::Truncated) => Ok(None),
            Err(error) => Err(error),
            Ok(body) => Ok(Some((bytes.len() - r.rest().len(), Self::decode_body(body)?))),
        }
    }

    /// Decodes a record's body; `None` for a kind unknown to this version, which a receiver skips
    /// (D-3.5).
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Malformed`], or [`Error::UnknownVersion`] for a log of
    /// another version.
    pub fn decode_body(body: &[u8]) -> Result<Option<Self>, Error> {
        let mut r = FieldReader::new(body);
        let tag = r.byte()?;
        let choice = match tag >> 4 {
            15 => r.int32()?,
            nibble => u32::from(nibble),
        };
        // The choice is read even where it says nothing, because the kind may follow it (D-3.1).
        let delta = match tag & 15 {
            kind::OPEN => decode_open(&mut r)?,
            kind::TEXT => Self::Text { choice, tokens: 1, text: r.rest_text()? },
            kind::TEXT_N => Self::Text { choice, tokens: r.int32()?, text: r.rest_text()? },
            kind::REASONING => Self::Reasoning { choice, tokens: 1, text: r.rest_text()? },
            kind::REASONING_N => {
                Self::Reasoning { choice, tokens: r.int32()?, text: r.rest_text()? }
            }
            kind::TOOL_CALL => decode_tool_call(choice, &mut r)?,
            kind::LOGPROBS => Self::Logprobs { choice, json: r.rest_text()? },
            kind::FINISH => Self::Finish { choice, reason: r.rest_text()? },
            kind::USAGE => decode_usage(&mut r)?,
            kind::ERROR => Self::Error { code: r.text()?, message: r.rest_text()? },
            kind::DONE => Self::Done,
            kind::OTHER => Self::Other { choice, json: r.rest_text()? },
            kind::PROGRESS => Self::Progress(Progress::decode(&mut r)?),
            kind::PAUSE => Self::Pause { why: r.rest_text()? },
            kind::LONG => return decode_long_kind(&mut r).map(|()| None),
            _ => return Ok(None),
        };
        r.end()?;
        Ok(Some(delta))
    }
}

fn put_tag(out: &mut Vec<u8>, kind: u8, choice: u32) {
    if choice < 15 {
        out.push(kind | (choice as u8) << 4);
    } else {
        out.push(kind | 0xf0);
        put_int(out, u64::from(choice));
    }
}

fn put_rest(out: &mut Vec<u8>, kind: u8, choice: u32, text: &str) {
    put_tag(out, kind, choice);
    out.extend_from_slice(text.as_bytes());
}

fn put_text(out: &mut Vec<u8>, [one, many]: [u8; 2], choice: u32, tokens: u32, text: &str) {
    if tokens == 1 {
        return put_rest(out, one, choice, text);
    }
    put_tag(out, many, choice);
    put_int(out, u64::from(tokens));
    out.extend_from_slice(text.as_bytes());
}

/// Reads a kind beyond the tag's; none is assigned yet.
fn decode_long_kind(r: &mut FieldReader<'_>) -> Result<(), Error> {
    if r.int()? < kind::LEAST_LONG { Err(Error::Malformed) } else { Ok(()) }
}

fn decode_open(r: &mut FieldReader<'_>) -> Result<Delta, Error> {
    match r.byte()? {
        LOG_VERSION => Ok(Delta::Open { meta: r.rest_text()? }),
        _ => Err(Error::UnknownVersion),
    }
}

fn decode_tool_call(choice: u32, r: &mut FieldReader<'_>) -> Result<Delta, Error> {
    let (index, tokens) = (r.int32()?, r.int32()?);
    let (id, name, arguments) = (r.text()?, r.text()?, r.rest_text()?);
    Ok(Delta::ToolCall { choice, index, tokens, id, name, arguments })
}

fn decode_usage(r: &mut FieldReader<'_>) -> Result<Delta, Error> {
    let (prompt, completion) = (r.int()?, r.int()?);
    let (cached, reasoning) = (r.int()?, r.int()?);
    Ok(Delta::Usage { prompt, completion, cached, reasoning })
}
