//! Networks of this machine, by interface or by local address, so that a connection stays on one of
//! them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use socket2::{Domain, Protocol, Socket, Type};

/// Maximum bytes of an interface's name (Linux: `IFNAMSIZ`, less its final zero).
const MAX_NAME_BYTES: usize = 15;

/// One network of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// The interface of this name, whatever its addresses are.
    Interface(String),
    /// The interface that has this local address. Where the system routes by destination only,
    /// packets may leave over another one.
    Address(IpAddr),
}

/// A text that names no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address nor the name of a network interface")]
pub struct NotANetwork(String);

impl FromStr for Via {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let fits = (1..=MAX_NAME_BYTES).contains(&text.len());
        let is_name = |it: u8| it.is_ascii_graphic() && it != b'/';
        match fits && text.bytes().all(is_name) {
            true => Ok(Self::Interface(text.to_owned())),
            false => Err(NotANetwork(text.to_owned())),
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Returns a socket on a free port, for packets to `remote` over `via`, or over the network that
/// the system chooses.
///
/// # Errors
/// Errors of the system: there is no such interface or address.
pub(crate) fn bind(via: Option<&Via>, remote: SocketAddr) -> io::Result<UdpSocket> {
    match via {
        None => UdpSocket::bind(any_address(remote)),
        Some(Via::Address(address)) => UdpSocket::bind((*address, 0)),
        Some(Via::Interface(name)) => bind_to_interface(name, remote),
    }
}

fn any_address(remote: SocketAddr) -> SocketAddr {
    match remote {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn bind_to_interface(name: &str, remote: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
    match bind_device(&socket, name) {
        Ok(()) => socket.bind(&any_address(remote).into())?,
        // Linux before 5.7 asks for a privilege, and other systems have no such call.
        Err(error) if is_refused(&error) => {
            let address = address_of(name, remote)?;
            socket.bind(&SocketAddr::new(address, 0).into())?;
        }
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

#[cfg(target_os = "linux")]
fn bind_device(socket: &Socket, name: &str) -> io::Result<()> {
    socket.bind_device(Some(name.as_bytes()))
}

#[cfg(not(target_os = "linux"))]
fn bind_device(_: &Socket, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns an address of the interface from which packets can go to `remote`.
#[cfg(unix)]
fn address_of(name: &str, remote: SocketAddr) -> io::Result<IpAddr> {
    let fits = |address: &IpAddr| address.is_ipv4() == remote.is_ipv4();
    let named = nix::ifaddrs::getifaddrs()?.filter(|one| one.interface_name == name);
    let mut addresses = named.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::from(it.ip()))).filter(fits)
    });
    addresses.next().ok_or_else(|| {
        let what = format!("no interface {name} with an address for {}", remote.ip());
        io::Error::new(io::ErrorKind::AddrNotAvailable, what)
    })
}

#[cfg(not(unix))]
fn address_of(name: &str, _: SocketAddr) -> io::Result<IpAddr> {
    let what = format!("give the address of {name} instead of its name");
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

    #[test]
    fn addresses_and_names_are_told_apart() {
        let via = |text: &str| text.parse::<Via>();
        assert_eq!(via("192.0.2.7"), Ok(Via::Address([192, 0, 2, 7].into())));
        assert_eq!(via("2001:db8::1"), Ok(Via::Address("2001:db8::1".parse().unwrap())));
        assert_eq!(via("wwan0"), Ok(Via::Interface("wwan0".into())));
        for nothing in ["", "a/b", "two words", "sixteen-letters-", "wörter"] {
            assert_eq!(via(nothing), Err(NotANetwork(nothing.into())));
        }
    }

    #[test]
    fn an_address_is_kept() {
        let second = IpAddr::from([127, 0, 0, 2]);
        if UdpSocket::bind((second, 0)).is_err() {
            return; // Not every system has it.
        }
        let bound = bind(Some(&Via::Address(second)), REMOTE).unwrap();
        assert_eq!(bound.local_addr().unwrap().ip(), second);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_interface_is_found_by_its_name() {
        let there = bind(Some(&Via::Interface("lo".into())), REMOTE).unwrap();
        there.send_to(b"x", REMOTE).unwrap();
        assert!(bind(Some(&Via::Interface("no-such-net".into())), REMOTE).is_err());
        assert_eq!(address_of("lo", REMOTE).unwrap(), REMOTE.ip());
        assert!(address_of("no-such-net", REMOTE).is_err());
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(text in "[a-z0-9:.]{1,15}") {
            let via: Via = text.parse().unwrap();
            prop_assert_eq!(via.to_string().parse::<Via>().unwrap(), via);
        }
    }
}
