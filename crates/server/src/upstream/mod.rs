//! Another OpenAI-compatible server in place of the built-in engine. Its answers are admitted,
//! merged, delivered, resumed and counted like the engine's.
//!
//! Streamed completions are parsed and rendered again ([`relay`]); members unknown here are
//! kept. Other requests on a list of routes ([`routes`]), and errors, are passed on unread, and
//! with them the headers that concern both ends ([`headers`]).

pub mod headers;
mod models;
pub mod passage;
mod probe;
pub mod relay;
pub mod routes;
mod spoken;
pub mod whole;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{HeaderValue, Method, Request as HttpRequest, Uri};
use http_body_util::{BodyExt, Limited};
use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};
use loquent_openai::chunk::ChunkEnvelope;
use loquent_openai::http::{HttpClient, HttpResponse, ResponseBody, bearer};
use loquent_openai::{BaseUrl, HttpError};
use loquent_proto::Micros;
use loquent_proto::coalesce::{Coalescer, StreamInterval};
use serde_json::{Map, Value, json};
use tokio::sync::{oneshot, watch};

use crate::admission::Permit;
use crate::api::fields::Fields;
use crate::api::request::{Endpoint, Forward, Request, StreamParams, parse_interval};
use crate::auth::authorization;
use crate::clock::Clock;
use crate::error::ApiError;
use crate::flush_channel::{FlushReceiver, flush_channel};
use crate::metrics::Metrics;
use crate::output::StreamBounds;

use models::{FirstModels, lacks_model, with_model};
use passage::PassingBody;
use probe::ReadinessProbe;
use relay::{Relay, RelayConfig};
use routes::{UpstreamRoute, UpstreamRoutes, UpstreamTarget};
use spoken::{SpokenApi, SpokenApis, Way};

/// Most completions of one request; the upstream may have a lower limit.
const MAX_CHOICES: u64 = 128;
/// Largest error body that is passed on.
const MAX_ERROR_BYTES: usize = 1 << 20;
/// Largest list of models that is read.
const MAX_LIST_BYTES: usize = 1 << 20;
/// How long connecting to the upstream may take: its clients wait meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the upstream may take to respond to the probe of `/ready`.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The upstream server's address, and how requests to it are authorized.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Its base URL, with or without a final `/v1`.
    pub url: String,
    /// API key for the upstream; without one, the client's own is passed on.
    pub api_key: Option<String>,
    /// Whether clients' keys are for this server and must not reach the upstream.
    pub keeps_keys: bool,
    /// Routes that clients may use beside the usual ones.
    pub routes: Vec<UpstreamRoute>,
    /// How long the upstream may be silent before and within a response.
    pub silence_limit: Duration,
}

/// The upstream server.
pub struct Upstream {
    client: HttpClient,
    api_key: Option<HeaderValue>,
    keeps_keys: bool,
    routes: UpstreamRoutes,
    silence_limit: Duration,
    probe: ReadinessProbe,
    models: FirstModels,
    spoken: SpokenApis,
    bounds: StreamBounds,
    max_delay: Option<Duration>,
    splits_reasoning: bool,
    /// How long a client waits for the response's head while the upstream has not responded.
    first_byte_timeout: Duration,
    clock: Clock,
    metrics: Arc<Metrics>,
    shutdown: watch::Sender<bool>,
}

/// What an [`Upstream`] shares with the server around it.
pub struct UpstreamContext {
    /// Bounds on each stream.
    pub bounds: StreamBounds,
    /// Hold content no longer than this.
    pub max_delay: Option<Duration>,
    /// Whether `<think>…</think>` at the beginning of an answer is its reasoning.
    pub splits_reasoning: bool,
    /// How long a client waits for the response's head while the upstream has not responded.
    pub first_byte_timeout: Duration,
    /// The server's clock.
    pub clock: Clock,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
}

