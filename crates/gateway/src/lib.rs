//! Other OpenAI-compatible servers in place of the built-in engine: one, or several with the same
//! model. Their answers are admitted, merged, delivered, resumed and counted like the engine's.
//!
//! [`Upstream`] is the entry: it takes a request that `loquent-serving` has parsed, or one that
//! it passes on unread. Streamed completions are parsed and rendered again ([`relay`]); unknown
//! members are kept. Other requests on a list of routes ([`routes`]), and errors, are passed on
//! unread, with the end-to-end headers ([`headers`]).
//!
//! A [`balancer`] chooses among several servers, based on health checks and the outcome of
//! earlier requests. A dispatch takes a request from one server to the next until one answers.
//! Both are state machines that are told the time; tasks beside them wait and send.
//!
//! ```
//! use loquent_gateway::routes::{UpstreamRoute, UpstreamRoutes};
//!
//! let more: UpstreamRoute = "POST /v1/images/*".parse().expect("a method and a path");
//! let routes = UpstreamRoutes::with(&[more], true);
//! assert!(routes.admit(&http::Method::POST, &"/v1/images/edits".parse().unwrap()).is_ok());
//! assert!(routes.admit(&http::Method::POST, &"/admin".parse().unwrap()).is_err());
//! ```

mod affinity;
pub mod balancer;
mod breaker;
mod checks;
mod continuation;
mod dispatch;
pub mod headers;
mod health;
mod health_probe;
pub mod models;
mod pace;
pub mod passthrough;
mod pool;
pub mod relay;
mod relay_task;
mod request;
pub mod routes;
mod server;
pub mod supported_apis;
mod trace;
mod waiting;
pub mod whole;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum_core::body::Body;
use axum_core::response::Response;
use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{HeaderValue, Method, Uri};
use loquent_infer::tenant::Tenant;
use loquent_openai::chunk::ChunkEnvelope;
use loquent_proto::coalesce::StreamInterval;
use serde_json::{Map, Value, json};
use tokio::sync::{oneshot, watch};

use loquent_openai::headers::authorization;
use loquent_serving::admission::Permit;
use loquent_serving::api::request::{Endpoint, Request};
use loquent_serving::body::RequestBodies;
use loquent_serving::clock::Clock;
use loquent_serving::completion::CompletionConfig;
use loquent_serving::completion::reader::SplitConfig;
use loquent_serving::error::ApiError;
use loquent_serving::flush_channel::{FlushReceiver, flush_channel};
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::metrics::{Metrics, UpstreamSeries};
use loquent_serving::otel::{OpenSpan, Telemetry};
use loquent_serving::output::StreamBounds;
use loquent_serving::request_spans::span_name;
use loquent_serving::trace_context::TraceParent;

use crate::health_probe::ReadinessProbe;
use crate::passthrough::PassingBody;
use crate::supported_apis::{SupportedApis, UpstreamApi, Way};
use affinity::PromptKey;
use breaker::RequestVerdict;
use continuation::ArrivedAnswer;
use dispatch::{Dispatch, OutgoingBody, OutgoingRequest};
use loquent_serving::metrics::upstream_stats::ServerStats;
pub use pool::PoolConfig;
use pool::{Pool, ServerConstraints};
use relay::{Relay, RelayConfig};
pub use request::read_request;
use routes::{UpstreamRoute, UpstreamRoutes, UpstreamTarget};
use trace::RequestTrace;

/// Configuration of an upstream: servers with one model, its fallbacks and routes.
#[derive(Debug, Clone, Default)]
pub struct UpstreamConfig {
    /// The servers.
    pub pool: PoolConfig,
    /// Names of the models that answer while no server can.
    pub fallbacks: Vec<String>,
    /// Routes that clients may use in addition to the default ones.
    pub routes: Vec<UpstreamRoute>,
}

/// Servers with one model, in place of the built-in engine.
pub struct Upstream {
    pool: Arc<Pool>,
    /// Model of this process that answers while no server can.
    local_fallback: OnceLock<Option<String>>,
    routes: UpstreamRoutes,
    probe: ReadinessProbe,
    spoken: SupportedApis,
    context: UpstreamContext,
    shutdown: watch::Sender<bool>,
}

/// Settings and services that an [`Upstream`] shares with the surrounding server.
pub struct UpstreamContext {
    /// Bounds on each stream.
    pub bounds: StreamBounds,
    /// Maximum time to hold content.
    pub max_delay: Option<Duration>,
    /// True if `<think>…</think>` at the beginning of an answer is reasoning.
    pub splits_reasoning: bool,
    /// Maximum wait for the response's head while the upstream has not responded.
    pub first_byte_timeout: Duration,
    /// Memory to which answers are charged that other servers could continue.
    pub bodies: Arc<RequestBodies>,
    /// The server's clock.
    pub clock: Clock,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
    /// Exporter of spans, if any.
    pub telemetry: Option<Arc<Telemetry>>,
}

