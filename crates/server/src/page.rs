//! The chat page, embedded into the binary.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, header};

/// What the page may load: only itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's routes.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route(
            "/",
            get(async || {
                asset("text/html; charset=utf-8", include_str!("../../../web/page/index.html"))
            }),
        )
        .route(
            "/chat.js",
            get(async || {
                asset("text/javascript; charset=utf-8", include_str!("../../../web/page/chat.js"))
            }),
        )
        .route(
            "/chat.css",
            get(async || {
                asset("text/css; charset=utf-8", include_str!("../../../web/page/chat.css"))
            }),
        )
        .route(
            "/favicon.svg",
            get(async || asset("image/svg+xml", include_str!("../../../web/page/favicon.svg"))),
        )
}

fn asset(content_type: &'static str, body: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, body).into_response()
}
