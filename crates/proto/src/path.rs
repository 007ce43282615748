//! What a sender knows of its path: round-trip time, standing queue, loss runs.
//!
//! Everything comes from acknowledgements (D-5). A path is replaced as a whole when the
//! stream moves to another one.

use alloc::collections::VecDeque;

use crate::Micros;
use crate::frame::{ACK_WINDOW, Ack};

/// Packets remembered: those that an acknowledgement can name.
const REMEMBERED: usize = ACK_WINDOW as usize + 11;

/// Round trips that tell a standing queue from jitter.
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
    sampled: bool,
}

impl Rtt {
    fn new(initial: Micros) -> Self {
        Self {
            smoothed: initial,
            variance: Micros(initial.0 / 4),
            recent: [initial; RECENT],
            min: initial,
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
    }

    /// The path itself has become longer: what looked like a queue is not one.
    pub fn forget_min(&mut self) {
        self.min = self.least_recent();
    }

    /// Smoothed round-trip time.
    pub const fn smoothed(&self) -> Micros {
        self.smoothed
    }

    /// When an acknowledgement is overdue after sending: `srtt + max(4 var, 10 ms)`.
    pub fn overdue_after(&self) -> Micros {
        self.smoothed + self.variance.times(4).max(Micros::from_ms(10))
    }

    /// Delay of the queue: the least of the latest round trips over the least of all. Of
    /// several, since jitter delays some packets and a standing queue all of them. The
    /// least is not forgotten with time, or a queue that never drains would hide itself.
    pub fn queue(&self) -> Micros {
        self.least_recent().since(self.min)
    }

    fn least_recent(&self) -> Micros {
        self.recent.into_iter().fold(Micros::MAX, Micros::min)
    }
}

#[derive(Debug, Clone, Copy)]
struct SentPacket {
    number: u64,
    at: Micros,
    arrived: bool,
}

/// A path's estimates and its recent packets.
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
    /// A path on which packets from `first_packet` on travel; `initial_rtt` until one is
    /// measured.
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

    /// A packet leaves.
    pub fn on_sent(&mut self, number: u64, at: Micros) {
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(SentPacket { number, at, arrived: false });
    }

    /// An acknowledgement arrives at `now`; returns whether it measured a round trip.
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

/// What counts as a burst of losses, rather than as chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Consecutive losses over at least this time…
    pub span: Micros,
    /// …or at least this many.
    pub packets: u32,
}
