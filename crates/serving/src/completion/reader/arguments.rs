//! Arguments of calls: JSON that is passed on unchanged, and text that is converted to JSON by the
//! tool's schema.

use loquent_formats::grammar::ToolShape;
use serde_json::Value;

use crate::pending_deltas::PendingDeltas;

/// Tracks the extent of a JSON value while it is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueExtent {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl ValueExtent {
    pub(super) const NONE: Self = Self { depth: 0, in_string: false, escaped: false };

    /// Reads the value's next character; returns true if it was the last.
    pub(super) fn push(&mut self, c: char) -> bool {
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
                // A model may close what it has not opened.
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// Returns true if `c` ends a value that has no closing symbol: a number, `true`, `null`.
    pub(super) fn is_ended_by(&self, c: char) -> bool {
        self.depth == 0 && !self.in_string && (c == ',' || c == '}' || c.is_whitespace())
    }
}

/// Result of reading arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentsEnd {
    /// The arguments are not complete yet.
    More,
    /// The object is closed; it ends after this many bytes.
    Closed(usize),
    /// The arguments are not an object.
    NoObject,
}

/// A JSON object that is passed on unchanged.
#[derive(Debug, Default)]
pub(super) struct ArgumentsText {
    /// `None` before the object begins.
    extent: Option<ValueExtent>,
}

impl ArgumentsText {
    /// Returns true once the object has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.extent.is_some()
    }

    /// Returns true if `text` begins an object; `None` while it is blank.
    pub(super) fn begins(text: &str) -> Option<bool> {
        text.trim_start().chars().next().map(|c| c == '{')
    }

    /// Passes on the part of `text` that belongs to the object.
    pub(super) fn push(&mut self, text: &str, index: u32, out: &mut PendingDeltas) -> ArgumentsEnd {
        let mut from = 0;
        for (at, c) in text.char_indices() {
            let extent = match &mut self.extent {
                Some(extent) => extent,
                None if c.is_whitespace() => continue,
                None if c == '{' => {
                    from = at;
                    self.extent.insert(ValueExtent::NONE)
                }
                None => return ArgumentsEnd::NoObject,
            };
            if extent.push(c) {
                let end = at + c.len_utf8();
                out.push_arguments(index, &text[from..end]);
                return ArgumentsEnd::Closed(end);
            }
        }
        if self.extent.is_some() {
            out.push_arguments(index, &text[from..]);
        }
        ArgumentsEnd::More
    }
}

/// Type of a parameter, according to its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParameterKind {
    /// Text only, which can be passed on as it arrives.
    Text,
    /// JSON of another type; text if it does not parse.
    Json,
    /// Text or JSON, depending on the value itself.
    Any,
}

impl ParameterKind {
    /// Returns the kind of the parameter `key` of `tool`.
    pub(super) fn of(tool: Option<&ToolShape>, key: &str) -> Self {
        let schema = tool.and_then(|tool| tool.parameters.get("properties")?.get(key));
        let mut types = Vec::new();
        if let Some(schema) = schema {
            collect_types(schema, &mut types, 4);
        }
        match (types.contains(&"string"), types.iter().any(|name| *name != "string")) {
            (true, false) => Self::Text,
            (false, true) => Self::Json,
            _ => Self::Any,
        }
    }

    /// Converts `text` to JSON of this kind.
    pub(super) fn to_json(self, text: &str) -> String {
        let quoted = || Value::from(text).to_string();
        if self == Self::Text {
            return quoted();
        }
        let trimmed = text.trim();
        let json = match trimmed {
            // Models that write Python mean these.
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        };
        // Checked only, and passed on as written: a number keeps all its digits.
        match serde_json::from_str::<serde::de::IgnoredAny>(json) {
            // A text with quotes of its own: they are part of it, unless a text was not expected.
            Ok(_) if self == Self::Any && json.starts_with('"') => quoted(),
            Ok(_) => json.to_owned(),
            Err(_) => quoted(),
        }
    }
}

/// Collects the types that `schema` allows, as far as it states them itself.
fn collect_types<'a>(schema: &'a Value, types: &mut Vec<&'a str>, depth: u32) {
    match schema.get("type") {
        Some(Value::String(name)) => types.push(name),
        Some(Value::Array(names)) => types.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    for value in values.chain(schema.get("const")) {
        types.push(if value.is_string() { "string" } else { "other" });
    }
    for word in ["anyOf", "oneOf", "allOf"] {
        let branches = schema.get(word).and_then(Value::as_array).into_iter().flatten();
        // The schema is the client's, and may be nested deeply.
        for branch in branches.filter(|_| depth > 0) {
            collect_types(branch, types, depth - 1);
        }
    }
}

/// Returns `text` escaped for the inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
