//! The flags for API keys, and for distinguishing clients.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use loquent_server::{ApiKeys, TrustedProxies, TrustedProxy};

/// Authentication of clients, and their identification for limits.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clients")]
pub(crate) struct KeyArgs {
    /// API key that clients must send as a bearer token; repeat the flag for several
    ///
    /// Other users of this machine can see it in the list of processes; --api-key-file and the
    /// environment variable are safer.
    #[arg(long, env = "LOQUENT_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with API keys: one per line, or TOML with names, weights and limits
    ///
    /// It is read again when it changes; a file with an error leaves the keys as they were.
    /// docs/keys.md describes the format.
    #[arg(long, env = "LOQUENT_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Address or range of addresses of a proxy whose X-Forwarded-For is believed; repeat the flag
    /// for several
    ///
    /// Without API keys, clients are told apart by their addresses. Behind a proxy they all have
    /// the proxy's, unless it is named here.
    #[arg(long, env = "LOQUENT_TRUSTED_PROXY", value_name = "CIDR", value_delimiter = ',')]
    trusted_proxy: Vec<TrustedProxy>,
    /// Let all clients reuse each other's cached prefixes
    ///
    /// By default a client (an API key, or an address where there are no keys) reuses only its own:
    /// the time to the first token and cached_tokens would tell it what others asked.
    #[arg(long, env = "LOQUENT_SHARE_PREFIX_CACHE")]
    pub(super) share_prefix_cache: bool,
    /// Count requests and tokens in /metrics by the names of API keys, which whoever reaches the
    /// port can read
    #[arg(long, env = "LOQUENT_METRICS_BY_KEY")]
    pub(super) metrics_by_key: bool,
}

impl KeyArgs {
    /// # Errors
    /// If a key is empty, or the file cannot be read or has an error.
    pub(super) fn api_keys(&self) -> anyhow::Result<ApiKeys> {
        ApiKeys::load(&self.api_key, self.api_key_file.clone()).context("--api-key, --api-key-file")
    }

    pub(super) fn trusted_proxies(&self) -> TrustedProxies {
        TrustedProxies::new(self.trusted_proxy.clone())
    }
}

#[cfg(test)]
mod tests {
    //! Checks that a server that was meant to have keys never starts without one.
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        keys: KeyArgs,
    }

    fn keys(flags: &[&str]) -> anyhow::Result<ApiKeys> {
        Line::try_parse_from([&["loquent"], flags].concat())?.keys.api_keys()
    }

    #[test]
    fn an_empty_key_does_not_open_the_server() {
        assert!(keys(&[]).unwrap().is_empty());
        assert!(!keys(&["--api-key=secret"]).unwrap().is_empty());
        for empty in ["--api-key=", "--api-key= ", "--api-key-file=", "--api-key-file=/dev/null"] {
            let error = keys(&[empty]).expect_err(empty);
            assert!(format!("{error:#}").contains("--api-key"), "{empty}: {error:#}");
        }
    }

    #[test]
    fn proxies_are_ranges() {
        let proxies = |flag: &str| Line::try_parse_from(["loquent", flag]).map(|line| line.keys);
        assert_eq!(proxies("--trusted-proxy=10.0.0.0/8,::1").unwrap().trusted_proxy.len(), 2);
        assert!(proxies("--trusted-proxy=proxy.example").is_err());
    }
}
