//! Deserializes the objects of a chunk in one pass: known members into fields, the others into
//! a map.
//!
//! `#[serde(flatten)]` would buffer the whole object, and parsing into [`Value`] would build a map
//! of everything. A chunk is read for every token, so neither is used.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Members that every chunk of an answer repeats. A member of an unexpected type counts as missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChunkEnvelope {
    /// The answer's id.
    pub id: Option<String>,
    /// The model that answers.
    pub model: Option<String>,
    /// Unix time in seconds.
    pub created_s: Option<u64>,
    /// `system_fingerprint`: OpenAI's name for the server's configuration.
    pub fingerprint: Option<String>,
}

/// A chunk as written in the JSON.
#[derive(Debug, Default)]
pub(super) struct RawChunk {
    pub(super) envelope: ChunkEnvelope,
    pub(super) object: Option<String>,
    pub(super) choices: Vec<RawChoice>,
    pub(super) usage: Option<Value>,
    pub(super) error: Option<Value>,
    pub(super) others: Map<String, Value>,
}

/// A choice as written in the JSON.
#[derive(Debug, Default)]
pub(super) struct RawChoice {
    /// Kept unparsed, so that an error can show it.
    pub(super) index: Option<Value>,
    pub(super) delta: Option<RawDelta>,
    pub(super) text: Option<String>,
    /// Reasoning of a text completion, which has no delta.
    pub(super) reasoning: RawReasoning,
    pub(super) logprobs: Option<Value>,
    pub(super) finish_reason: Option<String>,
    pub(super) others: Map<String, Value>,
}

/// A choice's `delta` as written in the JSON.
#[derive(Debug, Default)]
pub(super) struct RawDelta {
    pub(super) content: Option<String>,
    pub(super) reasoning: RawReasoning,
    pub(super) tool_calls: Vec<RawToolCall>,
    pub(super) others: Map<String, Value>,
}

/// Reasoning as written in the JSON.
#[derive(Debug, Default)]
pub(super) struct RawReasoning {
    /// `reasoning_content`, the name that DeepSeek introduced.
    pub(super) content: Option<String>,
    /// `reasoning`, the name that vLLM and OpenRouter use, some of them beside the other.
    pub(super) bare: Option<String>,
}

/// A tool call as written in the JSON.
#[derive(Debug, Default)]
pub(super) struct RawToolCall {
    pub(super) index: Option<Value>,
    pub(super) id: Option<String>,
    pub(super) function: RawFunction,
    pub(super) others: Map<String, Value>,
}

/// A tool call's `function` as written in the JSON.
#[derive(Debug, Default)]
pub(super) struct RawFunction {
    pub(super) name: Option<String>,
    /// A string according to the standard; some servers send the object itself.
    pub(super) arguments: Option<Value>,
    pub(super) others: Map<String, Value>,
}

/// Object that is filled member by member.
trait Members: Default {
    /// Name of the object in error messages.
    const WHAT: &'static str;

    fn set<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error>;
}

/// A member's name, borrowed from the input unless it has escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct MembersVisitor<T>(PhantomData<T>);

impl<'de, T: Members> Visitor<'de> for MembersVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} object", T::WHAT)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<T, M::Error> {
        let mut object = T::default();
        while let Some(Name(name)) = map.next_key()? {
            object.set(&name, &mut map)?;
        }
        Ok(object)
    }
}

macro_rules! deserialize_members {
    ($($kind:ty),*) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(MembersVisitor(PhantomData))
            }
        }
    )*};
}

deserialize_members!(RawChunk, RawChoice, RawDelta, RawToolCall, RawFunction);

impl RawReasoning {
    /// Returns the text. Another text under the second name goes to `others`; a repetition is
    /// dropped.
    pub(super) fn take(self, others: &mut Map<String, Value>) -> Option<String> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        match (given(self.content), given(self.bare)) {
            (Some(content), Some(bare)) => {
                if bare != content {
                    keep(others, "reasoning", bare.into());
                }
                Some(content)
            }
            (content, bare) => content.or(bare),
        }
    }
}

