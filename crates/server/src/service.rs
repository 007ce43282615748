//! From a valid request to an active one: admit, tokenize, submit to the engine.

mod begin;
mod embedding;

pub use begin::admitted_request;
pub use embedding::Embedded;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::Response;
use http::HeaderValue;
use http::request::Parts;
use loquent_engine::grammar::{AnswerShape, GrammarError, Thinking, limit_thinking};
use loquent_engine::template::{SpokenTags, TemplateError};
use loquent_infer::admission::Refusal;
use loquent_infer::remote::RemoteStages;
use loquent_infer::request::{Tag, Work};
use loquent_infer::runner::RunnerAbilities;
use loquent_infer::sampling::{Sampling, SharedGrammar};
use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, Vocab};
use loquent_proto::coalesce::StreamInterval;
use tokio::sync::Semaphore;

use crate::active_request::{ActiveRequest, AdmittedRequest, FlushSource, Observers};
use crate::admission::{AdmissionGate, Permit};
use crate::api::fields::Fields;
use crate::api::head::AnswerHead;
use crate::api::request::{Endpoint, Prompt, Request, SamplingParams};
use crate::auth::authorization;
use crate::body::RequestBodies;
use crate::cache_domain::CacheDomains;
use crate::clock::{Clock, unix_time_s};
use crate::completion::logprobs::ScoredPrompt;
use crate::completion::reader::{CallConfig, SplitConfig};
use crate::completion::{Completion, CompletionConfig, LogprobConfig};
use crate::engine_watch::EngineWatch;
use crate::error::{ApiError, LimitedRate};
use crate::identity::Identity;
use crate::infill::InfillTokens;
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::otel::Telemetry;
use crate::output::{NewCompletion, OutputHandle, ProgressWish, SHUTDOWN};
use crate::prompt_threads::PromptThreads;
use crate::request_log::{RequestId, RequestLog};
use crate::trace_context::TraceParent;
use crate::upstream::{self, Upstream, UpstreamAnswer};

/// `Retry-After` in seconds while the server shuts down.
const DRAIN_RETRY_S: u64 = 5;

/// Settings for serving requests.
#[derive(Debug, Clone)]
pub struct ServingConfig {
    /// Stream interval of requests that do not set one.
    pub interval: StreamInterval,
    /// Maximum time tokens wait to be merged with later ones; `None` sets no limit.
    pub max_delay: Option<Duration>,
    /// True if a request for another model is an error. Otherwise this model answers it.
    pub strict_model: bool,
    /// True if all clients may reuse each other's cached prefixes; otherwise only their own.
    pub share_prefix_cache: bool,
    /// True if `<think>…</think>` is returned as `reasoning_content` instead of text.
    pub split_reasoning: bool,
    /// True if every stream ends with its token counts, even without `include_usage`.
    pub force_usage: bool,
}

/// A request with its prompts as tokens and its grammar compiled.
struct Prepared {
    request: Request,
    prompts: Vec<Vec<TokenId>>,
    thinking: Thinking,
    grammar: Option<SharedGrammar>,
    /// Texts of the prompts, if the request asks to have them repeated.
    echo: Vec<String>,
    /// Offsets of the prompts' tokens in these texts, if they get log-probabilities.
    scored: Vec<ScoredPrompt>,
}

/// Source of the answers.
#[derive(Clone)]
pub enum Backend {
    /// The built-in engine.
    Engine {
        /// Converts the engine's tokens to flushes.
        output: OutputHandle,
        /// The stages of a split model.
        stages: Option<Arc<dyn RemoteStages>>,
        /// Health of the engine.
        watch: EngineWatch,
        /// Capabilities of the engine.
        abilities: RunnerAbilities,
    },
    /// Another server.
    Upstream(Arc<Upstream>),
}

