//! From a valid request to an active one: admit, tokenize, submit to the engine.

pub mod backend;
mod completions;
pub mod embedding;
pub mod health;

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::request::Parts;
use loquent_infer::vocab::Vocab;

use self::backend::Backend;
use self::completions::CompletionBuilder;
use self::health::ServiceHealth;
use loquent_gateway::{Upstream, UpstreamAnswer};
use loquent_serving::active_request::{
    ActiveRequest, AdmittedRequest, FlushSource, Observers, admitted_request,
};
use loquent_serving::admission::{AdmissionGate, Permit, refused};
use loquent_serving::api::fields::Fields;
use loquent_serving::api::head::{AnswerHead, answer_head, system_fingerprint};
use loquent_serving::api::request::{Endpoint, Request};
use loquent_serving::body::RequestBodies;
use loquent_serving::cache_domain::CacheDomains;
use loquent_serving::caller::{Caller, of_caller, read_for_engine};
use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;
use loquent_serving::loading_answer::EngineAnswer;
use loquent_serving::metrics::Metrics;
use loquent_serving::model::ServedModel;
use loquent_serving::otel::Telemetry;
use loquent_serving::output::OutputHandle;
use loquent_serving::prompt_threads::PromptThreads;
use loquent_serving::prompts::Prompts;
use loquent_serving::request_log::RequestLog;
use loquent_serving::serving_config::ServingConfig;

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
    prompts: Arc<Prompts>,
    backend: Backend,
    health: ServiceHealth,
    gate: AdmissionGate,
    cache_domains: CacheDomains,
    /// Equal wherever the same requests have the same answers.
    fingerprint: String,
    config: ServingConfig,
    clock: Clock,
    metrics: Arc<Metrics>,
    telemetry: Option<Arc<Telemetry>>,
    request_log: RequestLog,
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

impl Service {
    /// Creates a service that answers with `backend`.
    pub fn new(model: ServedModel, backend: Backend, context: ServiceContext) -> Self {
        let fingerprint = match &backend {
            Backend::Engine { .. } => model.fingerprint(context.config.split_reasoning),
            Backend::Upstream(_) => String::new(),
        };
        let health = backend.health();
        Self {
            prompts: Arc::new(Prompts::new(model, context.prompt_threads)),
            backend,
            health,
            fingerprint,
            gate: context.gate,
            cache_domains: CacheDomains::new(
                context.config.share_prefix_cache,
                context.config.domain_secret.clone(),
            ),
            config: context.config,
            clock: context.clock,
            metrics: context.metrics,
            telemetry: context.telemetry,
            request_log: context.request_log,
        }
    }

    /// Returns a text that is equal wherever the same requests have the same answers; empty if that
    /// is unknown.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the model that answers.
    pub fn model(&self) -> &ServedModel {
        self.prompts.model()
    }

    /// Returns the part that tokenizes prompts and compiles grammars.
    pub fn prompts(&self) -> &Arc<Prompts> {
        &self.prompts
    }

    /// Returns its health.
    pub fn health(&self) -> &ServiceHealth {
        &self.health
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

    /// Returns the number of completions that the engine computes at once; `None` with an upstream
    /// server.
    pub fn slots(&self) -> Option<usize> {
        self.backend.slots()
    }

    /// Returns the number of completions running or waiting.
    pub fn in_flight(&self) -> usize {
        self.gate.in_flight()
    }

    /// Returns the gate that admits its requests.
    pub fn gate(&self) -> &AdmissionGate {
        &self.gate
    }

    /// Checks that a request would be admitted, as far as possible without its body.
    ///
    /// # Errors
    /// 429 if the limits are reached, 503 while no requests are accepted.
    pub fn check_room(&self) -> Result<(), ApiError> {
        self.health.check_open()?;
        self.gate.check_room().map_err(refused)
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
                self.prompts.adopt(&mut request);
                Ok(request)
            }
            Backend::Upstream(_) => {
                let key = caller.authorization.clone();
                let request = loquent_gateway::read_request(endpoint, fields, key)?;
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
                true => loquent_gateway::whole::split_reasoning(response, bodies).await?,
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
        self.health.check_open()?;
        self.backend.check_able(&self.model().name, &request)?;
        let ignored = request.ignored_names();
        let (active, echo) = match &self.backend {
            Backend::Engine { output, .. } => self.generate(output, request, arrived).await?,
            Backend::Upstream(upstream) => {
                (self.relay(upstream, request, arrived).await?, Vec::new())
            }
        };
        Ok(StartedAnswer { active, echo, ignored, vocab: self.model().vocab.clone() })
    }

    /// Returns the upstream server; `None` with the built-in engine.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.backend.upstream()
    }

