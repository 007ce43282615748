//! A loaded model as the server sees it: name, vocabulary, chat format and limits.

use std::sync::{Arc, OnceLock};

use loquent_engine::grammar::{AnswerShape, CallSyntax, Compiler, GrammarError, Thinking};
use loquent_engine::template::{
    self, Abilities, ChatPrompt, ChatTemplate, Conversation, SpokenTags, TemplateError,
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
use crate::clock::unix_time_s;
use crate::completion::logprobs::ScoredPrompt;
use crate::upstream::UnknownVocab;

/// How a conversation becomes the model's prompt.
#[derive(Debug)]
pub struct ChatFormat {
    /// The model's chat template, or ChatML if the file has none.
    pub template: ChatTemplate,
    /// Text of the begin-of-sequence token, empty where there is none.
    pub bos: String,
    /// Text of the end-of-sequence token, empty where there is none.
    pub eos: String,
}

/// Sampling parameters for requests that do not set them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    /// Temperature; 0 is greedy.
    pub temperature: f32,
    /// Samples from the k most likely tokens; 0 from all.
    pub top_k: u32,
    /// Samples from the smallest set of tokens with this total probability; 1 from all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one; 0 drops none.
    pub min_p: f32,
}

impl Default for SamplingDefaults {
    /// OpenAI's defaults: temperature 1, no cut.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

/// Name, vocabulary and limits of the model that is served.
#[derive(Clone)]
pub struct ServedModel {
    /// The name in `/v1/models` and in every answer.
    pub name: String,
    /// Tokens and their texts.
    pub vocab: Arc<dyn Vocab>,
    /// How conversations are written for it.
    pub chat: Arc<ChatFormat>,
    /// Tokens at which a generation ends.
    pub end_tokens: Vec<TokenId>,
    /// Longest sequence in tokens, prompt and completion together.
    pub context_tokens: u32,
    /// Tokens of context that the model was trained with, if its file says so. More than the server
    /// takes, or less where the user asked for that.
    pub trained_context: Option<u32>,
    /// Sampling parameters for requests that do not set them.
    pub defaults: SamplingDefaults,
    /// When the model was loaded, in Unix seconds.
    pub created_s: u64,
    /// Compiles grammars over the vocabulary.
    pub grammars: GrammarSource,
    /// What besides the above decides the tokens of an answer, as a text that is the same wherever
    /// they are: its weights and its chat template, and what computes with them how.
    pub computed_by: String,
}

/// Compiles grammars for one vocabulary. The compiler is made by the first request that needs
/// one, because it takes long for a large vocabulary and many servers never need it.
#[derive(Clone, Default)]
pub struct GrammarSource(Arc<OnceLock<Result<Compiler, GrammarError>>>);

impl GrammarSource {
    /// The grammar of `shape` over `vocab`, which must be the same at every call. Takes
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
    /// The same wherever the same request has the same answer, as far as that can be known.
    pub fn fingerprint(&self, splits_reasoning: bool) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let chat = (&self.chat.bos, &self.chat.eos);
        let model = (&self.computed_by, self.vocab.size(), &self.end_tokens, self.defaults);
        let all = format!("{version} {chat:?} {model:?} {splits_reasoning}");
        hex::encode(&Sha256::digest(all)[..8])
    }

    /// Stands for the model of an upstream server, of which only `name` is known.
    ///
    /// # Errors
    /// None in practice: the template is a constant.
    pub fn of_upstream(name: String) -> Result<Self, TemplateError> {
        let template = ChatTemplate::new(template::CHATML)?;
        Ok(Self {
            name,
            vocab: Arc::new(UnknownVocab),
            chat: Arc::new(ChatFormat { template, bos: String::new(), eos: String::new() }),
            end_tokens: Vec::new(),
            context_tokens: u32::MAX,
            trained_context: None,
            defaults: SamplingDefaults::default(),
            created_s: unix_time_s(),
            grammars: GrammarSource::default(),
            computed_by: String::new(),
        })
    }

    /// Most bytes of a prompt that may fit the context; every longer one has too many tokens.
    pub fn max_prompt_bytes(&self) -> usize {
        let longest = self.vocab.longest_token_bytes();
        longest.map_or(usize::MAX, |bytes| bytes.saturating_mul(self.context_tokens as usize))
    }

    /// The prompt of a conversation, as tokens.
    ///
    /// # Errors
    /// When the template refuses the messages, cannot be rendered, or writes a prompt that is too
    /// long to be tokenized.
    pub fn encode_chat(&self, chat: &Chat) -> Result<ChatPrompt, TemplateError> {
        let conversation = Conversation {
            messages: &chat.messages,
            tools: chat.tools.as_ref().map_or(&[], |tools| &tools.definitions),
            ending: chat.ending,
            bos_token: &self.chat.bos,
            eos_token: &self.chat.eos,
            now_unix_s: chat.dated_s.unwrap_or_else(unix_time_s) as i64,
            // Makes the marks around message texts unguessable, so that a user cannot forge a turn.
            nonce: rand::random(),
            extra: &chat.variables,
        };
        let max_bytes = self.max_prompt_bytes();
        template::encode_chat(&self.chat.template, &*self.vocab, &conversation, max_bytes)
    }

    /// The format in which the model writes tool calls, as its chat template shows.
    pub fn call_syntax(&self) -> CallSyntax {
        self.chat.template.abilities().calls
    }

    /// Gives the template what it reads of `chat`'s reasoning parameters; returns the names of
    /// those that have no effect on this model.
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
        let Abilities { thinks, calls, .. } = template.abilities();
        let can_end = thinks.is_some() && calls != CallSyntax::Harmony;
        ignored.extend(budget.map(|(_, name)| name).filter(|_| !can_end));
        ignored
    }

    /// The variable by which the template learns of `effort`; `None` if it knows no effort.
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

    /// Whether an answer begins with reasoning. `prompt_thinks`: the prompt ends inside
    /// it.
    pub fn thinking(&self, prompt_thinks: bool) -> Thinking {
        let Abilities { thinks, calls, .. } = self.chat.template.abilities();
        match thinks {
            _ if calls == CallSyntax::Harmony => Thinking::Channels,
            Some(tags) if prompt_thinks => Thinking::Open(tags),
            Some(tags) => Thinking::Optional(tags),
            None => Thinking::Never,
        }
    }

    /// The control tokens that are tags of its format.
    pub fn spoken_tags(&self) -> &SpokenTags {
        self.chat.template.spoken_tags(&*self.vocab)
    }

    /// The text of `tokens`; control tokens have no text.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let (mut detok, mut text) = (Detokenizer::default(), String::new());
        for &token in tokens {
            detok.push(self.vocab.piece(token), &mut text);
        }
        detok.finish(&mut text);
        text
    }

    /// Where each of `tokens`, a prompt, begins in its `text`.
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

    /// The model's entry in `/v1/models`.
    pub fn card(&self) -> Value {
        let SamplingDefaults { temperature, top_k, top_p, min_p } = self.defaults;
        let mut card = json!({
            "id": self.name, "object": "model", "created": self.created_s, "owned_by": "loquent",
            "max_model_len": self.context_tokens, "vocab_size": self.vocab.size(),
            "sampling_defaults": {
                "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            },
        });
        if let Some(tokens) = self.trained_context {
            // Where llama.cpp's server has it.
            card["meta"] = json!({ "n_ctx_train": tokens });
        }
        card
    }
}

/// All tokens of `vocab` that end a generation.
pub fn end_tokens(vocab: &dyn Vocab) -> Vec<TokenId> {
    (0..vocab.size() as TokenId).filter(|&token| vocab.is_end(token)).collect()
}
