//! Forwards connections between networks: to a server outside the namespaces, or into them for a
//! client that runs outside.
//!
//! A socket belongs to the namespace in which it was created, whichever thread uses it. So
//! forwarding needs only listening sockets on one side and connections on the other.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::LinkError;
use super::netns::{Namespace, within};
use super::tun::SERVER;

/// Maximum number of concurrent UDP conversations and of TCP connections. Datagrams of further
/// conversations are dropped; further TCP connections wait.
const MAX_FLOWS: usize = 1024;
/// Idle time after which a UDP conversation ends.
const IDLE: Duration = Duration::from_secs(120);
/// Maximum length of a datagram in bytes.
const MAX_DATAGRAM_BYTES: usize = 65_536;

/// An address and the network that it belongs to.
#[derive(Debug, Clone)]
pub struct NetworkAddress {
    /// The namespace; `None` is this machine's own network.
    pub inside: Option<Namespace>,
    /// The address within that network.
    pub address: SocketAddr,
}

impl NetworkAddress {
    /// Creates an address in this machine's own network.
    pub fn outside(address: SocketAddr) -> Self {
        Self { inside: None, address }
    }

    /// Creates an address in `namespace`.
    pub fn within(namespace: &Namespace, address: SocketAddr) -> Self {
        Self { inside: Some(namespace.clone()), address }
    }

    /// Creates a socket in the place's network.
    fn make<T: Send>(&self, socket: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match &self.inside {
            // Entering a namespace takes a thread of its own.
            Some(_) => within(self.inside.as_ref(), socket).map_err(io::Error::other)?,
            None => socket(),
        }
    }
}

/// Starts forwarding TCP and UDP that reach `inside` on the port of `to` to `to`.
///
/// # Errors
/// If the port cannot be listened on.
pub fn forward(inside: &Namespace, to: SocketAddr) -> Result<(), LinkError> {
    let here = SocketAddr::from((Ipv4Addr::UNSPECIFIED, to.port()));
    forward_between(&NetworkAddress::within(inside, here), &NetworkAddress::outside(to))
}

/// Starts forwarding TCP and UDP that reach 127.0.0.1:`port` in `client` to the same port of the
/// server's side, over the link: a server that listens on loopback refuses foreign names.
///
/// # Errors
/// If the port cannot be listened on.
pub fn forward_own(client: &Namespace, port: u16) -> Result<(), LinkError> {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let there = SocketAddr::from((SERVER, port));
    let from = NetworkAddress::within(client, here);
    forward_between(&from, &NetworkAddress::within(client, there))
}

/// Forwards TCP and UDP from `from` to `to`, as long as the current runtime exists.
///
/// # Errors
/// If the port cannot be listened on.
pub fn forward_between(from: &NetworkAddress, to: &NetworkAddress) -> Result<(), LinkError> {
    forward_tcp(from, to)?;
    forward_udp(from, to)
}

/// Like [`forward_between`], for TCP only.
///
/// # Errors
/// Same as [`forward_between`].
pub fn forward_tcp(from: &NetworkAddress, to: &NetworkAddress) -> Result<(), LinkError> {
    let listen = || -> io::Result<_> {
        let tcp = std::net::TcpListener::bind(from.address)?;
        tcp.set_nonblocking(true)?;
        Ok(tcp)
    };
    let tcp = from.make(listen).and_then(TcpListener::from_std);
    let tcp = tcp.map_err(LinkError::io(format!("TCP at {}", from.address)))?;
    tokio::spawn(accept_tcp(tcp, to.clone()));
    Ok(())
}

/// Like [`forward_between`], for UDP only.
///
/// # Errors
/// Same as [`forward_between`].
pub fn forward_udp(from: &NetworkAddress, to: &NetworkAddress) -> Result<(), LinkError> {
    let listen = || -> io::Result<_> {
        let udp = std::net::UdpSocket::bind(from.address)?;
        udp.set_nonblocking(true)?;
        Ok(udp)
    };
    let udp = from.make(listen).and_then(UdpSocket::from_std);
    let udp = udp.map_err(LinkError::io(format!("UDP at {}", from.address)))?;
    tokio::spawn(carry_udp(Arc::new(udp), to.clone()));
    Ok(())
}

async fn accept_tcp(listener: TcpListener, to: NetworkAddress) {
    let places = Arc::new(Semaphore::new(MAX_FLOWS));
    while let Ok(place) = places.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((from, _)) => {
                let to = to.clone();
                tokio::spawn(async move {
                    join(from, connect(&to).await).await;
                    drop(place);
                });
            }
            // Out of descriptors: wait until other connections close theirs.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn connect(to: &NetworkAddress) -> io::Result<TcpStream> {
    let is_ipv4 = to.address.is_ipv4();
    let new = || if is_ipv4 { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    to.make(new)?.connect(to.address).await
}

/// Copies bytes in both directions between `from` and a new connection to `to`.
pub(crate) async fn join_tcp(from: TcpStream, to: SocketAddr) {
    join(from, TcpStream::connect(to).await).await;
}

/// Copies bytes in both directions; passes an abort on as an abort.
async fn join(mut from: TcpStream, to: io::Result<TcpStream>) {
    let Ok(mut to) = to else {
        abort(&from);
        return;
    };
    // Nagle's algorithm would hold a token back until the one before is acknowledged.
    let _ = (from.set_nodelay(true), to.set_nodelay(true));
    if tokio::io::copy_bidirectional(&mut from, &mut to).await.is_err() {
        // A connection that was aborted must not look as if it had ended.
        abort(&from);
        abort(&to);
    }
}

/// Makes closing the stream send a reset.
fn abort(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn carry_udp(from: Arc<UdpSocket>, to: NetworkAddress) {
    let mut flows: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let Ok((len, client)) = from.recv_from(&mut buffer).await else {
            continue;
        };
        // The other reference is held by the task that carries answers back.
        flows.retain(|_, socket| Arc::strong_count(socket) > 1);
        let room = !flows.contains_key(&client) && flows.len() < MAX_FLOWS;
        if room && let Ok(socket) = open(&to).await {
            let socket = Arc::new(socket);
            tokio::spawn(answers(Arc::clone(&socket), Arc::clone(&from), client));
            flows.insert(client, socket);
        }
        if let Some(socket) = flows.get(&client) {
            // As on any network, a datagram may be lost.
            let _ = socket.send(&buffer[..len]).await;
        }
    }
}

async fn open(to: &NetworkAddress) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to.address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let bind = || -> io::Result<_> {
        let socket = std::net::UdpSocket::bind(any)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let socket = UdpSocket::from_std(to.make(bind)?)?;
    socket.connect(to.address).await?;
    Ok(socket)
}

async fn answers(socket: Arc<UdpSocket>, from: Arc<UdpSocket>, client: SocketAddr) {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    while let Ok(received) = tokio::time::timeout(IDLE, socket.recv(&mut buffer)).await {
        // An error means that no server listens yet; one may by the next datagram.
        if let Ok(len) = received {
            let _ = from.send_to(&buffer[..len], client).await;
        }
    }
}
