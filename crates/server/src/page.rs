//! The chat page, embedded in the binary.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Request, header};

use crate::app::{App, QuicAddress};
use crate::hosts::{is_loopback, requested_authority};

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

/// The page uses none of these, so that no script on it may.
const PERMISSIONS: &str = "camera=(), microphone=(), geolocation=(), display-capture=(), usb=(), \
                           serial=(), hid=(), bluetooth=(), payment=(), midi=()";

/// Routes that serve the page's files.
pub fn routes() -> Router<Arc<App>> {
    FILES.into_iter().fold(Router::new(), |router, (path, content_type, body)| {
        let file = async move |State(app): State<Arc<App>>, request: Request<Body>| {
            let host = requested_authority(&request);
            let policy = policy(app.quic_address(), host.as_ref().map(Authority::host));
            asset(policy, content_type, body)
        };
        router.route(path, get(file))
    })
}

fn asset(policy: HeaderValue, content_type: &'static str, body: &'static str) -> Response {
    let text = HeaderValue::from_static;
    let headers = [
        (header::CONTENT_TYPE, text(content_type)),
        (header::CACHE_CONTROL, text("no-cache")),
        (header::CONTENT_SECURITY_POLICY, policy),
        (HeaderName::from_static("cross-origin-opener-policy"), text("same-origin")),
        (HeaderName::from_static("permissions-policy"), text(PERMISSIONS)),
    ];
    (headers, body).into_response()
}

/// The page's content security policy: it may load only its own files. It may connect to the
/// HTTP port and the QUIC port of the host that it came from.
fn policy(quic: Option<QuicAddress>, host: Option<&str>) -> HeaderValue {
    let hosts = host.map(quic_hosts).unwrap_or_default();
    let quic = quic.map(|quic| quic.port);
    let quic: String = quic
        .into_iter()
        .flat_map(|port| hosts.iter().map(move |host| format!(" https://{host}:{port}")))
        .collect();
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{quic}; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("ASCII")
}

/// The names under which the page may reach the QUIC port, as sources of a policy.
fn quic_hosts(host: &str) -> Vec<&str> {
    // `localhost` may mean ::1, from which browsers do not fall back to 127.0.0.1 by themselves.
    if is_loopback(host) {
        return vec!["localhost", "127.0.0.1"];
    }
    // Policies cannot name IPv6 addresses ('self' covers their HTTP port), and a name may hold
    // characters that would end the source.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if host.bytes().all(is_name) { vec![host] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(host: Option<&str>) -> String {
        let quic = QuicAddress { port: 4433, certificate_sha256: None };
        let policy = policy(Some(quic), host).to_str().unwrap().to_owned();
        let (_, connect) = policy.split_once("connect-src ").unwrap();
        connect.split_once(';').unwrap().0.to_owned()
    }

    #[test]
    fn the_page_may_connect_to_its_own_host_alone() {
        assert_eq!(sources(Some("a.example")), "'self' https://a.example:4433");
        assert_eq!(sources(Some("10.0.0.1")), "'self' https://10.0.0.1:4433");
        let loopback = "'self' https://localhost:4433 https://127.0.0.1:4433";
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            assert_eq!(sources(Some(host)), loopback);
        }
        for host in [None, Some("[2001:db8::1]"), Some("a;script-src"), Some("a,b"), Some("*")] {
            assert_eq!(sources(host), "'self'", "{host:?}");
        }
    }
}
