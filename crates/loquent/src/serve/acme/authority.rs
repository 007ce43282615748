//! Requests to an ACME server, by the HTTP client that the rest of Loquent uses. Responses are
//! bounded in size and time.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, Uri, header};
use http_body_util::BodyExt;
use instant_acme::{BodyWrapper, BytesResponse, Error, Problem};
use loquent_openai::BaseUrl;
use loquent_openai::http::HttpClient;
use loquent_openai::tls::Trust;

/// Maximum size of a response: a chain of certificates is some ten KiB.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Time limit for one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// An authority that issues certificates by ACME.
#[derive(Debug, Clone)]
pub(super) struct AcmeAuthority {
    /// Client of the host of the directory.
    client: HttpClient,
    trust: Trust,
}

/// The authority refuses a request for a time.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub(super) struct AuthorityBusy {
    pub(super) problem: Problem,
    /// Time for which it wants no other request.
    pub(super) wait: Duration,
}

impl AcmeAuthority {
    /// Creates a client of the authority whose directory has this URL.
    ///
    /// # Errors
    /// If it is not an `https://` URL.
    pub(super) fn new(directory: &str, trust: Trust) -> anyhow::Result<Self> {
        let uri = directory.parse().context("--acme-directory is not a URL")?;
        let base = base_of(&uri).context("--acme-directory")?;
        ensure!(base.is_https(), "--acme-directory must begin with https://");
        Ok(Self { client: HttpClient::with_trust(base, None, trust.clone())?, trust })
    }

    /// The host of the directory.
    pub(super) fn host(&self) -> &str {
        self.client.base().host()
    }

    /// Returns the client for `uri`, which may be on another host than the directory.
    fn client_for(&self, uri: &Uri) -> anyhow::Result<HttpClient> {
        // A directory may name other hosts (RFC 8555 §7.1.1); they are asked rarely.
        let base = base_of(uri)?;
        ensure!(base.is_https(), "{base} is not encrypted");
        match base == *self.client.base() {
            true => Ok(self.client.clone()),
            false => Ok(HttpClient::with_trust(base, None, self.trust.clone())?),
        }
    }

    async fn exchange(
        self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Result<BytesResponse, AnyError> {
        let client = self.client_for(request.uri())?;
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let response = client.send(Request::from_parts(head, body)).await?;
        let (parts, mut body) = response.into_parts();
        let body = body.read_all(MAX_RESPONSE_BYTES).await?;
        // Here, because the library drops the header that says how long to wait.
        match busy(parts.status.as_u16(), &parts.headers, &body, SystemTime::now()) {
            Some(busy) => Err(busy.into()),
            None => Ok(BytesResponse { parts, body: Box::new(body) }),
        }
    }
}

impl instant_acme::HttpClient for AcmeAuthority {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let exchange = self.clone().exchange(request);
        Box::pin(async move {
            let late = |_| format!("no answer within {} s", REQUEST_LIMIT.as_secs()).into();
            let outcome = tokio::time::timeout(REQUEST_LIMIT, exchange).await.map_err(late);
            outcome.flatten().map_err(Error::Other)
        })
    }
}

/// Returns the scheme, the host and the port of `uri`.
fn base_of(uri: &Uri) -> anyhow::Result<BaseUrl> {
    // Without the path: each request brings a whole one.
    let scheme = uri.scheme_str().unwrap_or_default();
    let authority = uri.authority().map_or("", |it| it.as_str());
    Ok(BaseUrl::parse(&format!("{scheme}://{authority}"))?)
}

/// Returns the refusal in a response that says when to come again.
fn busy(status: u16, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Option<AuthorityBusy> {
    if !matches!(status, 429 | 503) {
        return None;
    }
    let told = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = told.parse().map(Duration::from_secs).ok();
    let date = || httpdate::parse_http_date(told).ok()?.duration_since(now).ok();
    // A balancer in front of the authority answers in HTML.
    let problem = serde_json::from_slice(body).unwrap_or_else(|_| Problem {
        r#type: None,
        detail: Some(format!("it is busy (status {status})")),
        status: Some(status),
        subproblems: Vec::new(),
    });
    Some(AuthorityBusy { problem, wait: seconds.or_else(date)? })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_refusal_with_a_time_is_told_from_others() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_700);
        let refusal = |status, told: Option<&str>, body: &str| {
            let mut headers = HeaderMap::new();
            if let Some(told) = told {
                headers.insert(header::RETRY_AFTER, told.parse().unwrap());
            }
            busy(status, &headers, body.as_bytes(), now)
                .map(|it| (it.wait.as_secs(), it.problem.detail.unwrap()))
        };
        let limited = r#"{"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many"}"#;
        assert_eq!(refusal(429, Some("90"), limited), Some((90, "too many".into())));
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(refusal(503, Some(date), limited).unwrap().0, 77);
        assert!(refusal(503, Some("1"), "<html>").unwrap().1.contains("status 503"));
        assert_eq!(refusal(429, None, limited), None);
        assert_eq!(refusal(429, Some("soon"), limited), None);
        assert_eq!(refusal(400, Some("90"), limited), None);
    }

    #[test]
    fn a_directory_needs_https() {
        let error = |url| AcmeAuthority::new(url, Trust::Pinned([0; 32])).unwrap_err().to_string();
        for url in ["http://acme.example/directory", "acme.example", "", "https:///directory"] {
            assert!(error(url).contains("--acme-directory"), "{url}: {}", error(url));
        }
        let trust = Trust::Pinned([0; 32]);
        let authority = AcmeAuthority::new("https://acme.example:14000/dir", trust).unwrap();
        assert_eq!(authority.host(), "acme.example");
        assert!(authority.client_for(&Uri::from_static("http://acme.example:14000/new")).is_err());
        let elsewhere = authority.client_for(&Uri::from_static("https://b.example/new")).unwrap();
        assert_eq!(elsewhere.base().host(), "b.example");
    }
}
