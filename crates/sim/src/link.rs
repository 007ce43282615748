//! A link in virtual time: delay, rate, queue, loss and rarer impairments, in both directions.

use serde::{Deserialize, Serialize};

use crate::channel::{Channel, Direction, LossSchedule, slot};
use crate::rng::Draws;

/// Bytes of headers per packet on the wire: IPv4 20, UDP 8, QUIC's short header with an 8-byte
/// connection ID and its authentication tag about 32. Every scheme is charged the same.
pub const HEADER_BYTES: usize = 60;

/// A link as written in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Round-trip time of an empty link in ms; half of it each way.
    pub rtt_ms: f64,
    /// Model of packet losses.
    #[serde(default = "clean")]
    pub channel: Channel,
    /// Treatment of acknowledgements: clean, or lost like data.
    #[serde(default)]
    pub acks: AckPath,
    /// Rate of each direction in kbit/s; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_kbps: Option<f64>,
    /// Queue in front of the rate limit, in bytes; packets beyond it are dropped.
    #[serde(default = "default_queue_bytes")]
    pub queue_bytes: u64,
    /// Maximum extra delay of a packet in ms, uniform; above the packets' spacing it reorders.
    #[serde(default)]
    pub jitter_ms: f64,
    /// Probability that a packet arrives twice.
    #[serde(default)]
    pub duplicate: f64,
    /// Probability that a packet arrives with flipped bits.
    #[serde(default)]
    pub corrupt: f64,
    /// Mean time between path changes in ms: packets in flight are lost and the delay is drawn
    /// again, from half to twice that of `rtt_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate_every_ms: Option<f64>,
}

/// Behaviour of a link's reverse direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AckPath {
    /// Shares the channel's state with the forward direction, but each packet has its own fate.
    #[default]
    Lossy,
    /// Nothing is lost.
    Clean,
}

fn clean() -> Channel {
    Channel::Clean
}

fn default_queue_bytes() -> u64 {
    32_000
}

impl Link {
    /// Creates a link with this round-trip time that has no impairment but the losses of its
    /// channel.
    pub fn new(rtt_ms: f64, channel: Channel) -> Self {
        Self {
            rtt_ms,
            channel,
            acks: AckPath::default(),
            rate_kbps: None,
            queue_bytes: default_queue_bytes(),
            jitter_ms: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            migrate_every_ms: None,
        }
    }

    /// Describes the first parameter that is out of range, if there is one.
    pub fn fault(&self) -> Option<String> {
        let outside = |name: &str, value: f64, low: f64, high: f64| {
            (!(low..=high).contains(&value))
                .then(|| format!("{name} = {value} is not in {low}..={high}"))
        };
        outside("rtt_ms", self.rtt_ms, 0.0, 60_000.0)
            .or_else(|| outside("rate_kbps", self.rate_kbps.unwrap_or(1.0), 0.1, 1e7))
            .or_else(|| outside("jitter_ms", self.jitter_ms, 0.0, 60_000.0))
            .or_else(|| outside("duplicate", self.duplicate, 0.0, 1.0))
            .or_else(|| outside("corrupt", self.corrupt, 0.0, 1.0))
            .or_else(|| {
                let every_ms = self.migrate_every_ms.unwrap_or(1_000.0);
                outside("migrate_every_ms", every_ms, 100.0, 1e7)
            })
            .or_else(|| self.channel.fault())
    }
}

/// One packet's arrival at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketArrival {
    /// Time of arrival in µs.
    pub at_us: u64,
    /// If bits were flipped on the way: the draw that selects them.
    pub corrupted: Option<u64>,
}

/// The fate of one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketFate {
    /// Both `None` if it was lost; the second is set if the network duplicated it.
    pub arrivals: [Option<PacketArrival>; 2],
}

/// A link during one session.
#[derive(Debug)]
pub struct LinkState<'a> {
    link: &'a Link,
    schedule: &'a LossSchedule,
    /// Times of path changes in µs, rising.
    migrations_us: Vec<u64>,
    mishaps: Draws,
    directions: [DirectionState; 2],
}

#[derive(Debug, Default, Clone, Copy)]
struct DirectionState {
    busy_until_us: u64,
    /// Number of the path that the queue belongs to: a new path starts with an empty one.
    epoch: usize,
    slot: u64,
    sent_in_slot: u64,
    sent: u64,
    wire_bytes: u64,
    queue_drops: u64,
}

impl<'a> LinkState<'a> {
    /// Creates the link at the start of a session of at most `length_us`.
    pub fn new(link: &'a Link, schedule: &'a LossSchedule, seed: u64, length_us: u64) -> Self {
        let mut migrations_us = Vec::new();
        if let Some(mean_ms) = link.migrate_every_ms {
            let mut stream = Draws::new(seed, "migrations").stream();
            let mut at_us = 0;
            while at_us < length_us {
                at_us += 1 + (stream.exponential(mean_ms) * 1e3) as u64;
                migrations_us.push(at_us);
            }
        }
        Self {
            link,
            schedule,
            migrations_us,
            mishaps: Draws::new(seed, "mishaps"),
            directions: [DirectionState::default(); 2],
        }
    }

    /// Returns the bytes put on the wire in this direction so far, headers included.
    pub fn wire_bytes(&self, direction: Direction) -> u64 {
        self.directions[direction as usize].wire_bytes
    }

    /// Returns the packets put on the wire in this direction so far.
    pub fn packets(&self, direction: Direction) -> u64 {
        self.directions[direction as usize].sent
    }

