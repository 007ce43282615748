//! The flags for HTTP: keys, origins, sizes, threads.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use loquent_server::{ApiKeys, HttpConfig};

use super::streams::StreamArgs;

/// Who may send requests, and how much of them is taken at once.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// API key that clients must send as a bearer token; repeat the flag for several
    #[arg(long, env = "LOQUENT_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with API keys, one per line
    #[arg(long, env = "LOQUENT_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Origin whose web pages may use the API, or "*" for any; repeat the flag for several
    #[arg(long, env = "LOQUENT_CORS_ORIGIN", value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Maximum size of a request body in bytes
    #[arg(long, env = "LOQUENT_MAX_REQUEST_BYTES", default_value_t = 8 * 1024 * 1024,
          value_name = "N")]
    max_request_bytes: usize,
    /// Threads that serve connections, in addition to the compute threads [default: one per four
    /// cores]
    #[arg(long, env = "LOQUENT_HTTP_THREADS", value_name = "N")]
    http_threads: Option<NonZeroU16>,
    /// Maximum number of open connections
    #[arg(long, env = "LOQUENT_MAX_CONNECTIONS", default_value_t = 4096, value_name = "N")]
    pub(super) max_connections: usize,
    /// Seconds that running answers may take to finish after SIGTERM
    #[arg(long, env = "LOQUENT_DRAIN_TIMEOUT_S", default_value_t = 30, value_name = "S")]
    drain_timeout_s: u64,
}

impl HttpArgs {
    /// # Errors
    /// When the key file cannot be read.
    pub(super) fn resolve(&self, streams: &StreamArgs) -> anyhow::Result<HttpConfig> {
        Ok(HttpConfig {
            api_keys: self.keys()?,
            cors_origins: self.cors_origin.clone(),
            max_request_bytes: self.max_request_bytes,
            obfuscation: streams.obfuscation(),
            heartbeat: streams.heartbeat(),
        })
    }

    /// Worker threads of the async runtime.
    pub(crate) fn threads(&self) -> usize {
        // Few: one thread serves tens of thousands of tokens per second, and several wake each
        // other for every step, on cores that compute.
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.http_threads.map_or_else(|| cores().div_ceil(4), |n| n.get().into())
    }

    pub(super) fn drain_limit(&self) -> Duration {
        Duration::from_secs(self.drain_timeout_s)
    }

    fn keys(&self) -> anyhow::Result<ApiKeys> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read --api-key-file {}", path.display()))?;
            keys.extend(text.lines().map(str::to_owned));
        }
        Ok(ApiKeys::new(keys))
    }
}
