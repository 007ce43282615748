//! Source address of a request: the connection's other end or, behind proxies that the operator
//! trusts, the client's address.

use std::net::IpAddr;
use std::str::FromStr;

use http::HeaderMap;
use ipnet::IpNet;

/// Header to which each proxy appends the address that it received the request from.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Headers in which a gateway says whose share of the server a request uses: llm-d's, and that of
/// the Gateway API's inference extension.
const FAIRNESS_ID: [&str; 2] = ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];
/// Maximum bytes of such a name; a longer one is ignored.
const MAX_FAIRNESS_ID_BYTES: usize = 256;

/// The other end of a request's connection, in the request's extensions. For QUIC, the handshake
/// has verified it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// Returns true if a request with `headers` has come through a proxy, as most of them tell (RFC
/// 9110, section 7.6.3; RFC 7239).
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    [FORWARDED_FOR, "forwarded", "via"].iter().any(|name| headers.contains_key(*name))
}

/// Returns the network that counts as one client: an IPv4 address, or the /64 of an IPv6
/// subscriber.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

/// Address or address range of trusted proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedProxy(IpNet);

impl FromStr for TrustedProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = || text.parse().map(|one: IpAddr| IpNet::from(one.to_canonical()));
        let range = text.parse().or_else(|_| one());
        range
            .map(Self)
            .map_err(|_| "give an address, or a range of addresses such as 10.0.0.0/8".to_owned())
    }
}

/// Proxies whose `X-Forwarded-For` is trusted; by default none.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<TrustedProxy>);

impl TrustedProxies {
    /// Trusts proxies with addresses in `ranges`.
    pub fn new(ranges: Vec<TrustedProxy>) -> Self {
        Self(ranges)
    }

    /// Returns true if no proxy is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if `address` is a trusted proxy's. To a socket of `::`, an IPv4 proxy has a
    /// mapped address.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|range| range.0.contains(&address))
    }

    /// Returns the address of the client whose request arrived from `peer`: the last address in
    /// `X-Forwarded-For` that is not a trusted proxy's. The client may have forged anything before
    /// that.
    pub fn client_address(&self, peer: PeerAddress, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.0.to_canonical();
        let lines = headers.get_all(FORWARDED_FOR).into_iter().rev();
        let mut hops = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
        while self.trusts(client) {
            match hops.next().and_then(parse_hop) {
                Some(hop) => client = hop,
                None => break,
            }
        }
        client
    }

    /// Returns the name that a trusted proxy gives to whose request it is, if it gives one.
    pub fn fairness_id<'a>(&self, peer: PeerAddress, headers: &'a HeaderMap) -> Option<&'a [u8]> {
        if !self.trusts(peer.0) {
            return None;
        }
        let name = FAIRNESS_ID.iter().find_map(|name| headers.get(*name))?.as_bytes();
        (1..=MAX_FAIRNESS_ID_BYTES).contains(&name.len()).then_some(name)
    }
}

/// Parses an address as written by proxies: bare, or with a port.
fn parse_hop(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let address = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, _port)) => v6,
        None if text.matches(':').count() == 1 => text.split(':').next()?,
        None => text,
    };
    address.parse().ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    //! Tests that only addresses written by a trusted proxy are used.
    use super::*;

    fn client(peer: &str, lines: &[&str]) -> String {
        let ranges = ["10.0.0.0/8", "192.0.2.7", "fd00::/8"].map(|range| range.parse().unwrap());
        let proxies = TrustedProxies::new(ranges.into());
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        proxies.client_address(PeerAddress(peer.parse().unwrap()), &headers).to_string()
    }

    #[test]
    fn subscribers_count_as_one() {
        let same = |a: &str, b: &str| network(a.parse().unwrap()) == network(b.parse().unwrap());
        assert!(same("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!same("10.0.0.1", "10.0.0.2"));
    }

    #[test]
    fn a_stranger_cannot_choose_its_address() {
        assert_eq!(client("203.0.113.5", &["198.51.100.1"]), "203.0.113.5");
        // Its own line stands before the proxy's.
        assert_eq!(client("10.0.0.1", &["198.51.100.1, 203.0.113.5"]), "203.0.113.5");
        assert_eq!(client("10.0.0.1", &["198.51.100.1", "203.0.113.5"]), "203.0.113.5");
        assert_eq!(client("10.0.0.1", &["10.9.9.9, 203.0.113.5, 10.0.0.2"]), "203.0.113.5");
        assert_eq!(client("10.0.0.1", &["198.51.100.1, nonsense"]), "10.0.0.1");
    }

    #[test]
    fn the_last_hop_that_is_no_proxy_is_the_client() {
        assert_eq!(client("10.0.0.1", &["203.0.113.5"]), "203.0.113.5");
        assert_eq!(client("::ffff:10.0.0.1", &["203.0.113.5:4711 , 192.0.2.7"]), "203.0.113.5");
        assert_eq!(client("fd00::1", &["[2001:db8::9]:443"]), "2001:db8::9");
        assert_eq!(client("fd00::1", &["2001:db8::9"]), "2001:db8::9");
        assert_eq!(client("10.0.0.1", &["10.0.0.3"]), "10.0.0.3", "a client among the proxies");
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn only_a_trusted_proxy_says_whose_share_it_is() {
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let name = |peer: &str, header: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static(header),
                value.parse().unwrap(),
            )]);
            let peer = PeerAddress(peer.parse().unwrap());
            proxies.fairness_id(peer, &headers).map(<[u8]>::to_vec)
        };
        for header in FAIRNESS_ID {
            assert_eq!(name("10.0.0.1", header, "team-a"), Some(b"team-a".to_vec()));
            assert_eq!(name("::ffff:10.0.0.1", header, "team-a"), Some(b"team-a".to_vec()));
            assert_eq!(name("203.0.113.5", header, "team-a"), None);
            assert_eq!(name("10.0.0.1", header, ""), None);
            assert_eq!(name("10.0.0.1", header, &"x".repeat(257)), None);
        }
        assert_eq!(name("10.0.0.1", "x-other", "team-a"), None);
    }

    #[test]
    fn a_proxy_is_trusted_however_its_address_is_written() {
        for (proxy, peer) in [
            ("10.0.0.0/8", "10.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ] {
            let proxies = TrustedProxies::new(vec![proxy.parse().unwrap()]);
            assert!(proxies.trusts(peer.parse().unwrap()), "{proxy} and {peer}");
            assert!(!proxies.trusts("::ffff:203.0.113.5".parse().unwrap()), "{proxy}");
        }
    }

    #[test]
    fn ranges_are_checked() {
        for wrong in ["", "10.0.0.0/33", "proxy.example", "10.0.0"] {
            assert!(wrong.parse::<TrustedProxy>().is_err(), "{wrong:?}");
        }
    }
}
