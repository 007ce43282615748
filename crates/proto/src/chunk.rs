//! From a log's records to OpenAI's chunks (`spec/session.md`, section 6): what a reader
//! over server-sent events gets, and what the local proxy tells any SDK.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use crate::json::{members, put_string};
use crate::{Delta, Error};

/// Choices that a log may have: far above what any request asks for.
const MAX_CHOICES: usize = 4096;

/// What stands under `usage` in chunks (S-6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UsageInChunks {
    /// Nothing; a Usage record is a chunk.
    Absent,
    /// `null`; a Usage record is a chunk.
    Null,
    /// The counts of the Usage record before; the last one is a chunk.
    Counts,
}

/// What all chunks of an answer have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Envelope {
    /// `{"id":…,"object":…,"created":…,"model":…`.
    start: String,
    chat: bool,
    usage: UsageInChunks,
}

impl Envelope {
    fn parse(meta: &str) -> Option<Self> {
        let members = members(meta)?;
        let value = |wanted| members.iter().find(|(name, _)| *name == wanted).map(|(_, it)| *it);
        let chat = match value("object")? {
            "\"chat.completion.chunk\"" => true,
            "\"text_completion\"" => false,
            _ => return None,
        };
        let usage = match value("usage") {
            None | Some("\"none\"") => UsageInChunks::Absent,
            Some("\"null\"") => UsageInChunks::Null,
            Some("\"counts\"") => UsageInChunks::Counts,
            Some(_) => return None,
        };
        let mut start = String::from("{");
        for (at, name) in ["id", "object", "created", "model"].into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(start, "{comma}\"{name}\":{}", value(name)?);
        }
        Some(Self { start, chat, usage })
    }
}

/// Writes the records of one log, in their order, as server-sent events of chunks.
///
/// ```
/// # use loquent_proto::{Delta, chunk::Chunks};
/// let meta = r#"{"id":"a","object":"text_completion","created":1,"model":"m","usage":"none"}"#;
/// let (mut chunks, mut out) = (Chunks::new(), String::new());
/// chunks.write(80, &Delta::Open { meta: meta.into() }, &mut out)?;
/// chunks.write(84, &Delta::text("Hi"), &mut out)?;
/// assert!(out.starts_with("id: 84\ndata: {\"id\":\"a\""));
/// # Ok::<(), loquent_proto::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Chunks {
    envelope: Option<Envelope>,
    /// Choices whose role was told.
    started: BTreeSet<u32>,
    /// Log probabilities that wait for their text.
    logprobs: BTreeMap<u32, String>,
    /// The latest counts, as JSON.
    usage: Option<String>,
}

impl Chunks {
    /// Chunks of a log that is read from its beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chunks of a log that is read from somewhere in it: `meta` is that of its Open record,
    /// `started` are the choices that had a chunk before.
    ///
    /// # Errors
    /// [`Error::Malformed`] for meta that does not say what S-6.1 asks for.
    pub fn resume(meta: &str, started: impl IntoIterator<Item = u32>) -> Result<Self, Error> {
        let envelope = Some(Envelope::parse(meta).ok_or(Error::Malformed)?);
        Ok(Self { envelope, started: started.into_iter().collect(), ..Self::default() })
    }

    /// Takes the record that ends at log `offset`, and appends the events that it gives to
    /// `out`: none (Open, Logprobs, kinds without a chunk) or more. The last of them has the
    /// offset as its id.
    ///
    /// After [`Delta::Error`] the connection must be broken, not ended (S-6.2).
    ///
    /// # Errors
    /// [`Error::Malformed`] for a record before Open, meta that does not say what S-6.1 asks
    /// for, an Other that is no object, or more than 4096 choices.
    pub fn write(&mut self, offset: u64, delta: &Delta, out: &mut String) -> Result<(), Error> {
        let start = out.len();
        self.chunks(delta, out)?;
        if out.len() > start {
            // Readers keep the id of the last event that had one.
            let last = out[start..].rfind("data: ").map_or(start, |at| start + at);
            out.insert_str(last, &format!("id: {offset}\n"));
        }
        Ok(())
    }

    /// Whether a record was taken whose chunk is not written yet: whoever goes on elsewhere
    /// from here would lose it.
    pub fn holds_record(&self) -> bool {
        let counts = |envelope: &Envelope| envelope.usage == UsageInChunks::Counts;
        let held_usage = self.usage.is_some() && self.envelope.as_ref().is_some_and(counts);
        !self.logprobs.is_empty() || held_usage
    }

