//! Requests to `/v1/chat/completions` and `/v1/completions`, parsed and validated once.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderValue;
use loquent_formats::template::{ChatMessage, PromptEnding};
use loquent_infer::token::TokenId;
use loquent_proto::coalesce::StreamInterval;
use serde_json::{Map, Value};

use super::fields::{Fields, kind_of};
use super::forms::{RequestedForm, parse_form};
use super::message::parse_messages;
use super::reasoning::ReasoningParams;
use super::tools::{ToolUse, parse_tools};
use crate::api::sampling::{GeneralSampling, ResolvedSampling, SamplingDefaults, StatedSampling};
use crate::api::stored_chat::ChatToStore;
use crate::error::{ApiError, quoted};
use crate::identity::Identity;
use crate::memory::MemoryCharge;
use crate::request_log::RequestId;
use crate::trace_context::TraceParent;

/// Maximum number of completions in one request, over all its prompts.
const MAX_CHOICES: usize = 64;
/// Maximum number of stop strings, and maximum bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Maximum number of alternatives per token in log-probabilities (OpenAI's limit).
pub const MAX_TOP_LOGPROBS: i64 = 20;
/// Maximum length of `cache_salt` in bytes.
const MAX_SALT_BYTES: usize = 256;
/// Maximum number of parts in a prompt that mixes texts and token ids.
const MAX_PARTS: usize = 1024;
/// Average bytes per token of English text, for estimates.
pub const BYTES_PER_TOKEN: usize = 4;
/// Default `max_tokens` of `/v1/completions` (OpenAI's default).
const DEFAULT_COMPLETION_TOKENS: u32 = 16;
/// Names of the token limit, by precedence: OpenAI renamed its own, and llama-server has another.
pub const LIMIT_NAMES: [&str; 3] = ["max_completion_tokens", "max_tokens", "n_predict"];
/// Maximum number of tokens in `logit_bias` (OpenAI's limit): each costs engine time at every step.
pub const MAX_BIASES: usize = 1024;
/// Maximum number of names in the header that lists ignored parameters.
const MAX_IGNORED_NAMES: usize = 16;

/// Parameters that annotate a request or hint at its use: accepted without effect.
const ANNOTATIONS: &[&str] = &[
    "metadata",
    "user",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
];

/// Parameters that are rejected rather than ignored, because the answer would not be the requested
/// one.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("audio", "audio output is not supported"),
    ("web_search_options", "web search is not supported"),
    ("prediction", "predicted outputs are not supported"),
    ("functions", "is deprecated and not supported; use 'tools'"),
    ("function_call", "is deprecated and not supported; use 'tool_choice'"),
];

/// The endpoint that a request was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// A streamed request on its way to the upstream server.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// The request's body without this server's own parameters.
    pub body: Map<String, Value>,
    /// The client's `Authorization` header.
    pub authorization: Option<HeaderValue>,
}

/// A conversation and the other variables of its chat template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat {
    /// The messages, oldest first.
    pub messages: Vec<ChatMessage>,
    /// Tools that the answer may or must call.
    pub tools: Option<ToolUse>,
    /// Further variables of the template (`chat_template_kwargs`).
    pub variables: Vec<(String, Value)>,
    /// Requested reasoning.
    pub reasoning: ReasoningParams,
    /// End of the prompt: a new answer, or a continuation of the last message.
    pub ending: PromptEnding,
    /// Unix time in seconds that the template sees as now; `None` for the time of rendering.
    pub dated_s: Option<u64>,
}

impl Chat {
    /// Takes a conversation from a request.
    ///
    /// # Errors
    /// 400 with the name of the invalid parameter.
    pub fn parse(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages = parse_messages(fields)?;
        let tools = parse_tools(fields)?;
        let variables = match fields.take("chat_template_kwargs") {
            None => Vec::new(),
            Some(Value::Object(map)) => map.into_iter().collect(),
            Some(other) => {
                let wrong = format!("must be an object, not {}.", kind_of(&other));
                return Err(fields.error("chat_template_kwargs", wrong));
            }
        };
        let reasoning = ReasoningParams::parse(fields)?;
        let ending = parse_ending(fields)?;
        Ok(Self { messages, tools, variables, reasoning, ending, dated_s: None })
    }

    /// Sets a variable of the template unless the request sets it.
    pub fn set_variable(&mut self, name: &str, value: Value) {
        if !self.variables.iter().any(|(set, _)| set == name) {
            self.variables.push((name.to_owned(), value));
        }
    }
}

/// The input that the model continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A conversation, which the model's chat template turns into text.
    Chat(Box<Chat>),
    /// Plain text.
    Text(String),
    /// Token ids, not checked against the vocabulary yet.
    Tokens(Vec<TokenId>),
    /// Texts and token ids, one after the other (llama-server's mixed prompts).
    Parts(Vec<PromptPart>),
}

/// A part of a prompt that mixes texts and token ids.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptPart {
    /// Plain text.
    Text(String),
    /// Token ids, not checked against the vocabulary yet.
    Tokens(Vec<TokenId>),
}

