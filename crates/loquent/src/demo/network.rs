//! The bad link between the demonstration's clients and its server, with one door for each column.
//!
//! A door is an address of this machine with the server's own port number, so that the QUIC port
//! reported by the server is valid behind each of them. If this process is root, a door leads into
//! a network namespace, and kernel TCP and QUIC cross the emulated link from there. Otherwise QUIC
//! crosses a relay of UDP datagrams, and TCP is the simulator's, over the same relay.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use loquent_bench::link::LinkError;
use loquent_bench::link::emulator::{PathLinks, PathSchedule};
use loquent_bench::link::forward::{NetworkAddress, forward_between};
use loquent_bench::link::relay::LinkRelay;
use loquent_bench::link::tun::{self, Ends, Paths};
use loquent_bench::link::udp::UdpWire;
use loquent_sim::link::Link;
use serde::Serialize;
use tokio::sync::watch;

use super::modelled_tcp::{self, ModelledDoor};
use super::news::{DemoLane, LinkNews};
use crate::demo::network_conditions::NetworkConditions;

/// Network below the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum NetworkKind {
    /// The kernel's TCP and QUIC through network namespaces (needs root)
    Kernel,
    /// QUIC through a relay, beside the simulator's TCP (needs nothing)
    Modelled,
}

/// Loopback addresses of the doors: all of 127/8 belongs to this machine (RFC 1122, 3.2.1.3), and
/// browsers treat pages from there as secure.
const DOORS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 77, 0, 1), Ipv4Addr::new(127, 77, 0, 2)];

/// Returns the address of a column's door to a server on `port`.
pub fn door(lane: DemoLane, port: u16) -> SocketAddr {
    (DOORS[lane as usize], port).into()
}

/// Returns the origins that pages must connect to for both columns: TCP to either door, QUIC to
/// Loquent's.
pub fn page_sources(port: u16) -> Vec<String> {
    let [tcp, loquent] = DemoLane::ALL.map(|lane| door(lane, port));
    vec![format!("http://{tcp}"), format!("http://{loquent}"), format!("https://{loquent}")]
}

/// Binds `127.0.0.1:port` for the server so that the doors can use the same number; `port` 0 picks
/// a free one.
///
/// # Errors
/// If the port is taken.
pub fn bind_server(port: u16) -> anyhow::Result<TcpListener> {
    const ATTEMPTS: usize = 32;
    let attempts = if port == 0 { ATTEMPTS } else { 1 };
    for attempt in 1..=attempts {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address)
            .with_context(|| format!("cannot listen on {address}; choose another --port"))?;
        let port = listener.local_addr()?.port();
        // Bound and let go: whoever takes it in between is told by the door that cannot be opened.
        let is_free = |lane: &DemoLane| {
            let door = door(*lane, port);
            TcpListener::bind(door).is_ok() && UdpSocket::bind(door).is_ok()
        };
        let is_udp_free = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if is_udp_free && DemoLane::ALL.iter().all(is_free) {
            listener.set_nonblocking(true)?;
            return Ok(listener);
        }
        tracing::debug!(port, attempt, "some address has this port in use");
    }
    anyhow::bail!("port {port} is in use by another program; choose another --port")
}

/// The link below both columns, with its doors. Ends when dropped.
#[derive(Debug)]
pub struct LiveNetwork {
    kind: NetworkKind,
    relay: LinkRelay,
    news: LinkNews,
    /// Provides the link of new connections to the modelled TCP.
    link: watch::Sender<Link>,
    state: Mutex<RunState>,
    /// Keeps the namespaces alive.
    _ends: Option<Ends>,
}

/// State of the current run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunState {
    run: u64,
    has_begun: bool,
}

