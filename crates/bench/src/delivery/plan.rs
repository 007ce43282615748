//! The plan of `loquent bench delivery`: schemes, link and streams to measure.

use std::path::PathBuf;
use std::time::Duration;

use loquent_proto::{Micros, Playout};
use loquent_sim::channel::Channel;
use loquent_sim::generate::{Generator, token_text};
use loquent_sim::link::Link;
use loquent_sim::rng::Draws;
use loquent_sim::scheme::{Scheme as Simulated, TcpControl, Tuning};
use serde::Serialize;

/// A way to deliver tokens, measured over real sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryScheme {
    /// Server-sent events on kernel TCP with CUBIC
    Cubic,
    /// Server-sent events on kernel TCP with BBR
    Bbr,
    /// Server-sent events on one reliable QUIC stream, without datagrams or repetition
    QuicStream,
    /// Eloquent as in the paper, over UDP
    Eloquent,
    /// Loquent's sender and receiver over bare UDP
    LoquentUdp,
    /// `loquent serve` and the native client over QUIC
    Loquent,
    /// The same with frames that are not padded
    LoquentUnpadded,
    /// `loquent serve` with server-sent events on kernel TCP with CUBIC
    ServeCubic,
    /// `loquent serve` with server-sent events on kernel TCP with BBR
    ServeBbr,
}

impl DeliveryScheme {
    /// Returns the scheme's name in reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cubic => "SSE, TCP CUBIC",
            Self::Bbr => "SSE, TCP BBR",
            Self::QuicStream => "plain QUIC stream",
            Self::Eloquent => "Eloquent, UDP",
            Self::LoquentUdp => "Loquent, bare UDP",
            Self::Loquent => "Loquent, QUIC",
            Self::LoquentUnpadded => "Loquent, QUIC, unpadded",
            Self::ServeCubic => "Loquent SSE, CUBIC",
            Self::ServeBbr => "Loquent SSE, BBR",
        }
    }

    /// Returns the kernel's congestion control, for the schemes on TCP.
    pub fn congestion(self) -> Option<&'static str> {
        match self {
            Self::Cubic | Self::ServeCubic => Some("cubic"),
            Self::Bbr | Self::ServeBbr => Some("bbr"),
            Self::QuicStream
            | Self::Eloquent
            | Self::LoquentUdp
            | Self::Loquent
            | Self::LoquentUnpadded => None,
        }
    }

    /// Returns true for Loquent's schemes over UDP, which are compared with TCP.
    pub fn is_loquent(self) -> bool {
        matches!(self, Self::LoquentUdp | Self::Loquent | Self::LoquentUnpadded)
    }

    /// Returns the simulator's counterpart. For the QUIC stream that is its TCP, which detects
    /// losses by the same rules (RFC 9002 is RACK-TLP's younger sibling).
    pub fn simulated(self) -> Simulated {
        match self {
            Self::Eloquent => Simulated::Eloquent { max_tokens: 10, resend_ms: 200.0 },
            Self::LoquentUdp | Self::Loquent => {
                Simulated::Loquent { tuning: Tuning::padded(), congestion: None }
            }
            Self::LoquentUnpadded => {
                Simulated::Loquent { tuning: Tuning::default(), congestion: None }
            }
            Self::Bbr | Self::ServeBbr => Simulated::Tcp { control: TcpControl::Bbr },
            Self::Cubic | Self::ServeCubic | Self::QuicStream => Simulated::TCP,
        }
    }

    /// Returns the server options that select this scheme.
    pub fn server_options(self) -> &'static [&'static str] {
        match self {
            Self::LoquentUnpadded => &["--obfuscation", "never"],
            _ => &[],
        }
    }

    /// Returns the header bytes to add to each packet, so that all schemes are charged the same:
    /// the simulator counts 60 (IP, UDP, QUIC), and bare UDP over IPv4 has only 28.
    pub fn missing_header_bytes(self) -> u64 {
        match self {
            Self::Eloquent | Self::LoquentUdp => 32,
            _ => 0,
        }
    }
}

