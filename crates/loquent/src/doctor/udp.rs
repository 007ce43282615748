//! Checks whether QUIC gets through to a server and back, and if not, where it is blocked.
//!
//! There are two probes: the real handshake, and one datagram in a version of QUIC that nobody
//! supports, which every QUIC server answers at once with a small one (RFC 9000 §6.1). The system
//! reports a closed port. If nothing arrives, the server can report whether it received a handshake
//! from here.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use loquent_client::{Client, ClientError, DeliveryOffer, QuicPath, Via};
use serde::Deserialize;
use tokio::net::UdpSocket;

use super::diagnosis::Diagnosis;

const CHECK: &str = "udp";
/// The check of one of this machine's networks.
const VIA_CHECK: &str = "via";
/// A version reserved for forcing version negotiation (RFC 9000 §15).
const NO_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
/// Minimum size of a datagram to be answered (RFC 9000 §14.1).
const KNOCK_BYTES: usize = 1200;
/// Length of each connection id.
const ID_BYTES: usize = 8;
/// Number of probes, and the wait after each: two round trips around the world.
const KNOCKS: usize = 5;
const KNOCK_PAUSE: Duration = Duration::from_millis(600);
/// Time limit for a handshake: its first packet is sent three times within it.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of the server's response about handshakes, in bytes.
const MAX_ANSWER_BYTES: usize = 4096;

/// Outcome of a datagram to a server's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knock {
    /// A QUIC server answered.
    Answered,
    /// The remote machine reports that nothing listens on the port.
    Closed,
    /// Sending was forbidden on this machine.
    ForbiddenHere,
    /// No answer arrived.
    Silence,
}

/// The server's view of this machine.
#[derive(Debug, Deserialize)]
struct SeenByServer {
    address: Option<IpAddr>,
    handshake_s_ago: Option<f64>,
}

/// Diagnoses the path to the server of `client`, which answered HTTP at `address`, and back.
pub(super) async fn diagnose(client: &Client, address: SocketAddr) -> Diagnosis {
    let offer = match client.quic_offer().await {
        Ok(Some(offer)) => offer,
        Ok(None) => {
            return Diagnosis::warning(
                CHECK,
                "the server offers no QUIC, so that answers come over TCP",
                "start it without --no-quic; a proxy in front has to pass /.well-known/loquent on, \
                 and the server's UDP port has to be reachable",
            );
        }
        Err(error) => return Diagnosis::skipped(CHECK, format!("not checked: {error}")),
    };
    let started = Instant::now();
    let port = SocketAddr::new(address.ip(), offer.port);
    // Both at once: the wait for one that never comes is not added to that for the other.
    let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, client.try_quic(&offer, None));
    let (path, knock) = tokio::join!(handshake, knock(port));
    let path = path.unwrap_or_else(|_| {
        let (authority, limit) = (port.to_string(), HANDSHAKE_LIMIT.as_secs());
        Err(ClientError::Connect { authority, reason: format!("no answer within {limit} s") })
    });
    match path {
        Ok(path) => fine(&path),
        Err(error) => {
            let seen = seen_by(client).await;
            let arrived = seen.as_ref().and_then(|seen| seen.handshake_s_ago);
            // A second of doubt: the two clocks started at different ends of a request.
            let arrived = arrived.map(|ago| ago <= started.elapsed().as_secs_f64() + 1.0);
            let knock = knock.unwrap_or(Knock::Silence);
            blocked(&Blockade { knock, arrived, seen, offer, port, error })
        }
    }
}

/// Diagnoses the path to the server of `client` over the network `via` of this machine.
pub(super) async fn diagnose_via(client: &Client, via: &Via) -> Diagnosis {
    let Ok(Some(offer)) = client.quic_offer().await else {
        return Diagnosis::skipped(VIA_CHECK, format!("{via}: not checked without QUIC"));
    };
    let tried = client.try_quic(&offer, Some(via.clone()));
    let tried = tokio::time::timeout(HANDSHAKE_LIMIT, tried).await;
    judge_via(via, tried.ok())
}

