//! The chat page, embedded in the binary.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, header};

use crate::app::App;

/// Names, types and contents of the page's files. `loquent-*.js` is the built web/client: see
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

/// Routes that serve the page's files.
pub fn routes() -> Router<Arc<App>> {
    FILES.into_iter().fold(Router::new(), |router, (path, content_type, body)| {
        let file = async move |State(app): State<Arc<App>>| asset(&app, content_type, body);
        router.route(path, get(file))
    })
}

fn asset(app: &App, content_type: &'static str, body: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, policy(app)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, body).into_response()
}

/// The page's content security policy: it may load only its own files. It may connect to the
/// HTTP port, and to the QUIC port under any name of this machine, because `localhost` may mean
/// ::1, from which browsers do not fall back to 127.0.0.1.
fn policy(app: &App) -> HeaderValue {
    let quic =
        app.quic_address().map(|quic| format!(" https://*:{}", quic.port)).unwrap_or_default();
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{quic}; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("ASCII")
}
