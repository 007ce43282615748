//! The chat page, embedded into the binary.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, header};

/// What the page may load: only itself. `'self'` covers WebTransport on the HTTP port's
/// number; on `localhost` the page also tries the literal address, since browsers do not go
/// from ::1 to it by themselves.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self' https://127.0.0.1:*; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Names, types and contents of the page's files. `loquent-*.js` is web/client, built: see
/// ARCHITECTURE.md.
const FILES: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", include_str!("../../../web/page/index.html")),
    ("/chat.js", SCRIPT, include_str!("../../../web/page/chat.js")),
    ("/strip.js", SCRIPT, include_str!("../../../web/page/strip.js")),
    ("/loquent-client.js", SCRIPT, include_str!("../../../web/page/loquent-client.js")),
    ("/loquent-worker.js", SCRIPT, include_str!("../../../web/page/loquent-worker.js")),
    ("/chat.css", "text/css; charset=utf-8", include_str!("../../../web/page/chat.css")),
    ("/favicon.svg", "image/svg+xml", include_str!("../../../web/page/favicon.svg")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page's routes.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, content_type, body)| {
        router.route(path, get(async move || asset(content_type, body)))
    })
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
