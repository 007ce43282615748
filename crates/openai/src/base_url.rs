//! Base URL of a server's API.

use std::fmt;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
use loquent_proto::url_password::without_password;

use crate::HttpError;

/// Base URL of an API: `http://` or `https://`, a host, and a path prefix for all requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    is_https: bool,
    authority: Authority,
    /// Path prefix without a trailing slash.
    prefix: String,
}

impl BaseUrl {
    /// Parses `url`. Users write base URLs with and without a final `/v1`, so it is dropped;
    /// request paths start with their own.
    ///
    /// # Errors
    /// [`HttpError::Url`] with the reason.
    pub fn parse(url: &str) -> Result<Self, HttpError> {
        let refuse = |reason| HttpError::Url { url: without_password(url).into_owned(), reason };
        let uri: Uri = url.trim().parse().map_err(|_| refuse("it is not a URL"))?;
        let is_https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(refuse("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| refuse("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("a user name is not supported; use an API key"));
        }
        // Anything may stand after the colon as far as the library is concerned.
        let tail = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !tail.is_empty() && authority.port_u16().is_none() {
            return Err(refuse("its port is not a number up to 65535"));
        }
        if uri.query().is_some() {
            return Err(refuse("a query is not supported"));
        }
        let url = Self {
            is_https,
            authority: authority.clone(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        };
        Ok(url.without_suffix("/v1"))
    }

    /// Returns the URL without `suffix` at the end of its path, if present.
    #[must_use]
    pub fn without_suffix(mut self, suffix: &str) -> Self {
        if let Some(shorter) = self.prefix.strip_suffix(suffix) {
            self.prefix = shorter.to_owned();
        }
        self
    }

    /// Returns true if connections use TLS.
    pub const fn is_https(&self) -> bool {
        self.is_https
    }

    /// Host and, if given, port: the value of the `Host` header.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The host's name or address, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    /// The port as given, or the scheme's default.
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.is_https { 443 } else { 80 })
    }

    /// Returns the full URI of a request's `path`, query included.
    ///
    /// # Errors
    /// [`HttpError::Url`] if `path` does not form a valid URI.
    pub(crate) fn join(&self, path: &Uri) -> Result<Uri, HttpError> {
        let path = path.path_and_query().map_or("/", PathAndQuery::as_str);
        let url = format!("{self}{path}");
        url.parse().map_err(|_| HttpError::Url { url, reason: "it is not a URL" })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(formatter, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls() {
        let url = |text: &str| BaseUrl::parse(text).map(|url| (url.to_string(), url.port()));
        assert_eq!(url("http://h:1").unwrap(), ("http://h:1".into(), 1));
        assert_eq!(url("http://h/v1/").unwrap(), ("http://h".into(), 80));
        assert_eq!(url("http://[::1]:8/p/v1").unwrap(), ("http://[::1]:8/p".into(), 8));
        assert_eq!(url(" https://h ").unwrap(), ("https://h".into(), 443));
        for bad in [
            "",
            "h:1",
            "http://",
            "http://u:p@h",
            "http://h?x=1",
            "ftp://h",
            "http://h:1http",
            "http://h:65536",
        ] {
            assert!(url(bad).is_err(), "{bad:?} was accepted");
        }
        for bad in ["http://ann:secret@h", "ftp://ann:secret@h", "http://ann:secret@h:x"] {
            let why = url(bad).unwrap_err().to_string();
            assert!(!why.contains("secret"), "{why}");
        }
        assert_eq!(BaseUrl::parse("http://[::1]:8").unwrap().host(), "::1");
    }

    #[test]
    fn paths_go_behind_the_prefix() {
        let url = BaseUrl::parse("http://h:1/p/v1/traces").unwrap().without_suffix("/v1/traces");
        let path = Uri::from_static("/v1/models?a=b");
        assert_eq!(url.join(&path).unwrap(), "http://h:1/p/v1/models?a=b");
    }
}
