//! Checks the ports that `serve` would listen on: that they are free, and that UDP works at all.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use loquent_openai::BaseUrl;
use loquent_openai::http::HttpClient;

use super::diagnosis::Diagnosis;

/// Time limit for a datagram to this machine itself.
const LOOP_LIMIT: Duration = Duration::from_millis(500);
/// Time limit for the owner of a port to identify itself as a Loquent server.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Listen address and ports of `serve`.
pub(super) struct ListenTarget {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) quic_port: Option<u16>,
}

impl ListenTarget {
    /// Binds both ports briefly.
    pub(super) async fn diagnose(&self) -> Vec<Diagnosis> {
        let Some(address) = self.address() else {
            let what = format!("this machine has no address {}", self.host);
            return vec![Diagnosis::failure("port", what, "choose another --host")];
        };
        let tcp = TcpListener::bind(address);
        if let Err(error) = &tcp
            && error.kind() == ErrorKind::AddrInUse
            && is_loquent(address).await
        {
            let here = SocketAddr::new(reachable(address.ip()), address.port());
            let what = format!("a Loquent server listens on {here} already");
            return vec![Diagnosis::fine(
                "port",
                format!("{what}; check it with loquent doctor --url http://{here}"),
            )];
        }
        let quic = SocketAddr::new(address.ip(), self.quic_port.unwrap_or(address.port()));
        vec![
            judge("TCP", address, tcp.map(drop), "--port"),
            match UdpSocket::bind(quic) {
                Ok(socket) => loops(socket, quic),
                Err(error) => judge("UDP", quic, Err(error), "--quic-port"),
            },
        ]
    }

    fn address(&self) -> Option<SocketAddr> {
        let host = self.host.trim_matches(['[', ']']);
        (host, self.port).to_socket_addrs().ok()?.next()
    }
}

fn judge(protocol: &str, at: SocketAddr, bound: io::Result<()>, flag: &str) -> Diagnosis {
    let Err(error) = bound else {
        return Diagnosis::fine("port", format!("{protocol} port {at} is free"));
    };
    let (what, advice) = match error.kind() {
        ErrorKind::AddrInUse => (
            format!("another program uses {protocol} port {at}"),
            format!("end it (ss -ltunp shows which it is), or choose another {flag}"),
        ),
        ErrorKind::PermissionDenied => (
            format!("{protocol} port {at} may not be used: ports below 1024 need a privilege"),
            format!(
                "choose {flag} 1024 or above; or, in a systemd unit, \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE"
            ),
        ),
        ErrorKind::AddrNotAvailable => {
            (format!("this machine has no address {}", at.ip()), "choose another --host".into())
        }
        _ => (
            format!("{protocol} port {at} cannot be used: {error}"),
            format!("choose another {flag}"),
        ),
    };
    Diagnosis::failure("port", what, advice)
}

/// Checks that a datagram to `socket` from this machine itself arrives. If not even that does, no
/// other machine's will.
fn loops(socket: UdpSocket, at: SocketAddr) -> Diagnosis {
    let passes = || -> io::Result<()> {
        let target = SocketAddr::new(reachable(at.ip()), socket.local_addr()?.port());
        let any: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        UdpSocket::bind((any, 0))?.send_to(b"loquent", target)?;
        socket.set_read_timeout(Some(LOOP_LIMIT))?;
        socket.recv(&mut [0; 16]).map(drop)
    };
    match passes() {
        Ok(()) => Diagnosis::fine("port", format!("UDP port {at} is free, and takes datagrams")),
        Err(error) => Diagnosis::failure(
            "port",
            format!("UDP port {at} is free, but a datagram to it from here is lost: {error}"),
            "a firewall on this machine drops UDP; allow it for this port",
        ),
    }
}

/// Returns the address by which this machine reaches its own `address`.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(it) if it.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(it) if it.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => address,
    }
}

/// Returns true if a Loquent server listens there.
async fn is_loquent(address: SocketAddr) -> bool {
    let here = SocketAddr::new(reachable(address.ip()), address.port());
    let asked = async {
        let base = BaseUrl::parse(&format!("http://{here}")).ok()?;
        let metrics = HttpClient::new(base, None).ok()?.get("/metrics", 4 << 20).await.ok()?;
        String::from_utf8_lossy(&metrics).contains("loquent_").then_some(())
    };
    tokio::time::timeout(ASK_LIMIT, asked).await.is_ok_and(|answer| answer.is_some())
}

#[cfg(test)]
mod tests {
    use super::super::diagnosis::Severity;
    use super::*;

    async fn severities(port: u16) -> Vec<Severity> {
        let place = ListenTarget { host: "127.0.0.1".into(), port, quic_port: None };
        place.diagnose().await.into_iter().map(|one| one.severity).collect()
    }

    #[tokio::test]
    async fn ports_in_use_are_found() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        assert_eq!(severities(port).await[0], Severity::Failure);
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = udp.local_addr().unwrap().port();
        assert_eq!(severities(port).await[1], Severity::Failure);
    }

    #[tokio::test]
    async fn free_ports_are_fine() {
        assert_eq!(severities(0).await, [Severity::Fine; 2]);
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_none_to_listen_on() {
        let place = ListenTarget { host: "192.0.2.1".into(), port: 0, quic_port: None };
        assert_eq!(place.diagnose().await[0].severity, Severity::Failure);
    }
}
