//! An answer's records as chunks of a UI message stream. The chunks of a record depend only on
//! those before it, so that a chunk's number means the same to every reader.

use loquent_proto::{Delta, Error};
use serde_json::{Value, json};

use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;

/// Event at the end of every complete stream.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// Events sent to a reader when the user stops the answer; its connection then ends cleanly.
/// Without `finish` the workflow transport would reconnect.
pub const STOPPED: &[u8] = b"data: {\"type\":\"abort\"}\n\n\
    data: {\"type\":\"finish\",\"finishReason\":\"other\"}\n\ndata: [DONE]\n\n";

/// The part of the message being written.
enum OpenPart {
    None,
    Text {
        id: u64,
    },
    Reasoning {
        id: u64,
    },
    /// Calls. Upstream servers may interleave pieces of several calls.
    Calls(Vec<Call>),
}

struct Call {
    index: u32,
    id: String,
    name: String,
    arguments: String,
}

/// Writes an answer's records as chunks.
pub struct UiWriter {
    /// True if the answer continues an earlier message instead of getting an id of its own.
    continues: bool,
    part: OpenPart,
    parts: u64,
    finish_reason: Option<&'static str>,
    usage: Option<Value>,
    /// Number of chunks written or left out.
    count: u64,
    /// Number of chunks at the beginning to leave out.
    skipped: u64,
}

impl UiWriter {
    /// Returns a writer at the answer's beginning that leaves out the first `skipped` chunks.
    /// `continues`: the answer extends the last message and keeps its id.
    pub fn new(continues: bool, skipped: u64) -> Self {
        Self {
            continues,
            part: OpenPart::None,
            parts: 0,
            finish_reason: None,
            usage: None,
            count: 0,
            skipped,
        }
    }

    fn put(&mut self, chunk: &Value, out: &mut Vec<u8>) {
        self.count += 1;
        if self.count > self.skipped {
            out.extend_from_slice(b"data: ");
            serde_json::to_writer(&mut *out, chunk).expect("JSON goes into memory");
            out.extend_from_slice(b"\n\n");
        }
    }

    fn close_part(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(&mut self.part, OpenPart::None) {
            OpenPart::None => {}
            OpenPart::Text { id } => {
                self.put(&json!({"type": "text-end", "id": id.to_string()}), out);
            }
            OpenPart::Reasoning { id } => {
                self.put(&json!({"type": "reasoning-end", "id": id.to_string()}), out);
            }
            OpenPart::Calls(calls) => {
                calls.into_iter().for_each(|call| self.put(&input(call), out))
            }
        }
    }

    /// Opens the next part of text or reasoning; returns its id.
    fn next_part(&mut self, kind: &str, out: &mut Vec<u8>) -> u64 {
        self.close_part(out);
        let id = self.parts;
        self.parts += 1;
        self.put(&json!({"type": format!("{kind}-start"), "id": id.to_string()}), out);
        id
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) {
        let id = match self.part {
            OpenPart::Text { id } => id,
            _ => self.next_part("text", out),
        };
        self.part = OpenPart::Text { id };
        self.put(&json!({"type": "text-delta", "id": id.to_string(), "delta": text}), out);
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<u8>) {
        let id = match self.part {
            OpenPart::Reasoning { id } => id,
            _ => self.next_part("reasoning", out),
        };
        self.part = OpenPart::Reasoning { id };
        self.put(&json!({"type": "reasoning-delta", "id": id.to_string(), "delta": text}), out);
    }

    /// Writes a fragment of a call; `id` and `name` come with its first.
    fn call(&mut self, index: u32, [id, name, more]: [&str; 3], out: &mut Vec<u8>) {
        if !matches!(self.part, OpenPart::Calls(_)) {
            self.close_part(out);
        }
        let mut calls = match std::mem::replace(&mut self.part, OpenPart::None) {
            OpenPart::Calls(calls) => calls,
            _ => Vec::new(),
        };
        let known = calls.iter().position(|call| call.index == index);
        let at = known.unwrap_or_else(|| {
            self.put(&json!({"type": "tool-input-start", "toolCallId": id, "toolName": name}), out);
            let (id, name) = (id.to_owned(), name.to_owned());
            calls.push(Call { index, id, name, arguments: String::new() });
            calls.len() - 1
        });
        calls[at].arguments.push_str(more);
        if !more.is_empty() {
            let id = &calls[at].id;
            let delta =
                json!({"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": more});
            self.put(&delta, out);
        }
        self.part = OpenPart::Calls(calls);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.close_part(out);
        self.put(&json!({"type": "finish-step"}), out);
        let mut finish = json!({"type": "finish"});
        if let Some(reason) = self.finish_reason {
            finish["finishReason"] = reason.into();
        }
        if let Some(usage) = self.usage.take() {
            finish["messageMetadata"] = json!({"usage": usage});
        }
        self.put(&finish, out);
        out.extend_from_slice(DONE);
    }
}

