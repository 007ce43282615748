//! Delivery schemes: the two ends of a token stream as state machines without a clock.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::link::Link;
use crate::reader::ReaderBehaviour;

pub use congestion::{Congestion, CongestionControl};
pub use loquent::Tuning;
pub use packet::MAX_TEXT_BYTES;
pub use tcp::TcpControl;

mod congestion;
mod duplication;
mod eloquent;
mod ending;
mod loquent;
mod packet;
mod tcp;

/// Time for which a baseline keeps trying after the answer's last token, in µs.
pub const GIVE_UP_US: u64 = 60_000_000;

/// Progress of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryProgress {
    /// Something is left to send or to be acknowledged.
    Active,
    /// The end of the answer was acknowledged.
    Complete,
    /// The sender has stopped for now; the receiver may resume.
    Suspended,
}

/// The server's end of a stream: a state machine that takes the time as an argument.
pub trait SenderEnd {
    /// Adds the next generated token. `last` marks the end of the answer.
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool);
    /// Handles a packet from the other end.
    fn handle_packet(&mut self, now_us: u64, packet: &[u8]);
    /// Handles the timeout requested by `poll_timeout`.
    fn handle_timeout(&mut self, now_us: u64);
    /// Writes the next packet into the empty `packet`; returns false if there is nothing to send
    /// now.
    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool;
    /// Returns the time at which to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<u64>;
    /// Returns the progress of the delivery.
    fn progress(&self) -> DeliveryProgress;
    /// Returns the bytes of the answer, and the bytes sent, so far.
    fn volume(&self) -> Volume;
    /// Returns the bytes of packets without new text, headers included; for schemes that bound
    /// them.
    fn repeated_bytes(&self) -> u64 {
        0
    }
    /// Returns the number of tokens sent completely, for schemes whose packets are observed.
    fn tokens_sent(&self) -> Option<usize> {
        None
    }
    /// Returns the number of tokens that the other end has acknowledged, for schemes that tell.
    fn acked_tokens(&self) -> Option<usize> {
        None
    }
    /// Returns the tokens in `packet`, whole or in part, as runs of their numbers. `packet` was
    /// just written by `poll_transmit`.
    fn carried(&self, _packet: &[u8]) -> Vec<Range<usize>> {
        Vec::new()
    }
}

/// Bytes of an answer, and bytes of it sent in packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    /// Bytes of the answer.
    pub once: u64,
    /// Bytes sent, copies included.
    pub sent: u64,
}

impl Volume {
    /// Returns the copies beyond the first: 0 if every byte was sent once.
    pub fn redundancy(self) -> f64 {
        self.sent as f64 / (self.once as f64).max(1.0) - 1.0
    }
}

/// Limit on a sender's packets without new text, headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes that may be spent at once.
    pub burst_bytes: u64,
    /// Refill rate in bytes per second.
    pub bytes_per_s: u64,
}

/// The client's end of a stream: a state machine that takes the time as an argument.
pub trait ReceiverEnd {
    /// Handles a packet from the other end.
    fn handle_packet(&mut self, now_us: u64, packet: &[u8]);
    /// Handles the timeout requested by `poll_timeout`.
    fn handle_timeout(&mut self, now_us: u64);
    /// Writes the next packet into the empty `packet`; returns false if there is nothing to send
    /// now.
    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool;
    /// Returns the time at which to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<u64>;
    /// Handles a change of the page to hidden or visible.
    fn handle_hidden(&mut self, now_us: u64, hidden: bool);
    /// Handles a path change that the client has noticed.
    fn handle_new_path(&mut self, _now_us: u64) {}
    /// Appends the text shown since the last call.
    fn take_shown(&mut self, text: &mut Vec<u8>);
    /// Returns the number of tokens that have arrived in order, shown or held back by the client's
    /// pace.
    fn arrived(&self) -> usize;
    /// Returns true once the end of the answer has been shown.
    fn finished(&self) -> bool;
}

