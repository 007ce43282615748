//! What `loquent bench delivery` measures.

use std::path::PathBuf;

use loquent_proto::{Micros, Playout};
use loquent_sim::channel::Channel;
use loquent_sim::generate::{Generator, token_text};
use loquent_sim::link::Link;
use loquent_sim::rng::Draws;
use loquent_sim::scheme::{Scheme as Simulated, Tuning};
use serde::Serialize;

/// A way to deliver tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryScheme {
    /// ServeProcess-sent events on kernel TCP with CUBIC
    Cubic,
    /// ServeProcess-sent events on kernel TCP with BBR
    Bbr,
    /// Eloquent as in the paper, over UDP
    Eloquent,
    /// Loquent's sender and receiver over bare UDP
    LoquentUdp,
    /// `loquent serve` and the native client over QUIC
    Loquent,
    /// `loquent serve` with server-sent events on kernel TCP with CUBIC
    ServeCubic,
    /// `loquent serve` with server-sent events on kernel TCP with BBR
    ServeBbr,
}

impl DeliveryScheme {
    /// Its name in reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cubic => "SSE, TCP CUBIC",
            Self::Bbr => "SSE, TCP BBR",
            Self::Eloquent => "Eloquent, UDP",
            Self::LoquentUdp => "Loquent, bare UDP",
            Self::Loquent => "Loquent, QUIC",
            Self::ServeCubic => "Loquent SSE, CUBIC",
            Self::ServeBbr => "Loquent SSE, BBR",
        }
    }

    /// The congestion control, for those on TCP.
    pub fn congestion(self) -> Option<&'static str> {
        match self {
            Self::Cubic | Self::ServeCubic => Some("cubic"),
            Self::Bbr | Self::ServeBbr => Some("bbr"),
            Self::Eloquent | Self::LoquentUdp | Self::Loquent => None,
        }
    }

    /// Whether it is one of ours, to be held against TCP.
    pub fn is_loquent(self) -> bool {
        matches!(self, Self::LoquentUdp | Self::Loquent)
    }

    /// What the simulator plays in its place.
    pub fn simulated(self) -> Simulated {
        match self {
            Self::Eloquent => Simulated::Eloquent { max_tokens: 10, resend_ms: 200.0 },
            Self::LoquentUdp | Self::Loquent => {
                Simulated::Loquent { tuning: Tuning::default(), congestion: None }
            }
            _ => Simulated::Tcp,
        }
    }

    /// Bytes of headers that a shipped packet would have beside those that ours has on this
    /// link: measuring counts 60 for each packet, and bare UDP over IPv4 has 28.
    pub fn missing_header_bytes(self) -> u64 {
        match self {
            Self::Eloquent | Self::LoquentUdp => 32,
            _ => 0,
        }
    }
}

/// Where reports go.
#[derive(Debug, Clone, Default)]
pub struct DeliveryReportPaths {
    /// Everything as JSON.
    pub json: Option<PathBuf>,
    /// A page with plots.
    pub html: Option<PathBuf>,
    /// No table, no progress.
    pub quiet: bool,
}

/// A resolved command line.
#[derive(Debug, Clone)]
pub struct DeliveryPlan {
    /// Title of the reports.
    pub title: String,
    /// Round-trip times in ms; each is a case.
    pub rtts_ms: Vec<f64>,
    /// When packets are lost.
    pub channel: Channel,
    /// Streams at a time.
    pub sessions: usize,
    /// How long tokens are generated, in seconds.
    pub seconds: f64,
    /// Tokens per second of each stream.
    pub tokens_per_s: f64,
    /// Decides weather, text and fates.
    pub seed: u64,
    /// What is measured, in order.
    pub schemes: Vec<DeliveryScheme>,
    /// Text that a pacing client holds back, in ms.
    pub pace_ms: u64,
    /// The program to start as the server.
    pub server_program: PathBuf,
    /// Further options of that server.
    pub server_options: Vec<String>,
    /// Without namespaces: UDP relays, which carry UDP alone.
    pub without_root: bool,
    /// Reports.
    pub outputs: DeliveryReportPaths,
}

impl DeliveryPlan {
    /// The link of a case.
    pub fn link(&self, rtt_ms: f64) -> Link {
        Link::new(rtt_ms, self.channel.clone())
    }

    /// How long tokens are generated, in µs.
    pub fn length_us(&self) -> u64 {
        (self.seconds * 1e6) as u64
    }

    /// The rhythm of the tokens.
    pub fn generator(&self) -> Generator {
        Generator::Constant { tokens_per_s: self.tokens_per_s }
    }

    /// The seed of a session: the simulator's for the session of the same number.
    pub fn session_seed(&self, session: usize) -> u64 {
        Draws::new(self.seed, "session").bits(session as u64)
    }

    /// The pace of a client that holds text back.
    pub fn pace(&self) -> Playout {
        Playout { buffer: Micros::from_ms(self.pace_ms), max_tokens_per_s: None }
    }

    /// The tokens of a session.
    pub fn answer(&self, session: usize) -> TimedTokens {
        let seed = self.session_seed(session);
        let times_us = self.generator().times_us(seed, self.length_us());
        let text = |index: usize| {
            let mut text = Vec::new();
            token_text(seed, index, &mut text);
            String::from_utf8(text).expect("tokens are letters")
        };
        let tokens = (0..times_us.len()).map(text).collect();
        TimedTokens { times_us, tokens }
    }
}

/// What a generator says, and when.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedTokens {
    /// When each token is generated, in µs after the session's start.
    pub times_us: Vec<u64>,
    /// Their texts.
    pub tokens: Vec<String>,
}
