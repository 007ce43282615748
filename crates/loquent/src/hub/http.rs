//! HTTP for the hub: redirects, limits on where the token is sent, and the meaning of refusals.

use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::http::{Method, Request, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};

use super::config::Hub;
use super::error::HubError;
use super::spec::HubSpec;

/// Maximum redirects. The hub redirects once to its storage, and once more for a renamed
/// repository; the rest is reserve for mirrors.
const MAX_REDIRECTS: usize = 8;

/// Characters that need no escape in one segment of a path (RFC 3986, section 2.3).
pub(super) const IN_SEGMENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const IN_PATH: &AsciiSet = &IN_SEGMENT.remove(b'/');

/// TLS that trusts the authorities of the operating system.
pub(crate) fn system_tls() -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build()
}

impl Hub {
    /// Creates an HTTP client that never hangs: a minute without a byte counts as a broken
    /// connection.
    pub(super) fn agent(&self) -> ureq::Agent {
        ureq::Agent::config_builder()
            .tls_config(system_tls())
            .http_status_as_error(false)
            // `send` follows redirects itself.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            // No limit for the whole transfer: a large model over a slow line takes hours.
            .timeout_per_read(Some(Duration::from_secs(60)))
            .user_agent(concat!("loquent/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent()
    }

    /// Sends a request without a body and follows redirects itself: the token goes only to the
    /// endpoint's own origin (`ureq`'s notion of the same host ignores the port). With
    /// `describing`, a response that already describes the file is not followed further.
    pub(super) fn send(
        &self,
        agent: &ureq::Agent,
        method: &Method,
        url: &str,
        range: Option<&str>,
        describing: bool,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let mut request = Request::builder().method(method).uri(&url);
            // Compared for each redirect: the storage must not receive the token, while a renamed
            // repository on the hub's own origin still needs it.
            if let Some(token) =
                self.token.as_ref().filter(|_| origin(&url) == origin(&self.endpoint))
            {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("range", range);
            }
            let answer = agent.run(request.body(())?)?;
            let header = |name: &str| answer.headers().get(name)?.to_str().ok();
            let Some(to) = header("location").filter(|_| answer.status().is_redirection()) else {
                return Ok(answer);
            };
            if describing && header("x-linked-etag").is_some() {
                return Ok(answer);
            }
            url = follow(&url, to)?;
        }
        Err(ureq::Error::TooManyRedirects)
    }

    /// Returns the error of a request without a usable answer, with the proxy that it went through.
    pub(super) fn unreachable(&self, why: &dyn std::fmt::Display) -> HubError {
        // The agent reads the same variables.
        let proxy = ureq::Proxy::try_from_env().filter(|proxy| {
            let endpoint = self.endpoint.parse::<Uri>();
            !endpoint.is_ok_and(|endpoint| proxy.is_no_proxy(&endpoint))
        });
        let through = proxy.map_or(String::new(), |proxy| {
            format!(" (through the proxy {}:{})", proxy.host(), proxy.port())
        });
        HubError::Unreachable { endpoint: self.endpoint.clone(), why: format!("{why}{through}") }
    }

    /// Returns the URL of a file's content; the hub redirects large ones to its storage.
    pub(super) fn file_url(&self, spec: &HubSpec, commit: &str, path: &str) -> String {
        let path = utf8_percent_encode(path, IN_PATH);
        format!("{}/{}/resolve/{commit}/{path}", self.endpoint, spec.repo)
    }

    /// Returns the error for a response other than success; the hub's `X-Error-Code` header
    /// identifies the case.
    pub(super) fn refusal(
        &self,
        spec: &HubSpec,
        url: &str,
        answer: &Response<ureq::Body>,
    ) -> HubError {
        let status = answer.status().as_u16();
        let code = answer.headers().get("x-error-code").and_then(|code| code.to_str().ok());
        let (endpoint, repo) = (self.endpoint.clone(), spec.repo.clone());
        let with_token = self.token.is_some();
        match (status, code) {
            // Without a token the hub answers 401 for repositories that do not exist, so as not to
            // reveal private ones; only the code tells the two cases apart.
            (404, _) | (401, Some("RepoNotFound" | "RevisionNotFound")) => {
                let revision = spec.revision.clone();
                HubError::RepoNotFound { endpoint, repo, revision, with_token }
            }
            (401 | 403, _) => HubError::AccessDenied { endpoint, repo, status, with_token },
            _ => HubError::Status { url: without_query(url), status },
        }
    }
}

/// Returns the target URL of a redirect from `url` to `location`.
///
/// # Errors
/// If it leads from HTTPS to HTTP: an attacker on the network could then choose the files and their
/// hashes.
fn follow(url: &str, location: &str) -> Result<String, ureq::Error> {
    // `//host/path` has no scheme, but names another host.
    let relative = location.starts_with('/') && !location.starts_with("//");
    let base = origin(url).filter(|_| relative).unwrap_or_default();
    let to = format!("{base}{location}");
    let is_https = |url: &str| url.get(..8).is_some_and(|it| it.eq_ignore_ascii_case("https://"));
    if is_https(url) && !is_https(&to) {
        return Err(ureq::Error::RequireHttpsOnly(without_query(&to)));
    }
    Ok(to)
}

/// Returns `scheme://host:port` of a URL; `None` if it is not a URL.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

/// Returns the URL for a message, without its query: a signed query is a secret.
fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_never_lead_from_https_to_http() {
        for (from, to, expected) in [
            ("https://hub.example/a", "https://cdn.example/b?s=1", "https://cdn.example/b?s=1"),
            ("https://hub.example/a", "/b", "https://hub.example/b"),
            ("http://mirror.lan:81/a", "/b", "http://mirror.lan:81/b"),
            ("http://mirror.lan/a", "http://cdn.lan/b", "http://cdn.lan/b"),
            ("http://mirror.lan/a", "https://cdn.example/b", "https://cdn.example/b"),
        ] {
            assert_eq!(follow(from, to).unwrap(), expected);
        }
        for to in ["http://hub.example/a", "HTTP://cdn.example/b", "//cdn.example/b", "ftp://x/b"] {
            let error = follow("https://hub.example/a", to).unwrap_err();
            assert!(matches!(error, ureq::Error::RequireHttpsOnly(_)), "{to}: {error}");
        }
    }
}