/// An answer that the upstream has begun, or is still awaited.
pub struct UpstreamAnswer {
    /// Its flushes, as they come.
    pub flushes: FlushReceiver,
    /// The members that all chunks share, as far as they are known yet.
    pub envelope: ChunkEnvelope,
}

impl Upstream {
    /// A client of the server of `options`; nothing is sent yet.
    ///
    /// # Errors
    /// When the URL or the key is invalid.
    pub fn new(options: &UpstreamConfig, surroundings: UpstreamContext) -> anyhow::Result<Self> {
        let base = BaseUrl::parse(&options.url)?;
        let api_key = options.api_key.as_deref().map(bearer).transpose()?;
        let UpstreamContext {
            bounds,
            max_delay,
            splits_reasoning,
            first_byte_timeout,
            clock,
            metrics,
        } = surroundings;
        Ok(Self {
            client: HttpClient::new(base, None)?.with_connect_timeout(CONNECT_TIMEOUT),
            api_key,
            keeps_keys: options.keeps_keys,
            routes: UpstreamRoutes::with(&options.routes, options.keeps_keys),
            silence_limit: options.silence_limit,
            probe: ReadinessProbe::default(),
            models: FirstModels::default(),
            spoken: SpokenApis::default(),
            bounds,
            max_delay,
            splits_reasoning,
            first_byte_timeout,
            clock,
            metrics,
            shutdown: watch::Sender::new(false),
        })
    }

    /// The upstream's host and port.
    pub fn authority(&self) -> &str {
        self.client.base().authority()
    }

    /// Ends all streams with an error.
    pub fn stop(&self) {
        self.shutdown.send_replace(true);
    }

    /// Checks that the upstream responds, or responded within the last second.
    ///
    /// # Errors
    /// 503 when it does not.
    pub async fn check_ready(self: &Arc<Self>) -> Result<(), ApiError> {
        let upstream = self.clone();
        self.probe.check(self.clock, || async move { upstream.ask_for_models().await }).await
    }

    async fn ask_for_models(&self) -> Result<(), ApiError> {
        let request = self.request(Method::GET, "/v1/models", Bytes::new(), None);
        let answered = tokio::time::timeout(PROBE_TIMEOUT, self.client.send(request)).await;
        match answered {
            Ok(Ok(response)) if !response.status().is_server_error() => {
                // It is asked anyway, so the page can name the model in its questions.
                let list = read_list(response.into_body());
                let list = tokio::time::timeout(PROBE_TIMEOUT, list).await.ok().flatten();
                self.models.note(self.clock, self.key(None), list.as_ref()).await;
                Ok(())
            }
            Ok(Ok(response)) => Err(ApiError::upstream_down(format!(
                "{} answers {}",
                self.authority(),
                response.status()
            ))),
            Ok(Err(error)) => Err(ApiError::upstream_down(error.to_string())),
            Err(_) => Err(ApiError::upstream_down(format!("{} is silent", self.authority()))),
        }
    }

