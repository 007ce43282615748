//! Converts a log's records to OpenAI chunks (`spec/session.md`, section 6): the only writer of
//! chunks, for event streams of the server and of the local proxy alike.
//!
//! Writing a chunk costs about as much as copying it: the part common to all chunks of an answer is
//! rendered once, and the rest is appended to one buffer.

use alloc::string::String;
use alloc::vec::Vec;

use crate::delta::MAX_RECORD_BYTES;
use crate::json::{members, put_number, put_string};
use crate::obfuscation::Obfuscation;
use crate::progress::put_pause;
use crate::{Delta, Error, Progress, TokenLists};

/// Maximum choices of one log: far above what any request asks for.
const MAX_CHOICES: usize = 4096;

/// Replaces [`CHOICES`] in chunks without choices.
const NO_CHOICES: &[u8] = b",\"choices\":[]";
/// Text between the common members and a choice's index.
const CHOICES: &[u8] = b",\"choices\":[{\"index\":";
/// The end of an event.
const END: &[u8] = b"}\n\n";

/// Content of `usage` in chunks with choices (S-6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageInChunks {
    /// No member; a Usage record becomes a chunk of its own.
    Absent,
    /// `null`; a Usage record becomes a chunk of its own.
    Null,
    /// The counts of the latest Usage record.
    Counts,
}

impl UsageInChunks {
    /// Name of the setting in an Open record's meta.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "none",
            Self::Null => "null",
            Self::Counts => "counts",
        }
    }

    /// Parses the setting from `json`, a JSON string; a missing one is [`Self::Absent`].
    fn parse(json: Option<&str>) -> Option<Self> {
        let all = [Self::Absent, Self::Null, Self::Counts];
        let name = match json {
            None => return Some(Self::Absent),
            Some(json) => json.strip_prefix('"')?.strip_suffix('"')?,
        };
        all.into_iter().find(|usage| usage.name() == name)
    }
}

/// Common part of all chunks of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Envelope {
    /// `data: {"id":…,"object":…,"created":…,"model":…` and then [`CHOICES`].
    lead: Vec<u8>,
    chat: bool,
    usage: UsageInChunks,
    /// Set if the request asked for padding (`true`) or against it (`false`).
    obfuscation: Option<bool>,
    /// True if the request asked for progress, which only then has chunks (S-6.7), and only then
    /// pauses have comments (S-6.8): many clients fail at a comment.
    progress: bool,
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
        let usage = UsageInChunks::parse(value("usage"))?;
        let obfuscation = value("obfuscation").map(|it| it == "true");
        let progress = value("progress") == Some("true");
        let mut lead = b"data: {".to_vec();
        for (at, name) in ["id", "object", "created", "model"].into_iter().enumerate() {
            lead.extend_from_slice(if at == 0 { b"\"" } else { b",\"" });
            put_all(&mut lead, [name.as_bytes(), b"\":", value(name)?.as_bytes()]);
        }
        if let Some(fingerprint) = value("system_fingerprint") {
            put_all(&mut lead, [b",\"system_fingerprint\":", fingerprint.as_bytes()]);
        }
        lead.extend_from_slice(CHOICES);
        Some(Self { lead, chat, usage, obfuscation, progress })
    }

    /// Begins an event without choices: writes everything before the first member of its own.
    fn open_bare(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lead[..self.lead.len() - CHOICES.len()]);
    }

    /// Begins an event of one choice: writes everything before the choice's members.
    fn open_choice(&self, choice: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lead);
        put_number(out, u64::from(choice));
        out.push(b',');
    }

    /// Writes an event of choice 0 without content, except for [`END`]. It has a choice, since
    /// clients look into the first one of any chunk, but no role, which may have come already.
    fn open_empty(&self, counts: Option<&[u8]>, out: &mut Vec<u8>) {
        self.open_choice(0, out);
        let nothing: &[u8] = if self.chat { b"\"delta\":{}" } else { b"\"text\":\"\"" };
        put_all(out, [nothing, b",\"logprobs\":null,\"finish_reason\":null"]);
        self.close_choice(counts, out);
    }

    /// Ends an event of one choice except for [`END`]; `counts` are the latest, as JSON.
    fn close_choice(&self, counts: Option<&[u8]>, out: &mut Vec<u8>) {
        match self.usage {
            UsageInChunks::Absent => out.extend_from_slice(b"}]"),
            UsageInChunks::Null => out.extend_from_slice(b"}],\"usage\":null"),
            UsageInChunks::Counts => {
                let counts = counts.unwrap_or(b"null");
                put_all(out, [b"}],\"usage\":", counts]);
            }
        }
    }
}

