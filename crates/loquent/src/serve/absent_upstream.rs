//! A look at the servers of `--upstream` when this one starts: a wrong address should not be found
//! by the first request.

use std::time::Duration;

use http::Uri;
use tokio::net::TcpStream;

/// Time limit for a server to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Warns if nothing accepts connections at the host and port of `url`.
pub(super) async fn warn_if_absent(url: String) {
    let Some(address) = address(&url) else { return };
    let connected = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(&address)).await;
    if !matches!(connected, Ok(Ok(_))) {
        tracing::warn!(
            "no server answers at {address}, where --upstream leads; requests fail until one does"
        );
    }
}

/// Returns host and port of `url`; `None` if it is not valid, which is reported where it is used.
fn address(url: &str) -> Option<String> {
    let url: Uri = url.parse().ok()?;
    let usual = if url.scheme_str() == Some("https") { 443 } else { 80 };
    Some(format!("{}:{}", url.host()?, url.port_u16().unwrap_or(usual)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_port_of_its_scheme() {
        for (url, expected) in [
            ("http://a:8000/v1", Some("a:8000")),
            ("http://a", Some("a:80")),
            ("https://user:secret@b/v1", Some("b:443")),
            ("http://[::1]:9", Some("[::1]:9")),
            ("not a url", None),
        ] {
            assert_eq!(address(url).as_deref(), expected, "{url}");
        }
    }
}