impl Prompt {
    /// Returns the bytes of its text, or an estimate for tokens.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Chat(chat) => chat.messages.iter().map(ChatMessage::bytes).sum(),
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => tokens.len() * BYTES_PER_TOKEN,
            Self::Parts(parts) => parts.iter().map(PromptPart::bytes).sum(),
        }
    }

    /// Returns the conversation; `None` for a plain prompt.
    fn chat(&self) -> Option<&Chat> {
        match self {
            Self::Chat(chat) => Some(chat),
            Self::Text(_) | Self::Tokens(_) | Self::Parts(_) => None,
        }
    }

    /// Returns the bytes of the tools that its text describes.
    fn tool_bytes(&self) -> usize {
        let tools = self.chat().and_then(|chat| chat.tools.as_ref());
        tools.into_iter().flat_map(|tools| &tools.definitions).map(text_bytes).sum()
    }

    /// Takes the text once it has been tokenized; `None` for a prompt that was not plain text.
    pub fn take_text(&mut self) -> Option<String> {
        match self {
            Self::Chat(chat) => {
                (chat.messages, chat.variables) = Default::default();
                None
            }
            Self::Text(text) => Some(std::mem::take(text)),
            Self::Tokens(_) | Self::Parts(_) => None,
        }
    }
}

impl PromptPart {
    /// Returns the bytes of its text, or an estimate for tokens.
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => tokens.len() * BYTES_PER_TOKEN,
        }
    }
}

/// Sampling parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingParams {
    /// Parameters for which the operator and the model may have defaults.
    pub stated: StatedSampling,
    /// Parameters for what neither the request nor they state.
    pub general: GeneralSampling,
    /// Number of latest tokens to which the repetition penalty applies, `u32::MAX` for all; `None`
    /// leaves it to the API.
    pub repeat_last_n: Option<u32>,
    /// Within `-2..=2`; above 0 discourages tokens that have occurred.
    pub presence_penalty: f32,
    /// Within `-2..=2`; above 0 discourages tokens for each occurrence.
    pub frequency_penalty: f32,
    /// Seed of the random numbers; `None` draws a random one.
    pub seed: Option<u64>,
    /// Tokens, sorted and without duplicates, with the values added to their logits, within
    /// `-100..=100`; shared by all completions.
    pub logit_bias: Arc<[(TokenId, f32)]>,
    /// Texts with the values added to the logits of their tokens (llama-server's form).
    pub text_bias: Vec<(String, f32)>,
    /// `Some(k)`: returns the log-probabilities of the sampled token and of the k most likely ones.
    pub logprobs: Option<u8>,
    /// Forbids the model's end tokens, so that only `max_tokens` ends the text.
    pub ignore_eos: bool,
}

impl SamplingParams {
    /// Returns the parameters that hold with a model that has these `defaults`.
    pub fn resolve(&self, defaults: &SamplingDefaults) -> ResolvedSampling {
        self.stated.or(defaults.stated()).resolve(self.general)
    }

    /// Returns the number of latest tokens to which the repetition penalty applies, `u32::MAX` for
    /// all.
    pub fn repeat_window(&self) -> u32 {
        self.repeat_last_n.unwrap_or(self.general.repeat_last_n())
    }
}

/// Options of a streaming request (`stream_options`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamParams {
    /// Adds a last chunk with token counts.
    pub include_usage: bool,
    /// Adds the token counts so far to every chunk.
    pub continuous_usage: bool,
    /// Adds the server's timings to the usage chunk (`loquent_timings`).
    pub include_timings: bool,
    /// Padding of events to a few fixed lengths; `None` uses the server's setting.
    pub include_obfuscation: Option<bool>,
    /// Sends progress before the first token as chunks (`return_progress`) instead of comments.
    pub return_progress: bool,
    /// Adds llama-server's `timings` to the last chunk (`timings_per_token`).
    pub timings: bool,
}

/// A valid request for completions.
#[derive(Debug, Clone)]
pub struct Request {
    /// The endpoint that the request was sent to.
    pub endpoint: Endpoint,
    /// The requested model.
    pub model: Option<String>,
    /// One prompt for chat, one or more for text.
    pub prompts: Vec<Prompt>,
    /// Completions per prompt.
    pub n: u32,
    /// Maximum number of tokens to generate, 0 only with `echo`; `None` means as many as the
    /// context holds.
    pub max_tokens: Option<u32>,
    /// Stop strings: the text ends before the first one that occurs.
    pub stop: Vec<String>,
    /// Adds the stop string that ended the answer, as vLLM's `stop_reason`.
    pub include_stop_reason: bool,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Prescribed form of the answer's text.
    pub form: Option<RequestedForm>,
    /// Options of the stream; `None` if the answer is sent as a single body.
    pub stream: Option<StreamParams>,
    /// Adds llama-server's `timings` to the answer (`timings_per_token`).
    pub timings: bool,
    /// Keeps the ids of the answer's tokens, for APIs that return them.
    pub token_ids: bool,
    /// True if the answer can be resumed after its connection is lost (S-5.1).
    pub resumable: bool,
    /// Stream interval; `None` means the server's default.
    pub interval: Option<StreamInterval>,
    /// Scheduling priority; lower values go first.
    pub priority: i32,
    /// Separates this request's reusable prefixes from those of requests without the same salt.
    pub cache_salt: Option<String>,
    /// Returns the prompt before its completion (`/v1/completions`).
    pub echo: bool,
    /// Text after the completion, which fills the gap between it and the prompt
    /// (`/v1/completions`).
    pub suffix: Option<String>,
    /// Data to store with the answer, if the request asks for storage.
    pub store: Option<Box<ChatToStore>>,
    /// Context length in tokens of the replica that answered first, if another one takes over;
    /// `None` means the model's own.
    pub context_limit: Option<u32>,
    /// The serialized request, with which another replica can continue the answer when this one
    /// fails.
    pub kept: Option<Arc<[u8]>>,
    /// Seed of the tool call ids; random if `None`.
    pub call_ids: Option<u64>,
    /// Names of parameters that have no effect.
    pub ignored: Vec<String>,
    /// The request as sent to an upstream server. If set, the upstream interprets most of the
    /// fields above, which are then empty here.
    pub forward: Option<Forward>,
    /// The caller's trace context, from the request's headers.
    pub trace_parent: Option<TraceParent>,
    /// The request's id in the log; `None` for a request from this process.
    pub id: Option<RequestId>,
    /// Memory charged for this request, held as long as its prompts are.
    pub charge: Option<Arc<MemoryCharge>>,
    /// The client that is answered.
    pub identity: Identity,
}

