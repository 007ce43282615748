//! HTTP: routes, authentication, the origin check, and answers as response bodies.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request as HttpRequest, Uri, header};
use loquent_infer::vocab::Vocab;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::headers::REPEAT_HEADER;
use serde_json::json;
use tower::ServiceExt;

use crate::active_request::ActiveRequest;
use crate::api::request::{Endpoint, Request};
use crate::app::App;
use crate::auth::{EarlyIdentity, authorization};
use crate::caller::Caller;
use crate::dialect::messages::{VERSION, models as anthropic};
use crate::dialect::{errors, paths};
use crate::error::ApiError;
use crate::full_answer::FullAnswer;
use crate::full_response::full_response;
use crate::hosts::requested_authority;
use crate::identity::Identity;
use crate::json_response::{json_response, json_text};
use crate::memory::SMALL_BYTES;
use crate::models::ModelEntry;
use crate::obfuscation::Encrypted;
use crate::rate_headers::add_rate_headers;
use crate::records::RecordContext;
use crate::routes::parse_request::{Intake, ParsedRequest};
use crate::routes::tokenize::{detokenize, tokenize, tokenizer_info};
use crate::routes::{
    self, browser, conversations, dashboard, durable, embeddings, infill, llama_server, messages,
    observed, ollama, page, path_probe, responses, resumable, stored_chats, token, ui_stream,
};
use crate::service::{Answer, StartedAnswer};
use crate::sse::{DirectAnswer, SseBody, event_stream, with_ignored};
use crate::store::AnswerFence;
use crate::upstream::Upstream;
use crate::upstream::models::model_of;
use crate::upstream::supported_apis::Way;

type Shared = State<Arc<App>>;

/// Builds all routes of the server.
pub fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .merge(ui_stream::routes())
        .merge(conversations::routes())
        .merge(infill::routes())
        .merge(of_llama_server())
        .merge(stored_chats::routes())
        .merge(responses::routes())
        .merge(embeddings::routes())
        .merge(messages::routes())
        .merge(routes::models::routes())
        .merge(ollama::routes(app.config.offers_ollama()))
        .route_layer(middleware::from_fn_with_state(app.clone(), ask_upstream))
        .route_layer(middleware::from_fn_with_state(app.clone(), authorize));
    let all = Router::new()
        .merge(api)
        .merge(extension(&app))
        // Without an API key: the answer's random token is the credential.
        .route(
            "/v1/streams/{id}",
            get(durable::read_or_resume).head(durable::head).delete(resumable::forget),
        )
        .route("/.well-known/loquent", get(resumable::delivery))
        .route("/v1/delivery", get(resumable::delivery))
        .route("/live", get(live))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .merge(own(&app))
        .merge(page::routes(&app.pages))
        .fallback(elsewhere)
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            ApiError::method_not_allowed(&method, uri.path())
        })
        .layer(middleware::from_fn_with_state(app.clone(), browser::guard))
        .layer(middleware::from_fn(browser::harden))
        .layer(middleware::from_fn_with_state(app.clone(), observed::observe))
        .layer(middleware::from_fn(errors::translate))
        .with_state(app.clone());
    // Before routing: axum's own layers come after it.
    Router::new().fallback_service(all.map_request(move |request| with_version(&app, request)))
}

/// Returns llama-server's routes. Other methods of these paths may be an upstream server's.
fn of_llama_server() -> Router<Arc<App>> {
    llama_server::routes()
        .route("/props", get(llama_server::props).fallback(elsewhere))
        .route("/slots", get(llama_server::slots).fallback(elsewhere))
}

/// Returns the routes that are never passed on to an upstream server, because they concern this
/// one.
fn own(app: &Arc<App>) -> Router<Arc<App>> {
    dashboard::routes()
        .merge(token::routes())
        .merge(path_probe::routes())
        .route_layer(middleware::from_fn_with_state(app.clone(), authorize))
}

