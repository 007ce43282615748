//! How a client works.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use loquent_proto::{ACK_STEP_BYTES, ReceiverConfig};

use crate::network;

/// How a [`Client`](crate::Client) works. [`Config::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server's URL, with or without a final `/v1`.
    pub url: String,
    /// API key for requests that have none of their own.
    pub api_key: Option<String>,
    /// Try QUIC. Default yes.
    pub quic: bool,
    /// How long a request waits for QUIC before it uses HTTP. Default 500 ms.
    pub head_start: Duration,
    /// How long a lost answer is looked for. Default 90 s: longer than servers keep it.
    pub resume_limit: Duration,
    /// Folder of the file of known servers; `None` keeps them for this process only.
    pub memory: Option<PathBuf>,
    /// How answers over QUIC are received and paced.
    pub receiver: ReceiverConfig,
    /// Returns which network this machine is on. When that changes, event streams are resumed
    /// at once, since TCP would notice only after minutes. Default: the address from which
    /// packets leave.
    pub network: fn() -> Option<IpAddr>,
}

impl Config {
    /// The defaults for the server at `url`.
    pub fn new(url: impl Into<String>) -> Config {
        Config {
            url: url.into(),
            api_key: None,
            quic: true,
            head_start: Duration::from_millis(500),
            resume_limit: Duration::from_secs(90),
            memory: None,
            receiver: ReceiverConfig {
                ack_step_bytes: ACK_STEP_BYTES,
                ..ReceiverConfig::with_another_path()
            },
            network: network::source_address,
        }
    }
}
