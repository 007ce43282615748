//! The emulated network under the streams: a path for each, with the weather of its session.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::plan::Plan;
use crate::link::LinkError;
use crate::link::emulator::Course;
use crate::link::netns::Namespace;
use crate::link::relay::Relay;
use crate::link::tally::Summary;
use crate::link::tun::{self, Ends, Paths};
use crate::link::udp::UdpWire;

/// The simulator lays weather down for the session and this much more; courses that do not repeat
/// in it must not repeat here either.
pub const AFTERMATH: Duration = Duration::from_micros(loquent_sim::world::AFTERMATH_US);

/// Two sides with one path between them for each session.
#[derive(Debug)]
pub struct Stage {
    /// The namespaces; none where only UDP is relayed.
    pub ends: Option<Ends>,
    relay: Relay,
    /// Where the client of each session finds its server, but for the port in namespaces.
    addresses: Vec<SocketAddr>,
}

/// One of the addresses that are this machine's own by definition (RFC 1122, 3.2.1.3).
fn loopback_address(session: usize) -> Ipv4Addr {
    let [_, _, high, low] = (session as u32 + 1).to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

/// The courses of all sessions of a case.
fn courses(plan: &Plan, rtt_ms: f64) -> Vec<Course> {
    let length_us = plan.length_us() + AFTERMATH.as_micros() as u64;
    let course =
        |session| Course::new(plan.link(rtt_ms), plan.session_seed(session), length_us, Vec::new());
    (0..plan.sessions).map(course).collect()
}

impl Stage {
    /// A pair of namespaces.
    ///
    /// # Errors
    /// Without root.
    pub fn namespaces(plan: &Plan, rtt_ms: f64) -> Result<Self, LinkError> {
        let (ends, wire) = tun::create(Paths::ByAddress(plan.sessions))?;
        // What the kernel learnt from one stream must not help another: real clients differ.
        ends.server.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
        let relay = Relay::start(wire, courses(plan, rtt_ms), None)?;
        let addresses = (0..plan.sessions).map(|path| (tun::path_address(path), 0).into());
        Ok(Self { ends: Some(ends), relay, addresses: addresses.collect() })
    }

    /// A UDP relay in front of each of `servers`.
    ///
    /// # Errors
    /// If sockets are used up.
    pub fn relays(plan: &Plan, rtt_ms: f64, servers: Vec<SocketAddr>) -> Result<Self, LinkError> {
        let mut doors = Vec::new();
        let mut addresses = Vec::new();
        for to in servers {
            let door = UdpSocket::bind("127.0.0.1:0").map_err(LinkError::io("relay socket"))?;
            addresses.push(door.local_addr().map_err(LinkError::io("relay socket"))?);
            doors.push((door, to));
        }
        let relay = Relay::start(UdpWire::new(doors)?, courses(plan, rtt_ms), None)?;
        Ok(Self { ends: None, relay, addresses })
    }

    /// A UDP relay for each session in front of the server on `port` of 127.0.0.1, at an address
    /// of this machine's own with the same port.
    ///
    /// # Errors
    /// If the port is taken there.
    pub fn loopback(plan: &Plan, rtt_ms: f64, port: u16) -> Result<Self, LinkError> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let addresses: Vec<SocketAddr> =
            (0..plan.sessions).map(|session| (loopback_address(session), port).into()).collect();
        let door = |address: &SocketAddr| -> Result<_, LinkError> {
            Ok((UdpSocket::bind(address).map_err(LinkError::io(address.to_string()))?, to))
        };
        let doors: Result<Vec<_>, _> = addresses.iter().map(door).collect();
        let relay = Relay::start(UdpWire::new(doors?)?, courses(plan, rtt_ms), None)?;
        Ok(Self { ends: None, relay, addresses })
    }

    /// The namespace of the servers, where there is one.
    pub fn server_side(&self) -> Option<&Namespace> {
        self.ends.as_ref().map(|ends| &ends.server)
    }

    /// The namespace of the clients, where there is one.
    pub fn client_side(&self) -> Option<&Namespace> {
        self.ends.as_ref().map(|ends| &ends.client)
    }

    /// Where the client of `session` finds a server that listens on `port`.
    pub fn server_address(&self, session: usize, port: u16) -> SocketAddr {
        let mut address = self.addresses[session];
        if self.ends.is_some() {
            address.set_port(port);
        }
        address
    }

    /// The session's losses begin at `at`.
    pub fn begin(&self, session: usize, at: Instant) {
        self.relay.begin(session, at);
    }

    /// The session's bytes do not count from `at` on.
    pub fn end(&self, session: usize, at: Instant) {
        self.relay.end(session, at);
    }

    /// Stops the network and says what it did.
    ///
    /// # Errors
    /// If the relay could not go on.
    pub fn close(self) -> Result<Summary, LinkError> {
        self.relay.stop().map_err(LinkError::io("the link"))
    }
}