impl Request {
    /// Parses a request body.
    ///
    /// # Errors
    /// 400 if the body is not a JSON object, or with the name of the first invalid parameter.
    pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Self, ApiError> {
        Self::read(endpoint, Fields::parse(body)?)
    }

    /// Reads a request from the fields of its body.
    ///
    /// # Errors
    /// 400 with the name of the first invalid parameter.
    pub fn read(endpoint: Endpoint, mut fields: Fields) -> Result<Self, ApiError> {
        // First, so that an unsupported parameter is named even if others are wrong too.
        refuse_unsupported(&mut fields)?;
        let prompts = match endpoint {
            Endpoint::Chat => vec![Prompt::Chat(Box::new(Chat::parse(&mut fields)?))],
            Endpoint::Text => parse_prompts(&mut fields)?,
        };
        let n = fields.integer("n", 1..=MAX_CHOICES as i64)?.unwrap_or(1) as u32;
        if prompts.len() * n as usize > MAX_CHOICES {
            return Err(fields.error("n", format!("times the prompts exceeds {MAX_CHOICES}.")));
        }
        refuse_best_of(&mut fields, n)?;
        let form = parse_form(&mut fields)?;
        let echo = endpoint == Endpoint::Text && fields.boolean("echo")?.unwrap_or(false);
        let mut request = Self {
            endpoint,
            model: fields.string("model")?,
            prompts,
            n,
            max_tokens: parse_max_tokens(&mut fields, endpoint, echo)?,
            stop: parse_stop(&mut fields)?,
            include_stop_reason: fields.boolean("include_stop_reason")?.unwrap_or(false),
            sampling: parse_sampling(&mut fields, endpoint)?,
            form,
            timings: fields.boolean("timings_per_token")?.unwrap_or(false),
            stream: parse_stream(&mut fields)?,
            resumable: fields.boolean("resumable")?.unwrap_or(false),
            interval: parse_interval(&mut fields)?,
            priority: fields
                .integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?
                .unwrap_or(0) as i32,
            cache_salt: parse_cache_salt(&mut fields)?,
            echo,
            suffix: parse_suffix(&mut fields, endpoint)?,
            charge: fields.charge(),
            // Last: whatever nothing above has taken has no effect.
            ignored: fields.rest(),
            ..Self::empty(endpoint)
        };
        if let Some(stream) = &mut request.stream {
            stream.timings = request.timings;
        }
        if request.sampling.ignore_eos && request.is_constrained() {
            let message = "'ignore_eos' contradicts required tools and forms such as 'response_format': \
                           these answers end by themselves. Remove one of the two.";
            return Err(ApiError::invalid_param("ignore_eos", message));
        }
        Ok(request)
    }

    /// Sets the time that chat templates see, so that another replica renders the same prompts.
    pub fn date_prompts(&mut self, unix_s: u64) {
        for prompt in &mut self.prompts {
            if let Prompt::Chat(chat) = prompt {
                chat.dated_s = Some(unix_s);
            }
        }
    }

    /// Returns a request without prompts, with all parameters at their defaults.
    pub fn empty(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            model: None,
            prompts: Vec::new(),
            n: 1,
            max_tokens: None,
            stop: Vec::new(),
            include_stop_reason: false,
            sampling: SamplingParams::default(),
            form: None,
            stream: None,
            timings: false,
            token_ids: false,
            resumable: false,
            interval: None,
            priority: 0,
            cache_salt: None,
            echo: false,
            suffix: None,
            store: None,
            kept: None,
            context_limit: None,
            call_ids: None,
            ignored: Vec::new(),
            forward: None,
            trace_parent: None,
            id: None,
            charge: None,
            identity: Identity::default(),
        }
    }

    /// Drops the priority and lists it among the ignored parameters. An upstream server still gets
    /// it unless `checks_keys`: if this server checks no keys, only the upstream tells clients
    /// apart.
    pub fn ignore_priority(&mut self, checks_keys: bool) {
        let forwarded = self.forward.as_mut().filter(|_| checks_keys);
        let forwarded = forwarded.and_then(|forward| forward.body.remove("priority"));
        let asked = std::mem::take(&mut self.priority) != 0;
        if asked || forwarded.is_some_and(|priority| priority != 0) {
            self.ignored.push("priority".into());
        }
    }

    /// Number of alternatives per prompt token in log-probabilities. `None` unless the request asks
    /// for them and for the prompt to be echoed.
    pub fn prompt_logprobs(&self) -> Option<u8> {
        self.sampling.logprobs.filter(|_| self.echo)
    }

    /// Returns the tools that the answer may or must call.
    pub fn tools(&self) -> Option<&ToolUse> {
        self.prompts.iter().find_map(|prompt| prompt.chat()?.tools.as_ref())
    }

    /// Maximum number of reasoning tokens, with the name of the parameter that sets it.
    pub fn thinking_budget(&self) -> Option<(u32, &'static str)> {
        self.prompts.iter().find_map(|prompt| prompt.chat()?.reasoning.budget)
    }

    /// True if the answer must follow a grammar.
    pub fn is_constrained(&self) -> bool {
        self.form.is_some() || self.tools().is_some_and(ToolUse::is_forced)
    }

    /// Number of completions over all prompts.
    pub fn choices(&self) -> usize {
        self.prompts.len() * self.n as usize
    }

    /// Number of tokens in all prompts, estimated from their length before tokenization.
    pub fn estimated_prompt_tokens(&self) -> u64 {
        let own: usize = self.prompts.iter().map(Prompt::bytes).sum();
        let forwarded = self.forward.iter().flat_map(|forward| &forward.body);
        let forwarded: usize = forwarded.map(|(_, value)| text_bytes(value)).sum();
        ((own + forwarded) / BYTES_PER_TOKEN).max(1) as u64
    }

    /// Returns the bytes of text that are tokenized for this request, its tools included.
    pub fn prompt_bytes(&self) -> usize {
        let biases = self.sampling.text_bias.iter().map(|(text, _)| text.len());
        let prompts = self.prompts.iter().map(|prompt| prompt.bytes() + prompt.tool_bytes());
        prompts.chain(biases).sum()
    }

    /// Returns the names of ignored parameters to report to the client: all but annotations.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.ignored.iter().map(String::as_str).filter(|name| !ANNOTATIONS.contains(name))
    }

    /// Returns [`Self::unknown`] as a header value: comma-separated and bounded.
    pub fn ignored_names(&self) -> String {
        header_list(&self.unknown().collect::<Vec<_>>())
    }
}

