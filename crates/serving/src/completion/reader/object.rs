//! A tool call's JSON object, read as it arrives: `{"name": …, "arguments": …}`.
//!
//! The members may come in any order; others are skipped. The arguments are passed on unchanged as
//! soon as the name is known.

use super::arguments::ValueExtent;
use super::call_reader::{CallOutcome, CallReader, CallStart};
use crate::pending_deltas::PendingDeltas;

/// Members that models write before a call's name in formats without a tag.
const BESIDE_CALLS: [&str; 2] = ["type", "id"];

/// Position of the reader in the object.
#[derive(Debug)]
enum ObjectState {
    /// Before `{`.
    Before,
    /// Before a key, or `}`.
    Key,
    /// Between a key and its value.
    Colon(CallMember),
    /// Before a value.
    Start(CallMember),
    /// In a value.
    Value(CallMember, ValueExtent),
    /// After a value.
    Comma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallMember {
    Key,
    Name,
    Arguments,
    Other,
}

impl CallMember {
    fn of(key: &str) -> Self {
        match key {
            "name" => Self::Name,
            "arguments" | "parameters" => Self::Arguments,
            _ => Self::Other,
        }
    }
}

/// Reads one call.
pub(super) struct ObjectCall {
    start: CallStart,
    /// Names that are accepted; `None` accepts any.
    known: Option<Vec<String>>,
    state: ObjectState,
    /// All text so far, including the tag, until the call has been opened.
    raw: String,
    /// The value being read, if it is not passed on directly.
    value: String,
    /// Arguments that came before the name.
    early: String,
    opened: bool,
    has_arguments: bool,
}

impl CallReader for ObjectCall {
    fn push(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome) {
        for (at, c) in text.char_indices() {
            let after = at + c.len_utf8();
            if !self.opened {
                self.raw.push(c);
            }
            match self.take(c, out) {
                Ok(false) => {}
                Ok(true) => match self.close(out) {
                    true => return (after, CallOutcome::Complete),
                    false => return (after, self.give_up()),
                },
                Err(NotJson) => return (after, self.give_up()),
            }
        }
        (text.len(), CallOutcome::More)
    }

    fn finish(&mut self, _rest: &str, _out: &mut PendingDeltas) -> String {
        if self.opened { String::new() } else { std::mem::take(&mut self.raw) }
    }

    fn is_open(&self) -> bool {
        self.opened
    }

    fn held_bytes(&self) -> usize {
        self.raw.len() + self.value.len() + self.early.len()
    }
}

impl ObjectCall {
    /// Returns a reader for the call that begins with `start`.
    pub(super) fn new(start: CallStart, known: Option<Vec<String>>) -> Self {
        Self {
            known,
            state: ObjectState::Before,
            raw: start.opening.clone(),
            start,
            value: String::new(),
            early: String::new(),
            opened: false,
            has_arguments: false,
        }
    }

    fn give_up(&mut self) -> CallOutcome {
        let raw = std::mem::take(&mut self.raw);
        CallOutcome::NoCall(if self.opened { String::new() } else { raw })
    }

    /// Reads one character; returns true if it closes the object.
    fn take(&mut self, c: char, out: &mut PendingDeltas) -> Result<bool, NotJson> {
        let blank = c.is_whitespace();
        match &mut self.state {
            ObjectState::Value(member, extent) => {
                // What ends a number is no part of it, and is read again as what it is.
                if extent.is_ended_by(c) {
                    let member = *member;
                    self.end_value(member, out)?;
                    return self.take(c, out);
                }
                let (member, last) = (*member, extent.push(c));
                self.keep(member, c, out);
                if last {
                    self.end_value(member, out)?;
                }
            }
            _ if blank => {}
            ObjectState::Before if c == '{' => self.state = ObjectState::Key,
            ObjectState::Key if c == '"' => self.begin_value(CallMember::Key, c, out),
            ObjectState::Key | ObjectState::Comma if c == '}' => return Ok(true),
            ObjectState::Comma if c == ',' => self.state = ObjectState::Key,
            ObjectState::Colon(member) if c == ':' => self.state = ObjectState::Start(*member),
            ObjectState::Start(member) => {
                let member = *member;
                let twice = member == CallMember::Arguments && self.has_arguments;
                let begins = c.is_ascii_alphanumeric() || "\"{[-".contains(c);
                if twice || !begins {
                    return Err(NotJson);
                }
                self.begin_value(member, c, out);
            }
            _ => return Err(NotJson),
        }
        Ok(false)
    }

    fn begin_value(&mut self, member: CallMember, c: char, out: &mut PendingDeltas) {
        let mut extent = ValueExtent::NONE;
        extent.push(c);
        self.keep(member, c, out);
        self.state = ObjectState::Value(member, extent);
    }

    /// Keeps a character of a value, or passes it on.
    fn keep(&mut self, member: CallMember, c: char, out: &mut PendingDeltas) {
        // Arguments in a string are JSON once more, which shows only at their end.
        let streams = member == CallMember::Arguments
            && (self.has_arguments || c != '"')
            && self.value.is_empty();
        if !streams {
            return self.value.push(c);
        }
        self.has_arguments = true;
        match self.opened {
            true => out.push_arguments(self.start.index, c.encode_utf8(&mut [0; 4])),
            false => self.early.push(c),
        }
    }

    fn end_value(&mut self, member: CallMember, out: &mut PendingDeltas) -> Result<(), NotJson> {
        let value = std::mem::take(&mut self.value);
        self.state = ObjectState::Comma;
        match member {
            CallMember::Key => {
                // Parsed, since models may write escapes in keys too.
                let key: String = serde_json::from_str(&value).map_err(|_| NotJson)?;
                let member = CallMember::of(&key);
                // Without a tag it may be an answer in JSON, which must not wait for its end.
                let is_foreign = member == CallMember::Other && !BESIDE_CALLS.contains(&&*key);
                if self.known.is_some() && !self.opened && is_foreign {
                    return Err(NotJson);
                }
                self.state = ObjectState::Colon(member);
            }
            CallMember::Name => {
                let name = serde_json::from_str(&value).map_err(|_| NotJson)?;
                self.open(name, out)?;
            }
            CallMember::Arguments if !value.is_empty() => {
                let text: String = serde_json::from_str(&value).map_err(|_| NotJson)?;
                self.has_arguments = true;
                match self.opened {
                    true => out.push_arguments(self.start.index, &text),
                    false => self.early = text,
                }
            }
            CallMember::Arguments | CallMember::Other => {}
        }
        Ok(())
    }

    fn open(&mut self, name: String, out: &mut PendingDeltas) -> Result<(), NotJson> {
        let unknown = self.known.as_ref().is_some_and(|known| !known.contains(&name));
        if unknown || self.opened || name.is_empty() {
            return Err(NotJson);
        }
        self.opened = true;
        self.raw.clear();
        self.start.open(&name, out);
        out.push_arguments(self.start.index, &std::mem::take(&mut self.early));
        Ok(())
    }

    /// Ends the object. Returns true if it is a call: it has a name. A call without arguments gets
    /// an empty object.
    fn close(&mut self, out: &mut PendingDeltas) -> bool {
        if self.opened && !self.has_arguments {
            out.push_arguments(self.start.index, "{}");
        }
        self.opened
    }
}

/// The text read is not a call.
struct NotJson;
