//! Converts an answer's records to the events of a response and to its object.
//!
//! Every record gives the same events with the same numbers whenever it is read, so that a reader
//! that reconnects after event N continues with N + 1.

use loquent_proto::obfuscation::Obfuscation;
use loquent_proto::{Delta, Error};
use serde_json::{Map, Value, json};

use super::item::{ItemBody, OpenItem, ToolKind, custom_input, summary_part};
use super::namespaces::NamespacedName;
use super::object::{ResponseFacts, ResponseStatus, ResponseTemplate};
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;
use loquent_serving::usage::Usage;

/// Code of the record that ends a cancelled response.
pub const CANCELLED: &str = "cancelled";
/// Code of the record that ends a response whose actual end is unknown to the server.
pub const LOST: &str = "lost";
/// Member of the record that another replica writes when it takes over a response: the number of
/// the next event.
const TAKEN_OVER_AT: &str = "loquent_taken_over_at";
/// Gap left in the event numbers by a takeover. A reader may have received more events from the
/// replica that has ended than were stored; numbers within the gap belong to those alone.
/// The gap is a multiple of this.
pub const NUMBERS_APART: u64 = 1 << 20;
/// Maximum of that multiple, which is random: after a store has lost a takeover, the events of the
/// next one have other numbers.
pub const MAX_GAPS: u64 = 512;
/// Member of the same record with the gap.
const GAP: &str = "loquent_numbers_apart";
/// Member of the record with the time when the response was complete.
pub const COMPLETED_AT: &str = "completed_at";

/// The events to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventRange {
    /// Events from this number on.
    From(u64),
    /// None: only the object is needed.
    Nothing,
}

/// Writes a response's events, and keeps its current object.
#[derive(Debug)]
pub struct ResponseEvents {
    template: ResponseTemplate,
    wanted: EventRange,
    padding: Option<Obfuscation>,
    /// The number of the next event.
    next: u64,
    status: ResponseStatus,
    facts: ResponseFacts,
    finish: Option<String>,
    output: Vec<Value>,
    /// Bytes of the records that make up the output, including log-probabilities.
    output_bytes: usize,
    open: Option<OpenItem>,
    /// Log-probabilities of tokens whose text has not arrived yet.
    logprobs: Vec<Value>,
}

impl ResponseEvents {
    /// Returns the events of a response from which no record has been read.
    pub fn new(template: ResponseTemplate, wanted: EventRange) -> Self {
        let queued = template.background;
        Self {
            template,
            wanted,
            padding: None,
            next: 0,
            status: if queued { ResponseStatus::Queued } else { ResponseStatus::InProgress },
            facts: ResponseFacts::default(),
            finish: None,
            output: Vec::new(),
            output_bytes: 0,
            open: None,
            logprobs: Vec::new(),
        }
    }

    /// Sets the padding for events with text.
    pub fn padded(mut self, padding: Option<Obfuscation>) -> Self {
        self.padding = padding;
        self
    }

    /// Returns the response's status after the records so far.
    pub const fn status(&self) -> &ResponseStatus {
        &self.status
    }

    /// Returns true if the response has ended because its server was restarted. Every reader hears
    /// of that, also one that has seen events which were never stored.
    pub fn is_lost(&self) -> bool {
        matches!(&self.status, ResponseStatus::Failed { code, .. } if code == LOST)
    }

    /// Marks the response as not stored, from here on.
    pub fn not_stored(&mut self) {
        self.template.object["store"] = false.into();
    }

    /// Reads a record without writing events.
    pub fn note(&mut self, delta: &Delta) {
        debug_assert_eq!(self.wanted, EventRange::Nothing);
        self.apply(delta, &mut Vec::new());
    }

    /// Returns the response object after the records so far.
    pub fn object(&self) -> Value {
        let mut output = self.output.clone();
        output.extend(self.open.as_ref().map(|item| item.json("in_progress")));
        self.template.render(&self.status, &self.facts, &output)
    }

