//! Selects the requests that an upstream server gets: those on a list of routes, with paths that
//! mean the same to every server on the way.

use std::fmt;
use std::str::FromStr;

use http::uri::PathAndQuery;
use http::{Method, Uri};

use loquent_serving::error::ApiError;

/// Routes by which clients of the usual servers (vLLM, SGLang, llama-server, Ollama, OpenAI) get
/// answers. Routes that manage a server, its files or its adapters are absent.
const DEFAULT_ROUTES: [&str; 14] = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /v1/score",
    "POST /rerank",
    "POST /score",
    "POST /tokenize",
    "POST /detokenize",
    "GET /v1/models",
    "GET /v1/models/*",
];

/// Routes to objects stored by an upstream, by ids that it made. They are absent where this server
/// authenticates clients and the upstream does not: anyone with an id could access the object.
const STORED_ROUTES: [&str; 3] =
    ["GET /v1/responses/*", "POST /v1/responses/*", "DELETE /v1/responses/*"];

/// Paths at which a request body names a model.
const MODEL_PATHS: [&str; 6] =
    ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/score", "/rerank"];

/// A method and a path that clients may use at an upstream server, such as `POST /v1/embeddings`. A
/// path that ends with `/*` covers all paths below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamRoute {
    method: Method,
    path: String,
    /// True if the route covers the paths below `path`, which then ends with a slash.
    below: bool,
}

/// Error: a text is not an [`UpstreamRoute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a route is a method and a path without escapes, such as 'POST /v1/audio/speech' or 'GET /v1/files/*'; TRACE and CONNECT cannot be passed on"
)]
pub struct NoRoute;

impl FromStr for UpstreamRoute {
    type Err = NoRoute;

    fn from_str(text: &str) -> Result<Self, NoRoute> {
        let (method, path) = text.trim().split_once(' ').ok_or(NoRoute)?;
        let method: Method = method.to_ascii_uppercase().parse().map_err(|_| NoRoute)?;
        let path = path.trim();
        let below = path.ends_with("/*");
        let path = path.strip_suffix('*').filter(|_| below).unwrap_or(path);
        let plain = path.starts_with('/') && !path.contains(['%', '?', '#', '*', '\\', ' ']);
        let named = path.strip_suffix('/').filter(|_| below).unwrap_or(path);
        let passes = method != Method::TRACE && method != Method::CONNECT;
        if !passes || !plain || !is_plain(named) {
            return Err(NoRoute);
        }
        Ok(Self { method, path: path.to_owned(), below })
    }
}

impl fmt::Display for UpstreamRoute {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}{}", self.method, self.path, if self.below { "*" } else { "" })
    }
}

impl UpstreamRoute {
    fn covers(&self, method: &Method, path: &str) -> bool {
        // A HEAD request is answered like GET, without the body.
        let same = self.method == *method || self.method == Method::GET && *method == Method::HEAD;
        let rest = path.strip_prefix(&self.path);
        same && rest.is_some_and(|rest| rest.is_empty() != self.below)
    }
}

/// Routes of one upstream server.
#[derive(Debug, Clone)]
pub struct UpstreamRoutes {
    usual: Vec<UpstreamRoute>,
    /// Routes that the operator has added.
    chosen: Vec<UpstreamRoute>,
}

/// Method and path of a request that may be sent to the upstream server.
#[derive(Debug, Clone)]
pub struct UpstreamTarget {
    /// The method.
    pub method: Method,
    /// Path and query, appended to the upstream's base path, which they cannot leave.
    pub path: PathAndQuery,
}

/// Methods whose requests may have a body. Servers that read no body with other methods take it for
/// the next request on the connection (request smuggling): one past the list of routes, whose
/// response may reach another client.
const METHODS_WITH_BODY: [Method; 3] = [Method::POST, Method::PUT, Method::PATCH];

impl UpstreamTarget {
    /// Checks that a request with this method may have a body of so many bytes.
    ///
    /// # Errors
    /// 400 for any body with a method that has none.
    pub fn check_body_bytes(&self, bytes: u64) -> Result<(), ApiError> {
        if bytes == 0 || METHODS_WITH_BODY.contains(&self.method) {
            return Ok(());
        }
        let method = &self.method;
        Err(ApiError::invalid(format!(
            "A {method} request with a body is not passed on to the upstream server. Send it \
             without a body."
        )))
    }

    /// Returns true if the body is a request to a model.
    pub fn asks_model(&self) -> bool {
        self.method == Method::POST && MODEL_PATHS.contains(&self.path.path())
    }
}

impl UpstreamRoutes {
    /// Combines the usual routes and `more`. `keeps_keys`: this server authenticates clients.
    pub fn with(more: &[UpstreamRoute], keeps_keys: bool) -> Self {
        let stored: &[&str] = if keeps_keys { &[] } else { &STORED_ROUTES };
        let usual = DEFAULT_ROUTES.iter().chain(stored);
        let usual = usual.map(|route| route.parse().expect("it is a route"));
        Self { usual: usual.collect(), chosen: more.to_vec() }
    }

    /// Returns true if a route that the operator has added covers the request.
    pub fn is_chosen(&self, method: &Method, path: &str) -> bool {
        self.chosen.iter().any(|route| route.covers(method, path))
    }

