//! The flags of `loquent demo`.

use std::path::PathBuf;

use clap::Args;
use loquent_bench::link::options::parse_rate_kbps;

use super::network::NetworkKind;
use crate::demo::network_conditions::NetworkConditions;

/// A question to which the bundled model gives a long and readable answer.
const QUESTION: &str = "How does Loquent deliver tokens?";

const EXAMPLES: &str = "\
The same answer travels twice at the same time, as server-sent events over TCP and by Loquent's
delivery over QUIC, and both meet the same losses. As root the packets of the kernel's TCP and of
QUIC cross an emulated link between network namespaces. Without root QUIC crosses a lossy relay
beside the simulator's TCP, and the demonstration says that it is modelled. Nothing leaves this
machine, and nothing is left behind.

Examples:
  loquent demo                               in the browser, or here without a display
  loquent demo --terminal                    two columns in this terminal
  loquent demo --loss 30% --burst 500        worse weather: half a second of loss at a time
  loquent demo --loss 2% --burst 0           losses spread evenly
  loquent demo --rtt-ms 600 --rate 64kbit    a satellite, and little of it
  loquent demo --seed 7                      other losses; the same seed, the same losses
  loquent demo -m qwen.gguf --prompt 'Tell me about the sea.'
  loquent demo --no-open --port 8080         for a browser that you open yourself";

/// Show one answer over TCP and over Loquent side by side, on the same bad network
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Show it in this terminal [default: in the browser if there is a display]
    #[arg(long, short, conflicts_with = "no_open")]
    pub(super) terminal: bool,
    /// Serve the page and print its address, but open no browser
    #[arg(long)]
    pub(super) no_open: bool,
    /// TCP and UDP port of the server; 0 picks a free one
    #[arg(long, short, value_name = "PORT", default_value_t = 0)]
    pub(super) port: u16,

    /// Share of packets to lose, such as 15% or 0.15, at most 60%
    #[arg(long, value_name = "SHARE", default_value = "15%", value_parser = parse_loss, help_heading = "Network")]
    loss: f64,
    /// Mean length of a burst of losses in ms; 0 spreads them evenly
    #[arg(long, value_name = "MS", default_value_t = 100.0, help_heading = "Network")]
    burst: f64,
    /// Round-trip time in ms
    #[arg(
        long,
        visible_alias = "rtt",
        value_name = "MS",
        default_value_t = 200.0,
        help_heading = "Network"
    )]
    rtt_ms: f64,
    /// Rate of each direction, such as 1mbit or 250kbit [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = parse_rate_kbps, help_heading = "Network")]
    rate: Option<f64>,
    /// Seed that decides which packets are lost
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Network")]
    seed: u32,
    /// What the packets cross [default: kernel as root, otherwise modelled]
    #[arg(long, value_name = "KIND", help_heading = "Network")]
    pub(super) network: Option<NetworkKind>,

    /// Model file in GGUF format [default: the bundled demonstration model]
    #[arg(long, short, value_name = "FILE", help_heading = "Answer")]
    pub(super) model: Option<PathBuf>,
    /// The question that both columns ask
    #[arg(long, value_name = "TEXT", default_value = QUESTION, help_heading = "Answer")]
    pub(super) prompt: String,
    /// Maximum length of the answer in tokens
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=2000), help_heading = "Answer")]
    pub(super) max_tokens: u32,
    /// Speed of the answer in tokens per second, 1 to 200
    #[arg(long, value_name = "N", default_value = "30", value_parser = parse_speed, help_heading = "Answer")]
    pub(super) tokens_per_s: f64,
}

impl DemoArgs {
    /// Returns the weather as typed.
    pub(super) fn weather(&self) -> NetworkConditions {
        NetworkConditions {
            rtt_ms: self.rtt_ms,
            loss: self.loss,
            burst_ms: self.burst,
            rate_kbps: self.rate,
            seed: self.seed,
        }
    }
}

/// Parses a share such as 0.15 or 15%. The weather checks its upper bound.
fn parse_loss(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.parse::<f64>().ok().map(|number| number / scale);
    share.filter(|share| share.is_finite()).ok_or_else(|| "give a share, such as 15%".to_owned())
}

/// Parses tokens per second. Below one nothing seems to happen; above two hundred the answer is
/// over too soon.
fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|speed| (1.0..=200.0).contains(speed));
    speed.ok_or_else(|| "give tokens per second from 1 to 200".to_owned())
}
