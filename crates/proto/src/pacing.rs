//! A minimum gap between packets that keeps a thin link from being flooded.
//!
//! It is delay-based: the gap grows while round trips show a standing queue and shrinks while they
//! show none, at most once per round trip. It starts at 50 ms, because nothing is known about the
//! path before the first round trip. `plans/narrow-links.toml` shows what it prevents.
//!
//! Delay reveals nothing when others keep a queue full: it neither grows nor shrinks, whatever this
//! stream does. Losses do. On a path that has been faster, the gap is also at least the one at
//! which TCP would send as many bytes (`friendly_gap`); `bench/fairness.sh` shows how much it
//! leaves to downloads.

use crate::Micros;
use crate::path::RecentPackets;

/// Round trip above which losses count as signs of congestion, even if the path has never been
/// faster. Satellite paths stay below it: with 600 ms, sessions on long, lossy paths without any
/// queue took minutes in `plans/campaign.toml`.
const LONG_ROUND_TRIP: Micros = Micros::from_ms(1_000);
/// Bytes of a TCP packet.
const FULL_PACKET_BYTES: u64 = 1_500;
/// Round trips per packet of a TCP flow in thousandths, for shares of losses in per mille: the
/// inverse of RFC 5348's equation (section 3.1) with `t_RTO = 4 R` and `b = 1`, in units of R.
const ROUND_TRIPS_PER_PACKET: [(u64, u64); 11] = [
    (0, 0),
    (10, 89),
    (20, 136),
    (50, 271),
    (100, 565),
    (150, 1_050),
    (200, 1_860),
    (250, 3_160),
    (300, 5_130),
    (400, 11_900),
    (500, 24_000),
];

/// Returns the gap at which packets of this size use as much as a TCP flow with the same losses and
/// round trips would.
fn friendly_gap(rtt: Micros, packets: RecentPackets) -> Micros {
    let bytes = packets.mean_wire_bytes.min(FULL_PACKET_BYTES);
    let round_trips = round_trips_per_packet(packets.lost_per_mille);
    Micros(rtt.0 * round_trips / 1_000 * bytes / FULL_PACKET_BYTES)
}

/// [`ROUND_TRIPS_PER_PACKET`], linearly interpolated.
fn round_trips_per_packet(lost_per_mille: u64) -> u64 {
    let points = ROUND_TRIPS_PER_PACKET;
    let above = points.partition_point(|(lost, _)| *lost < lost_per_mille);
    let Some(&(to, high)) = points.get(above) else {
        return points[points.len() - 1].1;
    };
    let Some(&(from, low)) = above.checked_sub(1).map(|below| &points[below]) else {
        return high;
    };
    low + (high - low) * (lost_per_mille - from) / (to - from)
}

/// Minimum gap between an answer's packets, and the measurements that determine it.
#[derive(Debug, Clone)]
pub struct SendPacer {
    gap: Micros,
    changed: Micros,
    /// When the gap reached [`Self::MOST`], and the queue at that time.
    slow_since: Option<(Micros, Micros)>,
    /// A queue was seen on this path: the gap shrinks more slowly from then on.
    has_queued: bool,
    /// Gap that TCP would keep between packets, if losses are a sign of congestion.
    friendly: Micros,
    queue_max: Micros,
}

impl SendPacer {
    /// Maximum gap. An occasional packet keeps the round-trip estimates current.
    pub const MOST: Micros = Micros::from_ms(400);
    /// Minimum gap: that of repetitions on the shortest round trips.
    pub const LEAST: Micros = Micros::from_ms(5);
    /// Time that a queue may stay unchanged at the longest gap before the path itself counts as
    /// longer. Chosen by hand: a shorter time mistakes a slowly draining queue for a longer path; a
    /// longer one leaves a path that did become longer with few packets.
    pub const PATIENCE: Micros = Micros::from_ms(10_000);
    /// TCP-friendly gap from which on repetitions are held back as in a queue of this stream's own.
    /// Chosen by hand: the usual time between two tokens.
    pub const CROWDED: Micros = Micros::from_ms(100);
    /// Gap until the first round trips are measured.
    pub const START: Micros = Micros::from_ms(50);

    /// Creates the pacer of a path that begins at `now`. A queue of up to `queue_max` never counts
    /// as standing, because jitter looks the same.
    pub const fn new(now: Micros, queue_max: Micros) -> Self {
        Self {
            gap: Self::START,
            changed: now,
            slow_since: None,
            has_queued: false,
            friendly: Micros::ZERO,
            queue_max,
        }
    }

    /// Notes a measured round trip, of which `queue` was spent in queues.
    pub fn on_round_trip(&mut self, now: Micros, rtt: Micros, queue: Micros) {
        if now.since(self.changed) < rtt {
            return; // the effect of the last change is not visible yet
        }
        if self.is_standing(queue) {
            // In proportion to a long queue: it has grown for a round trip unseen.
            self.gap = Micros((self.gap.0 * 3 / 2).max(queue.0 / 4)).min(Self::MOST);
            self.has_queued = true;
        } else if !self.is_standing(queue.times(2)) {
            // Fast until the first queue, since the start is cautious; then in small steps, or the
            // gap would swing between queue and no queue.
            let percent = if self.has_queued { 85 } else { 70 };
            self.gap = Micros(self.gap.0 * percent / 100).max(Self::LEAST);
        } else {
            return;
        }
        self.changed = now;
        let slow = self.gap == Self::MOST;
        self.slow_since = slow.then(|| self.slow_since.unwrap_or((now, queue)));
    }

