//! The flags for API keys, and for distinguishing clients.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use loquent_server::{ApiKeys, JwtConfig, TrustedProxies, TrustedProxy};

use crate::serve::key_set::key_set_source;

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
    /// File with API keys: one per line, or TOML with names, weights and limits, also for tokens
    ///
    /// It is read again when it changes; a file with an error leaves the keys as they were.
    /// docs/keys.md describes the format.
    #[arg(long, env = "LOQUENT_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Public keys of an identity provider, whose tokens clients may send in place of an API key: a
    /// file, or the URL of a JSON Web Key Set
    ///
    /// Tokens are JSON Web Tokens signed with RS256 or ES256. Each subject (`sub`) is a client of
    /// its own. Example: --jwt-keys https://id.example.com/.well-known/jwks.json --jwt-audience
    /// loquent
    #[arg(long, env = "LOQUENT_JWT_KEYS", value_name = "FILE or URL", requires = "jwt_audience")]
    jwt_keys: Option<String>,
    /// Audience (`aud`) that the provider makes tokens for this server with; repeat the flag for
    /// several
    #[arg(long, env = "LOQUENT_JWT_AUDIENCE", value_name = "NAME", requires = "jwt_keys")]
    jwt_audience: Vec<String>,
    /// Issuer (`iss`) that tokens must have
    #[arg(long, env = "LOQUENT_JWT_ISSUER", value_name = "URL", requires = "jwt_keys")]
    jwt_issuer: Option<String>,
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
    /// If a key is empty, or a file cannot be read or has an error.
    pub(super) fn api_keys(&self) -> anyhow::Result<ApiKeys> {
        let tokens = self.jwt_keys.as_deref().map(|place| self.jwt(place)).transpose()?;
        let flags = match tokens {
            None => "--api-key, --api-key-file",
            Some(_) => "--api-key, --api-key-file, --jwt-keys",
        };
        ApiKeys::load(&self.api_key, self.api_key_file.clone(), tokens).context(flags)
    }

    fn jwt(&self, place: &str) -> anyhow::Result<JwtConfig> {
        // It would refuse all tokens, and say so to clients alone.
        ensure!(self.jwt_issuer.as_deref() != Some(""), "--jwt-issuer is empty");
        Ok(JwtConfig {
            source: key_set_source(place).context("--jwt-keys")?,
            audiences: self.jwt_audience.clone(),
            issuer: self.jwt_issuer.clone(),
        })
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
    fn tokens_need_keys_and_an_audience() {
        let error = |flags: &[&str]| format!("{:#}", keys(flags).unwrap_err());
        assert!(error(&["--jwt-keys=/nonexistent"]).contains("--jwt-audience"));
        assert!(error(&["--jwt-audience=a"]).contains("--jwt-keys"));
        let missing = error(&["--jwt-keys=/nonexistent", "--jwt-audience=a"]);
        assert!(missing.contains("--jwt-keys") && missing.contains("/nonexistent"), "{missing}");
        let plain = error(&["--jwt-keys=http://id.example/jwks", "--jwt-audience=a"]);
        assert!(plain.contains("https"), "{plain}");
        let nameless = error(&["--jwt-keys=/nonexistent", "--jwt-audience="]);
        assert!(nameless.contains("--jwt-audience"), "{nameless}");
        let keys = ["--jwt-keys=/nonexistent", "--jwt-audience=a"];
        assert!(error(&[&keys[..], &["--jwt-issuer="]].concat()).contains("--jwt-issuer is empty"));
    }

    #[test]
    fn proxies_are_ranges() {
        let proxies = |flag: &str| Line::try_parse_from(["loquent", flag]).map(|line| line.keys);
        assert_eq!(proxies("--trusted-proxy=10.0.0.0/8,::1").unwrap().trusted_proxy.len(), 2);
        assert!(proxies("--trusted-proxy=proxy.example").is_err());
    }
}
