//! `tools` and `tool_choice` of a response, translated to a chat completion.

use serde_json::{Map, Value, json};

use super::namespaces::NamespacedName;
use loquent_serving::api::fields::{Fields, kind_of};
use loquent_serving::error::{ApiError, quoted};

/// The tools of a request.
#[derive(Debug, Default)]
pub struct GivenTools {
    /// The tools in the format of chat completions.
    pub chat: Vec<Value>,
    /// The tools in the format of the response's object.
    pub shown: Vec<Value>,
    /// Tools of other kinds than functions; these are left out.
    pub left_out: Vec<String>,
}

/// The tools that may or must be called.
#[derive(Debug)]
pub struct ToolDemand {
    /// The choice in the format of chat completions.
    pub chat: Option<Value>,
    /// The choice in the format of the response's object.
    pub shown: Value,
}

/// Takes `tools`.
///
/// # Errors
/// 400 with the position of the invalid tool.
pub fn parse_tools(fields: &mut Fields) -> Result<GivenTools, ApiError> {
    let mut tools = GivenTools::default();
    for (index, tool) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
        let name = format!("tools[{index}]");
        let mut tool = fields.nested(&name, tool)?;
        let kind = tool.string("type")?.ok_or_else(|| tool.error("type", "is required."))?;
        match kind.as_str() {
            "function" => {
                let Function { chat, shown } = parse_function(tool, None)?;
                tools.chat.push(chat);
                tools.shown.push(shown);
            }
            "custom" => {
                let Function { chat, shown } = parse_custom(tool)?;
                tools.chat.push(chat);
                tools.shown.push(shown);
            }
            "namespace" => parse_namespace(tool, &name, &mut tools)?,
            other => tools.left_out.push(format!("{name} ({})", quoted(other))),
        }
    }
    Ok(tools)
}

/// Parses a namespace: its functions become functions of the chat, and it is shown with them.
fn parse_namespace(mut space: Fields, place: &str, tools: &mut GivenTools) -> Result<(), ApiError> {
    let namespace = space.string("name")?;
    let namespace = namespace.ok_or_else(|| space.error("name", "is required."))?;
    let description = space.string("description")?;
    let mut shown_functions = Vec::new();
    for (index, tool) in space.array("tools")?.unwrap_or_default().into_iter().enumerate() {
        let inner = format!("tools[{index}]");
        let mut tool = space.nested(&inner, tool)?;
        match tool.string("type")?.as_deref() {
            Some("function") | None => {
                let Function { chat, shown } = parse_function(tool, Some(&namespace))?;
                tools.chat.push(chat);
                shown_functions.push(shown);
            }
            Some(other) => tools.left_out.push(format!("{place}.{inner} ({})", quoted(other))),
        }
    }
    tools.shown.push(json!({
        "type": "namespace", "name": namespace, "description": description,
        "tools": shown_functions,
    }));
    Ok(())
}

/// A function in both formats.
struct Function {
    chat: Value,
    shown: Value,
}

fn parse_function(mut tool: Fields, namespace: Option<&str>) -> Result<Function, ApiError> {
    let name = tool.string("name")?.ok_or_else(|| tool.error("name", "is required."))?;
    let description = tool.string("description")?;
    let strict = tool.boolean("strict")?;
    let parameters = match tool.take("parameters") {
        None => None,
        Some(schema @ Value::Object(_)) => Some(schema),
        Some(other) => {
            let wrong = format!("must be a JSON schema, not {}.", kind_of(&other));
            return Err(tool.error("parameters", wrong));
        }
    };
    let mut function = Map::new();
    function.insert("name".into(), chat_name(&name, namespace).into());
    // Templates may tell an absent member from null.
    let optional = [
        ("description", description.clone().map(Value::from)),
        ("parameters", parameters.clone()),
        ("strict", strict.map(Value::from)),
    ];
    for (name, value) in optional {
        value.map(|value| function.insert(name.into(), value));
    }
    let chat = json!({"type": "function", "function": function});
    let shown = json!({
        "type": "function", "name": name, "description": description, "parameters": parameters,
        "strict": strict,
    });
    Ok(Function { chat, shown })
}

/// Parses a custom tool, which takes a text: the model knows it as a function of one argument. A
/// grammar of the text is told to the model, and not enforced.
fn parse_custom(mut tool: Fields) -> Result<Function, ApiError> {
    let name = tool.string("name")?.ok_or_else(|| tool.error("name", "is required."))?;
    let description = tool.string("description")?;
    let mut told = description.clone().unwrap_or_default();
    let mut format = json!({"type": "text"});
    if let Some(mut given) = tool.object("format")? {
        format = given.map().clone().into();
        let syntax = given.string("syntax")?.unwrap_or_else(|| "given".into());
        if let Some(grammar) = given.string("definition")? {
            told = format!("{told}\n\nThe input follows this {syntax} grammar:\n{grammar}");
        }
    }
    let schema = json!({
        "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
        "additionalProperties": false,
    });
    let function = json!({"name": name, "description": told.trim(), "parameters": schema});
    let shown =
        json!({"type": "custom", "name": name, "description": description, "format": format});
    Ok(Function { chat: json!({"type": "function", "function": function}), shown })
}

/// Returns the name by which the model knows a function.
pub fn chat_name(name: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => NamespacedName { namespace, name }.flat(),
        None => name.to_owned(),
    }
}