/// The writer's state of one choice.
#[derive(Debug, Clone, Default)]
struct ChoiceState {
    /// A chunk with the role was already written.
    started: bool,
    /// Log probabilities that wait for their text, as JSON.
    logprobs: Option<String>,
}

impl ChoiceState {
    /// Adds to the log probabilities that wait for their text. If another server has continued the
    /// answer, the rest of its tokens may come in a separate record.
    fn add_logprobs(&mut self, json: &str) {
        let before = self.logprobs.take().filter(|known| known.len() <= MAX_RECORD_BYTES);
        let joined = before.and_then(|known| {
            Some(TokenLists::parse(&known)?.followed_by(&TokenLists::parse(json)?))
        });
        self.logprobs = Some(joined.unwrap_or_else(|| json.into()));
    }
}

/// Latest token counts of an answer.
#[derive(Debug, Clone, Default)]
struct Counts {
    /// JSON; empty before the first counts. The buffer is reused.
    json: Vec<u8>,
    /// A chunk has included them.
    shown: bool,
}

impl Counts {
    fn json(&self) -> Option<&[u8]> {
        (!self.json.is_empty()).then_some(&*self.json)
    }
}

/// Writes the records of one log, in order, as server-sent events of chunks.
///
/// ```
/// # use loquent_proto::{Delta, chunk::ChunkWriter};
/// let meta = r#"{"id":"a","object":"text_completion","created":1,"model":"m","usage":"none"}"#;
/// let (mut chunks, mut out) = (ChunkWriter::new(), Vec::new());
/// chunks.write(Some(80), &Delta::Open { meta: meta.into() }, &mut out)?;
/// chunks.write(Some(84), &Delta::text("Hi"), &mut out)?;
/// assert!(out.starts_with(b"id: 84\ndata: {\"id\":\"a\""));
/// # Ok::<(), loquent_proto::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ChunkWriter {
    envelope: Option<Envelope>,
    /// States by index. Choices are numbered from 0, so a vector is dense and needs no look-up.
    choices: Vec<ChoiceState>,
    counts: Counts,
    obfuscation: Option<Obfuscation>,
}

/// An event that is being written.
#[derive(Debug, Clone, Copy)]
struct EventStart {
    /// Offset of its first byte in the output.
    at: usize,
    /// Bytes of the prefix common to all events of the answer.
    common: usize,
}

impl ChunkWriter {
    /// Creates a writer for a log that is read from its beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a writer for a log that is read from a later offset. `meta` is that of the log's
    /// Open record; `started` are the choices that already had a chunk.
    ///
    /// # Errors
    /// [`Error::Malformed`] if `meta` lacks members that S-6.1 requires, or for more than 4096
    /// choices.
    pub fn resume(meta: &str, started: impl IntoIterator<Item = u32>) -> Result<Self, Error> {
        let envelope = Some(Envelope::parse(meta).ok_or(Error::Malformed)?);
        let mut writer = Self { envelope, ..Self::default() };
        for choice in started {
            writer.state(choice)?.started = true;
        }
        Ok(writer)
    }

    /// Pads the events that carry a piece of the answer (S-6.6).
    #[must_use]
    pub fn obfuscate(mut self, obfuscation: Obfuscation) -> Self {
        self.obfuscation = Some(obfuscation);
        self
    }