/// Judges a handshake over `via`; `tried` is `None` if it took too long.
fn judge_via(via: &Via, tried: Option<Result<QuicPath, ClientError>>) -> Diagnosis {
    match tried {
        Some(Ok(path)) => {
            let ms = path.round_trip.as_secs_f64() * 1e3;
            let from = path.local.map(|local| format!(" from {local}")).unwrap_or_default();
            let what =
                format!("{via}: QUIC gets through{from} to UDP {} in {ms:.0} ms", path.server);
            Diagnosis::fine(VIA_CHECK, what)
        }
        Some(Err(error)) => Diagnosis::failure(
            VIA_CHECK,
            format!("{via}: {error}"),
            "compare with the interfaces and addresses that `ip address` lists",
        ),
        None => {
            let limit = HANDSHAKE_LIMIT.as_secs();
            Diagnosis::failure(
                VIA_CHECK,
                format!("{via}: no answer within {limit} s"),
                "`ip route` must list a route to the server over this interface, and its network \
                 must let UDP through",
            )
        }
    }
}

fn fine(path: &QuicPath) -> Diagnosis {
    let (server, ms) = (path.server, path.round_trip.as_secs_f64() * 1e3);
    match path.datagram_bytes {
        Some(bytes) => Diagnosis::fine(
            CHECK,
            format!(
                "QUIC gets through to UDP {server} and back in {ms:.0} ms, datagrams of {bytes} \
                 bytes and more"
            ),
        ),
        None => Diagnosis::warning(
            CHECK,
            format!("QUIC gets through to UDP {server} and back, but without datagrams"),
            "whatever answers there is no Loquent server: pass UDP on to the server itself",
        ),
    }
}

async fn seen_by(client: &Client) -> Option<SeenByServer> {
    let answer = client.http().get("/v1/probe/udp", MAX_ANSWER_BYTES).await.ok()?;
    serde_json::from_slice(&answer).ok()
}

/// Facts about a path on which QUIC does not get through.
struct Blockade {
    knock: Knock,
    /// True if the server saw the handshake start; `None` if it cannot tell.
    arrived: Option<bool>,
    seen: Option<SeenByServer>,
    offer: DeliveryOffer,
    port: SocketAddr,
    error: ClientError,
}

fn blocked(found: &Blockade) -> Diagnosis {
    let Blockade { knock, arrived, seen, offer, port, error } = found;
    let number = offer.port;
    let (what, advice) = match (knock, arrived) {
        (Knock::ForbiddenHere, _) => (
            format!("this machine does not let UDP out to {port}"),
            "allow it in the firewall of this machine".to_owned(),
        ),
        (Knock::Closed, _) => (
            format!("nothing listens on UDP {port}, although the server offers QUIC there"),
            format!(
                "pass UDP port {number} on to the server: publish {number}/udp of its container, \
                 forward UDP in the router, not TCP alone"
            ),
        ),
        (Knock::Answered, _) if is_of_certificate(error) => (
            format!("another certificate than the server's own at UDP {port}: {error}"),
            "an older server still has the port, or another machine answers there".to_owned(),
        ),
        (Knock::Answered, _) => (
            format!(
                "small datagrams pass to UDP {port} and back, a QUIC handshake does not: {error}"
            ),
            "something on the way drops large UDP packets: a tunnel or VPN has to let 1280 bytes \
             through"
                .to_owned(),
        ),
        (Knock::Silence, Some(true)) => (
            format!("UDP packets from here reach the server at {port}; its answers are lost"),
            format!(
                "let the server's firewall send UDP from port {number}, and its answers in here"
            ),
        ),
        (Knock::Silence, Some(false) | None) => {
            let seen_as = seen_as(seen.as_ref());
            (
                format!(
                    "UDP to {port} is dropped on the way: no answer came, and the server saw \
                     nothing of it{seen_as}"
                ),
                format!(
                    "open UDP port {number} where TCP {number} is open: the server's firewall, its \
                     cloud's security group, or this network's. Answers come over TCP until then"
                ),
            )
        }
    };
    Diagnosis::failure(CHECK, what, advice)
}

fn seen_as(seen: Option<&SeenByServer>) -> String {
    let address = seen.and_then(|seen| seen.address);
    address.map(|it| format!(" (it sees this machine as {it})")).unwrap_or_default()
}

fn is_of_certificate(error: &ClientError) -> bool {
    let text = error.to_string();
    text.contains("certificate") || text.contains("Certificate")
}

/// Sends datagrams that the QUIC server at `address` must answer.
///
/// # Errors
/// Errors of the system other than a closed port or a forbidden packet.
async fn knock(address: SocketAddr) -> io::Result<Knock> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Only a connected socket is told that a port is closed.
    socket.connect(address).await?;
    let (packet, ids) = packet();
    for _ in 0..KNOCKS {
        match exchange(&socket, &packet, ids).await {
            Ok(true) => return Ok(Knock::Answered),
            Ok(false) => {}
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => return Ok(Knock::Closed),
                ErrorKind::PermissionDenied => return Ok(Knock::ForbiddenHere),
                _ => return Err(error),
            },
        }
    }
    Ok(Knock::Silence)
}