    fn chunks(&mut self, delta: &Delta, out: &mut String) -> Result<(), Error> {
        match delta {
            Delta::Open { meta } => {
                self.envelope = Some(Envelope::parse(meta).ok_or(Error::Malformed)?);
            }
            Delta::Logprobs { choice, json } => {
                self.envelope()?;
                self.logprobs.insert(*choice, json.clone());
                self.check_bound()?;
            }
            Delta::Text { choice, text, .. } => self.text(*choice, "content", text, out)?,
            Delta::Reasoning { choice, text, .. } => {
                self.text(*choice, "reasoning_content", text, out)?;
            }
            Delta::ToolCall { .. } => self.tool_call(delta, out)?,
            Delta::Finish { choice, reason } => self.finish(*choice, reason, out)?,
            Delta::Usage { .. } => self.count(delta, out)?,
            Delta::Other { json, .. } => self.other(json, out)?,
            Delta::Error { code, message } => put_error(code, message, out),
            Delta::Done => self.done(out)?,
        }
        Ok(())
    }

    fn envelope(&self) -> Result<&Envelope, Error> {
        self.envelope.as_ref().ok_or(Error::Malformed)
    }

    fn check_bound(&self) -> Result<(), Error> {
        let most = self.started.len().max(self.logprobs.len());
        if most > MAX_CHOICES { Err(Error::Malformed) } else { Ok(()) }
    }

    /// Appends a chunk of one choice; `body` is what stands beside its index.
    fn choice(&mut self, choice: u32, body: &str, out: &mut String) -> Result<(), Error> {
        const ROLE: &str = "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\
                            \"logprobs\":null,\"finish_reason\":null";
        let first = self.started.insert(choice);
        self.check_bound()?;
        if first && self.envelope()?.chat {
            self.put_choice(choice, ROLE, out)?;
        }
        self.put_choice(choice, body, out)
    }

    fn put_choice(&self, choice: u32, body: &str, out: &mut String) -> Result<(), Error> {
        let envelope = self.envelope()?;
        let _ = write!(out, "data: {},\"choices\":[{{\"index\":{choice},{body}}}]", envelope.start);
        match envelope.usage {
            UsageInChunks::Absent => {}
            UsageInChunks::Null => out.push_str(",\"usage\":null"),
            UsageInChunks::Counts => {
                let _ = write!(out, ",\"usage\":{}", self.usage.as_deref().unwrap_or("null"));
            }
        }
        out.push_str("}\n\n");
        Ok(())
    }

    fn text(&mut self, choice: u32, name: &str, text: &str, out: &mut String) -> Result<(), Error> {
        let mut body = String::with_capacity(text.len() + 64);
        match (self.envelope()?.chat, name) {
            (true, _) => {
                let _ = write!(body, "\"delta\":{{\"{name}\":");
                put_string(&mut body, text);
                body.push('}');
            }
            (false, "content") => {
                body.push_str("\"text\":");
                put_string(&mut body, text);
            }
            (false, _) => {
                let _ = write!(body, "\"text\":\"\",\"{name}\":");
                put_string(&mut body, text);
            }
        }
        let logprobs = self.logprobs.get(&choice).map_or("null", String::as_str);
        let _ = write!(body, ",\"logprobs\":{logprobs},\"finish_reason\":null");
        self.choice(choice, &body, out)?;
        self.logprobs.remove(&choice);
        Ok(())
    }

    fn tool_call(&mut self, delta: &Delta, out: &mut String) -> Result<(), Error> {
        let Delta::ToolCall { choice, index, id, name, arguments, .. } = delta else {
            return Ok(());
        };
        let mut body = format!("\"delta\":{{\"tool_calls\":[{{\"index\":{index}");
        if !id.is_empty() {
            body.push_str(",\"id\":");
            put_string(&mut body, id);
            body.push_str(",\"type\":\"function\"");
        }
        body.push_str(",\"function\":{");
        if !name.is_empty() {
            body.push_str("\"name\":");
            put_string(&mut body, name);
            body.push(',');
        }
        body.push_str("\"arguments\":");
        put_string(&mut body, arguments);
        body.push_str("}}]},\"logprobs\":null,\"finish_reason\":null");
        self.choice(*choice, &body, out)
    }

    fn finish(&mut self, choice: u32, reason: &str, out: &mut String) -> Result<(), Error> {
        let nothing = if self.envelope()?.chat { "\"delta\":{}" } else { "\"text\":\"\"" };
        let mut body = format!("{nothing},\"logprobs\":null,\"finish_reason\":");
        put_string(&mut body, reason);
        self.choice(choice, &body, out)
    }

    fn count(&mut self, delta: &Delta, out: &mut String) -> Result<(), Error> {
        let counts = self.envelope()?.usage == UsageInChunks::Counts;
        let usage = usage_json(delta);
        if !counts {
            self.put_usage(&usage, out)?;
        }
        self.usage = Some(usage);
        Ok(())
    }

    fn put_usage(&self, usage: &str, out: &mut String) -> Result<(), Error> {
        let start = &self.envelope()?.start;
        let _ = write!(out, "data: {start},\"choices\":[],\"usage\":{usage}}}\n\n");
        Ok(())
    }

