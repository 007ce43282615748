//! Translates Anthropic's requests to the fields of a chat completion.

use serde_json::{Map, Value, json};

use super::object::ThinkingDisplay;
use super::turns::{LoweredTurns, lower_messages, text_of};
use crate::lowered::Lowered;
use loquent_serving::api::fields::{Fields, kind_of};
use loquent_serving::api::parameter_table::{Parameter, ignored, refused, sift, supported};
use loquent_serving::api::request::Endpoint;
use loquent_serving::error::{ApiError, quoted};

/// Support status of each parameter of `/v1/messages`.
pub const PARAMETERS: &[Parameter] = &[
    supported("model", ""),
    supported("max_tokens", "may be left out; 0, which only fills the cache, is taken as 1"),
    supported(
        "messages",
        "text, plain-text documents, tools, thinking; of past images, a line of text",
    ),
    supported("system", ""),
    supported("stream", ""),
    supported("temperature", ""),
    supported("top_p", ""),
    supported("top_k", ""),
    supported("stop_sequences", "at most 16"),
    supported("tools", "those with an `input_schema`; Anthropic's own are refused"),
    supported("tool_choice", ""),
    supported("thinking", "where the model's chat template can turn it on and off"),
    supported("output_config", "`format` and `effort`"),
    supported("output_format", "older name of `output_config.format`"),
    ignored("cache_control", "equal beginnings of prompts are cached anyway"),
    ignored("metadata", ""),
    ignored("service_tier", ""),
    ignored("inference_geo", ""),
    ignored("context_management", ""),
    ignored("speed", ""),
    ignored("diagnostics", ""),
    refused("thread", "conversations are not kept; send all messages"),
    refused("compaction", "this server sums up no conversations"),
    refused("container", "this server runs no code"),
    refused("mcp_servers", "this server calls no tools"),
    // This server's own, under the names that they have in chat completions.
    supported("cache_salt", "Loquent's own"),
    supported("chat_template_kwargs", "Loquent's own"),
    supported("ignore_eos", "Loquent's own"),
    supported("min_p", "Loquent's own"),
    supported("priority", "Loquent's own"),
    supported("seed", "Loquent's own"),
    supported("stream_interval", "Loquent's own"),
];

/// Beginning of a block of Claude Code's system prompt that no model is meant to read.
const BILLING: &str = "x-anthropic-billing-header:";

/// Parameters with the same name and meaning in a chat completion.
const SAME: &[&str] = &[
    "model",
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "cache_salt",
    "ignore_eos",
    "min_p",
    "priority",
    "seed",
    "stream_interval",
];

/// Translates `fields` to a chat completion.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn lower(mut fields: Fields) -> Result<Lowered<ThinkingDisplay>, ApiError> {
    refuse_thread(&fields)?;
    let mut ignored = sift(&mut fields, PARAMETERS)?;
    let mut turns = LoweredTurns::default();
    if let Some(mut system) = fields.take("system") {
        drop_billing(&mut system);
        if system != json!([]) {
            let text = text_of(&fields, "system", system, "\n")?;
            turns.chat.push(json!({"role": "system", "content": text}));
        }
    }
    lower_messages(&mut fields, &mut turns)?;
    let LoweredTurns { chat: messages, ignored: unread } = turns;
    ignored.extend(unread);
    let mut chat = Map::new();
    if messages.last().is_some_and(goes_on) {
        chat.insert("continue_final_message".into(), true.into());
        chat.insert("add_generation_prompt".into(), false.into());
    }
    chat.insert("messages".into(), messages.into());
    lower_tools(&mut fields, &mut chat)?;
    let display = lower_thinking(&mut fields, &mut chat)?;
    lower_output(&mut fields, &mut chat)?;
    if let Some(stops) = fields.array("stop_sequences")?.filter(|stops| !stops.is_empty()) {
        chat.insert("stop".into(), stops.into());
        chat.insert("include_stop_reason".into(), true.into());
    }
    let same = SAME.iter().filter_map(|name| Some(((*name).to_owned(), fields.take(name)?)));
    chat.extend(same);
    if chat.get("max_tokens") == Some(&json!(0)) {
        chat.insert("max_tokens".into(), 1.into());
    }
    let fields = fields.replaced(chat);
    Ok(Lowered { endpoint: Endpoint::Chat, fields, ignored, kept: display })
}

