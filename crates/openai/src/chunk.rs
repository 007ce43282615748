//! Reads one event of a streamed chat or text completion.
//!
//! [`ChunkEvent::parse`] turns the event's data into records of the delivery log. Known members
//! become text, reasoning, tool calls and token counts. Every other member is kept in a
//! [`Delta::Other`] at its position, so that a relay can pass it on (S-6.4).

mod members;

use loquent_proto::{Delta, Progress};
use serde_json::{Map, Value, json};

pub use members::ChunkEnvelope;
use members::{RawChoice, RawChunk, RawToolCall};

/// Content of one event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum ChunkEvent {
    /// `[DONE]`: no more chunks follow. Only a finish reason proves that the answer is complete.
    Done,
    /// Error object with which the server reports that the stream has failed.
    Failed(Value),
    /// A piece of the answer.
    Chunk(Box<Chunk>),
}

/// One piece of an answer, possibly with content for several choices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chunk {
    /// Members that every chunk of an answer repeats.
    pub envelope: ChunkEnvelope,
    /// Records of the chunk, in log order: for each choice its log-probabilities, reasoning, text,
    /// tool calls with their other members, other members and finish.
    ///
    /// A chunk does not give its number of tokens. One token is assumed for each choice: the first
    /// record with content has `tokens: 1`, the others 0.
    pub deltas: Vec<Delta>,
    /// Token counts up to this chunk. Not among the deltas, because some servers repeat them in
    /// every chunk.
    pub usage: Option<ReportedUsage>,
}

/// Largest token count that is believed: sums of a few stay below the 2^53 of JSON and of the wire.
pub const MAX_REPORTED_TOKENS: u64 = 1 << 50;

/// Token counts reported by a server, none above [`MAX_REPORTED_TOKENS`].
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that came from the server's cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Tokens of `completion_tokens` that were reasoning.
    pub reasoning_tokens: u64,
    /// The whole `usage` member as received, including counts that are unknown here.
    pub json: Value,
}

/// Reason why an event is not a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The data is not JSON, or a member has a type that a chunk does not allow.
    #[error("the server sent an event that is not a completion chunk: {0}")]
    Shape(String),
    /// A choice's `index` is not a 32-bit number.
    #[error("the server sent a choice with an unusable index: {0}")]
    ChoiceIndex(Value),
    /// A tool call's `index` is not a 32-bit number.
    #[error("the server sent a tool call with an unusable index: {0}")]
    ToolCallIndex(Value),
}

impl ChunkEvent {
    /// Parses the data of one event.
    ///
    /// # Errors
    /// [`ChunkError`] if the data is neither `[DONE]`, an error object nor a chunk.
    pub fn parse(data: &[u8]) -> Result<Self, ChunkError> {
        if data == b"[DONE]" {
            return Ok(Self::Done);
        }
        let raw: RawChunk =
            serde_json::from_slice(data).map_err(|error| ChunkError::Shape(error.to_string()))?;
        if let Some(error) = raw.error {
            return Ok(Self::Failed(error));
        }
        // vLLM's shape: the error's members stand at the top, without `error` around them.
        if raw.object.as_deref() == Some("error") {
            return Ok(Self::Failed(raw.others.into()));
        }
        Chunk::from_raw(raw).map(|chunk| Self::Chunk(Box::new(chunk)))
    }
}

impl Chunk {
    fn from_raw(raw: RawChunk) -> Result<Self, ChunkError> {
        let RawChunk { envelope, object, choices, usage, others, .. } = raw;
        let is_text = object.as_deref() == Some("text_completion");
        let mut deltas = Vec::with_capacity(choices.len() + 1);
        // Members of the chunk itself go with its first choice, so that they stay one event.
        let mut of_chunk = others;
        deltas.extend(of_chunk.get("prompt_progress").and_then(progress).map(Delta::Progress));
        if let Some(Delta::Progress(_)) = deltas.last() {
            of_chunk.remove("prompt_progress");
        }
        if choices.is_empty() && !of_chunk.is_empty() {
            deltas.push(Delta::Other { choice: 0, json: Value::from(of_chunk).to_string() });
            of_chunk = Map::new();
        }
        for choice in choices {
            put_choice(choice, is_text, std::mem::take(&mut of_chunk), &mut deltas)?;
        }
        Ok(Self { envelope, deltas, usage: usage.map(ReportedUsage::from_json) })
    }
}

