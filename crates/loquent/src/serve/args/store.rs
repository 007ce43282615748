//! The flags for stored answers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use loquent_server::{SharedAddress, StoreConfig, StoreLimits, StoreLocation};

/// Divisor of the store's size that gives the limit of one key.
const KEY_SHARE: usize = 4;
/// Bytes of a megabyte.
const MB: usize = 1024 * 1024;

/// Location and limits of the answers that clients ask to store.
#[derive(Debug, Args)]
#[command(next_help_heading = "Stored answers")]
pub(super) struct StoreArgs {
    /// File for stored answers, which then survive a restart, or the address of a Redis or Valkey
    /// server that several replicas share [default: in memory]
    ///
    /// A file is created if it does not exist. Only this user can read it, and only one server can
    /// use it at a time. An address is redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], or rediss://
    /// for TLS: any replica then serves what another one has stored. Put one with a password into
    /// LOQUENT_STORE, which other users of the machine cannot read.
    #[arg(long, env = "LOQUENT_STORE", value_name = "FILE|URL", hide_env_values = true,
          value_parser = OsStringValueParser::new().try_map(location))]
    store: Option<StoreLocation>,
    /// Maximum size of all stored answers in MiB; beyond it, the oldest ones of the key with the
    /// most are deleted
    #[arg(long, env = "LOQUENT_STORE_MB", default_value_t = 256, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    store_mb: u32,
    /// Maximum size of one API key's stored answers in MiB [default: a quarter of --store-mb;
    /// without keys, all of it]
    #[arg(long, env = "LOQUENT_STORE_MB_PER_KEY", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    store_mb_per_key: Option<u32>,
    /// Seconds after which a stored answer is deleted
    #[arg(long, env = "LOQUENT_STORE_TTL_S", default_value_t = 30 * 24 * 60 * 60, value_name = "S")]
    store_ttl_s: u64,
}

impl StoreArgs {
    /// Resolves the flags; `has_keys` is true if clients are distinguished by API keys.
    pub(super) fn resolve(&self, has_keys: bool) -> StoreConfig {
        let bytes = (self.store_mb as usize).saturating_mul(MB);
        let per_owner = self.store_mb_per_key.map(|mb| (mb as usize).saturating_mul(MB));
        let bytes_per_owner = per_owner.unwrap_or(if has_keys { bytes / KEY_SHARE } else { bytes });
        let location = self.store.clone().unwrap_or_default();
        let age = Duration::from_secs(self.store_ttl_s);
        StoreConfig { location, limits: StoreLimits { bytes, bytes_per_owner, age } }
    }
}

/// Parses the location in `--store`.
fn location(typed: OsString) -> Result<StoreLocation, String> {
    // Compose files set a variable to nothing where it has no value.
    if typed.is_empty() {
        return Ok(StoreLocation::Memory);
    }
    match typed.to_str().filter(|text| text.contains("://")) {
        Some(url) => SharedAddress::parse(url).map(StoreLocation::Shared),
        None => Ok(StoreLocation::File(PathBuf::from(typed))),
    }
}