    /// Returns the approximate size of the output as JSON, in bytes.
    pub const fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    fn apply(&mut self, delta: &Delta, out: &mut Vec<u8>) {
        self.output_bytes += output_bytes(delta);
        match delta {
            Delta::Open { meta } => self.begin(meta, out),
            Delta::Text { choice: 0, text, .. } if !text.is_empty() => self.put_text(text, out),
            Delta::Reasoning { choice: 0, text, .. } if !text.is_empty() => {
                self.put_reasoning(text, out);
            }
            Delta::ToolCall { choice: 0, index, id, name, arguments, .. } => {
                self.open_call(*index, id, name, out);
                self.put_arguments(arguments, out);
            }
            Delta::Logprobs { choice: 0, json } => self.logprobs.extend(token_logprobs(json)),
            Delta::Finish { choice: 0, reason } => self.finish = Some(reason.clone()),
            Delta::Usage { .. } => self.facts.usage = Usage::of_delta(delta),
            Delta::Other { json, .. } => self.note_other(json),
            Delta::Error { code, message } => self.end(broken(code, message), out),
            Delta::Done => self.end(self.success(), out),
            // The API has no event for it; of further completions, of which a response has none;
            // texts without bytes.
            Delta::Progress(_)
            | Delta::Pause { .. }
            | Delta::Text { .. }
            | Delta::Reasoning { .. }
            | Delta::ToolCall { .. }
            | Delta::Logprobs { .. }
            | Delta::Finish { .. } => {}
        }
    }

    fn begin(&mut self, meta: &str, out: &mut Vec<u8>) {
        let meta: Map<String, Value> = serde_json::from_str(meta).unwrap_or_default();
        let member = |name: &str| meta.get(name).cloned().unwrap_or_default();
        self.facts.model = member("model");
        self.facts.created_s = member("created");
        // Always two events, whatever the status: the numbers of later ones depend on it.
        self.put_response("response.created", out);
        self.put_response(self.status.event(), out);
    }

    fn note_other(&mut self, json: &str) {
        if let Ok(Value::Object(mut members)) = serde_json::from_str(json)
            && let Some(at) = members.remove(COMPLETED_AT)
        {
            self.facts.completed_s = at;
        } else if let Some(gap) = takeover_gap(json) {
            self.next += gap;
        } else {
            self.facts.seams.note(json);
        }
    }

    /// Returns the number of the next event.
    pub const fn next_number(&self) -> u64 {
        self.next
    }

    fn put_text(&mut self, text: &str, out: &mut Vec<u8>) {
        let is_open = matches!(&self.open, Some(OpenItem { body: ItemBody::Message { .. }, .. }));
        if !is_open {
            self.open_item(ItemBody::Message { text: String::new(), logprobs: Vec::new() }, out);
        }
        // All since the last text: a token with a part of a character has none of its own.
        let fresh = std::mem::take(&mut self.logprobs);
        // The event's log-probabilities have no bytes.
        let listed = Value::Array(fresh.iter().map(without_bytes).collect());
        if let Some(OpenItem { body: ItemBody::Message { text: all, logprobs }, .. }) =
            &mut self.open
        {
            all.push_str(text);
            logprobs.extend(fresh);
        }
        self.put_delta("response.output_text.delta", text, Some(&listed), out);
    }

    fn put_reasoning(&mut self, text: &str, out: &mut Vec<u8>) {
        self.logprobs.clear(); // those of thoughts have no place in the object
        let is_open = matches!(&self.open, Some(OpenItem { body: ItemBody::Reasoning { .. }, .. }));
        let as_summary = self.template.sums_up();
        if !is_open {
            self.open_item(ItemBody::Reasoning { text: String::new(), as_summary }, out);
        }
        if let Some(OpenItem { body: ItemBody::Reasoning { text: all, .. }, .. }) = &mut self.open {
            all.push_str(text);
        }
        let name = match as_summary {
            true => "response.reasoning_summary_text.delta",
            false => "response.reasoning_text.delta",
        };
        self.put_delta(name, text, None, out);
    }

