//! Access to the proxy: allowed for programs of this machine, with the local key if there is one,
//! and never for web pages of others.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, ensure};
use axum::response::Response;
use http::{HeaderMap, StatusCode, header};
use loquent_client::replace_file;
use loquent_openai::api_key::api_key;
use loquent_openai::headers::{authorization, bearer};
use subtle::ConstantTimeEq;

use super::refusal::refuse;

/// Key that local clients must send. Compared in constant time and never shown.
#[derive(Clone)]
pub(super) struct LocalKey(String);

impl LocalKey {
    /// Returns the `given` key, or else the one in `file`. A missing file is created with a random
    /// key. Also returns true if the file was written.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(super) fn read(
        given: Option<&str>,
        file: Option<&Path>,
    ) -> anyhow::Result<Option<(Self, bool)>> {
        let key = match api_key(given, file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            key => key?,
        };
        match (key, file) {
            (Some(key), _) => Ok(Some((Self(key), false))),
            (None, Some(file)) => Ok(Some((Self::write_random(file)?, true))),
            (None, None) => Ok(None),
        }
    }

    fn write_random(file: &Path) -> anyhow::Result<Self> {
        let key = format!("local-{:032x}", rand::random::<u128>());
        // It has the mode 0600 before the key is in it.
        let written = replace_file(file, format!("{key}\n").as_bytes());
        written.with_context(|| format!("cannot write the local key to {}", file.display()))?;
        Ok(Self(key))
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        let given = authorization(headers);
        let key = given.as_ref().and_then(|value| bearer(value.as_bytes()));
        key.is_some_and(|key| key.ct_eq(self.0.as_bytes()).into())
    }
}

/// The rules for local requests.
pub(super) struct Access {
    /// True if only this machine is served.
    pub(super) loopback: bool,
    /// Names of this machine besides those of loopback.
    pub(super) allowed_hosts: Vec<String>,
    pub(super) local_key: Option<LocalKey>,
}

impl Access {
    /// # Errors
    /// If everybody on the network could use the proxy and `open` is not set.
    pub(super) fn new(
        listen: IpAddr,
        allowed_hosts: Vec<String>,
        local_key: Option<LocalKey>,
        open: bool,
    ) -> anyhow::Result<Self> {
        let loopback = listen.is_loopback();
        ensure!(
            loopback || local_key.is_some() || open,
            "with --listen {listen}, everybody on the network could use this proxy, and --api-key \
             with it; set --local-key or --local-key-file, or --open if that is what you want"
        );
        Ok(Self { loopback, allowed_hosts, local_key })
    }

    /// Refuses web pages, which could spend the user's key: cross-origin requests by their
    /// `Origin`, and DNS rebinding by its `Host`, which is then the attacker's name. Also refuses
    /// requests without the local key.
    pub(super) fn refuse(&self, headers: &HeaderMap) -> Option<Response> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let origin = text(header::ORIGIN).filter(|origin| {
            let host = origin.split_once("://").map_or("?", |(_, host)| host);
            !is_local(host) && !self.allows(host)
        });
        let host = text(header::HOST).filter(|host| !self.is_own(host));
        if let Some(foreign) = origin.or(host) {
            let message = format!(
                "Requests from {foreign} are not allowed: it is no name of this machine. Allow a \
                 name with --allowed-host."
            );
            return Some(refuse(StatusCode::FORBIDDEN, &message, "origin_not_allowed"));
        }
        if self.local_key.as_ref().is_none_or(|key| key.is_in(headers)) {
            return None;
        }
        let message = "This proxy requires its local key. Send it as 'Authorization: Bearer KEY'.";
        Some(refuse(StatusCode::UNAUTHORIZED, message, "invalid_api_key"))
    }

    fn is_own(&self, host: &str) -> bool {
        // An address cannot be rebound; a page has to name it, and is refused by its origin.
        let address = || !self.loopback && name_of(host).parse::<IpAddr>().is_ok();
        is_local(host) || self.allows(host) || address()
    }

    fn allows(&self, host: &str) -> bool {
        self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name_of(host)))
    }
}

/// Returns `host` without its port, and without the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    if host.parse::<IpAddr>().is_ok() {
        return host;
    }
    let with_port = host.rsplit_once(':');
    let with_port = with_port.filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    with_port.map_or(host, |(name, _)| name).trim_matches(['[', ']'])
}

