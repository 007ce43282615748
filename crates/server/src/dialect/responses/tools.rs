//! `tools` and `tool_choice` of a response, translated to a chat completion.

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, kind_of};
use crate::error::{ApiError, quoted};

/// The tools of a request.
#[derive(Debug, Default)]
pub struct GivenTools {
    /// The tools in the format of chat completions.
    pub chat: Vec<Value>,
    /// The tools in the format of the response's object.
    pub shown: Vec<Value>,
    /// Tools that only OpenAI's servers can run; these are left out.
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
                let (chat, shown) = parse_function(tool)?;
                tools.chat.push(chat);
                tools.shown.push(shown);
            }
            other => tools.left_out.push(format!("{name} ({})", quoted(other))),
        }
    }
    Ok(tools)
}

fn parse_function(mut tool: Fields) -> Result<(Value, Value), ApiError> {
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
    function.insert("name".into(), name.as_str().into());
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
    Ok((chat, shown))
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
        Some("function") => {
            let name = named.string("name")?.ok_or_else(|| named.error("name", "is required."))?;
            json!({"type": "function", "function": {"name": name}})
        }
        Some("allowed_tools") => {
            let mode = named.string("mode")?.unwrap_or_else(|| "auto".into());
            let tools = named.array("tools")?;
            let tools = tools.ok_or_else(|| named.error("tools", "is required."))?;
            // Others than functions are left out here as they are among the tools.
            let functions = tools.iter().filter(|tool| tool["type"] == "function");
            let functions: Vec<Value> = functions
                .map(|tool| json!({"type": "function", "function": {"name": tool["name"]}}))
                .collect();
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
    fn choices_become_those_of_a_chat() {
        let chat = |choice: Value| {
            parse_choice(&mut fields(&json!({"tool_choice": choice}))).map(|choice| choice.chat)
        };
        assert_eq!(chat(json!(null)).unwrap(), None);
        assert_eq!(chat(json!("required")).unwrap(), Some(json!("required")));
        let named = chat(json!({"type": "function", "name": "f"})).unwrap().unwrap();
        assert_eq!(named["function"]["name"], "f");
        let allowed = json!({"type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]});
        let allowed = chat(allowed).unwrap().unwrap();
        assert_eq!(allowed["allowed_tools"]["mode"], "required");
        assert_eq!(allowed["allowed_tools"]["tools"].as_array().unwrap().len(), 1);
        for wrong in
            [json!({}), json!({"type": "web_search"}), json!({"type": "function"}), json!(3)]
        {
            assert!(chat(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
