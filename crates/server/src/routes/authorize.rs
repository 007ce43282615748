//! Authentication of requests, before they reach their handlers.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use http::Request as HttpRequest;

use crate::app::App;
use crate::hosts::AllowedHosts;
use crate::rate_headers::add_rate_headers;
use loquent_serving::auth::EarlyIdentity;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;

/// Checks the key, passes the identity to the handler, and adds the remaining budgets to the
/// response.
///
/// # Errors
/// 401 without a valid key; 403 for what the key or the token does not allow.
pub async fn authorize(
    State(app): State<Arc<App>>,
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
///
/// # Errors
/// As [`authorize`].
pub fn identify(app: &App, request: &HttpRequest<Body>) -> Result<Identity, ApiError> {
    let identity = match request.extensions().get() {
        Some(EarlyIdentity(known)) => known.clone(),
        None => app
            .identify(request.headers(), request.extensions().get().copied())
            .map(|identity| identity.local_if(AllowedHosts::is_asked_locally(request))),
    }?;
    identity.check_scope(request.method(), request.uri().path())?;
    Ok(identity)
}
