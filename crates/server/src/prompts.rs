//! From a request's prompts to the work of an engine: tokens, and the grammar of the answer.
//!
//! Both may take long, so that they run on [`PromptThreads`], few enough that a burst of prompts
//! leaves the engine its cores.

use std::sync::Arc;

use loquent_engine::grammar::{AnswerShape, GrammarError, Thinking, limit_thinking};
use loquent_engine::template::TemplateError;
use loquent_infer::sampling::SharedGrammar;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Encode;
use tokio::sync::Semaphore;

use crate::admission::Permit;
use crate::api::request::{BYTES_PER_TOKEN, Endpoint, Prompt, Request};
use crate::completion::logprobs::ScoredPrompt;
use crate::error::ApiError;
use crate::infill::InfillTokens;
use crate::model::ServedModel;
use crate::prompt_threads::PromptThreads;

/// A request with its prompts as tokens and its grammar compiled.
pub struct Prepared {
    /// The request itself.
    pub request: Request,
    /// Tokens of each prompt.
    pub prompts: Vec<Vec<TokenId>>,
    /// Reasoning that the answer begins with.
    pub thinking: Thinking,
    /// Grammar of the answer, if it is constrained.
    pub grammar: Option<SharedGrammar>,
    /// Texts of the prompts, if the request asks to have them repeated.
    pub echo: Vec<String>,
    /// Offsets of the prompts' tokens in these texts, if they get log-probabilities.
    pub scored: Vec<ScoredPrompt>,
}

/// Tokenizes prompts and compiles grammars for one model.
pub struct Prompts {
    model: ServedModel,
    threads: Arc<PromptThreads>,
    /// A single place: the prompts of completions wait for at most one `/tokenize` request.
    tokenize_place: Arc<Semaphore>,
}

impl Prompts {
    /// Prompts of `model`, on `threads`.
    pub fn new(model: ServedModel, threads: Arc<PromptThreads>) -> Self {
        Self { model, threads, tokenize_place: Arc::new(Semaphore::new(1)) }
    }

    /// Returns the model.
    pub fn model(&self) -> &ServedModel {
        &self.model
    }

    /// Completes a request that was parsed before its model was loaded, as the model's template
    /// requires.
    pub fn adopt(&self, request: &mut Request) {
        for prompt in &mut request.prompts {
            if let Prompt::Chat(chat) = prompt {
                for name in self.model.give_reasoning(chat) {
                    if !request.ignored.iter().any(|known| known == name) {
                        request.ignored.push(name.to_owned());
                    }
                }
            }
        }
    }

    /// Tokenizes the prompts and compiles the grammar, on a thread that may block. The permits move
    /// with the work: a client that hangs up frees no room before the work ends.
    ///
    /// # Errors
    /// 400 for prompts that the model cannot take, or a grammar that cannot be compiled.
    pub async fn prepare(
        self: &Arc<Self>,
        request: Request,
        permits: Vec<Permit>,
    ) -> Result<(Prepared, Vec<Permit>), ApiError> {
        let prompts = self.clone();
        let work = move || prompts.prepare_now(request).map(|prepared| (prepared, permits));
        self.on_thread(work).await
    }

