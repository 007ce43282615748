//! Middleware of every HTTP request: assigns its id, and logs it if it is refused or has no answer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use http::{Method, Request};

use crate::app::App;
use crate::routes::ui_stream::without_tokens;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;
use loquent_serving::request_log::{OtherLine, REQUEST_ID_HEADER, RequestId};

/// Assigns each request its id, and counts and logs the requests that are refused or have no
/// answer, such as embeddings. Answers are logged when they end.
pub async fn observe(
    State(app): State<Arc<App>>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let known = request.extensions().get::<RequestId>().cloned();
    let id = known.unwrap_or_else(|| RequestId::of(request.headers()));
    request.extensions_mut().insert(id.clone());
    let seen = app
        .request_log
        .is_on()
        .then(|| (request.method().clone(), request.uri().path().to_owned(), app.clock.now()));
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    if status >= 400 {
        app.metrics.on_refusal(status);
    }
    if let Some((method, path, arrived)) = seen
        && !id.has_answer()
        && is_worth_a_line(&method, &path, status)
    {
        app.request_log.note_other(|| OtherLine {
            request: id.clone(),
            key: response.extensions().get::<Identity>().and_then(|who| who.key.clone()),
            method,
            path: without_tokens(&path),
            status,
            error: response.extensions().get::<ApiError>().map(ApiError::label),
            took: Some(app.clock.now().saturating_sub(arrived)),
        });
    }
    // An upstream server's own id stays, because that server's log has it.
    response.headers_mut().entry(REQUEST_ID_HEADER).or_insert_with(|| id.header());
    response
}

/// Returns true if a request without an answer is logged: if it is refused, or its method changes
/// state. Health checks arrive every second, and are not logged.
fn is_worth_a_line(method: &Method, path: &str, status: u16) -> bool {
    let is_probe = matches!(path, "/live" | "/health" | "/ready" | "/metrics");
    !is_probe && (status >= 400 || !method.is_safe())
}
