//! Queue of datagrams until the end of a turn, which sends many of them with one system call.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::{io::IoSlice, os::fd::AsRawFd};

#[cfg(target_os = "linux")]
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
#[cfg(target_os = "linux")]
use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};
use quinn::udp::{EcnCodepoint, Transmit, UdpSocketState};
use tokio::net::UdpSocket;

/// Size in bytes at which the outbox is full. Chosen by hand: several times the output of one step
/// to hundreds of readers, and less than a usual socket buffer.
const MOST_BYTES: usize = 128 * 1024;
/// Number of datagrams that are sent before the end of the turn: one more system call for this many
/// is negligible, and the first of them should not wait longer.
const ENOUGH: usize = 64;

/// Datagrams in sending order.
#[derive(Debug, Default)]
pub struct Outbox {
    datagrams: Vec<OutgoingDatagram>,
    /// Number of datagrams already sent.
    sent: usize,
    /// Contents of all datagrams; the buffer is reused.
    contents: Vec<u8>,
    /// Number of system calls so far.
    #[cfg(test)]
    pub calls: usize,
}

/// One datagram, or several of the same size to one address.
#[derive(Debug)]
struct OutgoingDatagram {
    destination: SocketAddr,
    options: DatagramOptions,
    contents: Range<usize>,
}

/// Options passed to the kernel for a datagram besides its destination. Datagrams with equal
/// options can be sent together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DatagramOptions {
    ecn: Option<EcnCodepoint>,
    /// True if the destination is an IPv4 address, perhaps through an IPv6 socket.
    is_ipv4: bool,
    segment_bytes: Option<u16>,
    source: Option<IpAddr>,
}

impl Outbox {
    /// Returns true if everything was sent.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Returns true if the outbox accepts no more datagrams.
    pub fn is_full(&self) -> bool {
        self.contents.len() >= MOST_BYTES
    }

    /// Returns true if the queued datagrams should be sent now.
    pub fn has_enough(&self) -> bool {
        self.datagrams.len() - self.sent >= ENOUGH
    }

    /// Appends a datagram.
    pub fn push(&mut self, transmit: &Transmit<'_>) {
        let begin = self.contents.len();
        self.contents.extend_from_slice(transmit.contents);
        let bytes = transmit.contents.len();
        let segment = transmit.segment_size.filter(|&segment| segment < bytes);
        self.datagrams.push(OutgoingDatagram {
            destination: transmit.destination,
            options: DatagramOptions {
                ecn: transmit.ecn,
                is_ipv4: transmit.destination.ip().to_canonical().is_ipv4(),
                segment_bytes: segment.and_then(|segment| segment.try_into().ok()),
                source: transmit.src_ip,
            },
            contents: begin..begin + bytes,
        });
    }

    /// Sends all datagrams that `socket` accepts.
    ///
    /// # Errors
    /// Only `WouldBlock`, when the socket accepts no more for now. Other errors lose datagrams, as
    /// networks do.
    pub fn send(&mut self, socket: &UdpSocket, state: &UdpSocketState) -> io::Result<()> {
        while self.sent < self.datagrams.len() {
            self.sent += self.send_some(socket, state)?;
        }
        self.datagrams.clear();
        self.contents.clear();
        self.sent = 0;
        Ok(())
    }

    /// Sends the next datagrams that can be sent together. Returns the number of datagrams handled.
    fn send_some(&mut self, socket: &UdpSocket, state: &UdpSocketState) -> io::Result<usize> {
        let waiting = &self.datagrams[self.sent..];
        let first = &waiting[0];
        let alike = waiting.iter().take_while(|one| one.options == first.options).count();
        #[cfg(test)]
        {
            self.calls += 1;
        }
        if alike > 1
            && let Some(sent) = send_together(socket, &waiting[..alike], &self.contents)
        {
            return Ok(sent);
        }
        // Alone: quinn knows what to do where the system lacks something.
        state.send(socket.into(), &first.transmit(&self.contents)).map(|()| 1)
    }
}

