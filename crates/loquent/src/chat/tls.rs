//! HTTPS for the chat: the client's HTTP over rustls, with the system's certificates.

use std::io;
use std::sync::Arc;

use loquent_client::ClientError;
use loquent_client::http::{BaseUrl, BoxFuture, Dial, HttpClient, Io};
use rustls::pki_types::ServerName;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A client of the server at an `https://` URL.
pub(super) fn client(url: &str, api_key: Option<&str>) -> anyhow::Result<HttpClient> {
    let refuse = |reason| ClientError::Url { url: url.to_owned(), reason };
    let uri: ureq::http::Uri = url.parse().map_err(|_| refuse("not a URL"))?;
    let authority = uri.authority().ok_or_else(|| refuse("it names no host"))?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let port = authority.port_u16().unwrap_or(443);
    // The client's own parser checks the rest; it is given the port that `https` implies.
    let plain = format!("http://{}:{port}{}", authority.host(), uri.path());
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(refuse("user information and queries are not supported").into());
    }
    let name = ServerName::try_from(host.clone()).map_err(|_| refuse("it names no host"))?;
    let dial = TlsDial { host, port, name, connector: connector()? };
    Ok(HttpClient::with_dial(BaseUrl::parse(&plain)?, api_key, Arc::new(dial))?)
}

fn connector() -> anyhow::Result<TlsConnector> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

struct TlsDial {
    host: String,
    port: u16,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl Dial for TlsDial {
    fn dial(&self, _recv_buffer_bytes: Option<u32>) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        Box::pin(async move {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            let stream = self.connector.connect(self.name.clone(), stream).await?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }
}
