//! The grammar of tool calls, by the model's format.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::control_tags::ControlTags;
use super::json_rule::json_rule;
use super::syntax::CallSyntax;
use super::{GrammarError, ToolShape};

/// Maximum calls in one answer.
const MAX_CALLS: usize = 16;
/// Maximum bytes, as JSON, of a schema's definitions if its parameters have rules of their own:
/// each rule has a copy.
const MAX_DEFINITIONS_BYTES: usize = 16 * 1024;

/// The text around the calls of an answer.
struct Around {
    /// Before the first call.
    open: &'static str,
    /// Between two calls; `None` if an answer has at most one.
    between: Option<&'static str>,
    /// After a call's arguments.
    after: &'static str,
    /// After the last call.
    close: &'static str,
}

const fn around(syntax: CallSyntax) -> Around {
    let (open, between, after, close) = match syntax {
        CallSyntax::Tagged => ("", Some("\n"), "}\n</tool_call>", ""),
        // A bare call is the whole answer, so there can be no second one.
        CallSyntax::Bare => ("", None, "}", ""),
        // A call ends the turn.
        CallSyntax::Harmony => ("", None, "", ""),
        CallSyntax::QwenXml => ("", Some("\n"), "</function>\n</tool_call>", ""),
        CallSyntax::GlmXml => ("", Some("\n"), "</tool_call>", ""),
        CallSyntax::MistralList => ("[TOOL_CALLS][", Some(", "), "}", "]"),
        CallSyntax::MistralArgs => ("", Some(""), "", ""),
        CallSyntax::DeepSeekFenced => {
            let close = "<｜tool▁calls▁end｜>";
            ("<｜tool▁calls▁begin｜>", Some("\n"), "\n```<｜tool▁call▁end｜>", close)
        }
        CallSyntax::DeepSeek => {
            let close = "<｜tool▁calls▁end｜>";
            ("<｜tool▁calls▁begin｜>", Some(""), "<｜tool▁call▁end｜>", close)
        }
        CallSyntax::DsmlFunctions => {
            let close = "</｜DSML｜function_calls>";
            ("<｜DSML｜function_calls>\n", Some(""), "</｜DSML｜invoke>\n", close)
        }
        CallSyntax::DsmlTools => {
            let close = "</｜DSML｜tool_calls>";
            ("<｜DSML｜tool_calls>\n", Some(""), "</｜DSML｜invoke>\n", close)
        }
    };
    Around { open, between, after, close }
}

/// Returns the text of a call of `name` up to its arguments.
fn before(name: &str, syntax: CallSyntax) -> String {
    match syntax {
        CallSyntax::Tagged => format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": "),
        CallSyntax::Bare => format!("{{\"name\": \"{name}\", \"parameters\": "),
        CallSyntax::Harmony => {
            format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>")
        }
        CallSyntax::QwenXml => format!("<tool_call>\n<function={name}>\n"),
        CallSyntax::GlmXml => format!("<tool_call>{name}\n"),
        CallSyntax::MistralList => format!("{{\"name\": \"{name}\", \"arguments\": "),
        CallSyntax::MistralArgs => format!("[TOOL_CALLS]{name}[ARGS]"),
        CallSyntax::DeepSeekFenced => {
            format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n")
        }
        CallSyntax::DeepSeek => format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>"),
        CallSyntax::DsmlFunctions | CallSyntax::DsmlTools => {
            format!("<｜DSML｜invoke name=\"{name}\">\n")
        }
    }
}

