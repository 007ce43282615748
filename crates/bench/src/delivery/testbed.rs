//! The emulated network below the streams: a path for each, with the losses of its session.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::metrics::{SchemeTrial, StreamTrace};
use super::plan::DeliveryPlan;
use crate::link::LinkError;
use crate::link::emulator::PathSchedule;
use crate::link::netns::Namespace;
use crate::link::relay::LinkRelay;
use crate::link::tun::{self, Ends, Paths};
use crate::link::udp::UdpWire;

/// Time beyond the session for which the simulator draws losses. The emulator must do the same, or
/// its losses would repeat where the simulator's do not.
pub const AFTERMATH: Duration = Duration::from_micros(loquent_sim::world::AFTERMATH_US);

/// The network below token streams, as seen by the schemes.
pub trait StreamNetwork: Sync {
    /// Returns the namespace of the servers, if there is one.
    fn server_side(&self) -> Option<&Namespace>;
    /// Returns the namespace of the clients, if there is one.
    fn client_side(&self) -> Option<&Namespace>;
    /// Returns the address at which the client of `session` reaches a server on `port`.
    fn server_address(&self, session: usize, port: u16) -> SocketAddr;
    /// Reports that the tokens of `session` start at `at`.
    fn begin(&self, session: usize, at: Instant);
    /// Reports that the client of `session` received its last token at `at`.
    fn end(&self, session: usize, at: Instant);
}

/// Two sides with one path between them for each session.
#[derive(Debug)]
pub struct Testbed {
    /// The namespaces; `None` if only UDP is relayed.
    pub ends: Option<Ends>,
    relay: LinkRelay,
    /// The server's address as seen by each session's client; without its port in namespaces.
    addresses: Vec<SocketAddr>,
}

/// Returns the loopback address of a session: all of 127/8 belongs to this machine (RFC 1122,
/// 3.2.1.3).
fn loopback_address(session: usize) -> Ipv4Addr {
    let [_, _, high, low] = (session as u32 + 1).to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

/// Returns the link schedules of all sessions of a case.
fn schedules(plan: &DeliveryPlan, rtt_ms: f64) -> Vec<PathSchedule> {
    let length_us = plan.length_us() + AFTERMATH.as_micros() as u64;
    let schedule = |session| {
        PathSchedule::new(plan.link(rtt_ms), plan.session_seed(session), length_us, Vec::new())
    };
    (0..plan.sessions).map(schedule).collect()
}

impl Testbed {
    /// Creates a pair of namespaces.
    ///
    /// # Errors
    /// If this process lacks the privilege (root).
    pub fn namespaces(plan: &DeliveryPlan, rtt_ms: f64) -> Result<Self, LinkError> {
        let (ends, wire) = tun::create(Paths::ByAddress(plan.sessions))?;
        // The kernel must not reuse one stream's RTT and loss estimates for the next: real clients
        // have different paths.
        ends.server.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
        let relay = LinkRelay::start(wire, schedules(plan, rtt_ms), None)?;
        let addresses = (0..plan.sessions).map(|path| (tun::path_address(path), 0).into());
        Ok(Self { ends: Some(ends), relay, addresses: addresses.collect() })
    }

    /// Creates a UDP relay in front of each of `servers`.
    ///
    /// # Errors
    /// If a socket cannot be bound.
    pub fn relays(
        plan: &DeliveryPlan,
        rtt_ms: f64,
        servers: Vec<SocketAddr>,
    ) -> Result<Self, LinkError> {
        let mut doors = Vec::new();
        let mut addresses = Vec::new();
        for to in servers {
            let door = UdpSocket::bind("127.0.0.1:0").map_err(LinkError::io("relay socket"))?;
            addresses.push(door.local_addr().map_err(LinkError::io("relay socket"))?);
            doors.push((door, to));
        }
        let relay = LinkRelay::start(UdpWire::new(doors)?, schedules(plan, rtt_ms), None)?;
        Ok(Self { ends: None, relay, addresses })
    }

    /// Creates a UDP relay for each session in front of the server on `port` of 127.0.0.1, at a
    /// separate loopback address with the same port.
    ///
    /// # Errors
    /// If the port is already in use at one of the addresses.
    pub fn loopback(plan: &DeliveryPlan, rtt_ms: f64, port: u16) -> Result<Self, LinkError> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let addresses: Vec<SocketAddr> =
            (0..plan.sessions).map(|session| (loopback_address(session), port).into()).collect();
        let door = |address: &SocketAddr| -> Result<_, LinkError> {
            Ok((UdpSocket::bind(address).map_err(LinkError::io(address.to_string()))?, to))
        };
        let doors: Result<Vec<_>, _> = addresses.iter().map(door).collect();
        let relay = LinkRelay::start(UdpWire::new(doors?)?, schedules(plan, rtt_ms), None)?;
        Ok(Self { ends: None, relay, addresses })
    }

    /// Stops the network below `traces` and adds its packet counts to each.
    ///
    /// # Errors
    /// If the relay failed.
    pub fn finish(self, traces: Vec<StreamTrace>) -> Result<SchemeTrial, LinkError> {
        let summary = self.relay.stop().map_err(LinkError::io("the link"))?;
        let counted = traces.into_iter().zip(summary.paths);
        let traces = counted.map(|(trace, [down, up])| StreamTrace { down, up, ..trace }).collect();
        Ok(SchemeTrial { traces, lateness: summary.lateness, ..SchemeTrial::default() })
    }
}

impl StreamNetwork for Testbed {
    fn server_side(&self) -> Option<&Namespace> {
        self.ends.as_ref().map(|ends| &ends.server)
    }

    fn client_side(&self) -> Option<&Namespace> {
        self.ends.as_ref().map(|ends| &ends.client)
    }

    fn server_address(&self, session: usize, port: u16) -> SocketAddr {
        let mut address = self.addresses[session];
        if self.ends.is_some() {
            address.set_port(port);
        }
        address
    }

    /// Starts the session's losses at `at`.
    fn begin(&self, session: usize, at: Instant) {
        self.relay.begin(session, at);
    }

    /// Stops counting the session's bytes at `at`.
    fn end(&self, session: usize, at: Instant) {
        self.relay.end(session, at);
    }
}
