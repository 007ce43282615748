//! From a request's prompts to the work of an engine: tokens, and the grammar of the answer.
//!
//! Both may take long, so that they run on [`PromptThreads`], few enough that a burst of prompts
//! leaves the engine its cores.

use std::collections::BTreeMap;
use std::sync::Arc;

use loquent_formats::grammar::{AnswerShape, GrammarError, Thinking, limit_thinking};
use loquent_formats::template::TemplateError;
use loquent_infer::sampling::SharedGrammar;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, encode_within};

use crate::admission::Permit;
use crate::api::request::{
    BYTES_PER_TOKEN, Endpoint, MAX_BIASES, Prompt, PromptPart, Request, SamplingParams,
};
use crate::completion::logprobs::ScoredPrompt;
use crate::error::{ApiError, LimitedRate};
use crate::infill::InfillTokens;
use crate::model::ServedModel;
use crate::prompt_threads::{PromptThreadError, PromptThreads, WorkClass};

/// `Retry-After` in seconds when too many prompts wait.
const BUSY_RETRY_S: u64 = 1;

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
}

impl Prompts {
    /// Prompts of `model`, on `threads`.
    pub fn new(model: ServedModel, threads: Arc<PromptThreads>) -> Self {
        Self { model, threads }
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
    /// 400 for prompts that the model cannot take, or a grammar that cannot be compiled, 429 when
    /// too many of this tenant wait.
    pub async fn prepare(
        self: &Arc<Self>,
        request: Request,
        permits: Vec<Permit>,
    ) -> Result<(Prepared, Vec<Permit>), ApiError> {
        let prompts = self.clone();
        let class = match request.is_constrained() {
            // A short grammar may take as long as a long one.
            true => WorkClass::long(&request.identity),
            false => WorkClass::of_bytes(&request.identity, request.prompt_bytes()),
        };
        let work = move || prompts.prepare_now(request).map(|prepared| (prepared, permits));
        self.on_thread(class, work).await
    }

    /// Does `work` for `/tokenize` or `/detokenize` on a thread that may block.
    ///
    /// # Errors
    /// The errors of `work`; 429 when too many of this tenant wait.
    pub async fn for_tokenize<T: Send + 'static>(
        self: &Arc<Self>,
        class: WorkClass,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let prompts = self.clone();
        self.on_thread(class, move || work(&prompts)).await
    }

    /// Tokenizes `prompt` on this thread, without checking its length against the context.
    ///
    /// # Errors
    /// 400 when the model's tokenizer or chat template refuses it.
    pub fn encode(&self, prompt: Prompt, how: Encode) -> Result<Vec<TokenId>, ApiError> {
        match prompt {
            Prompt::Text(text) => self.encode_text(&text, how),
            mut other => {
                let (tokens, _) = self.encode_prompt(&mut other, Endpoint::Chat, usize::MAX)?;
                Ok(tokens)
            }
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
            Prompt::Parts(parts) => {
                let tokens = self.encode_parts(&parts, usize::MAX, Endpoint::Text)?;
                Ok(self.model.decode(&tokens))
            }
            Prompt::Chat(chat) => self.model.render_chat(&chat).map_err(|error| match error {
                TemplateError::TooLong(bytes) => self.too_long(bytes, Endpoint::Chat),
                error => ApiError::invalid_param("messages", error.to_string()),
            }),
        }
    }