/// Returns the routes of the program around this crate. They are never passed on to an upstream
/// server, because they concern this one.
fn extension(app: &Arc<App>) -> Router<Arc<App>> {
    let routes = app.extension.clone().with_state(());
    // axum panics where a layer has no route to lie on.
    if !routes.has_routes() {
        return routes;
    }
    routes.route_layer(middleware::from_fn_with_state(app.clone(), authorize))
}

/// Adds the version to a request for one of OpenAI's paths without it, unless the operator passes
/// that exact path on to an upstream server.
fn with_version(app: &App, mut request: HttpRequest<Body>) -> HttpRequest<Body> {
    let Some(uri) = paths::versioned(request.uri()) else { return request };
    let upstream = sole_upstream(app);
    if !upstream.is_some_and(|it| it.is_chosen(request.method(), request.uri().path())) {
        *request.uri_mut() = uri;
    }
    request
}

async fn chat(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    answer(app, Endpoint::Chat, request).await
}

async fn completions(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    answer(app, Endpoint::Text, request).await
}

async fn answer(
    app: Arc<App>,
    endpoint: Endpoint,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let arrived = app.clock.now();
    let (mut head, body) = request.into_parts();
    // A server at its limit refuses before it takes the body. A repeated request may join an
    // answer that has its place already.
    if !head.headers.contains_key(REPEAT_HEADER) {
        app.models.check_room()?;
    }
    let body = app.bodies.receive(&mut head, body).await?;
    let key = authorization(&head.headers);
    let intake = Intake { endpoint, caller: Caller::of(&head), key, is_ask: false };
    let ParsedRequest { request, idempotent } =
        intake.parse(&app, body, head.headers.get(REPEAT_HEADER)).await?;
    let streams = request.stream.is_some();
    let obfuscation = app.config.obfuscation.of_request(&head.extensions);
    // A conversation's answers are for all who have the owner's key.
    let conversation = match streams && request.identity.token.is_none() {
        true => conversations::asked_id(&app, &head, &request.identity),
        false => None,
    };
    if let Some(id) = conversation {
        let resumable = resumable::ResumableRequest { request, arrived, idempotent: idempotent? };
        return conversations::stream(&app, id, resumable, &head.extensions).await;
    }
    if streams && request.resumable {
        // Only a resumable answer can be joined by its idempotency key; for others the header is
        // ignored, even if it is malformed.
        let idempotent = idempotent?;
        let resumable = resumable::ResumableRequest { request, arrived, idempotent };
        return resumable::stream(&app, resumable, obfuscation).await;
    }
    let started = match begin(&app, request, arrived, &head).await? {
        Answer::PassedOn(response) => return Ok(response),
        Answer::Started(started) => *started,
    };
    let StartedAnswer { active, echo, ignored, vocab } = started;
    let response = if streams {
        let context = RecordContext { vocab: &vocab, echo: &echo };
        let chunks = ChunkWriter::new().obfuscate(obfuscation);
        stream(&app, DirectAnswer::open(active, &context, chunks))
    } else {
        full(&app, vocab, active, &echo).await?
    };
    Ok(with_ignored(response, &ignored))
}

/// Begins an answer, and stores it if its request asks for that.
async fn begin(
    app: &App,
    mut request: Request,
    arrived: Duration,
    head: &Parts,
) -> Result<Answer, ApiError> {
    let (owner, store) = (request.identity.owner(), request.store.take());
    let mut answer = match store {
        None => match app.models.find(request.model.as_deref())?.constant() {
            Some(service) => return service.answer(request, arrived, head, &app.bodies).await,
            None => app.models.start(request, arrived).await?,
        },
        // What is stored must be read, even if an upstream server's response could pass unread.
        Some(_) => app.models.start(request, arrived).await?,
    };
    let of = (owner, AnswerFence::FIRST);
    stored_chats::record(app, &answer.vocab, of, store, &mut answer.active);
    Ok(Answer::Started(Box::new(answer)))
}