impl ReportedUsage {
    /// Reads a `usage` member; a count that is missing or not a number is 0.
    pub fn from_json(json: Value) -> Self {
        let count = |path: &str| {
            let count = json.pointer(path).and_then(Value::as_u64).unwrap_or(0);
            count.min(MAX_REPORTED_TOKENS)
        };
        Self {
            prompt_tokens: count("/prompt_tokens"),
            cached_tokens: count("/prompt_tokens_details/cached_tokens"),
            completion_tokens: count("/completion_tokens"),
            reasoning_tokens: count("/completion_tokens_details/reasoning_tokens"),
            json,
        }
    }

    /// Converts the counts to a record of the log.
    pub const fn to_delta(&self) -> Delta {
        Delta::Usage {
            prompt: self.prompt_tokens,
            completion: self.completion_tokens,
            cached: self.cached_tokens,
            reasoning: self.reasoning_tokens,
        }
    }
}

/// Returns the text of an error object for people: its `message`, or the whole object if it has
/// none. At most 300 characters.
pub fn error_message(error: &Value) -> String {
    let text = match (error["message"].as_str(), error.as_str()) {
        (Some(message), _) => message.to_owned(),
        (None, Some(text)) => text.to_owned(),
        (None, None) => error.to_string(),
    };
    text.chars().take(300).collect()
}

/// Appends the records of one choice.
fn put_choice(
    mut raw: RawChoice,
    is_text: bool,
    mut of_chunk: Map<String, Value>,
    deltas: &mut Vec<Delta>,
) -> Result<(), ChunkError> {
    let choice = index(raw.index, 0).map_err(ChunkError::ChoiceIndex)?;
    let is_text = is_text || (raw.text.is_some() && raw.delta.is_none());
    let mut delta = raw.delta.unwrap_or_default();
    let mut tokens = 1;
    if let Some(logprobs) = &raw.logprobs {
        deltas.push(Delta::Logprobs { choice, json: logprobs.to_string() });
    }
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let thoughts = [delta.reasoning.take(&mut delta.others), raw.reasoning.take(&mut raw.others)];
    for text in thoughts.into_iter().flatten() {
        deltas.push(Delta::Reasoning { choice, tokens: std::mem::take(&mut tokens), text });
    }
    // Log-probabilities belong to the text that follows them, which may be empty (S-6.2).
    let needs_text = matches!(deltas.last(), Some(Delta::Logprobs { .. }));
    let carrier = Some(String::new()).filter(|_| needs_text);
    let texts = [given(delta.content), given(raw.text)];
    let texts = if texts == [None, None] { [carrier, None] } else { texts };
    for text in texts.into_iter().flatten() {
        deltas.push(Delta::Text { choice, tokens: std::mem::take(&mut tokens), text });
    }
    for (place, call) in delta.tool_calls.into_iter().enumerate() {
        put_tool_call(choice, place, std::mem::take(&mut tokens), call, deltas)?;
    }
    if !(raw.others.is_empty() && delta.others.is_empty()) {
        let one = other_choice(choice, is_text, raw.others, delta.others);
        of_chunk.insert("choices".into(), json!([one]));
    }
    if !of_chunk.is_empty() {
        deltas.push(Delta::Other { choice, json: Value::from(of_chunk).to_string() });
    }
    if let Some(reason) = raw.finish_reason {
        deltas.push(Delta::Finish { choice, reason });
    }
    Ok(())
}

/// Returns a choice that has only members unknown here, in a form that SDKs can read.
fn other_choice(
    choice: u32,
    is_text: bool,
    mut of_choice: Map<String, Value>,
    of_delta: Map<String, Value>,
) -> Value {
    of_choice.insert("index".into(), choice.into());
    // openai-python reads `choice.delta.content` or `choice.text` without looking first.
    match is_text {
        true => of_choice.insert("text".into(), "".into()),
        false => of_choice.insert("delta".into(), of_delta.into()),
    };
    of_choice.into()
}

