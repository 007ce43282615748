//! An answer's records as the events of llama-server's own completions.

use std::time::Duration;

use loquent_proto::{Delta, Error};
use serde_json::{Map, Value};

use super::object::{CompletionEnd, PROBABILITIES, ShownRequest};
use crate::stream_times::StreamTimes;
use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;
use loquent_serving::full_answer::stop_reason;
use loquent_serving::usage::Usage;

/// Writes one answer with one completion.
#[derive(Debug)]
pub struct InfillEvents {
    shown: ShownRequest,
    model: String,
    reason: String,
    /// True if the request asks for progress.
    takes_progress: bool,
    /// The stop string that ended the answer.
    word: Option<String>,
    has_new_line: bool,
    /// Ids and log-probabilities of the tokens of the next text.
    tokens: Value,
    usage: Usage,
    times: StreamTimes,
}

impl InfillEvents {
    /// Returns a writer for the answer to the request `shown` that arrived at `arrived` on `clock`.
    pub fn new(shown: ShownRequest, clock: Clock, arrived: Duration) -> Self {
        Self {
            shown,
            model: String::new(),
            reason: String::new(),
            takes_progress: false,
            word: None,
            has_new_line: false,
            tokens: Value::Null,
            usage: Usage::default(),
            times: StreamTimes::new(clock, arrived),
        }
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) {
        let tokens = self.tokens.take();
        // An upstream server names its tokens by their texts.
        let ids = tokens["tokens"].as_array().cloned().unwrap_or_default();
        let ids: Vec<Value> = ids.into_iter().filter(Value::is_u64).collect();
        if text.is_empty() && ids.is_empty() {
            return;
        }
        self.has_new_line |= text.contains('\n');
        let mut event = Map::new();
        event.insert("index".into(), 0.into());
        event.insert("content".into(), text.into());
        event.insert("tokens".into(), ids.into());
        event.insert("stop".into(), false.into());
        if self.shown.native.probabilities > 0 {
            event.insert(PROBABILITIES.into(), tokens[PROBABILITIES].clone());
        }
        put(out, &event.into());
    }

    fn end(&self) -> Value {
        let end = CompletionEnd {
            index: 0,
            model: &self.model,
            reason: &self.reason,
            word: self.word.as_deref(),
            has_new_line: self.has_new_line,
            usage: self.usage,
            times: self.times.times(),
        };
        self.shown.picked(end.object("", &self.shown))
    }
}

impl EventWriter for InfillEvents {
    fn write(&mut self, _id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        self.times.note(delta);
        match delta {
            Delta::Open { meta } => {
                let meta: Value = serde_json::from_str(meta).map_err(|_| Error::Malformed)?;
                self.model = meta["model"].as_str().unwrap_or_default().to_owned();
                self.takes_progress = meta["progress"] == true;
            }
            Delta::Logprobs { json, .. } => {
                self.tokens = serde_json::from_str(json).map_err(|_| Error::Malformed)?;
            }
            Delta::Text { text, .. } => self.text(text, out),
            Delta::Finish { reason, .. } => self.reason = reason.clone(),
            Delta::Usage { .. } => self.usage = Usage::of_delta(delta).unwrap_or(self.usage),
            // An upstream server's counts.
            Delta::Other { json, .. } => {
                self.usage = Usage::of_members(json).unwrap_or(self.usage);
                self.word = stop_reason(json).or(self.word.take());
            }
            Delta::Progress(progress) => {
                out.extend_from_slice(
                    br#"data: {"index":0,"content":"","tokens":[],"stop":false,"prompt_progress":"#,
                );
                progress.put_json(out);
                out.extend_from_slice(b"}\n\n");
            }
            Delta::Done => put(out, &self.end()),
            _ => {}
        }
        Ok(())
    }

    fn takes_progress(&self) -> bool {
        self.takes_progress
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        put(out, &error.json());
    }
}

fn put(out: &mut Vec<u8>, event: &Value) {
    out.extend_from_slice(format!("data: {event}\n\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use loquent_proto::Progress;
    use serde_json::json;

    use super::*;
    use crate::infill::parameters::NativeRequest;

    #[test]
    fn progress_is_an_event_if_it_is_asked_for() {
        for (meta, told) in [
            (r#"{"id":"a","model":"m","created":5,"progress":true}"#, true),
            (r#"{"id":"a","model":"m","created":5}"#, false),
        ] {
            let mut writer =
                InfillEvents::new(ShownRequest::default(), Clock::start(), Duration::ZERO);
            let mut out = Vec::new();
            writer.write(None, &Delta::Open { meta: meta.into() }, &mut out).unwrap();
            let progress = Progress { total: 9, processed: 5, ..Progress::default() };
            writer.write_progress(None, &progress, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            match text.strip_prefix("data: ") {
                Some(event) => {
                    let event: Value = serde_json::from_str(event).unwrap();
                    assert_eq!(event["prompt_progress"]["processed"], 5);
                    assert!(told && event["stop"] == false, "{event}");
                }
                None => assert!(!told && text.is_empty(), "{text}"),
            }
        }
    }

    #[test]
    fn tokens_come_with_their_text_or_without_any() {
        let logprobs = |id: u32| {
            let entry = json!({"id": id, "logprob": -0.5});
            let json = json!({"tokens": [id], "completion_probabilities": [entry]}).to_string();
            Delta::Logprobs { choice: 0, json }
        };
        let answer = [
            Delta::Open { meta: r#"{"id":"a","model":"m","created":5}"#.into() },
            logprobs(7),
            Delta::text("a\n"),
            Delta::text(""),
            logprobs(8),
            Delta::text(""),
            Delta::Finish { choice: 0, reason: "length".into() },
            Delta::Done,
        ];
        let native = NativeRequest { probabilities: 1, ..NativeRequest::default() };
        let shown = ShownRequest { native, ..ShownRequest::default() };
        let mut writer = InfillEvents::new(shown, Clock::start(), Duration::ZERO);
        let mut out = Vec::new();
        for delta in &answer {
            writer.write(None, delta, &mut out).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        assert_eq!(events.len(), 3, "{text}");
        assert_eq!((&events[0]["content"], &events[0]["tokens"]), (&json!("a\n"), &json!([7])));
        assert_eq!(events[1]["completion_probabilities"][0]["id"], 8);
        assert_eq!((&events[2]["stop"], &events[2]["has_new_line"]), (&json!(true), &json!(true)));
        assert_eq!((&events[2]["model"], &events[2]["tokens"]), (&json!("m"), &json!([])));
    }
}
