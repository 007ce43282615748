//! The text of a grammar, in llguidance's dialect of Lark.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{AnswerShape, CallSyntax, Thinking, ToolShape};

/// Most calls in one answer.
const MAX_CALLS: usize = 16;

/// White space allowed between JSON's symbols: what models write without a grammar (a blank, or a
/// line break and indentation), and no more, since a small model may otherwise write blanks until
/// its tokens are used up.
const SPACE: &str = r" |\n {0,24}";

pub(super) fn write(shape: &AnswerShape) -> String {
    let mut text = String::new();
    let body = match (shape.json.is_some(), shape.tools.is_empty()) {
        (true, true) => "json",
        (true, false) => "(json | calls)",
        (false, _) => "calls",
    };
    // Thoughts are free text up to `</think>`; only what follows has a form.
    let before = match shape.thinking {
        Thinking::Never => "",
        Thinking::Optional => "(\"<think>\" thoughts)? ",
        Thinking::Open => "thoughts ",
    };
    let _ = writeln!(text, "start: {before}{body}");
    if shape.thinking != Thinking::Never {
        text.push_str("thoughts: until_end BREAK?\n");
        text.push_str("until_end[lazy]: /(.|\\n)*<\\/think>/\nBREAK: /\\n{1,2}/\n");
    }
    if let Some(schema) = &shape.json {
        let _ = writeln!(text, "json: {}", json_rule(schema));
    }
    if !shape.tools.is_empty() {
        write_calls(&mut text, shape);
    }
    text
}

fn write_calls(text: &mut String, shape: &AnswerShape) {
    let syntax = shape.syntax.unwrap_or(CallSyntax::Tagged);
    // A bare call is the whole answer, so there can be no second one.
    let more = match (shape.parallel, syntax) {
        (true, CallSyntax::Tagged) => format!(" (\"\\n\" call){{0,{}}}", MAX_CALLS - 1),
        _ => String::new(),
    };
    let _ = writeln!(text, "calls: call{more}");
    let rules: Vec<String> = (0..shape.tools.len()).map(|i| format!("call_{i}")).collect();
    let _ = writeln!(text, "call: {}", rules.join(" | "));
    for (i, tool) in shape.tools.iter().enumerate() {
        let (before, after) = around(tool, syntax);
        let _ = writeln!(text, "call_{i}: {before} arguments_{i} {after}");
        let _ = writeln!(text, "arguments_{i}: {}", json_rule(&tool.parameters));
    }
}

/// The text before and after a call's arguments, as Lark strings.
fn around(tool: &ToolShape, syntax: CallSyntax) -> (String, String) {
    let name = &tool.name;
    let (before, after) = match syntax {
        CallSyntax::Tagged => (
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": "),
            "}\n</tool_call>".to_owned(),
        ),
        CallSyntax::Bare => (format!("{{\"name\": \"{name}\", \"parameters\": "), "}".to_owned()),
    };
    (json!(before).to_string(), json!(after).to_string())
}

/// A schema as a rule's right side, with our own options in the place of any it brings.
fn json_rule(schema: &Value) -> String {
    let options = json!({ "whitespace_flexible": false, "whitespace_pattern": SPACE });
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // The schema `true` accepts any JSON, `false` rejects all.
        other => json!({ "allOf": [other] }),
    };
    schema["x-guidance"] = options;
    format!("%json {schema}")
}
