//! One event of an upstream server's stream: what it adds to each completion.
//!
//! Members that are known become text, calls and counts; whatever else a server sends is
//! kept and passed on, in the place where it stood.

use serde_json::{Map, Value};

use crate::api::request::Endpoint;
use crate::flush::{CallPiece, Extra, Flush};
use crate::usage::{UpstreamUsage, Usage};

/// What an event says.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// `[DONE]`.
    Done,
    /// The stream has failed, with this error object.
    Error(Value),
    /// A chunk.
    Chunk(Box<Chunk>),
}

/// A chunk of an answer.
#[derive(Debug, Default, PartialEq)]
pub struct Chunk {
    /// What all chunks begin with.
    pub envelope: Envelope,
    /// What it adds, and why a completion ended with it.
    pub pieces: Vec<(Flush, Option<String>)>,
    /// Token counts so far.
    pub usage: Option<UpstreamUsage>,
    /// Further members.
    pub extra: Map<String, Value>,
}

/// What is equal in all chunks of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Envelope {
    /// The answer's id.
    pub id: Option<String>,
    /// The model that answers.
    pub model: Option<String>,
    /// Unix time in seconds.
    pub created_s: Option<u64>,
    /// OpenAI's name of the server's configuration.
    pub fingerprint: Option<String>,
}

/// An event is no chunk of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the upstream server sent what is no chunk of an answer: {0}")]
pub struct NoChunk(String);

