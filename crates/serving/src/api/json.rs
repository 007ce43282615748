//! JSON from clients, with its values counted before it is parsed.
//!
//! A parsed value takes many times the bytes of its text: `[0,0,…]` 36 times as many and
//! `[{"":0},…]` 60 times. Values are therefore counted in the text, which allocates nothing, and a
//! text with too many is rejected before it is parsed.

use serde_json::Value;

/// Maximum number of values in a body. More than any conversation has, and as many token ids as
/// `--max-queued-tokens` admits by default; they take at most 32 MiB.
pub const MAX_VALUES: usize = 262_144;

/// Maximum size of a counted value in bytes: a `Value` is 72 bytes long, and an array that has just
/// grown may be half empty.
pub const VALUE_BYTES: usize = 128;

/// Extra values counted for an array and an object besides their items: each first allocates room
/// for four.
const ARRAY_VALUES: usize = 3;
const OBJECT_VALUES: usize = 5;

/// Reason why a text is not accepted as JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text has more values than the limit.
    #[error("it has more than {0} values; send fewer, or text instead of token ids")]
    TooManyValues(usize),
    /// The text is not JSON.
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
}

/// Parses `text` if it has at most `max_values` values. serde_json bounds the depth.
///
/// # Errors
/// [`JsonError`].
pub fn parse(text: &str, max_values: usize) -> Result<Value, JsonError> {
    if count_values(text.as_bytes()) > max_values {
        return Err(JsonError::TooManyValues(max_values));
    }
    Ok(serde_json::from_str(text)?)
}

/// Returns an upper bound of the values in `text`, weighted so that each takes at most
/// [`VALUE_BYTES`], besides the bytes of its strings. Invalid JSON is counted too: the parser
/// detects it only after building the values before it.
pub fn count_values(text: &[u8]) -> usize {
    let mut values = 1;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            // An item, and the value of a member, whose key counts as one as well.
            b',' | b':' => values += 1,
            b'[' => values += ARRAY_VALUES,
            b'{' => values += OBJECT_VALUES,
            _ => {}
        }
    }
    values
}

/// Memory taken by a parsed value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ValueSize {
    /// Number of values, weighted as in [`count_values`].
    pub values: usize,
    /// Bytes of all strings, keys included.
    pub text_bytes: usize,
}

impl ValueSize {
    /// Returns the size of `value`.
    pub fn of(value: &Value) -> Self {
        let mut size = Self::default();
        size.add(value);
        size
    }

    /// Adds the size of `value`.
    pub fn add(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::String(text) => self.text_bytes += text.len(),
            Value::Array(items) => {
                self.values += ARRAY_VALUES;
                items.iter().for_each(|item| self.add(item));
            }
            Value::Object(members) => {
                self.values += OBJECT_VALUES + members.len();
                for (key, value) in members {
                    self.text_bytes += key.len();
                    self.add(value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Bytes to charge: strings count twice, because they are copied into a prompt.
    pub const fn charged_bytes(self) -> usize {
        self.values * VALUE_BYTES + 2 * self.text_bytes
    }
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    //! The count never falls below the values that the parser builds.
    use proptest::prelude::*;

    use super::*;

    fn values_in(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(values_in).sum::<usize>(),
            Value::Object(members) => 1 + members.values().map(values_in).sum::<usize>(),
            _ => 1,
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[a-z\"\\\\,:\\[{é]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            let members = proptest::collection::vec(("[a-c\",{]{0,3}", inner.clone()), 0..6);
            prop_oneof![
                proptest::collection::vec(inner, 0..6).prop_map(Value::from),
                members.prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_value_goes_uncounted(value in any_json()) {
            let text = value.to_string();
            prop_assert!(count_values(text.as_bytes()) >= values_in(&value), "{text}");
            prop_assert_eq!(parse(&text, usize::MAX).unwrap(), value);
        }
    }

    #[test]
    fn punctuation_inside_strings_is_not_counted() {
        assert_eq!(count_values(br#""[,,{::\"[[,""#), 1);
        assert_eq!(count_values(br#"{"a\\":"b,c"}"#), 1 + OBJECT_VALUES + 1);
    }

    #[test]
    fn a_text_with_too_many_values_is_refused_whatever_their_shape() {
        for item in ["0", "[]", "{}", "[0]", "{\"\":0}", "\"\""] {
            let text = format!("[{}]", vec![item; 1000].join(","));
            assert!(matches!(parse(&text, 999), Err(JsonError::TooManyValues(999))), "{item}");
            assert!(parse(&text, 10_000).is_ok(), "{item}");
        }
    }
}
