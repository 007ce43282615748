//! Re-reads an answer whose server has ended when the next server has less of it than the reader.
//! The answer is read from its beginning and compared with the earlier text; nothing is shown twice
//! (D-6.7).

use bytes::Bytes;
use loquent_proto::{Delta, Differs, Replay};
use serde_json::{Value, json};

use super::step::chunk_deltas;
use crate::ClientError;

/// Maximum bytes of text kept for the comparison.
const MAX_BYTES: usize = 4 << 20;

/// State of the comparison; see the module's documentation.
#[derive(Default)]
pub(super) struct ReplayReader {
    read: WhatWasRead,
    /// Text that must arrive again; `None` unless the answer is being re-read.
    known: Option<Replay>,
}

/// Everything read since the beginning of the log.
enum WhatWasRead {
    Text(Replay),
    /// Part of the text is unknown or cannot be compared.
    Unknown,
}

impl Default for WhatWasRead {
    fn default() -> Self {
        Self::Text(Replay::default())
    }
}

impl WhatWasRead {
    fn note(&mut self, delta: &Delta) {
        if let Self::Text(text) = self
            && (text.note(delta).is_err() || text.bytes() > MAX_BYTES)
        {
            *self = Self::Unknown;
        }
    }
}

impl ReplayReader {
    /// Creates the state for an answer that is read from log `offset` on.
    pub(super) fn from_offset(offset: u64) -> Self {
        let read = if offset == 0 { WhatWasRead::default() } else { WhatWasRead::Unknown };
        Self { read, known: None }
    }

    /// Begins re-reading from the start; returns false if the answer cannot be compared.
    pub(super) fn begin(&mut self) -> bool {
        match std::mem::take(&mut self.read) {
            // Nothing is gained by asking for the same again.
            WhatWasRead::Text(read) if read.bytes() > 0 && self.known.is_none() => {
                self.known = Some(read);
                true
            }
            _ => {
                self.read = WhatWasRead::Unknown;
                false
            }
        }
    }

    /// Returns the new part of a record.
    ///
    /// # Errors
    /// [`ClientError::Differs`] if the record differs from the earlier text.
    pub(super) fn rest_of(&mut self, delta: Delta) -> Result<Option<Delta>, ClientError> {
        self.read.note(&delta);
        let Some(known) = &mut self.known else { return Ok(Some(delta)) };
        let rest = known.rest_of(delta).map_err(|Differs| ClientError::Differs)?;
        if known.is_over() {
            self.known = None;
        }
        Ok(rest)
    }

    /// Returns the new part of the chunk `data`.
    ///
    /// # Errors
    /// [`ClientError::Differs`] if the chunk differs from the earlier text, or a parse error.
    pub(super) fn rest_of_chunk(&mut self, data: Bytes) -> Result<Option<Bytes>, ClientError> {
        if self.known.is_none() {
            // Nearly every chunk passes through unread. Who reads chunks is never ahead.
            self.read = WhatWasRead::Unknown;
            return Ok(Some(data));
        }
        let (mut cuts, mut is_new) = (Vec::new(), false);
        for delta in chunk_deltas(&data)? {
            let rest = self.rest_of(delta.clone())?;
            is_new |= rest.is_some();
            if rest.as_ref() != Some(&delta) {
                cuts.push((delta, rest));
            }
        }
        match (is_new, cuts.is_empty()) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(data)),
            (true, false) => cut(&data, &cuts).map(Some),
        }
    }
}

/// Reduces the chunk `data` to the new parts of some of its records. A server writes one chunk per
/// record (S-6.2), so a text is found by its content.
fn cut(data: &[u8], cuts: &[(Delta, Option<Delta>)]) -> Result<Bytes, ClientError> {
    const TEXTS: [&str; 4] =
        ["/delta/content", "/delta/reasoning_content", "/text", "/reasoning_content"];
    let unreadable = |_| ClientError::Malformed("a chunk that cannot be cut".into());
    let mut chunk: Value = serde_json::from_slice(data).map_err(unreadable)?;
    for choice in chunk["choices"].as_array_mut().into_iter().flatten() {
        for (known, new) in cuts {
            if let Delta::Logprobs { .. } = known {
                cut_logprobs(choice, known, new.as_ref());
                continue;
            }
            let (known, new) = (text_of(known), new.as_ref().map_or("", text_of));
            for place in TEXTS {
                match choice.pointer_mut(place) {
                    Some(Value::String(text)) if text == known => new.clone_into(text),
                    _ => {}
                }
            }
            for call in choice
                .pointer_mut("/delta/tool_calls")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                // Its id and its name were told.
                *call = json!({"index": call["index"], "function": {"arguments": new}});
            }
        }
    }
    Ok(chunk.to_string().into())
}

/// Reduces the log-probabilities `known` to their `new` part, if `choice` has them.
fn cut_logprobs(choice: &mut Value, known: &Delta, new: Option<&Delta>) {
    let Delta::Logprobs { choice: index, .. } = known else { return };
    if choice["index"].as_u64() != Some(u64::from(*index)) {
        return;
    }
    choice["logprobs"] = match new {
        Some(Delta::Logprobs { json, .. }) => serde_json::from_str(json).unwrap_or_default(),
        _ => Value::Null,
    };
}