/// Appends the records of one tool call: the call, and its members that are unknown here, such as
/// the `extra_content` that Gemini wants back.
fn put_tool_call(
    choice: u32,
    place: usize,
    tokens: u32,
    raw: RawToolCall,
    deltas: &mut Vec<Delta>,
) -> Result<(), ChunkError> {
    // Some servers send whole calls without an index: their place in the list is it.
    let index = index(raw.index, place as u64).map_err(ChunkError::ToolCallIndex)?;
    let arguments = match raw.function.arguments {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let (id, name) = (raw.id.unwrap_or_default(), raw.function.name.unwrap_or_default());
    let (mut of_call, mut of_function) = (raw.others, raw.function.others);
    let has_others = !(of_call.is_empty() && of_function.is_empty());
    // Another server has split them off the call.
    let is_rest = has_others && [&id, &name, &arguments].iter().all(|text| text.is_empty());
    if !is_rest {
        deltas.push(Delta::ToolCall { choice, index, tokens, id, name, arguments });
    }
    if has_others {
        // Some SDKs append a call's arguments without looking whether there are any.
        of_function.insert("arguments".into(), "".into());
        of_call.insert("index".into(), index.into());
        of_call.insert("function".into(), of_function.into());
        let of_delta = Map::from_iter([("tool_calls".to_owned(), json!([of_call]))]);
        let one = other_choice(choice, false, Map::new(), of_delta);
        deltas.push(Delta::Other { choice, json: json!({"choices": [one]}).to_string() });
    }
    Ok(())
}

/// Parses progress as llama-server reports it, with Loquent's additions (S-6.7). `None` if the
/// value is not such an object.
fn progress(value: &Value) -> Option<Progress> {
    let count = |name: &str| value.get(name)?.as_u64()?.try_into().ok();
    Some(Progress {
        queued: count("queued").unwrap_or(0),
        eta_ms: count("eta_ms"),
        total: count("total")?,
        cached: count("cache")?,
        processed: count("processed")?,
        elapsed_ms: value.get("time_ms")?.as_f64()? as u32,
    })
}

fn index(raw: Option<Value>, default: u64) -> Result<u32, Value> {
    let Some(raw) = raw else {
        return u32::try_from(default).map_err(|_| default.into());
    };
    raw.as_u64().and_then(|index| u32::try_from(index).ok()).ok_or(raw)
}

#[cfg(test)]
mod tests {
    //! Known members become records, unknown ones are kept, and invalid events are refused.
    use proptest::prelude::*;

    use super::*;

    fn chunk(value: Value) -> Chunk {
        match ChunkEvent::parse(value.to_string().as_bytes()).unwrap() {
            ChunkEvent::Chunk(chunk) => *chunk,
            other => panic!("{other:?}"),
        }
    }

    fn other(choice: u32, json: Value) -> Delta {
        Delta::Other { choice, json: json.to_string() }
    }

    #[test]
    fn known_members_become_records_and_others_are_kept() {
        let chunk = chunk(json!({
            "id": "a", "object": "chat.completion.chunk", "created": 5, "model": "m",
            "system_fingerprint": "f", "timings": {"x": 1}, "service_tier": null,
            "choices": [{
                "index": 1, "finish_reason": "tool_calls", "stop_reason": 7,
                "logprobs": {"content": [1]},
                "delta": {
                    "role": "assistant", "content": "c", "reasoning_content": "r", "reasoning": "s",
                    "tool_calls": [{"index": 2, "id": "i", "type": "function",
                                    "function": {"name": "n", "arguments": "{", "y": 2},
                                    "extra_content": {"google": {"thought_signature": "z"}}}],
                },
            }],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.1},
        }));
        let envelope = ChunkEnvelope {
            id: Some("a".into()),
            model: Some("m".into()),
            created_s: Some(5),
            fingerprint: Some("f".into()),
        };
        assert_eq!(chunk.envelope, envelope);
        let call = json!({
            "extra_content": {"google": {"thought_signature": "z"}},
            "index": 2, "function": {"y": 2, "arguments": ""},
        });
        let call = json!([{"index": 1, "delta": {"tool_calls": [call]}}]);
        let choices = json!([{"stop_reason": 7, "index": 1, "delta": {"reasoning": "s"}}]);
        let expected = [
            Delta::Logprobs { choice: 1, json: r#"{"content":[1]}"#.into() },
            Delta::Reasoning { choice: 1, tokens: 1, text: "r".into() },
            Delta::Text { choice: 1, tokens: 0, text: "c".into() },
            Delta::ToolCall {
                choice: 1,
                index: 2,
                tokens: 0,
                id: "i".into(),
                name: "n".into(),
                arguments: "{".into(),
            },
            other(1, json!({"choices": call})),
            other(1, json!({"timings": {"x": 1}, "choices": choices})),
            Delta::Finish { choice: 1, reason: "tool_calls".into() },
        ];
        assert_eq!(chunk.deltas, expected);
        let again = ChunkEvent::parse(json!({"choices": call}).to_string().as_bytes()).unwrap();
        let ChunkEvent::Chunk(again) = again else { panic!("{again:?}") };
        assert_eq!(again.deltas, [other(1, json!({"choices": call}))], "as it was passed on");
        let usage = chunk.usage.unwrap();
        assert_eq!((usage.completion_tokens, &usage.json["cost"]), (4, &json!(0.1)));
        let counts = Delta::Usage { prompt: 3, completion: 4, cached: 0, reasoning: 0 };
        assert_eq!(usage.to_delta(), counts);
    }

    #[test]
    fn members_of_the_chunk_go_with_its_first_choice_or_stand_alone() {
        let two = chunk(json!({"a": 1, "choices": [
            {"index": 0, "delta": {"content": "x"}}, {"index": 1, "delta": {"content": "y"}},
        ]}));
        let y = Delta::Text { choice: 1, tokens: 1, text: "y".into() };
        assert_eq!(two.deltas, [Delta::text("x"), other(0, json!({"a": 1})), y]);
        let none = chunk(json!({"a": 1, "choices": [], "usage": {"prompt_tokens": 1}}));
        assert_eq!(none.deltas, [other(0, json!({"a": 1}))]);
    }

    #[test]
    fn huge_counts_are_cut() {
        for count in [u64::MAX, 1 << 60, 1 << 53] {
            let usage = ReportedUsage::from_json(json!({
                "prompt_tokens": count, "completion_tokens": count,
                "prompt_tokens_details": {"cached_tokens": count},
                "completion_tokens_details": {"reasoning_tokens": count},
            }));
            assert!(usage.prompt_tokens + usage.completion_tokens < 1 << 53);
            assert!(usage.cached_tokens.max(usage.reasoning_tokens) < 1 << 53);
        }
    }

    #[test]
    fn a_chunk_without_content_has_no_records() {
        for (object, member, nothing) in
            [("chat.completion.chunk", "delta", json!({})), ("text_completion", "text", json!(""))]
        {
            let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": null});
            choice[member] = nothing;
            let beat = chunk(json!({
                "id": "a", "object": object, "created": 5, "model": "m",
                "system_fingerprint": "f", "choices": [choice], "usage": null,
            }));
            assert!(beat.deltas.is_empty(), "{object}: {:?}", beat.deltas);
        }
    }

    #[test]
    fn padding_is_no_content() {
        let padded = json!({"choices": [{"index": 0, "delta": {"content": "x"}}],
                            "obfuscation": "aZ-_9"});
        assert_eq!(chunk(padded).deltas, [Delta::text("x")]);
    }

    #[test]
    fn logprobs_without_text_get_an_empty_one() {
        let logprobs = Delta::Logprobs { choice: 0, json: "[1]".into() };
        let alone = chunk(json!({"choices": [{"delta": {}, "logprobs": [1]}]}));
        assert_eq!(alone.deltas, [logprobs.clone(), Delta::text("")]);
        let thought =
            chunk(json!({"choices": [{"delta": {"reasoning_content": "r"}, "logprobs": [1]}]}));
        let reasoning = Delta::Reasoning { choice: 0, tokens: 1, text: "r".into() };
        assert_eq!(thought.deltas, [logprobs, reasoning]);
    }

    #[test]
    fn reasoning_under_its_other_name_is_reasoning_and_its_repetition_is_dropped() {
        let reasoning = Delta::Reasoning { choice: 0, tokens: 1, text: "r".into() };
        for delta in [
            json!({"reasoning": "r"}),
            json!({"reasoning": "r", "reasoning_content": null}),
            json!({"reasoning": "r", "reasoning_content": "r"}),
            json!({"reasoning_content": "r", "reasoning": ""}),
        ] {
            let of_chat = chunk(json!({"choices": [{"index": 0, "delta": delta}]}));
            assert_eq!(of_chat.deltas, std::slice::from_ref(&reasoning), "{delta}");
        }
        let of_text = json!({"object": "text_completion", "choices": [{"reasoning": "r"}]});
        assert_eq!(chunk(of_text).deltas, [reasoning]);
        let parts = json!({"index": 0, "delta": {"reasoning": ["r"]}});
        let kept = other(0, json!({"choices": [parts]}));
        assert_eq!(chunk(json!({"choices": [parts]})).deltas, [kept]);
    }

    #[test]
    fn text_completions_have_text_and_reasoning_beside_the_index() {
        let chunk = chunk(json!({"object": "text_completion", "choices": [
            {"index": 0, "text": "t", "reasoning_content": "r", "extra": true},
        ]}));
        let expected = [
            Delta::Reasoning { choice: 0, tokens: 1, text: "r".into() },
            Delta::Text { choice: 0, tokens: 0, text: "t".into() },
            other(0, json!({"choices": [{"extra": true, "index": 0, "text": ""}]})),
        ];
        assert_eq!(chunk.deltas, expected);
    }

    #[test]
    fn content_that_is_not_a_string_is_kept_as_it_came() {
        let parts = json!([{"type": "text", "text": "t"}]);
        let chunk = chunk(json!({"choices": [{"delta": {"content": parts}}]}));
        let one = json!({"index": 0, "delta": {"content": parts}});
        assert_eq!(chunk.deltas, [other(0, json!({"choices": [one]}))]);
    }

    #[test]
    fn a_call_may_come_whole_and_without_index() {
        let calls = json!([
            {"id": "i", "function": {"name": "n", "arguments": {"a": 1}}}, {"function": null},
        ]);
        let chunk = chunk(json!({"choices": [{"delta": {"tool_calls": calls}}]}));
        let Delta::ToolCall { index: 0, arguments, .. } = &chunk.deltas[0] else {
            panic!("{chunk:?}")
        };
        assert_eq!(arguments, r#"{"a":1}"#);
        assert!(matches!(&chunk.deltas[1], Delta::ToolCall { index: 1, .. }));
    }

    #[test]
    fn names_may_be_escaped() {
        let data = br#"{"choices":[{"delta":{"c\u006fntent":"x","\u00e9":1}}]}"#;
        let ChunkEvent::Chunk(chunk) = ChunkEvent::parse(data).unwrap() else { panic!() };
        assert_eq!(chunk.deltas[0], Delta::text("x"));
        assert!(matches!(&chunk.deltas[1], Delta::Other { json, .. } if json.contains("é")));
    }

    #[test]
    fn errors_come_in_two_shapes_and_invalid_events_are_refused() {
        for data in [r#"{"error": {"message": "m"}}"#, r#"{"object": "error", "message": "m"}"#] {
            let ChunkEvent::Failed(error) = ChunkEvent::parse(data.as_bytes()).unwrap() else {
                panic!("{data}")
            };
            assert_eq!(error_message(&error), "m");
        }
        assert_eq!(ChunkEvent::parse(b"[DONE]"), Ok(ChunkEvent::Done));
        for data in [
            "",
            "[]",
            "{",
            "null",
            "[DONE] ",
            r#"{"choices": 1}"#,
            r#"{"choices": [1]}"#,
            r#"{"choices": [{"delta": {"tool_calls": {}}}]}"#,
        ] {
            assert!(
                matches!(ChunkEvent::parse(data.as_bytes()), Err(ChunkError::Shape(_))),
                "{data}"
            );
        }
        let index = ChunkEvent::parse(br#"{"choices": [{"index": -1}]}"#);
        assert_eq!(index, Err(ChunkError::ChoiceIndex(json!(-1))));
        let index = br#"{"choices": [{"delta": {"tool_calls": [{"index": 4294967296}]}}]}"#;
        assert!(matches!(ChunkEvent::parse(index), Err(ChunkError::ToolCallIndex(_))));
        let deep = "[".repeat(100_000);
        assert!(ChunkEvent::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn error_messages_are_found_and_bounded() {
        for (error, expected) in [
            (json!({"message": "m", "code": 1}), "m"),
            (json!("text"), "text"),
            (json!({"code": 1}), r#"{"code":1}"#),
        ] {
            assert_eq!(error_message(&error), expected);
        }
        assert_eq!(error_message(&json!("é".repeat(1000))).chars().count(), 300);
    }

    /// JSON with the member names that the reader knows and values of every type.
    fn some_json() -> impl Strategy<Value = Value> {
        let name = "choices|delta|index|text|content|reasoning_content|reasoning|tool_calls|\
                    function|arguments|id|usage|error|object|logprobs|finish_reason|x";
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 40, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::vec((name, inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in "[{}\\[\\]\":,a-z0-9]{0,100}",
        ) {
            let _ = (ChunkEvent::parse(&bytes), ChunkEvent::parse(text.as_bytes()));
        }

        /// Every chunk that parses can be written to a log: each Other is an object.
        #[test]
        fn arbitrary_members_do_not_panic_and_others_are_objects(json in some_json()) {
            if let Ok(ChunkEvent::Chunk(chunk)) = ChunkEvent::parse(json.to_string().as_bytes()) {
                for delta in chunk.deltas {
                    if let Delta::Other { json, .. } = delta {
                        prop_assert!(serde_json::from_str::<Map<String, Value>>(&json).is_ok());
                    }
                }
            }
        }
    }
}
