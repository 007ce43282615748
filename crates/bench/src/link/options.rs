//! Command-line notation of a link: losses, rates, sizes and outages.

use std::path::Path;

use clap::Args;
use loquent_sim::channel::Channel;
use loquent_sim::link::{AckPath, Link};
use loquent_sim::plan::Case;
use serde::Deserialize;

/// Impairments of the link.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Link")]
pub struct LinkOptions {
    /// Round-trip time in ms; half of it each way
    #[arg(long, value_name = "MS", default_value_t = 100.0)]
    pub rtt: f64,
    /// Packet loss: none, default, 2%, or a model (see --help)
    ///
    /// One of: none; default (the paper's channel, 15 %); a share such as 2%;
    /// markov:STAY_GOOD,STAY_LOSSY[,LOSS[,STATE_MS]]; bursts:GOOD_MS,BURST_MS[,LOSS];
    /// outages:EVERY_MS,MIN_MS,MAX_MS; trace:FILE (a case as `loquent trace --case` prints it).
    // Its brackets are no links: the help shows with them what may be left out.
    #[allow(rustdoc::broken_intra_doc_links)]
    #[arg(long, value_name = "LOSSES", default_value = "none", value_parser = parse_loss)]
    pub loss: Channel,
    /// Rate of each direction, such as 1mbit or 250kbit [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = parse_rate_kbps)]
    pub rate: Option<f64>,
    /// Queue in front of the rate limit, such as 32kB or 64000
    #[arg(long, value_name = "BYTES", default_value = "32kB", value_parser = parse_bytes)]
    pub queue: u64,
    /// Outage from and to these seconds after the start; repeatable
    #[arg(long, value_name = "S-S", value_parser = parse_outage)]
    pub outage: Vec<(u64, u64)>,
    /// Maximum extra delay in ms; above the packets' spacing it reorders
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub jitter: f64,
    /// Share of packets to duplicate
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share)]
    pub duplicate: f64,
    /// Share of packets to corrupt by a flipped bit
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share)]
    pub corrupt: f64,
    /// Lose nothing from client to server
    #[arg(long)]
    pub clean_uplink: bool,
}

impl LinkOptions {
    /// Returns the link in the simulator's terms.
    ///
    /// # Errors
    /// Describes the parameter that is out of range.
    pub fn link(&self) -> Result<Link, String> {
        let mut link = Link::new(self.rtt, self.loss.clone());
        link.acks = if self.clean_uplink { AckPath::Clean } else { AckPath::Lossy };
        (link.rate_kbps, link.queue_bytes) = (self.rate, self.queue);
        (link.jitter_ms, link.duplicate, link.corrupt) =
            (self.jitter, self.duplicate, self.corrupt);
        match link.fault() {
            None => Ok(link),
            Some(fault) => Err(fault),
        }
    }
}

/// Parses the value of `--loss`.
///
/// # Errors
/// Describes the mistake.
pub fn parse_loss(text: &str) -> Result<Channel, String> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let numbers = || -> Result<Vec<f64>, String> {
        rest.split(',')
            .map(|n| n.trim().parse().map_err(|_| format!("{n:?} is not a number")))
            .collect()
    };
    let channel = match kind {
        "none" => Channel::Clean,
        "default" => markov(&[0.9, 0.5])?,
        "markov" => markov(&numbers()?)?,
        "bursts" => bursts(&numbers()?)?,
        "outages" => outages(&numbers()?)?,
        "trace" => read_trace(Path::new(rest))?,
        _ => Channel::Random { loss: parse_share(text)? },
    };
    channel.fault().map_or(Ok(channel), Err)
}

fn markov(numbers: &[f64]) -> Result<Channel, String> {
    let &[stay_good, stay_lossy, ref rest @ ..] = numbers else {
        return Err("markov needs two probabilities, such as markov:0.9,0.5".into());
    };
    let loss = rest.first().copied().unwrap_or(0.9);
    let state_ms = rest.get(1).copied().unwrap_or(100.0);
    Ok(Channel::Markov { stay_good, stay_lossy, loss, state_ms })
}

fn bursts(numbers: &[f64]) -> Result<Channel, String> {
    let &[good_ms, burst_ms, ref rest @ ..] = numbers else {
        return Err("bursts needs two lengths in ms, such as bursts:900,100".into());
    };
    let loss = rest.first().copied().unwrap_or(0.9);
    Ok(Channel::Bursts { good_ms, burst_ms, loss, residual_loss: 0.0 })
}

fn outages(numbers: &[f64]) -> Result<Channel, String> {
    match *numbers {
        [every_ms, min_ms, max_ms] => {
            Ok(Channel::Outages { every_ms, min_ms, max_ms, residual_loss: 0.0 })
        }
        _ => Err("outages needs three lengths in ms, such as outages:8000,500,3500".into()),
    }
}

