//! Calls with an element for each argument: Qwen3-Coder's, GLM's and DeepSeek's.
//!
//! Values are plain text in the answer. They are converted to JSON by the types in the tool's
//! schema, or by the type that the model states. Texts are passed on as they arrive, other values
//! when they are complete.

use super::arguments::{ParameterKind, escaped};
use super::call_reader::{CallOutcome, CallReader, CallStart};
use super::matching::{TagMatch, find_any, front, front_of, is_name, overlap_any};
use crate::pending_deltas::PendingDeltas;

/// Maximum bytes of a tool's or parameter's name, with its tags.
const MAX_NAME_BYTES: usize = 256;

/// The elements of one format.
pub(super) struct XmlTags {
    /// Tags before the head that mark a call, even one of an unknown name.
    pub(super) trusted: [&'static str; 2],
    /// Tag before the tool's name.
    pub(super) head: &'static str,
    /// Strings that end the name.
    name_ends: &'static [&'static str],
    /// String dropped after the name.
    head_close: &'static str,
    key_open: &'static str,
    key_close: &'static str,
    /// Tag before the value; may be empty.
    value_open: &'static str,
    /// Tags after the value; the second form includes the line break that is not part of it.
    value_ends: &'static [&'static str],
    /// True if a line break directly before the value is not part of it.
    trims_begin: bool,
    /// Tags that end the call. The first is dropped, the second is left in the text.
    call_ends: [&'static str; 2],
}

/// `<function=NAME>`, `<parameter=KEY>`.
pub(super) const QWEN: XmlTags = XmlTags {
    trusted: ["<tool_call>"; 2],
    head: "<function=",
    name_ends: &[">"],
    head_close: ">",
    key_open: "<parameter=",
    key_close: ">",
    value_open: "",
    value_ends: &["</parameter>", "\n</parameter>"],
    trims_begin: true,
    call_ends: ["</function>", "</tool_call>"],
};

/// The name alone, `<arg_key>`, `<arg_value>`.
pub(super) const GLM: XmlTags = XmlTags {
    trusted: ["<tool_call>"; 2],
    head: "",
    name_ends: &["\n", "<"],
    head_close: "",
    key_open: "<arg_key>",
    key_close: "</arg_key>",
    value_open: "<arg_value>",
    value_ends: &["</arg_value>"],
    trims_begin: false,
    call_ends: ["</tool_call>", "</tool_call>"],
};

/// `<｜DSML｜invoke name="NAME">`, `<｜DSML｜parameter name="KEY" string="true">`.
pub(super) const DSML: XmlTags = XmlTags {
    trusted: ["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
    head: "<｜DSML｜invoke name=\"",
    name_ends: &["\">"],
    head_close: "\">",
    key_open: "<｜DSML｜parameter name=\"",
    key_close: ">",
    value_open: "",
    value_ends: &["</｜DSML｜parameter>"],
    trims_begin: false,
    call_ends: ["</｜DSML｜invoke>", "</｜DSML｜function_calls>"],
};

/// Returns a parameter's name, and its kind if the model states it: `KEY`, or `KEY" string="true"`.
fn parameter(written: &str) -> (&str, Option<ParameterKind>) {
    let Some((key, rest)) = written.split_once('"') else { return (written.trim(), None) };
    let kind = match rest.trim() {
        "string=\"true\"" => Some(ParameterKind::Text),
        "string=\"false\"" => Some(ParameterKind::Json),
        _ => None,
    };
    (key, kind)
}

/// Destination of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueUse {
    /// Passed on as it arrives.
    Streamed,
    /// Kept until its end, which determines its type.
    Kept(ParameterKind),
    /// Dropped, because its parameter already had a value.
    Dropped,
}

enum XmlState {
    /// Before the tag with the name.
    Head,
    /// Before the end of the name.
    Name,
    /// Before a parameter or the end.
    Between,
    /// After a parameter's name, with its kind if the model states it.
    Key(String, Option<ParameterKind>),
    /// In a value.
    Value(ValueUse),
}

