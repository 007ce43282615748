//! Filters the headers that pass between a client and an upstream server.
//!
//! An upstream trusts this server, not its clients: a header that names a client, its page or the
//! proxies before it would be believed there. Likewise, a header that an upstream sends to browsers
//! would apply to this server's own origin.

use http::header::{self, HeaderMap};
use loquent_openai::headers::{CREDENTIALS, end_to_end};

use loquent_serving::confine::confine;

/// Request headers that are not forwarded: a client's secrets and location, and headers by which
/// some servers override the method, path or address that was checked.
const REQUEST_NAMES: [&str; 23] = [
    "authorization",
    "cf-connecting-ip",
    "client-ip",
    "cookie",
    "cookie2",
    "expect",
    "forwarded",
    "http2-settings",
    "max-forwards",
    "origin",
    "proxy",
    "referer",
    "true-client-ip",
    "upgrade-insecure-requests",
    "via",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
];
const REQUEST_PREFIXES: [&str; 6] =
    ["access-control-", "proxy-", "sec-", "x-envoy-", "x-forwarded-", "x-loquent-"];

/// Response headers that are not forwarded: browser state and policies for this origin, and
/// instructions to a reverse proxy before this server.
const RESPONSE_NAMES: [&str; 22] = [
    "alt-svc",
    "clear-site-data",
    "content-location",
    "link",
    "location",
    "nel",
    "origin-agent-cluster",
    "permissions-policy",
    "public-key-pins",
    "referrer-policy",
    "refresh",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "set-cookie2",
    "sourcemap",
    "speculation-rules",
    "strict-transport-security",
    "x-frame-options",
    "x-sendfile",
    "x-sourcemap",
];
const RESPONSE_PREFIXES: [&str; 8] = [
    "access-control-",
    "content-security-policy",
    "cross-origin-",
    "proxy-",
    "sec-",
    "x-accel-",
    "x-lighttpd-",
    "x-loquent-",
];

fn keep(headers: &HeaderMap, refused: impl Fn(&str) -> bool) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for (name, value) in &end_to_end(headers) {
        if !refused(name.as_str()) {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

fn begins_with(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns a request's headers for the upstream, without `Authorization`, which is set separately.
/// `with_credentials`: the client's keys are meant for the upstream.
pub fn for_upstream(headers: &HeaderMap, with_credentials: bool) -> HeaderMap {
    keep(headers, |name| {
        REQUEST_NAMES.contains(&name)
            || begins_with(name, &REQUEST_PREFIXES)
            || !with_credentials && CREDENTIALS.contains(&name)
    })
}

/// Returns a response's headers for the client. `Content-Length` stays, because the body passes
/// byte by byte and a response to HEAD has no other.
pub fn for_client(headers: &HeaderMap) -> HeaderMap {
    let mut kept = keep(headers, |name| {
        RESPONSE_NAMES.contains(&name) || begins_with(name, &RESPONSE_PREFIXES)
    });
    if let Some(length) = headers.get(header::CONTENT_LENGTH) {
        kept.insert(header::CONTENT_LENGTH, length.clone());
    }
    confine(&mut kept);
    kept
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(names: &[&str]) -> HeaderMap {
        let pair = |name: &&str| (name.parse().unwrap(), HeaderValue::from_static("1"));
        names.iter().map(pair).collect()
    }

    #[test]
    fn a_clients_secrets_and_whereabouts_stay_here() {
        let mut sent = headers(&["x-own", "accept", "x-api-key", "openai-project"]);
        sent.extend(headers(&REQUEST_NAMES));
        sent.extend(headers(&["x-forwarded-for", "sec-fetch-site", "proxy-foo", "te", "x-mine"]));
        sent.insert("connection", HeaderValue::from_static("x-mine"));
        assert_eq!(for_upstream(&sent, false), headers(&["x-own", "accept"]));
        let with = headers(&["x-own", "accept", "x-api-key", "openai-project"]);
        assert_eq!(for_upstream(&sent, true), with);
    }

    #[test]
    fn an_upstream_tells_browsers_nothing_about_this_origin() {
        let mut sent = headers(&["x-request-id", "retry-after", "content-length"]);
        sent.extend(headers(&RESPONSE_NAMES));
        sent.extend(headers(&["access-control-allow-origin", "x-accel-redirect", "keep-alive"]));
        let mut kept = headers(&["x-request-id", "retry-after", "content-length"]);
        confine(&mut kept);
        assert_eq!(for_client(&sent), kept);
    }
}