/// Passes on `/v1/models`, `/tokenize` and the like if there is an upstream server, other APIs if
/// it supports them, and routes added by the operator. Completions are not passed on here, because
/// streams are relayed.
async fn ask_upstream(
    State(app): Shared,
    request: HttpRequest<Body>,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(upstream) = sole_upstream(&app) {
        let path = request.uri().path();
        let is_chosen = paths::is_lowered(path) && upstream.is_chosen(request.method(), path);
        if is_chosen || upstream.takes(path, request.headers()).await? {
            return pass_on(&app, upstream, request).await;
        }
    } else if app.models.has_upstreams() && is_for_model(request.method(), request.uri().path()) {
        return match by_model(&app, request).await? {
            Ok(response) => Ok(response),
            Err(request) => Ok(next.run(request).await),
        };
    }
    Ok(next.run(request).await)
}

/// Returns the upstream for all requests that this server does not answer itself, whichever model
/// they name: one without a configured name, which is the only one.
fn sole_upstream(app: &App) -> Option<&Arc<Upstream>> {
    let upstream = app.service().and_then(|service| service.upstream());
    upstream.filter(|upstream| upstream.name().is_none())
}

/// Returns true if the model in a request's body selects the servers that get it unchanged.
fn is_for_model(method: &Method, path: &str) -> bool {
    method == Method::POST && Way::of(path) == Way::PassedOn
}

/// Passes a request on to the servers of the model that its body names. Returns the request if that
/// model is in this process.
async fn by_model(
    app: &App,
    request: HttpRequest<Body>,
) -> Result<Result<Response, HttpRequest<Body>>, ApiError> {
    let (mut parts, body) = request.into_parts();
    let (body, charge) = app.bodies.receive(&mut parts, body).await?.into_parts();
    let model = model_of(&body);
    let service = app.models.find(model.as_deref())?.constant();
    let remote = service.and_then(|service| Some((service, service.upstream()?)));
    let Some((service, upstream)) = remote else {
        // Whoever reads it is charged again.
        drop(charge);
        return Ok(Err(HttpRequest::from_parts(parts, body.into())));
    };
    let target = upstream.admit(&parts.method, &parts.uri)?;
    let identity = parts.extensions.get().cloned().unwrap_or_default();
    let (permits, tenant) = (service.admit(&identity, 1, 1)?, identity.scheduled());
    upstream.pass_on(target, &parts.headers, body, tenant, permits).await.map(Ok)
}

/// Passes on requests for unknown paths if they are among the upstream's routes.
async fn elsewhere(
    State(app): Shared,
    mut request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    if let Some(upstream) = sole_upstream(&app) {
        let identity = identify(&app, &request)?;
        request.extensions_mut().insert(identity);
        return pass_on(&app, upstream, request).await;
    }
    if app.models.has_upstreams() && request.method() == Method::POST {
        let identity = identify(&app, &request)?;
        request.extensions_mut().insert(identity);
        match by_model(&app, request).await? {
            Ok(response) => return Ok(response),
            Err(given_back) => request = given_back,
        }
    }
    let known = known(&app, &request);
    Err(ApiError::not_found(request.method(), request.uri().path(), &known))
}

/// Describes the existing base URLs, for a client that requested an unknown path.
fn known(app: &App, request: &HttpRequest<Body>) -> String {
    let scheme = if request.extensions().get::<Encrypted>().is_some() { "https" } else { "http" };
    let host = requested_authority(request).map_or_else(|| "HOST".into(), |host| host.to_string());
    let ollama = if app.config.offers_ollama() { " and Ollama's" } else { "" };
    format!(
        "The base URL of OpenAI's API is {scheme}://{host}/v1; that of Anthropic's{ollama} is \
         {scheme}://{host}."
    )
}

async fn pass_on(
    app: &App,
    upstream: &Upstream,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let target = upstream.admit(&parts.method, &parts.uri)?;
    // Embeddings and the like are the upstream's work as much as completions are.
    let works = !parts.method.is_safe();
    let identity = parts.extensions.get().cloned().unwrap_or_default();
    let permits = match app.service().filter(|_| works) {
        Some(service) => service.admit(&identity, 1, 1)?,
        None => Vec::new(),
    };
    let (body, _charge) = app.bodies.receive(&mut parts, body).await?.into_parts();
    upstream.pass_on(target, &parts.headers, body, identity.scheduled(), permits).await
}

