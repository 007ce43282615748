//! JSON from outside, counted before it is parsed.
//!
//! A parsed value takes many times the bytes of its text: `[0,0,…]` 36 times as many and
//! `[{"":0},…]` 60 times. So the values are counted in the text, which allocates nothing, and a
//! text with too many is refused before any of them exists.

use serde_json::Value;

/// Most values in a body. More than any conversation has, and as many token ids as
/// `--max-queued-tokens` admits by default; they take at most 32 MiB.
pub const MAX_VALUES: usize = 262_144;

/// What a counted value takes at most, bytes: a `Value` is 72 bytes long, and an array that has
/// just grown may be half empty.
pub const VALUE_BYTES: usize = 128;

/// What an array and an object count besides their items: each first allocates room for four.
const ARRAY_VALUES: usize = 3;
const OBJECT_VALUES: usize = 5;

/// Why a text is not accepted as JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// It has more values than the reader accepts.
    #[error("it has more than {0} values; send fewer, or text instead of token ids")]
    TooManyValues(usize),
    /// It is not JSON.
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

/// How many values `text` has at most, weighted so that each takes [`VALUE_BYTES`] at most, besides
/// the bytes of its strings. What is not JSON is counted too: the parser finds that out after it
/// has built the values before.
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

/// How much of memory a parsed value takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ValueSize {
    /// Its values, weighted as [`count_values`] weighs them.
    pub values: usize,
    /// The bytes of its strings, keys among them.
    pub text_bytes: usize,
}

impl ValueSize {
    /// The size of `value`.
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

    /// What is charged for it: its strings twice, for they are copied into a prompt.
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