/// Output files, and whether results are printed on the terminal.
#[derive(Debug, Clone, Default)]
pub struct DeliveryReportPaths {
    /// File for everything as JSON.
    pub json: Option<PathBuf>,
    /// File for a self-contained HTML page with plots.
    pub html: Option<PathBuf>,
    /// Prints neither progress nor the table.
    pub quiet: bool,
}

/// Plan of a delivery benchmark: the options, resolved and checked.
#[derive(Debug, Clone)]
pub struct DeliveryPlan {
    /// Title of the reports.
    pub title: String,
    /// Round-trip times in ms; each is a case.
    pub rtts_ms: Vec<f64>,
    /// Model of packet losses.
    pub channel: Channel,
    /// Maximum extra delay of a packet in ms.
    pub jitter_ms: f64,
    /// Rate limit of each direction in kbit/s, if any.
    pub rate_kbps: Option<f64>,
    /// Number of concurrent streams.
    pub sessions: usize,
    /// Duration of token generation, in seconds.
    pub seconds: f64,
    /// Tokens per second of each stream.
    pub tokens_per_s: f64,
    /// Seed of losses, text and generation times.
    pub seed: u64,
    /// The schemes to measure, in order.
    pub schemes: Vec<DeliveryScheme>,
    /// Playout buffer, in ms, of the client whose displayed text is measured.
    pub pace_ms: u64,
    /// Program to start as the server.
    pub server_program: PathBuf,
    /// Additional options of that server.
    pub server_options: Vec<String>,
    /// Uses UDP relays instead of namespaces; they carry only UDP.
    pub without_root: bool,
    /// Outputs of the results.
    pub outputs: DeliveryReportPaths,
}

impl DeliveryPlan {
    /// Returns about how long the whole plan takes, in seconds: servers and clients start for each
    /// scheme, and late text is waited for.
    pub fn expected_s(&self) -> f64 {
        const AROUND_S: f64 = 5.0;
        (self.rtts_ms.len() * self.schemes.len()) as f64 * (self.seconds + AROUND_S)
    }

    /// Returns the link of a case.
    pub fn link(&self, rtt_ms: f64) -> Link {
        Link {
            jitter_ms: self.jitter_ms,
            rate_kbps: self.rate_kbps,
            ..Link::new(rtt_ms, self.channel.clone())
        }
    }

    /// Returns the time from the last connection to the first session's start. Handshakes have left
    /// the narrowest link by then: a reader is connected while the question is typed.
    pub fn lead(&self) -> Duration {
        /// Time in which all ends learn of the start.
        const LEAD: Duration = Duration::from_millis(500);
        /// Bits of a QUIC handshake, of which packets are repeated while they wait for a thin link.
        const HANDSHAKE_KBIT: f64 = 64.0;
        let carried = self.rate_kbps.map(|rate| Duration::from_secs_f64(HANDSHAKE_KBIT / rate));
        LEAD + carried.unwrap_or_default()
    }

    /// Returns the duration of token generation in µs.
    pub fn length_us(&self) -> u64 {
        (self.seconds * 1e6) as u64
    }

    /// Returns the generator of token times.
    pub fn generator(&self) -> Generator {
        Generator::Constant { tokens_per_s: self.tokens_per_s }
    }

    /// Returns the seed of a session: the simulator's for the session with the same number.
    pub fn session_seed(&self, session: usize) -> u64 {
        Draws::new(self.seed, "session").bits(session as u64)
    }

    /// Returns the playout settings of a client with a playout buffer.
    pub fn pace(&self) -> Playout {
        Playout { buffer: Micros::from_ms(self.pace_ms), max_tokens_per_s: None }
    }

    /// Returns the tokens of a session.
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

/// The tokens of a session and their generation times.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedTokens {
    /// Generation time of each token, in µs after the session's start.
    pub times_us: Vec<u64>,
    /// The tokens' texts, in the same order.
    pub tokens: Vec<String>,
}