/// Settings and services that a service shares with the surrounding server.
pub struct ServiceContext {
    /// Limits the requests.
    pub gate: AdmissionGate,
    /// Threads that tokenize prompts and compile grammars.
    pub prompt_threads: Arc<PromptThreads>,
    /// Settings for serving requests.
    pub config: ServingConfig,
    /// Clock of this server.
    pub clock: Clock,
    /// Counters exported by `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Exporter of requests' spans, if any.
    pub telemetry: Option<Arc<Telemetry>>,
    /// Log of finished requests.
    pub request_log: RequestLog,
}

/// A loaded model in service.
pub struct Service {
    model: ServedModel,
    backend: Backend,
    gate: AdmissionGate,
    /// Threads for prompts, few enough that a burst of prompts leaves the engine its cores.
    prompt_threads: Arc<PromptThreads>,
    /// A single place: the prompts of completions wait for at most one `/tokenize` request.
    tokenize_place: Arc<Semaphore>,
    cache_domains: CacheDomains,
    /// Equal wherever the same requests have the same answers.
    fingerprint: String,
    config: ServingConfig,
    clock: Clock,
    metrics: Arc<Metrics>,
    telemetry: Option<Arc<Telemetry>>,
    request_log: RequestLog,
    /// True once the server shuts down.
    draining: AtomicBool,
}

/// A request whose answer has begun.
pub struct StartedAnswer {
    /// Source of the answer's flushes.
    pub active: ActiveRequest,
    /// Texts of the prompts if the request asks to have them repeated, otherwise empty.
    pub echo: Vec<String>,
    /// Names of the request's parameters without effect, separated by commas.
    pub ignored: String,
    /// Vocabulary of the answer's tokens.
    pub vocab: Arc<dyn Vocab>,
}

/// Result of answering a request.
pub enum Answer {
    /// Flushes, for a stream or for one body.
    Started(Box<StartedAnswer>),
    /// An upstream server's response, passed on unread.
    PassedOn(Response),
}

/// Sender of a request, with the relevant headers.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Identity of the sender; by default this process itself.
    pub identity: Identity,
    /// The `Authorization` header, for an upstream server.
    pub authorization: Option<HeaderValue>,
    /// The caller's trace context.
    pub trace_parent: Option<TraceParent>,
    /// Id of the request in the log.
    pub request_id: Option<RequestId>,
}

impl Caller {
    /// Extracts the caller from the head of an authorized request.
    pub fn of(head: &Parts) -> Self {
        Self {
            identity: head.extensions.get().cloned().unwrap_or_default(),
            authorization: authorization(&head.headers),
            trace_parent: TraceParent::from_headers(&head.headers),
            request_id: head.extensions.get().cloned(),
        }
    }
}

impl Service {
    /// Creates a service that answers with `backend`.
    pub fn new(model: ServedModel, backend: Backend, context: ServiceContext) -> Self {
        let fingerprint = match &backend {
            Backend::Engine { .. } => model.fingerprint(context.config.split_reasoning),
            Backend::Upstream(_) => String::new(),
        };
        Self {
            model,
            backend,
            fingerprint,
            gate: context.gate,
            prompt_threads: context.prompt_threads,
            tokenize_place: Arc::new(Semaphore::new(1)),
            cache_domains: CacheDomains::new(context.config.share_prefix_cache),
            config: context.config,
            clock: context.clock,
            metrics: context.metrics,
            telemetry: context.telemetry,
            request_log: context.request_log,
            draining: AtomicBool::new(false),
        }
    }

    /// Returns a text that is equal wherever the same requests have the same answers; empty if that
    /// is unknown.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the model that answers.
    pub fn model(&self) -> &ServedModel {
        &self.model
    }

    /// Returns the clock of arrival times.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the metrics of its requests.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the exporter of requests' spans; `None` without a collector.
    pub fn telemetry(&self) -> Option<Arc<Telemetry>> {
        self.telemetry.clone()
    }

    /// Returns the number of completions running or waiting.
    pub fn in_flight(&self) -> usize {
        self.gate.in_flight()
    }

