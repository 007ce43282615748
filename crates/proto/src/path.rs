//! What a sender knows about its path: round-trip time, standing queue, runs of losses.
//!
//! Everything comes from acknowledgements (D-5). When the answer moves to another path, a new
//! estimate replaces the old one.

use alloc::collections::VecDeque;

use crate::Micros;
use crate::frame::{ACK_WINDOW, Ack};

/// Packets remembered: those that an acknowledgement can name.
const REMEMBERED: usize = ACK_WINDOW as usize + 11;

/// Round trips that distinguish a standing queue from jitter. With one, a path with 80 ms of jitter
/// looked congested at every second sample; more than two react too late on a link of 16 kbit/s.
const RECENT: usize = 2;

/// Packets this far below the largest acknowledged may still be in flight (reordering,
/// RFC 9002 §6.1.1).
const REORDER_PACKETS: u64 = 3;

/// Round-trip estimates (RFC 6298 with RFC 9002's variance), without the receiver's hold.
#[derive(Debug, Clone)]
pub struct Rtt {
    smoothed: Micros,
    variance: Micros,
    /// The latest, newest first.
    recent: [Micros; RECENT],
    min: Micros,
    /// As `min`, but never forgotten.
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

    /// Forgets the least round trip: the path itself has become longer, and what looked like a
    /// queue does not count.
    pub fn forget_min(&mut self) {
        self.min = self.least_recent();
    }

    /// Smoothed round-trip time (RFC 6298, weight 1/8).
    pub const fn smoothed(&self) -> Micros {
        self.smoothed
    }

    /// When an acknowledgement is overdue after sending: `srtt + max(4 var, 10 ms)`.
    pub fn overdue_after(&self) -> Micros {
        self.smoothed + self.variance.times(4).max(Micros::from_ms(10))
    }

    /// Delay of the queue: the least of the latest round trips minus the least of all. Several are
    /// compared because jitter delays some packets, a standing queue all of them. The least is not
    /// forgotten with time: a queue that never drained would become the new normal and grow on.
    pub fn queue(&self) -> Micros {
        self.least_recent().since(self.min)
    }

    /// How much longer the latest round trips took than the least of all on this path, forgotten
    /// or not. A queue that others keep full looks like a longer path, and only this tells.
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
    /// With all headers.
    wire_bytes: u64,
    arrived: bool,
}

/// What became of the packets that an acknowledgement can still name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentPackets {
    /// Lost, in thousandths of those whose fate is known.
    pub lost_per_mille: u64,
    /// Mean size with all headers.
    pub mean_wire_bytes: u64,
}

/// Fates below this number say nothing about the path. Chosen by hand: one burst of losses at the
/// start of an answer is not a tenth of what follows.
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
    /// Creates the estimate of a path whose first packet is `first_packet`; `initial_rtt` counts
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

    /// Notes that packet `number` left at `at`, with `wire_bytes` of it and all headers.
    pub fn on_sent(&mut self, number: u64, at: Micros, wire_bytes: u64) {
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(SentPacket { number, at, wire_bytes, arrived: false });
    }

    /// What became of recent packets; `None` while too few fates are known.
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

    /// Takes in an acknowledgement that arrived at `now`; returns whether it measured a round trip.
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

    /// When an acknowledgement last named a packet of this path that none had named before.
    pub const fn last_arrival(&self) -> Option<Micros> {
        self.arrival_seen
    }

    /// When the last loss run ended that was long enough to be a burst.
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

/// What counts as a burst of losses: independent losses seldom look like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Consecutive losses whose packets left over at least this time…
    pub span: Micros,
    /// …or at least this many consecutive losses.
    pub packets: u32,
}
