//! Host names by which requests may address the server.
//!
//! A web page can point its own name at this machine's address (DNS rebinding). Its requests then
//! come from the user's browser, with the page's name in `Host`, and the browser lets the page read
//! the responses. A server that only this machine can reach must therefore know its names.

use std::net::IpAddr;

use http::uri::Authority;
use http::{Request, header};

/// Host names that requests may use for the server.
#[derive(Debug, Clone, Default)]
pub struct AllowedHosts {
    /// Lower-case names; `*` allows any.
    names: Vec<String>,
    /// True if the server is bound to a loopback address.
    is_local: bool,
}

impl AllowedHosts {
    /// Allows the operator's `names`, without ports.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().map(|name| name.trim().to_ascii_lowercase());
        Self { names: names.filter(|name| !name.is_empty()).collect(), is_local: false }
    }

    /// Sets the `address` that the server is bound to.
    pub fn bound_to(self, address: IpAddr) -> Self {
        Self { is_local: address.to_canonical().is_loopback(), ..self }
    }

    /// Returns true if only this machine can reach the server: it is bound to a loopback address,
    /// and the operator lists no name by which a proxy passes on requests of others.
    pub fn is_local(&self) -> bool {
        self.is_local && self.names.iter().all(|name| means_this_machine(name))
    }

    /// Returns true if a request names the server, if at all, only as this machine. A page that has
    /// given its own name this machine's address cannot, and neither does a proxy that passes on a
    /// public name.
    pub fn is_asked_locally<B>(request: &Request<B>) -> bool {
        let is_here = |host: Authority| means_this_machine(&normalized(host.host()));
        names_in(request).all(|host| host.is_some_and(is_here))
    }

    /// Returns true if requests may use `host`, a name or an address without a port.
    ///
    /// On a server beyond loopback, all names are allowed unless the operator lists some. Addresses
    /// are always allowed, because they cannot be rebound.
    pub fn allows(&self, host: &str) -> bool {
        let host = normalized(host);
        let is_listed = self.names.iter().any(|name| name == "*" || *name == host);
        let is_harmless = !self.is_local && (self.names.is_empty() || address(&host).is_some());
        let is_here = is_loopback(&host) || self.is_local && is_name_of_this_machine(&host);
        is_listed || is_harmless || is_here
    }

    /// Returns the first host name of a request that is not allowed, shortened for an error
    /// message; `?` if it is invalid.
    pub fn refused<B>(&self, request: &Request<B>) -> Option<String> {
        let refused = names_in(request)
            .find(|host| host.as_ref().is_none_or(|it| !self.allows(it.host())))?;
        let name = refused.map_or("?".to_owned(), |host| host.host().to_owned());
        Some(name.chars().take(MAX_NAME_CHARS).collect())
    }
}

/// Maximum length of a name: no DNS name is longer (RFC 1035 §2.3.4).
const MAX_NAME_CHARS: usize = 255;

/// Returns all names by which a request addresses the server; `None` for an invalid one.
fn names_in<B>(request: &Request<B>) -> impl Iterator<Item = Option<Authority>> {
    let named = request.uri().authority().cloned().map(Some);
    let headers = request.headers().get_all(header::HOST);
    let headers = headers.iter().map(|host| Authority::try_from(host.as_bytes()).ok());
    named.into_iter().chain(headers)
}

/// Returns `host` in lower case, without the dot that ends an absolute name.
fn normalized(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns true if `host` means this machine, as a name that no page can have for its own.
fn means_this_machine(host: &str) -> bool {
    is_loopback(host) || is_name_of_this_machine(host)
}

/// Returns true if `host` is a loopback name or address.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || address(host).is_some_and(|it| it.to_canonical().is_loopback())
}

/// Names by which containers reach this machine (Docker, Podman). No web site has a name below
/// `internal`, which is reserved for private use.
const CONTAINER_NAMES: [&str; 3] =
    ["host.docker.internal", "host.containers.internal", "gateway.docker.internal"];

/// Returns true if `host` is one of the further names that mean this machine by convention. Those
/// below `localhost` are reserved for its loopback addresses (RFC 6761 §6.3).
fn is_name_of_this_machine(host: &str) -> bool {
    let below_localhost = host.strip_suffix(".localhost").is_some_and(|name| !name.is_empty());
    below_localhost || CONTAINER_NAMES.contains(&host)
}

/// Parses `host` as an address; IPv6 addresses are in brackets.
fn address(host: &str) -> Option<IpAddr> {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    v6.unwrap_or(host).parse().ok()
}