/// Returns true if `host`, with or without a port, is a loopback name of this machine.
fn is_local(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(access: &Access, headers: &[(&'static str, &str)]) -> Option<u16> {
        let pair = |(name, value): &(&'static str, &str)| {
            (header::HeaderName::from_static(name), value.parse().unwrap())
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        access.refuse(&headers).map(|response| response.status().as_u16())
    }

    fn access(listen: &str, allowed: &[&str], key: Option<&str>) -> Access {
        let allowed = allowed.iter().map(|&name| name.to_owned()).collect();
        let key = key.map(|key| LocalKey(key.to_owned()));
        Access::new(listen.parse().unwrap(), allowed, key, true).unwrap()
    }

    #[test]
    fn only_this_machines_names_are_local() {
        for host in ["localhost", "localhost:1", "127.0.0.1:11435", "127.9.9.9", "[::1]:1", "::1"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "?", "evil.example", "localhost.evil.example:1", "10.0.0.1", "null"] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn names_that_can_be_rebound_are_refused_on_every_address() {
        let (here, there) = (access("127.0.0.1", &[], None), access("0.0.0.0", &["box.lan"], None));
        for host in ["127.0.0.1:1", "localhost:1"] {
            assert_eq!(status(&here, &[("host", host)]), None);
            assert_eq!(status(&there, &[("host", host)]), None);
        }
        for host in ["192.168.0.7:1", "[fd00::1]:1", "Box.lan:1", "box.lan"] {
            assert_eq!(status(&here, &[("host", host)]), Some(403), "{host}");
            assert_eq!(status(&there, &[("host", host)]), None, "{host}");
        }
        for host in ["evil.example", "box.lan.evil.example:1", "192.168.0.7.evil.example"] {
            assert_eq!(status(&there, &[("host", host)]), Some(403), "{host}");
        }
        let page = [("host", "192.168.0.7:1"), ("origin", "http://evil.example")];
        assert_eq!(status(&there, &page), Some(403));
        let page = [("host", "192.168.0.7:1"), ("origin", "http://192.168.0.8")];
        assert_eq!(status(&there, &page), Some(403), "a page of another machine");
        assert_eq!(status(&there, &[("host", "box.lan"), ("origin", "http://box.lan:3")]), None);
    }

    #[test]
    fn a_local_key_keeps_other_users_out() {
        let access = access("127.0.0.1", &[], Some("secret"));
        let with = |value| status(&access, &[("host", "localhost"), ("authorization", value)]);
        assert_eq!(with("Bearer secret"), None);
        assert_eq!(with("bearer secret"), None);
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret", ""] {
            assert_eq!(with(wrong), Some(401), "{wrong:?}");
        }
        assert_eq!(status(&access, &[("host", "localhost")]), Some(401));
        let anthropics = |key| status(&access, &[("host", "localhost"), ("x-api-key", key)]);
        assert_eq!((anthropics("secret"), anthropics("secrets")), (None, Some(401)));
    }

    #[test]
    fn beyond_this_machine_a_key_or_a_clear_word_is_needed() {
        let new = |listen: &str, key: Option<&str>, open| {
            let key = key.map(|key| LocalKey(key.to_owned()));
            Access::new(listen.parse().unwrap(), Vec::new(), key, open)
        };
        let error = new("0.0.0.0", None, false).map(drop).unwrap_err().to_string();
        assert!(error.contains("--local-key") && error.contains("--open"), "{error}");
        assert!(new("192.168.0.7", None, false).is_err());
        assert!(new("0.0.0.0", Some("k"), false).is_ok() && new("::", None, true).is_ok());
        assert!(new("127.0.0.1", None, false).is_ok() && new("::1", None, false).is_ok());
    }

    #[test]
    fn a_missing_key_file_gets_a_random_key_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("local-key");
        let (first, written) = LocalKey::read(None, Some(&file)).unwrap().unwrap();
        assert!(written && first.0.len() > 30);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let (again, written) = LocalKey::read(None, Some(&file)).unwrap().unwrap();
        assert!(!written && again.0 == first.0);
        assert!(LocalKey::read(None, None).unwrap().is_none());
        std::fs::write(&file, "").unwrap();
        assert!(LocalKey::read(None, Some(&file)).is_err(), "an empty file is a mistake");
    }
}