/// Appends the rule `calls` and the rules that it uses.
pub(super) fn write(
    text: &mut String,
    tools: &[ToolShape],
    syntax: CallSyntax,
    parallel: bool,
    tags: &ControlTags,
) -> Result<(), GrammarError> {
    let Around { open, between, after, close } = around(syntax);
    let more = between.filter(|_| parallel).map_or_else(String::new, |between| {
        format!(" ({} call){{0,{}}}", tags.literal(between), MAX_CALLS - 1)
    });
    let (open, close) = (tags.literal(open), tags.literal(close));
    let _ = writeln!(text, "calls: {open} call{more} {close}");
    let rules: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
    let _ = writeln!(text, "call: {}", rules.join(" | "));
    let after = tags.literal(after);
    for (i, tool) in tools.iter().enumerate() {
        let before = tags.literal(&before(&tool.name, syntax));
        let _ = writeln!(text, "call_{i}: {before} arguments_{i} {after}");
        match Xml::of(syntax) {
            None => drop(writeln!(text, "arguments_{i}: {}", json_rule(&tool.parameters))),
            Some(xml) => xml.write(text, i, tool, tags)?,
        }
    }
    if let Some(xml) = Xml::of(syntax) {
        // Once for all tools: their texts all end in the same way.
        text.push_str(&tags.until("text_value", xml.value_end));
    }
    Ok(())
}

/// Arguments as elements instead of JSON.
struct Xml {
    key_open: &'static str,
    /// After the name of a string parameter.
    text_open: &'static str,
    /// After the name of any other parameter.
    json_open: &'static str,
    value_end: &'static str,
}

impl Xml {
    const fn of(syntax: CallSyntax) -> Option<Self> {
        match syntax {
            CallSyntax::QwenXml => Some(Self {
                key_open: "<parameter=",
                text_open: ">\n",
                json_open: ">\n",
                value_end: "\n</parameter>\n",
            }),
            CallSyntax::GlmXml => Some(Self {
                key_open: "<arg_key>",
                text_open: "</arg_key>\n<arg_value>",
                json_open: "</arg_key>\n<arg_value>",
                value_end: "</arg_value>\n",
            }),
            CallSyntax::DsmlFunctions | CallSyntax::DsmlTools => Some(Self {
                key_open: "<｜DSML｜parameter name=\"",
                text_open: "\" string=\"true\">",
                json_open: "\" string=\"false\">",
                value_end: "</｜DSML｜parameter>\n",
            }),
            _ => None,
        }
    }

    /// Writes the arguments of tool `i`: its properties in order, optional ones may be left out.
    fn write(
        &self,
        text: &mut String,
        i: usize,
        tool: &ToolShape,
        tags: &ControlTags,
    ) -> Result<(), GrammarError> {
        let schema = Properties::of(tool)?;
        let mut all = String::new();
        for (at, (key, value)) in schema.properties.iter().enumerate() {
            let optional = if schema.requires(key) { "" } else { "?" };
            let _ = write!(all, " argument_{i}_{at}{optional}");
            let value = self.value(&schema, key, value, tags)?;
            let behind = if value.is_text { self.text_open } else { self.json_open };
            let open = tags.literal(&format!("{}{key}{behind}", self.key_open));
            let _ = writeln!(text, "argument_{i}_{at}: {open} {}", value.rule);
        }
        // A rule needs a right side, also for a tool without parameters.
        let all = if all.is_empty() { " \"\"".to_owned() } else { all };
        let _ = writeln!(text, "arguments_{i}:{all}");
        Ok(())
    }

    /// Writes the rule of a value and its end: strings as plain text, all others as JSON.
    fn value(
        &self,
        schema: &Properties<'_>,
        key: &str,
        value: &Value,
        tags: &ControlTags,
    ) -> Result<ValueRule, GrammarError> {
        let end = tags.literal(self.value_end);
        if let Some(texts) = enumerated(value) {
            let texts: Vec<String> = texts.iter().map(|text| tags.literal(text)).collect();
            let rule = format!("({}) {end}", texts.join(" | "));
            return Ok(ValueRule { rule, is_text: true });
        }
        match is_text(value) {
            None => {
                let rule = format!("{} {end}", json_rule(&schema.with_definitions(value)?));
                Ok(ValueRule { rule, is_text: false })
            }
            Some(true) => Ok(ValueRule { rule: "text_value".to_owned(), is_text: true }),
            Some(false) => Err(GrammarError::Schema(format!(
                "the parameter '{key}' restricts a text, which this model's format of calls \
                 cannot be made to uphold; remove the restriction, or tool_choice"
            ))),
        }
    }
}