impl EventWriter for UiWriter {
    fn write(&mut self, _: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        match delta {
            Delta::Open { meta } => {
                let mut start = json!({"type": "start"});
                if !self.continues {
                    let meta: Value = serde_json::from_str(meta).unwrap_or_default();
                    start["messageId"] = meta["id"].clone();
                }
                self.put(&start, out);
                self.put(&json!({"type": "start-step"}), out);
            }
            Delta::Text { choice: 0, text, .. } if !text.is_empty() => self.text(text, out),
            Delta::Reasoning { choice: 0, text, .. } if !text.is_empty() => {
                self.reasoning(text, out);
            }
            Delta::ToolCall { choice: 0, index, id, name, arguments, .. } => {
                self.call(*index, [id, name, arguments], out);
            }
            Delta::Finish { choice: 0, reason } => {
                self.finish_reason = Some(finish_reason(reason));
            }
            Delta::Usage { prompt, completion, cached, reasoning } => {
                self.usage = Some(json!({
                    "inputTokens": prompt, "outputTokens": completion,
                    "totalTokens": prompt + completion,
                    "reasoningTokens": reasoning, "cachedInputTokens": cached,
                }));
            }
            Delta::Error { message, .. } => {
                self.put(&json!({"type": "error", "errorText": message}), out);
            }
            Delta::Done => self.finish(out),
            // Log-probabilities and an upstream's own members have no place in a UI message.
            _ => {}
        }
        Ok(())
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.put(&json!({"type": "error", "errorText": error.to_string()}), out);
    }
}

/// Returns the chunk for a call with complete arguments.
fn input(call: Call) -> Value {
    let Call { id, name, arguments, .. } = call;
    // Without arguments a model calls a tool with none.
    let text = if arguments.trim().is_empty() { "{}" } else { &arguments };
    match serde_json::from_str::<Value>(text) {
        Ok(input) => {
            json!({"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": input})
        }
        Err(error) => json!({
            "type": "tool-input-error", "toolCallId": id, "toolName": name, "input": arguments,
            "errorText": format!("The arguments are not valid JSON: {error}."),
        }),
    }
}

/// Translates OpenAI's finish reason to the AI SDK's.
fn finish_reason(reason: &str) -> &'static str {
    match reason {
        "stop" => "stop",
        "length" => "length",
        "tool_calls" | "function_call" => "tool-calls",
        "content_filter" => "content-filter",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deltas() -> Vec<Delta> {
        let call = |index, id: &str, arguments: &str| Delta::ToolCall {
            choice: 0,
            index,
            tokens: 1,
            id: id.into(),
            name: if id.is_empty() { "" } else { "weather" }.into(),
            arguments: arguments.into(),
        };
        vec![
            Delta::Open { meta: r#"{"id":"chatcmpl-1","model":"m"}"#.into() },
            Delta::Reasoning { choice: 0, tokens: 1, text: "Hm".into() },
            Delta::text("Hel"),
            Delta::Logprobs { choice: 0, json: "{}".into() },
            Delta::text("lo"),
            call(0, "a", ""),
            call(0, "", r#"{"city":"#),
            call(0, "", r#""Rome""#),
            call(1, "b", "{oo"),
            call(0, "", "}"),
            call(1, "", "ps"),
            Delta::Finish { choice: 0, reason: "tool_calls".into() },
            Delta::Usage { prompt: 2, completion: 3, cached: 1, reasoning: 1 },
            Delta::Done,
        ]
    }

    fn chunks(skipped: u64) -> Vec<Value> {
        let (mut writer, mut out) = (UiWriter::new(false, skipped), Vec::new());
        for delta in deltas() {
            writer.write(None, &delta, &mut out).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let text = text.strip_suffix("data: [DONE]\n\n").expect("it is complete");
        let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: "));
        events.map(|event| serde_json::from_str(event.unwrap()).unwrap()).collect()
    }

    #[test]
    fn every_part_is_opened_and_closed() {
        let chunks = chunks(0);
        let kinds: Vec<_> = chunks.iter().map(|chunk| chunk["type"].as_str().unwrap()).collect();
        let expected = [
            "start",
            "start-step",
            "reasoning-start",
            "reasoning-delta",
            "reasoning-end",
            "text-start",
            "text-delta",
            "text-delta",
            "text-end",
            "tool-input-start",
            "tool-input-delta",
            "tool-input-delta",
            "tool-input-start",
            "tool-input-delta",
            "tool-input-delta",
            "tool-input-delta",
            "tool-input-available",
            "tool-input-error",
            "finish-step",
            "finish",
        ];
        assert_eq!(kinds, expected);
        assert_eq!(chunks[0]["messageId"], "chatcmpl-1");
        assert_eq!(chunks[16]["input"]["city"], "Rome");
        assert_eq!(chunks[17]["input"], "{oops");
        assert_eq!(chunks[19]["finishReason"], "tool-calls");
        assert_eq!(chunks[19]["messageMetadata"]["usage"]["totalTokens"], 5);
    }

    #[test]
    fn a_reader_may_begin_at_any_chunk() {
        let all = chunks(0);
        for skipped in 0..=all.len() {
            assert_eq!(chunks(skipped as u64), all[skipped..], "after {skipped}");
        }
    }
}