    /// Converts the record that ends at log `offset`, and appends the resulting events to `out`:
    /// none (for Open, Logprobs, and kinds without a chunk) or more. The last of them has the
    /// offset as its id. Without an offset, events have no id: for streams that cannot be resumed.
    ///
    /// After [`Delta::Error`] the connection must be broken, not ended (S-6.2).
    ///
    /// # Errors
    /// [`Error::Malformed`] for a record before Open, meta that lacks members that S-6.1 requires,
    /// an Other that is not an object, or more than 4096 choices; `out` is then unchanged.
    pub fn write(
        &mut self,
        offset: Option<u64>,
        delta: &Delta,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match delta {
            Delta::Text { choice, text, .. } => self.text(offset, *choice, text, out),
            Delta::Open { meta } => {
                self.envelope = Some(Envelope::parse(meta).ok_or(Error::Malformed)?);
                Ok(())
            }
            Delta::Logprobs { choice, json } => {
                self.envelope()?;
                self.state(*choice)?.add_logprobs(json);
                Ok(())
            }
            Delta::Reasoning { choice, text, .. } => self.reasoning(offset, *choice, text, out),
            Delta::ToolCall { choice, .. } => {
                let event = self.begin(offset, *choice, out)?;
                let text_bytes = put_tool_call(delta, out);
                self.end_null(event, text_bytes, out)
            }
            Delta::Finish { choice, reason } => self.finish(offset, *choice, reason, out),
            Delta::Usage { .. } => self.count(offset, delta, out),
            Delta::Other { json, .. } => self.other(offset, json, out),
            Delta::Error { code, message } => {
                put_id(offset, out);
                put_error(code, message, out);
                Ok(())
            }
            Delta::Progress(progress) => self.progress(offset, progress, out),
            Delta::Pause { why } => {
                self.pause(why, out);
                Ok(())
            }
            Delta::Done => self.done(offset, out),
        }
    }

    fn envelope(&self) -> Result<&Envelope, Error> {
        self.envelope.as_ref().ok_or(Error::Malformed)
    }

    fn state(&mut self, choice: u32) -> Result<&mut ChoiceState, Error> {
        let at = choice as usize;
        if at >= MAX_CHOICES {
            return Err(Error::Malformed);
        }
        if at >= self.choices.len() {
            self.choices.resize_with(at + 1, ChoiceState::default);
        }
        Ok(&mut self.choices[at])
    }

    /// Begins an event of one choice. The choice's first event is preceded by one with the role.
    fn begin(
        &mut self,
        offset: Option<u64>,
        choice: u32,
        out: &mut Vec<u8>,
    ) -> Result<EventStart, Error> {
        const ROLE: &[u8] = b"\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\
                              \"logprobs\":null,\"finish_reason\":null";
        let chat = self.envelope()?.chat;
        let first = !core::mem::replace(&mut self.state(choice)?.started, true);
        let envelope = self.envelope()?;
        if first && chat {
            // Without an id: readers keep the last one, and from there the role comes again.
            envelope.open_choice(choice, out);
            out.extend_from_slice(ROLE);
            envelope.close_choice(self.counts.json(), out);
            out.extend_from_slice(END);
        }
        let event = EventStart { at: out.len(), common: envelope.lead.len() };
        put_id(offset, out);
        envelope.open_choice(choice, out);
        Ok(event)
    }

    /// Ends the event that [`Self::begin`] began; `text_bytes` of it depend on the generated text.
    fn end(
        &mut self,
        event: EventStart,
        text_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.envelope()?.close_choice(self.counts.json(), out);
        self.counts.shown = true;
        self.close(event, text_bytes, out);
        Ok(())
    }

    /// Completes an event with padding and [`END`].
    fn close(&mut self, event: EventStart, text_bytes: usize, out: &mut Vec<u8>) {
        if let (Some(obfuscation), Some(envelope)) = (&mut self.obfuscation, &self.envelope)
            && obfuscation.applies(envelope.obfuscation)
        {
            let frame = out.len() + END.len() - event.at - event.common - text_bytes;
            obfuscation.put(frame, text_bytes, out);
        }
        out.extend_from_slice(END);
    }