/// Takes `tool_choice`.
///
/// # Errors
/// 400 if it is malformed, or demands a tool that this server does not have.
pub fn parse_choice(fields: &mut Fields) -> Result<ToolDemand, ApiError> {
    let choice = match fields.take("tool_choice") {
        None => return Ok(ToolDemand { chat: None, shown: "auto".into() }),
        // Unread: the parser of chat completions knows which words there are.
        Some(word @ Value::String(_)) => {
            return Ok(ToolDemand { chat: Some(word.clone()), shown: word });
        }
        Some(choice) => choice,
    };
    let mut named = fields.nested("tool_choice", choice.clone())?;
    let chat = match named.string("type")?.as_deref() {
        Some("function" | "custom") => {
            let name = named.string("name")?.ok_or_else(|| named.error("name", "is required."))?;
            let name = chat_name(&name, named.string("namespace")?.as_deref());
            json!({"type": "function", "function": {"name": name}})
        }
        Some("allowed_tools") => {
            let mode = named.string("mode")?.unwrap_or_else(|| "auto".into());
            let tools = named.array("tools")?;
            let tools = tools.ok_or_else(|| named.error("tools", "is required."))?;
            // Others are left out here as they are among the tools.
            let is_known = |tool: &&Value| tool["type"] == "function" || tool["type"] == "custom";
            let functions: Vec<Value> = tools.iter().filter(is_known).map(allowed).collect();
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": functions}})
        }
        Some(other) => {
            let wrong = format!("'{}' is not a tool of this server.", quoted(other));
            return Err(named.error("type", wrong));
        }
        None => return Err(named.error("type", "is required.")),
    };
    Ok(ToolDemand { chat: Some(chat), shown: choice })
}

/// Translates one of the allowed tools.
fn allowed(tool: &Value) -> Value {
    // A name that is no text is left to the parser of chat completions.
    let name = match tool["name"].as_str() {
        Some(name) => chat_name(name, tool["namespace"].as_str()).into(),
        None => tool["name"].clone(),
    };
    json!({"type": "function", "function": {"name": name}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &Value) -> Fields {
        Fields::parse(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn functions_are_nested_and_others_are_left_out_by_name() {
        let tools = parse_tools(&mut fields(&json!({"tools": [
            {"type": "web_search"},
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true},
        ]})))
        .unwrap();
        let function = json!({"name": "f", "parameters": {"type": "object"}, "strict": true});
        assert_eq!(tools.chat, [json!({"type": "function", "function": function})]);
        assert_eq!(tools.left_out, ["tools[0] (web_search)"]);
        assert_eq!(tools.shown.len(), 1);
    }

    #[test]
    fn functions_of_a_namespace_are_functions_of_the_chat() {
        let tools = parse_tools(&mut fields(&json!({"tools": [
            {"type": "namespace", "name": "mcp__adder", "description": "Adds.", "tools": [
                {"type": "function", "name": "add", "parameters": {"type": "object"}},
                {"type": "custom", "name": "free"},
            ]},
        ]})))
        .unwrap();
        assert_eq!(tools.chat[0]["function"]["name"], "mcp__adder__add");
        assert_eq!(tools.left_out, ["tools[0].tools[1] (custom)"]);
        assert_eq!(tools.shown[0]["tools"][0]["name"], "add");
        assert_eq!(tools.shown[0]["description"], "Adds.");
        assert!(parse_tools(&mut fields(&json!({"tools": [{"type": "namespace"}]}))).is_err());
        let choice = json!({"type": "function", "namespace": "mcp__adder", "name": "add"});
        let choice = parse_choice(&mut fields(&json!({"tool_choice": choice}))).unwrap();
        assert_eq!(choice.chat.unwrap()["function"]["name"], "mcp__adder__add");
    }

    #[test]
    fn a_custom_tool_is_a_function_of_a_text() {
        let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: PATCH"});
        let given =
            json!({"type": "custom", "name": "patch", "description": "Patches.", "format": format});
        let tools =
            parse_tools(&mut fields(&json!({"tools": [given, {"type": "custom", "name": "say"}]})));
        let tools = tools.unwrap();
        let function = &tools.chat[0]["function"];
        assert_eq!(function["parameters"]["required"], json!(["input"]));
        let told = function["description"].as_str().unwrap();
        assert!(
            told.starts_with("Patches.") && told.ends_with("lark grammar:\nstart: PATCH"),
            "{told}"
        );
        assert_eq!(tools.shown[0], given);
        assert_eq!(tools.shown[1]["format"]["type"], "text");
        assert!(tools.left_out.is_empty());
        let choice = json!({"tool_choice": {"type": "custom", "name": "patch"}});
        let choice = parse_choice(&mut fields(&choice)).unwrap().chat.unwrap();
        assert_eq!(choice, json!({"type": "function", "function": {"name": "patch"}}));
        for wrong in
            [json!({"type": "custom"}), json!({"type": "custom", "name": "a", "format": 5})]
        {
            assert!(
                parse_tools(&mut fields(&json!({"tools": [wrong.clone()]}))).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn choices_become_those_of_a_chat() {
        let chat = |choice: Value| {
            parse_choice(&mut fields(&json!({"tool_choice": choice}))).map(|choice| choice.chat)
        };
        assert_eq!(chat(json!(null)).unwrap(), None);
        assert_eq!(chat(json!("required")).unwrap(), Some(json!("required")));
        let named = chat(json!({"type": "function", "name": "f"})).unwrap().unwrap();
        assert_eq!(named["function"]["name"], "f");
        let allowed = json!({"type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "f"}, {"type": "web_search"},
                {"type": "function", "name": "add", "namespace": "mcp__adder"}]});
        let allowed = &chat(allowed).unwrap().unwrap()["allowed_tools"];
        assert_eq!(allowed["mode"], "required");
        let tools = allowed["tools"].as_array().unwrap();
        let names: Vec<_> = tools.iter().map(|tool| &tool["function"]["name"]).collect();
        assert_eq!(names, ["f", "mcp__adder__add"]);
        for wrong in
            [json!({}), json!({"type": "web_search"}), json!({"type": "function"}), json!(3)]
        {
            assert!(chat(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
