//! An answer's records as the lines of Ollama's streams.

use std::time::Duration;

use bytes::Bytes;
use loquent_proto::{Delta, Error};
use serde_json::{Map, Value};

use super::error_json;
use super::object::{LineContent, Shape, finish, members};
use crate::seams::Seams;
use crate::stream_times::StreamTimes;
use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;
use loquent_serving::full_answer::FullCall;
use loquent_serving::usage::Usage;

/// Writes one answer as Ollama's lines of JSON.
pub struct OllamaLines {
    shape: Shape,
    /// The model's name as the client gave it.
    model: String,
    times: StreamTimes,
    usage: Usage,
    /// A tool call whose arguments are incomplete: Ollama's clients accept only complete ones.
    call: Option<FullCall>,
    /// Log-probabilities of the tokens of the next text, in the format of chat completions.
    logprobs: Value,
    finish: Option<String>,
    seams: Seams,
}

impl OllamaLines {
    /// Returns a writer for the answer of `model` to a request that arrived at `arrived` on
    /// `clock`.
    pub fn new(shape: Shape, model: String, clock: Clock, arrived: Duration) -> Self {
        Self {
            shape,
            model,
            times: StreamTimes::new(clock, arrived),
            usage: Usage::default(),
            call: None,
            logprobs: Value::Null,
            finish: None,
            seams: Seams::default(),
        }
    }

    fn put_piece(&self, piece: &LineContent<'_>, out: &mut Vec<u8>) {
        put_line(members(self.shape, &self.model, piece), out);
    }

    fn tool_call(&mut self, delta: &Delta, out: &mut Vec<u8>) {
        let Delta::ToolCall { index, id, name, arguments, .. } = delta else { return };
        if let Some(call) = self.call.as_mut().filter(|call| call.index == *index) {
            call.arguments.push_str(arguments);
            return;
        }
        self.end_call(out);
        let (id, name, arguments) = (id.clone(), name.clone(), arguments.clone());
        self.call = Some(FullCall { index: *index, id, name, arguments });
    }

    fn end_call(&mut self, out: &mut Vec<u8>) {
        if let Some(call) = self.call.take() {
            self.put_piece(&LineContent { calls: &[call], ..LineContent::default() }, out);
        }
    }

    fn done(&self, out: &mut Vec<u8>) {
        let mut line = members(self.shape, &self.model, &LineContent::default());
        finish(&mut line, self.finish.as_deref(), self.usage, self.times.times());
        self.seams.tell(&mut line);
        put_line(line, out);
    }
}

impl EventWriter for OllamaLines {
    fn write(&mut self, _: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        self.times.note(delta);
        match delta {
            Delta::Logprobs { json, .. } => {
                // It may be an upstream server's: an object, or anything else.
                let mut logprobs: Value = serde_json::from_str(json).unwrap_or_default();
                self.logprobs = logprobs.get_mut("content").map(Value::take).unwrap_or_default();
            }
            Delta::Text { text, .. } if !text.is_empty() || !self.logprobs.is_null() => {
                let logprobs = self.logprobs.take();
                self.put_piece(&LineContent { text, logprobs, ..LineContent::default() }, out);
            }
            Delta::Reasoning { text, .. } if !text.is_empty() => {
                self.put_piece(&LineContent { thinking: text, ..LineContent::default() }, out);
            }
            Delta::ToolCall { .. } => self.tool_call(delta, out),
            Delta::Finish { reason, .. } => {
                self.end_call(out);
                self.finish = Some(reason.clone());
            }
            Delta::Usage { .. } => self.usage = Usage::of_delta(delta).unwrap_or(self.usage),
            Delta::Other { json, .. } => {
                self.usage = Usage::of_members(json).unwrap_or(self.usage);
                self.seams.note(json);
            }
            Delta::Error { message, .. } => {
                self.write_error(&ApiError::internal(message.as_str()), out);
            }
            Delta::Done => self.done(out),
            Delta::Open { .. }
            | Delta::Text { .. }
            | Delta::Reasoning { .. }
            | Delta::Progress(_)
            | Delta::Pause { .. } => {}
        }
        Ok(())
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{}\n", error_json(error)).as_bytes());
    }

    fn heartbeat(&self) -> Bytes {
        let mut line = Vec::new();
        self.put_piece(&LineContent::default(), &mut line);
        line.into()
    }
}

fn put_line(members: Map<String, Value>, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{}\n", Value::from(members)).as_bytes());
}