    /// Runs `work` on a thread that may block and recurse deeply.
    ///
    /// # Errors
    /// The errors of `work`; 429 when too many of this tenant wait, 500 if it panics.
    pub async fn on_thread<T: Send + 'static>(
        &self,
        class: WorkClass,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed = |error| match error {
            PromptThreadError::Lost => {
                ApiError::internal("Tokenizing failed. Report the prompt as a bug.")
            }
            busy @ PromptThreadError::Busy(_) => {
                let message = format!("Too many requests at once: {busy}. Try again later.");
                ApiError::rate_limited(message, LimitedRate::Requests, BUSY_RETRY_S)
            }
        };
        self.threads.run(class, work).await.map_err(failed)?
    }

    fn prepare_now(&self, mut request: Request) -> Result<Prepared, ApiError> {
        let (mut prompts, mut echo) = (Vec::with_capacity(request.prompts.len()), Vec::new());
        let (mut scored, scores) = (Vec::new(), request.prompt_logprobs().is_some());
        let mut thinking = Thinking::Never;
        let most = self.model.context_tokens as usize;
        for prompt in &mut request.prompts {
            let (tokens, thinks) = match &request.suffix {
                Some(suffix) => (self.encode_infill(prompt, suffix)?, false),
                None => self.encode_prompt(prompt, request.endpoint, most)?,
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
        self.resolve_text_bias(&mut request.sampling)?;
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

    /// Returns the tokens of a prompt, and true if it ends inside `<think>`. Tokenizing stops once
    /// they surely are more than `most`.
    fn encode_prompt(
        &self,
        prompt: &mut Prompt,
        endpoint: Endpoint,
        most: usize,
    ) -> Result<(Vec<TokenId>, bool), ApiError> {
        match prompt {
            Prompt::Chat(chat) => {
                let prompt = self.model.encode_chat(chat, most);
                let wrong = |error: TemplateError| match error {
                    // Where the template was stopped; its whole length is not known.
                    TemplateError::TooLong(bytes) => self.too_long(bytes, endpoint),
                    TemplateError::TooManyTokens(_) => self.too_many(endpoint),
                    error => ApiError::invalid_param("messages", error.to_string()),
                };
                prompt.map(|prompt| (prompt.tokens, prompt.thinking)).map_err(wrong)
            }
            Prompt::Text(text) if text.len() > self.model.max_prompt_bytes() => {
                Err(self.too_long(text.len(), endpoint))
            }
            Prompt::Text(text) => {
                Ok((self.encode_part(text, Encode::PROMPT, most, endpoint)?, false))
            }
            Prompt::Tokens(tokens) => {
                self.check_known(tokens)?;
                Ok((std::mem::take(tokens), false))
            }
            Prompt::Parts(parts) => Ok((self.encode_parts(parts, most, endpoint)?, false)),
        }
    }

    /// Returns the tokens of a prompt that mixes texts and token ids. A text at its beginning gets
    /// the begin-of-sequence token.
    fn encode_parts(
        &self,
        parts: &[PromptPart],
        most: usize,
        endpoint: Endpoint,
    ) -> Result<Vec<TokenId>, ApiError> {
        let mut tokens = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            match part {
                PromptPart::Text(text) if text.len() > self.model.max_prompt_bytes() => {
                    return Err(self.too_long(text.len(), endpoint));
                }
                PromptPart::Text(text) => {
                    // Only the prompt's beginning is a sequence's.
                    let how = Encode { add_bos: at == 0, parse_special: true };
                    let room = most.saturating_sub(tokens.len());
                    tokens.extend(self.encode_part(text, how, room, endpoint)?);
                }
                PromptPart::Tokens(ids) => {
                    self.check_known(ids)?;
                    tokens.extend(ids);
                }
            }
        }
        Ok(tokens)
    }

    fn check_known(&self, tokens: &[TokenId]) -> Result<(), ApiError> {
        let size = self.model.vocab.size();
        let unknown = tokens.iter().find(|&&token| token as usize >= size);
        unknown.map_or(Ok(()), |unknown| {
            let message = format!("Token {unknown} is outside the vocabulary of {size} tokens.");
            Err(ApiError::invalid_param("prompt", message))
        })
    }

    /// Adds the biases of texts to those of tokens: each token of a text gets the text's.
    fn resolve_text_bias(&self, sampling: &mut SamplingParams) -> Result<(), ApiError> {
        let texts = std::mem::take(&mut sampling.text_bias);
        if texts.is_empty() {
            return Ok(());
        }
        let mut all: BTreeMap<TokenId, f32> = sampling.logit_bias.iter().copied().collect();
        for (text, bias) in texts {
            let how = Encode { add_bos: false, parse_special: true };
            all.extend(self.encode_text(&text, how)?.into_iter().map(|token| (token, bias)));
        }
        if all.len() > MAX_BIASES {
            let message = format!("The texts of 'logit_bias' have more than {MAX_BIASES} tokens.");
            return Err(ApiError::invalid_param("logit_bias", message));
        }
        sampling.logit_bias = all.into_iter().collect();
        Ok(())
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
        let context = self.model.context_tokens as usize;
        let how = Encode { add_bos: false, parse_special: false };
        let before = match prompt {
            Prompt::Text(text) if text.len().saturating_add(suffix.len()) > most => {
                let bytes = text.len().saturating_add(suffix.len());
                return Err(self.too_long(bytes, Endpoint::Text));
            }
            Prompt::Text(text) => self.encode_part(text, how, context, Endpoint::Text)?,
            Prompt::Tokens(_) | Prompt::Parts(_) => {
                self.encode_prompt(&mut prompt.clone(), Endpoint::Text, context)?.0
            }
            Prompt::Chat(_) => return Err(ApiError::internal("A chat has no suffix.")),
        };
        let begin = self.encode_text("", Encode { add_bos: true, ..how })?;
        let after = self.encode_part(suffix, how, context, Endpoint::Text)?;
        Ok(infill.prompt(begin, &before, &after))
    }

    /// Tokenizes a text of a prompt, of which no more than `most` tokens fit.
    fn encode_part(
        &self,
        text: &str,
        how: Encode,
        most: usize,
        endpoint: Endpoint,
    ) -> Result<Vec<TokenId>, ApiError> {
        let encoded = encode_within(&*self.model.vocab, text, how, most);
        let encoded = encoded.map_err(|error| encode_error(&error))?;
        encoded.ok_or_else(|| self.too_many(endpoint))
    }

    fn encode_text(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, ApiError> {
        self.model.vocab.encode(text, how).map_err(|error| encode_error(&error))
    }

    /// Returns the error for a prompt that was not tokenized to its end.
    fn too_many(&self, endpoint: Endpoint) -> ApiError {
        ApiError::context_exceeded(self.model.context_tokens, prompt_param(endpoint))
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

fn encode_error(error: &EncodeError) -> ApiError {
    ApiError::invalid_param("prompt", error.to_string())
}

/// Returns the name of the prompt's parameter.
fn prompt_param(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Text => "prompt",
    }
}