impl Members for RawChunk {
    const WHAT: &'static str = "a chunk";

    fn set<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        match name {
            "id" => self.envelope.id = text(map)?,
            "model" => self.envelope.model = text(map)?,
            "created" => self.envelope.created_s = map.next_value::<Value>()?.as_u64(),
            "system_fingerprint" => self.envelope.fingerprint = text(map)?,
            "object" => self.object = text(map)?,
            "choices" => self.choices = map.next_value::<Option<_>>()?.unwrap_or_default(),
            "usage" => self.usage = map.next_value()?,
            "error" => self.error = map.next_value()?,
            // Padding of this connection; a relay's own connection needs its own.
            "obfuscation" => drop(map.next_value::<serde::de::IgnoredAny>()?),
            _ => keep(&mut self.others, name, map.next_value()?),
        }
        Ok(())
    }
}

impl Members for RawChoice {
    const WHAT: &'static str = "a choice";

    fn set<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        match name {
            // `null` is an unusable index, not a missing one.
            "index" => self.index = Some(map.next_value()?),
            "delta" => self.delta = map.next_value()?,
            "text" => self.text = text_or_keep(map, name, &mut self.others)?,
            "reasoning_content" => {
                self.reasoning.content = text_or_keep(map, name, &mut self.others)?;
            }
            "reasoning" => self.reasoning.bare = text_or_keep(map, name, &mut self.others)?,
            "logprobs" => self.logprobs = map.next_value()?,
            "finish_reason" => self.finish_reason = text_or_keep(map, name, &mut self.others)?,
            _ => keep(&mut self.others, name, map.next_value()?),
        }
        Ok(())
    }
}

impl Members for RawDelta {
    const WHAT: &'static str = "a delta";

    fn set<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        match name {
            "role" => drop(map.next_value::<Value>()?),
            "content" => self.content = text_or_keep(map, name, &mut self.others)?,
            "reasoning_content" => {
                self.reasoning.content = text_or_keep(map, name, &mut self.others)?;
            }
            "reasoning" => self.reasoning.bare = text_or_keep(map, name, &mut self.others)?,
            "tool_calls" => self.tool_calls = map.next_value::<Option<_>>()?.unwrap_or_default(),
            _ => keep(&mut self.others, name, map.next_value()?),
        }
        Ok(())
    }
}

impl Members for RawToolCall {
    const WHAT: &'static str = "a tool call";

    fn set<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        match name {
            "index" => self.index = map.next_value()?,
            "id" => self.id = text(map)?,
            "type" => drop(map.next_value::<serde::de::IgnoredAny>()?),
            "function" => self.function = map.next_value::<Option<_>>()?.unwrap_or_default(),
            _ => keep(&mut self.others, name, map.next_value()?),
        }
        Ok(())
    }
}

impl Members for RawFunction {
    const WHAT: &'static str = "a tool call's function";

    fn set<'de, M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        match name {
            "name" => self.name = text(map)?,
            "arguments" => self.arguments = map.next_value()?,
            _ => keep(&mut self.others, name, map.next_value()?),
        }
        Ok(())
    }
}

/// Reads a string; a value of another type counts as missing.
fn text<'de, M: MapAccess<'de>>(map: &mut M) -> Result<Option<String>, M::Error> {
    Ok(match map.next_value()? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

/// Reads a string; a value of another type (Mistral sends lists of parts as content) is kept in
/// `others`.
fn text_or_keep<'de, M: MapAccess<'de>>(
    map: &mut M,
    name: &str,
    others: &mut Map<String, Value>,
) -> Result<Option<String>, M::Error> {
    match map.next_value()? {
        Value::String(text) => return Ok(Some(text)),
        other => keep(others, name, other),
    }
    Ok(None)
}

/// Keeps a member unless it is `null`, which servers write for "nothing".
fn keep(others: &mut Map<String, Value>, name: &str, value: Value) {
    if !value.is_null() {
        others.insert(name.to_owned(), value);
    }
}
