//! UDP sockets as the two ends of a link: needs no root, and carries only QUIC (and other UDP).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::LinkError;
use super::emulator::PacketRoute;
use super::relay::{PacketWire, Received};

/// Maximum number of clients of one relay; further ones are ignored until another has been silent.
const MAX_FLOWS: usize = 1024;
/// Idle time after which the relay forgets a client, as a NAT does.
const IDLE: Duration = Duration::from_secs(120);
/// IP and UDP headers of a datagram over IPv4.
const HEADER_BYTES: usize = 28;

/// Relays datagrams between clients and one server address for each path.
#[derive(Debug)]
pub struct UdpWire {
    doors: Vec<RelaySocket>,
    flows: Vec<Flow>,
    by_client: HashMap<(usize, SocketAddr), usize>,
}

/// The socket that clients of a path send to, and the server that it forwards to.
#[derive(Debug)]
struct RelaySocket {
    listen: UdpSocket,
    to: SocketAddr,
}

/// One client of a path, with its own socket towards the server.
#[derive(Debug)]
struct Flow {
    path: usize,
    client: SocketAddr,
    server: UdpSocket,
    last_heard: Instant,
}

impl UdpWire {
    /// Creates a relay from each listening socket to its server address; their indices are the
    /// paths.
    ///
    /// # Errors
    /// If a socket cannot be made non-blocking.
    pub fn new(doors: Vec<(UdpSocket, SocketAddr)>) -> Result<Self, LinkError> {
        let door = |(listen, to): (UdpSocket, SocketAddr)| {
            listen.set_nonblocking(true).map(|()| RelaySocket { listen, to })
        };
        let doors: io::Result<Vec<RelaySocket>> = doors.into_iter().map(door).collect();
        let doors = doors.map_err(LinkError::io("relay socket"))?;
        Ok(Self { doors, flows: Vec::new(), by_client: HashMap::new() })
    }

    fn take_from_client(&mut self, path: usize, buffer: &mut [u8]) -> Received {
        let Ok((len, client)) = self.doors[path].listen.recv_from(buffer) else {
            return Received::Nothing;
        };
        let known = self.by_client.get(&(path, client)).copied();
        let Some(flow) = known.or_else(|| self.open(path, client)) else {
            return Received::Ignored;
        };
        self.flows[flow].last_heard = Instant::now();
        Received::Packet { route: PacketRoute { path, flow, up: true }, len }
    }

    /// Opens a separate socket for a new client, so that the server can distinguish clients.
    fn open(&mut self, path: usize, client: SocketAddr) -> Option<usize> {
        let to = self.doors[path].to;
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let server = UdpSocket::bind((any, 0)).ok()?;
        server.connect(to).ok()?;
        server.set_nonblocking(true).ok()?;
        let flow = Flow { path, client, server, last_heard: Instant::now() };
        let place = if self.flows.len() < MAX_FLOWS {
            self.flows.push(flow);
            self.flows.len() - 1
        } else {
            let idle = self.flows.iter().position(|flow| flow.last_heard.elapsed() > IDLE)?;
            let old = std::mem::replace(&mut self.flows[idle], flow);
            self.by_client.remove(&(old.path, old.client));
            idle
        };
        self.by_client.insert((path, client), place);
        Some(place)
    }

    fn take_from_server(&mut self, flow: usize, buffer: &mut [u8]) -> Received {
        let Flow { path, server, last_heard, .. } = &mut self.flows[flow];
        // An error means that nothing listens on the server's port; the client times out as it
        // would on a real network.
        let Ok(len) = server.recv(buffer) else {
            return Received::Nothing;
        };
        *last_heard = Instant::now();
        Received::Packet { route: PacketRoute { path: *path, flow, up: false }, len }
    }
}

impl PacketWire for UdpWire {
    fn sources(&self) -> Vec<BorrowedFd<'_>> {
        let doors = self.doors.iter().map(|door| door.listen.as_fd());
        doors.chain(self.flows.iter().map(|flow| flow.server.as_fd())).collect()
    }

    fn receive(&mut self, source: usize, buffer: &mut [u8]) -> Received {
        match source.checked_sub(self.doors.len()) {
            None => self.take_from_client(source, buffer),
            Some(flow) => self.take_from_server(flow, buffer),
        }
    }

    fn deliver(&mut self, route: PacketRoute, packet: &[u8]) -> bool {
        let flow = &self.flows[route.flow];
        let sent = match route.up {
            true => flow.server.send(packet),
            false => self.doors[flow.path].listen.send_to(packet, flow.client),
        };
        sent.is_ok()
    }

    fn header_bytes(&self) -> usize {
        HEADER_BYTES
    }
}
