//! A JSON schema inside a grammar.

use serde_json::{Value, json};

/// White space allowed between JSON's symbols: what models write without a grammar (a blank, or a
/// line break and indentation), and no more, since a small model may otherwise write blanks until
/// its tokens are used up.
const SPACE: &str = r" |\n {0,24}";

/// A schema as a rule's right side, with our own options in the place of any it brings.
pub(super) fn json_rule(schema: &Value) -> String {
    let options = json!({ "whitespace_flexible": false, "whitespace_pattern": SPACE });
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // The schema `true` accepts any JSON, `false` rejects all.
        other => json!({ "allOf": [other] }),
    };
    schema["x-guidance"] = options;
    format!("%json {schema}")
}
