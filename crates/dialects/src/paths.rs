//! Classification of paths: those of dialects, which this server handles itself even in front of an
//! upstream server, and those that clients send without the version.

use http::Uri;
use http::uri::PathAndQuery;

/// OpenAI's paths, which clients request without `/v1` if their base URL lacks it.
const UNVERSIONED: [&str; 5] =
    ["/chat/completions", "/completions", "/embeddings", "/models", "/responses"];

/// Returns true if requests for `path` are translated to chat completions, which is also what an
/// upstream server receives.
pub fn is_lowered(path: &str) -> bool {
    path == "/v1/messages" || path.starts_with("/api/")
}

/// Returns `uri` with the version added, if it is one of OpenAI's paths without it.
pub fn versioned(uri: &Uri) -> Option<Uri> {
    let is_below = |root: &str| {
        let rest = uri.path().strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    UNVERSIONED.into_iter().find(|root| is_below(root))?;
    let full = format!("/v1{}", uri.path_and_query()?);
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(full).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openais_paths_get_their_version_and_no_others_do() {
        let versioned = |uri: &str| versioned(&uri.parse().unwrap()).map(|uri| uri.to_string());
        for (path, expected) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/completions?a=b", Some("/v1/completions?a=b")),
            ("/models/a/b", Some("/v1/models/a/b")),
            ("/responses/resp_1/cancel", Some("/v1/responses/resp_1/cancel")),
            ("http://a.example:1/models", Some("http://a.example:1/v1/models")),
            ("/v1/models", None),
            ("/modelsx", None),
            ("/completion", None),
            ("/", None),
        ] {
            assert_eq!(versioned(path).as_deref(), expected, "{path}");
        }
    }
}