    /// Returns the gate that admits its requests.
    pub fn gate(&self) -> &AdmissionGate {
        &self.gate
    }

    /// Returns the health of its engine; `None` with an upstream server.
    pub fn engine_watch(&self) -> Option<EngineWatch> {
        match &self.backend {
            Backend::Engine { watch, .. } => Some(watch.clone()),
            Backend::Upstream(_) => None,
        }
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Checks that new requests are accepted.
    ///
    /// # Errors
    /// 503 while the server drains, after the engine has failed, or while the engine's process or
    /// the stages of a split model are lost.
    pub fn ready(&self) -> Result<(), ApiError> {
        self.alive()?;
        self.check_draining()?;
        self.outage().map_or(Ok(()), |why| Err(ApiError::engine_away(&why)))
    }

    /// Returns why nothing can be computed at present; `None` while the engine works, or if it has
    /// failed for good.
    pub fn outage(&self) -> Option<String> {
        match &self.backend {
            Backend::Engine { stages, watch, .. } => {
                let stages = stages.as_ref().and_then(|stages| stages.outage());
                stages.or_else(|| watch.outage().map(|outage| outage.why.to_string()))
            }
            Backend::Upstream(_) => None,
        }
    }

    /// Checks that requests may wait for a lost engine. They wait like the active answers, and as
    /// long: the engine's process returns within seconds, and an operator restarts lost stages.
    fn check_outage(&self) -> Result<(), ApiError> {
        let Backend::Engine { watch, .. } = &self.backend else { return Ok(()) };
        match watch.outage() {
            Some(outage) if outage.is_given_up => Err(ApiError::engine_away(&outage.why)),
            _ => Ok(()),
        }
    }

    /// Checks that the engine works, or may work again without a restart.
    ///
    /// # Errors
    /// 503 after the engine has failed.
    pub fn alive(&self) -> Result<(), ApiError> {
        match self.failure() {
            None => Ok(()),
            Some(_) => {
                let message = "The engine has failed. The server ends, and must be started again.";
                Err(ApiError::unavailable(message, DRAIN_RETRY_S))
            }
        }
    }

    /// Returns why the engine failed; `None` if it has not.
    pub fn failure(&self) -> Option<Arc<str>> {
        match &self.backend {
            Backend::Engine { watch, .. } => watch.failure(),
            Backend::Upstream(_) => None,
        }
    }

    /// Waits until the engine fails; never resolves if it does not.
    pub async fn failed(&self) -> Arc<str> {
        if let Backend::Engine { watch, .. } = &self.backend
            && let Some(why) = watch.failed().await
        {
            return why;
        }
        std::future::pending().await
    }

    /// Checks that a request would be admitted, as far as possible without its body.
    ///
    /// # Errors
    /// 429 if the limits are reached, 503 while no requests are accepted.
    pub fn check_room(&self) -> Result<(), ApiError> {
        self.check_open()?;
        self.gate.check_room().map_err(refused)
    }

    /// Checks that requests are accepted, even if they have to wait for the engine.
    fn check_open(&self) -> Result<(), ApiError> {
        self.alive()?;
        self.check_draining()?;
        self.check_outage()
    }

    fn check_draining(&self) -> Result<(), ApiError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("The server is shutting down.", DRAIN_RETRY_S));
        }
        Ok(())
    }

    /// Parses a request's JSON for the backend that will answer it.
    ///
    /// # Errors
    /// 400 with the name of the first invalid parameter.
    pub fn parse(
        &self,
        endpoint: Endpoint,
        fields: Fields,
        caller: Caller,
    ) -> Result<Request, ApiError> {
        match &self.backend {
            Backend::Engine { .. } => {
                let mut request = read_for_engine(endpoint, fields, caller, &self.config)?;
                self.adopt(&mut request);
                Ok(request)
            }
            Backend::Upstream(_) => {
                let key = caller.authorization.clone();
                let request = upstream::read_request(endpoint, fields, key)?;
                Ok(of_caller(request, caller, &self.config))
            }
        }
    }

    /// Answers `request`, which was received over HTTP with `head` at `arrived`. An upstream
    /// server's response is parsed with the memory and workers of `bodies`.
    ///
    /// # Errors
    /// The errors of [`Self::start`]; 502 when an upstream server cannot be reached.
    pub async fn answer(
        self: &Arc<Self>,
        request: Request,
        arrived: Duration,
        head: &Parts,
        bodies: &RequestBodies,
    ) -> Result<Answer, ApiError> {
        if let (Backend::Upstream(upstream), None) = (&self.backend, request.stream) {
            // Without a stream there is nothing to deliver: the upstream's response passes
            // through byte by byte, and only admission counts it.
            let target = upstream.admit(&head.method, &head.uri)?;
            let permits = self.admit_request(&request)?;
            let answered = upstream.answer_whole(target, &head.headers, &request, permits);
            let response = answered.await?;
            let splits = self.config.split_reasoning && request.endpoint == Endpoint::Chat;
            return Ok(Answer::PassedOn(match splits {
                true => upstream::whole::split_reasoning(response, bodies).await?,
                false => response,
            }));
        }
        let started = self.start(request, arrived).await?;
        Ok(Answer::Started(Box::new(started)))
    }

    /// Starts to answer `request`, which arrived at `arrived` on the server's clock.
    ///
    /// # Errors
    /// 404 for another model under `strict_model`, 429 if the limits are reached, 503 while
    /// draining, 400 for prompts that the model cannot take; from an upstream, 502 and its own
    /// errors.
    pub async fn start(
        self: &Arc<Self>,
        request: Request,
        arrived: Duration,
    ) -> Result<StartedAnswer, ApiError> {
        self.check_open()?;
        let ignored = request.ignored_names();
        let (active, echo) = match &self.backend {
            Backend::Engine { output, abilities, .. } => {
                self.check_able(*abilities, &request)?;
                self.generate(output, request, arrived).await?
            }
            Backend::Upstream(upstream) => {
                (self.relay(upstream, request, arrived).await?, Vec::new())
            }
        };
        Ok(StartedAnswer { active, echo, ignored, vocab: self.model.vocab.clone() })
    }

    /// Returns the stages of a split model; `None` if all layers are in this process, or with an
    /// upstream server.
    pub fn stages(&self) -> Option<&Arc<dyn RemoteStages>> {
        match &self.backend {
            Backend::Engine { stages, .. } => stages.as_ref(),
            Backend::Upstream(_) => None,
        }
    }

    /// Returns the upstream server; `None` with the built-in engine.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match &self.backend {
            Backend::Engine { .. } => None,
            Backend::Upstream(upstream) => Some(upstream),
        }
    }

    /// Ends all streams with an error, and lets the engine stop.
    pub fn stop(&self) {
        match &self.backend {
            Backend::Engine { output, watch, .. } => {
                watch.expect_end();
                output.stop(SHUTDOWN);
            }
            Backend::Upstream(upstream) => upstream.stop(),
        }
    }

    /// Returns permits for the completions of `request`.
    fn admit_request(&self, request: &Request) -> Result<Vec<Permit>, ApiError> {
        let completions = match self.backend {
            Backend::Engine { .. } => request.choices(),
            Backend::Upstream(_) => request.n as usize,
        };
        self.admit(&request.identity, completions, request.estimated_prompt_tokens())
    }

    /// Returns permits for `completions` of a request from `identity`, whose prompts have about
    /// `prompt_tokens`.
    ///
    /// # Errors
    /// 429 if the limits are reached, 503 while draining; 400 for more completions than the client
    /// may ever have.
    pub fn admit(
        &self,
        identity: &Identity,
        completions: usize,
        prompt_tokens: u64,
    ) -> Result<Vec<Permit>, ApiError> {
        self.check_draining()?;
        self.gate.enter(identity, completions, prompt_tokens).map_err(refused)
    }

    fn observers(&self) -> Observers {
        Observers {
            metrics: self.metrics.clone(),
            clock: self.clock,
            telemetry: self.telemetry.clone(),
            request_log: self.request_log.clone(),
        }
    }

    /// Starts an answer from an upstream server.
    async fn relay(
        &self,
        upstream: &Arc<Upstream>,
        request: Request,
        arrived: Duration,
    ) -> Result<ActiveRequest, ApiError> {
        let permits = self.admit_request(&request)?;
        let accepted = self.clock.now();
        let interval = request.interval.unwrap_or(self.config.interval);
        let UpstreamAnswer { flushes, envelope, span } =
            upstream.stream(&request, interval, permits, arrived).await?;
        let own = self.head(request.endpoint);
        let admitted = AdmittedRequest {
            head: AnswerHead {
                endpoint: request.endpoint,
                id: envelope.id.unwrap_or(own.id),
                model: envelope.model.or(request.model).unwrap_or(own.model),
                created_s: envelope.created_s.unwrap_or(own.created_s),
                fingerprint: envelope.fingerprint,
            },
            stream: request.stream.unwrap_or_default(),
            // The upstream knows the prompts' lengths, and reports them with its counts.
            prompt_tokens: vec![0; request.n as usize],
            n: request.n as usize,
            arrived,
            accepted,
            tokenized: accepted,
            trace_parent: request.trace_parent,
            span,
            id: request.id,
            key: request.identity.key,
        };
        Ok(ActiveRequest::new(admitted, FlushSource::Upstream(flushes), self.observers()))
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
        let service = self.clone();
        let work = move || {
            // The work's, not the client's, who may hang up.
            let _place = place;
            work(&service)
        };
        self.on_prompt_thread(work).await
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

    /// Returns true if the model generates text. Assumed of an upstream server.
    pub fn generates(&self) -> bool {
        match &self.backend {
            Backend::Engine { abilities, .. } => abilities.generates,
            Backend::Upstream(_) => true,
        }
    }

    fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if self.config.strict_model && asked != self.model.name => {
                Err(ApiError::model_not_found(asked, [self.model.name.as_str()]))
            }
            _ => Ok(()),
        }
    }

    /// Tokenizes the prompts and compiles the grammar, on a thread that may block. The permits move
    /// with the work: a client that hangs up frees no room before the work ends.
    async fn prepare(
        self: &Arc<Self>,
        request: Request,
        permits: Vec<Permit>,
    ) -> Result<(Prepared, Vec<Permit>), ApiError> {
        let service = self.clone();
        let work = move || service.prepare_now(request).map(|prepared| (prepared, permits));
        self.on_prompt_thread(work).await
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

    /// Runs `work` on a thread that may block and recurse deeply.
    async fn on_prompt_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let lost = |_| ApiError::internal("Tokenizing failed. Report the prompt as a bug.");
        self.prompt_threads.run(work).await.map_err(lost)?
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
                    TemplateError::TooLong(bytes) => self.too_long(bytes, endpoint),
                    error => ApiError::invalid_param("messages", error.to_string()),
                };
                prompt.map(|prompt| (prompt.tokens, prompt.thinking)).map_err(wrong)
            }
            Prompt::Text(text) if text.len() > self.model.max_prompt_bytes() => {
                Err(self.too_long(self.model.max_prompt_bytes(), endpoint))
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
                return Err(self.too_long(most, Endpoint::Text));
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

    /// Returns the error for a prompt of more than `bytes`, which must have more tokens than the
    /// context.
    fn too_long(&self, bytes: usize, endpoint: Endpoint) -> ApiError {
        ApiError::context_bytes(self.model.context_tokens, bytes, prompt_param(endpoint))
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

    fn completions(
        &self,
        prepared: &Prepared,
        permits: Vec<Permit>,
    ) -> Result<Vec<NewCompletion>, ApiError> {
        let Prepared { request, prompts, .. } = prepared;
        let n = request.n as usize;
        let split = self.split_config(prepared);
        let mut completions = Vec::with_capacity(permits.len());
        for (index, mut permit) in permits.into_iter().enumerate() {
            let prompt = &prompts[index / n];
            permit.enqueue(prompt.len()).map_err(refused)?;
            // Completions of one prompt share it, and it is charged once.
            if index.is_multiple_of(n) {
                permit.charge_prompt(prompt.len() as u64);
            }
            let calls = request.call_ids.map(|ids| ids.wrapping_add(index as u64));
            let config = self.completion_config(prepared, index / n, split.for_completion(calls));
            let completion = Completion::new(index as u32, self.model.vocab.clone(), config);
            completions.push(NewCompletion {
                completion,
                work: Box::new(self.work(prepared, index)),
                permit,
                // A resumable answer has a reader grace period of its own, and may have no reader.
                exempt_from_stall_limit: request.resumable,
                progress: progress_wish(request, index),
            });
        }
        Ok(completions)
    }

    /// Returns the engine's work for completion `index`.
    fn work(&self, prepared: &Prepared, index: usize) -> Work {
        let Prepared { request, prompts, .. } = prepared;
        let prompt = &prompts[index / request.n as usize];
        let context = request.context_limit.unwrap_or(u32::MAX).min(self.model.context_tokens);
        let room = context.saturating_sub(prompt.len() as u32);
        Work {
            // The output processor assigns the tag when it knows the completion's index.
            tag: Tag(0),
            prompt: prompt.clone(),
            // More than the context holds is cut instead of refused: clients send huge limits.
            max_tokens: request.max_tokens.unwrap_or(u32::MAX).min(room),
            sampling: Sampling {
                grammar: prepared.grammar.clone(),
                ..self.sampling(&request.sampling, index as u64)
            },
            score_prompt: request.prompt_logprobs(),
            priority: request.priority,
            tenant: request.identity.scheduled(),
            cache_domain: self
                .cache_domains
                .of_request(&request.identity, request.cache_salt.as_deref()),
        }
    }

    /// Returns the configuration by which the tokens of a completion of prompt `prompt` become
    /// flushes.
    fn completion_config(
        &self,
        prepared: &Prepared,
        prompt: usize,
        split: SplitConfig,
    ) -> CompletionConfig {
        let request = &prepared.request;
        CompletionConfig {
            stops: request.stop.clone(),
            interval: request.interval.unwrap_or(self.config.interval),
            max_delay: self.config.max_delay,
            timings: request.stream.is_some_and(|stream| stream.include_timings),
            split,
            logprobs: LogprobConfig {
                prompt: prepared.scored.get(prompt).cloned(),
                only_prompt: request.max_tokens == Some(0),
                // A chat's entries join to its text; a plain completion has one for each of its
                // tokens, as OpenAI's has.
                keeps_end: request.endpoint == Endpoint::Text,
            },
            names_stop: request.include_stop_reason.then_some(request.endpoint),
        }
    }

    /// Returns the configuration by which an answer's text is split into reasoning, tool calls and
    /// content.
    fn split_config(&self, prepared: &Prepared) -> SplitConfig {
        let calls = prepared.request.tools().map(|tools| CallConfig {
            syntax: self.model.call_syntax(),
            tools: tools.callable.clone().into(),
            id: 0,
        });
        let splits = self.config.split_reasoning;
        let thinking = match prepared.thinking {
            // All of such an answer is in messages, with reasoning in its text or not.
            Thinking::Channels => Thinking::Channels,
            thinking if splits => thinking,
            _ => Thinking::Never,
        };
        let config =
            SplitConfig { thinking, calls, keeps_reasoning: !splits, ..SplitConfig::none() };
        if !config.is_needed() {
            return config;
        }
        let SpokenTags { thinking, all } = self.model.spoken_tags().clone();
        let has_calls = config.calls.is_some() || prepared.thinking == Thinking::Channels;
        SplitConfig { spoken: if has_calls { all } else { thinking }, ..config }
    }

    /// Returns the request's sampling parameters, completed by the model's defaults. Each
    /// completion has a different seed, or all `n` would be the same text.
    fn sampling(&self, params: &SamplingParams, index: u64) -> Sampling {
        let defaults = &self.model.defaults;
        let seed = params.seed.unwrap_or_else(rand::random);
        Sampling {
            temperature: params.temperature.unwrap_or(defaults.temperature),
            top_k: params.top_k.unwrap_or(defaults.top_k),
            top_p: params.top_p.unwrap_or(defaults.top_p),
            min_p: params.min_p.unwrap_or(defaults.min_p),
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty.unwrap_or(1.0),
            // Counted on from one seed: the i-th completion is the same whatever `n` is.
            seed: seed.wrapping_add(index),
            logit_bias: params.logit_bias.clone(),
            logprobs: params.logprobs,
            forbidden: if params.ignore_eos { self.model.end_tokens.clone() } else { Vec::new() },
            grammar: None,
        }
    }

    fn head(&self, endpoint: Endpoint) -> AnswerHead {
        answer_head(endpoint, self.model.name.clone())
    }
}

/// Creates the head of a new answer of `model`.
pub fn answer_head(endpoint: Endpoint, model: String) -> AnswerHead {
    let prefix = match endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Text => "cmpl",
    };
    AnswerHead {
        endpoint,
        id: format!("{prefix}-{:032x}", rand::random::<u128>()),
        model,
        created_s: unix_time_s(),
        fingerprint: None,
    }
}

