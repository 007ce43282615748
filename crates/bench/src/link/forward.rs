//! From the far side of the link to the host: a server that runs outside the namespaces.
//!
//! A socket belongs to the namespace in which it was made, whichever thread uses it. So it takes no
//! more than listening sockets inside and connections outside.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::LinkError;
use super::netns::Namespace;

/// Maximum number of concurrent UDP conversations; datagrams of more are dropped.
const MAX_FLOWS: usize = 1024;
/// How long a UDP conversation may be silent before it ends.
const IDLE: Duration = Duration::from_secs(120);
/// Maximum length of a datagram in bytes.
const MAX_DATAGRAM_BYTES: usize = 65_536;

/// Forwards TCP and UDP that reach `inside` on the port of `to` to `to`, from now on.
///
/// # Errors
/// If the port cannot be listened on.
pub fn forward(inside: &Namespace, to: SocketAddr) -> Result<(), LinkError> {
    let here = SocketAddr::from((Ipv4Addr::UNSPECIFIED, to.port()));
    let listen = || -> io::Result<_> {
        let tcp = std::net::TcpListener::bind(here)?;
        let udp = std::net::UdpSocket::bind(here)?;
        tcp.set_nonblocking(true)?;
        udp.set_nonblocking(true)?;
        Ok((tcp, udp))
    };
    let what = format!("port {} on the far side", to.port());
    let (tcp, udp) = inside.within(listen)?.map_err(LinkError::io(what.clone()))?;
    let tcp = TcpListener::from_std(tcp).map_err(LinkError::io(what.clone()))?;
    let udp = UdpSocket::from_std(udp).map_err(LinkError::io(what))?;
    tokio::spawn(forward_tcp(tcp, to));
    tokio::spawn(forward_udp(Arc::new(udp), to));
    Ok(())
}

async fn forward_tcp(listener: TcpListener, to: SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((inside, _)) => drop(tokio::spawn(join_tcp(inside, to))),
            // Out of descriptors: wait until other connections close theirs.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Carries bytes both ways between `inside` and a new connection to `to`; an abort stays one.
pub(crate) async fn join_tcp(mut inside: TcpStream, to: SocketAddr) {
    let outside = TcpStream::connect(to).await;
    let Ok(mut outside) = outside else {
        abort(&inside);
        return;
    };
    // Nagle's algorithm would hold a token back until the one before is acknowledged.
    let _ = (inside.set_nodelay(true), outside.set_nodelay(true));
    if tokio::io::copy_bidirectional(&mut inside, &mut outside).await.is_err() {
        // A connection that was aborted must not look as if it had ended.
        abort(&inside);
        abort(&outside);
    }
}

/// Closing it will send a reset.
fn abort(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn forward_udp(inside: Arc<UdpSocket>, to: SocketAddr) {
    let mut flows: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let Ok((len, client)) = inside.recv_from(&mut buffer).await else {
            continue;
        };
        // The other reference is held by the task that carries answers back.
        flows.retain(|_, outside| Arc::strong_count(outside) > 1);
        let room = !flows.contains_key(&client) && flows.len() < MAX_FLOWS;
        if room && let Ok(outside) = open(to).await {
            let outside = Arc::new(outside);
            tokio::spawn(answers(Arc::clone(&outside), Arc::clone(&inside), client));
            flows.insert(client, outside);
        }
        if let Some(outside) = flows.get(&client) {
            // As on any network, a datagram may be lost.
            let _ = outside.send(&buffer[..len]).await;
        }
    }
}

async fn open(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let outside = UdpSocket::bind(any).await?;
    outside.connect(to).await?;
    Ok(outside)
}

async fn answers(outside: Arc<UdpSocket>, inside: Arc<UdpSocket>, client: SocketAddr) {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    while let Ok(received) = tokio::time::timeout(IDLE, outside.recv(&mut buffer)).await {
        // An error means that no server listens yet; one may by the next datagram.
        if let Ok(len) = received {
            let _ = inside.send_to(&buffer[..len], client).await;
        }
    }
}