/// Rule for a value and its end.
struct ValueRule {
    rule: String,
    is_text: bool,
}

/// Returns the texts of an `enum` or `const` of strings only.
fn enumerated(schema: &Value) -> Option<Vec<&str>> {
    let values = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) => values.iter().collect(),
        (_, Some(value)) => vec![value],
        _ => return None,
    };
    values.into_iter().map(Value::as_str).collect::<Option<Vec<_>>>().filter(|it| !it.is_empty())
}

/// Returns `None` for a value that is not a string; otherwise whether any string is allowed.
fn is_text(schema: &Value) -> Option<bool> {
    let text = Value::from("string");
    let typed = match schema.get("type") {
        Some(Value::Array(types)) => types.contains(&text),
        Some(one) => *one == text,
        // Without a type a text may be meant, unless the schema is about something else.
        None => !["properties", "items", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"]
            .iter()
            .any(|word| schema.get(word).is_some()),
    };
    let restricts = ["pattern", "format", "minLength", "maxLength", "enum", "const"];
    typed.then(|| !restricts.iter().any(|word| schema.get(word).is_some()))
}

/// The schema of a call's arguments, one by one.
struct Properties<'a> {
    root: &'a Map<String, Value>,
    properties: &'a Map<String, Value>,
}

impl<'a> Properties<'a> {
    fn of(tool: &'a ToolShape) -> Result<Self, GrammarError> {
        static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        let wrong = |what: &str| {
            GrammarError::Schema(format!(
                "the parameters of '{}' {what}, for this model's calls",
                tool.name
            ))
        };
        let root = tool.parameters.as_object().ok_or_else(|| wrong("must be an object"))?;
        let properties = root.get("properties").map_or(Some(&*NONE), Value::as_object);
        let properties = properties.ok_or_else(|| wrong("must list their properties"))?;
        let combined = ["anyOf", "oneOf", "allOf", "$ref", "patternProperties"];
        if combined.iter().any(|word| root.contains_key(*word)) {
            return Err(wrong("must be a plain list of properties"));
        }
        // Keys stand in tags unescaped: one with '>' or '<' would end its own tag.
        let is_plain =
            |key: &String| key.chars().all(|c| c.is_alphanumeric() || "_-. ".contains(c));
        if !properties.keys().all(is_plain) {
            return Err(wrong("must have names of letters, digits, '_', '-' and '.'"));
        }
        let this = Self { root, properties };
        let required = root.get("required").and_then(Value::as_array).into_iter().flatten();
        // There is no schema from which to write the value of one that is not listed.
        let mut unlisted = required.filter_map(Value::as_str);
        if unlisted.any(|key| !properties.contains_key(key)) {
            return Err(wrong("must list all that are required"));
        }
        Ok(this)
    }

    fn requires(&self, key: &str) -> bool {
        let required = self.root.get("required").and_then(Value::as_array);
        required.is_some_and(|required| required.iter().any(|name| name == key))
    }

    /// Returns `schema` with the definitions that it may refer to.
    fn with_definitions(&self, schema: &Value) -> Result<Value, GrammarError> {
        let mut schema = schema.clone();
        let written = schema.to_string();
        // In the rule of one parameter these would point at something else, or at nothing.
        if written.contains("\"#\"") || written.contains("#/properties") {
            return Err(GrammarError::Schema("a parameter refers to the whole schema".to_owned()));
        }
        // Without a reference it needs none; each of many would have a copy of its own.
        let refers = written.contains("\"$ref\"");
        if let (true, Value::Object(members)) = (refers, &mut schema) {
            for name in ["$defs", "definitions"] {
                if let (Some(all), false) = (self.root.get(name), members.contains_key(name)) {
                    if all.to_string().len() > MAX_DEFINITIONS_BYTES {
                        return Err(GrammarError::TooLarge);
                    }
                    members.insert(name.to_owned(), all.clone());
                }
            }
        }
        Ok(schema)
    }
}