fn read_trace(path: &Path) -> Result<Channel, String> {
    #[derive(Deserialize)]
    struct Cases {
        case: Vec<Case>,
    }
    let refuse = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| refuse(&error))?;
    let cases: Cases = toml::from_str(&text).map_err(|error| refuse(&error))?;
    let case = cases.case.into_iter().next().ok_or_else(|| refuse(&"contains no [[case]]"))?;
    Ok(case.link.channel)
}

/// Parses a share such as 0.02 or 2%.
fn parse_share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |n| (n, 100.0));
    let share = number.parse::<f64>().map_err(|_| {
        format!("{text:?} is not a loss model or a share; give 2%, default or markov:0.9,0.5")
    })? / scale;
    (0.0..=1.0)
        .contains(&share)
        .then_some(share)
        .ok_or_else(|| format!("{text} is not a share from 0 to 1; give 0.02 or 2%"))
}

/// Parses a rate such as 1mbit, 250kbit or 250; returns kbit/s.
///
/// # Errors
/// If the text has another form.
pub fn parse_rate_kbps(text: &str) -> Result<f64, String> {
    let scaled = [("gbit", 1e6), ("mbit", 1e3), ("kbit", 1.0), ("", 1.0)];
    scale(text, &scaled).ok_or_else(|| format!("{text:?} is not a rate; give 1mbit or 250kbit"))
}

/// Parses a size such as 32kB, 1MB or 64000; returns bytes.
///
/// # Errors
/// If the text has another form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let scaled = [("mb", 1e6), ("kb", 1e3), ("b", 1.0), ("", 1.0)];
    let bytes = scale(text, &scaled).ok_or_else(|| format!("{text:?} is not a size; give 32kB"))?;
    Ok(bytes as u64)
}

fn scale(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, factor)))?;
    let value = number.parse::<f64>().ok()? * factor;
    (value.is_finite() && value > 0.0).then_some(value)
}

/// Parses a span in seconds, such as 10-12.5; returns start and end in µs.
fn parse_outage(text: &str) -> Result<(u64, u64), String> {
    let times = text.split_once('-').and_then(|(from, to)| {
        let seconds = |text: &str| text.parse::<f64>().ok().filter(|s| (0.0..1e6).contains(s));
        seconds(from).zip(seconds(to))
    });
    let (from, to) = times.filter(|(from, to)| from < to).ok_or_else(|| {
        format!("{text:?} is not a span of time; give 10-12.5 for 10 s to 12.5 s after the start")
    })?;
    Ok(((from * 1e6) as u64, (to * 1e6) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read() {
        let paper = Channel::Markov { stay_good: 0.9, stay_lossy: 0.5, loss: 0.9, state_ms: 100.0 };
        assert_eq!(parse_loss("default").as_ref(), Ok(&paper));
        assert_eq!(parse_loss("markov:0.9,0.5,0.9,100").as_ref(), Ok(&paper));
        assert_eq!(parse_loss("none"), Ok(Channel::Clean));
        assert_eq!(parse_loss("2%"), Ok(Channel::Random { loss: 0.02 }));
        assert_eq!(parse_loss("0.02"), Ok(Channel::Random { loss: 0.02 }));
        for bad in ["", "markov", "markov:0.9", "markov:2,2", "150%", "trace:/none", "much"] {
            assert!(parse_loss(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_case_of_a_capture_is_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("case.toml");
        let case = "[[case]]\nname = \"x\"\n[case.link]\nrtt_ms = 50.0\n\
                    [case.link.channel]\nkind = \"trace\"\nsteps = [[0.0, 0.0], [10.0, 1.0]]\n\
                    length_ms = 20.0\n";
        std::fs::write(&file, case).unwrap();
        let read = parse_loss(&format!("trace:{}", file.display()));
        let steps = vec![(0.0, 0.0), (10.0, 1.0)];
        assert_eq!(read, Ok(Channel::Trace { steps, length_ms: 20.0 }));
    }

    #[test]
    fn rates_sizes_and_outages_are_read() {
        assert_eq!(parse_rate_kbps("1mbit"), Ok(1_000.0));
        assert_eq!(parse_rate_kbps("250kbit"), Ok(250.0));
        assert_eq!(parse_bytes("32kB"), Ok(32_000));
        assert_eq!(parse_bytes("64000"), Ok(64_000));
        assert_eq!(parse_outage("10-12.5"), Ok((10_000_000, 12_500_000)));
        assert!(parse_rate_kbps("fast").is_err() && parse_bytes("-1").is_err());
        assert!(parse_outage("12-10").is_err() && parse_outage("12").is_err());
    }
}