/// An answer that the upstream has begun or that is still awaited.
pub struct UpstreamAnswer {
    /// Flushes of the answer, as they arrive.
    pub flushes: FlushReceiver,
    /// Members common to all chunks, as far as known.
    pub envelope: ChunkEnvelope,
    /// Span of the request, if there is a collector.
    pub span: Option<Arc<OpenSpan>>,
}

impl Upstream {
    /// Creates a client of the servers of `options`. Sends nothing before [`Self::watch`] or a
    /// request.
    ///
    /// # Errors
    /// When a URL or the key is invalid, or a server is named twice.
    pub fn new(options: &UpstreamConfig, context: UpstreamContext) -> anyhow::Result<Self> {
        Ok(Self {
            pool: Arc::new(Pool::new(&options.pool, context.clock)?),
            local_fallback: OnceLock::new(),
            routes: UpstreamRoutes::with(&options.routes, options.pool.keeps_keys),
            probe: ReadinessProbe::default(),
            spoken: SupportedApis::default(),
            context,
            shutdown: watch::Sender::new(false),
        })
    }

    /// Sets the upstreams that take the requests no server of this upstream can take, and the last
    /// resort, another model of this process, `local`.
    pub fn fall_back_on(&self, fallbacks: &[Arc<Self>], local: Option<String>) {
        let pools: Vec<_> = fallbacks.iter().map(|fallback| fallback.pool.clone()).collect();
        self.pool.fall_back_on(&pools, local.is_some());
        assert!(self.local_fallback.set(local).is_ok(), "it is set once");
    }

    /// Returns the model of this process that answers now, because no server can.
    pub fn stand_in(&self) -> Option<&str> {
        let local = self.local_fallback.get()?.as_deref()?;
        self.check_room().is_err().then_some(local)
    }

    /// Starts exporting statistics and, if the servers can be avoided while they fail, health
    /// checks.
    pub fn watch(&self) {
        self.context.metrics.watch_upstream(self.pool.clone());
        if self.pool.is_spared() {
            checks::start(&self.pool);
        }
    }

    /// Returns the model's name in the API, if the operator has given it one.
    pub fn name(&self) -> Option<&str> {
        self.pool.name.as_deref()
    }

    /// Returns the name for display: the model's name, or the hosts and ports of the servers.
    pub fn label(&self) -> &str {
        &self.pool.label
    }

    /// Ends all streams with an error.
    pub fn stop(&self) {
        self.shutdown.send_replace(true);
    }

    /// Checks that a server of this upstream or of its fallbacks accepts requests.
    ///
    /// # Errors
    /// 503 if none does.
    pub fn check_room(&self) -> Result<(), ApiError> {
        self.pool.check_room()
    }

    /// Checks that a server responds, or responded within the last second.
    ///
    /// # Errors
    /// 503 if none does.
    pub async fn check_ready(&self) -> Result<(), ApiError> {
        let pool = self.pool.clone();
        let ask =
            || async move { pool.any_server()?.check_responds(pool.clock, pool.key(None)).await };
        self.probe.check(self.context.clock, ask).await
    }

    /// Requests a streamed answer with one completion per permit, for a request that arrived at
    /// `arrived`.
    ///
    /// Returns when the answer has begun, so that an early error becomes the response's status, but
    /// waits no longer than a heartbeat: a queued client must get the head.
    ///
    /// # Errors
    /// 502 when no server can be reached, 503 when all are known to be down, and the servers' own
    /// errors.
    pub async fn stream(
        &self,
        request: &Request,
        interval: StreamInterval,
        permits: Vec<Permit>,
        arrived: Duration,
    ) -> Result<UpstreamAnswer, ApiError> {
        let name = || span_name(request.endpoint, self.label());
        let caller = request.trace_parent.clone();
        let trace = RequestTrace::begin(self.context.telemetry.as_ref(), name, arrived, caller);
        let outgoing = streamed(request, permits.len(), trace.clone())?;
        let begun = self.relay(request, interval, permits, outgoing).await;
        let (flushes, envelope) = begun.inspect_err(|error| trace.fail(error))?;
        Ok(UpstreamAnswer { flushes, envelope, span: trace.span() })
    }

