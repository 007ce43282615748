//! The flags for HTTP: origins, sizes, threads.

use std::num::NonZeroU16;
use std::time::Duration;

use clap::{Args, ValueEnum};
use loquent_server::{AllowedHosts, HttpConfig, MetricNames, OllamaApi, TcpLimits};

use super::keys::KeyArgs;
use super::streams::StreamArgs;

/// Allowed origins of requests, and limits on their size and number.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Origin whose web pages may use the API, or "*" for any; repeat the flag for several
    /// [default: on a loopback --host, the pages of this machine]
    #[arg(long, env = "LOQUENT_CORS_ORIGIN", value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Name that requests may use for the server, beside localhost; repeat the flag for several, or
    /// give "*" for any [default: any, except on a loopback --host]
    ///
    /// It keeps web pages out that give their own name this machine's address. A reverse proxy that
    /// passes on the public name in Host needs it.
    #[arg(long, env = "LOQUENT_ALLOWED_HOST", value_name = "NAME")]
    allowed_host: Vec<String>,
    /// Where to serve Ollama's API (/api/chat and the like)
    #[arg(long, env = "LOQUENT_OLLAMA_API", default_value = "local", value_name = "WHERE")]
    ollama_api: OllamaApiArg,
    /// Maximum size of a request body in bytes
    #[arg(long, env = "LOQUENT_MAX_REQUEST_BYTES", value_name = "N",
          default_value_t = HttpConfig::default().max_request_bytes)]
    max_request_bytes: usize,
    /// Maximum memory in bytes for the bodies of all requests that are being read, and what they
    /// are parsed into, of which an API key, or an address, may have three times what stays free;
    /// beyond it, requests wait for seconds and then get 503
    #[arg(long, env = "LOQUENT_MAX_REQUEST_MEMORY_BYTES", value_name = "N",
          default_value_t = HttpConfig::default().max_request_memory_bytes)]
    max_request_memory_bytes: usize,
    /// Names of the metrics at /metrics: loquent's, vllm's where it has the metric (for its
    /// dashboards, llm-d and the Gateway API's inference extension), both, or otel for loquent's
    /// and the gen_ai_server_* histograms of OpenTelemetry's conventions
    #[arg(long, env = "LOQUENT_METRICS_NAMES", default_value = "loquent", value_name = "NAMES")]
    metrics_names: MetricNames,
    /// Threads that serve connections, in addition to the compute threads [default: one per four
    /// cores]
    #[arg(long, env = "LOQUENT_HTTP_THREADS", value_name = "N")]
    http_threads: Option<NonZeroU16>,
    /// Maximum number of open connections
    #[arg(long, env = "LOQUENT_MAX_CONNECTIONS", default_value_t = 4096, value_name = "N")]
    max_connections: usize,
    /// Maximum number of TCP connections, and of QUIC connections, from one address (IPv6: from
    /// one /64 network) [default: a quarter of --max-connections]
    ///
    /// TCP connections from 127.0.0.1, ::1 and --trusted-proxy are not counted, since many clients
    /// may be behind them.
    #[arg(long, env = "LOQUENT_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    max_connections_per_address: Option<usize>,
    /// Seconds that a client may take for a request's head, and for which its body may come slower
    /// than 16 KiB per second
    #[arg(long, env = "LOQUENT_REQUEST_TIMEOUT_S", default_value_t = 30, value_name = "S",
          value_parser = clap::value_parser!(u64).range(1..))]
    request_timeout_s: u64,
    /// Seconds after which a connection without a request is closed
    #[arg(long, env = "LOQUENT_IDLE_TIMEOUT_S", default_value_t = 60, value_name = "S",
          value_parser = clap::value_parser!(u64).range(1..))]
    idle_timeout_s: u64,
    /// Seconds after which a connection is closed whose client does not read its response; at
    /// least --slow-reader-timeout-s
    #[arg(long, env = "LOQUENT_WRITE_TIMEOUT_S", default_value_t = 60, value_name = "S",
          value_parser = clap::value_parser!(u64).range(1..))]
    write_timeout_s: u64,
    /// Seconds that running answers may take to finish after SIGTERM
    #[arg(long, env = "LOQUENT_DRAIN_TIMEOUT_S", default_value_t = 30, value_name = "S")]
    drain_timeout_s: u64,
}

/// Hosts for which Ollama's API is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OllamaApiArg {
    /// On a loopback --host, as Ollama itself
    Local,
    /// On any --host
    Always,
    /// Nowhere
    Never,
}

impl From<OllamaApiArg> for OllamaApi {
    fn from(arg: OllamaApiArg) -> Self {
        match arg {
            OllamaApiArg::Local => Self::Local,
            OllamaApiArg::Always => Self::Always,
            OllamaApiArg::Never => Self::Never,
        }
    }
}

impl HttpArgs {
    /// # Errors
    /// If a key is empty, or the key file cannot be read or has an error.
    pub(super) fn resolve(
        &self,
        keys: &KeyArgs,
        streams: &StreamArgs,
    ) -> anyhow::Result<HttpConfig> {
        Ok(HttpConfig {
            api_keys: keys.api_keys()?,
            trusted_proxies: keys.trusted_proxies(),
            metrics_by_key: keys.metrics_by_key,
            metrics_names: self.metrics_names,
            cors_origins: self.cors_origin.clone(),
            allowed_hosts: AllowedHosts::new(self.allowed_host.clone()),
            ollama_api: self.ollama_api.into(),
            max_request_bytes: self.max_request_bytes,
            max_request_memory_bytes: self.max_request_memory_bytes,
            obfuscation: streams.obfuscation(),
            page_sources: Vec::new(),
            heartbeat: streams.heartbeat(),
            https_certificate_sha256: None,
        })
    }

    /// Returns the limits on TCP connections. `stall_limit` is the time after which a slow reader's
    /// answer ends; its connection must last until then.
    pub(super) fn tcp(&self, stall_limit: Duration) -> TcpLimits {
        TcpLimits {
            max_connections: self.max_connections,
            max_connections_per_address: self.max_connections_per_address(),
            request_timeout: Duration::from_secs(self.request_timeout_s),
            idle_timeout: Duration::from_secs(self.idle_timeout_s),
            write_timeout: Duration::from_secs(self.write_timeout_s).max(stall_limit),
            ..TcpLimits::default()
        }
    }

    /// Returns the maximum total connections of one kind.
    pub(super) fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Returns the maximum connections of one kind from one address.
    pub(super) fn max_connections_per_address(&self) -> usize {
        self.max_connections_per_address.unwrap_or(self.max_connections.div_ceil(4))
    }

    /// Returns the number of worker threads of the async runtime.
    pub(crate) fn threads(&self) -> usize {
        // Few: one thread serves tens of thousands of tokens per second, and several wake each
        // other for every step, on cores that compute.
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.http_threads.map_or_else(|| cores().div_ceil(4), |n| n.get().into())
    }

    pub(super) fn drain_limit(&self) -> Duration {
        Duration::from_secs(self.drain_timeout_s)
    }
}
