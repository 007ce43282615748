//! The address of a store that replicas share.

use std::fmt;
use std::sync::Arc;

use loquent_proto::printable::printable;
use redis::Client;

/// The supported schemes, and their names in the client library.
const SCHEMES: [(&str, &str); 4] =
    [("redis", "redis"), ("rediss", "rediss"), ("valkey", "redis"), ("valkeys", "rediss")];

/// Address and login of a shared store. Displayed without the password.
#[derive(Clone)]
pub struct SharedAddress {
    /// Client for this address.
    pub(crate) client: Arc<Client>,
    shown: String,
}

impl SharedAddress {
    /// Parses `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`; `rediss://` uses TLS.
    ///
    /// # Errors
    /// Describes what is wrong with the address, without the password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let Some((_, known)) = SCHEMES.iter().find(|(name, _)| *name == scheme) else {
            let shown = printable(scheme);
            return Err(format!(
                "unknown scheme \"{shown}\"; use redis:// or rediss:// (with TLS)"
            ));
        };
        let client = Client::open(format!("{known}://{rest}")).map_err(|_| {
            "not an address; use redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]".to_owned()
        })?;
        let info = client.get_connection_info();
        let shown = format!("{known}://{}/{}", info.addr(), info.redis_settings().db());
        Ok(Self { client: Arc::new(client), shown: printable(&shown).into_owned() })
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