    /// Requests a streamed answer with one completion for each of `permits`.
    ///
    /// Returns when the answer has begun, so that an early error becomes the response's status,
    /// but waits no longer than a heartbeat: a client that is queued must get the head.
    ///
    /// # Errors
    /// 502 when the upstream cannot be reached, and the upstream's own errors.
    pub async fn stream(
        self: &Arc<Self>,
        request: &Request,
        interval: StreamInterval,
        permits: Vec<Permit>,
    ) -> Result<UpstreamAnswer, ApiError> {
        let path = match request.endpoint {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Text => "/v1/completions",
        };
        let forward = request.forward.as_ref();
        let forward = forward.ok_or_else(|| ApiError::internal("A request was not prepared."))?;
        let mut body = forward.body.clone();
        self.fill_model(&mut body, forward.authorization.as_ref()).await;
        // A resumable answer is always streamed from the upstream, even if its request did not
        // set `stream`. The counts are requested too, because the metrics need them.
        body.insert("stream".into(), true.into());
        let options = body.entry("stream_options").or_insert_with(|| json!({}));
        if !options.is_object() {
            *options = json!({});
        }
        options["include_usage"] = true.into();
        let body = Value::from(body).to_string();
        let mut http =
            self.request(Method::POST, path, body.into(), forward.authorization.as_ref());
        http.headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let config = RelayConfig {
            coalescer: Coalescer::new(interval, self.max_delay.map(Micros::from)),
            bounds: self.bounds,
            exempt_from_stall_limit: request.resumable,
            silence_limit: self.silence_limit,
            splits_reasoning: self.splits_reasoning && request.endpoint == Endpoint::Chat,
            clock: self.clock,
            metrics: self.metrics.clone(),
        };
        let (sender, flushes) = flush_channel();
        let (begun, beginning) = oneshot::channel();
        let relay = Relay::new(config, sender, begun, permits);
        let (upstream, shutdown) = (self.clone(), self.shutdown.subscribe());
        tokio::spawn(relay.run(async move { upstream.ask(http).await }, shutdown));
        let envelope = match tokio::time::timeout(self.first_byte_timeout, beginning).await {
            Ok(Ok(begun)) => begun?,
            Ok(Err(_)) => return Err(ApiError::internal("The answer was lost.")),
            Err(_) => ChunkEnvelope::default(),
        };
        Ok(UpstreamAnswer { flushes, envelope })
    }

    /// Sends `request`; a response that is not a success becomes an error.
    async fn ask(&self, request: HttpRequest<Bytes>) -> Result<ResponseBody, ApiError> {
        let response = self.send(request).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let lost = |why: &str| {
            ApiError::bad_gateway(format!("The upstream server's error is lost: {why}."))
        };
        let body = Limited::new(body, MAX_ERROR_BYTES).collect();
        let body = tokio::time::timeout(self.silence_limit, body).await;
        let body = body.map_err(|_| lost("it takes too long"))?;
        let body = body.map_err(|error| lost(&error.to_string()))?;
        Err(ApiError::passed_on(&head, body.to_bytes()))
    }

    /// Sends `request` and waits for the response's head. A redirect is an error: whoever
    /// followed it would take the key, or the answers, to a server that nobody has named.
    async fn send(&self, request: HttpRequest<Bytes>) -> Result<HttpResponse, ApiError> {
        let sent = tokio::time::timeout(self.silence_limit, self.client.send(request)).await;
        let late = |_| {
            let silence_s = self.silence_limit.as_secs();
            ApiError::bad_gateway(format!("The upstream server was silent for {silence_s} s."))
        };
        let response = sent.map_err(late)?.map_err(unreachable)?;
        if response.headers().contains_key(header::LOCATION) && response.status().is_redirection() {
            return Err(ApiError::bad_gateway(
                "The upstream server redirects, which is not followed. Start this server with \
                 the --upstream URL that it redirects to.",
            ));
        }
        Ok(response)
    }

    /// Names the upstream's first model in a request that names none: many servers refuse those.
    pub async fn fill_model(&self, body: &mut Map<String, Value>, own: Option<&HeaderValue>) {
        if body.get("model").is_none_or(Value::is_null)
            && let Some(model) = self.first_model(own).await
        {
            body.insert("model".into(), model.into());
        }
    }

    /// The first model that the upstream listed to this server, when it was last asked.
    pub async fn known_model(&self) -> Option<String> {
        self.models.known(self.key(None)).await
    }

    /// The first model that the upstream lists, if it lists any.
    async fn first_model(&self, own: Option<&HeaderValue>) -> Option<String> {
        let key = self.key(own);
        self.models.of(self.clock, key, || self.list_models(own)).await
    }

    async fn list_models(&self, own: Option<&HeaderValue>) -> Option<Value> {
        let request = self.request(Method::GET, "/v1/models", Bytes::new(), own);
        let listed = async { read_list(self.ask(request).await.ok()?).await };
        tokio::time::timeout(PROBE_TIMEOUT, listed).await.ok().flatten()
    }