/// Result of a step: the number of bytes taken, and whether to continue, wait or end.
enum XmlStep {
    Took(usize),
    Wait(usize),
    Ends(usize, CallOutcome),
}

/// Reads one call.
pub(super) struct XmlCall {
    start: CallStart,
    tags: &'static XmlTags,
    state: XmlState,
    /// All text so far, including the tag, until the call has been opened.
    raw: String,
    /// A value that is kept until its end.
    value: String,
    tool: String,
    keys: Vec<String>,
    opened: bool,
}

impl XmlCall {
    pub(super) fn new(start: CallStart, tags: &'static XmlTags) -> Self {
        let has_head = tags.head.is_empty() || start.opening.ends_with(tags.head);
        Self {
            state: if has_head { XmlState::Name } else { XmlState::Head },
            raw: start.opening.clone(),
            start,
            tags,
            value: String::new(),
            tool: String::new(),
            keys: Vec::new(),
            opened: false,
        }
    }

    fn step(&mut self, text: &str, out: &mut PendingDeltas) -> XmlStep {
        match &self.state {
            XmlState::Head => match front(text, self.tags.head) {
                TagMatch::Is(end) => {
                    self.state = XmlState::Name;
                    XmlStep::Took(end)
                }
                TagMatch::MayBe => XmlStep::Wait(0),
                TagMatch::Not => self.give_up(),
            },
            XmlState::Name => self.name(text, out),
            XmlState::Between => self.between(text, out),
            XmlState::Key(..) => self.key(text, out),
            XmlState::Value(usage) => {
                let usage = *usage;
                self.value(usage, text, out)
            }
        }
    }

    fn give_up(&mut self) -> XmlStep {
        XmlStep::Ends(0, CallOutcome::NoCall(std::mem::take(&mut self.raw)))
    }

    fn name(&mut self, text: &str, out: &mut PendingDeltas) -> XmlStep {
        let Some((end, _)) = find_any(window(text), self.tags.name_ends) else {
            return if text.len() < MAX_NAME_BYTES { XmlStep::Wait(0) } else { self.give_up() };
        };
        let name = text[..end].trim();
        // Only the tag of the function itself says that a call is meant, whatever its name.
        let opened_by = |tag: &&str| self.start.opening.ends_with(*tag);
        let is_tagged = !self.tags.head.is_empty() && self.tags.trusted.iter().any(opened_by);
        if !is_name(name) || !(is_tagged || self.start.config.knows(name)) {
            return self.give_up();
        }
        self.start.open(name, out);
        self.opened = true;
        self.tool = name.to_owned();
        self.raw.clear();
        self.state = XmlState::Between;
        XmlStep::Took(end + self.tags.head_close.len())
    }

    fn between(&mut self, text: &str, out: &mut PendingDeltas) -> XmlStep {
        let tags = self.tags;
        let [end, other_end] = tags.call_ends;
        match front_of(text, &[tags.key_open, end, other_end]) {
            Ok((0, open)) => match window(&text[open..]).find(tags.key_close) {
                Some(len) => {
                    let (key, kind) = parameter(text[open..open + len].trim());
                    self.state = XmlState::Key(key.to_owned(), kind);
                    XmlStep::Took(open + len + tags.key_close.len())
                }
                None if text.len() - open < MAX_NAME_BYTES => XmlStep::Wait(0),
                None => self.close(0, out),
            },
            // An end that closes more than the function is dropped with the others.
            Ok((1, taken)) if end != other_end => self.close(taken, out),
            Err(TagMatch::MayBe) => XmlStep::Wait(0),
            Ok(_) | Err(_) => self.close(0, out),
        }
    }

    /// Ends the arguments, so that they are complete JSON regardless of the text that follows.
    fn close(&mut self, taken: usize, out: &mut PendingDeltas) -> XmlStep {
        let end = if self.keys.is_empty() { "{}" } else { "}" };
        out.push_arguments(self.start.index, end);
        XmlStep::Ends(taken, CallOutcome::Complete)
    }

