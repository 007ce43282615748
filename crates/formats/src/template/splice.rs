//! Markers for strings that must not be parsed as special tokens: they replace the strings before
//! rendering, and the strings are put back afterwards.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::PromptSegment;

/// Variables that are the model's own control tokens. All others hold user text: the messages, the
/// tools and the request's additional variables.
const OWN_VARIABLES: [&str; 2] = ["bos_token", "eos_token"];

/// Replaces every user string for which `is_special` returns true by a marker. Returns the strings
/// by number; `None` if such a string is the key of an object, which templates look up and so
/// cannot be replaced.
pub(super) fn mark(
    variables: &mut Map<String, Value>,
    nonce: u128,
    is_special: &dyn Fn(&str) -> bool,
) -> Option<Vec<String>> {
    let mut strings = Strings {
        nonce,
        is_special,
        numbers: HashMap::new(),
        texts: Vec::new(),
        has_special_key: false,
    };
    for (name, value) in variables.iter_mut() {
        if !OWN_VARIABLES.contains(&name.as_str()) {
            strings.replace(value);
        }
    }
    (!strings.has_special_key).then_some(strings.texts)
}

struct Strings<'a> {
    nonce: u128,
    is_special: &'a dyn Fn(&str) -> bool,
    /// Number by string. Equal strings get one marker, so that a template's comparisons hold.
    numbers: HashMap<String, usize>,
    texts: Vec<String>,
    has_special_key: bool,
}

impl Strings<'_> {
    fn replace(&mut self, value: &mut Value) {
        match value {
            Value::String(text) if (self.is_special)(text) => {
                let next = self.texts.len();
                let number = *self.numbers.entry(text.clone()).or_insert(next);
                if number == next {
                    self.texts.push(text.clone());
                }
                *text = marker(self.nonce, number);
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item)),
            Value::Object(fields) => {
                for (key, field) in fields {
                    self.has_special_key |= (self.is_special)(key);
                    self.replace(field);
                }
            }
            _ => {}
        }
    }
}

/// Returns a marker. Letters and digits only: no template trims, splits or quotes them.
fn marker(nonce: u128, number: usize) -> String {
    format!("{}{number:08}z", prefix(nonce))
}

fn prefix(nonce: u128) -> String {
    format!("m{nonce:032x}x")
}

/// Splits `text`, the true rendering, at the strings for which `marked_text` has markers. `None` if
/// the two do not correspond.
pub(super) fn segments(
    text: &str,
    marked_text: &str,
    strings: &[String],
    nonce: u128,
) -> Option<Vec<PromptSegment>> {
    let prefix = prefix(nonce);
    // The nonce is random, so no user can write a marker: every prefix found is one of ours.
    let mut pieces = marked_text.split(prefix.as_str());
    let mut segments = Vec::new();
    let mut rest = text.strip_prefix(pieces.next()?)?;
    push(&mut segments, &text[..text.len() - rest.len()], true);
    for piece in pieces {
        let (number, literal) = piece.split_once('z')?;
        let string = strings.get(number.parse::<usize>().ok()?)?;
        // Any difference between the two renderings ends here with `None`, and the request is
        // refused: guessing which text was the user's would let it become a special token.
        let (written, after) = written(string, literal, rest)?;
        push(&mut segments, written, false);
        push(&mut segments, literal, true);
        rest = after;
    }
    rest.is_empty().then_some(segments)
}

fn push(segments: &mut Vec<PromptSegment>, text: &str, special: bool) {
    if !text.is_empty() {
        segments.push(PromptSegment { text: text.to_owned(), special });
    }
}

/// Finds the form in which `string`, followed by `literal`, begins `text`: unchanged, trimmed, or
/// inside JSON. Returns that form and the text after the literal.
fn written<'a>(string: &str, literal: &str, text: &'a str) -> Option<(&'a str, &'a str)> {
    let quoted = serde_json::to_string(string).ok()?;
    let quoted = quoted.trim_matches('"');
    let forms = [string, string.trim(), string.trim_start(), string.trim_end(), quoted];
    forms.into_iter().find_map(|form| {
        let after = text.strip_prefix(form)?.strip_prefix(literal)?;
        Some((&text[..form.len()], after))
    })
}