    /// Whether the upstream gets a request for `path`, which there is a route for here too;
    /// `headers` are the client's.
    ///
    /// # Errors
    /// 502 when it has to be asked, and cannot be reached.
    pub async fn takes(&self, path: &str, headers: &HeaderMap) -> Result<bool, ApiError> {
        match Way::of(path) {
            Way::Here => Ok(false),
            Way::PassedOn => Ok(true),
            // With keys of this server, stored responses belong to the key that made them, of which
            // the upstream knows nothing: it would give them to any client that has the id.
            Way::IfSpoken(SpokenApi::Responses) if self.keeps_keys => Ok(false),
            Way::IfSpoken(api) => {
                let own = authorization(headers);
                self.spoken.speaks(api, self.clock, || self.try_out(api, own.as_ref())).await
            }
        }
    }

    /// The status of an empty request, which no server that knows the path can take for a question.
    async fn try_out(&self, api: SpokenApi, own: Option<&HeaderValue>) -> Result<u16, ApiError> {
        let mut request = self.request(Method::POST, api.path(), Bytes::from_static(b"{}"), own);
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self.send(request).await?.status().as_u16())
    }

    /// Checks that clients may send this request to the upstream.
    ///
    /// # Errors
    /// 400 for a path that servers read in different ways, 404 for one that is not passed on.
    pub fn admit(&self, method: &Method, uri: &Uri) -> Result<UpstreamTarget, ApiError> {
        self.routes.admit(method, uri)
    }

    /// Whether the operator, and not the list of usual routes, lets clients send this request.
    pub fn is_chosen(&self, method: &Method, path: &str) -> bool {
        self.routes.is_chosen(method, path)
    }

    /// Passes a request on, and its response back as it arrives. `permits` are held until the
    /// response has ended.
    ///
    /// # Errors
    /// 502 when the upstream cannot be reached.
    pub async fn pass_on(
        &self,
        target: UpstreamTarget,
        headers: &HeaderMap,
        body: Bytes,
        permits: Vec<Permit>,
    ) -> Result<Response, ApiError> {
        let own = authorization(headers);
        let own = own.as_ref();
        let body = self.with_model(&target, body, own).await;
        let mut request = self.request(target.method, target.path.as_str(), body, own);
        let with_credentials = self.api_key.is_none() && !self.keeps_keys;
        request.headers_mut().extend(headers::for_upstream(headers, with_credentials));
        let (mut head, body) = self.send(request).await?.into_parts();
        head.headers = headers::for_client(&head.headers);
        // The upstream's protocol version and extensions concern its own connection.
        let mut response =
            Response::new(Body::new(PassingBody::new(body, self.silence_limit, permits)));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }

    /// `body`, in which the upstream's first model is named if it is a question that names none.
    async fn with_model(
        &self,
        target: &UpstreamTarget,
        body: Bytes,
        own: Option<&HeaderValue>,
    ) -> Bytes {
        if !target.asks_model() || !lacks_model(&body) {
            return body;
        }
        match self.first_model(own).await {
            Some(model) => with_model(&body, &model).into(),
            None => body,
        }
    }

    /// The key that a request of a client with the key `own` carries.
    fn key<'a>(&'a self, own: Option<&'a HeaderValue>) -> Option<&'a HeaderValue> {
        // A key of this server is a secret between it and the client.
        self.api_key.as_ref().or(own.filter(|_| !self.keeps_keys))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        own: Option<&HeaderValue>,
    ) -> HttpRequest<Bytes> {
        let mut request = HttpRequest::new(body);
        *request.method_mut() = method;
        // The path comes from a parsed URI or a constant; the client adds the upstream's host.
        *request.uri_mut() = path.parse().unwrap_or_default();
        if let Some(key) = self.key(own) {
            request.headers_mut().insert(header::AUTHORIZATION, key.clone());
        }
        request
    }
}

async fn read_list(body: ResponseBody) -> Option<Value> {
    let list = Limited::new(body, MAX_LIST_BYTES).collect().await.ok()?;
    serde_json::from_slice(&list.to_bytes()).ok()
}