fn stream(app: &App, (answer, preface): (DirectAnswer<ChunkWriter>, Vec<u8>)) -> Response {
    event_stream(Body::new(SseBody::new(answer, preface, app.config.heartbeat)))
}

async fn full(
    app: &App,
    vocab: Arc<dyn Vocab>,
    active: ActiveRequest,
    echo: &[String],
) -> Result<Response, ApiError> {
    let answer = FullAnswer::collect(active, echo).await?;
    let is_large = answer.bytes() > SMALL_BYTES;
    let render = move || Ok(full_response(&answer, &*vocab).to_string());
    Ok(json_text(app.bodies.workers().run_if(is_large, render).await?))
}

async fn models(State(app): Shared, headers: HeaderMap) -> Result<Response, ApiError> {
    app.models.first()?;
    if headers.contains_key(VERSION) {
        return Ok(json_response(&anthropic::models(&app.models)));
    }
    let cards: Vec<_> = app.models.entries().iter().map(ModelEntry::card).collect();
    Ok(json_response(&json!({"object": "list", "data": cards})))
}

async fn model(
    State(app): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let entry = app.models.named(&id)?;
    if headers.contains_key(VERSION) {
        return Ok(json_response(&anthropic::model(entry)));
    }
    Ok(json_response(&entry.card()))
}

/// Answers 200 unless the engine has failed for good: supervisors restart a process that is not
/// alive, and one that still loads its model is.
async fn live(State(app): Shared) -> Result<Response, ApiError> {
    app.alive()?;
    Ok(json_response(&json!({"status": "alive"})))
}

async fn health(State(app): Shared) -> Result<Response, ApiError> {
    app.alive()?;
    // 503 while the model loads, as llama-server has it.
    app.models.first()?;
    let mut health = json!({"status": "ok"});
    if app.store.shared().is_some() {
        // Not a failure: answers go on without it, and a restart would not bring it back.
        health["store"] = json!(if app.store.outage().is_some() { "away" } else { "ok" });
    }
    if let Some(why) = app.service().and_then(|service| service.health().outage()) {
        // The process is of use nevertheless: its answers go on when the engine is back.
        health["engine"] = json!({"status": "lost", "reason": why});
    }
    Ok(json_response(&health))
}

async fn ready(State(app): Shared) -> Result<Response, ApiError> {
    app.ready()?;
    app.models.check_servers()?;
    let mut model = app.models.first()?.name().to_owned();
    let mut id = Some(model.clone());
    if let Some(upstream) = sole_upstream(&app) {
        upstream.check_ready().await?;
        // Only a name that the upstream has told can be asked for.
        id = upstream.known_model().await;
        model = id.clone().unwrap_or(model);
    }
    Ok(json_response(&json!({"status": "ready", "model": model, "model_id": id})))
}

async fn metrics(State(app): Shared) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4");
    let model = app.models.first().map(ModelEntry::name).unwrap_or_default();
    let text = app.metrics.render_as(app.config.metrics_names, model);
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

/// Checks the key, passes the identity to the handler, and adds the remaining budgets to the
/// response.
async fn authorize(
    State(app): Shared,
    mut request: HttpRequest<Body>,
    next: Next,
) -> Result<Response, ApiError> {
    let identity = identify(&app, &request)?;
    request.extensions_mut().insert(identity.clone());
    let mut response = next.run(request).await;
    add_rate_headers(app.models.budget_levels(&identity), response.headers_mut());
    // For the line in the log.
    response.extensions_mut().insert(identity);
    Ok(response)
}

/// Returns the identity of a request's sender, if it may send the request.
fn identify(app: &App, request: &HttpRequest<Body>) -> Result<Identity, ApiError> {
    let identity = match request.extensions().get() {
        Some(EarlyIdentity(known)) => known.clone(),
        None => app.identify(request.headers(), request.extensions().get().copied()),
    }?;
    identity.check_scope(request.method(), request.uri().path())?;
    Ok(identity)
}