/// Parses a request's JSON for an engine, whose model may still have to be loaded.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn read_for_engine(
    endpoint: Endpoint,
    fields: Fields,
    caller: Caller,
    config: &ServingConfig,
) -> Result<Request, ApiError> {
    Ok(of_caller(Request::read(endpoint, fields)?, caller, config))
}

/// Applies the rights and headers of `caller` to `request`.
fn of_caller(mut request: Request, caller: Caller, config: &ServingConfig) -> Request {
    let Caller { identity, trace_parent, request_id: id, .. } = caller;
    if let Some(stream) = request.stream.as_mut().filter(|_| config.force_usage) {
        stream.include_usage = true;
    }
    if !identity.may_set_priority() {
        request.ignore_priority(identity.key.is_some());
    }
    Request { trace_parent, id, identity, ..request }
}

/// Returns the progress reports wanted for completion `index`: only the first one reports.
fn progress_wish(request: &Request, index: usize) -> ProgressWish {
    match request.stream {
        Some(stream) if index == 0 && stream.return_progress => ProgressWish::Everything,
        Some(_) if index == 0 => ProgressWish::LongWaits,
        _ => ProgressWish::Nothing,
    }
}

/// Returns the error for a request that admission refuses.
pub fn refused(refusal: Refusal) -> ApiError {
    let Some(retry_after_s) = refusal.retry_after_s() else {
        return ApiError::invalid_param("n", format!("Ask for fewer completions: {refusal}."));
    };
    let again = format!("Please try again in {retry_after_s}s.");
    let rate = match refusal {
        Refusal::TokenRate { .. } => LimitedRate::Tokens,
        Refusal::RequestRate { .. } => LimitedRate::Requests,
        Refusal::TenantRequests { .. } => {
            let message = format!("Too many requests at once: {refusal}. {again}");
            return ApiError::rate_limited(message, LimitedRate::Requests, retry_after_s);
        }
        Refusal::Requests { .. } | Refusal::Tokens { .. } | Refusal::Never { .. } => {
            let message = format!("The server is busy: {refusal}. Try again later.");
            return ApiError::overloaded(message, retry_after_s);
        }
    };
    let message = format!("Rate limit reached for this API key: {refusal}. {again}");
    ApiError::rate_limited(message, rate, retry_after_s)
}

/// Returns the name of the prompt's parameter.
fn prompt_param(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Text => "prompt",
    }
}