    fn key(&mut self, text: &str, out: &mut PendingDeltas) -> XmlStep {
        let taken = match (self.tags.value_open, text.chars().next()) {
            (_, None) => return XmlStep::Wait(0),
            // One line break is the format's; further ones are the value's.
            ("", Some(c)) => usize::from(self.tags.trims_begin && c == '\n'),
            (tag, _) => match front(text, tag) {
                TagMatch::Is(end) => end,
                TagMatch::MayBe => return XmlStep::Wait(0),
                TagMatch::Not => return self.close(0, out),
            },
        };
        let state = std::mem::replace(&mut self.state, XmlState::Between);
        let XmlState::Key(key, kind) = state else { return XmlStep::Wait(0) };
        self.state = XmlState::Value(self.begin_value(key, kind, out));
        XmlStep::Took(taken)
    }

    fn begin_value(
        &mut self,
        key: String,
        kind: Option<ParameterKind>,
        out: &mut PendingDeltas,
    ) -> ValueUse {
        if self.keys.contains(&key) {
            // JSON with a key twice means different things to different parsers.
            return ValueUse::Dropped;
        }
        let separator = if self.keys.is_empty() { "{" } else { ", " };
        let tool = self.start.config.tools.iter().find(|tool| tool.name == self.tool);
        let kind = kind.unwrap_or_else(|| ParameterKind::of(tool, &key));
        let index = self.start.index;
        out.push_arguments(index, &format!("{separator}\"{}\": ", escaped(&key)));
        self.keys.push(key);
        if kind != ParameterKind::Text {
            return ValueUse::Kept(kind);
        }
        out.push_arguments(index, "\"");
        ValueUse::Streamed
    }

    fn value(&mut self, usage: ValueUse, text: &str, out: &mut PendingDeltas) -> XmlStep {
        // The forms with more in front are found first.
        let Some((end, tag)) = find_any(text, self.tags.value_ends) else {
            let safe = text.len() - overlap_any(text, self.tags.value_ends);
            self.put(usage, &text[..safe], out);
            return XmlStep::Wait(safe);
        };
        self.put(usage, &text[..end], out);
        match usage {
            ValueUse::Streamed => out.push_arguments(self.start.index, "\""),
            ValueUse::Kept(kind) => {
                let json = kind.to_json(&std::mem::take(&mut self.value));
                out.push_arguments(self.start.index, &json);
            }
            ValueUse::Dropped => {}
        }
        self.state = XmlState::Between;
        XmlStep::Took(end + tag.len())
    }

    fn put(&mut self, usage: ValueUse, text: &str, out: &mut PendingDeltas) {
        match usage {
            ValueUse::Streamed => out.push_arguments(self.start.index, &escaped(text)),
            ValueUse::Kept(_) => self.value.push_str(text),
            ValueUse::Dropped => {}
        }
    }
}

/// Returns the longest prefix of `text` that a name may take, so that the result does not depend on
/// how the text was cut.
fn window(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_BYTES)]
}

impl CallReader for XmlCall {
    fn push(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome) {
        let mut taken = 0;
        loop {
            let (more, outcome) = match self.step(&text[taken..], out) {
                XmlStep::Took(bytes) => (bytes, None),
                XmlStep::Wait(bytes) => (bytes, Some(CallOutcome::More)),
                XmlStep::Ends(bytes, outcome) => (bytes, Some(outcome)),
            };
            if !self.opened {
                self.raw.push_str(&text[taken..taken + more]);
            }
            taken += more;
            if let Some(outcome) = outcome {
                return (taken, outcome);
            }
        }
    }

    fn finish(&mut self, rest: &str, out: &mut PendingDeltas) -> String {
        if !self.opened {
            return std::mem::take(&mut self.raw) + rest;
        }
        if let XmlState::Value(usage) = self.state {
            self.put(usage, rest, out);
            // Cut off, it stays as far as it came.
            out.push_arguments(self.start.index, &std::mem::take(&mut self.value));
        }
        String::new()
    }

    fn is_open(&self) -> bool {
        self.opened
    }

    fn held_bytes(&self) -> usize {
        self.raw.len() + self.value.len()
    }
}