    fn open_call(&mut self, index: u32, id: &str, name: &str, out: &mut Vec<u8>) {
        // A call has no place for them, and they must not join the next text.
        self.logprobs.clear();
        let is_open = matches!(&self.open,
            Some(OpenItem { body: ItemBody::Call { index: of, .. }, .. }) if *of == index);
        if !is_open {
            let call_id = id.to_owned();
            // The namespaces that the request gave.
            let found = NamespacedName::find(&self.template.object["tools"], name);
            let namespace = found.map(|found| found.namespace.to_owned());
            let name = found.map_or(name, |found| found.name).to_owned();
            let kind = match namespace {
                Some(_) => ToolKind::Function,
                None => self.kind_of_tool(&name),
            };
            let arguments = String::new();
            self.open_item(
                ItemBody::Call { kind, index, call_id, name, namespace, arguments },
                out,
            );
        }
    }

    fn kind_of_tool(&self, name: &str) -> ToolKind {
        let tools = self.template.object["tools"].as_array().into_iter().flatten();
        let mut custom = tools.filter(|tool| tool["type"] == "custom");
        match custom.any(|tool| tool["name"] == name) {
            true => ToolKind::Custom,
            false => ToolKind::Function,
        }
    }

    fn put_arguments(&mut self, text: &str, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        if let Some(OpenItem { body: ItemBody::Call { kind, arguments, .. }, .. }) = &mut self.open
        {
            arguments.push_str(text);
            if *kind == ToolKind::Custom {
                // Its text can be read when the arguments are whole.
                return;
            }
        }
        self.put_delta("response.function_call_arguments.delta", text, None, out);
    }

    /// Begins an item and completes the previous one.
    fn open_item(&mut self, body: ItemBody, out: &mut Vec<u8>) {
        self.close_item("completed", out);
        // With an item the engine has surely begun, whether or not it reported progress.
        if self.status == ResponseStatus::Queued {
            self.status = ResponseStatus::InProgress;
            self.put_response("response.in_progress", out);
        }
        let response = self.template.id().trim_start_matches("resp_");
        let id = format!("{}_{response}{:04x}", body.id_prefix(), self.output.len());
        let item = OpenItem { id, body };
        let index = self.output.len();
        self.put(
            "response.output_item.added",
            out,
            || json!({"output_index": index, "item": item.announced()}),
        );
        if let Some(part) = item.empty_part() {
            let (name, part) = match item.is_summary() {
                true => ("response.reasoning_summary_part.added", summary_part(&part)),
                false => ("response.content_part.added", part),
            };
            let place = item.place(index);
            self.put(name, out, || with(place, json!({"part": part})));
        }
        self.open = Some(item);
    }

    fn close_item(&mut self, status: &str, out: &mut Vec<u8>) {
        self.put_custom_input(out);
        let Some(mut item) = self.open.take() else { return };
        // The last tokens may have had no text that would have taken these along.
        if let ItemBody::Message { logprobs, .. } = &mut item.body {
            logprobs.append(&mut self.logprobs);
        }
        let index = self.output.len();
        let place = item.place(index);
        let whole = item.json(status);
        self.put_content_done(&item, &place, out);
        if let Some(part) = item.part() {
            let (name, part) = match item.is_summary() {
                true => ("response.reasoning_summary_part.done", summary_part(&part)),
                false => ("response.content_part.done", part),
            };
            self.put(name, out, || with(place, json!({"part": part})));
        }
        self.put(
            "response.output_item.done",
            out,
            || json!({"output_index": index, "item": whole}),
        );
        self.output.push(whole);
    }

