//! Detects a change of network by this machine's own address. A TCP connection does not survive
//! such a change, and fails only after minutes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns the source address of packets to the internet, or `None` without a route. Only queries
/// the routing table; nothing is sent.
pub fn source_address() -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849): routed like any other, used by nobody.
    let v4 = SocketAddr::from((Ipv4Addr::new(198, 51, 100, 1), 9));
    let v6 = SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9));
    source_to(v4).or_else(|| source_to(v6))
}

fn source_to(target: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_this_machine_leave_from_it() {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(source_to((loopback, 9).into()), Some(loopback));
    }
}
