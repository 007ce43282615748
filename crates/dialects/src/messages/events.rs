//! An answer's records as the events of Anthropic's streams.

use bytes::Bytes;
use loquent_proto::json::{put_number, put_string};
use loquent_proto::{Delta, Error};
use serde_json::{Value, json};

use super::error::error_json;
use super::object::{
    SIGNATURE, ThinkingDisplay, message_id, open_message, stop_reason, usage_json,
};
use crate::seams::Seams;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;
use loquent_serving::full_answer;
use loquent_serving::usage::Usage;

const PING: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// The content block being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    /// The tool call with this number.
    ToolUse(u32),
}

/// Writes one answer as Anthropic's events.
#[derive(Debug, Default)]
pub struct MessageEvents {
    /// Token counts known so far.
    usage: Usage,
    thinking: ThinkingDisplay,
    open: Option<Block>,
    /// Number of blocks that have ended.
    ended: u64,
    finish: Option<String>,
    stop: Option<String>,
    seams: Seams,
}

impl MessageEvents {
    /// Returns a writer for the answer to a prompt of `prompt_tokens`.
    pub fn new(prompt_tokens: u64, thinking: ThinkingDisplay) -> Self {
        Self { usage: Usage { prompt_tokens, ..Usage::default() }, thinking, ..Self::default() }
    }

    fn start(&self, meta: &str, out: &mut Vec<u8>) -> Result<(), Error> {
        let meta: Value = serde_json::from_str(meta).map_err(|_| Error::Malformed)?;
        let text = |name: &str| meta[name].as_str().ok_or(Error::Malformed);
        let message = open_message(&message_id(text("id")?), text("model")?, self.usage);
        put_event(out, "message_start", &json!({"type": "message_start", "message": message}));
        // The prompt may take long: clients that wait for a first event have two.
        out.extend_from_slice(PING);
        Ok(())
    }

    /// Ends the open block, if any, and begins `block`.
    fn begin(&mut self, block: Block, content: &Value, out: &mut Vec<u8>) {
        if self.open == Some(block) {
            return;
        }
        self.end_block(out);
        self.open = Some(block);
        let event =
            json!({"type": "content_block_start", "index": self.ended, "content_block": content});
        put_event(out, "content_block_start", &event);
    }

    fn end_block(&mut self, out: &mut Vec<u8>) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.put_delta(["signature_delta", "signature"], SIGNATURE, out);
        }
        let event = json!({"type": "content_block_stop", "index": self.ended});
        put_event(out, "content_block_stop", &event);
        self.ended += 1;
    }

    /// Writes a piece of the block. Done by hand, because there is one for each token.
    fn put_delta(&self, [kind, member]: [&str; 2], text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(
            b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":",
        );
        put_number(out, self.ended);
        for part in [",\"delta\":{\"type\":\"", kind, "\",\"", member, "\":"] {
            out.extend_from_slice(part.as_bytes());
        }
        put_string(out, text);
        out.extend_from_slice(b"}}\n\n");
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) {
        if !text.is_empty() {
            self.begin(Block::Text, &json!({"type": "text", "text": ""}), out);
            self.put_delta(["text_delta", "text"], text, out);
        }
    }

    fn think(&mut self, text: &str, out: &mut Vec<u8>) {
        if !text.is_empty() {
            let content = json!({"type": "thinking", "thinking": "", "signature": ""});
            self.begin(Block::Thinking, &content, out);
            if self.thinking == ThinkingDisplay::Shown {
                self.put_delta(["thinking_delta", "thinking"], text, out);
            }
        }
    }

    fn tool_use(&mut self, index: u32, id: &str, name: &str, json: &str, out: &mut Vec<u8>) {
        let content = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        self.begin(Block::ToolUse(index), &content, out);
        if !json.is_empty() {
            self.put_delta(["input_json_delta", "partial_json"], json, out);
        }
    }

    fn stop(&mut self, out: &mut Vec<u8>) {
        self.end_block(out);
        let (reason, sequence) = stop_reason(self.finish.as_deref(), self.stop.as_deref());
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let usage = usage_json(self.usage);
        let event = json!({"type": "message_delta", "delta": delta, "usage": usage});
        let Value::Object(mut event) = event else { unreachable!("written above") };
        self.seams.tell(&mut event);
        put_event(out, "message_delta", &event.into());
        put_event(out, "message_stop", &json!({"type": "message_stop"}));
    }
}

impl EventWriter for MessageEvents {
    fn write(&mut self, _: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        match delta {
            Delta::Open { meta } => self.start(meta, out)?,
            Delta::Text { text, .. } => self.text(text, out),
            Delta::Reasoning { text, .. } => self.think(text, out),
            Delta::ToolCall { index, id, name, arguments, .. } => {
                self.tool_use(*index, id, name, arguments, out);
            }
            Delta::Finish { reason, .. } => self.finish = Some(reason.clone()),
            Delta::Usage { .. } => self.usage = Usage::of_delta(delta).unwrap_or(self.usage),
            Delta::Other { json, .. } => {
                self.usage = Usage::of_members(json).unwrap_or(self.usage);
                self.stop = full_answer::stop_reason(json).or(self.stop.take());
                self.seams.note(json);
            }
            Delta::Error { message, .. } => {
                self.write_error(&ApiError::internal(message.as_str()), out);
            }
            Delta::Done => self.stop(out),
            Delta::Logprobs { .. } | Delta::Progress(_) | Delta::Pause { .. } => {}
        }
        Ok(())
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        put_event(out, "error", &error_json(error));
    }

    fn heartbeat(&self) -> Bytes {
        Bytes::from_static(PING)
    }
}

fn put_event(out: &mut Vec<u8>, name: &str, data: &Value) {
    out.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
}
