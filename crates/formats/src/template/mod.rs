//! Chat templates: messages to prompt text to tokens.
//!
//! Templates are the Jinja sources that come with models, rendered by `minijinja` with the settings
//! and extras of `transformers`. Rendering is limited in instructions, recursion and output, since
//! a template is part of a downloaded file; the memory allocated by one expression is limited by
//! minijinja for repetitions only.
//!
//! **Text that users wrote never becomes special tokens.** A template writes special tokens as text
//! (`<|im_end|>`), so its output must be tokenized with special tokens parsed, and a user who
//! writes the same text would end their turn. Therefore strings that contain special tokens
//! ([`ChatTemplate::render`]'s `is_special` finds all of them) are replaced by markers before
//! rendering and put back afterwards, as [`PromptSegment`]s that are tokenized as plain text.
//! Strings without special tokens, nearly all, are rendered unchanged: tokens may then merge across
//! their borders, as in training. If a template changes a marked string beyond trimming or JSON
//! quoting, so that it cannot be put back exactly as the template would have written it, the
//! request is rejected ([`TemplateError::SpecialText`]).

mod clock;
mod control;
mod control_token_tags;
mod encode;
mod jinja;
mod roles;
mod splice;
mod tools;

pub use control::ControlNames;
pub use control_token_tags::ControlTokenTags;
pub use encode::{ChatPrompt, PromptLimits, encode_chat, encode_segments, render_chat};
pub use tools::Abilities;

use std::borrow::Cow;
use std::sync::OnceLock;

use loquent_infer::vocab::Vocab;
use serde_json::{Map, Value, json};

/// Maximum bytes of prompt text that a template may write.
pub const MAX_OUTPUT_BYTES: usize = 16 << 20;

/// Fallback for models without a template: ChatML.
pub const CHATML: &str = "{% for message in messages %}\
<|im_start|>{{ message.role }}\n{{ message.content or '' }}<|im_end|>\n\
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Reason why messages could not be converted to a prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid Jinja.
    #[error("the chat template is invalid: {0}")]
    Syntax(String),
    /// The template refused the messages (`raise_exception`): the request's fault.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed on these messages.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The template took too many steps or wrote too much.
    #[error("the chat template exceeds the limit on {0}")]
    Limit(&'static str),
    /// The prompt has more than the given number of bytes.
    #[error("the prompt is longer than {0} bytes")]
    TooLong(usize),
    /// The prompt has more than the given number of tokens.
    #[error("the prompt has more than {0} tokens")]
    TooManyTokens(usize),
    /// Text of special tokens in a place where it cannot be marked as plain text.
    #[error(
        "a message contains text that the model reads as a control token, in a place where the \
             chat template changes it; remove that text"
    )]
    SpecialText,
    /// The text could not be tokenized.
    #[error(transparent)]
    Encode(#[from] loquent_infer::vocab::EncodeError),
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool` or another role of the template.
    pub role: String,
    /// Text; `None` is null, as in messages that only call tools.
    pub content: Option<String>,
    /// Name of the author (`name`), if the message has one.
    pub name: Option<String>,
    /// Calls by an assistant, in OpenAI's format; arguments may be a string of JSON or an object
    /// and are passed to the template as an object.
    pub tool_calls: Vec<Value>,
    /// The call that a `tool` message answers.
    pub tool_call_id: Option<String>,
    /// The assistant's reasoning before its answer.
    pub reasoning_content: Option<String>,
}

impl ChatMessage {
    /// Bytes of the text.
    pub fn bytes(&self) -> usize {
        [&self.content, &self.reasoning_content].into_iter().flatten().map(String::len).sum()
    }

    /// Creates a message of `role` with the text `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let (role, content) = (role.into(), Some(content.into()));
        Self { role, content, ..Self::default() }
    }

    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("role".into(), json!(self.role));
        fields.insert("content".into(), json!(self.content));
        if let Some(name) = &self.name {
            fields.insert("name".into(), json!(name));
        }
        if let Some(reasoning) = &self.reasoning_content {
            fields.insert("reasoning_content".into(), json!(reasoning));
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().cloned().map(with_parsed_arguments);
            fields.insert("tool_calls".into(), calls.collect());
        }
        if let Some(id) = &self.tool_call_id {
            fields.insert("tool_call_id".into(), json!(id));
        }
        Value::Object(fields)
    }
}

