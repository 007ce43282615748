//! Two network namespaces joined by a pair of TUN devices, whose packets the relay carries.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};

use tun_rs::{DeviceBuilder, SyncDevice};

use super::LinkError;
use super::emulator::PacketRoute;
use super::netns::Namespace;
use super::relay::{PacketWire, Received};

/// The client's address on the link.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The server's address on the link.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Prefix length of the network of both addresses.
const PREFIX: u8 = 16;
/// Additional addresses of the server, one for each path: the upper half of that network.
const PATHS: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 77, 128, 0), 17);
/// Maximum number of paths, one address each.
pub const MAX_PATHS: usize = 1 << 15;
/// Name of the device in both namespaces.
const DEVICE: &str = "link0";
/// Maximum packet size, the usual one of the Internet.
const MTU: u16 = 1500;

/// Returns the server's address for path number `path`.
///
/// # Panics
/// If `path` is not below [`MAX_PATHS`].
pub fn path_address(path: usize) -> Ipv4Addr {
    assert!(path < MAX_PATHS, "path {path} has no address");
    Ipv4Addr::from_bits(PATHS.0.to_bits() + path as u32)
}

fn path_of(server: Ipv4Addr) -> Option<usize> {
    let place = server.to_bits().checked_sub(PATHS.0.to_bits())? as usize;
    (place < MAX_PATHS).then_some(place)
}

/// The two namespaces of a link.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Namespace of the clients.
    pub client: Namespace,
    /// Namespace of the servers.
    pub server: Namespace,
}

/// Assignment of packets to paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paths {
    /// All packets use path 0.
    One,
    /// The server's address selects the path, see [`path_address`]; holds the number of paths.
    ByAddress(usize),
}

/// Creates both namespaces and the wire between them.
///
/// # Errors
/// If this process lacks the privilege (root), or TUN devices are not available.
pub fn create(paths: Paths) -> Result<(Ends, TunWire), LinkError> {
    let ends = Ends { client: Namespace::create()?, server: Namespace::create()? };
    let client = device(&ends.client, CLIENT)?;
    let server = device(&ends.server, SERVER)?;
    ends.server.add_local_network(PATHS.0, PATHS.1)?;
    Ok((ends, TunWire { client, server, paths }))
}

fn device(namespace: &Namespace, address: Ipv4Addr) -> Result<SyncDevice, LinkError> {
    let build = || {
        let device = DeviceBuilder::new().name(DEVICE).mtu(MTU);
        let device = device.ipv4(address, PREFIX, None).build_sync()?;
        device.set_nonblocking(true)?;
        Ok(device)
    };
    let device = namespace.within(build)?;
    device.map_err(|source| LinkError::Privilege { what: "TUN device", source })
}

/// Both TUN devices, as the wire of a relay.
pub struct TunWire {
    client: SyncDevice,
    server: SyncDevice,
    paths: Paths,
}

impl TunWire {
    fn path(&self, server: Ipv4Addr) -> Option<usize> {
        match self.paths {
            Paths::One => Some(0),
            Paths::ByAddress(count) => path_of(server).filter(|&path| path < count),
        }
    }
}

/// Returns the sender and the receiver of a packet; `None` if it is not IPv4 unicast.
fn addresses(packet: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let address =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let (from, to) = (address(12), address(16));
    (header[0] >> 4 == 4 && !to.is_multicast() && !to.is_broadcast()).then_some((from, to))
}

impl PacketWire for TunWire {
    fn sources(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.client.as_fd(), self.server.as_fd()]
    }

    fn receive(&mut self, source: usize, buffer: &mut [u8]) -> Received {
        let up = source == 0;
        let device = if up { &self.client } else { &self.server };
        let Ok(len) = device.recv(buffer) else {
            return Received::Nothing;
        };
        let far = addresses(&buffer[..len]).map(|(from, to)| if up { to } else { from });
        match far.and_then(|server| self.path(server)) {
            Some(path) => Received::Packet { route: PacketRoute { path, flow: 0, up }, len },
            None => Received::Ignored,
        }
    }

    fn deliver(&mut self, route: PacketRoute, packet: &[u8]) -> bool {
        let device = if route.up { &self.server } else { &self.client };
        device.send(packet).is_ok()
    }

    fn header_bytes(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_an_address_and_back() {
        for path in [0, 1, 255, 256, MAX_PATHS - 1] {
            assert_eq!(path_of(path_address(path)), Some(path));
        }
        assert_eq!(path_of(SERVER), None);
        assert_eq!(path_of(Ipv4Addr::new(10, 78, 0, 0)), None);
    }

    #[test]
    fn only_unicast_ipv4_crosses() {
        let mut packet = [0u8; 28];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&CLIENT.octets());
        packet[16..20].copy_from_slice(&SERVER.octets());
        assert_eq!(addresses(&packet), Some((CLIENT, SERVER)));
        packet[16] = 224;
        assert_eq!(addresses(&packet), None);
        packet[0] = 0x60;
        assert_eq!(addresses(&packet[..10]), None);
    }
}
