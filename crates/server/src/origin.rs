//! Recognizes the server's own web pages, by one rule for HTTP and for WebTransport.
//!
//! `loquent connect` has a stricter rule: it serves no page, so every origin is foreign to it
//! except its own loopback address, and it checks `Host` too.

use http::Uri;
use http::uri::Authority;

use crate::hosts::is_loopback;

/// Returns true if `origin` is a page of the server that a request addresses as `host`.
pub fn is_page_of_host(origin: &[u8], host: &Authority) -> bool {
    // Both leave out the port where it is the scheme's own.
    Page::parse(origin).is_some_and(|page| {
        page.is_of(host.host(), &[host.port_u16().unwrap_or(page.standard_port())])
    })
}

/// Returns true if `origin` is a page served on this machine's loopback interface.
pub fn is_page_of_this_machine(origin: &[u8]) -> bool {
    Page::parse(origin).is_some_and(|page| page.uri.host().is_some_and(is_loopback))
}

/// Schemes of the pages of desktop apps. No web site's origin can have one of them, and an
/// installed app can reach any server without a browser anyway.
const APP_SCHEMES: [&str; 4] = ["app", "tauri", "vscode-file", "vscode-webview"];

/// Returns true if `origin` is a page of an app that is installed on the user's machine.
pub fn is_page_of_app(origin: &[u8]) -> bool {
    let uri = Uri::try_from(origin).ok();
    let scheme = uri.as_ref().and_then(Uri::scheme_str);
    // Where Tauri has no scheme of its own: below localhost, whose names browsers do not look up.
    scheme.is_some_and(|scheme| APP_SCHEMES.contains(&scheme))
        || matches!(origin, b"http://tauri.localhost" | b"https://tauri.localhost")
}

/// Returns true if `origin` is a page of `host`, from one of the server's `ports` or from HTTPS's
/// own: there a proxy, or a port that is mapped to the server's, serves it to the public.
pub fn is_page_of_ports(origin: &[u8], host: &str, ports: &[u16]) -> bool {
    Page::parse(origin)
        .is_some_and(|page| page.is_of(host, ports) || page.is_https && page.is_of(host, &[443]))
}

/// Origin of a web page: `http://host:port` or `https://host:port`.
struct Page {
    uri: Uri,
    is_https: bool,
}

impl Page {
    fn parse(origin: &[u8]) -> Option<Self> {
        let uri = Uri::try_from(origin).ok()?;
        let is_https = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        Some(Self { uri, is_https })
    }

    fn standard_port(&self) -> u16 {
        if self.is_https { 443 } else { 80 }
    }

    /// Returns true if the page is of `host`, at one of `ports`. All loopback names are equal: a
    /// page may use `localhost` where the server has `127.0.0.1`, since browsers do not fall back
    /// from `::1` to it for WebTransport, so that the page has to name it. A process that serves
    /// pages on the loopback address needs no browser to reach the server.
    fn is_of(&self, host: &str, ports: &[u16]) -> bool {
        const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
        let is_host =
            |name: &str| name == host || LOOPBACK.contains(&name) && LOOPBACK.contains(&host);
        self.uri.host().is_some_and(is_host)
            && ports.contains(&self.uri.port_u16().unwrap_or(self.standard_port()))
    }
}

#[cfg(test)]
mod tests {
    //! Tests that only pages of this host and port are the server's own.
    use super::*;

    #[test]
    fn a_page_of_one_of_the_ports_is_own() {
        let own =
            |origin: &str, host: &str| is_page_of_ports(origin.as_bytes(), host, &[8080, 443]);
        assert!(own("http://a.example:8080", "a.example"));
        assert!(own("https://a.example", "a.example"), "443 is the scheme's own port");
        assert!(own("http://localhost:8080", "127.0.0.1"));
        assert!(own("http://[::1]:8080", "[::1]"));
        assert!(!own("http://a.example", "a.example"));
        assert!(!own("http://a.example:8081", "a.example"));
        assert!(!own("http://b.example:8080", "a.example"));
        assert!(!own("http://localhost:8080", "a.example"));
        assert!(!own("null", "a.example"));
    }

    #[test]
    fn a_page_of_https_own_port_is_own_whatever_the_servers_ports_are() {
        let own =
            |origin: &str, host: &str| is_page_of_ports(origin.as_bytes(), host, &[8080, 8443]);
        assert!(own("https://a.example", "a.example"), "behind a proxy that ends TLS");
        assert!(own("https://a.example:443", "a.example"));
        assert!(!own("https://b.example", "a.example"));
        assert!(!own("https://localhost", "a.example"));
        assert!(!own("https://a.example:9443", "a.example"));
        assert!(!own("http://a.example:443", "a.example"));
    }

    #[test]
    fn a_page_of_the_requested_host_is_own() {
        let own =
            |origin: &str, host: &str| is_page_of_host(origin.as_bytes(), &host.parse().unwrap());
        assert!(own("http://a.example:8080", "a.example:8080"));
        assert!(own("http://a.example", "a.example"));
        assert!(own("https://a.example", "a.example"), "behind a proxy that ends TLS");
        assert!(own("http://localhost:8080", "127.0.0.1:8080"));
        assert!(own("http://[::1]:8080", "[::1]:8080"));
        assert!(!own("http://a.example:8080", "a.example"));
        assert!(!own("http://a.example", "a.example:8080"));
        assert!(!own("http://b.example", "a.example"));
        assert!(!own("http://localhost:8080", "a.example:8080"), "a rebound name");
        assert!(!own("file://a.example", "a.example"));
        assert!(!own("null", "a.example"));
    }

    #[test]
    fn a_page_of_an_app_has_a_scheme_that_no_site_can_have() {
        for origin in ["app://obsidian.md", "tauri://localhost", "vscode-webview://1ab2"] {
            assert!(is_page_of_app(origin.as_bytes()), "{origin}");
        }
        assert!(is_page_of_app(b"http://tauri.localhost"));
        for origin in ["http://app", "https://app.example", "null", "file://", "", "app", "app:"] {
            assert!(!is_page_of_app(origin.as_bytes()), "{origin}");
        }
        assert!(!is_page_of_app(b"http://tauri.localhost.evil.example"));
    }

    #[test]
    fn a_page_of_this_machine_has_one_of_its_names() {
        let local = |origin: &str| is_page_of_this_machine(origin.as_bytes());
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173"] {
            assert!(local(origin), "{origin}");
        }
        for origin in ["http://a.example", "null", "file://localhost", "http://localhost.a:3000"] {
            assert!(!local(origin), "{origin}");
        }
    }
}