    /// Returns the packets dropped by the full queue in this direction so far.
    pub fn queue_drops(&self, direction: Direction) -> u64 {
        self.directions[direction as usize].queue_drops
    }

    /// Returns the time of the next path change after `now_us`, if there is one.
    pub fn next_migration_us(&self, now_us: u64) -> Option<u64> {
        self.migrations_us.get(self.epoch(now_us)).copied()
    }

    /// Sends a packet of `payload_bytes` and returns its fate.
    pub fn send(&mut self, now_us: u64, payload_bytes: usize, direction: Direction) -> PacketFate {
        let bytes = (payload_bytes + HEADER_BYTES) as u64;
        let nth = self.directions[direction as usize].count(now_us, bytes);
        let clean = direction == Direction::Up && self.link.acks == AckPath::Clean;
        // A packet occupies the queue even if it is lost later: the bottleneck comes before the
        // lossy part of the path.
        let Some(out_us) = self.queue(now_us, bytes, direction) else {
            return PacketFate::default();
        };
        if !clean && !self.schedule.delivers(now_us, nth, direction) {
            return PacketFate::default();
        }
        // Eight draws for each packet: four for each direction, so that no two decisions share
        // a random number.
        let index = self.directions[direction as usize].sent * 8 + direction as u64 * 4;
        let first = self.arrival(now_us, out_us, index);
        let doubled = self.mishaps.unit(index + 1) < self.link.duplicate;
        let second = doubled.then(|| self.arrival(now_us, out_us, index ^ (1 << 40))).flatten();
        PacketFate { arrivals: [first, second] }
    }

    fn queue(&mut self, now_us: u64, bytes: u64, direction: Direction) -> Option<u64> {
        let Some(rate_kbps) = self.link.rate_kbps else {
            return Some(now_us);
        };
        let epoch = self.epoch(now_us);
        let state = &mut self.directions[direction as usize];
        if state.epoch != epoch {
            // The old path's queue is left behind.
            (state.epoch, state.busy_until_us) = (epoch, now_us);
        }
        let start_us = state.busy_until_us.max(now_us);
        let waiting_bytes = (start_us - now_us) as f64 * rate_kbps / 8e3;
        if waiting_bytes > self.link.queue_bytes as f64 {
            state.queue_drops += 1;
            return None;
        }
        state.busy_until_us = start_us + (bytes as f64 * 8e3 / rate_kbps) as u64;
        Some(state.busy_until_us)
    }

    fn arrival(&self, now_us: u64, out_us: u64, index: u64) -> Option<PacketArrival> {
        let epoch = self.epoch(now_us);
        let jitter_us = self.link.jitter_ms * 1e3 * self.mishaps.unit(index + 2);
        let at_us = out_us + (self.delay_us(epoch) + jitter_us).round() as u64;
        // The path changes while the packet is in flight, so it is lost with the old path.
        let cut_off = self.epoch(at_us) != epoch;
        (!cut_off).then(|| PacketArrival {
            at_us,
            corrupted: (self.mishaps.unit(index + 3) < self.link.corrupt)
                .then(|| self.mishaps.bits(index + 3)),
        })
    }

    fn delay_us(&self, epoch: usize) -> f64 {
        let half_us = self.link.rtt_ms * 500.0;
        match epoch {
            0 => half_us,
            _ => half_us * (0.5 + 1.5 * self.mishaps.unit(epoch as u64 | 1 << 50)),
        }
    }

    /// Returns the number of path changes by `at_us`.
    fn epoch(&self, at_us: u64) -> usize {
        self.migrations_us.partition_point(|&change_us| change_us <= at_us)
    }
}

impl DirectionState {
    /// Counts a packet; returns its index within its slot.
    fn count(&mut self, now_us: u64, bytes: u64) -> u64 {
        let slot = slot(now_us);
        if slot != self.slot {
            self.slot = slot;
            self.sent_in_slot = 0;
        }
        self.sent += 1;
        self.wire_bytes += bytes;
        self.sent_in_slot += 1;
        self.sent_in_slot - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> LossSchedule {
        LossSchedule::new(&Channel::Clean, 1, 60_000_000)
    }

    #[test]
    fn a_rate_limit_serves_packets_one_after_another_and_drops_the_tail() {
        let mut link = Link::new(100.0, Channel::Clean);
        link.rate_kbps = Some(16.0);
        link.queue_bytes = 200;
        let schedule = schedule();
        let mut path = LinkState::new(&link, &schedule, 1, 60_000_000);
        // 40 + 60 bytes take 50 ms at 16 kbit/s, and 50 ms of delay follow.
        let arrivals: Vec<_> = (0..5)
            .map(|_| path.send(0, 40, Direction::Down).arrivals[0].map(|a| a.at_us))
            .collect();
        assert_eq!(arrivals, [Some(100_000), Some(150_000), Some(200_000), None, None]);
    }

    #[test]
    fn a_migration_loses_what_is_in_flight() {
        let mut link = Link::new(400.0, Channel::Clean);
        link.migrate_every_ms = Some(5_000.0);
        let schedule = schedule();
        let mut path = LinkState::new(&link, &schedule, 9, 60_000_000);
        let change_us = path.next_migration_us(0).expect("some change");
        let before = path.send(change_us - 1, 40, Direction::Down);
        assert_eq!(before, PacketFate::default());
        assert_eq!(path.epoch(change_us), 1);
    }
}
