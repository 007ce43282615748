//! Delivery schemes: the two ends of a token stream as objects without a clock.

use serde::{Deserialize, Serialize};

use crate::check::Budget;

mod duplication;
mod eloquent;
mod packet;
mod tcp;

/// The longest a baseline keeps trying to get an answer through, in µs after its last token.
pub const GIVE_UP_US: u64 = 60_000_000;

/// How far a sender is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is something left to send or to be acknowledged.
    Active,
    /// The finish was acknowledged.
    Complete,
    /// Given up for now; the receiver may resume.
    Suspended,
}

/// The server's end.
pub trait Sender {
    /// The next token was generated. `last` says that the answer ends with it.
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool);
    /// A packet of the other end arrived.
    fn handle_packet(&mut self, now_us: u64, packet: &[u8]);
    /// The time that `poll_timeout` asked for has come.
    fn handle_timeout(&mut self, now_us: u64);
    /// Writes the next packet into the empty `packet`; false if there is none to send now.
    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool;
    /// When to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<u64>;
    /// How far it is.
    fn progress(&self) -> Progress;
    /// Bytes of answer text put into packets so far, copies included.
    fn text_bytes_sent(&self) -> u64;
}

/// The client's end.
pub trait Receiver {
    /// A packet of the other end arrived.
    fn handle_packet(&mut self, now_us: u64, packet: &[u8]);
    /// The time that `poll_timeout` asked for has come.
    fn handle_timeout(&mut self, now_us: u64);
    /// Writes the next packet into the empty `packet`; false if there is none to send now.
    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool;
    /// When to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<u64>;
    /// Appends the text that can be shown since the last call.
    fn take_shown(&mut self, text: &mut Vec<u8>);
    /// True once the end of the answer has been shown.
    fn finished(&self) -> bool;
}

/// A scheme as written in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scheme {
    /// Selective retransmission in the manner of TCP, one segment for each token.
    Tcp,
    /// Each token sent so many times at once, and again after a fixed timeout.
    Duplication {
        /// Copies of each packet.
        copies: u32,
        /// Time after which an unacknowledged token is sent again, in ms.
        #[serde(default = "default_resend_ms")]
        resend_ms: f64,
    },
    /// Algorithms 1 and 2 of the paper.
    Eloquent {
        /// Tokens in one packet at most.
        #[serde(default = "default_max_tokens")]
        max_tokens: usize,
        /// Silence after which unacknowledged tokens are sent again, in ms.
        #[serde(default = "default_resend_ms")]
        resend_ms: f64,
    },
    /// The bound: each token at the first delivered opportunity of a grid.
    Oracle {
        /// Spacing of the grid in ms.
        every_ms: f64,
    },
}

fn default_resend_ms() -> f64 {
    200.0
}

fn default_max_tokens() -> usize {
    10
}

impl Scheme {
    /// The name under which reports list it.
    pub fn label(&self) -> String {
        match self {
            Self::Tcp => "TCP".to_owned(),
            Self::Duplication { copies, .. } => format!("Duplication x{copies}"),
            Self::Eloquent { max_tokens: 10, .. } => "Eloquent".to_owned(),
            Self::Eloquent { max_tokens, .. } => format!("Eloquent, {max_tokens} tokens"),
            Self::Oracle { every_ms } => format!("Oracle {every_ms} ms"),
        }
    }

    /// Names the first parameter that makes no sense, if there is one.
    pub fn fault(&self) -> Option<String> {
        let bounded = |name: &str, value: f64, low: f64, high: f64| {
            (!(low..=high).contains(&value))
                .then(|| format!("{name} = {value} is not in {low}..={high}"))
        };
        match *self {
            Self::Tcp => None,
            Self::Duplication { copies, resend_ms } => {
                bounded("copies", f64::from(copies), 1.0, 50.0)
                    .or_else(|| bounded("resend_ms", resend_ms, 1.0, 60_000.0))
            }
            Self::Eloquent {
                max_tokens,
                resend_ms,
            } => bounded("max_tokens", max_tokens as f64, 1.0, 200.0)
                .or_else(|| bounded("resend_ms", resend_ms, 1.0, 60_000.0)),
            Self::Oracle { every_ms } => bounded("every_ms", every_ms, 1.0, 60_000.0),
        }
    }

    /// What it may spend at most, if it has promised a bound.
    pub fn budget(&self) -> Option<Budget> {
        None
    }

    /// Its two ends; none for the oracle, which is computed and not simulated.
    pub fn ends(&self, link_rtt_us: u64) -> Option<(Box<dyn Sender>, Box<dyn Receiver>)> {
        let ends: (Box<dyn Sender>, Box<dyn Receiver>) = match *self {
            Self::Tcp => (
                Box::new(tcp::TcpSender::new(link_rtt_us)),
                Box::new(packet::TokenReceiver::default()),
            ),
            Self::Duplication { copies, resend_ms } => (
                Box::new(duplication::DuplicationSender::new(
                    copies,
                    (resend_ms * 1e3) as u64,
                )),
                Box::new(packet::TokenReceiver::default()),
            ),
            Self::Eloquent {
                max_tokens,
                resend_ms,
            } => (
                Box::new(eloquent::EloquentSender::new(
                    max_tokens,
                    (resend_ms * 1e3) as u64,
                )),
                Box::new(packet::TokenReceiver::default()),
            ),
            Self::Oracle { .. } => return None,
        };
        Some(ends)
    }
}
