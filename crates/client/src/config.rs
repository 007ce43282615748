//! Configuration of a client.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use loquent_openai::tls::Trust;
use loquent_proto::{ACK_STEP_BYTES, PathMode, ReceiverConfig};

use crate::network;
use crate::via::Via;

/// Maximum networks of [`Config::via`].
pub const MAX_NETWORKS: usize = loquent_proto::MAX_PATHS;

/// Configuration of a [`Client`](crate::Client). [`Config::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server's URL, with or without a final `/v1`.
    pub url: String,
    /// API key for requests that have no key of their own.
    pub api_key: Option<String>,
    /// Server certificates that are accepted. Default: those of the system's authorities.
    pub trust: Trust,
    /// Enables QUIC. Default true.
    pub quic: bool,
    /// Networks to keep a QUIC connection over, the better one first; at most [`MAX_NETWORKS`].
    /// Default none: one connection, over the network that the system chooses. HTTP always goes
    /// over that one.
    pub via: Vec<Via>,
    /// Use of two networks. Default backup.
    pub via_mode: PathMode,
    /// Maximum wait of a request for QUIC before it uses HTTP. Default 500 ms.
    pub head_start: Duration,
    /// Maximum time to look for a lost answer, from the loss of the last path that worked.
    /// Default 90 s: longer than servers keep it.
    pub resume_limit: Duration,
    /// Folder for the file of known servers; `None` keeps them for this process only.
    pub memory: Option<PathBuf>,
    /// Settings for receiving and pacing answers over QUIC.
    pub receiver: ReceiverConfig,
    /// Returns an identifier of the network this machine is on. When it changes, event streams are
    /// resumed at once, since TCP would notice only after minutes. Default: the source address of
    /// outgoing packets.
    pub network: fn() -> Option<IpAddr>,
}

impl Config {
    /// Returns the defaults for the server at `url`.
    pub fn new(url: impl Into<String>) -> Config {
        Config {
            url: url.into(),
            api_key: None,
            trust: Trust::System,
            quic: true,
            via: Vec::new(),
            via_mode: PathMode::default(),
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
