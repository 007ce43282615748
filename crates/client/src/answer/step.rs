//! One step of an answer, as it came over QUIC or HTTP.

use bytes::Bytes;
use loquent_openai::chunk::{ChunkEvent, error_message};
use loquent_proto::Delta;

use crate::ClientError;

/// One step of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Number of the position after the step, from which the answer can be resumed (D-6.8).
    pub offset: u64,
    /// True if the step was already delivered over another transport. It arrives again because a
    /// chunk writer needs the log from its first record on; it must not be shown twice.
    pub seen: bool,
    /// The record or chunk itself.
    pub content: Content,
}

/// A record of the log, or the chunk that a server made from it.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Over QUIC: the record itself.
    Record(Delta),
    /// Over HTTP: the data of one server-sent event, `[DONE]` included.
    Chunk(Bytes),
}

impl Step {
    /// Returns the step as records; empty if it was seen before.
    ///
    /// # Errors
    /// [`ClientError::Malformed`] for an event that is not a chunk.
    pub fn into_deltas(self) -> Result<Vec<Delta>, ClientError> {
        match self.content {
            _ if self.seen => Ok(Vec::new()),
            Content::Record(delta) => Ok(vec![delta]),
            Content::Chunk(data) => chunk_deltas(&data),
        }
    }
}

/// Returns the message of an error event, `data: {"error": …}`.
pub(crate) fn chunk_error(data: &[u8]) -> Option<String> {
    // Nearly every event passes through unread; only one that may be an error is parsed.
    memchr::memmem::find(data, b"\"error\"")?;
    match ChunkEvent::parse(data) {
        Ok(ChunkEvent::Failed(error)) => Some(error_message(&error)),
        _ => None,
    }
}

/// Returns the records that a chunk stands for (S-6.2, in reverse). A chunk does not carry its
/// number of tokens: one is assumed for each choice in it.
///
/// # Errors
/// [`ClientError::Malformed`] if `data` is neither a chunk, an error nor `[DONE]`.
pub fn chunk_deltas(data: &[u8]) -> Result<Vec<Delta>, ClientError> {
    let chunk = match ChunkEvent::parse(data)? {
        ChunkEvent::Done => return Ok(vec![Delta::Done]),
        ChunkEvent::Failed(error) => {
            let code = error["code"].as_str().unwrap_or_default().to_owned();
            return Ok(vec![Delta::Error { code, message: error_message(&error) }]);
        }
        ChunkEvent::Chunk(chunk) => *chunk,
    };
    let usage = chunk.usage.map(|usage| usage.to_delta());
    Ok(chunk.deltas.into_iter().chain(usage).collect())
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
                tokens: 0,
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
    fn errors_are_distinguished_from_text_about_errors() {
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
