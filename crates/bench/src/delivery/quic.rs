//! A plain QUIC stream: the same server-sent events as over TCP, on one reliable stream of the QUIC
//! library that Loquent uses, with that library's loss recovery and congestion control.
//!
//! Separates the part of Loquent's gain that is due to QUIC from the part that is due to its
//! datagrams and their repetition. Uses no datagrams, and repeats only what is lost.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TransportConfig};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::task::JoinSet;

use super::ends::{self, Known, Times};
use super::metrics::StreamTrace;
use super::plan::{DeliveryPlan, TimedTokens};
use super::sse;
use super::starts::Starts;
use super::testbed::StreamNetwork;

/// Port of the server, which is alone in its namespace.
const PORT: u16 = 8443;
const ALPN: &[u8] = b"plain-stream";
const NAME: &str = "plain.stream";
/// Longer than any measured stall: an idle timeout would end the stream.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Streams all sessions over a namespace pair. The traces are in session order.
///
/// # Errors
/// If sockets cannot be opened, or text arrives that was never sent.
pub fn run(
    plan: &DeliveryPlan,
    network: &dyn StreamNetwork,
    starts: &Arc<Starts>,
) -> anyhow::Result<Vec<StreamTrace>> {
    let (server_side, _) = ends::sides(network)?;
    let (server_config, client_config) = configs()?;
    let socket = server_side.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
    let addresses: Vec<SocketAddr> =
        (0..plan.sessions).map(|session| network.server_address(session, PORT)).collect();
    let serve = move |known| serve_all(socket, server_config, known);
    let read = move |known| read_all(addresses, client_config, known);
    ends::stream(plan, network, starts, serve, read)
}

/// Returns the configurations of both ends: the library's defaults, except for MTU probes, which
/// would count as bytes of the stream.
fn configs() -> anyhow::Result<(ServerConfig, ClientConfig)> {
    let certified = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let certificate = certified.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![ALPN.to_vec()];
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(IDLE_TIMEOUT.try_into()?)).mtu_discovery_config(None);
    let transport = Arc::new(transport);
    let mut server_config =
        ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?));
    server_config.transport_config(transport.clone());
    let mut client_config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?));
    client_config.transport_config(transport);
    Ok((server_config, client_config))
}

async fn serve_all(
    socket: UdpSocket,
    config: ServerConfig,
    (answers, starts): Known,
) -> io::Result<Times> {
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, runtime)?;
    let mut tasks = JoinSet::new();
    for _ in 0..answers.len() {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = starts.failed() => break,
        };
        let incoming = incoming.ok_or_else(|| io::Error::other("no connection"))?;
        let (answers, starts) = (answers.clone(), starts.clone());
        tasks.spawn(async move {
            let connection = incoming.await.map_err(io::Error::other)?;
            serve_one(connection, answers, starts).await
        });
    }
    ends::gather(tasks, answers.len()).await
}

/// Serves one connection. The client sends the session's number on its stream.
async fn serve_one(
    connection: Connection,
    answers: Arc<Vec<TimedTokens>>,
    starts: Arc<Starts>,
) -> io::Result<(usize, Vec<u64>)> {
    let (mut send, mut receive) = connection.accept_bi().await.map_err(io::Error::other)?;
    let asked = receive.read_to_end(16).await.map_err(io::Error::other)?;
    let session = String::from_utf8(asked).ok().and_then(|text| text.parse::<usize>().ok());
    let session = session.filter(|session| *session < answers.len());
    let session = session.ok_or_else(|| io::Error::other("a strange request"))?;
    send.write_all(b": waiting\n\n").await.map_err(io::Error::other)?;
    let answer = &answers[session];
    let start = starts.wait(session).await?;
    let mut times_us = Vec::with_capacity(answer.tokens.len());
    for (token, &at_us) in answer.tokens.iter().zip(&answer.times_us) {
        tokio::time::sleep_until((start + Duration::from_micros(at_us)).into()).await;
        times_us.push(start.elapsed().as_micros() as u64);
        // A client that has gone away stops listening at the deadline.
        if send.write_all(sse::event(token).as_bytes()).await.is_err() {
            break;
        }
    }
    let _ = send.finish();
    // The library goes on until the client has everything or has gone.
    let _ = tokio::time::timeout_at(starts.deadline(start).into(), send.stopped()).await;
    Ok((session, times_us))
}

async fn read_all(
    addresses: Vec<SocketAddr>,
    config: ClientConfig,
    (answers, starts): Known,
) -> io::Result<Times> {
    let mut tasks = JoinSet::new();
    for (session, address) in addresses.into_iter().enumerate() {
        let (config, answers, starts) = (config.clone(), answers.clone(), starts.clone());
        tasks.spawn(async move {
            let endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
            let connecting = endpoint.connect_with(config, address, NAME);
            let connection = connecting.map_err(io::Error::other)?.await?;
            let (mut send, receive) = connection.open_bi().await?;
            send.write_all(session.to_string().as_bytes()).await?;
            send.finish().map_err(io::Error::other)?;
            let ready = sse::read_one(receive, session, &answers[session], &starts).await?;
            connection.close(0u32.into(), b"read");
            endpoint.wait_idle().await;
            Ok((session, ready))
        });
    }
    ends::gather(tasks, answers.len()).await
}
