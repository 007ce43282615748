//! The parameters of a response, translated to a chat completion.

use serde_json::{Map, Value, json};

use super::input::parse_input;
use super::object::ResponseTemplate;
use super::tools::{GivenTools, parse_choice, parse_tools};
use loquent_serving::api::fields::Fields;
use loquent_serving::api::parameter_table::{
    Parameter, Support, ignored, refused, sift, supported,
};
use loquent_serving::api::stored_chat::parse_metadata;
use loquent_serving::error::{ApiError, quoted};

/// Maximum number of alternatives per token in log-probabilities.
const MAX_TOP_LOGPROBS: i64 = 20;
/// Support status of each value of `include`.
pub const INCLUDES: &[Parameter] = &[
    supported(LOGPROBS, "as many as `top_logprobs` says"),
    ignored("reasoning.encrypted_content", "reasoning comes in clear and goes back so: it is null"),
    ignored("file_search_call.results", "no tool runs on the server"),
    ignored("web_search_call.results", "no tool runs on the server"),
    ignored("web_search_call.action.sources", "no tool runs on the server"),
    ignored("computer_call_output.output.image_url", "no tool runs on the server"),
    ignored("code_interpreter_call.outputs", "no tool runs on the server"),
    ignored("message.input_image.image_url", "input is text"),
];
/// Support status of each member of `reasoning`.
pub const REASONING: &[Parameter] = &[
    supported("effort", "where the chat template reads it"),
    supported("summary", "the reasoning as the model wrote it, in the events of a summary"),
    supported("generate_summary", "older name of `summary`"),
];
const LOGPROBS: &str = "message.output_text.logprobs";

/// Parameters of chat completions that responses accept beside their own.
const OF_CHAT: &[&str] = &[
    "cache_salt",
    "chat_template_kwargs",
    "frequency_penalty",
    "grammar",
    "ignore_eos",
    "logit_bias",
    "min_p",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "seed",
    "stop",
    "stream_interval",
    "structured_outputs",
    "thinking_budget_tokens",
    "top_k",
];

/// Ignored parameters that are shown in a response's object.
const ANNOTATIONS: &[&str] =
    &["max_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "user"];

/// Support status of each parameter.
pub const PARAMETERS: &[Parameter] = &[
    supported("background", "with `store` only; resumable by `starting_after`"),
    supported("include", "see below"),
    supported(
        "input",
        "text: messages, calls and their outputs, reasoning, references; past images as text",
    ),
    supported("instructions", ""),
    supported("max_output_tokens", ""),
    supported("metadata", "16 entries"),
    supported("model", ""),
    supported("parallel_tool_calls", ""),
    supported("previous_response_id", "of a stored response"),
    supported("reasoning", "see below"),
    supported("store", "on by default"),
    supported("stream", ""),
    supported("stream_options", "`include_obfuscation`"),
    supported("temperature", ""),
    supported("text", "`format`: text, json_object, json_schema"),
    supported("tool_choice", "functions, custom tools, `allowed_tools`"),
    supported(
        "tools",
        "functions, also in namespaces, and custom tools, whose grammar is told to the model and not enforced; others are left out and named",
    ),
    supported("top_logprobs", ""),
    supported("top_p", ""),
    supported("truncation", "`auto` drops the oldest turns; not with `--upstream`"),
    supported("cache_salt", "as in chat completions"),
    supported("chat_template_kwargs", "as in chat completions"),
    supported("frequency_penalty", "as in chat completions"),
    supported("grammar", "as in chat completions"),
    supported("ignore_eos", "as in chat completions"),
    supported("logit_bias", "as in chat completions"),
    supported("min_p", "as in chat completions"),
    supported("presence_penalty", "as in chat completions"),
    supported("priority", "as in chat completions"),
    supported("repetition_penalty", "as in chat completions"),
    supported("seed", "as in chat completions"),
    supported("stop", "as in chat completions"),
    supported("stream_interval", "as in chat completions"),
    supported("structured_outputs", "as in chat completions"),
    supported("thinking_budget_tokens", "as in chat completions"),
    supported("top_k", "as in chat completions"),
    ignored("context_management", ""),
    ignored("max_tool_calls", "no tool runs on the server"),
    ignored("moderation", ""),
    ignored("prompt_cache_key", "prefixes are found without it"),
    ignored("prompt_cache_options", ""),
    ignored("prompt_cache_retention", ""),
    ignored("safety_identifier", ""),
    ignored("service_tier", ""),
    ignored("user", ""),
    refused("conversation", "conversations are not supported; use 'previous_response_id'"),
    refused("prompt", "prompt templates are not supported; use 'instructions'"),
];

/// Names of a chat completion's parameters in errors, and their names in the Responses API.
pub const NAMES: &[(&str, &str)] = &[
    ("messages", "input"),
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    (".function.", "."),
];

/// Handling of a conversation that is longer than the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// Refuse it.
    Disabled,
    /// Drop its oldest turns.
    Auto,
}

