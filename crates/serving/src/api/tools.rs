//! Parses `tools`, `tool_choice` and `response_format`.

use loquent_formats::grammar::ToolShape;
use serde_json::{Value, json};

use super::closed_schema::close_objects;
use super::fields::{Fields, kind_of};
use crate::error::{ApiError, quoted};

/// Maximum number of tools in one request: more than agents with many MCP servers send.
const MAX_TOOLS: usize = 512;
/// Maximum length of a tool name in bytes (OpenAI's limit).
const MAX_NAME_BYTES: usize = 64;

/// Tools that an answer may or must call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    /// The definitions as given, for the chat template.
    pub definitions: Vec<Value>,
    /// The tools that may be called.
    pub callable: Vec<ToolShape>,
    /// Permission or obligation of the model to call a tool.
    pub choice: ToolChoice,
    /// Allows several calls in one answer.
    pub parallel: bool,
}

/// Choice between an answer and a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides whether to call a tool.
    Auto,
    /// The answer must be a call of one of the callable tools.
    Forced,
}

impl ToolUse {
    /// Returns true if the answer must be a call.
    pub fn is_forced(&self) -> bool {
        self.choice == ToolChoice::Forced
    }
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls`; `None` if no tool may be called.
///
/// # Errors
/// 400 with the name of the wrong field.
pub fn parse_tools(fields: &mut Fields) -> Result<Option<ToolUse>, ApiError> {
    let mut definitions = fields.array("tools")?.unwrap_or_default();
    if definitions.len() > MAX_TOOLS {
        return Err(fields.error("tools", format!("has more than {MAX_TOOLS} entries.")));
    }
    let is_named = fields.map().get("tool_choice").is_some_and(|it| it.get("function").is_some());
    let wanted = Wanted::parse(fields)?;
    let is_forced = matches!(wanted, Wanted::Required | Wanted::Among(_, ToolChoice::Forced));
    let mut callable = Vec::with_capacity(definitions.len());
    for (index, tool) in definitions.iter().enumerate() {
        let mut tool = fields.nested(&format!("tools[{index}]"), tool.clone())?;
        callable.push(parse_tool(&mut tool, is_forced)?);
        fields.ignore_rest(tool);
    }
    let mut parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let choice = match wanted {
        Wanted::None => return Ok(None),
        Wanted::Auto if callable.is_empty() => return Ok(None),
        Wanted::Auto => ToolChoice::Auto,
        Wanted::Required if callable.is_empty() => {
            return Err(fields.error("tool_choice", "is 'required', but there are no 'tools'."));
        }
        Wanted::Required => ToolChoice::Forced,
        Wanted::Among(names, choice) => {
            if let Some(name) =
                names.iter().find(|name| !callable.iter().any(|of| of.name == **name))
            {
                let wrong = format!("names '{}', which is not among 'tools'.", quoted(name));
                return Err(fields.error("tool_choice", wrong));
            }
            callable.retain(|tool| names.contains(&tool.name));
            if callable.is_empty() {
                return Ok(None);
            }
            // A named function is called exactly once.
            parallel &= !is_named;
            if choice == ToolChoice::Auto {
                // Nothing else keeps a model from a tool that its prompt tells of.
                definitions
                    .retain(|tool| names.iter().any(|name| tool["function"]["name"] == **name));
            }
            choice
        }
    };
    Ok(Some(ToolUse { definitions, callable, choice, parallel }))
}

fn parse_tool(fields: &mut Fields, is_forced: bool) -> Result<ToolShape, ApiError> {
    match fields.string("type")?.as_deref() {
        Some("function") | None => {}
        Some(other) => {
            let wrong = format!("may only be 'function', not '{}'.", quoted(other));
            return Err(fields.error("type", wrong));
        }
    }
    let function = fields.object("function")?;
    let mut function = function.ok_or_else(|| fields.error("function", "is required."))?;
    let name = function.string("name")?;
    let name = name.ok_or_else(|| function.error("name", "is required."))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        let wrong = format!("must be 1 to {MAX_NAME_BYTES} letters, digits, '_', '-' or '.'.");
        return Err(function.error("name", wrong));
    }
    let is_strict = function.map().get("strict") == Some(&Value::Bool(true));
    let mut parameters = match function.take("parameters") {
        None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(schema @ Value::Object(_)) => schema,
        Some(other) => {
            let wrong = format!("must be a JSON schema, not {}.", kind_of(&other));
            return Err(function.error("parameters", wrong));
        }
    };
    close_objects(&mut parameters, is_strict);
    function.take("description"); // which the model reads
    // A call is held to its schema where it is forced.
    if is_forced || function.map().get("strict") == Some(&Value::Bool(false)) {
        function.take("strict");
    }
    fields.ignore_rest(function);
    Ok(ToolShape { name, parameters })
}

enum Wanted {
    None,
    Auto,
    Required,
    /// Some of the tools.
    Among(Vec<String>, ToolChoice),
}

impl Wanted {
    fn parse(fields: &mut Fields) -> Result<Self, ApiError> {
        let wrong = "must be 'none', 'auto', 'required' or a function's name in an object";
        match fields.take("tool_choice") {
            None => Ok(Self::Auto),
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => Ok(Self::None),
                "auto" => Ok(Self::Auto),
                "required" => Ok(Self::Required),
                other => {
                    Err(fields.error("tool_choice", format!("{wrong}, not '{}'.", quoted(other))))
                }
            },
            Some(choice) => {
                let found = match choice.get("allowed_tools") {
                    Some(allowed) => Self::of_allowed(allowed),
                    None => function_name(&choice)
                        .map(|name| Self::Among(vec![name], ToolChoice::Forced)),
                };
                found.ok_or_else(|| fields.error("tool_choice", format!("{wrong}.")))
            }
        }
    }

    /// Reads `allowed_tools`: the subset of the tools that this answer may call.
    fn of_allowed(allowed: &Value) -> Option<Self> {
        let choice = match allowed["mode"].as_str()? {
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Forced,
            _ => return None,
        };
        let names = allowed["tools"].as_array()?.iter().map(function_name);
        Some(Self::Among(names.collect::<Option<_>>()?, choice))
    }
}

fn function_name(tool: &Value) -> Option<String> {
    tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned)
}

/// Takes `response_format`; returns the JSON schema that the answer must match, if any.
///
/// # Errors
/// 400 with the name of the wrong field.
pub fn parse_format(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else {
        return Ok(None);
    };
    let schema = match format.string("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => {
            // llama-server accepts a schema under this type too.
            let schema = format.take("schema").unwrap_or_else(|| json!({"type": "object"}));
            Some(check_schema(&format, "schema", schema)?)
        }
        Some("json_schema") => {
            let named = format.object("json_schema")?;
            let mut named = named.ok_or_else(|| format.error("json_schema", "is required."))?;
            let schema = named.take("schema");
            let schema = schema.ok_or_else(|| named.error("schema", "is required."))?;
            let mut schema = check_schema(&named, "schema", schema)?;
            close_objects(&mut schema, named.map().get("strict") == Some(&Value::Bool(true)));
            // A name says nothing to the answer, and every schema is upheld strictly.
            named.take("name");
            named.take("strict");
            format.ignore_rest(named);
            Some(schema)
        }
        Some(other) => {
            let wrong = format!("of type '{}' is not supported.", quoted(other));
            return Err(fields.error("response_format", wrong));
        }
        None => return Err(format.error("type", "is required.")),
    };
    fields.ignore_rest(format);
    Ok(schema)
}

/// Returns `schema`, with its objects closed, if it is an object.
///
/// # Errors
/// 400 with `name` if it is not.
pub fn check_schema(fields: &Fields, name: &str, mut schema: Value) -> Result<Value, ApiError> {
    match schema {
        Value::Object(_) => {
            close_objects(&mut schema, false);
            Ok(schema)
        }
        other => {
            let wrong = format!("must be a JSON schema, not {}.", kind_of(&other));
            Err(fields.error(name, wrong))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_function_is_called_once() {
        let parse = |choice: Value| {
            let tool = json!({"type": "function", "function": {"name": "a"}});
            let body = json!({"tools": [tool], "tool_choice": choice});
            let tools = parse_tools(&mut Fields::parse(body.to_string().as_bytes()).unwrap());
            tools.unwrap().unwrap()
        };
        let named = parse(json!({"type": "function", "function": {"name": "a"}}));
        assert!(named.is_forced() && !named.parallel);
        assert!(parse(json!("required")).parallel && parse(json!("auto")).parallel);
    }

    #[test]
    fn allowed_tools_are_the_only_ones_that_the_model_hears_of_and_may_call() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let parse = |mode: &str, allowed: &[&str]| {
            let allowed: Vec<Value> = allowed.iter().map(|name| tool(name)).collect();
            let choice = json!({"mode": mode, "tools": allowed});
            let body = json!({
                "tools": [tool("a"), tool("b"), tool("c")],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": choice},
            });
            parse_tools(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
        };
        let some = parse("auto", &["c", "a"]).unwrap().unwrap();
        assert_eq!(some.definitions, [tool("a"), tool("c")]);
        assert_eq!((some.callable.len(), some.is_forced()), (2, false));
        let forced = parse("required", &["b"]).unwrap().unwrap();
        assert_eq!((forced.callable[0].name.as_str(), forced.is_forced()), ("b", true));
        assert_eq!(parse("auto", &[]).unwrap(), None);
        assert!(parse("auto", &["d"]).is_err() && parse("sometimes", &["a"]).is_err());
    }
}
