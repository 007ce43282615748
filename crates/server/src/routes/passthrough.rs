//! Requests that are passed on to upstream servers, as they came.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use http::{Method, Request as HttpRequest};

use crate::app::App;
use crate::hosts::requested_authority;
use crate::routes::authorize::identify;
use loquent_dialects::paths;
use loquent_gateway::Upstream;
use loquent_gateway::models::model_of;
use loquent_gateway::supported_apis::Way;
use loquent_serving::error::ApiError;
use loquent_serving::obfuscation::Encrypted;

type Shared = State<Arc<App>>;

/// Adds the version to a request for one of OpenAI's paths without it, unless the operator passes
/// that exact path on to an upstream server.
pub fn with_version(app: &App, mut request: HttpRequest<Body>) -> HttpRequest<Body> {
    let Some(uri) = paths::versioned(request.uri()) else { return request };
    let upstream = sole_upstream(app);
    if !upstream.is_some_and(|it| it.is_chosen(request.method(), request.uri().path())) {
        *request.uri_mut() = uri;
    }
    request
}

/// Passes on `/v1/models`, `/tokenize` and the like if there is an upstream server, other APIs if
/// it supports them, and routes added by the operator. Completions are not passed on here, because
/// streams are relayed.
///
/// # Errors
/// Those of the handler; those of [`Upstream::admit`] and [`Upstream::pass_on`].
pub async fn ask_upstream(
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
pub fn sole_upstream(app: &App) -> Option<&Arc<Upstream>> {
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
///
/// # Errors
/// 404 for other paths; 401 and 403 as for known ones; those of [`Upstream::pass_on`].
pub async fn elsewhere(
    State(app): Shared,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let request = match to_upstream(&app, request).await? {
        Ok(response) => return Ok(response),
        Err(given_back) => given_back,
    };
    let known = known(&app, &request);
    Err(ApiError::not_found(request.method(), request.uri().path(), &known))
}

/// Passes on requests for methods that a known path has at an upstream server alone.
///
/// # Errors
/// 405 without such a server; 401 and 403 as for known methods; those of [`Upstream::pass_on`].
pub async fn other_method(
    State(app): Shared,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let refuse = |request: HttpRequest<Body>| {
        ApiError::method_not_allowed(request.method(), request.uri().path())
    };
    to_upstream(&app, request).await?.map_err(refuse)
}

/// Passes a request on to the only upstream, or to that of the model which its body names. Returns
/// the request if there is none.
async fn to_upstream(
    app: &App,
    mut request: HttpRequest<Body>,
) -> Result<Result<Response, HttpRequest<Body>>, ApiError> {
    if let Some(upstream) = sole_upstream(app) {
        let identity = identify(app, &request)?;
        request.extensions_mut().insert(identity);
        return pass_on(app, upstream, request).await.map(Ok);
    }
    if app.models.has_upstreams() && request.method() == Method::POST {
        let identity = identify(app, &request)?;
        request.extensions_mut().insert(identity);
        return by_model(app, request).await;
    }
    Ok(Err(request))
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
    target.check_body_bytes(http_body::Body::size_hint(&body).lower())?;
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