    /// Writes the event of an item's whole content.
    fn put_content_done(&mut self, item: &OpenItem, place: &Value, out: &mut Vec<u8>) {
        match &item.body {
            ItemBody::Message { text, logprobs } => {
                let listed: Vec<Value> = logprobs.iter().map(without_bytes).collect();
                self.put("response.output_text.done", out, || {
                    with(place.clone(), json!({"text": text, "logprobs": listed}))
                });
            }
            ItemBody::Reasoning { text, as_summary } => {
                let name = match as_summary {
                    true => "response.reasoning_summary_text.done",
                    false => "response.reasoning_text.done",
                };
                self.put(name, out, || with(place.clone(), json!({"text": text})));
            }
            ItemBody::Call { kind: ToolKind::Custom, arguments, .. } => {
                self.put("response.custom_tool_call_input.done", out, || {
                    with(place.clone(), json!({"input": custom_input(arguments)}))
                });
            }
            ItemBody::Call { name, arguments, .. } => {
                self.put("response.function_call_arguments.done", out, || {
                    with(place.clone(), json!({"name": name, "arguments": arguments}))
                });
            }
        }
    }

    /// Writes the text of a custom tool that is being called, in one piece.
    fn put_custom_input(&mut self, out: &mut Vec<u8>) {
        if let Some(OpenItem { body: ItemBody::Call { kind, arguments, .. }, .. }) = &self.open
            && *kind == ToolKind::Custom
        {
            let input = custom_input(arguments);
            self.put_delta("response.custom_tool_call_input.delta", &input, None, out);
        }
    }

    /// Returns the final status of a response without an error.
    fn success(&self) -> ResponseStatus {
        match self.finish.as_deref() {
            Some("length") => ResponseStatus::Incomplete("max_output_tokens"),
            Some("content_filter") => ResponseStatus::Incomplete("content_filter"),
            _ => ResponseStatus::Completed,
        }
    }

    fn end(&mut self, status: ResponseStatus, out: &mut Vec<u8>) {
        let item = if status == ResponseStatus::Completed { "completed" } else { "incomplete" };
        // Before the status: of a loss, every reader hears the last event alone, not these.
        self.close_item(item, out);
        self.status = status;
        self.put_response(self.status.event(), out);
    }

    fn put_response(&mut self, name: &'static str, out: &mut Vec<u8>) {
        let Some(number) = self.number() else { return };
        put_event(name, number, json!({"response": self.object()}), out);
    }

    fn put(&mut self, name: &'static str, out: &mut Vec<u8>, members: impl FnOnce() -> Value) {
        let Some(number) = self.number() else { return };
        put_event(name, number, members(), out);
    }

