//! A JSON schema inside a grammar.

use serde_json::{Value, json};

/// White space allowed between JSON's symbols: what models write without a grammar (a blank, or a
/// line break and indentation). More would allow a small model to write blanks until its tokens are
/// used up.
const SPACE: &str = r" |\n {0,24}";

/// Returns a schema as a rule's right side, with our options in place of any in the schema.
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