    /// Relays the answer to `outgoing` in a separate task. Waits until it begins, but no longer
    /// than a heartbeat.
    async fn relay(
        &self,
        request: &Request,
        interval: StreamInterval,
        permits: Vec<Permit>,
        outgoing: OutgoingRequest,
    ) -> Result<(FlushReceiver, ChunkEnvelope), ApiError> {
        let splits = self.context.splits_reasoning && request.endpoint == Endpoint::Chat;
        let split = if splits { SplitConfig::reasoning() } else { SplitConfig::default() };
        let max_delay = self.context.max_delay;
        let config = RelayConfig {
            completion: CompletionConfig { interval, max_delay, split, ..Default::default() },
            bounds: self.context.bounds,
            exempt_from_stall_limit: request.resumable,
            silence_limit: self.pool.silence_limit,
            metrics: self.context.metrics.clone(),
            arrived: self.kept_beginning(request, permits.len()),
        };
        let running = |mut permit: Permit| {
            permit.begin();
            (permit, self.context.metrics.upstream_completion(self.context.clock))
        };
        let permits = permits.into_iter().map(running).collect();
        let (sender, flushes) = flush_channel();
        let (begun, beginning) = oneshot::channel();
        let relay = Relay::new(config, sender, begun, permits);
        let dispatch = Dispatch::new(&self.pool, outgoing);
        tokio::spawn(relay_task::run(
            relay,
            self.context.clock,
            dispatch,
            self.shutdown.subscribe(),
        ));
        let envelope = match tokio::time::timeout(self.context.first_byte_timeout, beginning).await
        {
            Ok(Ok(begun)) => begun?,
            Ok(Err(_)) => return Err(ApiError::internal("The answer was lost.")),
            Err(_) => ChunkEnvelope::default(),
        };
        Ok((flushes, envelope))
    }

    /// Returns where the beginning of an answer to `request` is kept; `None` if no server could
    /// continue it.
    fn kept_beginning(&self, request: &Request, completions: usize) -> Option<ArrivedAnswer> {
        let held = || HeldAnswer::new(self.context.bodies.clone(), request.identity.tenant);
        let is_possible = completions == 1 && self.pool.has_other_servers();
        is_possible.then(|| ArrivedAnswer::new(request.endpoint, held()))
    }

    /// Returns the first model in the list that the upstream last sent, or the operator's name for
    /// it.
    pub async fn known_model(&self) -> Option<String> {
        if self.pool.name.is_some() {
            return self.pool.name.clone();
        }
        for server in &self.pool.servers {
            if let Some(model) = server.known_model(self.pool.key(None)).await {
                return Some(model);
            }
        }
        None
    }

    /// Returns true if the upstream takes a request for `path`, for which this server has a route
    /// too. `headers` are the client's.
    ///
    /// # Errors
    /// 502 when the upstream has to be tried and cannot be reached.
    pub async fn takes(&self, path: &str, headers: &HeaderMap) -> Result<bool, ApiError> {
        match Way::of(path) {
            Way::Here => Ok(false),
            Way::PassedOn => Ok(true),
            // Another of several servers goes on with an answer only if it is read here. And stored
            // responses are at one of them.
            Way::IfSpoken(_) if self.pool.servers.len() > 1 => Ok(false),
            // With keys of this server, stored responses belong to the key that made them, of which
            // the upstream knows nothing: it would give them to any client that has the id.
            Way::IfSpoken(UpstreamApi::Responses) if self.pool.keeps_keys => Ok(false),
            Way::IfSpoken(api) => {
                let own = authorization(headers);
                self.spoken.speaks(api, self.context.clock, || self.try_out(api, own)).await
            }
        }
    }