/// Parses arguments: OpenAI sends them as a string of JSON; templates written for `transformers`
/// expect the object.
fn with_parsed_arguments(mut call: Value) -> Value {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
        && let Value::Object(_) = parsed
    {
        *arguments = parsed;
    }
    call
}

/// End of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PromptEnding {
    /// With the beginning of the assistant's turn.
    #[default]
    NewAnswer,
    /// With the end of the last message.
    AfterLastMessage,
    /// Inside the last message, whose text the answer continues.
    InLastMessage,
}

/// Variables of a template.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// The messages, oldest first.
    pub messages: &'a [ChatMessage],
    /// Tool definitions in OpenAI's format.
    pub tools: &'a [Value],
    /// End of the prompt.
    pub ending: PromptEnding,
    /// Text of the begin-of-sequence token, empty if there is none.
    pub bos_token: &'a str,
    /// Text of the end-of-sequence token, empty if there is none.
    pub eos_token: &'a str,
    /// Time that `strftime_now` formats, in seconds since 1970 (UTC).
    pub now_unix_s: i64,
    /// Random number, used in the markers, that the messages' author cannot know.
    pub nonce: u128,
    /// Further variables (`chat_template_kwargs`), for example `enable_thinking`.
    pub extra: &'a [(String, Value)],
}

/// A part of a prompt's text that is tokenized in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptSegment {
    /// The text as rendered.
    pub text: String,
    /// True if special tokens written in it become those tokens.
    pub special: bool,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: minijinja::Environment<'static>,
    source: String,
    abilities: Abilities,
    /// Names in the vocabulary that the template is used with, set on first use.
    control: OnceLock<ControlNames>,
    spoken: OnceLock<ControlTokenTags>,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let abilities = Abilities::of(source);
        jinja::compile(source).map(|environment| {
            let (control, spoken) = Default::default();
            Self { environment, source: source.to_owned(), abilities, control, spoken }
        })
    }

    /// Names of control tokens in `vocab`, which must be the same at every call.
    fn control_names(&self, vocab: &dyn Vocab) -> &ControlNames {
        self.control.get_or_init(|| ControlNames::of(vocab))
    }

    /// Tags of the template's format that are control tokens in `vocab`, which must be the same at
    /// every call.
    pub fn spoken_tags(&self, vocab: &dyn Vocab) -> &ControlTokenTags {
        self.spoken.get_or_init(|| {
            ControlTokenTags::of(vocab, self.abilities.calls, self.abilities.thinks)
        })
    }

    /// Returns true if `word`, such as a variable, occurs in the source.
    pub fn mentions(&self, word: &str) -> bool {
        self.source.contains(word)
    }

    /// Returns the source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Abilities of the model, inferred from the template's source.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Renders a conversation to at most `max_bytes`. `is_special` returns true if tokenizing a
    /// text with special tokens parsed could give one. If the template does not support tools, they
    /// are described in a system message, and calls and results become text. If it refuses where
    /// the system messages stand, they are written elsewhere.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render(
        &self,
        conversation: &Conversation<'_>,
        is_special: &dyn Fn(&str) -> bool,
        max_bytes: usize,
    ) -> Result<Vec<PromptSegment>, TemplateError> {
        let messages = match self.abilities.tools {
            true => Cow::Borrowed(conversation.messages),
            false => Cow::Owned(tools::as_text(conversation.messages, conversation.tools)),
        };
        let mut rendered = self.render_messages(conversation, &messages, max_bytes);
        for rewrite in [roles::system_first, roles::without_system] {
            let Err(TemplateError::Refused(_)) = &rendered else { break };
            let rewritten = rewrite(&messages);
            if rewritten[..] != messages[..] {
                let again = self.render_messages(conversation, &rewritten, max_bytes);
                // If that fails as well, the reason is the one that concerns the client's messages.
                rendered = again.or(rendered);
            }
        }
        drop(messages);
        let (text, mut variables) = rendered?;
        // In nearly all requests no string is special, and the plain rendering is the prompt. Else
        // it is rendered twice: the plain text is what the model must see, the marked one shows
        // where in it the users' strings are.
        let strings = splice::mark(&mut variables, conversation.nonce, is_special)
            .ok_or(TemplateError::SpecialText)?;
        if strings.is_empty() {
            return Ok(vec![PromptSegment { text, special: true }]);
        }
        let marked_text = self.render_text(conversation, &variables, MAX_OUTPUT_BYTES)?;
        splice::segments(&text, &marked_text, &strings, conversation.nonce)
            .ok_or(TemplateError::SpecialText)
    }

    /// Returns the text of `messages` with the rest of `conversation`, and the variables of which
    /// it was made.
    fn render_messages(
        &self,
        conversation: &Conversation<'_>,
        messages: &[ChatMessage],
        max_bytes: usize,
    ) -> Result<(String, Map<String, Value>), TemplateError> {
        let mut variables = variables(conversation, messages);
        if self.mentions("message.thinking") {
            name_reasoning_thinking(&mut variables);
        }
        let text = match self.render_text(conversation, &variables, max_bytes) {
            // Some templates join texts without asking whether there is one.
            Err(TemplateError::Failed(_)) if fill_null_contents(&mut variables) => {
                self.render_text(conversation, &variables, max_bytes)?
            }
            rendered => rendered?,
        };
        Ok((text, variables))
    }

    fn render_text(
        &self,
        conversation: &Conversation<'_>,
        variables: &Map<String, Value>,
        max_bytes: usize,
    ) -> Result<String, TemplateError> {
        let rendered =
            jinja::render(&self.environment, variables, conversation.now_unix_s, max_bytes);
        let text = rendered.map_err(|error| match error {
            TemplateError::Limit("output") if max_bytes < MAX_OUTPUT_BYTES => {
                TemplateError::TooLong(max_bytes)
            }
            error => error,
        })?;
        match conversation.ending {
            PromptEnding::InLastMessage => without_end(text, variables),
            PromptEnding::NewAnswer | PromptEnding::AfterLastMessage => Ok(text),
        }
    }
}