    /// Ends an event that has neither log probabilities nor a finish reason.
    fn end_null(
        &mut self,
        event: EventStart,
        text_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":null");
        self.end(event, text_bytes, out)
    }

    fn text(
        &mut self,
        offset: Option<u64>,
        choice: u32,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let event = self.begin(offset, choice, out)?;
        let keys: [&[u8]; 2] = [b"\"delta\":{\"content\":", b"\"text\":"];
        let text_bytes = self.content(keys, text, out)?;
        match self.state(choice)?.logprobs.take() {
            None => self.end_null(event, text_bytes, out),
            Some(json) => {
                let parts = [b",\"logprobs\":", json.as_bytes(), b",\"finish_reason\":null"];
                put_all(out, parts);
                self.end(event, text_bytes + json.len(), out)
            }
        }
    }

    fn reasoning(
        &mut self,
        offset: Option<u64>,
        choice: u32,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let event = self.begin(offset, choice, out)?;
        let plain = b"\"text\":\"\",\"reasoning_content\":";
        let keys: [&[u8]; 2] = [b"\"delta\":{\"reasoning_content\":", plain];
        let text_bytes = self.content(keys, text, out)?;
        self.end_null(event, text_bytes, out)
    }

    /// Writes `text` after its key: the first for a chat's chunk, the second for a text
    /// completion's. Returns the text's length as JSON.
    fn content(
        &self,
        [chat, plain]: [&[u8]; 2],
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<usize, Error> {
        let is_chat = self.envelope()?.chat;
        out.extend_from_slice(if is_chat { chat } else { plain });
        let text_bytes = put_measured(out, text);
        if is_chat {
            out.push(b'}');
        }
        Ok(text_bytes)
    }

    fn finish(
        &mut self,
        offset: Option<u64>,
        choice: u32,
        reason: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let event = self.begin(offset, choice, out)?;
        let nothing: &[u8] = if self.envelope()?.chat { b"\"delta\":{}" } else { b"\"text\":\"\"" };
        put_all(out, [nothing, b",\"logprobs\":null,\"finish_reason\":"]);
        put_string(out, reason);
        self.end(event, 0, out)
    }

    fn count(
        &mut self,
        offset: Option<u64>,
        usage: &Delta,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let in_every_chunk = self.envelope()?.usage == UsageInChunks::Counts;
        self.counts.json.clear();
        self.counts.shown = !in_every_chunk;
        put_counts(usage, &mut self.counts.json);
        if !in_every_chunk {
            put_id(offset, out);
            self.put_usage(out)?;
        }
        Ok(())
    }

    /// Writes the latest counts as a chunk of their own.
    fn put_usage(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.envelope()?.open_bare(out);
        put_all(out, [NO_CHOICES, b",\"usage\":", &self.counts.json, END]);
        Ok(())
    }

    /// Writes a chunk with the object's members after the common ones.
    fn other(&mut self, offset: Option<u64>, json: &str, out: &mut Vec<u8>) -> Result<(), Error> {
        let members = members(json).ok_or(Error::Malformed)?;
        let common = self.envelope()?.lead.len() - CHOICES.len();
        let event = EventStart { at: out.len(), common };
        put_id(offset, out);
        self.envelope()?.open_bare(out);
        let own = out.len();
        if !members.iter().any(|(name, _)| *name == "choices") {
            out.extend_from_slice(NO_CHOICES);
        }
        for (name, value) in members {
            put_all(out, [b",\"", name.as_bytes(), b"\":", value.as_bytes()]);
            // An upstream server's own counts take the place of those that we know.
            self.counts.shown |= name == "usage";
        }
        self.close(event, out.len() - own, out);
        Ok(())
    }

    /// Appends the reason for a pause, as a comment, if the request asked for progress (S-6.8).
    pub fn pause(&self, why: &str, out: &mut Vec<u8>) {
        if self.envelope.as_ref().is_some_and(|envelope| envelope.progress) {
            put_pause(why, out);
        }
    }

    /// Returns an event for a time without any: a chunk without content, which every client reads.
    /// It has no id. Empty before [`Delta::Open`].
    pub fn heartbeat(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(envelope) = &self.envelope {
            envelope.open_empty(self.counts.json(), &mut out);
            out.extend_from_slice(END);
        }
        out
    }

    /// Writes progress as a chunk, if the request asked for it.
    fn progress(
        &mut self,
        offset: Option<u64>,
        progress: &Progress,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let envelope = self.envelope()?;
        if !envelope.progress {
            return Ok(());
        }
        put_id(offset, out);
        envelope.open_empty(self.counts.json(), out);
        out.extend_from_slice(b",\"prompt_progress\":");
        progress.put_json(out);
        out.extend_from_slice(END);
        self.counts.shown = true;
        Ok(())
    }

    fn done(&mut self, offset: Option<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        self.envelope()?;
        if !self.counts.shown && !self.counts.json.is_empty() {
            self.put_usage(out)?;
        }
        self.counts = Counts::default();
        put_id(offset, out);
        out.extend_from_slice(b"data: [DONE]\n\n");
        Ok(())
    }
}