/// Returns the name by which a request addresses the server: HTTP/2's `:authority`, or `Host`.
pub fn requested_authority<B>(request: &Request<B>) -> Option<Authority> {
    let header = || Authority::try_from(request.headers().get(header::HOST)?.as_bytes()).ok();
    request.uri().authority().cloned().or_else(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str], bound_to: &str) -> AllowedHosts {
        let names = names.iter().map(|name| (*name).to_owned());
        AllowedHosts::new(names).bound_to(bound_to.parse().unwrap())
    }

    #[test]
    fn on_loopback_only_this_machines_names_are_allowed() {
        let local = hosts(&["Box.Example"], "127.0.0.1");
        for host in ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(local.allows(host), "{host}");
        }
        for host in ["host.docker.internal", "HOST.containers.internal.", "gateway.docker.internal"]
        {
            assert!(local.allows(host), "{host}");
        }
        assert!(local.allows("app.localhost") && local.allows("a.B.LocalHost."));
        assert!(local.allows("box.example") && local.allows("BOX.example."));
        for host in ["evil.example", "10.0.0.1", "", "localhost.evil.example", "a.box.example"] {
            assert!(!local.allows(host), "{host}");
        }
        for host in [".localhost", "notlocalhost", "a.host.docker.internal", "docker.internal"] {
            assert!(!local.allows(host), "{host}");
        }
        assert!(hosts(&["*"], "::1").allows("evil.example"));
        assert!(!hosts(&[" "], "::ffff:127.0.0.1").allows("evil.example"));
    }

    #[test]
    fn a_server_is_this_machines_until_it_has_another_name() {
        let is_local = |names: &[&str], bound_to| hosts(names, bound_to).is_local();
        assert!(is_local(&[], "127.0.0.1") && is_local(&["LocalHost", "a.localhost"], "::1"));
        assert!(is_local(&["host.docker.internal", "127.77.0.1"], "127.0.0.1"));
        assert!(!is_local(&["llm.example"], "127.0.0.1") && !is_local(&["*"], "127.0.0.1"));
        assert!(!is_local(&[], "0.0.0.0"));
    }

    #[test]
    fn only_this_machines_names_are_asked_locally() {
        let local = |host: &str| {
            let request = Request::get("/").header("host", host);
            AllowedHosts::is_asked_locally(&request.body(()).unwrap())
        };
        for host in
            ["localhost:8080", "127.0.0.1", "[::1]:80", "host.docker.internal", "LOCALHOST."]
        {
            assert!(local(host), "{host}");
        }
        for host in ["evil.example", "10.0.0.1", "a b", "localhost.evil.example"] {
            assert!(!local(host), "{host}");
        }
        let named = Request::get("http://evil.example/").header("host", "localhost");
        assert!(!AllowedHosts::is_asked_locally(&named.body(()).unwrap()));
        assert!(AllowedHosts::is_asked_locally(&Request::get("/").body(()).unwrap()));
    }

    #[test]
    fn beyond_loopback_names_are_checked_when_some_are_given() {
        assert!(hosts(&[], "0.0.0.0").allows("any.example"));
        let named = hosts(&["api.example"], "0.0.0.0");
        for host in ["api.example", "localhost", "10.0.0.1", "[2001:db8::1]"] {
            assert!(named.allows(host), "{host}");
        }
        for host in ["evil.example", "host.docker.internal", "app.localhost"] {
            assert!(!named.allows(host), "{host}");
        }
    }

    #[test]
    fn every_name_in_a_request_counts() {
        let local = hosts(&[], "127.0.0.1");
        let refused = |uri: &str, hosts: &[&str]| {
            let mut request = Request::get(uri);
            for host in hosts {
                request = request.header("host", *host);
            }
            local.refused(&request.body(()).unwrap())
        };
        assert_eq!(refused("/", &[]), None, "tunnelled requests have none");
        assert_eq!(refused("/", &["localhost:8080"]), None);
        assert_eq!(refused("https://[::1]:8080/", &[]), None);
        assert_eq!(refused("/", &["evil.example:80"]).as_deref(), Some("evil.example"));
        assert_eq!(refused("http://evil.example/", &["localhost"]).unwrap(), "evil.example");
        assert_eq!(refused("/", &["localhost", "evil.example"]).unwrap(), "evil.example");
        assert_eq!(refused("/", &["a b"]).as_deref(), Some("?"));
    }
}
