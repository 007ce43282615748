//! The address of a store that replicas share.

use std::fmt;
use std::sync::Arc;

use loquent_openai::{BaseUrl, Dial, host_dial};
use loquent_proto::printable::printable;
use redis::{Client, ConnectionAddr};

/// The supported schemes, and whether they use TLS.
const SCHEMES: [(&str, bool); 4] =
    [("redis", false), ("rediss", true), ("valkey", false), ("valkeys", true)];

/// Address and login of a shared store. Displayed without the password.
#[derive(Clone)]
pub struct SharedAddress {
    /// The login. Tests call through it.
    pub client: Arc<Client>,
    /// Opens the connections, with TLS or without.
    pub(crate) dial: Arc<dyn Dial>,
    shown: String,
}

impl SharedAddress {
    /// Parses `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`; `rediss://` uses TLS.
    ///
    /// # Errors
    /// Describes what is wrong with the address, without the password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let Some(&(_, uses_tls)) = SCHEMES.iter().find(|(name, _)| *name == scheme) else {
            let shown = printable(scheme);
            return Err(format!(
                "unknown scheme \"{shown}\"; use redis:// or rediss:// (with TLS)"
            ));
        };
        let refuse =
            || "not an address; use redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]".to_owned();
        // TLS is this server's own, as for all its connections.
        let client = Client::open(format!("redis://{rest}")).map_err(|_| refuse())?;
        let info = client.get_connection_info();
        let (known, http) = if uses_tls { ("rediss", "https") } else { ("redis", "http") };
        let ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(refuse()) };
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let base = BaseUrl::parse(&format!("{http}://{host}:{port}")).map_err(|_| refuse())?;
        let dial = host_dial(&base).map_err(|error| error.to_string())?;
        let shown = format!("{known}://{host}:{port}/{}", info.redis_settings().db());
        let shown = printable(&shown).into_owned();
        Ok(Self { client: Arc::new(client), dial: dial.into(), shown })
    }

    /// Returns the address of a store within a test or a simulated world: `dial` opens the
    /// connections to it.
    ///
    /// # Panics
    /// Never: the address without a store is valid.
    pub fn within(dial: Arc<dyn Dial>) -> Self {
        let client = Client::open("redis://within").expect("an address");
        Self { client: Arc::new(client), dial, shown: "redis://within".to_owned() }
    }
}

impl fmt::Display for SharedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for SharedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_their_password() {
        for (url, shown) in [
            ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
            ("valkey://store:7000/3", "redis://store:7000/3"),
            ("redis://[::1]", "redis://[::1]:6379/0"),
            ("redis://ann:secret@store/1", "redis://store:6379/1"),
            ("rediss://:secret@store:6380", "rediss://store:6380/0"),
        ] {
            let address = SharedAddress::parse(url).unwrap();
            assert_eq!(address.to_string(), shown, "{url}");
            assert!(!format!("{address:?}").contains("secret"));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_without_its_password() {
        for url in ["http://store", "redis://", "redis://:secret@store:port", "store:6379"] {
            let why = SharedAddress::parse(url).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