fn put_all<const N: usize>(out: &mut Vec<u8>, parts: [&[u8]; N]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Writes the next event's id. It precedes the data because it is known first.
fn put_id(offset: Option<u64>, out: &mut Vec<u8>) {
    if let Some(offset) = offset {
        out.extend_from_slice(b"id: ");
        put_number(out, offset);
        out.push(b'\n');
    }
}

/// Appends `text` as a JSON string and returns its length.
fn put_measured(out: &mut Vec<u8>, text: &str) -> usize {
    let before = out.len();
    put_string(out, text);
    out.len() - before
}

/// Writes `"delta":{…}` of a [`Delta::ToolCall`]; only a call's first piece has id and name.
/// Returns the length of the arguments as JSON.
fn put_tool_call(delta: &Delta, out: &mut Vec<u8>) -> usize {
    let Delta::ToolCall { index, id, name, arguments, .. } = delta else { return 0 };
    out.extend_from_slice(b"\"delta\":{\"tool_calls\":[{\"index\":");
    put_number(out, u64::from(*index));
    if !id.is_empty() {
        out.extend_from_slice(b",\"id\":");
        put_string(out, id);
        out.extend_from_slice(b",\"type\":\"function\"");
    }
    out.extend_from_slice(b",\"function\":{");
    if !name.is_empty() {
        out.extend_from_slice(b"\"name\":");
        put_string(out, name);
        out.push(b',');
    }
    out.extend_from_slice(b"\"arguments\":");
    let text_bytes = put_measured(out, arguments);
    out.extend_from_slice(b"}}]}");
    text_bytes
}

/// Writes a [`Delta::Usage`] as OpenAI's `usage` object.
fn put_counts(delta: &Delta, out: &mut Vec<u8>) {
    let Delta::Usage { prompt, completion, cached, reasoning } = *delta else { return };
    let mut member = |name: &[u8], count: u64| {
        out.extend_from_slice(name);
        put_number(out, count);
    };
    member(b"{\"prompt_tokens\":", prompt);
    member(b",\"completion_tokens\":", completion);
    member(b",\"total_tokens\":", prompt.saturating_add(completion));
    member(b",\"prompt_tokens_details\":{\"cached_tokens\":", cached);
    if reasoning > 0 {
        member(b"},\"completion_tokens_details\":{\"reasoning_tokens\":", reasoning);
    }
    out.extend_from_slice(b"}}");
}

fn put_error(code: &str, message: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: {\"error\":{\"message\":");
    put_string(out, message);
    out.extend_from_slice(b",\"type\":\"server_error\",\"param\":null,\"code\":");
    match code {
        "" => out.extend_from_slice(b"null"),
        code => put_string(out, code),
    }
    out.extend_from_slice(b"}}\n\n");
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

    /// Returns the events of a log: ids and data.
    fn events(deltas: &[Delta]) -> Vec<(Option<u64>, String)> {
        let (mut chunks, mut out) = (ChunkWriter::new(), Vec::new());
        for (at, delta) in deltas.iter().enumerate() {
            chunks.write(Some(at as u64), delta, &mut out).unwrap();
        }
        let out = String::from_utf8(out).unwrap();
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
        let half = |json: &str| Delta::Logprobs { choice: 0, json: json.into() };
        let halves = [half(r#"{"content":[1,2],"refusal":null}"#), half(r#"{"content":[3]}"#)];
        let [first, second] = halves;
        let events = self::events(&[meta("text_completion", "none"), first, second, text(0, "a")]);
        let joined = json!({"content": [1, 2, 3], "refusal": null});
        assert_eq!(data(&events[0])["choices"][0]["logprobs"], joined);
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
        let log = [meta("text_completion", "counts"), usage(1), text(0, "a"), Delta::Done];
        assert_eq!(events(&log).len(), 2, "counts that a chunk has carried do not come again");
    }

    #[test]
    fn an_upstream_servers_own_counts_take_the_place_of_ours() {
        let own = Delta::Other { choice: 0, json: r#"{"usage":{"cost":1}}"#.into() };
        let log = [meta("text_completion", "counts"), usage(1), text(0, "a"), usage(3), own];
        let events = events(&[log.as_slice(), &[Delta::Done]].concat());
        assert_eq!(events.len(), 3);
        assert_eq!(data(&events[1])["usage"], json!({"cost": 1}));
    }

    #[test]
    fn events_of_streams_that_cannot_be_resumed_have_no_id() {
        let (mut chunks, mut out) = (ChunkWriter::new(), Vec::new());
        for delta in [meta("chat.completion.chunk", "null"), text(0, "a"), usage(1), Delta::Done] {
            chunks.write(None, &delta, &mut out).unwrap();
        }
        assert!(String::from_utf8(out).unwrap().split("\n\n").all(|event| !event.contains("id:")));
    }

    /// Returns the lengths of the events for `deltas`, without the one that has the first choice's
    /// role.
    fn padded_lengths(asked: &str, by_default: bool, deltas: &[Delta]) -> Vec<usize> {
        let meta = format!(
            r#"{{"id":"a","object":"chat.completion.chunk","created":1,"model":"m"{asked}}}"#
        );
        let mut chunks = ChunkWriter::new().obfuscate(Obfuscation::new(3, by_default));
        let mut out = Vec::new();
        chunks.write(None, &Delta::Open { meta }, &mut out).unwrap();
        chunks.write(None, &text(0, ""), &mut out).unwrap();
        let one = |delta: &Delta| {
            out.clear();
            chunks.write(Some(1234), delta, &mut out).unwrap();
            let data = core::str::from_utf8(&out).unwrap().trim_start_matches("id: 1234\ndata: ");
            serde_json::from_str::<Value>(data).unwrap();
            out.len()
        };
        deltas.iter().map(one).collect()
    }

    #[test]
    fn padded_events_have_one_length_whatever_they_carry() {
        let call = |arguments: &str| Delta::ToolCall {
            choice: 0,
            index: 0,
            tokens: 1,
            id: String::new(),
            name: String::new(),
            arguments: arguments.into(),
        };
        let reasoning = Delta::Reasoning { choice: 0, tokens: 1, text: "so".into() };
        let deltas = [text(0, "a"), text(0, " \"incomprehensible\"\n"), reasoning, finish(0)];
        let lengths = padded_lengths("", true, &deltas);
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
        let calls = padded_lengths("", true, &[call("{\""), call("incomprehensible")]);
        assert_eq!(calls[0], calls[1]);
    }

    #[test]
    fn long_texts_and_logprobs_are_padded_in_steps() {
        let logprobs = |json: &str| Delta::Logprobs { choice: 0, json: json.into() };
        let length = |extra: usize| {
            let log = [logprobs(&"1".repeat(extra)), text(0, "a")];
            padded_lengths_of_last(&log)
        };
        assert_eq!(length(70), length(120));
        assert!(length(120) < length(140));
        assert_eq!(padded_lengths_of_last(&[text(0, &"x".repeat(300))]), length(500));
    }

    fn padded_lengths_of_last(deltas: &[Delta]) -> usize {
        let meta = r#"{"id":"a","object":"text_completion","created":1,"model":"m"}"#;
        let mut chunks = ChunkWriter::new().obfuscate(Obfuscation::new(3, true));
        let mut out = Vec::new();
        chunks.write(None, &Delta::Open { meta: meta.into() }, &mut out).unwrap();
        for delta in deltas {
            out.clear();
            chunks.write(None, delta, &mut out).unwrap();
        }
        out.len()
    }

    #[test]
    fn the_request_decides_on_padding_before_the_default() {
        let pieces = [text(0, "a"), text(0, "abc")];
        let is_padded = |asked: &str, by_default: bool| {
            let lengths = padded_lengths(asked, by_default, &pieces);
            lengths[0] == lengths[1]
        };
        assert!(is_padded("", true) && !is_padded("", false));
        assert!(is_padded(r#","obfuscation":true"#, false));
        assert!(!is_padded(r#","obfuscation":false"#, true));
    }

    #[test]
    fn a_fingerprint_stands_in_every_chunk() {
        let meta = r#"{"id":"a","object":"text_completion","created":1,"model":"m","system_fingerprint":"f"}"#;
        let events = events(&[Delta::Open { meta: meta.into() }, text(0, "a")]);
        assert_eq!(data(&events[0])["system_fingerprint"], "f");
    }

    #[test]
    fn a_choice_beyond_the_bound_is_refused_and_leaves_nothing() {
        let (mut chunks, mut out) = (ChunkWriter::new(), Vec::new());
        chunks.write(None, &meta("text_completion", "none"), &mut out).unwrap();
        assert_eq!(chunks.write(None, &text(1 << 20, "a"), &mut out), Err(Error::Malformed));
        assert!(out.is_empty());
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
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        let mut chunks = ChunkWriter::new();
        for (at, delta) in [&open, &text(3, "a")].into_iter().enumerate() {
            chunks.write(Some(at as u64), delta, &mut whole).unwrap();
        }
        let Delta::Open { meta } = &open else { unreachable!() };
        let mut resumed = ChunkWriter::resume(meta, [3]).unwrap();
        whole.clear();
        for (at, delta) in [text(3, "b"), text(1, "c")].iter().enumerate() {
            chunks.write(Some(at as u64), delta, &mut whole).unwrap();
            resumed.write(Some(at as u64), delta, &mut rest).unwrap();
        }
        assert_eq!(rest, whole);
    }

    #[test]
    fn a_heartbeat_is_a_chunk_without_content_or_id() {
        for (object, empty) in [
            ("chat.completion.chunk", json!({"index": 0, "delta": {}})),
            ("text_completion", json!({"index": 0, "text": ""})),
        ] {
            let (mut chunks, mut out) = (ChunkWriter::new(), Vec::new());
            assert_eq!(chunks.heartbeat(), b"", "no answer has begun");
            chunks.write(Some(0), &meta(object, "null"), &mut out).unwrap();
            chunks.write(Some(1), &text(0, "a"), &mut out).unwrap();
            let beat = String::from_utf8(chunks.heartbeat()).unwrap();
            let data = beat.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
            let mut chunk: Value = serde_json::from_str(data).unwrap();
            let choice = chunk["choices"][0].as_object_mut().unwrap();
            assert_eq!(choice.remove("logprobs"), Some(Value::Null));
            assert_eq!(choice.remove("finish_reason"), Some(Value::Null));
            assert_eq!(chunk["choices"], json!([empty]));
            assert_eq!((&chunk["object"], &chunk["id"]), (&json!(object), &json!("x\"y")));
        }
    }

    #[test]
    fn only_who_asks_for_progress_hears_of_it_and_of_pauses() {
        let log = [
            Delta::Progress(Progress { queued: 2, ..Progress::default() }),
            Delta::Pause { why: "it restarts".into() },
        ];
        for asks in [false, true] {
            let meta = json!({"id": "a", "object": "text_completion", "created": 1, "model": "m",
                              "progress": asks});
            let (mut chunks, mut out) = (ChunkWriter::new(), Vec::new());
            chunks.write(None, &Delta::Open { meta: meta.to_string() }, &mut out).unwrap();
            for delta in &log {
                chunks.write(None, delta, &mut out).unwrap();
            }
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.contains("\"queued\":2"), asks, "{out}");
            assert_eq!(out.ends_with(": paused, it restarts\n\n"), asks, "{out}");
            assert!(asks || out.is_empty(), "{out}");
        }
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
        let mut out = Vec::new();
        let refused = |delta: &Delta, out: &mut Vec<u8>| ChunkWriter::new().write(None, delta, out);
        assert_eq!(refused(&text(0, "a"), &mut out), Err(Error::Malformed));
        for bad in ["", "{}", r#"{"object":"other","id":1,"created":1,"model":1}"#] {
            let open = Delta::Open { meta: bad.into() };
            assert_eq!(refused(&open, &mut out), Err(Error::Malformed), "{bad}");
        }
        assert!(out.is_empty());
    }
}