    /// Writes an event of text, the most frequent kind, without building a tree of values.
    fn put_delta(
        &mut self,
        name: &'static str,
        text: &str,
        logprobs: Option<&Value>,
        out: &mut Vec<u8>,
    ) {
        let Some(number) = self.number() else { return };
        let Some(item) = &self.open else { return };
        let text = Value::from(text).to_string();
        let begin = out.len();
        let index = self.output.len();
        let mut event = format!(
            "event: {name}\ndata: {{\"type\":\"{name}\",\"sequence_number\":{number},\
             \"item_id\":\"{}\",\"output_index\":{index},",
            item.id
        );
        if let Some(member) = item.part_index() {
            event.push_str(&format!("\"{member}\":0,"));
        }
        event.push_str("\"delta\":");
        event.push_str(&text);
        if let Some(logprobs) = logprobs {
            event.push_str(&format!(",\"logprobs\":{logprobs}"));
        }
        out.extend_from_slice(event.as_bytes());
        if let Some(padding) = &mut self.padding {
            // The frame's length is no secret; the text's is what padding hides.
            let frame = out.len() - begin - text.len();
            padding.put(frame, text.len(), out);
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// Returns the number of the next event if it is to be written, and advances the count.
    fn number(&mut self) -> Option<u64> {
        let number = self.next;
        // Events that this reader does not want count too, or its numbers would be its own.
        self.next += 1;
        match self.wanted {
            EventRange::Nothing => None,
            EventRange::From(first) if number >= first => Some(number),
            // A server that was restarted lost the last events before its end. A reader that has
            // seen those still has to hear of the end.
            EventRange::From(first) if self.is_lost() => Some(first),
            EventRange::From(_) => None,
        }
    }
}

impl EventWriter for ResponseEvents {
    fn write(&mut self, _id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        self.apply(delta, out);
        Ok(())
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let number = self.next;
        self.next += 1;
        let members = json!({"code": error.code(), "message": error.to_string(), "param": null});
        put_event("error", number, members, out);
    }
}

/// Returns the record of a takeover at the event that would have been number `at`, which leaves
/// `gaps` times [`NUMBERS_APART`] numbers out.
pub fn takeover_record(at: u64, gaps: u64) -> String {
    json!({TAKEN_OVER_AT: at, GAP: gaps * NUMBERS_APART}).to_string()
}

/// Returns the gap that a takeover leaves in the numbers of events, if `json` records a takeover.
pub fn takeover_gap(json: &str) -> Option<u64> {
    // Nearly all of these are something else.
    json.contains(TAKEN_OVER_AT).then_some(())?;
    let record: Value = serde_json::from_str(json).ok()?;
    record.get(TAKEN_OVER_AT)?.as_u64()?;
    // One that an earlier version has written has no gap.
    Some(record.get(GAP).and_then(Value::as_u64).unwrap_or(NUMBERS_APART))
}

fn broken(code: &str, message: &str) -> ResponseStatus {
    match code {
        CANCELLED => ResponseStatus::Cancelled,
        _ => ResponseStatus::Failed { code: code.to_owned(), message: message.to_owned() },
    }
}

fn put_event(name: &'static str, number: u64, members: Value, out: &mut Vec<u8>) {
    let event = with(json!({"type": name, "sequence_number": number}), members);
    out.extend_from_slice(format!("event: {name}\ndata: {event}\n\n").as_bytes());
}

/// Returns `object` with further members.
fn with(mut object: Value, members: Value) -> Value {
    if let (Value::Object(object), Value::Object(members)) = (&mut object, members) {
        object.extend(members);
    }
    object
}

/// Returns the bytes that a record adds to the output.
fn output_bytes(delta: &Delta) -> usize {
    match delta {
        Delta::Text { text, .. } | Delta::Reasoning { text, .. } => text.len(),
        Delta::ToolCall { arguments, .. } => arguments.len(),
        Delta::Logprobs { json, .. } => json.len(),
        _ => 0,
    }
}

fn token_logprobs(json: &str) -> Vec<Value> {
    let mut record: Value = serde_json::from_str(json).unwrap_or_default();
    match record.get_mut("content").map(Value::take) {
        Some(Value::Array(tokens)) => tokens,
        _ => Vec::new(),
    }
}

/// Returns a token's log-probabilities in the events' format, without `bytes`.
fn without_bytes(token: &Value) -> Value {
    let mut token = token.clone();
    // `shift_remove` below leaves the other members in their order.
    let tops = token.get_mut("top_logprobs").and_then(Value::as_array_mut);
    for top in tops.into_iter().flatten() {
        top.as_object_mut().map(|top| top.shift_remove("bytes"));
    }
    token.as_object_mut().map(|token| token.shift_remove("bytes"));
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(background: bool) -> ResponseTemplate {
        let id = format!("resp_{:032x}", 1);
        ResponseTemplate { object: json!({"id": id, "object": "response"}), background }
    }

    /// Returns an answer with reasoning, text, two calls, and text again.
    fn records() -> Vec<Delta> {
        let call = |index: u32, id: &str, arguments: &str| Delta::ToolCall {
            choice: 0,
            index,
            tokens: 1,
            id: id.into(),
            name: if id.is_empty() { String::new() } else { "f".into() },
            arguments: arguments.into(),
        };
        let thought = |text: &str| Delta::Reasoning { choice: 0, tokens: 1, text: text.into() };
        vec![
            Delta::Open { meta: r#"{"model":"m","created":5}"#.into() },
            thought("I "),
            thought("think."),
            Delta::text("Let me "),
            Delta::text(""),
            Delta::text("see."),
            call(0, "a", ""),
            call(0, "", "{}"),
            call(1, "b", "[1]"),
            Delta::text("So."),
            Delta::Finish { choice: 0, reason: "stop".into() },
            Delta::Other { choice: 0, json: r#"{"completed_at":7}"#.into() },
            Delta::Usage { prompt: 3, completion: 4, cached: 1, reasoning: 2 },
            Delta::Done,
        ]
    }

    #[test]
    fn a_heartbeat_ends_no_event() {
        let beat = ResponseEvents::new(template(false), EventRange::From(0)).heartbeat();
        assert!(beat.starts_with(b":") && beat.ends_with(b"\n") && !beat.ends_with(b"\n\n"));
    }

    fn read(records: &[Delta], background: bool, wanted: EventRange) -> (Vec<Value>, Value) {
        let mut events = ResponseEvents::new(template(background), wanted);
        let mut out = Vec::new();
        for delta in records {
            events.write(None, delta, &mut out).unwrap();
        }
        let out = String::from_utf8(out).unwrap();
        let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
        (data.map(|data| serde_json::from_str(data).unwrap()).collect(), events.object())
    }

    #[test]
    fn thoughts_text_and_calls_are_items_in_their_order() {
        let (events, object) = read(&records(), false, EventRange::From(0));
        let output = object["output"].as_array().unwrap();
        let kinds: Vec<&str> = output.iter().filter_map(|item| item["type"].as_str()).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call", "message"]);
        assert_eq!(output[0]["content"][0]["text"], "I think.");
        assert_eq!(output[0]["summary"], json!([]));
        assert_eq!(output[1]["content"][0]["text"], "Let me see.");
        assert_eq!((&output[2]["call_id"], &output[3]["arguments"]), (&json!("a"), &json!("[1]")));
        assert_eq!((&output[2]["name"], output[2].get("namespace")), (&json!("f"), None));
        assert_eq!(object["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
        assert_eq!((&object["created_at"], &object["completed_at"]), (&json!(5), &json!(7)));
        // What the deltas say is what the items have, each under its own index.
        for (index, item) in output.iter().enumerate() {
            let deltas = events.iter().filter(|event| event["output_index"] == index);
            let text: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
            let whole = item["content"][0]["text"].as_str().or(item["arguments"].as_str());
            assert_eq!(Some(text.as_str()), whole);
        }
        let ids: std::collections::BTreeSet<&str> =
            output.iter().filter_map(|item| item["id"].as_str()).collect();
        assert_eq!(ids.len(), output.len());
    }

    #[test]
    fn reasoning_comes_as_a_summary_to_a_client_that_asked_for_one() {
        let mut template = template(false);
        template.object["reasoning"] = json!({"summary": "auto"});
        let mut events = ResponseEvents::new(template, EventRange::From(0));
        let mut out = Vec::new();
        for delta in &records() {
            events.write(None, delta, &mut out).unwrap();
        }
        let out = String::from_utf8(out).unwrap();
        let names = out.lines().filter_map(|line| line.strip_prefix("event: response."));
        let names: Vec<&str> = names.filter(|name| name.contains("reasoning")).collect();
        let wanted = [
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
        ];
        assert_eq!(names, wanted);
        assert!(out.contains("\"summary_index\":0,\"delta\":\"I \""), "{out}");
        let item = &events.object()["output"][0];
        assert_eq!(item["summary"], json!([{"type": "summary_text", "text": "I think."}]));
        assert_eq!(item["content"][0]["text"], "I think.");
    }

    #[test]
    fn a_call_names_the_namespace_of_its_function() {
        let mut template = template(false);
        let function = json!({"type": "function", "name": "add"});
        let space = json!({"type": "namespace", "name": "mcp__adder", "tools": [function]});
        template.object["tools"] = json!([space]);
        let mut events = ResponseEvents::new(template, EventRange::From(0));
        let call = Delta::ToolCall {
            choice: 0,
            index: 0,
            tokens: 1,
            id: "a".into(),
            name: "mcp__adder__add".into(),
            arguments: "{}".into(),
        };
        for delta in [Delta::Open { meta: "{}".into() }, call, Delta::Done] {
            events.write(None, &delta, &mut Vec::new()).unwrap();
        }
        let item = &events.object()["output"][0];
        assert_eq!((&item["namespace"], &item["name"]), (&json!("mcp__adder"), &json!("add")));
    }

    #[test]
    fn the_text_of_a_custom_tool_comes_when_it_is_whole() {
        let mut template = template(false);
        template.object["tools"] = json!([{"type": "custom", "name": "patch"}]);
        let mut events = ResponseEvents::new(template, EventRange::From(0));
        let mut out = Vec::new();
        let call = |name: &str, arguments: &str| Delta::ToolCall {
            choice: 0,
            index: 0,
            tokens: 1,
            id: "a".into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        events.write(None, &Delta::Open { meta: "{}".into() }, &mut out).unwrap();
        events.write(None, &call("patch", r#"{"input": "*** Be"#), &mut out).unwrap();
        assert_eq!(events.object()["output"][0]["input"], "");
        events.write(None, &call("", r#"gin\n"}"#), &mut out).unwrap();
        events.write(None, &Delta::Done, &mut out).unwrap();
        let item = &events.object()["output"][0];
        assert_eq!((&item["type"], &item["name"]), (&json!("custom_tool_call"), &json!("patch")));
        assert_eq!((&item["input"], &item["call_id"]), (&json!("*** Begin\n"), &json!("a")));
        let out = String::from_utf8(out).unwrap();
        let names = out.lines().filter_map(|line| line.strip_prefix("event: response."));
        let wanted = [
            "created",
            "in_progress",
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(names.collect::<Vec<_>>(), wanted);
        assert!(out.contains(r#""delta":"*** Begin\n""#), "{out}");
    }

    #[test]
    fn reading_on_from_any_event_gives_the_others_and_the_same_object() {
        for background in [false, true] {
            let (all, object) = read(&records(), background, EventRange::From(0));
            for first in 0..=all.len() {
                let (rest, same) = read(&records(), background, EventRange::From(first as u64));
                assert_eq!(rest, all[first..], "from event {first}");
                assert_eq!(same, object);
            }
            assert_eq!(read(&records(), background, EventRange::Nothing), (Vec::new(), object));
        }
    }

    #[test]
    fn a_reader_hears_of_a_loss_even_if_it_has_seen_more_than_was_kept() {
        let mut records = records()[..5].to_vec();
        records.push(Delta::Error { code: LOST.into(), message: "restarted".into() });
        let (all, object) = read(&records, true, EventRange::From(0));
        assert_eq!(object["status"], "failed");
        assert_eq!(object["output"][1]["status"], "incomplete");
        let (rest, _) = read(&records, true, EventRange::From(1000));
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0]["sequence_number"], 1000);
        assert_eq!(rest[0]["response"], all.last().unwrap()["response"]);
    }

    #[test]
    fn padding_hides_the_length_of_text_and_changes_nothing_else() {
        let texts = ["a", "abcdefgh", "é"];
        let lengths = texts.map(|text| {
            let padding = Some(Obfuscation::new(3, true));
            let mut events =
                ResponseEvents::new(template(false), EventRange::From(0)).padded(padding);
            events.write(None, &Delta::text("begin"), &mut Vec::new()).unwrap();
            let mut out = Vec::new();
            events.write(None, &Delta::text(text), &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            let data = out.trim_end().split_once("data: ").unwrap().1;
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(event["delta"], text);
            assert!(event["obfuscation"].is_string());
            out.len()
        });
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
    }
}