/// Returns a rendered conversation without the template's text after the last message's text.
fn without_end(mut text: String, variables: &Map<String, Value>) -> Result<String, TemplateError> {
    let last = variables.get("messages").and_then(|messages| messages.as_array()?.last());
    let content = last.and_then(|message| message.get("content")?.as_str()).unwrap_or_default();
    let content = content.trim();
    let refused = |why: &str| TemplateError::Refused(format!("the last message {why}"));
    if content.is_empty() {
        return Err(refused("has no text to continue"));
    }
    let at = text.rfind(content).ok_or_else(|| refused("cannot be continued: it is rewritten"))?;
    text.truncate(at + content.len());
    Ok(text)
}

/// Makes the content of messages without one an empty text; returns true if there was such a
/// message.
fn fill_null_contents(variables: &mut Map<String, Value>) -> bool {
    let messages = variables.get_mut("messages").and_then(Value::as_array_mut);
    let contents = messages.into_iter().flatten().filter_map(|it| it.get_mut("content"));
    let nulls = contents.filter(|content| content.is_null());
    nulls.map(|content| *content = "".into()).count() > 0
}

/// Renames the reasoning of past messages to the name that gpt-oss's template uses. A message with
/// calls has one text only: its own, or its reasoning.
fn name_reasoning_thinking(variables: &mut Map<String, Value>) {
    let messages = variables.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten().filter_map(Value::as_object_mut) {
        let has_text =
            message.get("content").and_then(Value::as_str).is_some_and(|it| !it.is_empty());
        if message.contains_key("tool_calls") && has_text {
            continue;
        }
        if let Some(reasoning) = message.get("reasoning_content").cloned() {
            message.insert("thinking".into(), reasoning);
        }
    }
}

fn variables(conversation: &Conversation<'_>, messages: &[ChatMessage]) -> Map<String, Value> {
    let mut variables: Map<String, Value> = conversation.extra.iter().cloned().collect();
    let messages: Vec<Value> = messages.iter().map(ChatMessage::to_json).collect();
    variables.insert("messages".into(), messages.into());
    // Templates test `tools is not none` as often as `if tools`.
    let tools = (!conversation.tools.is_empty()).then(|| conversation.tools.to_vec());
    variables.insert("tools".into(), json!(tools));
    let begins_answer = conversation.ending == PromptEnding::NewAnswer;
    variables.insert("add_generation_prompt".into(), begins_answer.into());
    variables.insert("bos_token".into(), conversation.bos_token.into());
    variables.insert("eos_token".into(), conversation.eos_token.into());
    variables
}

#[cfg(test)]
mod tests;