/// A request for a response.
#[derive(Debug)]
pub struct ResponseRequest {
    /// The members of the response object that come from the request.
    pub template: ResponseTemplate,
    /// True if the response is streamed.
    pub streams: bool,
    /// True if the response is stored.
    pub stores: bool,
    /// Asks for padded text; `None` uses the server's setting.
    pub obfuscation: Option<bool>,
    /// Handling of a conversation that is too long.
    pub truncation: Truncation,
    /// Id of the response that this one continues.
    pub previous: Option<String>,
    /// Instructions that precede the conversation.
    pub instructions: Option<String>,
    /// The request's own items.
    pub input: Vec<Value>,
    /// The chat completion for this request, without messages.
    pub chat: Map<String, Value>,
    /// Names of ignored parameters.
    pub ignored: Vec<String>,
    /// Emptied fields, which hold the request's memory charge.
    pub fields: Fields,
}

impl ResponseRequest {
    /// Returns the requested model.
    pub fn model(&self) -> Option<&str> {
        self.chat.get("model").and_then(Value::as_str)
    }

    /// Reads a request from the fields of its body.
    ///
    /// # Errors
    /// 400 with the name of the first invalid parameter.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        refuse(&mut fields)?;
        let (mut chat, mut object) = (Map::new(), empty_object());
        let input = parse_input(&mut fields)?;
        let instructions = fields.string("instructions")?;
        let previous = fields.string("previous_response_id")?;
        object["instructions"] = instructions.clone().into();
        object["previous_response_id"] = previous.clone().into();
        object["metadata"] = parse_metadata(&mut fields)?;
        let (background, stores) = read_keeping(&mut fields, &mut object)?;
        let mut names = read_tools(&mut fields, &mut chat, &mut object)?;
        let truncation = read_truncation(&mut fields, &mut object)?;
        names.extend(read_sampling(&mut fields, &mut chat, &mut object)?);
        names.extend(read_reasoning(&mut fields, &mut chat, &mut object)?);
        read_text(&mut fields, &mut chat, &mut object)?;
        let streams = fields.boolean("stream")?.unwrap_or(false);
        let obfuscation = match fields.object("stream_options")? {
            Some(mut options) => options.boolean("include_obfuscation")?,
            None => None,
        };
        move_chat(&mut fields, &mut chat);
        annotate(&fields, &mut object);
        // Before `rest`, which consumes the fields.
        let emptied = fields.charge();
        names.extend(fields.rest());
        Ok(Self {
            template: ResponseTemplate { object, background },
            streams,
            stores,
            obfuscation,
            truncation,
            previous,
            instructions,
            input,
            chat,
            ignored: names,
            fields: Fields::empty(emptied),
        })
    }
}

/// Copies the parameters that only annotate into `object`.
fn annotate(fields: &Fields, object: &mut Value) {
    for name in ANNOTATIONS {
        if let Some(value @ (Value::String(_) | Value::Number(_))) = fields.map().get(*name) {
            object[*name] = value.clone();
        }
    }
}

fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    let refused = PARAMETERS.iter().filter(|one| one.support == Support::Refused);
    for Parameter { name, note, .. } in refused {
        if fields.take(name).is_some() {
            return Err(ApiError::invalid_param(*name, format!("'{name}': {note}.")));
        }
    }
    Ok(())
}

/// Returns a response object with all members unset.
fn empty_object() -> Value {
    json!({
        "id": null, "object": "response", "created_at": null, "status": null, "background": false,
        "completed_at": null, "error": null, "incomplete_details": null, "instructions": null,
        "max_output_tokens": null, "max_tool_calls": null, "metadata": {}, "model": null,
        "output": [], "parallel_tool_calls": true, "previous_response_id": null,
        "prompt_cache_key": null, "reasoning": {"effort": null, "summary": null},
        "safety_identifier": null, "service_tier": null, "store": true, "temperature": null,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_logprobs": 0, "top_p": null, "truncation": "disabled", "usage": null, "user": null,
    })
}

/// Takes `background` and `store`.
fn read_keeping(fields: &mut Fields, object: &mut Value) -> Result<(bool, bool), ApiError> {
    let background = fields.boolean("background")?.unwrap_or(false);
    let stores = fields.boolean("store")?.unwrap_or(true);
    if background && !stores {
        return Err(fields.error("background", "requires 'store' to be true."));
    }
    object["background"] = background.into();
    object["store"] = stores.into();
    Ok((background, stores))
}

/// Takes the parameters about tools; returns the names of those without effect.
fn read_tools(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    object: &mut Value,
) -> Result<Vec<String>, ApiError> {
    let GivenTools { chat: tools, shown, left_out } = parse_tools(fields)?;
    let choice = parse_choice(fields)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    object["tools"] = shown.into();
    object["tool_choice"] = choice.shown;
    object["parallel_tool_calls"] = parallel.into();
    // Upstream servers refuse a choice of nothing; here only one that demands a call is wrong.
    let demands = choice.chat.as_ref().is_some_and(|choice| *choice != "auto" && *choice != "none");
    if !tools.is_empty() || demands {
        chat.insert("tools".into(), tools.into());
        chat.insert("parallel_tool_calls".into(), parallel.into());
        choice.chat.map(|choice| chat.insert("tool_choice".into(), choice));
    }
    Ok(left_out)
}