impl LiveNetwork {
    /// Opens the doors to `server`. Uses the network `wanted`, or else the best that this process
    /// is allowed to use. The link loses nothing yet.
    ///
    /// # Errors
    /// If the weather is out of range, the wanted network is not available, or a door's port is
    /// taken.
    pub fn open(
        server: SocketAddr,
        weather: &NetworkConditions,
        wanted: Option<NetworkKind>,
    ) -> anyhow::Result<Self> {
        let news = LinkNews::default();
        let schedule = weather.schedule().map_err(anyhow::Error::msg)?;
        let (link, links) = watch::channel(schedule.link().clone());
        let kernel = match wanted {
            Some(NetworkKind::Modelled) => None,
            Some(NetworkKind::Kernel) => Some(kernel(server, &schedule, &news)?),
            None => match kernel(server, &schedule, &news) {
                Ok(network) => Some(network),
                // The reason is known to whoever is not root.
                Err(LinkError::Privilege { .. } | LinkError::Network { .. }) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let (kind, relay, ends) = match kernel {
            Some((relay, ends)) => (NetworkKind::Kernel, relay, Some(ends)),
            None => (NetworkKind::Modelled, modelled(server, &schedule, &news, links)?, None),
        };
        let state = Mutex::new(RunState { run: 0, has_begun: false });
        Ok(Self { kind, relay, news, link, state, _ends: ends })
    }

    /// Returns the kind of network.
    pub fn kind(&self) -> NetworkKind {
        self.kind
    }

    /// Returns the news of packets.
    pub fn news(&self) -> &LinkNews {
        &self.news
    }

    /// Prepares a run in `weather` and returns its number. The link has its delay and rate from now
    /// on, but loses nothing before the run begins, so that connections can be made without losses.
    ///
    /// # Errors
    /// Names the parameter that is out of range.
    pub fn prepare(&self, weather: &NetworkConditions) -> Result<u64, String> {
        let schedule = weather.schedule()?;
        let mut state = self.state();
        *state = RunState { run: state.run + 1, has_begun: false };
        // Before the relay changes: a connection that begins in between would take the old delay.
        self.link.send_replace(schedule.link().clone());
        self.relay.change(PathLinks::Own(vec![schedule; paths(self.kind)]));
        self.news.begin_run(state.run);
        Ok(state.run)
    }

    /// Begins the weather of `run`. Returns false if another run has been prepared since, or it has
    /// already begun.
    pub fn begin(&self, run: u64) -> bool {
        let mut state = self.state();
        if *state != (RunState { run, has_begun: false }) {
            return false;
        }
        state.has_begun = true;
        // One moment for all paths: the same losses only match if they begin together.
        let now = Instant::now();
        (0..paths(self.kind)).for_each(|path| self.relay.begin(path, now));
        true
    }

    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of paths: one for each column; without namespaces Loquent's HTTP has its own.
const fn paths(kind: NetworkKind) -> usize {
    match kind {
        NetworkKind::Kernel => 2,
        NetworkKind::Modelled => 3,
    }
}

/// Creates two namespaces with the link between them, and forwarders on both sides of it.
fn kernel(
    server: SocketAddr,
    schedule: &PathSchedule,
    news: &LinkNews,
) -> Result<(LinkRelay, Ends), LinkError> {
    let (ends, wire) = tun::create(Paths::ByAddress(paths(NetworkKind::Kernel)))?;
    // What one run has taught the kernel about the path must not help the next.
    ends.server.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
    ends.client.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
    let schedules = vec![schedule.clone(); paths(NetworkKind::Kernel)];
    let relay = LinkRelay::start(wire, schedules, Some(Box::new(news.clone())))?;
    for lane in DemoLane::ALL {
        // An address for each path: a socket on all addresses would answer from the wrong one.
        let far = SocketAddr::from((tun::path_address(lane as usize), server.port()));
        forward_between(
            &NetworkAddress::within(&ends.server, far),
            &NetworkAddress::outside(server),
        )?;
        let near = door(lane, server.port());
        forward_between(
            &NetworkAddress::outside(near),
            &NetworkAddress::within(&ends.client, far),
        )?;
    }
    Ok((relay, ends))
}

/// Creates a relay of datagrams for QUIC and for the simulator's TCP.
fn modelled(
    server: SocketAddr,
    schedule: &PathSchedule,
    news: &LinkNews,
    link: watch::Receiver<Link>,
) -> anyhow::Result<LinkRelay> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut sides = Vec::new();
    let mut tcp = Vec::new();
    for lane in DemoLane::ALL {
        let (relay, far_end) = (UdpSocket::bind(any)?, UdpSocket::bind(any)?);
        let near = door(lane, server.port());
        let listener = TcpListener::bind(near).with_context(|| near.to_string())?;
        tcp.push(ModelledDoor { listener, relay: relay.local_addr()?, far_end, server });
        sides.push((relay, tcp[lane as usize].far_end.local_addr()?));
    }
    let near = door(DemoLane::Loquent, server.port());
    let quic = UdpSocket::bind(near).with_context(|| near.to_string())?;
    // Paths are counted by their places: TCP's, QUIC's, and then that of Loquent's HTTP.
    sides.insert(DemoLane::Loquent as usize, (quic, server));
    let schedules = vec![schedule.clone(); paths(NetworkKind::Modelled)];
    let relay = LinkRelay::start(UdpWire::new(sides)?, schedules, Some(Box::new(news.clone())))?;
    modelled_tcp::start(tcp, link)?;
    Ok(relay)
}