impl OutgoingDatagram {
    fn transmit<'a>(&self, contents: &'a [u8]) -> Transmit<'a> {
        Transmit {
            destination: self.destination,
            ecn: self.options.ecn,
            contents: &contents[self.contents.clone()],
            segment_size: self.options.segment_bytes.map(usize::from),
            src_ip: self.options.source,
        }
    }
}

/// Sends datagrams of the same options with one system call. Returns the number of datagrams that
/// the kernel accepted, or `None` if not even the first.
#[cfg(target_os = "linux")]
fn send_together(
    socket: &UdpSocket,
    waiting: &[OutgoingDatagram],
    contents: &[u8],
) -> Option<usize> {
    let pieces: Vec<_> =
        waiting.iter().map(|one| [IoSlice::new(&contents[one.contents.clone()])]).collect();
    let destinations: Vec<_> =
        waiting.iter().map(|one| Some(SockaddrStorage::from(one.destination))).collect();
    let words = waiting[0].options.words();
    let control = words.control_messages();
    // To the byte: the kernel takes a rest that is zero for a message without a length.
    let space = control.iter().map(space_of).sum();
    let mut headers = MultiHeaders::preallocate(waiting.len(), Some(Vec::with_capacity(space)));
    let fd = socket.as_raw_fd();
    let flags = MsgFlags::empty();
    let sent = sendmmsg(fd, &mut headers, &pieces, &destinations, &control, flags).ok()?;
    Some(sent.count()).filter(|&sent| sent > 0)
}

#[cfg(not(target_os = "linux"))]
fn send_together(_: &UdpSocket, _: &[OutgoingDatagram], _: &[u8]) -> Option<usize> {
    None
}

/// [`DatagramOptions`] in the kernel's types, which control messages point to.
#[cfg(target_os = "linux")]
struct ControlWords {
    is_ipv4: bool,
    tos: u8,
    traffic_class: i32,
    segment_bytes: Option<u16>,
    source_v4: Option<in_pktinfo>,
    source_v6: Option<in6_pktinfo>,
}

#[cfg(target_os = "linux")]
impl DatagramOptions {
    fn words(&self) -> ControlWords {
        let ecn = self.ecn.map_or(0, |ecn| ecn as u8);
        let (mut source_v4, mut source_v6) = (None, None);
        match self.source {
            Some(IpAddr::V4(source)) => {
                let ipi_spec_dst = in_addr { s_addr: u32::from_ne_bytes(source.octets()) };
                let ipi_addr = in_addr { s_addr: 0 };
                source_v4 = Some(in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr });
            }
            Some(IpAddr::V6(source)) => {
                let ipi6_addr = in6_addr { s6_addr: source.octets() };
                source_v6 = Some(in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 });
            }
            None => {}
        }
        ControlWords {
            is_ipv4: self.is_ipv4,
            tos: ecn,
            traffic_class: ecn.into(),
            segment_bytes: self.segment_bytes,
            source_v4,
            source_v6,
        }
    }
}

#[cfg(target_os = "linux")]
impl ControlWords {
    fn control_messages(&self) -> Vec<ControlMessage<'_>> {
        let ecn = match self.is_ipv4 {
            true => ControlMessage::Ipv4Tos(&self.tos),
            false => ControlMessage::Ipv6TClass(&self.traffic_class),
        };
        let mut messages = vec![ecn];
        messages.extend(self.segment_bytes.as_ref().map(ControlMessage::UdpGsoSegments));
        messages.extend(self.source_v4.as_ref().map(ControlMessage::Ipv4PacketInfo));
        messages.extend(self.source_v6.as_ref().map(ControlMessage::Ipv6PacketInfo));
        messages
    }
}

#[cfg(target_os = "linux")]
fn space_of(message: &ControlMessage<'_>) -> usize {
    match message {
        ControlMessage::Ipv4PacketInfo(_) => nix::cmsg_space!(in_pktinfo).capacity(),
        ControlMessage::Ipv6PacketInfo(_) => nix::cmsg_space!(in6_pktinfo).capacity(),
        // The others are no longer than a word.
        _ => nix::cmsg_space!(u32).capacity(),
    }
}