/// A scheme as written in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scheme {
    /// TCP as in Linux, with CUBIC by default: RACK-TLP, selective acknowledgements, one segment
    /// for each token that the window admits.
    Tcp {
        /// Limit on the segments in flight.
        #[serde(default)]
        control: TcpControl,
    },
    /// Each token sent several times at once, and again after a fixed timeout.
    Duplication {
        /// Copies of each packet.
        copies: u32,
        /// Time after which an unacknowledged token is sent again, in ms.
        #[serde(default = "default_resend_ms")]
        resend_ms: f64,
    },
    /// Algorithms 1 and 2 of the paper.
    Eloquent {
        /// Maximum number of tokens in one packet.
        #[serde(default = "default_max_tokens")]
        max_tokens: usize,
        /// Silence after which unacknowledged tokens are sent again, in ms.
        #[serde(default = "default_resend_ms")]
        resend_ms: f64,
    },
    /// Loquent's own scheme: the shipped code.
    Loquent {
        /// Differences from the shipped parameters.
        #[serde(default)]
        tuning: Tuning,
        /// A model of QUIC's congestion control in front; without it, the window of the shipped
        /// server, which never limits these streams.
        #[serde(default)]
        congestion: Option<Congestion>,
    },
    /// The bound: each token arrives at the first opportunity of a grid at which a packet gets
    /// through.
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
    /// TCP with Linux's default congestion control.
    pub const TCP: Self = Self::Tcp { control: TcpControl::Cubic };

    /// Returns the name in reports.
    pub fn label(&self) -> String {
        match self {
            Self::Tcp { control: TcpControl::Cubic } => "TCP".to_owned(),
            Self::Tcp { control: TcpControl::Bbr } => "TCP, BBR".to_owned(),
            Self::Tcp { control: TcpControl::None } => "TCP without a window".to_owned(),
            Self::Duplication { copies, .. } => format!("Duplication x{copies}"),
            Self::Eloquent { max_tokens: 10, .. } => "Eloquent".to_owned(),
            Self::Eloquent { max_tokens, .. } => format!("Eloquent, {max_tokens} tokens"),
            Self::Loquent { congestion: None, .. } => "Loquent".to_owned(),
            Self::Loquent { congestion: Some(congestion), .. } => match congestion.control {
                CongestionControl::NewReno => "Loquent behind NewReno".to_owned(),
                CongestionControl::Cubic => "Loquent behind CUBIC".to_owned(),
            },
            Self::Oracle { every_ms } => format!("Oracle {every_ms} ms"),
        }
    }

    /// Returns the scheme's kind as written in plans.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "tcp",
            Self::Duplication { .. } => "duplication",
            Self::Eloquent { .. } => "eloquent",
            Self::Loquent { .. } => "loquent",
            Self::Oracle { .. } => "oracle",
        }
    }

    /// Describes the first parameter that is out of range, if there is one.
    pub fn fault(&self) -> Option<String> {
        let bounded = |name: &str, value: f64, low: f64, high: f64| {
            (!(low..=high).contains(&value))
                .then(|| format!("{name} = {value} is not in {low}..={high}"))
        };
        match *self {
            Self::Tcp { .. } | Self::Loquent { .. } => None,
            Self::Duplication { copies, resend_ms } => {
                bounded("copies", f64::from(copies), 1.0, 50.0)
                    .or_else(|| bounded("resend_ms", resend_ms, 1.0, 60_000.0))
            }
            Self::Eloquent { max_tokens, resend_ms } => {
                bounded("max_tokens", max_tokens as f64, 1.0, 200.0)
                    .or_else(|| bounded("resend_ms", resend_ms, 1.0, 60_000.0))
            }
            Self::Oracle { every_ms } => bounded("every_ms", every_ms, 1.0, 60_000.0),
        }
    }

    /// Returns the limit on its repetitions, if it has one.
    pub fn budget(&self) -> Option<Budget> {
        match self {
            Self::Loquent { tuning, .. } => Some(tuning.budget()),
            _ => None,
        }
    }

    /// Creates both ends; `None` for the oracle, which is computed rather than simulated.
    pub fn ends(&self, link: &Link, reader: &ReaderBehaviour) -> Option<Ends> {
        let rtt_us = (link.rtt_ms * 1e3) as u64;
        let sender: Box<dyn SenderEnd> = match *self {
            Self::Tcp { control } => {
                let receiver = packet::TokenReceiver::selective(reader.pace());
                return Some((Box::new(tcp::TcpSender::new(rtt_us, control)), Box::new(receiver)));
            }
            Self::Duplication { copies, resend_ms } => {
                let resend_us = (resend_ms * 1e3) as u64;
                Box::new(duplication::DuplicationSender::new(copies, resend_us))
            }
            Self::Eloquent { max_tokens, resend_ms } => {
                let resend_us = (resend_ms * 1e3) as u64;
                Box::new(eloquent::EloquentSender::new(max_tokens, resend_us))
            }
            Self::Loquent { ref tuning, congestion } => {
                return Some(loquent_ends(tuning, congestion, link, reader));
            }
            Self::Oracle { .. } => return None,
        };
        Some((sender, Box::new(packet::TokenReceiver::new(reader.pace()))))
    }
}

/// A sender and its receiver.
pub type Ends = (Box<dyn SenderEnd>, Box<dyn ReceiverEnd>);

fn loquent_ends(
    tuning: &Tuning,
    congestion: Option<Congestion>,
    link: &Link,
    reader: &ReaderBehaviour,
) -> Ends {
    let rtt_us = (link.rtt_ms * 1e3) as u64;
    let (sender, receiver) = loquent::ends(tuning, rtt_us, link.corrupt > 0.0, reader);
    match congestion {
        Some(congestion) => (
            Box::new(congestion::CongestedSender::new(Box::new(sender), congestion, rtt_us)),
            Box::new(congestion::CongestedReceiver::new(Box::new(receiver))),
        ),
        None => (Box::new(sender), Box::new(receiver)),
    }
}
