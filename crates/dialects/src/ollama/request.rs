//! Translates Ollama's requests to the fields of a completion.

use serde_json::{Map, Value, json};

use super::keep_alive::take_keep_alive;
use super::object::Shape;
use crate::lowered::Lowered;
use loquent_serving::api::fields::{Fields, kind_of};
use loquent_serving::api::media::{MediaUse, replaced};
use loquent_serving::api::parameter_table::{Parameter, ignored, refused, sift, supported};
use loquent_serving::api::request::{Endpoint, MAX_TOP_LOGPROBS};
use loquent_serving::error::ApiError;
use loquent_serving::keep_alive::KeepAlive;

/// Support status of each parameter of `/api/chat`.
pub const CHAT_PARAMETERS: &[Parameter] = &[
    supported("model", ""),
    supported("messages", "text, tool calls and their results; of past images, a line of text"),
    supported("tools", ""),
    supported("stream", "on unless it is false"),
    supported("format", "`json` or a JSON schema"),
    supported("options", "see below"),
    supported("think", "on, off, or an effort"),
    supported("keep_alive", "where the server has several models or `--model-idle-s`"),
    supported("logprobs", "of the tokens of each line"),
    supported("top_logprobs", "with `logprobs`; at most 20"),
    ignored("truncate", "a conversation that is too long is refused"),
    ignored("shift", "an answer ends where the context is full"),
];

/// Support status of each parameter of `/api/generate`.
pub const GENERATE_PARAMETERS: &[Parameter] = &[
    supported("model", ""),
    supported("prompt", ""),
    supported("system", ""),
    supported("raw", "the prompt without a chat template"),
    supported("suffix", "where the vocabulary has tokens for it"),
    supported("stream", "on unless it is false"),
    supported("format", "`json` or a JSON schema"),
    supported("options", "see below"),
    supported("think", "on, off, or an effort"),
    supported("images", "for models of upstream servers, not with `raw` and `suffix`"),
    refused("template", "prompts are written by the model's own template"),
    refused("context", "send the conversation to /api/chat instead"),
    supported("keep_alive", "where the server has several models or `--model-idle-s`"),
    supported("logprobs", "of the tokens of each line"),
    supported("top_logprobs", "with `logprobs`; at most 20"),
    ignored("truncate", "a prompt that is too long is refused"),
    ignored("shift", "an answer ends where the context is full"),
];

/// Support status of each of the `options`.
pub const OPTIONS: &[Parameter] = &[
    supported("num_predict", "-1 and -2: as much as the context holds"),
    supported("temperature", "by default the model's, else 0.8"),
    supported("top_k", "by default the model's, else 40"),
    supported("top_p", "by default the model's, else 0.9"),
    supported("min_p", "by default the model's, else 0"),
    supported("seed", ""),
    supported("stop", "at most 16"),
    supported("repeat_penalty", "by default the model's, else 1.1"),
    supported("repeat_last_n", "by default 64; -1: all of the prompt and of the answer"),
    supported("presence_penalty", ""),
    supported("frequency_penalty", ""),
    ignored("num_ctx", "the operator chooses the context: --context"),
    ignored("num_keep", ""),
    ignored("typical_p", ""),
    ignored("num_batch", ""),
    ignored("num_gpu", ""),
    ignored("main_gpu", ""),
    ignored("num_thread", ""),
    ignored("use_mmap", ""),
];

/// Parts of a request that only Ollama's answers need.
#[derive(Debug)]
pub struct OllamaRequest {
    /// The endpoint whose format the answer has.
    pub shape: Shape,
    /// The model's name as the client gave it.
    pub model: String,
    /// True if the request has no prompt and only loads the model.
    pub only_loads: bool,
    /// Time for which the model stays in memory afterwards.
    pub keep: Option<KeepAlive>,
}