/// Takes `truncation`.
fn read_truncation(fields: &mut Fields, object: &mut Value) -> Result<Truncation, ApiError> {
    match fields.string("truncation")?.as_deref() {
        None | Some("disabled") => Ok(Truncation::Disabled),
        Some("auto") => {
            object["truncation"] = "auto".into();
            Ok(Truncation::Auto)
        }
        Some(other) => {
            let wrong = format!("must be 'auto' or 'disabled', not '{}'.", quoted(other));
            Err(fields.error("truncation", wrong))
        }
    }
}

/// Takes the parameters about sampling; returns the names of those without effect.
fn read_sampling(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    object: &mut Value,
) -> Result<Vec<String>, ApiError> {
    if let Some(model) = fields.string("model")? {
        chat.insert("model".into(), model.into());
    }
    for (name, most) in [("temperature", 2.0), ("top_p", 1.0)] {
        if let Some(number) = fields.number(name, 0.0..=most)? {
            object[name] = number.into();
            chat.insert(name.into(), number.into());
        }
    }
    if let Some(tokens) = fields.integer("max_output_tokens", 1..=i64::from(u32::MAX))? {
        object["max_output_tokens"] = tokens.into();
        chat.insert("max_completion_tokens".into(), tokens.into());
    }
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?.unwrap_or(0);
    object["top_logprobs"] = top.into();
    let (included, ignored) = parse_include(fields)?;
    if included || top > 0 {
        chat.insert("logprobs".into(), true.into());
        chat.insert("top_logprobs".into(), top.into());
    }
    Ok(ignored)
}

/// Takes `include`; returns whether it asks for log-probabilities, and the names of values without
/// effect.
fn parse_include(fields: &mut Fields) -> Result<(bool, Vec<String>), ApiError> {
    let include = fields.array("include")?.unwrap_or_default();
    let mut ignored = Vec::new();
    for one in &include {
        let Some(known) = INCLUDES.iter().find(|known| one == known.name) else {
            let message = format!("may not hold {}.", quoted(&one.to_string()));
            return Err(fields.error("include", message));
        };
        if known.support == Support::Ignored {
            ignored.push(format!("include.{}", known.name));
        }
    }
    Ok((include.iter().any(|one| one == LOGPROBS), ignored))
}

/// Takes `reasoning`; returns the names of members without effect.
fn read_reasoning(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    object: &mut Value,
) -> Result<Vec<String>, ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(Vec::new()) };
    let ignored = sift(&mut reasoning, REASONING)?;
    let older = reasoning.string("generate_summary")?;
    if let Some(summary) = reasoning.string("summary")?.or(older) {
        object["reasoning"]["summary"] = summary.into();
    }
    if let Some(effort) = reasoning.string("effort")? {
        object["reasoning"]["effort"] = effort.as_str().into();
        chat.insert("reasoning_effort".into(), effort.into());
    }
    Ok(ignored.into_iter().map(|name| format!("reasoning.{name}")).collect())
}

/// Takes `text`.
fn read_text(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    object: &mut Value,
) -> Result<(), ApiError> {
    let Some(mut text) = fields.object("text")? else { return Ok(()) };
    if let Some(verbosity) = text.string("verbosity")? {
        object["text"]["verbosity"] = verbosity.as_str().into();
        chat.insert("verbosity".into(), verbosity.into());
    }
    let Some(mut format) = text.object("format")? else { return Ok(()) };
    let kind = format.string("type")?.ok_or_else(|| format.error("type", "is required."))?;
    let (lowered, shown) = match kind.as_str() {
        "text" => return Ok(()),
        "json_object" => (json!({"type": kind}), json!({"type": kind})),
        "json_schema" => {
            let schema = format.take("schema");
            let schema = schema.ok_or_else(|| format.error("schema", "is required."))?;
            // Chat completions nest what a response has side by side.
            let mut named = format.into_map();
            named.retain(|_, value| !value.is_null());
            named.insert("schema".into(), schema);
            let mut shown = named.clone();
            shown.insert("type".into(), kind.as_str().into());
            (json!({"type": kind, "json_schema": named}), shown.into())
        }
        other => {
            let wrong = "must be 'text', 'json_object' or 'json_schema'";
            return Err(format.error("type", format!("{wrong}, not '{}'.", quoted(other))));
        }
    };
    object["text"]["format"] = shown;
    chat.insert("response_format".into(), lowered);
    Ok(())
}

fn move_chat(fields: &mut Fields, chat: &mut Map<String, Value>) {
    for name in OF_CHAT {
        fields.take(name).map(|value| chat.insert((*name).into(), value));
    }
}