    /// A chunk with the object's members beside the envelope.
    fn other(&self, json: &str, out: &mut String) -> Result<(), Error> {
        let members = members(json).ok_or(Error::Malformed)?;
        let _ = write!(out, "data: {}", self.envelope()?.start);
        if !members.iter().any(|(name, _)| *name == "choices") {
            out.push_str(",\"choices\":[]");
        }
        for (name, value) in members {
            let _ = write!(out, ",\"{name}\":{value}");
        }
        out.push_str("}\n\n");
        Ok(())
    }

    fn done(&mut self, out: &mut String) -> Result<(), Error> {
        if self.envelope()?.usage == UsageInChunks::Counts
            && let Some(usage) = self.usage.take()
        {
            self.put_usage(&usage, out)?;
        }
        out.push_str("data: [DONE]\n\n");
        Ok(())
    }
}

/// A [`Delta::Usage`] as OpenAI's `usage` object.
fn usage_json(delta: &Delta) -> String {
    let Delta::Usage { prompt, completion, cached, reasoning } = *delta else {
        return String::from("null");
    };
    let total = prompt.saturating_add(completion);
    let mut json = format!(
        "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\
         \"total_tokens\":{total},\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}"
    );
    if reasoning > 0 {
        let details = format!("{{\"reasoning_tokens\":{reasoning}}}");
        let _ = write!(json, ",\"completion_tokens_details\":{details}");
    }
    json.push('}');
    json
}