/// Reads the data of one event.
///
/// # Errors
/// [`NoChunk`] where it is no JSON object, or of another shape than a chunk.
pub fn read(endpoint: Endpoint, data: &[u8]) -> Result<Event, NoChunk> {
    if data == b"[DONE]" {
        return Ok(Event::Done);
    }
    let value = serde_json::from_slice(data);
    let Value::Object(mut map) = value.map_err(|error| NoChunk(error.to_string()))? else {
        return Err(NoChunk("no object".into()));
    };
    if let Some(error) = take(&mut map, "error") {
        return Ok(Event::Error(error));
    }
    if map.get("object").is_some_and(|object| object == "error") {
        return Ok(Event::Error(map.into()));
    }
    let pieces = match take(&mut map, "choices") {
        None => Vec::new(),
        Some(Value::Array(choices)) => {
            choices.into_iter().map(|one| piece(endpoint, one)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(NoChunk("'choices' is no array".into())),
    };
    map.remove("object");
    let envelope = Envelope {
        id: text(&mut map, "id"),
        model: text(&mut map, "model"),
        created_s: take(&mut map, "created").and_then(|created| created.as_u64()),
        fingerprint: text(&mut map, "system_fingerprint"),
    };
    let usage = take(&mut map, "usage").map(counted);
    map.retain(|_, value| !value.is_null());
    Ok(Event::Chunk(Box::new(Chunk { envelope, pieces, usage, extra: map })))
}

fn take(map: &mut Map<String, Value>, name: &str) -> Option<Value> {
    map.remove(name).filter(|value| !value.is_null())
}

fn text(map: &mut Map<String, Value>, name: &str) -> Option<String> {
    match take(map, name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn counted(json: Value) -> UpstreamUsage {
    let count = |path: &str| json.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let usage = Usage {
        prompt_tokens: count("/prompt_tokens"),
        cached_tokens: count("/prompt_tokens_details/cached_tokens"),
        completion_tokens: count("/completion_tokens"),
        reasoning_tokens: count("/completion_tokens_details/reasoning_tokens"),
    };
    UpstreamUsage { usage, json, extra: Map::new() }
}

fn piece(endpoint: Endpoint, choice: Value) -> Result<(Flush, Option<String>), NoChunk> {
    let Value::Object(mut map) = choice else {
        return Err(NoChunk("a choice is no object".into()));
    };
    let index = map.remove("index").map_or(Some(0), |index| index.as_u64());
    let index = index.and_then(|index| u32::try_from(index).ok());
    let index = index.ok_or_else(|| NoChunk("a choice has no usable index".into()))?;
    let mut flush = Flush { choice: index, ..Flush::default() };
    let mut extra = Extra::default();
    match endpoint {
        Endpoint::Text => flush.text = text(&mut map, "text").unwrap_or_default(),
        Endpoint::Chat => {
            if let Some(Value::Object(delta)) = take(&mut map, "delta") {
                extra.delta = read_delta(delta, &mut flush)?;
            }
        }
    }
    flush.raw_logprobs = take(&mut map, "logprobs");
    let reason = text(&mut map, "finish_reason");
    map.retain(|_, value| !value.is_null());
    extra.choice = map;
    flush.extra = (!extra.is_empty()).then(|| Box::new(extra));
    flush.tokens = u32::from(flush.has_payload());
    Ok((flush, reason))
}

/// Takes what is known from `delta`; gives the rest.
fn read_delta(
    mut delta: Map<String, Value>,
    flush: &mut Flush,
) -> Result<Map<String, Value>, NoChunk> {
    delta.remove("role");
    flush.text = text(&mut delta, "content").unwrap_or_default();
    flush.reasoning = text(&mut delta, "reasoning_content").unwrap_or_default();
    if let Some(calls) = take(&mut delta, "tool_calls") {
        let Value::Array(calls) = calls else {
            return Err(NoChunk("'tool_calls' is no array".into()));
        };
        for (at, call) in calls.into_iter().enumerate() {
            flush.calls.push(read_call(at, call)?);
        }
    }
    delta.retain(|_, value| !value.is_null());
    Ok(delta)
}

/// Some servers send whole calls without an index: it is then their place.
fn read_call(place: usize, call: Value) -> Result<CallPiece, NoChunk> {
    let Value::Object(mut call) = call else {
        return Err(NoChunk("a tool call is no object".into()));
    };
    let index = take(&mut call, "index").and_then(|index| index.as_u64());
    let index = u32::try_from(index.unwrap_or(place as u64));
    let mut function = match take(&mut call, "function") {
        Some(Value::Object(function)) => function,
        _ => Map::new(),
    };
    let arguments = match take(&mut function, "arguments") {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    Ok(CallPiece {
        index: index.map_err(|_| NoChunk("a tool call has no usable index".into()))?,
        id: text(&mut call, "id").unwrap_or_default(),
        name: text(&mut function, "name").unwrap_or_default(),
        arguments,
    })
}

#[cfg(test)]
mod tests {
    //! What is known is understood, what is not is kept, and nonsense is refused.
    use serde_json::json;

    use super::*;

    fn chunk(value: Value) -> Chunk {
        match read(Endpoint::Chat, value.to_string().as_bytes()).unwrap() {
            Event::Chunk(chunk) => *chunk,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn known_members_are_understood_and_others_kept() {
        let chunk = chunk(json!({
            "id": "a", "object": "chat.completion.chunk", "created": 5, "model": "m",
            "system_fingerprint": "f", "timings": {"x": 1}, "service_tier": null,
            "choices": [{
                "index": 1, "finish_reason": "tool_calls", "stop_reason": 7,
                "logprobs": {"content": [1]},
                "delta": {
                    "role": "assistant", "content": "c", "reasoning_content": "r", "reasoning": "s",
                    "tool_calls": [{"index": 2, "id": "i", "type": "function",
                                    "function": {"name": "n", "arguments": "{"}}],
                },
            }],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.1},
        }));
        assert_eq!(chunk.envelope.id.as_deref(), Some("a"));
        assert_eq!(chunk.envelope.fingerprint.as_deref(), Some("f"));
        assert_eq!(Value::from(chunk.extra), json!({"timings": {"x": 1}}));
        let (flush, reason) = &chunk.pieces[0];
        assert_eq!((flush.choice, flush.text.as_str(), flush.reasoning.as_str()), (1, "c", "r"));
        assert_eq!(reason.as_deref(), Some("tool_calls"));
        let call = CallPiece { index: 2, id: "i".into(), name: "n".into(), arguments: "{".into() };
        assert_eq!(flush.calls, [call]);
        assert_eq!(flush.raw_logprobs, Some(json!({"content": [1]})));
        let extra = flush.extra.as_ref().unwrap();
        assert_eq!(Value::from(extra.delta.clone()), json!({"reasoning": "s"}));
        assert_eq!(Value::from(extra.choice.clone()), json!({"stop_reason": 7}));
        let usage = chunk.usage.unwrap();
        assert_eq!((usage.usage.completion_tokens, &usage.json["cost"]), (4, &json!(0.1)));
    }

    #[test]
    fn a_call_may_come_whole_and_without_index() {
        let calls = json!([{"id": "i", "function": {"name": "n", "arguments": {"a": 1}}}]);
        let chunk = chunk(json!({"choices": [{"delta": {"tool_calls": calls}}]}));
        assert_eq!(chunk.pieces[0].0.calls[0].arguments, r#"{"a":1}"#);
    }

    #[test]
    fn errors_come_in_two_shapes_and_nonsense_is_refused() {
        for data in [r#"{"error": {"message": "m"}}"#, r#"{"object": "error", "message": "m"}"#] {
            let Event::Error(error) = read(Endpoint::Chat, data.as_bytes()).unwrap() else {
                panic!("{data}")
            };
            assert_eq!(error["message"], "m");
        }
        assert_eq!(read(Endpoint::Text, b"[DONE]"), Ok(Event::Done));
        for data in [
            "",
            "[]",
            "{",
            "null",
            r#"{"choices": 1}"#,
            r#"{"choices": [1]}"#,
            r#"{"choices": [{"index": -1}]}"#,
            r#"{"choices": [{"delta": {"tool_calls": {}}}]}"#,
        ] {
            assert!(read(Endpoint::Chat, data.as_bytes()).is_err(), "{data}");
        }
    }
}