    /// Notes a measured round trip of `rtt`, which took `excess` longer than the shortest ever;
    /// `packets` are the recent losses, if known.
    pub fn on_fates(&mut self, rtt: Micros, excess: Micros, packets: Option<RecentPackets>) {
        // Without a queue losses are noise, which must not slow a stream on a lossy path.
        let may_be_queue = excess > self.queue_max || rtt > LONG_ROUND_TRIP;
        self.friendly = match packets {
            Some(packets) if may_be_queue => friendly_gap(rtt, packets),
            // Nearly always a queue, which this path may have begun behind.
            None if rtt > LONG_ROUND_TRIP => Self::CROWDED,
            _ => Micros::ZERO,
        };
    }

    /// Returns true if this stream must wait because of a queue that others keep full.
    pub fn is_crowded(&self) -> bool {
        self.friendly >= Self::CROWDED
    }

    /// Returns true if the path itself has become longer: the queue did not shrink although packets
    /// have been sent at the longest gap for [`Self::PATIENCE`], so this answer cannot have caused
    /// it.
    pub fn is_mistaken(&mut self, now: Micros, rtt: Micros, queue: Micros) -> bool {
        let Some((since, before)) = self.slow_since else {
            return false;
        };
        // A queue shows its length a round trip late, which includes the queue itself.
        if now.since(since) < Self::PATIENCE.max(rtt.times(4)) {
            return false;
        }
        self.slow_since = Some((now, queue));
        queue.0 >= before.0 / 10 * 9
    }

    /// Returns true if a queue of this length does not drain between two packets. On a thin link a
    /// packet is its own queue while it is being sent; that does no harm.
    pub fn is_standing(&self, queue: Micros) -> bool {
        queue > self.gap.max(self.queue_max)
    }

    /// Minimum gap between packets.
    pub fn gap(&self) -> Micros {
        self.gap.max(self.friendly.min(Self::MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Micros {
        Micros::from_ms(ms)
    }

    fn lost(percent: u64) -> Option<RecentPackets> {
        Some(RecentPackets { lost_per_mille: 10 * percent, mean_wire_bytes: 150 })
    }

    /// Returns a pacer at its minimum gap, after round trips without a queue.
    fn fast() -> SendPacer {
        let mut pacer = SendPacer::new(ms(0), ms(30));
        (1..20).for_each(|i| pacer.on_round_trip(ms(100 * i), ms(100), ms(0)));
        assert_eq!(pacer.gap(), SendPacer::LEAST);
        pacer
    }

    #[test]
    fn the_equation_of_tcp_is_linear_between_its_points_and_flat_beyond() {
        assert_eq!([0, 10, 75, 500, 900].map(round_trips_per_packet), [0, 89, 418, 24_000, 24_000]);
        let rising: alloc::vec::Vec<_> = (0..=1_000).map(round_trips_per_packet).collect();
        assert!(rising.is_sorted());
    }

    #[test]
    fn losses_in_a_queue_that_others_keep_full_slow_the_stream_as_they_would_tcp() {
        let mut pacer = fast();
        // The queue is forgotten, so the delay says nothing; a quarter of the packets is lost. Ten
        // packets of 150 bytes are one of TCP's, which takes 3.16 round trips.
        pacer.on_fates(ms(1_200), ms(1_100), lost(25));
        assert_eq!(pacer.gap(), Micros(379_200));
        assert!(pacer.is_crowded());
        pacer.on_fates(ms(1_200), ms(1_100), lost(50));
        assert_eq!(pacer.gap(), SendPacer::MOST);
        // At a sixth of the round trip text may leave as it comes.
        pacer.on_fates(ms(200), ms(100), lost(25));
        assert_eq!(pacer.gap(), Micros(63_200));
        assert!(!pacer.is_crowded());
    }

    #[test]
    fn a_stream_that_begins_in_a_full_queue_is_slowed_too() {
        let mut pacer = fast();
        pacer.on_fates(ms(1_200), ms(0), lost(25));
        assert!(pacer.is_crowded());
    }

    #[test]
    fn a_round_trip_above_a_second_is_a_queue_until_losses_tell() {
        let mut pacer = fast();
        pacer.on_fates(ms(1_001), ms(0), None);
        assert!(pacer.is_crowded());
        pacer.on_fates(ms(1_001), ms(0), lost(1));
        assert!(!pacer.is_crowded());
    }

    #[test]
    fn losses_without_a_queue_are_noise() {
        let mut pacer = fast();
        for (rtt, excess, packets) in
            [(400, 0, lost(50)), (100, 30, lost(50)), (1_200, 1_100, lost(0)), (900, 800, None)]
        {
            pacer.on_fates(ms(1_200), ms(1_100), lost(50));
            pacer.on_fates(ms(rtt), ms(excess), packets);
            assert_eq!(pacer.gap(), SendPacer::LEAST, "round trip {rtt} ms, {excess} ms longer");
        }
    }
}