fn put_error(code: &str, message: &str, out: &mut String) {
    out.push_str("data: {\"error\":{\"message\":");
    put_string(out, message);
    out.push_str(",\"type\":\"server_error\",\"param\":null,\"code\":");
    match code {
        "" => out.push_str("null"),
        code => put_string(out, code),
    }
    out.push_str("}}\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn meta(object: &str, usage: &str) -> Delta {
        let meta =
            json!({"id": "x\"y", "object": object, "created": 7, "model": "m", "usage": usage});
        Delta::Open { meta: meta.to_string() }
    }

    /// The events of a log: ids and data.
    fn events(deltas: &[Delta]) -> Vec<(Option<u64>, String)> {
        let (mut chunks, mut out) = (Chunks::new(), String::new());
        for (at, delta) in deltas.iter().enumerate() {
            chunks.write(at as u64, delta, &mut out).unwrap();
        }
        let event = |event: &str| {
            let (id, data) = match event.strip_prefix("id: ") {
                Some(rest) => {
                    rest.split_once('\n').map(|(id, data)| (id.parse().ok(), data)).unwrap()
                }
                None => (None, event),
            };
            (id, data.strip_prefix("data: ").unwrap().to_owned())
        };
        out.split_terminator("\n\n").map(event).collect()
    }

    fn data(event: &(Option<u64>, String)) -> Value {
        serde_json::from_str(&event.1).unwrap_or_else(|error| panic!("{}: {error}", event.1))
    }

    fn finish(choice: u32) -> Delta {
        Delta::Finish { choice, reason: "stop".into() }
    }

    fn text(choice: u32, text: &str) -> Delta {
        Delta::Text { choice, tokens: 1, text: text.into() }
    }

    fn usage(completion: u64) -> Delta {
        Delta::Usage { prompt: 5, completion, cached: 2, reasoning: 0 }
    }

    #[test]
    fn a_chat_begins_each_choice_with_its_role_and_has_ids_on_pieces_only() {
        let log = [
            meta("chat.completion.chunk", "none"),
            text(0, "a\nb"),
            text(1, "c"),
            finish(0),
            finish(1),
            Delta::Done,
        ];
        let events = events(&log);
        let ids: Vec<_> = events.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [None, Some(1), None, Some(2), Some(3), Some(4), Some(5)]);
        let role = json!({
            "id": "x\"y", "object": "chat.completion.chunk", "created": 7, "model": "m",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""},
                         "logprobs": null, "finish_reason": null}],
        });
        assert_eq!(data(&events[0]), role);
        assert_eq!(data(&events[1])["choices"][0]["delta"], json!({"content": "a\nb"}));
        assert_eq!(data(&events[3])["choices"][0]["index"], 1);
        assert_eq!(data(&events[4])["choices"][0]["finish_reason"], "stop");
        assert_eq!(events[6].1, "[DONE]");
    }

    #[test]
    fn a_text_completion_has_no_roles() {
        let events = events(&[meta("text_completion", "null"), text(0, "a"), finish(0)]);
        assert_eq!(events.len(), 2);
        let choice = json!({"index": 0, "text": "a", "logprobs": null, "finish_reason": null});
        assert_eq!(data(&events[0])["choices"][0], choice);
        assert_eq!(data(&events[0])["usage"], Value::Null);
        assert_eq!(data(&events[1])["choices"][0]["text"], "");
    }

    #[test]
    fn logprobs_wait_for_the_text_of_their_choice() {
        let logprobs = Delta::Logprobs { choice: 1, json: "{\"content\":[]}".into() };
        let log = [meta("text_completion", "none"), logprobs, text(0, "a"), text(1, "b")];
        let events = events(&log);
        assert_eq!(data(&events[0])["choices"][0]["logprobs"], Value::Null);
        assert_eq!(data(&events[1])["choices"][0]["logprobs"], json!({"content": []}));
        let mut chunks = Chunks::new();
        for (at, held) in [(0, false), (1, true), (2, true), (3, false)] {
            chunks.write(0, &log[at], &mut String::new()).unwrap();
            assert_eq!(chunks.holds_record(), held, "after record {at}");
        }
    }

    #[test]
    fn usage_is_a_chunk_of_its_own_or_in_every_chunk() {
        let whole = json!({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
                           "prompt_tokens_details": {"cached_tokens": 2}});
        let log = [meta("text_completion", "null"), text(0, "a"), usage(3), Delta::Done];
        let last = events(&log);
        assert_eq!(data(&last[1])["usage"], whole);
        assert_eq!(data(&last[1])["choices"], json!([]));
        let log =
            [meta("text_completion", "counts"), usage(1), text(0, "a"), usage(3), Delta::Done];
        let each = events(&log);
        assert_eq!(data(&each[0])["usage"]["completion_tokens"], 1);
        assert_eq!(data(&each[1])["usage"], whole);
        assert_eq!((each[1].0, each[2].0), (None, Some(4)));
    }

    #[test]
    fn tool_calls_name_the_function_once() {
        let call = |id: &str, name: &str, arguments: &str| Delta::ToolCall {
            choice: 0,
            index: 2,
            tokens: 1,
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        let log =
            [meta("chat.completion.chunk", "none"), call("c1", "f", "{\""), call("", "", "a")];
        let events = events(&log);
        let calls = |at: usize| data(&events[at])["choices"][0]["delta"]["tool_calls"].clone();
        let first = json!([{"index": 2, "id": "c1", "type": "function",
                            "function": {"name": "f", "arguments": "{\""}}]);
        assert_eq!(calls(1), first);
        assert_eq!(calls(2), json!([{"index": 2, "function": {"arguments": "a"}}]));
    }

    #[test]
    fn other_members_stand_beside_the_envelope() {
        let other = |json: &str| Delta::Other { choice: 0, json: json.into() };
        let log = [
            meta("chat.completion.chunk", "none"),
            other(r#"{"timings":{"a":[1]}}"#),
            other(r#"{"choices":[{"index":0,"delta":{"x":1}}]}"#),
        ];
        let events = events(&log);
        assert_eq!(data(&events[0])["timings"], json!({"a": [1]}));
        assert_eq!(data(&events[0])["choices"], json!([]));
        assert_eq!(data(&events[1])["choices"][0]["delta"]["x"], 1);
    }

    #[test]
    fn a_resumed_log_goes_on_as_if_it_had_been_read() {
        let open = meta("chat.completion.chunk", "null");
        let (mut whole, mut rest) = (String::new(), String::new());
        let mut chunks = Chunks::new();
        for (at, delta) in [&open, &text(3, "a")].into_iter().enumerate() {
            chunks.write(at as u64, delta, &mut whole).unwrap();
        }
        let Delta::Open { meta } = &open else { unreachable!() };
        let mut resumed = Chunks::resume(meta, [3]).unwrap();
        whole.clear();
        for (at, delta) in [text(3, "b"), text(1, "c")].iter().enumerate() {
            chunks.write(at as u64, delta, &mut whole).unwrap();
            resumed.write(at as u64, delta, &mut rest).unwrap();
        }
        assert_eq!(rest, whole);
    }

    #[test]
    fn an_error_is_openais() {
        let error = Delta::Error { code: "boom".into(), message: "it \"broke\"".into() };
        let events = events(&[meta("text_completion", "none"), error]);
        let expected = json!({"error": {"message": "it \"broke\"", "type": "server_error",
                                        "param": null, "code": "boom"}});
        assert_eq!(data(&events[0]), expected);
    }

    #[test]
    fn a_log_that_does_not_open_is_refused() {
        let mut out = String::new();
        let refused = |delta: &Delta, out: &mut String| Chunks::new().write(0, delta, out);
        assert_eq!(refused(&text(0, "a"), &mut out), Err(Error::Malformed));
        for bad in ["", "{}", r#"{"object":"other","id":1,"created":1,"model":1}"#] {
            let open = Delta::Open { meta: bad.into() };
            assert_eq!(refused(&open, &mut out), Err(Error::Malformed), "{bad}");
        }
        assert_eq!(out, "");
    }
}