    /// Sends an empty request, which a server that knows the path rejects, and returns the status.
    async fn try_out(
        &self,
        api: UpstreamApi,
        own_key: Option<HeaderValue>,
    ) -> Result<u16, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = OutgoingRequest {
            method: Method::POST,
            path: api.path().to_owned(),
            headers,
            body: OutgoingBody::Other(Bytes::from_static(b"{}")),
            own_key,
            wanted: ServerConstraints { prompt: None, completions: 0, tenant: Tenant::default() },
            trace: RequestTrace::default(),
        };
        let (response, _place) = Dispatch::new(&self.pool, request).send().await?;
        Ok(response.status().as_u16())
    }

    /// Checks that clients may send this request to the upstream.
    ///
    /// # Errors
    /// 400 for a path that servers interpret in different ways, 404 for one that is not passed on.
    pub fn admit(&self, method: &Method, uri: &Uri) -> Result<UpstreamTarget, ApiError> {
        self.routes.admit(method, uri)
    }

    /// Returns true if a route added by the operator allows this request.
    pub fn is_chosen(&self, method: &Method, path: &str) -> bool {
        self.routes.is_chosen(method, path)
    }

    /// Passes on a whole answer to `request`, unread.
    ///
    /// # Errors
    /// The errors of [`Self::pass_on`].
    pub async fn answer_whole(
        &self,
        target: UpstreamTarget,
        headers: &HeaderMap,
        request: &Request,
        permits: Vec<Permit>,
    ) -> Result<Response, ApiError> {
        let forward = request.forward.as_ref();
        let forward = forward.ok_or_else(|| ApiError::internal("A request was not prepared."))?;
        let body = OutgoingBody::Question(forward.body.clone());
        let wanted = wanted_by(request, &forward.body, permits.len());
        self.send_through(target, headers, body, wanted, permits).await
    }

    /// Passes a request on, and its response back as it arrives. Holds `permits` until the response
    /// has ended.
    ///
    /// # Errors
    /// 400 for a body with a method that has none, 502 when no server can be reached, 503 when all
    /// are known to be down.
    pub async fn pass_on(
        &self,
        target: UpstreamTarget,
        headers: &HeaderMap,
        body: Bytes,
        tenant: Tenant,
        permits: Vec<Permit>,
    ) -> Result<Response, ApiError> {
        target.check_body_bytes(body.len() as u64)?;
        let body = match target.asks_model() {
            true => OutgoingBody::QuestionText(body),
            false => OutgoingBody::Other(body),
        };
        let completions = permits.len() as u64;
        let wanted = ServerConstraints { prompt: None, completions, tenant };
        self.send_through(target, headers, body, wanted, permits).await
    }

    async fn send_through(
        &self,
        target: UpstreamTarget,
        headers: &HeaderMap,
        body: OutgoingBody,
        wanted: ServerConstraints,
        permits: Vec<Permit>,
    ) -> Result<Response, ApiError> {
        let trace = self.trace_of(&target, headers, &body);
        let request = OutgoingRequest {
            method: target.method,
            path: target.path.to_string(),
            headers: headers.clone(),
            body,
            own_key: authorization(headers),
            wanted,
            trace: trace.clone(),
        };
        let sent = Dispatch::new(&self.pool, request).send().await;
        let (response, place) = sent.inspect_err(|error| trace.fail(error))?;
        let (head, body) = response.into_parts();
        trace.note_status(head.status.as_u16());
        // A whole answer's head comes when it is complete.
        if !head.status.is_server_error() {
            place.judge(RequestVerdict::Works);
        }
        // The upstream's protocol version and extensions concern its own connection.
        let body = PassingBody::new(body, self.pool.silence_limit, permits, place);
        let mut response = Response::new(Body::new(body));
        *response.status_mut() = head.status;
        *response.headers_mut() = headers::for_client(&head.headers);
        Ok(response)
    }

    /// Returns the trace context of a request that passes unread. Only requests to a model have a
    /// span.
    fn trace_of(
        &self,
        target: &UpstreamTarget,
        headers: &HeaderMap,
        body: &OutgoingBody,
    ) -> RequestTrace {
        let caller = TraceParent::from_headers(headers);
        if let OutgoingBody::Other(_) = body {
            return RequestTrace::of_caller(caller);
        }
        let name = || format!("{} {}", target.method, target.path.path());
        RequestTrace::begin(self.context.telemetry.as_ref(), name, self.context.clock.now(), caller)
    }
}

impl UpstreamSeries for Pool {
    fn label(&self) -> &str {
        &self.label
    }

    fn servers(&self) -> Vec<(String, ServerStats)> {
        let names = self.servers.iter().map(|server| server.authority().to_owned());
        names.zip(self.figures()).collect()
    }

    fn waiting(&self) -> usize {
        Self::waiting(self)
    }
}

/// Builds the request for a streamed answer.
fn streamed(
    request: &Request,
    completions: usize,
    trace: RequestTrace,
) -> Result<OutgoingRequest, ApiError> {
    let path = match request.endpoint {
        Endpoint::Chat => "/v1/chat/completions",
        Endpoint::Text => "/v1/completions",
    };
    let forward = request.forward.as_ref();
    let forward = forward.ok_or_else(|| ApiError::internal("A request was not prepared."))?;
    let wanted = wanted_by(request, &forward.body, completions);
    let mut body = forward.body.clone();
    // A resumable answer is always streamed from the upstream, even if its request did not
    // set `stream`. The counts are requested too, because the metrics need them.
    body.insert("stream".into(), true.into());
    let options = body.entry("stream_options").or_insert_with(|| json!({}));
    if !options.is_object() {
        *options = json!({});
    }
    options["include_usage"] = true.into();
    Ok(OutgoingRequest {
        method: Method::POST,
        path: path.to_owned(),
        headers: HeaderMap::new(),
        body: OutgoingBody::Question(body),
        own_key: forward.authorization.clone(),
        wanted,
        trace,
    })
}

/// Returns the constraints that a request with this body puts on a server.
fn wanted_by(
    request: &Request,
    body: &Map<String, Value>,
    completions: usize,
) -> ServerConstraints {
    ServerConstraints {
        prompt: PromptKey::of(request.endpoint, body),
        completions: completions as u64,
        tenant: request.identity.scheduled(),
    }
}
