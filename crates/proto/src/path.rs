//! A sender's estimates of its path: round-trip time, standing queue, runs of losses.
//!
//! All estimates come from acknowledgements (D-5). When the answer moves to another path, a new
//! estimate replaces the old one.

use alloc::collections::VecDeque;

use crate::Micros;
use crate::frame::{ACK_WINDOW, Ack};

/// Number of packets remembered: those that an acknowledgement can name.
const REMEMBERED: usize = ACK_WINDOW as usize + 11;

/// Number of round trips that distinguish a standing queue from jitter. With one, a path with 80 ms
/// of jitter looked congested at every second sample; more than two react too late on a 16 kbit/s
/// link.
const RECENT: usize = 2;

/// Packets this far below the largest acknowledged may still be in flight (reordering,
/// RFC 9002 §6.1.1).
const REORDER_PACKETS: u64 = 3;

/// Round-trip estimates (RFC 6298 with RFC 9002's variance), without the receiver's hold.
#[derive(Debug, Clone)]
pub struct Rtt {
    smoothed: Micros,
    variance: Micros,
    /// Latest samples, newest first.
    recent: [Micros; RECENT],
    min: Micros,
    /// Like `min`, but never forgotten.
    least_ever: Micros,
    sampled: bool,
}

impl Rtt {
    fn new(initial: Micros) -> Self {
        Self {
            smoothed: initial,
            variance: Micros(initial.0 / 4),
            recent: [initial; RECENT],
            min: initial,
            least_ever: initial,
            sampled: false,
        }
    }

    fn sample(&mut self, rtt: Micros) {
        if !self.sampled {
            *self = Self { sampled: true, ..Self::new(rtt) };
            return;
        }
        let difference = self.smoothed.0.abs_diff(rtt.0);
        self.variance = Micros((3 * self.variance.0 + difference) / 4);
        self.smoothed = Micros((7 * self.smoothed.0 + rtt.0) / 8);
        self.recent.rotate_right(1);
        self.recent[0] = rtt;
        self.min = self.min.min(rtt);
        self.least_ever = self.least_ever.min(rtt);
    }

    /// Forgets the shortest round trip: the path itself has become longer, and the apparent queue
    /// does not count.
    pub fn forget_min(&mut self) {
        self.min = self.least_recent();
    }

    /// Smoothed round-trip time (RFC 6298, weight 1/8).
    pub const fn smoothed(&self) -> Micros {
        self.smoothed
    }

    /// Time after sending at which an acknowledgement is overdue: `srtt + max(4 var, 10 ms)`.
    pub fn overdue_after(&self) -> Micros {
        self.smoothed + self.variance.times(4).max(Micros::from_ms(10))
    }

    /// Queueing delay: the shortest of the latest round trips minus the shortest of all. Several
    /// are compared because jitter delays some packets, a standing queue all of them. The minimum
    /// does not expire: a queue that never drained would become the new normal and keep growing.
    pub fn queue(&self) -> Micros {
        self.least_recent().since(self.min)
    }

    /// Difference between the latest round trips and the shortest ever on this path, forgotten or
    /// not. Only this reveals a queue that others keep full, which otherwise looks like a longer
    /// path.
    pub fn excess(&self) -> Micros {
        self.least_recent().since(self.least_ever)
    }

    fn least_recent(&self) -> Micros {
        self.recent.into_iter().fold(Micros::MAX, Micros::min)
    }
}

#[derive(Debug, Clone, Copy)]
struct SentPacket {
    number: u64,
    at: Micros,
    /// Bytes including all headers.
    wire_bytes: u64,
    arrived: bool,
}

/// Fates of the packets that an acknowledgement can still name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentPackets {
    /// Lost packets, per mille of those whose fate is known.
    pub lost_per_mille: u64,
    /// Mean size with all headers.
    pub mean_wire_bytes: u64,
}