/// Sends `packet` once; returns true if its answer arrived within the pause.
async fn exchange(socket: &UdpSocket, packet: &[u8], ids: [u8; 2 * ID_BYTES]) -> io::Result<bool> {
    socket.send(packet).await?;
    let answer = async {
        let mut answer = [0; 1500];
        loop {
            let len = socket.recv(&mut answer).await?;
            if is_negotiation(&answer[..len], ids) {
                return Ok(true);
            }
        }
    };
    tokio::time::timeout(KNOCK_PAUSE, answer).await.unwrap_or(Ok(false))
}

/// Returns a first packet in an unsupported version, and its two connection ids.
fn packet() -> (Vec<u8>, [u8; 2 * ID_BYTES]) {
    let ids: [u8; 2 * ID_BYTES] = rand::random();
    let mut packet = vec![0xc0];
    packet.extend(NO_VERSION);
    for id in ids.chunks(ID_BYTES) {
        packet.push(ID_BYTES as u8);
        packet.extend(id);
    }
    packet.resize(KNOCK_BYTES, 0);
    (packet, ids)
}

/// Returns true if `answer` is a version negotiation packet for these ids.
fn is_negotiation(answer: &[u8], ids: [u8; 2 * ID_BYTES]) -> bool {
    let (theirs, ours) = ids.split_at(ID_BYTES);
    // The ids come back in each other's place.
    let expected = [&[0, 0, 0, 0, ID_BYTES as u8], ours, &[ID_BYTES as u8], theirs].concat();
    answer.first().is_some_and(|first| first & 0x80 != 0) && answer[1..].starts_with(&expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn closed_and_silent_ports_differ() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(knock(address).await.unwrap(), Knock::Silence);
        drop(silent);
        assert_eq!(knock(address).await.unwrap(), Knock::Closed);
    }

    #[test]
    fn only_the_answer_to_ones_own_packet_counts() {
        let (packet, ids) = packet();
        assert_eq!(packet.len(), KNOCK_BYTES);
        let (theirs, ours) = ids.split_at(ID_BYTES);
        let answer = [&[0x80, 0, 0, 0, 0, 8], ours, &[8], theirs, &[0, 0, 0, 1]].concat();
        assert!(is_negotiation(&answer, ids));
        for end in 0..22 {
            assert!(!is_negotiation(&answer[..end], ids), "{end}");
        }
        assert!(!is_negotiation(&packet, ids), "its own packet, reflected");
    }

    #[test]
    fn the_place_where_it_ends_is_named() {
        let port: SocketAddr = "192.0.2.1:8080".parse().unwrap();
        let what = |knock, arrived, reason: &str| {
            let offer = DeliveryOffer { port: 8080, certificate_sha256: None };
            let error =
                ClientError::Connect { authority: port.to_string(), reason: reason.to_owned() };
            blocked(&Blockade { knock, arrived, seen: None, offer, port, error }).what
        };
        assert!(what(Knock::Silence, None, "x").contains("dropped on the way"));
        assert!(what(Knock::Silence, Some(false), "x").contains("dropped on the way"));
        assert!(what(Knock::Silence, Some(true), "x").contains("its answers are lost"));
        assert!(what(Knock::Closed, None, "x").contains("nothing listens"));
        assert!(what(Knock::Answered, None, "timed out").contains("small datagrams"));
        let pinned = "invalid peer certificate: application verification failure";
        assert!(what(Knock::Answered, None, pinned).contains("another certificate"));
    }

    #[test]
    fn each_network_is_judged_alone() {
        let via: Via = "wwan0".parse().unwrap();
        let path = QuicPath {
            local: Some([192, 0, 2, 7].into()),
            server: "192.0.2.1:8080".parse().unwrap(),
            round_trip: Duration::from_millis(43),
            datagram_bytes: Some(1200),
        };
        let fine = judge_via(&via, Some(Ok(path)));
        assert!(!fine.is_failure() && fine.what.contains("wwan0"), "{fine:?}");
        assert!(fine.what.contains("192.0.2.7") && fine.what.contains("43 ms"), "{fine:?}");
        let error = ClientError::Broken("no interface wwan0".into());
        for tried in [Some(Err(error)), None] {
            assert!(judge_via(&via, tried).is_failure());
        }
    }
}