/// Translates a request to `/api/chat` to a chat completion.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn lower_chat(mut fields: Fields) -> Result<Lowered<OllamaRequest>, ApiError> {
    let mut ignored = sift(&mut fields, CHAT_PARAMETERS)?;
    let mut lowered = Map::new();
    let keep = take_keep_alive(&mut fields)?;
    let model = lower_common(&mut fields, &mut lowered, &mut ignored)?;
    let turns = fields.array("messages")?.unwrap_or_default();
    let only_loads = turns.is_empty();
    let answered = turns.iter().rposition(|turn| turn["role"] == "assistant").unwrap_or(0);
    let mut conversation = LoweredTurns::default();
    for (index, turn) in turns.into_iter().enumerate() {
        let turn = fields.nested(&format!("messages[{index}]"), turn)?;
        conversation.push(turn, index < answered)?;
    }
    ignored.append(&mut conversation.ignored);
    if only_loads {
        conversation.messages.push(json!({"role": "user", "content": ""}));
    }
    lowered.insert("messages".into(), conversation.messages.into());
    if let Some(tools) = fields.take("tools") {
        lowered.insert("tools".into(), tools);
    }
    lower_logprobs(&mut fields, &mut lowered, Endpoint::Chat)?;
    let kept = OllamaRequest { shape: Shape::Chat, model, only_loads, keep };
    Ok(Lowered { endpoint: Endpoint::Chat, fields: fields.replaced(lowered), ignored, kept })
}

/// Translates a request to `/api/generate` to a completion: a conversation with one question, or
/// plain text if it uses no template.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn lower_generate(mut fields: Fields) -> Result<Lowered<OllamaRequest>, ApiError> {
    let mut ignored = sift(&mut fields, GENERATE_PARAMETERS)?;
    let mut lowered = Map::new();
    let keep = take_keep_alive(&mut fields)?;
    let model = lower_common(&mut fields, &mut lowered, &mut ignored)?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?.filter(|system| !system.is_empty());
    let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
    let images = fields.array("images")?.unwrap_or_default();
    let only_loads = prompt.is_empty() && suffix.is_none() && images.is_empty();
    let is_raw = fields.boolean("raw")?.unwrap_or(false) || suffix.is_some();
    let endpoint = match is_raw {
        // Plain text has no place for them.
        true if !images.is_empty() => {
            return Err(fields.error("images", "is not supported with 'raw' and 'suffix'."));
        }
        true => {
            lowered.insert("prompt".into(), prompt.into());
            lowered.extend(suffix.map(|suffix| ("suffix".to_owned(), suffix.into())));
            Endpoint::Text
        }
        false => {
            let system = system.map(|text| json!({"role": "system", "content": text}));
            let content = LoweredTurns::default().content(&fields, prompt, images, false)?;
            let question = json!({"role": "user", "content": content});
            let messages: Vec<Value> = system.into_iter().chain([question]).collect();
            lowered.insert("messages".into(), messages.into());
            Endpoint::Chat
        }
    };
    lower_logprobs(&mut fields, &mut lowered, endpoint)?;
    let kept = OllamaRequest { shape: Shape::Generate, model, only_loads, keep };
    Ok(Lowered { endpoint, fields: fields.replaced(lowered), ignored, kept })
}