fn text_of(delta: &Delta) -> &str {
    match delta {
        Delta::Text { text, .. } | Delta::Reasoning { text, .. } => text,
        Delta::ToolCall { arguments, .. } => arguments,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> Bytes {
        let choice = json!({"index": 0, "delta": {"content": text}});
        json!({"id": "x", "choices": [choice]}).to_string().into()
    }

    /// Returns a state that has read `texts` and is re-reading.
    fn ahead(texts: &[&str]) -> ReplayReader {
        let mut again = ReplayReader::from_offset(0);
        for text in texts {
            assert!(again.rest_of(Delta::text(*text)).unwrap().is_some());
        }
        assert!(again.begin());
        again
    }

    #[test]
    fn records_that_come_again_are_cut_where_the_new_begins() {
        let mut again = ahead(&["one", " tw"]);
        assert_eq!(again.rest_of(Delta::Open { meta: "{}".into() }), Ok(None));
        assert_eq!(again.rest_of(Delta::text("on")), Ok(None));
        let rest = again.rest_of(Delta::Text { choice: 0, tokens: 2, text: "e two".into() });
        assert_eq!(rest, Ok(Some(Delta::text("o"))));
        assert_eq!(again.rest_of(Delta::Done), Ok(Some(Delta::Done)));
    }

    #[test]
    fn chunks_that_come_again_are_cut_too() {
        let mut again = ahead(&["one", " tw"]);
        for known in ["", "one", " "] {
            assert_eq!(again.rest_of_chunk(chunk(known)), Ok(None), "{known:?}");
        }
        let rest = again.rest_of_chunk(chunk("two")).unwrap().unwrap();
        assert_eq!(chunk_deltas(&rest).unwrap(), [Delta::text("o")]);
        // From here on chunks pass through as they are.
        assert_eq!(again.rest_of_chunk(chunk("!")), Ok(Some(chunk("!"))));
    }

    #[test]
    fn a_tools_arguments_are_cut_too() {
        let call = |id: &str, arguments: &str| {
            let call =
                json!({"index": 0, "id": id, "function": {"name": "f", "arguments": arguments}});
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}).to_string()
        };
        let mut again = ReplayReader::from_offset(0);
        for delta in chunk_deltas(call("a", "{\"x").as_bytes()).unwrap() {
            again.rest_of(delta).unwrap();
        }
        assert!(again.begin());
        let rest = again.rest_of_chunk(call("b", "{\"x\":1").into()).unwrap().unwrap();
        let rest: Value = serde_json::from_slice(&rest).unwrap();
        let call = &rest["choices"][0]["delta"]["tool_calls"][0];
        assert_eq!(*call, json!({"index": 0, "function": {"arguments": "\":1"}}));
    }

    #[test]
    fn log_probabilities_are_cut_too() {
        let scored = |text: &str, tokens: &[&str]| -> Bytes {
            let content: Vec<Value> = tokens.iter().map(|token| json!({"token": token})).collect();
            let logprobs = json!({"content": content, "refusal": null});
            let choice = json!({"index": 0, "delta": {"content": text}, "logprobs": logprobs});
            json!({"id": "x", "choices": [choice]}).to_string().into()
        };
        let mut again = ReplayReader::from_offset(0);
        for delta in chunk_deltas(&scored("ab", &["a", "b"])).unwrap() {
            again.rest_of(delta).unwrap();
        }
        assert!(again.begin());
        assert_eq!(again.rest_of_chunk(scored("a", &["a"])), Ok(None));
        assert_eq!(again.rest_of_chunk(scored("bc", &["b", "c"])), Ok(Some(scored("c", &["c"]))));
        assert_eq!(again.rest_of_chunk(scored("d", &["d"])), Ok(Some(scored("d", &["d"]))));
    }

    #[test]
    fn another_answer_is_noticed() {
        assert_eq!(ahead(&["one"]).rest_of(Delta::text("oh")), Err(ClientError::Differs));
        assert_eq!(ahead(&["one"]).rest_of_chunk(chunk("oh")), Err(ClientError::Differs));
        assert_eq!(ahead(&["one"]).rest_of(Delta::Done), Err(ClientError::Differs), "too short");
    }

    #[test]
    fn what_is_not_known_from_its_beginning_is_not_read_again() {
        let mut late = ReplayReader::from_offset(7);
        late.rest_of(Delta::text("two")).unwrap();
        assert!(!late.begin());
        let mut odd = ReplayReader::from_offset(0);
        odd.rest_of(Delta::text("one")).unwrap();
        odd.rest_of(Delta::Logprobs { choice: 0, json: "{}".into() }).unwrap();
        assert!(!odd.begin(), "it cannot be compared");
        assert!(!ReplayReader::from_offset(0).begin(), "nothing was read");
    }

    #[test]
    fn whoever_is_ahead_once_more_meanwhile_is_lost() {
        let mut again = ahead(&["one"]);
        assert!(!again.begin());
    }
}
