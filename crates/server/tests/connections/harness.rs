//! A server on a port of its own with short limits, and clients that break every habit.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use loquent_engine::sim::{SimOptions, StepPace};
use loquent_server::{
    Announcement, CertificateSource, HttpConfig, ServerConfig, StoreConfig, TcpLimits,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use crate::simulated::FOREVER;
use crate::simulated::{self, service_config};

/// No test waits longer for anything, and none that passes waits nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A limit that tests wait for.
pub const SOON: Duration = Duration::from_millis(100);

/// Limits of which a test shortens those that it is about.
pub fn limits() -> TcpLimits {
    TcpLimits {
        max_connections: 64,
        max_connections_per_address: 64,
        request_timeout: FOREVER,
        idle_timeout: FOREVER,
        write_timeout: FOREVER,
        close_timeout: SOON,
        reserve_timeout: PATIENCE,
        ..TcpLimits::default()
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub shutdown: oneshot::Sender<()>,
    pub run: JoinHandle<anyhow::Result<()>>,
}

impl Server {
    pub async fn start(tcp: TcpLimits) -> Self {
        Self::start_with(|config| config.tcp = tcp).await
    }

    pub async fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, change).await
    }

    pub async fn start_on(listener: TcpListener, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let (server, announced) = Self::launch(listener, change, || ());
        announced.await.unwrap();
        server
    }

    /// Starts a server that loads its model when `until` returns, and then announces itself.
    pub fn launch(
        listener: TcpListener,
        change: impl FnOnce(&mut ServerConfig),
        until: impl FnOnce() + Send + 'static,
    ) -> (Self, oneshot::Receiver<()>) {
        let address = listener.local_addr().unwrap();
        let (shutdown, asked) = oneshot::channel::<()>();
        let (announce, announced) = oneshot::channel();
        let mut config = config();
        change(&mut config);
        let pace = StepPace::Fixed { step: Duration::from_micros(100) };
        let loaded = simulated::loaded(SimOptions { pace, ..SimOptions::default() });
        let load = move || {
            until();
            Ok(loaded)
        };
        let announce = move |_: &Announcement<'_>| announce.send(()).unwrap();
        let asked = async { drop(asked.await) };
        let run = tokio::spawn(loquent_server::run(listener, config, load, announce, asked));
        (Self { address, shutdown, run }, announced)
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection from another address of this machine, which does not count as its own.
    pub async fn connect_from(&self, address: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// A connection whose client has hardly any room for what it does not read.
    pub async fn connect_narrow(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// The status line's code and the response to one request on a connection of its own.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        exchange(self.connect().await, "GET", path, headers, "").await
    }

    /// Waits until a new connection has a place again.
    pub async fn until_free(&self) {
        assert_eq!(self.get_when_free("/v1/models", &[]).await.0, 200);
    }

    /// The answer to the first request that finds a place. A connection gives its place back
    /// a moment after its client has seen its end: one that found a place says nothing of the next.
    pub async fn get_when_free(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let answered = async {
            loop {
                let (status, text) = self.get(path, headers).await;
                if status != 503 {
                    return (status, text);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, answered).await.expect("the place is free again")
    }
}

fn config() -> ServerConfig {
    ServerConfig {
        http: HttpConfig { heartbeat: Duration::from_secs(10), ..simulated::http_config() },
        service: service_config(16),
        kept: simulated::limits(),
        store: StoreConfig::default(),
        quic: None,
        https: None,
        tcp: limits(),
        drain_limit: FOREVER,
        upstreams: Vec::new(),
        extension: Default::default(),
        pages: Vec::new(),
    }
}

/// The bytes of a request, which asks to close the connection after it.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

/// One request on a connection: the status and the whole response as text.
pub async fn exchange(
    mut connection: TcpStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    // A server that refuses a body by its length does not wait for it.
    let _ = connection.write_all(request(method, path, headers, body).as_bytes()).await;
    response(connection).await
}

/// The status and all of the response that `connection` brings until it is closed.
pub async fn response(mut connection: impl AsyncRead + Unpin) -> (u16, String) {
    let mut text = Vec::new();
    let read = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut text)).await;
    // A client that still sends when it is refused may be reset after the response.
    let _ = read.expect("the connection is closed");
    let text = String::from_utf8(text).unwrap();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text)
}

/// Waits until the server closes the connection; returns what it sent before.
pub async fn closed(mut connection: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut sent = Vec::new();
    let read = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut sent)).await;
    let _ = read.expect("the server closes the connection");
    sent
}

/// A chat request for an answer of `tokens` tokens.
pub fn chat(tokens: usize, more: Value) -> String {
    let content = format!("tokens={tokens}");
    let mut body = json!({"stream": true, "messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// A certificate for `localhost` in files of its own, removed when it is dropped.
pub struct Certificate {
    folder: PathBuf,
    der: CertificateDer<'static>,
}

impl Certificate {
    pub fn new(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let folder = std::env::temp_dir().join(format!("loquent-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        std::fs::write(folder.join("chain.pem"), made.cert.pem()).unwrap();
        let der = CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap();
        Self { folder, der }
    }

    pub fn source(&self) -> CertificateSource {
        let file = |name: &str| Path::new(&self.folder).join(name);
        CertificateSource::Files { chain: file("chain.pem"), key: file("key.pem") }
    }

    /// A TLS connection to `server` with the protocols of `alpn`.
    pub async fn connect(
        &self,
        server: &Server,
        alpn: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("localhost").unwrap();
        connector.connect(name, server.connect().await).await
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