/// Removes the blocks of a system prompt that Claude Code writes for Anthropic's billing. They
/// differ in each session, so that behind them no prompt would be found in the cache.
fn drop_billing(system: &mut Value) {
    let is_billing = |block: &Value| {
        let text = block["text"].as_str();
        text.is_some_and(|text| text.starts_with(BILLING))
    };
    if let Value::Array(blocks) = system {
        blocks.retain(|block| !is_billing(block));
    }
}

/// Refuses a conversation that a server is to keep, under the code on which Anthropic's clients
/// send all of it again.
fn refuse_thread(fields: &Fields) -> Result<(), ApiError> {
    match fields.map().get("thread") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => {
            let message = "'thread' is not supported: this server keeps no conversations. Send all \
                           messages without it.";
            Err(ApiError::lacking("thread", message, "thread_unsupported_request"))
        }
    }
}

/// Returns true if the answer continues the last message, which the assistant has begun.
fn goes_on(last: &Value) -> bool {
    last["role"] == "assistant" && last.get("tool_calls").is_none()
}

fn lower_tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let tools = fields.array("tools")?.unwrap_or_default();
    let mut functions = Vec::with_capacity(tools.len());
    for (index, tool) in tools.into_iter().enumerate() {
        functions.push(lower_tool(fields.nested(&format!("tools[{index}]"), tool)?)?);
    }
    if let Some(mut choice) = fields.object("tool_choice")? {
        if choice.boolean("disable_parallel_tool_use")? == Some(true) {
            chat.insert("parallel_tool_calls".into(), false.into());
        }
        let kind = choice.string("type")?;
        let wanted = match kind.as_deref() {
            Some("auto") => json!("auto"),
            Some("any") => json!("required"),
            Some("none") => json!("none"),
            Some("tool") => {
                let name = choice.string("name")?;
                let name = name.ok_or_else(|| choice.error("name", "is required."))?;
                json!({"type": "function", "function": {"name": name}})
            }
            _ => return Err(choice.error("type", "must be auto, any, tool or none.")),
        };
        chat.insert("tool_choice".into(), wanted);
    }
    if !functions.is_empty() {
        chat.insert("tools".into(), functions.into());
    }
    Ok(())
}

fn lower_tool(mut tool: Fields) -> Result<Value, ApiError> {
    match tool.string("type")?.as_deref() {
        None | Some("custom") => {}
        Some(other) => {
            let only = "only tools with an 'input_schema' are supported";
            let wrong = format!("'{}' is not supported: {only}.", quoted(other));
            return Err(tool.error("type", wrong));
        }
    }
    let name = tool.string("name")?.ok_or_else(|| tool.error("name", "is required."))?;
    let schema = match tool.take("input_schema") {
        Some(schema @ Value::Object(_)) => schema,
        Some(other) => {
            let wrong = format!("must be a JSON schema, not {}.", kind_of(&other));
            return Err(tool.error("input_schema", wrong));
        }
        None => return Err(tool.error("input_schema", "is required.")),
    };
    let mut function = json!({"name": name, "parameters": schema});
    if let Some(description) = tool.string("description")? {
        function["description"] = description.into();
    }
    if let Some(strict) = tool.boolean("strict")? {
        function["strict"] = strict.into();
    }
    Ok(json!({"type": "function", "function": function}))
}

/// Translates `thinking`: whether to think, and for how long. Chat templates that support it have a
/// variable for it.
fn lower_thinking(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
) -> Result<ThinkingDisplay, ApiError> {
    let mut display = ThinkingDisplay::Shown;
    let mut variables = match fields.object("chat_template_kwargs")? {
        None => Map::new(),
        Some(variables) => variables.into_map(),
    };
    if let Some(mut thinking) = fields.object("thinking")? {
        let thinks = match thinking.string("type")?.as_deref() {
            Some("enabled" | "adaptive" | "between_tools") => true,
            Some("disabled") => false,
            _ => return Err(thinking.error("type", "must be enabled, adaptive or disabled.")),
        };
        if thinking.string("display")?.as_deref() == Some("omitted") {
            display = ThinkingDisplay::Omitted;
        }
        variables.entry("enable_thinking").or_insert(thinks.into());
        let budget = thinking.integer("budget_tokens", 1..=i64::from(u32::MAX))?;
        if let Some(budget) = budget.filter(|_| thinks) {
            chat.insert("thinking_token_budget".into(), budget.into());
        }
    }
    if !variables.is_empty() {
        chat.insert("chat_template_kwargs".into(), variables.into());
    }
    Ok(display)
}

