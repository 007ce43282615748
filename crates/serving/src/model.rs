//! A loaded model as the server uses it: name, vocabulary, chat format and limits.

pub mod unknown_vocab;

use std::sync::{Arc, OnceLock};

use loquent_formats::grammar::{AnswerShape, CallSyntax, Compiler, GrammarError, Thinking};
use loquent_formats::template::{
    self, Abilities, ChatPrompt, ChatTemplate, ControlTokenTags, Conversation, PromptLimits,
    TemplateError,
};
use loquent_infer::detok::Detokenizer;
use loquent_infer::sampling::SharedGrammar;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use loquent_proto::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::reasoning::{self, ReasoningParams};
use crate::api::request::Chat;
use crate::api::sampling::SamplingDefaults;
use crate::clock::unix_time_s;
use crate::completion::logprobs::ScoredPrompt;
use crate::model::unknown_vocab::UnknownVocab;

/// Format that turns conversations into prompts.
#[derive(Debug)]
pub struct ChatFormat {
    /// The model's chat template, or ChatML if the file has none.
    pub template: ChatTemplate,
    /// True if the file has no chat template: this is probably a base model.
    pub is_guessed: bool,
    /// Variables of the template for requests that do not set them.
    pub variables: Vec<(String, Value)>,
    /// Text of the begin-of-sequence token, empty if there is none.
    pub bos: String,
    /// Text of the end-of-sequence token, empty if there is none.
    pub eos: String,
}

impl ChatFormat {
    /// Creates the format of a model that has this `template` and no tokens around its texts.
    pub fn new(template: ChatTemplate) -> Self {
        Self {
            template,
            is_guessed: false,
            variables: Vec::new(),
            bos: String::new(),
            eos: String::new(),
        }
    }
}

/// Facts from a model's file, for lists of models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The architecture, for example `llama`; empty if unknown.
    pub architecture: String,
    /// Number of parameters; 0 if unknown.
    pub parameters: u64,
    /// Most frequent format of the tensors, for example `Q4_K_M`; empty if unknown.
    pub quantization: String,
    /// Size of the tensors in bytes; 0 if unknown.
    pub bytes: u64,
}

/// Name, vocabulary and limits of the served model.
#[derive(Clone)]
pub struct ServedModel {
    /// The name in `/v1/models` and in every answer.
    pub name: String,
    /// Tokens and their texts.
    pub vocab: Arc<dyn Vocab>,
    /// Chat format of the model.
    pub chat: Arc<ChatFormat>,
    /// Tokens at which a generation ends.
    pub end_tokens: Vec<TokenId>,
    /// Longest sequence in tokens, prompt and completion together.
    pub context_tokens: u32,
    /// Context length in training, if the model's file states it. Longer than the server's, or
    /// shorter if the user asked for that.
    pub trained_context: Option<u32>,
    /// Facts from the model's file.
    pub facts: ModelFacts,
    /// Sampling parameters for requests that do not set them.
    pub defaults: SamplingDefaults,
    /// Time when the model was loaded, in Unix seconds.
    pub created_s: u64,
    /// Compiles grammars over the vocabulary.
    pub grammars: GrammarSource,
    /// All further properties that determine the tokens of an answer, as a text that is equal
    /// wherever they are equal: weights, chat template, and the software and settings that compute
    /// with them.
    pub computed_by: String,
}

/// Compiles grammars for one vocabulary. The compiler is created by the first request that needs
/// it, because that takes long for a large vocabulary and many servers never need it.
#[derive(Clone, Default)]
pub struct GrammarSource(Arc<OnceLock<Result<Compiler, GrammarError>>>);

impl GrammarSource {
    /// Compiles the grammar of `shape` over `vocab`, which must be the same at every call. Takes
    /// milliseconds, and longer the first time.
    ///
    /// # Errors
    /// When the schema is not supported or too large, or the vocabulary cannot be used.
    pub fn compile(
        &self,
        vocab: &dyn Vocab,
        shape: &AnswerShape,
    ) -> Result<SharedGrammar, GrammarError> {
        match self.0.get_or_init(|| Compiler::new(vocab)) {
            Ok(compiler) => compiler.compile(shape),
            Err(error) => Err(error.clone()),
        }
    }
}