/// Minimum number of known fates for a statement about the path. Chosen by hand, so that one burst
/// of losses at the start of an answer does not count as a lasting loss rate.
const TELLING_PACKETS: u64 = 16;

/// The estimates of one path, from its recent packets and their acknowledgements.
#[derive(Debug, Clone)]
pub struct PathEstimate {
    /// Round-trip estimates.
    pub rtt: Rtt,
    sent: VecDeque<SentPacket>,
    first_packet: u64,
    largest_acked: Option<u64>,
    run_seen: Option<Micros>,
    arrival_seen: Option<Micros>,
}

impl PathEstimate {
    /// Creates the estimate of a path whose first packet is `first_packet`; `initial_rtt` applies
    /// until a round trip is measured.
    pub fn new(first_packet: u64, initial_rtt: Micros) -> Self {
        Self {
            rtt: Rtt::new(initial_rtt),
            sent: VecDeque::new(),
            first_packet,
            largest_acked: None,
            run_seen: None,
            arrival_seen: None,
        }
    }

    /// Notes that packet `number` was sent at `at`, with `wire_bytes` including all headers.
    pub fn on_sent(&mut self, number: u64, at: Micros, wire_bytes: u64) {
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(SentPacket { number, at, wire_bytes, arrived: false });
    }

    /// Fates of recent packets; `None` while too few are known.
    pub fn recent_packets(&self) -> Option<RecentPackets> {
        let largest = self.largest_acked?;
        let (mut known, mut lost, mut bytes) = (0, 0, 0);
        for packet in self.sent.iter().filter(|p| p.number + REORDER_PACKETS <= largest) {
            known += 1;
            lost += u64::from(!packet.arrived);
            bytes += packet.wire_bytes;
        }
        let is_telling = known >= TELLING_PACKETS;
        is_telling.then(|| RecentPackets {
            lost_per_mille: 1000 * lost / known,
            mean_wire_bytes: bytes / known,
        })
    }

    /// Processes an acknowledgement that arrived at `now`; returns true if it measured a round
    /// trip.
    pub fn on_ack(&mut self, now: Micros, ack: &Ack, burst: &Burst) -> bool {
        let Some(largest) = ack.largest.filter(|n| *n >= self.first_packet) else {
            return false;
        };
        for packet in &mut self.sent {
            if !packet.arrived && ack.has_packet(packet.number) == Some(true) {
                packet.arrived = true;
                self.arrival_seen = Some(now);
            }
        }
        self.look_for_runs(largest, burst);
        if self.largest_acked.is_some_and(|before| largest <= before) {
            return false;
        }
        self.largest_acked = Some(largest);
        let packet = self.sent.iter().find(|packet| packet.number == largest);
        // Only the largest packet gives a sample: the receiver's hold is known for it alone.
        let rtt = packet.map(|packet| now.since(packet.at).since(ack.hold));
        rtt.inspect(|rtt| self.rtt.sample(*rtt)).is_some()
    }

    /// When an acknowledgement last named a packet of this path for the first time.
    pub const fn last_arrival(&self) -> Option<Micros> {
        self.arrival_seen
    }

    /// When the last loss run that was long enough for a burst ended.
    pub const fn last_burst(&self) -> Option<Micros> {
        self.run_seen
    }

    fn look_for_runs(&mut self, largest: u64, burst: &Burst) {
        let (mut first, mut lost) = (Micros::ZERO, 0);
        for packet in self.sent.iter().filter(|p| p.number + REORDER_PACKETS <= largest) {
            if packet.arrived {
                lost = 0;
                continue;
            }
            if lost == 0 {
                first = packet.at;
            }
            lost += 1;
            if lost >= burst.packets || (lost > 1 && packet.at.since(first) >= burst.span) {
                self.run_seen = self.run_seen.max(Some(packet.at));
            }
        }
    }
}

/// Definition of a burst of losses: independent losses seldom look like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Consecutive losses of packets sent over at least this time…
    pub span: Micros,
    /// …or at least this many consecutive losses.
    pub packets: u32,
}