    /// Checks that clients may send a request for `uri`.
    ///
    /// # Errors
    /// 400 for a path that servers interpret in different ways, 404 for one that is not on the
    /// list.
    pub fn admit(&self, method: &Method, uri: &Uri) -> Result<UpstreamTarget, ApiError> {
        if !is_plain(uri.path()) {
            return Err(ApiError::invalid(
                "The path has empty or dot segments, escaped ones included, or a backslash. \
                 Send a plain path.",
            ));
        }
        let mut routes = self.usual.iter().chain(&self.chosen);
        if !routes.any(|route| route.covers(method, uri.path())) {
            return Err(ApiError::not_passed_on(method, uri.path()));
        }
        let path = uri.path_and_query().cloned();
        let path = path.ok_or_else(|| ApiError::not_passed_on(method, uri.path()))?;
        Ok(UpstreamTarget { method: method.clone(), path })
    }
}

/// Returns true if every server resolves `path` to the same place, however it decodes and
/// normalizes. An escaped slash counts as a slash: whether or not a server treats it as one, the
/// path stays below the same folder.
fn is_plain(path: &str) -> bool {
    let Some(path) = unescape(path) else { return false };
    let segment_is_plain = |segment: &str| {
        // Some servers drop what follows a semicolon before they look for dots.
        let name = segment.split(';').next().unwrap_or_default();
        !matches!(name, "" | "." | "..")
    };
    // An escape that is left would mean something else to a server that decodes twice.
    let odd = |c: char| c.is_control() || c == '\\' || c == '%';
    path == "/"
        || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(segment_is_plain))
            && !path.contains(odd)
}

/// Decodes the escapes of `path` once; `None` if they are malformed or the result is not UTF-8.
fn unescape(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(routes: &UpstreamRoutes, method: &str, path: &str) -> Option<u16> {
        let admitted = routes.admit(&method.parse().unwrap(), &path.parse().unwrap());
        admitted.err().map(|error| error.status())
    }

    #[test]
    fn only_listed_routes_pass() {
        let routes = UpstreamRoutes::with(&["get /v1/files/*".parse().unwrap()], true);
        for (method, path) in [
            ("POST", "/v1/embeddings?a=b"),
            ("GET", "/v1/models"),
            ("HEAD", "/v1/models"),
            ("GET", "/v1/models/org/name"),
            ("GET", "/v1/models/org%2Fname:q4"),
            ("GET", "/v1/files/a.b/c..d"),
        ] {
            assert_eq!(status(&routes, method, path), None, "{method} {path}");
        }
        for (method, path) in [
            ("GET", "/"),
            ("DELETE", "/api/delete"),
            ("DELETE", "/v1/models/m"),
            ("POST", "/v1/load_lora_adapter"),
            ("POST", "/slots?action=erase"),
            ("TRACE", "/v1/models"),
            ("GET", "/v1/embeddings"),
            ("HEAD", "/v1/embeddings"),
            ("POST", "/v1/embeddings/x"),
            ("GET", "/v1/files"),
            ("GET", "/V1/models"),
            ("GET", "/v1/model%73"),
        ] {
            assert_eq!(status(&routes, method, path), Some(404), "{method} {path}");
        }
    }

    #[test]
    fn stored_responses_pass_only_where_clients_have_keys_of_their_own() {
        let route = |keeps_keys, method| {
            status(&UpstreamRoutes::with(&[], keeps_keys), method, "/v1/responses/resp_1")
        };
        assert_eq!([route(false, "GET"), route(false, "DELETE")], [None; 2]);
        assert_eq!([route(true, "GET"), route(true, "DELETE")], [Some(404); 2]);
    }

    #[test]
    fn paths_that_servers_read_in_two_ways_are_refused() {
        let routes = UpstreamRoutes::with(&["GET /v1/files/*".parse().unwrap()], true);
        for path in [
            "/v1/models/../files",
            "/v1/models/..",
            "/v1/models/.",
            "/v1/models/",
            "/v1//models",
            "//v1/models",
            "/v1/models/%2e%2e/x",
            "/v1/models/%2E./x",
            "/v1/models/..%2fx",
            "/v1/models/a%2f..%2f..%2fx",
            "/v1/models/a%2f",
            "/v1/models/a%5c..%5cx",
            "/v1/models/..\\x",
            "/v1/models/..;v=1/x",
            "/v1/models/%252e%252e/x",
            "/v1/models/a%00",
            "/v1/models/a%0d%0aHost:x",
            "/v1/models/%ff",
            "/v1/models/%zz",
        ] {
            let Ok(uri) = path.parse::<Uri>() else { continue };
            let refused = routes.admit(&Method::GET, &uri).unwrap_err();
            assert_eq!(refused.status(), 400, "{path}");
        }
    }

    #[test]
    fn routes_are_read_as_they_are_shown() {
        for text in ["POST /v1/audio/speech", "GET /v1/files/*", "GET /"] {
            assert_eq!(text.parse::<UpstreamRoute>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "/v1/files",
            "GET v1/files",
            "TRACE /v1/files",
            "CONNECT /v1",
            "GET /a/../b",
            "GET /a%2fb",
            "GET /a b",
            "GET /a*",
            "GET //",
            "G(T /a",
        ] {
            assert_eq!(bad.parse::<UpstreamRoute>(), Err(NoRoute), "{bad:?}");
        }
    }
}