    /// Does `work` for `/tokenize` or `/detokenize` on a thread that may block.
    ///
    /// # Errors
    /// The errors of `work`.
    pub async fn for_tokenize<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.tokenize_place.clone().acquire_owned().await;
        let prompts = self.clone();
        let work = move || {
            // The work's, not the client's, who may hang up.
            let _place = place;
            work(&prompts)
        };
        self.on_thread(work).await
    }

    /// Tokenizes `prompt` on this thread, without checking its length against the context.
    ///
    /// # Errors
    /// 400 when the model's tokenizer or chat template refuses it.
    pub fn encode(&self, prompt: Prompt, special: bool) -> Result<Vec<TokenId>, ApiError> {
        match prompt {
            Prompt::Text(text) => self.encode_text(&text, special, special),
            mut other => self.encode_prompt(&mut other, Endpoint::Chat).map(|(tokens, _)| tokens),
        }
    }

    /// Returns the text of `prompt`: a conversation as the model's template writes it.
    ///
    /// # Errors
    /// 400 when the chat template refuses it.
    pub fn render(&self, prompt: Prompt) -> Result<String, ApiError> {
        match prompt {
            Prompt::Text(text) => Ok(text),
            Prompt::Tokens(tokens) => Ok(self.model.decode(&tokens)),
            Prompt::Chat(chat) => self.model.render_chat(&chat).map_err(|error| match error {
                TemplateError::TooLong(bytes) => self.too_long(bytes, Endpoint::Chat),
                error => ApiError::invalid_param("messages", error.to_string()),
            }),
        }
    }

    /// Runs `work` on a thread that may block and recurse deeply.
    ///
    /// # Errors
    /// The errors of `work`; 500 if it panics.
    pub async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let lost = |_| ApiError::internal("Tokenizing failed. Report the prompt as a bug.");
        self.threads.run(work).await.map_err(lost)?
    }

    fn prepare_now(&self, mut request: Request) -> Result<Prepared, ApiError> {
        let (mut prompts, mut echo) = (Vec::with_capacity(request.prompts.len()), Vec::new());
        let (mut scored, scores) = (Vec::new(), request.prompt_logprobs().is_some());
        let mut thinking = Thinking::Never;
        for prompt in &mut request.prompts {
            let (tokens, thinks) = match &request.suffix {
                Some(suffix) => (self.encode_infill(prompt, suffix)?, false),
                None => self.encode_prompt(prompt, request.endpoint)?,
            };
            self.check_length(&tokens, request.endpoint)?;
            if let Prompt::Chat(_) = prompt {
                thinking = self.model.thinking(thinks);
            }
            // Here the text ends, or lives on in the answer.
            let text = prompt.take_text();
            if request.echo {
                let text = text.unwrap_or_else(|| self.model.decode(&tokens));
                if scores {
                    scored.push(self.model.scored_prompt(&tokens, &text));
                }
                echo.push(text);
            }
            prompts.push(tokens);
        }
        let grammar = self.grammar(&request, thinking)?;
        request.charge = None;
        Ok(Prepared { request, prompts, thinking, grammar, echo, scored })
    }

    fn grammar(
        &self,
        request: &Request,
        thinking: Thinking,
    ) -> Result<Option<SharedGrammar>, ApiError> {
        let grammar = match request.is_constrained() {
            true => Some(self.compile(request, thinking)?),
            false => None,
        };
        let Some((budget, name)) = request.thinking_budget() else { return Ok(grammar) };
        let limited = limit_thinking(self.model.vocab.clone(), thinking, budget, grammar);
        limited.map_err(|error| ApiError::invalid_param(name, format!("'{name}': {error}")))
    }

    fn compile(&self, request: &Request, thinking: Thinking) -> Result<SharedGrammar, ApiError> {
        let (tools, form) = (request.tools(), request.form.as_ref());
        let forced = tools.filter(|tools| tools.is_forced());
        // If the model may call a tool or answer, and the answer has a form, the grammar has
        // to allow both.
        let callable = tools.filter(|_| form.is_some() || forced.is_some());
        let shape = AnswerShape {
            form: form.filter(|_| forced.is_none()).map(|requested| requested.form.clone()),
            tools: callable.map(|tools| tools.callable.clone()).unwrap_or_default(),
            syntax: Some(self.model.call_syntax()),
            parallel: tools.is_some_and(|tools| tools.parallel),
            thinking,
        };
        let param = match (forced, form) {
            (None, Some(form)) => form.param,
            _ => "tools",
        };
        let grammar = self.model.grammars.compile(&*self.model.vocab, &shape);
        grammar.map_err(|error| match error {
            GrammarError::Vocabulary(_) => ApiError::internal(error.to_string()),
            error => ApiError::invalid_param(param, format!("'{param}': {error}")),
        })
    }

    /// Returns the tokens of a prompt, and true if it ends inside `<think>`.
    fn encode_prompt(
        &self,
        prompt: &mut Prompt,
        endpoint: Endpoint,
    ) -> Result<(Vec<TokenId>, bool), ApiError> {
        match prompt {
            Prompt::Chat(chat) => {
                let prompt = self.model.encode_chat(chat);
                let wrong = |error: TemplateError| match error {
                    // Where the template was stopped; its whole length is not known.
                    TemplateError::TooLong(bytes) => self.too_long(bytes, endpoint),
                    error => ApiError::invalid_param("messages", error.to_string()),
                };
                prompt.map(|prompt| (prompt.tokens, prompt.thinking)).map_err(wrong)
            }
            Prompt::Text(text) if text.len() > self.model.max_prompt_bytes() => {
                Err(self.too_long(text.len(), endpoint))
            }
            Prompt::Text(text) => Ok((self.encode_text(text, true, true)?, false)),
            Prompt::Tokens(tokens) => {
                let size = self.model.vocab.size();
                match tokens.iter().find(|&&token| token as usize >= size) {
                    Some(bad) => Err(ApiError::invalid_param(
                        "prompt",
                        format!("Token {bad} is outside the vocabulary of {size} tokens."),
                    )),
                    None => Ok((std::mem::take(tokens), false)),
                }
            }
        }
    }

    /// Returns the tokens of a prompt whose completion is followed by `suffix`.
    fn encode_infill(&self, prompt: &Prompt, suffix: &str) -> Result<Vec<TokenId>, ApiError> {
        let vocab = &*self.model.vocab;
        let infill = InfillTokens::of(vocab).ok_or_else(|| {
            let why =
                "'suffix': this model cannot fill in text: its vocabulary has no tokens for it.";
            ApiError::invalid_param("suffix", why)
        })?;
        let most = self.model.max_prompt_bytes();
        let before = match prompt {
            Prompt::Text(text) if text.len().saturating_add(suffix.len()) > most => {
                let bytes = text.len().saturating_add(suffix.len());
                return Err(self.too_long(bytes, Endpoint::Text));
            }
            Prompt::Text(text) => self.encode_text(text, false, false)?,
            Prompt::Tokens(_) => self.encode_prompt(&mut prompt.clone(), Endpoint::Text)?.0,
            Prompt::Chat(_) => return Err(ApiError::internal("A chat has no suffix.")),
        };
        let begin = self.encode_text("", true, false)?;
        Ok(infill.prompt(begin, &before, &self.encode_text(suffix, false, false)?))
    }

    fn encode_text(
        &self,
        text: &str,
        add_bos: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, ApiError> {
        let encoded = self.model.vocab.encode(text, Encode { add_bos, parse_special });
        encoded.map_err(|error| ApiError::invalid_param("prompt", error.to_string()))
    }

    /// Returns the error for a prompt of at least `bytes`, which must have more tokens than the
    /// context.
    fn too_long(&self, bytes: usize, endpoint: Endpoint) -> ApiError {
        let model = &self.model;
        let (most, tokens) = (model.max_prompt_bytes(), bytes.div_ceil(BYTES_PER_TOKEN) as u64);
        ApiError::context_bytes(model.context_tokens, most, tokens, prompt_param(endpoint))
    }

    fn check_length(&self, tokens: &[TokenId], endpoint: Endpoint) -> Result<(), ApiError> {
        let param = prompt_param(endpoint);
        if tokens.is_empty() {
            return Err(ApiError::invalid_param(param, "The prompt is empty."));
        }
        if tokens.len() >= self.model.context_tokens as usize {
            return Err(ApiError::context_length(self.model.context_tokens, tokens.len(), param));
        }
        Ok(())
    }
}

/// Returns the name of the prompt's parameter.
fn prompt_param(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Text => "prompt",
    }
}
