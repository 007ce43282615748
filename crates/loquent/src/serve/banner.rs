//! The startup banner of `loquent serve`: the URLs of the page and the API, for this and other
//! machines, and a note on who may use them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use loquent_proto::printable::printable;
use loquent_server::{Announcement, ServerConfig};

use crate::bundled;
use crate::trust::Fingerprint;

/// Contents of the banner besides the model's name.
pub(super) struct Banner {
    bound: SocketAddr,
    scheme: &'static str,
    /// UDP port of QUIC, if enabled.
    quic_port: Option<u16>,
    has_keys: bool,
    /// Fingerprint of a certificate that no authority signed.
    fingerprint: Option<Fingerprint>,
    /// Names, authority and end of a certificate by ACME.
    ordered: Option<String>,
    /// True if the model is the demonstration.
    is_demonstration: bool,
}

impl Banner {
    /// Creates the banner of a server at `bound`.
    pub(super) fn new(bound: SocketAddr, config: &ServerConfig, is_demonstration: bool) -> Self {
        let quic = config.quic.as_ref();
        Self {
            bound,
            scheme: if config.https.is_some() { "https" } else { "http" },
            quic_port: quic.map(|quic| quic.port.filter(|&port| port != 0).unwrap_or(bound.port())),
            has_keys: !config.http.api_keys.is_empty(),
            fingerprint: config.http.https_certificate_sha256.map(Fingerprint),
            ordered: None,
            is_demonstration,
        }
    }

    /// Returns the banner with a line on a certificate by ACME.
    pub(super) fn with_ordered(self, ordered: Option<String>) -> Self {
        Self { ordered, ..self }
    }

    /// Returns true if everybody on the network may use the server.
    pub(super) fn is_open(&self) -> bool {
        !self.bound.ip().to_canonical().is_loopback() && !self.has_keys
    }

    /// Writes the banner as one line of the log, for logs read by programs.
    pub(super) fn log(&self, served: &Announcement<'_>) {
        tracing::info!(
            model = one_line(served.name),
            engine = one_line(&served.description.summary),
            url = format!("{}://{}", self.scheme, self.bound),
            context_tokens = served.context_tokens,
            quic_port = self.quic_port,
            has_keys = self.has_keys,
            certificate_sha256 = self.fingerprint.map(|it| it.to_string()),
            "Loquent serves"
        );
    }

    /// Returns the banner's lines for people.
    pub(super) fn text(&self, served: &Announcement<'_>) -> String {
        let (name, about) = (one_line(served.name), one_line(&served.description.summary));
        let (scheme, bound) = (self.scheme, self.bound);
        let mut text = format!("Loquent serves {name} ({about}) on {scheme}://{bound}\n");
        let rows = self.rows(served);
        let width = rows.iter().map(|(label, _)| label.len() + 1).max().unwrap_or(0);
        for (label, what) in &rows {
            let _ = writeln!(text, "  {:width$} {what}", format!("{label}:"));
        }
        if self.is_demonstration {
            let _ = writeln!(text, "  {}", bundled::advice("serve"));
        }
        text
    }

    /// Returns the facts about the server, each with its label.
    fn rows<'a>(&self, served: &Announcement<'a>) -> Vec<(&'a str, String)> {
        let (scheme, bound) = (self.scheme, self.bound);
        let here = SocketAddr::new(reachable(bound.ip()), bound.port());
        let mut rows = vec![
            ("Chat", format!("{scheme}://{here}/")),
            ("API", format!("{scheme}://{here}/v1 (the base URL for OpenAI's clients)")),
            ("Docs", format!("{scheme}://{here}/docs")),
        ];
        if let Some(tokens) = served.context_tokens {
            rows.push(("Context", format!("{tokens} tokens, prompt and answer together")));
        }
        for (label, what) in &served.description.details {
            rows.push((label, one_line(what)));
        }
        if let Some(address) = bound.ip().is_unspecified().then(|| outward(bound.ip())).flatten() {
            let there = SocketAddr::new(address, bound.port());
            rows.push(("Network", format!("{scheme}://{there}/ (from other machines)")));
        }
        if let Some(port) = self.quic_port.filter(|_| !bound.ip().to_canonical().is_loopback()) {
            rows.push(("QUIC", format!("UDP port {port}; open it in the firewall too")));
        }
        if let Some(fingerprint) = self.fingerprint {
            rows.push(("Certificate", format!("self-signed, SHA-256 {fingerprint}")));
        }
        if let Some(ordered) = &self.ordered {
            rows.push(("Certificate", ordered.clone()));
        }
        let keys = match (self.has_keys, self.is_open()) {
            (true, _) => "required",
            (false, true) => "none: open to your network",
            (false, false) => "none needed on this machine",
        };
        rows.push(("Keys", keys.to_owned()));
        rows
    }
}