/// Formats names for a header: comma-separated and bounded.
pub fn header_list(names: &[impl AsRef<str>]) -> String {
    let listed = names.iter().take(MAX_IGNORED_NAMES).map(|name| quoted(name.as_ref()));
    let listed = listed.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_IGNORED_NAMES) {
        0 => listed,
        more => format!("{listed}, and {more} more"),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, why) in UNSUPPORTED {
        // An empty string, such as an empty `suffix`, asks for nothing.
        if fields.take(name).is_some_and(|value| value != Value::String(String::new())) {
            return Err(ApiError::invalid_param(*name, format!("'{name}': {why}.")));
        }
    }
    if let Some(modalities) = fields.array("modalities")?
        && modalities.iter().any(|one| one != "text")
    {
        return Err(fields.error("modalities", "may only be [\"text\"]."));
    }
    Ok(())
}

/// Takes `best_of`. One that equals `n` drops no completion, so that it counts as absent.
fn refuse_best_of(fields: &mut Fields, n: u32) -> Result<(), ApiError> {
    match fields.integer("best_of", i64::MIN..=i64::MAX)? {
        Some(best_of) if best_of != i64::from(n) => {
            let why = "is not supported beyond 'n'; ask for 'n' completions and choose.";
            Err(fields.error("best_of", why))
        }
        _ => Ok(()),
    }
}

/// Takes `suffix`. An empty one counts as absent.
fn parse_suffix(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<String>, ApiError> {
    let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
    match (endpoint, suffix) {
        (Endpoint::Chat, Some(_)) => {
            Err(fields.error("suffix", "is supported at /v1/completions only."))
        }
        (_, suffix) => Ok(suffix),
    }
}

/// Takes `add_generation_prompt` and `continue_final_message`, as in vLLM.
fn parse_ending(fields: &mut Fields) -> Result<PromptEnding, ApiError> {
    let adds = fields.boolean("add_generation_prompt")?;
    match (fields.boolean("continue_final_message")?.unwrap_or(false), adds) {
        (true, Some(true)) => {
            let wrong = "contradicts 'add_generation_prompt': set one of the two to false.";
            Err(fields.error("continue_final_message", wrong))
        }
        (true, _) => Ok(PromptEnding::InLastMessage),
        (false, Some(false)) => Ok(PromptEnding::AfterLastMessage),
        (false, _) => Ok(PromptEnding::NewAnswer),
    }
}

fn parse_prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    let wrong = "must be a string, an array of strings, or token ids";
    let value = fields.take("prompt").ok_or_else(|| fields.error("prompt", "is required."))?;
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => return Err(fields.error("prompt", "must not be empty.")),
        other => return Err(fields.error("prompt", format!("{wrong}, not {}.", kind_of(&other)))),
    };
    // A flat array of numbers is one prompt of token ids, not several prompts.
    if items.iter().all(Value::is_number) {
        return Ok(vec![Prompt::Tokens(token_ids(fields, &items)?)]);
    }
    // So is an array of numbers and texts.
    if items.iter().any(Value::is_number) {
        return Ok(vec![parse_parts(fields, items)?]);
    }
    if items.len() > MAX_CHOICES {
        return Err(fields.error("prompt", format!("has more than {MAX_CHOICES} entries.")));
    }
    let parse = |item| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items) if items.iter().any(Value::is_string) => parse_parts(fields, items),
        Value::Array(ids) if !ids.is_empty() => Ok(Prompt::Tokens(token_ids(fields, &ids)?)),
        other => Err(fields.error("prompt", format!("{wrong}; one entry is {}.", kind_of(&other)))),
    };
    items.into_iter().map(parse).collect()
}

/// Reads one prompt that mixes texts and token ids. Neighbouring ids become one part.
fn parse_parts(fields: &Fields, items: Vec<Value>) -> Result<Prompt, ApiError> {
    let mut parts: Vec<PromptPart> = Vec::new();
    for item in items {
        if parts.len() > MAX_PARTS {
            return Err(fields.error("prompt", format!("has more than {MAX_PARTS} parts.")));
        }
        match (item, parts.last_mut()) {
            (Value::String(text), _) => parts.push(PromptPart::Text(text)),
            (id @ Value::Number(_), Some(PromptPart::Tokens(ids))) => {
                ids.push(token_id(fields, &id)?);
            }
            (id @ Value::Number(_), _) => {
                parts.push(PromptPart::Tokens(vec![token_id(fields, &id)?]));
            }
            (other, _) => {
                let wrong = "with token ids may hold texts besides; one entry is";
                return Err(fields.error("prompt", format!("{wrong} {}.", kind_of(&other))));
            }
        }
    }
    Ok(Prompt::Parts(parts))
}

