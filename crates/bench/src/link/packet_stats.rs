//! Statistics of a link: the fate of each packet, sums per direction, and the relay's lateness.

use std::fmt::Write;

use serde::Serialize;

/// The fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Delivered at `due_us`, and once more if the network duplicated it.
    Delivered {
        /// Delivery time in µs.
        due_us: u64,
        /// True if it is delivered twice.
        twice: bool,
    },
    /// Lost by the channel, or by a path change.
    Lost,
    /// Dropped by the full queue of the rate limit.
    QueueFull,
    /// Sent during a planned outage.
    Outage,
    /// Dropped because the relay already holds too many bytes.
    Overflow,
}

impl Fate {
    /// Returns the same fate, relative to `zero_us`.
    pub fn since(self, zero_us: u64) -> Self {
        match self {
            Self::Delivered { due_us, twice } => {
                Self::Delivered { due_us: due_us - zero_us, twice }
            }
            other => other,
        }
    }

    /// Returns the fate's name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::Lost => "lost",
            Self::QueueFull => "queue-full",
            Self::Outage => "outage",
            Self::Overflow => "overflow",
        }
    }
}

/// Packet counts of one direction of a path.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PacketStats {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of these packets, including all headers.
    pub bytes: u64,
    /// Bytes of the packets that were delivered.
    pub delivered_bytes: u64,
    /// Lost by the channel, or by a path change.
    pub lost: u64,
    /// Dropped by the full queue of the rate limit.
    pub queue_full: u64,
    /// Sent during a planned outage.
    pub outage: u64,
    /// Dropped because too many bytes were in flight.
    pub overflow: u64,
    /// Packets that arrived twice.
    pub doubled: u64,
    /// Sum of the times that delivered packets spent in the link, in ms.
    pub transit_ms_sum: f64,
    /// The longest of these times, in ms.
    pub transit_ms_max: f64,
}

impl PacketStats {
    /// Counts a packet of `bytes` that entered at `now_us`.
    pub fn count(&mut self, now_us: u64, bytes: usize, fate: Fate) {
        self.packets += 1;
        self.bytes += bytes as u64;
        match fate {
            Fate::Delivered { due_us, twice } => {
                self.delivered_bytes += bytes as u64;
                self.doubled += u64::from(twice);
                let transit_ms = due_us.saturating_sub(now_us) as f64 / 1e3;
                self.transit_ms_sum += transit_ms;
                self.transit_ms_max = self.transit_ms_max.max(transit_ms);
            }
            Fate::Lost => self.lost += 1,
            Fate::QueueFull => self.queue_full += 1,
            Fate::Outage => self.outage += 1,
            Fate::Overflow => self.overflow += 1,
        }
    }

    /// Returns the number of packets that were not delivered.
    pub fn dropped(&self) -> u64 {
        self.lost + self.queue_full + self.outage + self.overflow
    }

    fn line(&self, name: &str) -> String {
        let share = 100.0 * self.dropped() as f64 / self.packets.max(1) as f64;
        let delivered = self.packets - self.dropped();
        let mut text = format!(
            "{name}: {} packets, {} bytes; {} dropped ({share:.1} %)",
            self.packets,
            self.bytes,
            self.dropped()
        );
        for (count, what) in [
            (self.lost, "lost"),
            (self.queue_full, "queue full"),
            (self.outage, "in outages"),
            (self.overflow, "too much in flight"),
            (self.doubled, "doubled"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        let mean_ms = self.transit_ms_sum / delivered.max(1) as f64;
        let _ = write!(
            text,
            "; under way {mean_ms:.1} ms on average, {:.1} ms at most",
            self.transit_ms_max
        );
        text
    }
}

/// Delay of packet deliveries beyond the model's time.
#[derive(Debug, Clone, Serialize)]
pub struct Lateness {
    /// Packets by lateness in steps of 50 µs; the last step holds all later ones.
    #[serde(skip)]
    steps: Vec<u64>,
    /// Number of packets delivered.
    pub packets: u64,
    /// The largest lateness, in ms.
    pub max_ms: f64,
}

const STEP_US: u64 = 50;
const STEPS: usize = 4_000;

impl Default for Lateness {
    fn default() -> Self {
        Self { steps: vec![0; STEPS], packets: 0, max_ms: 0.0 }
    }
}

impl Lateness {
    /// Counts a packet that was delivered `late_us` late.
    pub fn note(&mut self, late_us: u64) {
        self.steps[((late_us / STEP_US) as usize).min(STEPS - 1)] += 1;
        self.packets += 1;
        self.max_ms = self.max_ms.max(late_us as f64 / 1e3);
    }

    /// Returns the lateness in ms that this share of packets does not exceed, to 50 µs.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let wanted = (share * self.packets as f64).ceil() as u64;
        let mut seen = 0;
        for (step, count) in self.steps.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (((step as u64 + 1) * STEP_US) as f64 / 1e3).min(self.max_ms);
            }
        }
        self.max_ms
    }
}

/// All counts of a relay.
#[derive(Debug, Clone, Default)]
pub struct LinkSummary {
    /// Counts by path: from server to client, and from client to server.
    pub paths: Vec<[PacketStats; 2]>,
    /// Lateness of packet deliveries.
    pub lateness: Lateness,
    /// Packets that could not be written to their destination.
    pub unwritten: u64,
}

impl LinkSummary {
    /// Formats both directions and the lateness as lines of text, each ending with a line feed.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (number, [down, up]) in self.paths.iter().enumerate() {
            let path = if self.paths.len() > 1 { format!("path {number} ") } else { String::new() };
            let _ = writeln!(text, "{}", down.line(&format!("{path}server to client")));
            let _ = writeln!(text, "{}", up.line(&format!("{path}client to server")));
        }
        let late = &self.lateness;
        let _ = writeln!(
            text,
            "later than the model: {:.2} ms at the median, {:.2} ms at p99, {:.2} ms at most",
            late.quantile_ms(0.5),
            late.quantile_ms(0.99),
            late.max_ms
        );
        if self.unwritten > 0 {
            let _ = writeln!(text, "{} packets could not be delivered", self.unwritten);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_lateness() {
        let mut late = Lateness::default();
        (0..100).for_each(|i| late.note(i * 50));
        assert!((late.quantile_ms(0.5) - 2.5).abs() < 0.06, "{}", late.quantile_ms(0.5));
        late.note(10_000_000);
        assert_eq!(late.max_ms, 10_000.0);
    }

    #[test]
    fn a_summary_names_what_happened() {
        let mut packet_stats = PacketStats::default();
        packet_stats.count(0, 100, Fate::Delivered { due_us: 50_000, twice: true });
        packet_stats.count(0, 100, Fate::QueueFull);
        let summary = LinkSummary {
            paths: vec![[packet_stats, PacketStats::default()]],
            ..LinkSummary::default()
        };
        let text = summary.text();
        let expected = "server to client: 2 packets, 200 bytes; 1 dropped (50.0 %), 1 queue full, \
                        1 doubled; under way 50.0 ms on average, 50.0 ms at most\n";
        assert!(text.starts_with(expected), "{text}");
    }
}