/// Returns `text`, which may come from a model's file, without characters that would overwrite the
/// screen or the banner.
fn one_line(text: &str) -> String {
    printable(text).replace('\n', " ")
}

/// Returns the address by which this machine reaches a server bound to `address`.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(it) if it.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        // It takes IPv4 connections too.
        IpAddr::V6(it) if it.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => address,
    }
}

/// Returns this machine's address on the network of its default route, if it has one. Connecting a
/// UDP socket selects a route but sends nothing.
pub(super) fn outward(unspecified: IpAddr) -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849), so that nobody is meant.
    let (elsewhere, family): (IpAddr, _) = match unspecified {
        IpAddr::V4(_) => (Ipv4Addr::new(192, 0, 2, 1).into(), unspecified),
        IpAddr::V6(_) => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), unspecified),
    };
    let socket = UdpSocket::bind((family, 0)).ok()?;
    socket.connect((elsewhere, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use loquent_server::Description;

    use super::*;

    fn text(banner: &Banner, name: &str, summary: &str) -> String {
        let description = Description {
            summary: summary.into(),
            details: vec![("Kernels".into(), "llama.cpp's\n  Keys:  required".into())],
        };
        banner.text(&Announcement { name, description: &description, context_tokens: Some(2048) })
    }

    fn banner(bound: &str) -> Banner {
        let bound = bound.parse().unwrap();
        let quic_port = Some(8080);
        Banner {
            bound,
            scheme: "http",
            quic_port,
            has_keys: false,
            fingerprint: None,
            ordered: None,
            is_demonstration: false,
        }
    }

    #[test]
    fn it_names_addresses_that_can_be_opened() {
        for (bound, page) in [
            ("127.0.0.1:8080", "  Chat:    http://127.0.0.1:8080/\n"),
            ("0.0.0.0:8080", "  Chat:    http://127.0.0.1:8080/\n"),
            ("[::]:8080", "  Chat:    http://[::1]:8080/\n"),
        ] {
            let text = text(&banner(bound), "m", "llama");
            let first = format!("Loquent serves m (llama) on http://{bound}\n");
            assert!(text.starts_with(&first), "{text}");
            assert!(text.contains(page), "{text}");
        }
    }

    #[test]
    fn it_says_who_may_use_the_server() {
        let says = |banner: &Banner, words: &str| text(banner, "m", "d").contains(words);
        assert!(says(&banner("127.0.0.1:1"), "none needed on this machine"));
        assert!(says(&banner("0.0.0.0:1"), "open to your network"));
        let fingerprint = Some(Fingerprint([0xab; 32]));
        let signed = Banner { fingerprint, ..banner("0.0.0.0:1") };
        assert!(says(&signed, "self-signed, SHA-256 AB:AB:"));
        let ordered = banner("0.0.0.0:1").with_ordered(Some("for llm.example".into()));
        assert!(says(&ordered, "Certificate: for llm.example"));
        let closed = Banner { has_keys: true, ..banner("0.0.0.0:1") };
        assert!(says(&closed, "Keys:    required") && !closed.is_open());
    }

    #[test]
    fn the_demonstration_model_is_called_so() {
        let demonstration = Banner { is_demonstration: true, ..banner("127.0.0.1:1") };
        let advice = text(&demonstration, "m", "d");
        let line = advice.lines().last().unwrap();
        assert!(line.contains("demonstration") && line.ends_with("loquent serve qwen3:0.6b"));
        assert!(!text(&banner("127.0.0.1:1"), "m", "d").contains("demonstration"));
    }

    #[test]
    fn the_context_and_the_kernels_are_named() {
        let text = text(&banner("127.0.0.1:1"), "m", "llama");
        assert!(text.contains("  Context: 2048 tokens"), "{text}");
        assert!(text.contains("  Kernels: llama.cpp's"), "{text}");
    }

    #[test]
    fn a_files_name_cannot_forge_lines() {
        let text = text(&banner("127.0.0.1:1"), "m\n  Keys:  required", "\u{1b}[2J");
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