fn token_ids(fields: &Fields, ids: &[Value]) -> Result<Vec<TokenId>, ApiError> {
    ids.iter().map(|id| token_id(fields, id)).collect()
}

fn token_id(fields: &Fields, id: &Value) -> Result<TokenId, ApiError> {
    let token = id.as_u64().and_then(|id| TokenId::try_from(id).ok());
    token
        .ok_or_else(|| fields.error("prompt", format!("has no token {}.", quoted(&id.to_string()))))
}

/// Takes the token limit. -1 is no limit, as in llama-server, LM Studio and Ollama.
fn parse_max_tokens(
    fields: &mut Fields,
    endpoint: Endpoint,
    echo: bool,
) -> Result<Option<u32>, ApiError> {
    let mut stated = None;
    for name in LIMIT_NAMES {
        // Read even where another holds, so that it is not named as ignored.
        let limit = parse_limit(fields, name, echo)?;
        stated = stated.or(limit);
    }
    match stated {
        Some(limit) => Ok(u32::try_from(limit).ok()),
        None => Ok((endpoint == Endpoint::Text).then_some(DEFAULT_COMPLETION_TOKENS)),
    }
}

fn parse_limit(fields: &mut Fields, name: &str, echo: bool) -> Result<Option<i64>, ApiError> {
    let limit = fields.integer(name, -1..=i64::from(u32::MAX))?;
    // A repeated prompt is an answer without a single token behind it.
    if limit == Some(0) && !echo {
        return Err(fields.error(name, "must be at least 1, or -1 for no limit."));
    }
    Ok(limit)
}

fn parse_cache_salt(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let salt = fields.string("cache_salt")?;
    match salt.as_ref().map_or(1, String::len) {
        1..=MAX_SALT_BYTES => Ok(salt),
        _ => Err(fields.error("cache_salt", format!("must have 1 to {MAX_SALT_BYTES} bytes."))),
    }
}

/// Returns the bytes of all strings in `value`.
pub fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => members.values().map(text_bytes).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn parse_stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let wrong = "must be a string or an array of strings";
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(one @ Value::String(_)) => vec![one],
        Some(other) => {
            return Err(fields.error("stop", format!("{wrong}, not {}.", kind_of(&other))));
        }
    };
    if items.len() > MAX_STOPS {
        return Err(fields.error("stop", format!("has more than {MAX_STOPS} entries.")));
    }
    let parse = |item| match item {
        Value::String(text) if text.len() <= MAX_STOP_BYTES => Ok(text),
        Value::String(_) => Err(fields.error("stop", format!("exceeds {MAX_STOP_BYTES} bytes."))),
        other => Err(fields.error("stop", format!("{wrong}; one entry is {}.", kind_of(&other)))),
    };
    items.into_iter().map(parse).collect()
}

fn parse_sampling(fields: &mut Fields, endpoint: Endpoint) -> Result<SamplingParams, ApiError> {
    let number = |value: Option<f64>| value.map(|number| number as f32);
    let stated = StatedSampling {
        temperature: number(fields.number("temperature", 0.0..=2.0)?),
        top_p: number(fields.number("top_p", 0.0..=1.0)?),
        top_k: parse_top_k(fields)?,
        min_p: number(fields.number("min_p", 0.0..=1.0)?),
        repetition_penalty: number(parse_repetition_penalty(fields)?),
    };
    Ok(SamplingParams {
        stated,
        general: GeneralSampling::default(),
        repeat_last_n: parse_repeat_last_n(fields)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
        logit_bias: parse_logit_bias(fields)?,
        text_bias: Vec::new(),
        logprobs: parse_logprobs(fields, endpoint)?,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
    })
}

/// Takes `repetition_penalty`, or `repeat_penalty`, as llama-server calls it.
fn parse_repetition_penalty(fields: &mut Fields) -> Result<Option<f64>, ApiError> {
    let other = fields.number("repeat_penalty", 0.01..=10.0)?;
    Ok(fields.number("repetition_penalty", 0.01..=10.0)?.or(other))
}

/// Takes llama-server's `repeat_last_n`, which is -1 for all tokens.
fn parse_repeat_last_n(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let window = fields.integer("repeat_last_n", -1..=i64::from(u32::MAX))?;
    Ok(window.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)))
}

/// Takes `top_k`; vLLM writes -1 for all tokens, llama-server 0.
fn parse_top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?;
    Ok(top_k.map(|k| u32::try_from(k).unwrap_or(0)))
}

fn parse_logit_bias(fields: &mut Fields) -> Result<Arc<[(TokenId, f32)]>, ApiError> {
    let wrong = "must map token ids to numbers between -100 and 100";
    let Some(value) = fields.take("logit_bias") else {
        return Ok(Arc::default());
    };
    let Value::Object(map) = value else {
        return Err(fields.error("logit_bias", format!("{wrong}, not {}.", kind_of(&value))));
    };
    if map.len() > MAX_BIASES {
        return Err(fields.error("logit_bias", format!("has more than {MAX_BIASES} entries.")));
    }
    let parse = |(token, bias): (String, Value)| {
        let id: Option<TokenId> = token.parse().ok();
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        id.zip(bias.map(|bias| bias as f32)).ok_or_else(|| {
            fields.error("logit_bias", format!("{wrong}; '{}' does not.", quoted(&token)))
        })
    };
    // A token may be written in several ways ("5", "05"): the last one counts.
    let biases = map.into_iter().map(parse).collect::<Result<BTreeMap<_, _>, ApiError>>()?;
    Ok(biases.into_iter().collect())
}

