//! What an answer says, step by step, whichever way it came.

use bytes::Bytes;
use loquent_proto::Delta;
use serde::Deserialize;
use serde_json::Value;

use crate::ClientError;

/// One step of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Log offset after it: the cursor of a resume.
    pub offset: u64,
    /// It was handed out before, over another transport, and comes again only for whoever
    /// needs the records from the first on (to write chunks); nobody shows it twice.
    pub seen: bool,
    /// What it says.
    pub content: Content,
}

/// A record of the log, or the chunk that a server made of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// By QUIC: the record itself.
    Record(Delta),
    /// By HTTP: the data of one server-sent event, `[DONE]` included.
    Chunk(Bytes),
}

impl Step {
    /// The step as records; none if it was seen before.
    ///
    /// # Errors
    /// [`ClientError::Malformed`] for a chunk that is none.
    pub fn into_deltas(self) -> Result<Vec<Delta>, ClientError> {
        match self.content {
            _ if self.seen => Ok(Vec::new()),
            Content::Record(delta) => Ok(vec![delta]),
            Content::Chunk(data) => chunk_deltas(&data),
        }
    }
}

/// The message of an error event, `data: {"error": …}`.
pub(crate) fn chunk_error(data: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Failed {
        error: Option<Value>,
    }
    memchr::memmem::find(data, b"\"error\"")?;
    let failed: Failed = serde_json::from_slice(data).ok()?;
    let error = failed.error.filter(|error| !error.is_null())?;
    let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
    Some(message.chars().take(300).collect())
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    delta: Option<ChatDelta>,
    text: Option<String>,
    finish_reason: Option<String>,
    logprobs: Option<Value>,
}

#[derive(Default, Deserialize)]
struct ChatDelta {
    content: Option<String>,
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<ToolCall>,
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default)]
    index: u32,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Value>,
    completion_tokens_details: Option<Value>,
}

/// The records that a chunk stands for (S-6.2, read backwards). A chunk does not say how
/// many tokens it stands for: one is assumed.
///
/// # Errors
/// [`ClientError::Malformed`].
pub fn chunk_deltas(data: &[u8]) -> Result<Vec<Delta>, ClientError> {
    if data == b"[DONE]" {
        return Ok(vec![Delta::Done]);
    }
    let chunk: Chunk = serde_json::from_slice(data)
        .map_err(|error| ClientError::Malformed(format!("a chunk is not valid: {error}")))?;
    let mut deltas = Vec::new();
    if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        deltas.push(Delta::Error { code: text("code"), message: text("message") });
    }
    for choice in chunk.choices {
        choice_deltas(choice, &mut deltas);
    }
    if let Some(usage) = chunk.usage {
        let detail = |details: &Option<Value>, name: &str| {
            details.as_ref().and_then(|details| details[name].as_u64()).unwrap_or(0)
        };
        deltas.push(Delta::Usage {
            prompt: usage.prompt_tokens,
            completion: usage.completion_tokens,
            cached: detail(&usage.prompt_tokens_details, "cached_tokens"),
            reasoning: detail(&usage.completion_tokens_details, "reasoning_tokens"),
        });
    }
    Ok(deltas)
}

fn choice_deltas(one: Choice, deltas: &mut Vec<Delta>) {
    let choice = one.index;
    if let Some(logprobs) = one.logprobs.filter(|value| !value.is_null()) {
        deltas.push(Delta::Logprobs { choice, json: logprobs.to_string() });
    }
    let delta = one.delta.unwrap_or_default();
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    if let Some(text) = given(delta.reasoning_content) {
        deltas.push(Delta::Reasoning { choice, tokens: 1, text });
    }
    for text in [given(delta.content), given(one.text)].into_iter().flatten() {
        deltas.push(Delta::Text { choice, tokens: 1, text });
    }
    for call in delta.tool_calls {
        let function = call.function.unwrap_or_default();
        deltas.push(Delta::ToolCall {
            choice,
            index: call.index,
            tokens: 1,
            id: call.id.unwrap_or_default(),
            name: function.name.unwrap_or_default(),
            arguments: function.arguments.unwrap_or_default(),
        });
    }
    if let Some(reason) = one.finish_reason {
        deltas.push(Delta::Finish { choice, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_become_the_records_they_were() {
        let chunk = r#"{"id":"x","choices":[
            {"index":1,"delta":{"role":"assistant","content":"","reasoning_content":"r"},"logprobs":{"content":[]}},
            {"index":0,"delta":{"content":"t","tool_calls":[{"index":2,"id":"c","function":{"name":"f","arguments":"{"}}]}},
            {"index":0,"text":"u","finish_reason":"stop"}],
            "usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}"#;
        let expected = vec![
            Delta::Logprobs { choice: 1, json: r#"{"content":[]}"#.into() },
            Delta::Reasoning { choice: 1, tokens: 1, text: "r".into() },
            Delta::text("t"),
            Delta::ToolCall {
                choice: 0,
                index: 2,
                tokens: 1,
                id: "c".into(),
                name: "f".into(),
                arguments: "{".into(),
            },
            Delta::text("u"),
            Delta::Finish { choice: 0, reason: "stop".into() },
            Delta::Usage { prompt: 3, completion: 4, cached: 2, reasoning: 0 },
        ];
        assert_eq!(chunk_deltas(chunk.as_bytes()).unwrap(), expected);
        assert_eq!(chunk_deltas(b"[DONE]").unwrap(), [Delta::Done]);
        assert!(chunk_deltas(b"{").is_err());
    }

    #[test]
    fn errors_are_told_from_text_about_them() {
        let error = br#"{"error":{"message":"m","code":"c"}}"#;
        assert_eq!(chunk_error(error).unwrap(), "m");
        let delta = Delta::Error { code: "c".into(), message: "m".into() };
        assert_eq!(chunk_deltas(error).unwrap(), [delta]);
        assert_eq!(chunk_error(br#"{"choices":[{"text":"\"error\""}],"error":null}"#), None);
        assert_eq!(chunk_error(br#"{"choices":[{"text":"error"}]}"#), None);
    }

    proptest! {
        #[test]
        fn hostile_chunks_do_not_panic(text in "[{}\\[\\]\":,a-z0-9]{0,100}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for data in [text.as_bytes(), &bytes] {
                let _ = (chunk_deltas(data), chunk_error(data));
            }
        }
    }
}