/// Translates the parameters that both endpoints share; returns the model's name.
fn lower_common(
    fields: &mut Fields,
    lowered: &mut Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<String, ApiError> {
    let model = fields.string("model")?.ok_or_else(|| fields.error("model", "is required."))?;
    lowered.insert("model".into(), without_tag(&model).into());
    lowered.insert("stream".into(), fields.boolean("stream")?.unwrap_or(true).into());
    lower_format(fields, lowered)?;
    lower_think(fields, lowered)?;
    if let Some(options) = fields.object("options")? {
        ignored.extend(lower_options(options, lowered)?);
    }
    Ok(model)
}

/// Removes the tag `:latest`, which Ollama's clients add to a name without a tag.
pub fn without_tag(model: &str) -> &str {
    model.strip_suffix(":latest").unwrap_or(model)
}

fn lower_format(fields: &mut Fields, lowered: &mut Map<String, Value>) -> Result<(), ApiError> {
    let format = match fields.take("format") {
        None => return Ok(()),
        Some(Value::String(name)) if name.is_empty() => return Ok(()),
        Some(Value::String(name)) if name == "json" => json!({"type": "json_object"}),
        Some(schema @ Value::Object(_)) => {
            json!({"type": "json_schema", "json_schema": {"name": "format", "schema": schema}})
        }
        Some(_) => return Err(fields.error("format", "must be \"json\" or a JSON schema.")),
    };
    lowered.insert("response_format".into(), format);
    Ok(())
}

/// Translates `logprobs` and `top_logprobs` to those of `endpoint`.
fn lower_logprobs(
    fields: &mut Fields,
    lowered: &mut Map<String, Value>,
    endpoint: Endpoint,
) -> Result<(), ApiError> {
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?.unwrap_or(0);
    if !fields.boolean("logprobs")?.unwrap_or(false) {
        return Ok(());
    }
    match endpoint {
        Endpoint::Chat => {
            lowered.insert("logprobs".into(), true.into());
            lowered.insert("top_logprobs".into(), top.into());
        }
        Endpoint::Text => drop(lowered.insert("logprobs".into(), top.into())),
    }
    Ok(())
}

/// Translates `think`: whether to think, or how much. Chat templates that support it have a
/// variable for it.
fn lower_think(fields: &mut Fields, lowered: &mut Map<String, Value>) -> Result<(), ApiError> {
    let thinks = match fields.take("think") {
        None => return Ok(()),
        Some(Value::Bool(thinks)) => thinks,
        Some(Value::String(effort)) => {
            lowered.insert("reasoning_effort".into(), effort.into());
            true
        }
        Some(other) => {
            let wrong = format!("must be true, false or an effort, not {}.", kind_of(&other));
            return Err(fields.error("think", wrong));
        }
    };
    lowered.insert("chat_template_kwargs".into(), json!({"enable_thinking": thinks}));
    Ok(())
}

fn lower_options(
    mut options: Fields,
    lowered: &mut Map<String, Value>,
) -> Result<Vec<String>, ApiError> {
    let ignored = sift(&mut options, OPTIONS)?;
    if let Some(tokens) = options.integer("num_predict", -2..=i64::from(u32::MAX))?
        && tokens >= 0
    {
        // Ollama generates nothing for 0 either, once it has read the prompt.
        lowered.insert("max_tokens".into(), tokens.max(1).into());
    }
    for (name, value) in options.into_map() {
        let name = match name.as_str() {
            "repeat_penalty" => "repetition_penalty".to_owned(),
            _ => name,
        };
        lowered.insert(name, value);
    }
    Ok(ignored.into_iter().map(|name| format!("options.{name}")).collect())
}

/// A conversation being translated.
#[derive(Default)]
struct LoweredTurns {
    messages: Vec<Value>,
    /// Unanswered calls, by tool: Ollama's results name the tool and not the call.
    calls: Vec<(String, String)>,
    /// Places of images that the model cannot see.
    ignored: Vec<String>,
}

impl LoweredTurns {
    /// Appends a message; `is_past` is true if the assistant has answered it.
    fn push(&mut self, mut turn: Fields, is_past: bool) -> Result<(), ApiError> {
        let role = turn.string("role")?.ok_or_else(|| turn.error("role", "is required."))?;
        let images = turn.array("images")?.unwrap_or_default();
        let content = turn.string("content")?.unwrap_or_default();
        let content = self.content(&turn, content, images, is_past || role == "tool")?;
        let mut message = json!({"role": role, "content": content});
        if let Some(thinking) = turn.string("thinking")?.filter(|text| !text.is_empty()) {
            message["reasoning_content"] = thinking.into();
        }
        if let Some(calls) = turn.array("tool_calls")?.filter(|calls| !calls.is_empty()) {
            let call = |(index, call)| {
                let call = turn.nested(&format!("tool_calls[{index}]"), call)?;
                self.call(call)
            };
            let calls = calls.into_iter().enumerate().map(call);
            message["tool_calls"] = calls.collect::<Result<Vec<_>, ApiError>>()?.into();
        }
        if role == "tool" {
            let name = turn.string("tool_name")?.or(turn.string("name")?);
            let id = match turn.string("tool_call_id")? {
                Some(id) => id,
                None => self.answered(name.as_deref()),
            };
            message["tool_call_id"] = id.into();
            if let Some(name) = name {
                message["name"] = name.into();
            }
        }
        self.messages.push(message);
        Ok(())
    }

    /// Returns the content of a message with `images`.
    fn content(
        &mut self,
        turn: &Fields,
        mut text: String,
        images: Vec<Value>,
        is_past: bool,
    ) -> Result<Value, ApiError> {
        if images.is_empty() {
            return Ok(text.into());
        }
        match MediaUse::of(turn, is_past) {
            MediaUse::Refused => {
                Err(turn.error("images", "is not supported: this server accepts text only."))
            }
            MediaUse::Replaced => {
                for _ in &images {
                    text.push_str(replaced(turn, "image", MediaUse::Replaced, &mut self.ignored)?);
                }
                Ok(text.into())
            }
            MediaUse::PassedOn => {
                // Ollama's clients do not name the type; servers read it from the data.
                let image = |data: Value| {
                    let data = data.as_str().map(str::to_owned);
                    let data = data.ok_or_else(|| turn.error("images", "must hold base64."))?;
                    let url = format!("data:image/{};base64,{data}", image_type(&data));
                    Ok(json!({"type": "image_url", "image_url": {"url": url}}))
                };
                let images = images.into_iter().map(image);
                let mut parts = vec![json!({"type": "text", "text": text})];
                parts.extend(images.collect::<Result<Vec<_>, ApiError>>()?);
                Ok(parts.into())
            }
        }
    }

    fn call(&mut self, mut call: Fields) -> Result<Value, ApiError> {
        let id = call.string("id")?.filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| format!("call_{}", self.messages.len() + self.calls.len()));
        let function = call.object("function")?;
        let mut function = function.ok_or_else(|| call.error("function", "is required."))?;
        let name = function.string("name")?;
        let name = name.ok_or_else(|| function.error("name", "is required."))?;
        let arguments = match function.take("arguments") {
            Some(arguments) => arguments.to_string(),
            None => "{}".to_owned(),
        };
        self.calls.push((name.clone(), id.clone()));
        let function = json!({"name": name, "arguments": arguments});
        Ok(json!({"id": id, "type": "function", "function": function}))
    }

    /// Takes the id of the first call without a result, of `tool` if it is named.
    fn answered(&mut self, tool: Option<&str>) -> String {
        let at = self.calls.iter().position(|(name, _)| tool.is_none_or(|tool| tool == name));
        at.map_or_else(|| "call".to_owned(), |at| self.calls.remove(at).1)
    }
}

/// Returns the type of an image by the first characters of its base64.
fn image_type(base64: &str) -> &'static str {
    match base64.get(..4) {
        Some("/9j/") => "jpeg",
        Some("R0lG") => "gif",
        Some("UklG") => "webp",
        _ => "png",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_of_a_tool_has_a_name_only_if_the_client_gives_one() {
        let call = json!({"function": {"name": "add", "arguments": {}}});
        let asked = json!({"model": "any", "messages": [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "3"},
            {"role": "tool", "content": "3", "tool_name": "add"},
        ]});
        let lowered = lower_chat(Fields::parse(asked.to_string().as_bytes()).unwrap()).unwrap();
        let messages = &lowered.fields.map()["messages"];
        assert_eq!(messages[1].get("name"), None, "null is no name to other servers");
        assert_eq!(messages[2]["name"], "add");
    }
}