fn parse_logprobs(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<u8>, ApiError> {
    if endpoint == Endpoint::Text {
        return Ok(fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|k| k as u8));
    }
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if top.is_some() && !wanted {
        return Err(fields.error("top_logprobs", "needs 'logprobs': true."));
    }
    Ok(wanted.then_some(top.unwrap_or(0) as u8))
}

fn parse_stream(fields: &mut Fields) -> Result<Option<StreamParams>, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    // llama-server's name and place for it; without a stream it has no effect, as there.
    let return_progress = fields.boolean("return_progress")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else {
        let plain = StreamParams { return_progress, ..StreamParams::default() };
        return Ok(stream.then_some(plain));
    };
    if !stream {
        return Err(fields.error("stream_options", "needs 'stream': true."));
    }
    let params = StreamParams {
        include_usage: options.boolean("include_usage")?.unwrap_or(false),
        continuous_usage: options.boolean("continuous_usage_stats")?.unwrap_or(false),
        include_timings: options.boolean("include_timings")?.unwrap_or(false),
        include_obfuscation: options.boolean("include_obfuscation")?,
        return_progress,
        timings: false,
    };
    fields.ignore_rest(options);
    Ok(Some(params))
}

/// Takes `stream_interval`.
///
/// # Errors
/// 400 if it is neither a positive integer nor `auto`.
pub fn parse_interval(fields: &mut Fields) -> Result<Option<StreamInterval>, ApiError> {
    let text = match fields.take("stream_interval") {
        None => return Ok(None),
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    };
    let wrong = || {
        fields.error(
            "stream_interval",
            format!("must be a number above 0 or \"auto\", not {}.", quoted(&text)),
        )
    };
    text.parse().map(Some).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat(extra: Value) -> Result<Request, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Request::parse(Endpoint::Chat, body.to_string().as_bytes())
    }

    fn text(body: Value) -> Result<Request, ApiError> {
        Request::parse(Endpoint::Text, body.to_string().as_bytes())
    }

    #[test]
    fn wrong_values_are_named() {
        for (body, name) in [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": 3}), "temperature"),
            (json!({"top_p": -0.1}), "top_p"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": -2}), "max_tokens"),
            (json!({"max_completion_tokens": -2}), "max_completion_tokens"),
            (json!({"n_predict": -2}), "n_predict"),
            (json!({"repeat_penalty": 0}), "repeat_penalty"),
            (json!({"repeat_last_n": -2}), "repeat_last_n"),
            (json!({"max_tokens": 1.5}), "max_tokens"),
            (json!({"n": 1000}), "n"),
            (json!({"stop": [1]}), "stop"),
            (json!({"cache_salt": ""}), "cache_salt"),
            (json!({"cache_salt": 1}), "cache_salt"),
            (json!({"cache_salt": "x".repeat(257)}), "cache_salt"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (
                json!({"stream": true, "stream_options": {"include_usage": 1}}),
                "stream_options.include_usage",
            ),
            (
                json!({"stream": true, "stream_options": {"include_obfuscation": "no"}}),
                "stream_options.include_obfuscation",
            ),
            (json!({"stream_interval": 0}), "stream_interval"),
            (json!({"response_format": {"type": "xml"}}), "response_format"),
            (json!({"audio": {"voice": "x"}}), "audio"),
            (json!({"best_of": 3}), "best_of"),
            (json!({"best_of": 3, "n": 2}), "best_of"),
            (json!({"best_of": 1, "n": 2}), "best_of"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": "hi"}), "messages"),
        ] {
            let error = chat(body.clone()).unwrap_err().json();
            assert_eq!(error["error"]["param"], *name, "{body}: {error}");
            assert_eq!(error["error"]["type"], "invalid_request_error");
        }
    }

    #[test]
    fn llama_servers_names_hold_where_the_others_are_absent() {
        for (body, limit, penalty) in [
            (json!({"n_predict": 7, "repeat_penalty": 1.5}), Some(7), Some(1.5)),
            (json!({"n_predict": -1}), None, None),
            (json!({"n_predict": 7, "max_tokens": 5}), Some(5), None),
            (json!({"repeat_penalty": 1.5, "repetition_penalty": 2}), None, Some(2.0)),
        ] {
            let request = chat(body.clone()).unwrap();
            let found = (request.max_tokens, request.sampling.stated.repetition_penalty);
            assert_eq!(found, (limit, penalty), "{body}");
            assert_eq!(request.unknown().count(), 0, "{body}");
        }
        let endless = text(json!({"prompt": "a", "n_predict": -1})).unwrap();
        assert_eq!(endless.max_tokens, None);
    }

    #[test]
    fn the_window_of_the_repetition_penalty_is_the_requests_or_that_of_its_api() {
        for (body, elsewhere, ollamas) in [
            (json!({}), u32::MAX, 64),
            (json!({"repeat_last_n": -1}), u32::MAX, u32::MAX),
            (json!({"repeat_last_n": 0}), 0, 0),
            (json!({"repeat_last_n": 5}), 5, 5),
        ] {
            let mut sampling = chat(body.clone()).unwrap().sampling;
            assert_eq!(sampling.repeat_window(), elsewhere, "{body}");
            sampling.general = GeneralSampling::Ollama;
            assert_eq!(sampling.repeat_window(), ollamas, "{body}");
        }
    }

    #[test]
    fn the_best_of_as_many_as_asked_for_are_all() {
        for extra in [json!({"best_of": 1}), json!({"best_of": 3, "n": 3})] {
            assert_eq!(chat(extra.clone()).unwrap().unknown().count(), 0, "{extra}");
        }
    }

    #[test]
    fn a_token_limit_of_minus_one_is_none() {
        let limit = |extra: Value| chat(extra).unwrap().max_tokens;
        assert_eq!(limit(json!({})), None);
        assert_eq!(limit(json!({"max_tokens": 5})), Some(5));
        assert_eq!(limit(json!({"max_tokens": -1})), None);
        assert_eq!(limit(json!({"max_completion_tokens": -1, "max_tokens": 5})), None);
        assert_eq!(limit(json!({"max_completion_tokens": 5, "max_tokens": -1})), Some(5));
        let limit = |body: Value| text(body).unwrap().max_tokens;
        assert_eq!(limit(json!({"prompt": "a"})), Some(DEFAULT_COMPLETION_TOKENS));
        assert_eq!(limit(json!({"prompt": "a", "max_tokens": -1})), None);
        assert_eq!(limit(json!({"prompt": "a", "echo": true, "max_tokens": 0})), Some(0));
    }

    #[test]
    fn a_prompt_may_mix_texts_and_token_ids() {
        let words = |count: usize| {
            let items = (0..count).flat_map(|_| [json!("a"), json!(1)]);
            text(json!({"prompt": items.collect::<Vec<_>>()}))
        };
        let mixed = text(json!({"prompt": [1, 2, "a", 3]})).unwrap().prompts;
        let part = |text: &str| PromptPart::Text(text.into());
        let ids = |ids: &[TokenId]| PromptPart::Tokens(ids.to_vec());
        assert_eq!(mixed, [Prompt::Parts(vec![ids(&[1, 2]), part("a"), ids(&[3])])]);
        assert!(words(MAX_PARTS / 2).is_ok());
        assert_eq!(words(MAX_PARTS).unwrap_err().json()["error"]["param"], "prompt");
        let nested = text(json!({"prompt": ["b", [1, "a"]]})).unwrap().prompts;
        assert_eq!(nested[1], Prompt::Parts(vec![ids(&[1]), part("a")]));
        let wrong = [json!([1, [2]]), json!([1, "a", -1]), json!(["a", 1, {}]), json!([["a", []]])];
        for wrong in wrong {
            let error = text(json!({"prompt": wrong})).unwrap_err().json();
            assert_eq!(error["error"]["param"], "prompt");
        }
    }

    #[test]
    fn biases_are_few_in_order_and_each_token_once() {
        let bias = |count: u32| {
            let map = (0..count).map(|token| (token.to_string(), json!(1))).collect();
            chat(json!({"logit_bias": Value::Object(map)})).map(|request| request.sampling)
        };
        assert_eq!(bias(1024).unwrap().logit_bias.len(), 1024);
        assert_eq!(bias(1025).unwrap_err().json()["error"]["param"], "logit_bias");
        let request = chat(json!({"logit_bias": {"9": 1, "05": 2, "5": 3, "+5": -4}})).unwrap();
        assert_eq!(*request.sampling.logit_bias, [(5, -4.0), (9, 1.0)]);
    }

    #[test]
    fn ignored_names_fit_a_header_however_many_and_long() {
        let long = "n".repeat(1 << 20);
        let one = chat(json!({long: 1})).unwrap().ignored_names();
        assert!(one.len() < 100 && one.starts_with("nnn") && one.ends_with("..."), "{one}");
        let many = (0..5000).map(|index| (format!("name{index}"), json!(1))).collect();
        let many = chat(Value::Object(many)).unwrap().ignored_names();
        assert!(many.len() < 2048 && many.ends_with(", and 4984 more"), "{many}");
        let few = chat(json!({"a": 1, "user": "u", "b": 2})).unwrap().ignored_names();
        assert!(few == "a, b" || few == "b, a", "{few}");
    }

    #[test]
    fn errors_quote_little_of_a_request() {
        let long = "é".repeat(1 << 20);
        let message = |role: &str, content: Value| json!([{"role": role, "content": content}]);
        let bodies = [
            json!({"messages": message(&long, json!("x"))}),
            json!({"messages": message("user", json!([{"type": long}]))}),
            json!({"tool_choice": long}),
            json!({"response_format": {"type": long}}),
            json!({"tools": [{"type": long}]}),
            json!({"logit_bias": {long.clone(): 1}}),
            json!({"stream_interval": long}),
        ];
        for body in bodies {
            let error = chat(body).unwrap_err().json().to_string();
            assert!(error.len() < 500, "{} bytes", error.len());
        }
        let tokens = text(json!({"prompt": [1, {"a": long}]})).unwrap_err();
        assert!(tokens.json().to_string().len() < 500);
        let unknown = ApiError::model_not_found(&long, ["model"]).json().to_string();
        assert!(unknown.len() < 500 && unknown.contains("Use 'model'."));
        let names = std::iter::repeat_n(long.as_str(), 100);
        let unknown = ApiError::model_not_found(&long, names).json().to_string();
        assert!(unknown.len() < 1200, "{} bytes", unknown.len());
        let names = (0..10).map(|n| n.to_string()).collect::<Vec<_>>();
        let unknown = ApiError::model_not_found("x", names.iter().map(String::as_str)).json();
        let unknown = unknown["error"]["message"].as_str().unwrap();
        assert!(unknown.contains("Use '0' or '1' or "), "{unknown}");
        assert!(unknown.ends_with("'7' or one of 2 more that GET /v1/models lists."), "{unknown}");
        let any = ApiError::invalid(long).json().to_string();
        assert!(any.len() < 1200);
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for body in [&b"{"[..], b"[]", b"\xff\xfe", b"", b"null", b"{\"a\":1}x"] {
            let error = Request::parse(Endpoint::Chat, body).unwrap_err();
            assert_eq!(error.status(), 400);
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_stack_overflow() {
        let body = "[".repeat(100_000);
        assert_eq!(Request::parse(Endpoint::Chat, body.as_bytes()).unwrap_err().status(), 400);
    }

    #[test]
    fn annotations_and_unknown_extras_are_kept_apart() {
        let request =
            chat(json!({"user": "u", "metadata": {}, "tempersture": 1, "x": null})).unwrap();
        assert_eq!(request.unknown().collect::<Vec<_>>(), ["tempersture"]);
    }

    #[test]
    fn what_is_unknown_inside_objects_is_named_too() {
        let request = chat(json!({
            "stream": true,
            "stream_options": {"include_usage": true, "chunk_size": 9},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"a": 1}}]},
                // What a server returned, sent back to it.
                {"role": "assistant", "content": "b", "refusal": null, "annotations": [], "mood": "x"},
            ],
            "tools": [{"function": {"name": "f", "strict": true, "cache": 1}, "defer_loading": true}],
            "response_format": {"type": "json_schema", "json_schema": {
                "name": "n", "strict": true, "description": "d", "schema": {"type": "object"},
            }},
        }));
        let mut names: Vec<String> = request.unwrap().unknown().map(str::to_owned).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "messages[0].content[0].cache_control",
                "messages[1].mood",
                "response_format.json_schema.description",
                "stream_options.chunk_size",
                "tools[0].defer_loading",
                "tools[0].function.cache",
                "tools[0].function.strict",
            ]
        );
        let forced = json!({"tool_choice": "required", "tools": [{"function": {"name": "f", "strict": true}}]});
        assert_eq!(chat(forced).unwrap().unknown().count(), 0);
        let many: Vec<Value> =
            (0..1000).map(|_| json!({"role": "user", "content": "a", "x": 1})).collect();
        assert_eq!(chat(json!({"messages": many})).unwrap().unknown().count(), 64);
    }

    #[test]
    fn reasoning_has_an_effort_and_a_budget_under_its_names() {
        let reasoning = |extra: Value| {
            let request = chat(extra).unwrap();
            let Prompt::Chat(chat) = &request.prompts[0] else { panic!("{request:?}") };
            chat.reasoning.clone()
        };
        for (body, effort, budget) in [
            (json!({}), None, None),
            (json!({"reasoning_effort": "high"}), Some("high"), None),
            (json!({"thinking_budget_tokens": 5}), None, Some(5)),
            (json!({"thinking_budget_tokens": -1}), None, None),
            (json!({"thinking_token_budget": 0}), None, Some(0)),
            (json!({"reasoning": {"effort": "low", "max_tokens": 9}}), Some("low"), Some(9)),
        ] {
            let params = reasoning(body.clone());
            let budget = (params.effort.as_deref(), params.budget.map(|(tokens, _)| tokens))
                == (effort, budget);
            assert!(budget, "{body}: {params:?}");
        }
        let wrong = |extra: Value| chat(extra).unwrap_err().json()["error"]["param"].clone();
        assert_eq!(wrong(json!({"reasoning_effort": "much"})), "reasoning_effort");
        assert_eq!(wrong(json!({"reasoning": {"max_tokens": "x"}})), "reasoning.max_tokens");
        assert_eq!(wrong(json!({"thinking_budget_tokens": -2})), "thinking_budget_tokens");
    }

    #[test]
    fn a_prompt_ends_as_asked() {
        let ending = |extra: Value| {
            let request = chat(extra)?;
            let Prompt::Chat(chat) = &request.prompts[0] else { panic!("{request:?}") };
            Ok::<_, ApiError>(chat.ending)
        };
        assert_eq!(ending(json!({})).unwrap(), PromptEnding::NewAnswer);
        let plain = json!({"add_generation_prompt": false});
        assert_eq!(ending(plain).unwrap(), PromptEnding::AfterLastMessage);
        let goes_on = json!({"continue_final_message": true, "add_generation_prompt": false});
        assert_eq!(ending(goes_on).unwrap(), PromptEnding::InLastMessage);
        let both = json!({"continue_final_message": true, "add_generation_prompt": true});
        assert_eq!(ending(both).unwrap_err().status(), 400);
    }

    #[test]
    fn prompts_come_as_text_or_tokens_one_or_many() {
        let prompts = |value: Value| text(json!({"prompt": value})).map(|request| request.prompts);
        assert_eq!(prompts(json!("a")).unwrap(), [Prompt::Text("a".into())]);
        assert_eq!(prompts(json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(
            prompts(json!([[1], "b"])).unwrap(),
            [Prompt::Tokens(vec![1]), Prompt::Text("b".into())]
        );
        for bad in [
            json!([]),
            json!([[]]),
            json!([-1]),
            json!({}),
            json!([1, ["a"]]),
            json!([5_000_000_000u64]),
        ] {
            assert_eq!(
                prompts(bad.clone()).unwrap_err().json()["error"]["param"],
                "prompt",
                "{bad}"
            );
        }
    }

    #[test]
    fn intervals_come_as_numbers_or_auto() {
        let interval = |value: Value| chat(json!({"stream_interval": value})).unwrap().interval;
        assert_eq!(interval(json!("auto")), Some(StreamInterval::Auto));
        assert_eq!(interval(json!(8)).unwrap().to_string(), "8");
        assert_eq!(interval(json!(null)), None);
    }
}