fn unreachable(error: HttpError) -> ApiError {
    ApiError::bad_gateway(format!(
        "The upstream server could not be reached: {error}. Try again later."
    ))
}

/// Takes this server's own parameters from a request and prepares the rest for the upstream.
///
/// # Errors
/// 400 when one of the server's own parameters is wrong.
pub fn read_request(
    endpoint: Endpoint,
    mut fields: Fields,
    authorization: Option<HeaderValue>,
) -> Result<Request, ApiError> {
    let interval = parse_interval(&mut fields)?;
    let resumable = fields.boolean("resumable")?.unwrap_or(false);
    // An upstream that can, such as vLLM, says it in any case; others might refuse the name.
    let include_stop_reason = fields.boolean("include_stop_reason")?.unwrap_or(false);
    let charge = fields.charge();
    let mut body = fields.into_map();
    check_stream_options(&body)?;
    let streams = body.get("stream") == Some(&Value::Bool(true));
    let stream = streams.then(|| take_stream_options(&mut body));
    let choices = count_choices(endpoint, &body);
    if choices == 0 || choices > MAX_CHOICES {
        let message = format!("'n' times the prompts must be between 1 and {MAX_CHOICES}.");
        return Err(ApiError::invalid_param("n", message));
    }
    Ok(Request {
        model: body.get("model").and_then(Value::as_str).map(str::to_owned),
        n: choices as u32,
        stream,
        resumable,
        interval,
        include_stop_reason,
        forward: Some(Forward { body, authorization }),
        charge,
        ..Request::empty(endpoint)
    })
}

fn check_stream_options(body: &Map<String, Value>) -> Result<(), ApiError> {
    match body.get("stream_options") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => {
            let message = "'stream_options' must be an object.";
            Err(ApiError::invalid_param("stream_options", message))
        }
    }
}

/// The options of the stream; those that only this server knows are removed from `body`.
fn take_stream_options(body: &mut Map<String, Value>) -> StreamParams {
    // It stays in the body: an upstream that knows it is asked too.
    let return_progress = body.get("return_progress") == Some(&Value::Bool(true));
    let Some(options) = body.get_mut("stream_options").filter(|options| options.is_object()) else {
        body.remove("stream_options");
        return StreamParams { return_progress, ..StreamParams::default() };
    };
    let asked = |name: &str| options.get(name) == Some(&Value::Bool(true));
    let params = StreamParams {
        include_usage: asked("include_usage"),
        continuous_usage: asked("continuous_usage_stats"),
        include_timings: asked("include_timings"),
        include_obfuscation: options.get("include_obfuscation").and_then(Value::as_bool),
        return_progress,
    };
    options.as_object_mut().and_then(|options| options.remove("include_timings"));
    params
}

fn count_choices(endpoint: Endpoint, body: &Map<String, Value>) -> u64 {
    let n = body.get("n").and_then(Value::as_u64).unwrap_or(1);
    let prompts = match (endpoint, body.get("prompt")) {
        (Endpoint::Text, Some(Value::Array(all))) if !all.iter().all(Value::is_number) => all.len(),
        _ => 1,
    };
    n.saturating_mul(prompts as u64)
}

/// The vocabulary of an upstream server's model, of which nothing is known.
#[derive(Debug, Clone, Copy)]
pub struct UnknownVocab;

impl Vocab for UnknownVocab {
    fn size(&self) -> usize {
        0
    }

    fn encode(&self, _text: &str, _how: Encode) -> Result<Vec<TokenId>, EncodeError> {
        Err(EncodeError("the upstream server knows the vocabulary".into()))
    }

    fn piece(&self, _token: TokenId) -> &[u8] {
        &[]
    }

    fn name(&self, _token: TokenId) -> &[u8] {
        &[]
    }

    fn is_end(&self, _token: TokenId) -> bool {
        false
    }
}
