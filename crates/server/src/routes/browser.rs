//! Response headers for browsers, and refusal of requests from foreign pages.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};

use crate::app::App;
use crate::hosts::requested_authority;
use crate::origin::is_page_of_host;
use loquent_serving::error::{ApiError, no_content};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Headers allowed to a page that does not list those it wants to send.
const USUAL_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, idempotency-key, last-event-id, x-loquent-stream-token",
);
/// Response headers that pages may read.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "etag, retry-after, stream-closed, stream-cursor, stream-next-offset, stream-up-to-date, \
     x-loquent-ignored-parameters, x-loquent-stream-id, x-loquent-stream-token, \
     x-loquent-warning, x-vercel-ai-ui-message-stream, x-workflow-run-id, \
     x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, \
     x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens, \
     x-request-id",
);
/// Time for which browsers may cache a preflight's response, in seconds: Chromium's maximum.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("7200");
/// Maximum number of headers in a preflight request. OpenAI's SDK asks for a dozen.
const MAX_ASKED: usize = 64;
const FOREIGN_PAGE: &str =
    "Pages of this origin may not use the server. Allow the origin with --cors-origin.";
const REQUEST_PRIVATE_NETWORK: &str = "access-control-request-private-network";
const ALLOW_PRIVATE_NETWORK: &str = "access-control-allow-private-network";

/// Refuses requests with a foreign host name, and requests from foreign pages' scripts. Allows
/// pages that may use the API to read its responses, refusals included.
pub async fn guard(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.filter(|origin| app.config.allows_origin(origin.as_bytes()));
    // A preflight carries no API key, so that it must not reach the routes.
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ORIGIN);
    let asked = is_preflight.then(|| request.headers().clone());
    let mut response = match refusal(&app, &request, allowed.is_some()) {
        Some(refusal) => refusal.into_response(),
        None if is_preflight => no_content(),
        None => next.run(request).await,
    };
    if let Some(origin) = allowed {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        // Caches must not give one origin's response to another.
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        if let Some(asked) = asked {
            allow_request(&asked, headers);
        }
    }
    response
}

/// Returns the reason to refuse a request before it runs. CORS alone would only hide the response
/// from the page, while the request would already have had its effect.
fn refusal(app: &App, request: &Request<Body>, is_allowed: bool) -> Option<ApiError> {
    if let Some(host) = app.config.allowed_hosts.refused(request) {
        return Some(ApiError::foreign_host(&host));
    }
    let Some(origin) = request.headers().get(header::ORIGIN) else {
        let foreign = is_foreign_fetch(request.headers(), request.uri().path());
        return foreign.then(|| ApiError::forbidden(FOREIGN_PAGE));
    };
    let host = requested_authority(request);
    let is_own = host.is_some_and(|host| is_page_of_host(origin.as_bytes(), &host));
    (!is_own && !is_allowed).then(|| ApiError::forbidden(FOREIGN_PAGE))
}

/// Returns true for a request without an Origin that a foreign page causes, such as for an image,
/// as browsers tell by Fetch Metadata. A link to a page of this server is none, but a link to a
/// path of its APIs is: following it would run something.
fn is_foreign_fetch(headers: &HeaderMap, path: &str) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|it| it == value);
    let is_api = path.starts_with("/v1/") || path.starts_with("/api/");
    is("sec-fetch-site", "cross-site") && (is_api || !is("sec-fetch-mode", "navigate"))
}

/// Adds the response headers of a preflight with the request headers `asked`.
fn allow_request(asked: &HeaderMap, headers: &mut HeaderMap) {
    let names = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).and_then(header_names);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.unwrap_or(USUAL_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    headers.append(header::VARY, HeaderValue::from_static("Access-Control-Request-Headers"));
    if asked.get(REQUEST_PRIVATE_NETWORK).is_some_and(|asked| asked == "true") {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
}

/// Returns the list of header names in `asked`, normalized; `None` if it is anything else.
fn header_names(asked: &HeaderValue) -> Option<HeaderValue> {
    let names = asked.to_str().ok()?.split(',').map(|name| name.trim().parse::<HeaderName>());
    let names = names.take(MAX_ASKED + 1).collect::<Result<Vec<_>, _>>().ok()?;
    if names.len() > MAX_ASKED {
        return None;
    }
    let names: Vec<_> = names.iter().map(HeaderName::as_str).collect();
    HeaderValue::try_from(names.join(", ")).ok()
}

/// Adds security headers to every response that lacks them: content that is not a page must not act
/// as one, be sniffed as one, or be embedded in one.
pub async fn harden(request: Request<Body>, next: Next) -> Response {
    const HEADERS: [(HeaderName, &str); 4] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'; sandbox"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &str) -> Option<String> {
        let names = header_names(&HeaderValue::from_str(asked).unwrap())?;
        Some(names.to_str().unwrap().to_owned())
    }

    #[test]
    fn foreign_pages_cause_nothing_without_an_origin() {
        let foreign = |site: &'static str, mode: &'static str, path| {
            let mut headers = HeaderMap::new();
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
            headers.insert("sec-fetch-mode", HeaderValue::from_static(mode));
            is_foreign_fetch(&headers, path)
        };
        assert!(foreign("cross-site", "no-cors", "/v1/lab/run"), "an image");
        assert!(foreign("cross-site", "navigate", "/v1/lab/run"), "a link or a frame");
        assert!(foreign("cross-site", "no-cors", "/metrics"));
        assert!(!foreign("cross-site", "navigate", "/"), "a link to the page");
        assert!(!foreign("same-origin", "cors", "/v1/lab/run"));
        assert!(!foreign("none", "navigate", "/v1/models"), "typed into the address bar");
        assert!(!is_foreign_fetch(&HeaderMap::new(), "/v1/models"), "no browser");
    }

    #[test]
    fn a_preflight_gets_the_header_names_that_it_asks_for_and_nothing_else() {
        let asked = "authorization,content-type, X-Stainless-OS ,x-stainless-retry-count";
        let expected = "authorization, content-type, x-stainless-os, x-stainless-retry-count";
        assert_eq!(names(asked).as_deref(), Some(expected));
        for wrong in ["", "a,,b", "a b", "a: b", "a;b", "(a)", "a\tb"] {
            assert_eq!(names(wrong), None, "{wrong}");
        }
        assert!(names(&vec!["a"; MAX_ASKED].join(",")).is_some());
        assert_eq!(names(&vec!["a"; MAX_ASKED + 1].join(",")), None);
    }
}