    /// Ends all streams with an error, and lets the engine stop.
    pub fn stop(&self) {
        self.backend.stop();
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
        self.health.check_draining()?;
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

    /// Starts an answer in the engine.
    async fn generate(
        self: &Arc<Self>,
        output: &OutputHandle,
        request: Request,
        arrived: Duration,
    ) -> Result<(ActiveRequest, Vec<String>), ApiError> {
        self.check_model(request.model.as_deref())?;
        // Before tokenizing: a server at its limit must refuse without spending time on the prompt.
        let permits = self.admit_request(&request)?;
        let mut head = answer_head(request.endpoint, self.model().name.clone());
        head.fingerprint = system_fingerprint(&self.fingerprint);
        let accepted = self.clock.now();
        let mut admitted = admitted_request(&request, head, arrived, accepted);
        let begun = self.begin(output, request, permits).await?;
        admitted.prompt_tokens = begun.prompt_tokens;
        admitted.tokenized = begun.tokenized;
        let flushes = FlushSource::Engine(begun.flushes);
        Ok((ActiveRequest::new(admitted, flushes, self.observers()), begun.echo))
    }

    /// Starts the answer to `request`, which has waited with its `permits` until the model was
    /// loaded.
    ///
    /// # Errors
    /// 400 for prompts that the model cannot take, 503 while draining.
    pub async fn begin_admitted(
        self: &Arc<Self>,
        mut request: Request,
        permits: Vec<Permit>,
    ) -> Result<EngineAnswer, ApiError> {
        self.health.ready()?;
        self.prompts.adopt(&mut request);
        let Backend::Engine { output, .. } = &self.backend else {
            return Err(ApiError::internal("An upstream server is not loaded."));
        };
        self.backend.check_able(&self.model().name, &request)?;
        self.begin(output, request, permits).await
    }

    async fn begin(
        self: &Arc<Self>,
        output: &OutputHandle,
        request: Request,
        permits: Vec<Permit>,
    ) -> Result<EngineAnswer, ApiError> {
        let (mut prepared, permits) = self.prompts.prepare(request, permits).await?;
        let echo = std::mem::take(&mut prepared.echo);
        // Compiling a grammar counts as tokenizing: both delay the first token on the same workers.
        let tokenized = self.clock.now();
        let lens = prepared.prompts.iter().map(Vec::len);
        let n = prepared.request.n as usize;
        let prompt_tokens = lens.flat_map(|len| std::iter::repeat_n(len, n)).collect();
        let builder = CompletionBuilder {
            model: self.model(),
            config: &self.config,
            cache_domains: &self.cache_domains,
            prepared: &prepared,
        };
        let flushes = output.start(builder.completions(permits)?);
        Ok(EngineAnswer { held: None, prompt_tokens, tokenized, flushes, echo })
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
        let own = answer_head(request.endpoint, self.model().name.clone());
        let head = AnswerHead {
            endpoint: request.endpoint,
            id: envelope.id.unwrap_or(own.id),
            model: envelope.model.or_else(|| request.model.clone()).unwrap_or(own.model),
            created_s: envelope.created_s.unwrap_or(own.created_s),
            fingerprint: envelope.fingerprint,
        };
        let admitted = AdmittedRequest {
            span,
            // The upstream knows the prompts' lengths, and reports them with its counts.
            prompt_tokens: vec![0; request.n as usize],
            ..admitted_request(&request, head, arrived, accepted)
        };
        Ok(ActiveRequest::new(admitted, FlushSource::Upstream(flushes), self.observers()))
    }

    /// Returns true if the model generates text. Assumed of an upstream server.
    pub fn generates(&self) -> bool {
        self.backend.generates()
    }

    fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if self.config.strict_model && asked != self.model().name => {
                Err(ApiError::model_not_found(asked, [self.model().name.as_str()]))
            }
            _ => Ok(()),
        }
    }
}
