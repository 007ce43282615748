//! A sender's estimates of its path: round-trip time, standing queue, runs of losses.
//!
//! All estimates come from acknowledgements (D-5). When the answer moves to another path, a new
//! estimate replaces the old one.

use alloc::collections::VecDeque;

use crate::Micros;
use crate::frame::{ACK_WINDOW, Ack};
use crate::link_time::LinkTime;

/// Number of packets remembered: those that an acknowledgement can name.
const REMEMBERED: usize = ACK_WINDOW as usize + 11;

/// Number of round trips that distinguish a standing queue from jitter. With one, a path with 80 ms
/// of jitter looked congested at every second sample; more than two react too late on a 16 kbit/s
/// link.
const RECENT: usize = 2;

/// The same on a path that reorders packets. A queue cannot do that, so round trips vary by jitter
/// there, and only the shortest of several tells how long the queue is. With 12, stalls with 80 ms
/// of jitter were another 7 % fewer; on a link of 24 kbit/s with 40 ms of it, text came later.
const RECENT_REORDERED: usize = 8;

/// Packets this far below the largest acknowledged may still be in flight (reordering,
/// RFC 9002 §6.1.1).
const REORDER_PACKETS: u64 = 3;

/// Round-trip estimates (RFC 6298 with RFC 9002's variance), without the receiver's hold.
#[derive(Debug, Clone)]
pub struct Rtt {
    smoothed: Micros,
    variance: Micros,
    /// Latest samples, newest first.
    recent: [Micros; RECENT_REORDERED],
    /// A recent packet arrived after a later one.
    is_reordering: bool,
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
            recent: [initial; RECENT_REORDERED],
            is_reordering: false,
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
        let telling = if self.is_reordering { RECENT_REORDERED } else { RECENT };
        self.recent[..telling].iter().copied().fold(Micros::MAX, Micros::min)
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

impl SentPacket {
    /// Returns true if the packet has arrived or is lost, once `largest` was acknowledged.
    const fn has_fate(&self, largest: u64) -> bool {
        self.number + REORDER_PACKETS <= largest
    }
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

/// Weight of the latest lost packet in [`PathEstimate::repeated_loss`] is one part of this. With 8,
/// independent losses of 30 % passed for runs now and then; with 32, runs were known later, at up
/// to 6 % more bytes (`plans/channels.toml`).
const REPEATED_LOSS_MEMORY: u32 = 16;

/// The estimates of one path, from its recent packets and their acknowledgements.
#[derive(Debug, Clone)]
pub struct PathEstimate {
    /// Round-trip estimates.
    pub rtt: Rtt,
    /// Time that the narrowest link takes for a packet, if its queue has filled.
    pub link: LinkTime,
    sent: VecDeque<SentPacket>,
    /// Bytes of all packets, including all headers.
    sent_bytes: u64,
    first_packet: u64,
    largest_acked: Option<u64>,
    /// Latest packet that arrived after a later one.
    reordered: Option<u64>,
    run_seen: Option<Micros>,
    /// Packets below this number are counted in `repeated_loss`.
    judged: u64,
    /// Packets that were lost behind a lost one, per mille of all behind a lost one; smoothed.
    repeated_loss: u32,
    arrival_seen: Option<Micros>,
}

impl PathEstimate {
    /// Creates the estimate of a path whose first packet is `first_packet`; `initial_rtt` applies
    /// until a round trip is measured.
    pub fn new(first_packet: u64, initial_rtt: Micros) -> Self {
        Self {
            rtt: Rtt::new(initial_rtt),
            link: LinkTime::default(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            first_packet,
            largest_acked: None,
            reordered: None,
            run_seen: None,
            judged: first_packet,
            repeated_loss: 0,
            arrival_seen: None,
        }
    }

    /// Notes that packet `number` was sent at `at`, with `wire_bytes` including all headers.
    pub fn on_sent(&mut self, number: u64, at: Micros, wire_bytes: u64) {
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(SentPacket { number, at, wire_bytes, arrived: false });
        self.sent_bytes += wire_bytes;
    }

    /// Bytes that were sent, including all headers, as long as nothing has been acknowledged; then
    /// 0.
    pub const fn unanswered_bytes(&self) -> u64 {
        if self.arrival_seen.is_none() { self.sent_bytes } else { 0 }
    }

    /// Bytes of the latest packet, including all headers.
    pub fn last_wire_bytes(&self) -> u64 {
        self.sent.back().map_or(0, |packet| packet.wire_bytes)
    }

    /// Fates of recent packets; `None` while too few are known.
    pub fn recent_packets(&self) -> Option<RecentPackets> {
        let largest = self.largest_acked?;
        let (mut known, mut lost, mut bytes) = (0, 0, 0);
        for packet in self.sent.iter().filter(|packet| packet.has_fate(largest)) {
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
        self.note_arrivals(now, largest, ack);
        self.look_for_runs(largest, burst);
        self.judge_losses(largest);
        if self.largest_acked.is_some_and(|before| largest <= before) {
            return false;
        }
        let before = self.largest_acked.replace(largest);
        let packet = self.sent.iter().find(|packet| packet.number == largest);
        // Only the largest packet gives a sample: the receiver's hold is known for it alone.
        let Some(rtt) = packet.map(|packet| now.since(packet.at).since(ack.hold)) else {
            return false;
        };
        self.rtt.sample(rtt);
        if self.rtt.is_reordering {
            self.link.forget();
        } else {
            self.link.on_round_trip(now.since(ack.hold), rtt, self.carried_bytes(before));
        }
        true
    }

    /// Bytes of the packets behind packet `before`, up to the largest acknowledged. Lost ones
    /// count: most are lost behind the narrowest link, which took its time for them.
    fn carried_bytes(&self, before: Option<u64>) -> u64 {
        let is_carried = |number| Some(number) > before && Some(number) <= self.largest_acked;
        let carried = self.sent.iter().filter(|packet| is_carried(packet.number));
        carried.map(|packet| packet.wire_bytes).sum()
    }

    /// Notes which packets have arrived, and whether any of them was overtaken: an acknowledgement
    /// of a later packet had not named it.
    fn note_arrivals(&mut self, now: Micros, largest: u64, ack: &Ack) {
        for packet in &mut self.sent {
            if packet.arrived || ack.has_packet(packet.number) != Some(true) {
                continue;
            }
            packet.arrived = true;
            self.arrival_seen = Some(now);
            if self.largest_acked.is_some_and(|before| packet.number < before) {
                self.reordered = self.reordered.max(Some(packet.number));
            }
        }
        // As long as an acknowledgement can name it: what was so earlier may have changed.
        let is_recent = |late| late + u64::from(ACK_WINDOW) > largest;
        self.rtt.is_reordering = self.reordered.is_some_and(is_recent);
    }

    /// When an acknowledgement last named a packet of this path for the first time.
    pub const fn last_arrival(&self) -> Option<Micros> {
        self.arrival_seen
    }

    /// When the last loss run that was long enough for a burst ended.
    pub const fn last_burst(&self) -> Option<Micros> {
        self.run_seen
    }

    /// Returns true if most packets behind a lost one are lost too. A packet soon after a lost one
    /// then saves little, and a packet helps most once a loss is known. On a path that reorders,
    /// several copies arrive sooner than one, whatever it loses.
    pub const fn loses_in_runs(&self) -> bool {
        self.repeated_loss > 500 && !self.rtt.is_reordering
    }

    /// Counts the packets behind lost ones whose fate is known now.
    fn judge_losses(&mut self, largest: u64) {
        for (before, packet) in self.sent.iter().zip(self.sent.iter().skip(1)) {
            if packet.number < self.judged || !packet.has_fate(largest) || before.arrived {
                continue;
            }
            let lost = if packet.arrived { 0 } else { 1000 };
            let weighted = (REPEATED_LOSS_MEMORY - 1) * self.repeated_loss + lost;
            self.repeated_loss = weighted / REPEATED_LOSS_MEMORY;
        }
        self.judged = self.judged.max((largest + 1).saturating_sub(REORDER_PACKETS));
    }

    fn look_for_runs(&mut self, largest: u64, burst: &Burst) {
        let (mut first, mut lost) = (Micros::ZERO, 0);
        for packet in self.sent.iter().filter(|packet| packet.has_fate(largest)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Burst = Burst { span: Micros::from_ms(60), packets: 4 };

    /// An acknowledgement of all packets up to `largest` but those in `missing`.
    fn ack(largest: u64, missing: &[u64]) -> Ack {
        let bit = |number: &u64| 1 << (largest - 1 - number);
        Ack {
            largest: Some(largest),
            missing: missing.iter().map(bit).fold(0, |all, bit| all | bit),
            ..Ack::default()
        }
    }

    /// A path whose packets were sent 20 ms apart, and whose round trips are 100 ms at first.
    fn path() -> PathEstimate {
        let mut path = PathEstimate::new(0, Micros::from_ms(100));
        for number in 0..60 {
            path.on_sent(number, Micros::from_ms(number * 20), 100);
        }
        assert!(path.on_ack(Micros::from_ms(100), &ack(0, &[]), &BURST));
        path
    }

    /// Notes that each packet from 1 to `last` but `missing` was acknowledged after `rtt_ms`.
    fn later(path: &mut PathEstimate, last: u64, rtt_ms: u64, missing: Option<u64>) {
        for number in (1..=last).filter(|number| Some(*number) != missing) {
            let known = missing.filter(|missing| *missing < number);
            let at = Micros::from_ms(number * 20 + rtt_ms);
            path.on_ack(at, &ack(number, known.as_slice()), &BURST);
        }
    }

    #[test]
    fn two_long_round_trips_are_a_queue() {
        let mut path = path();
        later(&mut path, 2, 180, None);
        assert_eq!(path.rtt.queue(), Micros::from_ms(80));
    }

    #[test]
    fn on_a_path_that_reorders_a_queue_delays_all_of_several_packets() {
        let mut path = path();
        later(&mut path, 4, 180, Some(3));
        assert_eq!(path.rtt.queue(), Micros::from_ms(80), "packet 3 may be lost");
        // The fifth acknowledgement names it: it came after packet 4.
        path.on_ack(Micros::from_ms(280), &ack(5, &[]), &BURST);
        assert_eq!(path.rtt.queue(), Micros::ZERO, "the first round trip was short");
        for number in 6..13 {
            path.on_ack(Micros::from_ms(number * 20 + 180), &ack(number, &[]), &BURST);
        }
        assert_eq!(path.rtt.queue(), Micros::from_ms(80), "eight packets were delayed");
    }

    #[test]
    fn losses_come_in_runs_if_most_packets_behind_a_lost_one_are_lost_too() {
        let lose = |lost: fn(u64) -> bool| {
            let mut path = PathEstimate::new(0, Micros::from_ms(100));
            for number in 0..200 {
                path.on_sent(number, Micros::from_ms(number * 20), 100);
                if number % 4 == 3 {
                    let missing: Vec<u64> = (number.saturating_sub(u64::from(ACK_WINDOW))..number)
                        .filter(|n| lost(*n))
                        .collect();
                    let at = Micros::from_ms(number * 20 + 100);
                    path.on_ack(at, &ack(number, &missing), &BURST);
                }
            }
            path.loses_in_runs()
        };
        assert!(lose(|number| number % 20 > 12), "seven in a row");
        assert!(!lose(|number| number % 2 == 0), "every other one");
        assert!(!lose(|number| number % 20 < 2), "two in a row: one of two");
        assert!(!lose(|_| false));
    }

    #[test]
    fn bytes_of_lost_packets_count_as_carried() {
        let mut path = path();
        path.on_ack(Micros::from_ms(160), &ack(3, &[1, 2]), &BURST);
        assert_eq!(path.carried_bytes(Some(0)), 300);
    }

    #[test]
    fn reordering_of_long_ago_does_not_count() {
        let mut path = path();
        later(&mut path, 2, 100, Some(1));
        path.on_ack(Micros::from_ms(165), &ack(3, &[]), &BURST);
        assert!(path.rtt.is_reordering);
        for number in 4..60 {
            path.on_ack(Micros::from_ms(number * 20 + 100), &ack(number, &[]), &BURST);
        }
        assert!(!path.rtt.is_reordering);
    }
}