fn lower_output(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let mut format = fields.object("output_format")?;
    if let Some(mut output) = fields.object("output_config")? {
        format = output.object("format")?.or(format);
        if let Some(effort) = output.string("effort")? {
            // Chat completions have fewer steps at the top.
            let effort = if ["xhigh", "max"].contains(&&*effort) { "high".into() } else { effort };
            chat.insert("reasoning_effort".into(), effort.into());
        }
    }
    let Some(mut format) = format else { return Ok(()) };
    match format.string("type")?.as_deref() {
        Some("json_schema") => {
            let schema = format.take("schema");
            let schema = schema.ok_or_else(|| format.error("schema", "is required."))?;
            let named = json!({"name": "output", "schema": schema, "strict": true});
            let wanted = json!({"type": "json_schema", "json_schema": named});
            chat.insert("response_format".into(), wanted);
            Ok(())
        }
        _ => Err(format.error("type", "must be json_schema.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages_of(body: &Value) -> Value {
        let fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        lower(fields).unwrap().fields.map()["messages"].clone()
    }

    #[test]
    fn a_system_prompt_has_no_block_for_billing() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let ask = |system: Value| {
            messages_of(&json!({
                "system": system, "messages": [{"role": "user", "content": "hi"}],
            }))
        };
        let billing = text("x-anthropic-billing-header: cc_version=1.0.0.abc; cch=00000;");
        let both = ask(json!([billing, text("Be brief.")]));
        assert_eq!(both[0], json!({"role": "system", "content": "Be brief."}));
        assert_eq!(both, ask(json!("Be brief.")));
        let named = ask(json!([text("What is an x-anthropic-billing-header: ?")]));
        assert_eq!(named[0]["content"], "What is an x-anthropic-billing-header: ?");
    }

    #[test]
    fn blocks_of_text_are_lines_unless_something_is_between() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}});
        let messages = messages_of(&json!({"messages": [
            {"role": "user", "content": [text("Context:"), text("Why?")]},
            {"role": "assistant", "content": [text("I"), text("look"), call, text(" again.")]},
        ]}));
        assert_eq!(messages[0]["content"], "Context:\nWhy?");
        assert_eq!(messages[1]["content"], "I\nlook again.");
    }

    #[test]
    fn a_request_that_only_fills_the_cache_is_answered() {
        let most = |most: Value| {
            let body = json!({"max_tokens": most, "messages": [{"role": "user", "content": "hi"}]});
            lower(Fields::parse(body.to_string().as_bytes()).unwrap()).unwrap().fields.map().clone()
        };
        assert_eq!(most(json!(0))["max_tokens"], 1);
        assert_eq!(most(json!(7))["max_tokens"], 7);
    }

    #[test]
    fn a_result_of_a_tool_search_names_the_tools_that_were_found() {
        let found = |name: &str| json!({"type": "tool_reference", "tool_name": name});
        let result = json!({
            "type": "tool_result", "tool_use_id": "t", "content": [found("add"), found("take")],
        });
        let messages = messages_of(&json!({"messages": [{"role": "user", "content": [result]}]}));
        let lines = "The tool add can be called.\nThe tool take can be called.";
        assert_eq!(messages[0], json!({"role": "tool", "tool_call_id": "t", "content": lines}));
    }

    #[test]
    fn a_turn_without_blocks_is_a_turn() {
        let turns = |content: Value| {
            messages_of(&json!({"messages": [{"role": "user", "content": content}]}))
        };
        assert_eq!(turns(json!([])), turns(json!("")));
        let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": []}]);
        assert_eq!(turns(result).as_array().unwrap().len(), 1, "a result is no turn of the user");
    }
}
