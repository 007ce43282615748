//! A loaded model as the server sees it.

use std::sync::{Arc, OnceLock};

use loquent_engine::grammar::{AnswerShape, CallSyntax, Compiler, GrammarError, Thinking};
use loquent_engine::template::{self, ChatPrompt, ChatTemplate, Conversation, TemplateError};
use loquent_infer::detok::Detokenizer;
use loquent_infer::sampling::SharedGrammar;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::{Value, json};

use crate::api::request::Chat;
use crate::clock::unix_time_s;
use crate::upstream::UnknownVocab;

/// How the model wants a conversation written.
#[derive(Debug)]
pub struct ChatFormat {
    /// The model's chat template, or a fallback.
    pub template: ChatTemplate,
    /// Text of the begin-of-sequence token, empty where there is none.
    pub bos: String,
    /// Text of the end-of-sequence token, empty where there is none.
    pub eos: String,
}

/// Sampling where the request says nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
}

impl Default for SamplingDefaults {
    /// OpenAI's.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

/// Name, vocabulary and limits of the model that is served.
#[derive(Clone)]
pub struct ServedModel {
    /// As `/v1/models` and every answer name it.
    pub name: String,
    /// Its vocabulary.
    pub vocab: Arc<dyn Vocab>,
    /// Its chat format.
    pub chat: Arc<ChatFormat>,
    /// Tokens that end a generation.
    pub end_tokens: Vec<TokenId>,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Sampling where the request says nothing.
    pub defaults: SamplingDefaults,
    /// Unix time in seconds of the model's loading.
    pub created_s: u64,
    /// Compiles grammars over the vocabulary; made when the first request needs it.
    pub grammars: GrammarSource,
}

/// Grammars of a model, from the first request that asks for one on.
#[derive(Clone, Default)]
pub struct GrammarSource(Arc<OnceLock<Result<Compiler, GrammarError>>>);

impl GrammarSource {
    /// The grammar of `shape` over `vocab`, always the same one. Takes milliseconds, the
    /// first time more.
    ///
    /// # Errors
    /// [`GrammarError`].
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
    /// A stand-in for the model of another server, of which only `name` is known.
    ///
    /// # Errors
    /// Never, as its template is constant.
    pub fn of_upstream(name: String) -> Result<Self, TemplateError> {
        let template = ChatTemplate::new(template::CHATML)?;
        Ok(Self {
            name,
            vocab: Arc::new(UnknownVocab),
            chat: Arc::new(ChatFormat { template, bos: String::new(), eos: String::new() }),
            end_tokens: Vec::new(),
            context_tokens: u32::MAX,
            defaults: SamplingDefaults::default(),
            created_s: unix_time_s(),
            grammars: GrammarSource::default(),
        })
    }

    /// A conversation as the model reads it.
    ///
    /// # Errors
    /// What is wrong with the messages, or with the template.
    pub fn encode_chat(&self, chat: &Chat) -> Result<ChatPrompt, TemplateError> {
        let conversation = Conversation {
            messages: &chat.messages,
            tools: chat.tools.as_ref().map_or(&[], |tools| &tools.definitions),
            add_generation_prompt: true,
            bos_token: &self.chat.bos,
            eos_token: &self.chat.eos,
            now_unix_s: unix_time_s() as i64,
            nonce: rand::random(),
            extra: &chat.variables,
        };
        template::encode_chat(&self.chat.template, &*self.vocab, &conversation)
    }

    /// How the model writes calls of tools.
    pub fn call_syntax(&self) -> CallSyntax {
        match self.chat.template.abilities().bare_calls {
            true => CallSyntax::Bare,
            false => CallSyntax::Tagged,
        }
    }

    /// What an answer to a prompt that ends inside `<think>`, or not, begins with.
    pub fn thinking(&self, prompt_thinks: bool) -> Thinking {
        match (prompt_thinks, self.chat.template.abilities().thinks) {
            (true, _) => Thinking::Open,
            (false, true) => Thinking::Optional,
            (false, false) => Thinking::Never,
        }
    }

    /// The text of `tokens`; control tokens have none.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let (mut detok, mut text) = (Detokenizer::default(), String::new());
        for &token in tokens {
            detok.push(self.vocab.piece(token), &mut text);
        }
        detok.finish(&mut text);
        text
    }

    /// The model in `/v1/models`.
    pub fn card(&self) -> Value {
        json!({
            "id": self.name, "object": "model", "created": self.created_s, "owned_by": "loquent",
            "max_model_len": self.context_tokens, "vocab_size": self.vocab.size(),
        })
    }
}

/// All tokens of `vocab` that end a generation.
pub fn end_tokens(vocab: &dyn Vocab) -> Vec<TokenId> {
    (0..vocab.size() as TokenId).filter(|&token| vocab.is_end(token)).collect()
}
