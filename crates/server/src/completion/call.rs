//! A tool call's JSON object, read while it is written: `{"name": …, "arguments": …}`.
//!
//! The members may come in any order; others are skipped. The arguments are passed on as
//! they stand, from the moment the name is known.

use crate::held::HeldDeltas;

/// What reading a piece came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The object goes on.
    More,
    /// The object is complete.
    Complete,
    /// It is no call, or no JSON: this text was not passed on.
    NoCall(String),
}

/// Where in the object the reader stands.
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

/// How far a JSON value reaches.
#[derive(Debug, Clone, Copy)]
struct ValueExtent {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl ValueExtent {
    const NONE: Self = Self { depth: 0, in_string: false, escaped: false };

    /// Takes the value's next character; true when it was the last.
    fn push(&mut self, c: char) -> bool {
        if std::mem::take(&mut self.escaped) {
            return false;
        }
        match c {
            '\\' if self.in_string => self.escaped = true,
            '"' => {
                self.in_string = !self.in_string;
                return !self.in_string && self.depth == 0;
            }
            '{' | '[' if !self.in_string => self.depth += 1,
            '}' | ']' if !self.in_string => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// Whether `c` comes after a value that has no closing symbol: a number, `true`, `null`.
    fn is_ended_by(&self, c: char) -> bool {
        self.depth == 0 && !self.in_string && (c == ',' || c == '}' || c.is_whitespace())
    }
}

/// Reads one call.
pub(super) struct CallReader {
    index: u32,
    id: String,
    /// Names that make a call; `None` for any.
    known: Option<Vec<String>>,
    state: ObjectState,
    /// All text so far, its tag included, until the call has been opened.
    raw: String,
    /// The value being read, where it is not passed on directly.
    value: String,
    /// Arguments that came before the name.
    early: String,
    opened: bool,
    has_arguments: bool,
}

impl CallReader {
    /// The answer's `index`-th call, which began with `tag`.
    pub(super) fn new(index: u32, id: String, tag: &str, known: Option<Vec<String>>) -> Self {
        Self {
            index,
            id,
            known,
            state: ObjectState::Before,
            raw: tag.to_owned(),
            value: String::new(),
            early: String::new(),
            opened: false,
            has_arguments: false,
        }
    }

    /// Whether the call has been passed on, in part at least.
    pub(super) fn is_open(&self) -> bool {
        self.opened
    }

    /// Reads as much of `text` as belongs to the call; gives that many bytes.
    pub(super) fn push(&mut self, text: &str, out: &mut HeldDeltas) -> (usize, CallOutcome) {
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

    /// The text ends here: gives what was not passed on.
    pub(super) fn abandon(&mut self) -> Option<String> {
        (!self.opened).then(|| std::mem::take(&mut self.raw))
    }

    fn give_up(&mut self) -> CallOutcome {
        CallOutcome::NoCall(self.abandon().unwrap_or_default())
    }

    /// Takes one character; true when it closes the object.
    fn take(&mut self, c: char, out: &mut HeldDeltas) -> Result<bool, NotJson> {
        let blank = c.is_whitespace();
        match &mut self.state {
            ObjectState::Value(member, extent) => {
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

    fn begin_value(&mut self, member: CallMember, c: char, out: &mut HeldDeltas) {
        let mut extent = ValueExtent::NONE;
        extent.push(c);
        self.keep(member, c, out);
        self.state = ObjectState::Value(member, extent);
    }

    /// Keeps or passes on a character of a value.
    fn keep(&mut self, member: CallMember, c: char, out: &mut HeldDeltas) {
        // Arguments in a string are JSON once more, which shows only at their end.
        let streams = member == CallMember::Arguments
            && (self.has_arguments || c != '"')
            && self.value.is_empty();
        if !streams {
            return self.value.push(c);
        }
        self.has_arguments = true;
        match self.opened {
            true => out.push_arguments(self.index, c.encode_utf8(&mut [0; 4])),
            false => self.early.push(c),
        }
    }

    fn end_value(&mut self, member: CallMember, out: &mut HeldDeltas) -> Result<(), NotJson> {
        let value = std::mem::take(&mut self.value);
        self.state = ObjectState::Comma;
        match member {
            CallMember::Key => {
                let key: String = serde_json::from_str(&value).map_err(|_| NotJson)?;
                self.state = ObjectState::Colon(CallMember::of(&key));
            }
            CallMember::Name => {
                let name = serde_json::from_str(&value).map_err(|_| NotJson)?;
                self.open(name, out)?;
            }
            CallMember::Arguments if !value.is_empty() => {
                let text: String = serde_json::from_str(&value).map_err(|_| NotJson)?;
                self.has_arguments = true;
                match self.opened {
                    true => out.push_arguments(self.index, &text),
                    false => self.early = text,
                }
            }
            CallMember::Arguments | CallMember::Other => {}
        }
        Ok(())
    }

    fn open(&mut self, name: String, out: &mut HeldDeltas) -> Result<(), NotJson> {
        let unknown = self.known.as_ref().is_some_and(|known| !known.contains(&name));
        if unknown || self.opened || name.is_empty() {
            return Err(NotJson);
        }
        self.opened = true;
        self.raw.clear();
        out.open_call(self.index, std::mem::take(&mut self.id), name);
        out.push_arguments(self.index, &std::mem::take(&mut self.early));
        Ok(())
    }

    /// The object is closed: a call has a name, and arguments that are an object at least.
    fn close(&mut self, out: &mut HeldDeltas) -> bool {
        if self.opened && !self.has_arguments {
            out.push_arguments(self.index, "{}");
        }
        self.opened
    }
}

/// What was read is no call.
struct NotJson;