impl ServedModel {
    /// Returns a text that is equal wherever the same request has the same answer, as far as known.
    pub fn fingerprint(&self, splits_reasoning: bool) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let chat = (&self.chat.bos, &self.chat.eos);
        // Not the sampling defaults: what holds for a request is kept with it.
        let model = (&self.computed_by, self.vocab.size(), &self.end_tokens);
        let all = format!("{version} {chat:?} {model:?} {splits_reasoning}");
        hex::encode(&Sha256::digest(all)[..8])
    }

    /// Creates a placeholder for the model of an upstream server, of which only `name` is known.
    ///
    /// # Errors
    /// None in practice: the template is a constant.
    pub fn of_upstream(name: String) -> Result<Self, TemplateError> {
        let template = ChatTemplate::new(template::CHATML)?;
        Ok(Self {
            name,
            vocab: Arc::new(UnknownVocab),
            chat: Arc::new(ChatFormat::new(template)),
            end_tokens: Vec::new(),
            context_tokens: u32::MAX,
            trained_context: None,
            facts: ModelFacts::default(),
            defaults: SamplingDefaults::default(),
            created_s: unix_time_s(),
            grammars: GrammarSource::default(),
            computed_by: String::new(),
        })
    }

    /// Returns the maximum bytes of a prompt that may fit the context; every longer one has too
    /// many tokens.
    pub fn max_prompt_bytes(&self) -> usize {
        let longest = self.vocab.longest_token_bytes();
        longest.map_or(usize::MAX, |bytes| bytes.saturating_mul(self.context_tokens as usize))
    }

    /// Returns the prompt of a conversation, as tokens. Tokenizing stops once they surely are more
    /// than `most`.
    ///
    /// # Errors
    /// When the template refuses the messages, cannot be rendered, or writes a prompt that is too
    /// long.
    pub fn encode_chat(&self, chat: &Chat, most: usize) -> Result<ChatPrompt, TemplateError> {
        let limits = PromptLimits { bytes: self.max_prompt_bytes(), tokens: most };
        template::encode_chat(&self.chat.template, &*self.vocab, &self.conversation(chat), limits)
    }

    /// Returns the prompt of a conversation, as text.
    ///
    /// # Errors
    /// As [`Self::encode_chat`].
    pub fn render_chat(&self, chat: &Chat) -> Result<String, TemplateError> {
        let (template, max_bytes) = (&self.chat.template, self.max_prompt_bytes());
        template::render_chat(template, &*self.vocab, &self.conversation(chat), max_bytes)
    }

    /// Returns the variables of the template for `chat`.
    fn conversation<'a>(&'a self, chat: &'a Chat) -> Conversation<'a> {
        Conversation {
            messages: &chat.messages,
            tools: chat.tools.as_ref().map_or(&[], |tools| &tools.definitions),
            ending: chat.ending,
            bos_token: &self.chat.bos,
            eos_token: &self.chat.eos,
            now_unix_s: chat.dated_s.unwrap_or_else(unix_time_s) as i64,
            // Makes the marks around message texts unguessable, so that a user cannot forge a turn.
            nonce: rand::random(),
            extra: &chat.variables,
        }
    }

    /// Returns the format in which the model writes tool calls, according to its chat template.
    pub fn call_syntax(&self) -> CallSyntax {
        self.chat.template.abilities().calls
    }

    /// Sets the template variables for `chat`'s reasoning parameters, and those that the request
    /// leaves to the server. Returns the names of the parameters that have no effect on this model.
    pub fn give_reasoning(&self, chat: &mut Chat) -> Vec<&'static str> {
        let template = &self.chat.template;
        let ReasoningParams { effort, verbosity, budget } = chat.reasoning.clone();
        let mut ignored = Vec::new();
        if let Some(effort) = effort {
            match self.effort_variable(&effort) {
                Some((name, value)) => chat.set_variable(name, value),
                None => ignored.push("reasoning_effort"),
            }
        }
        if let Some(verbosity) = verbosity {
            match template.mentions("verbosity") {
                true => chat.set_variable("verbosity", verbosity.into()),
                false => ignored.push("verbosity"),
            }
        }
        for (name, value) in &self.chat.variables {
            chat.set_variable(name, value.clone());
        }
        let Abilities { thinks, calls, .. } = template.abilities();
        let can_end = thinks.is_some() && calls != CallSyntax::Harmony;
        ignored.extend(budget.map(|(_, name)| name).filter(|_| !can_end));
        ignored
    }

    /// Returns the template variable for `effort`; `None` if the template supports no effort.
    fn effort_variable(&self, effort: &str) -> Option<(&'static str, Value)> {
        let template = &self.chat.template;
        if template.mentions("reasoning_effort") {
            let is_harmony = self.call_syntax() == CallSyntax::Harmony;
            let known = if is_harmony { reasoning::of_three(effort) } else { effort };
            return Some(("reasoning_effort", known.into()));
        }
        // Templates that know no degrees may know a switch, which is on unless it is turned off.
        let switch = ["enable_thinking", "thinking"];
        let switch = switch.into_iter().find(|name| template.mentions(&format!("{name} is")));
        switch.filter(|_| effort == "none").map(|name| (name, false.into()))
    }

    /// Returns how an answer of the model reasons. `prompt_thinks`: the prompt ends inside the
    /// reasoning.
    pub fn thinking(&self, prompt_thinks: bool) -> Thinking {
        let Abilities { thinks, calls, .. } = self.chat.template.abilities();
        match thinks {
            _ if calls == CallSyntax::Harmony => Thinking::Channels,
            Some(tags) if prompt_thinks => Thinking::Open(tags),
            Some(tags) => Thinking::Optional(tags),
            None => Thinking::Never,
        }
    }

    /// Returns the control tokens that are tags of the model's format.
    pub fn spoken_tags(&self) -> &ControlTokenTags {
        self.chat.template.spoken_tags(&*self.vocab)
    }

    /// Returns the text of `tokens`; control tokens have no text.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let (mut detok, mut text) = (Detokenizer::default(), String::new());
        for &token in tokens {
            detok.push(self.vocab.piece(token), &mut text);
        }
        detok.finish(&mut text);
        text
    }

    /// Returns the offset of each of `tokens`, a prompt, in its `text`.
    pub fn scored_prompt(&self, tokens: &[TokenId], text: &str) -> ScoredPrompt {
        let (mut detok, mut decoded, mut chars) = (Detokenizer::default(), String::new(), 0);
        let mut offsets = Vec::with_capacity(tokens.len());
        let mut counted = 0;
        for &token in tokens {
            // Inside a character, where that begins: its bytes are shown when it is whole.
            offsets.push(chars);
            detok.push(self.vocab.piece(token), &mut decoded);
            chars += decoded[counted..].chars().count();
            counted = decoded.len();
        }
        let all = text.chars().count();
        // Some vocabularies put a space before a text, which is not in it.
        let added = chars.saturating_sub(all);
        offsets.iter_mut().for_each(|offset| *offset = offset.saturating_sub(added).min(all));
        ScoredPrompt { first: tokens.first().copied().unwrap_or(0), offsets, chars: all }
    }

    /// Returns the model's entry in `/v1/models`.
    pub fn card(&self) -> Value {
        let mut card = json!({
            "id": self.name, "object": "model", "created": self.created_s, "owned_by": "loquent",
            "max_model_len": self.context_tokens, "vocab_size": self.vocab.size(),
        });
        if let Some(tokens) = self.trained_context {
            // Where llama.cpp's server has it.
            card["meta"] = json!({ "n_ctx_train": tokens });
        }
        card
    }
}

/// Returns all tokens of `vocab` that end a generation.
pub fn end_tokens(vocab: &dyn Vocab) -> Vec<TokenId> {
    (0..vocab.size() as TokenId).filter(|&token| vocab.is_end(token)).collect()
}
