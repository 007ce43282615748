//! A minimum gap between packets that keeps a thin link from being flooded.
//!
//! It is delay-based: while round trips show a standing queue the gap grows, while they show none
//! it shrinks, at most once per round trip. It starts at 50 ms, because nothing is known about the
//! path before the first round trip. `plans/narrow-links.toml` shows
//! what it prevents.

use crate::Micros;

/// The minimum gap between an answer's packets, and what it follows.
#[derive(Debug, Clone)]
pub struct SendPacer {
    gap: Micros,
    changed: Micros,
    /// Since when the gap has been [`Self::MOST`], and the queue at that time.
    slow_since: Option<(Micros, Micros)>,
    /// A queue was seen on this path: the gap shrinks more slowly from then on.
    has_queued: bool,
    queue_max: Micros,
}

impl SendPacer {
    /// Longest gap. A packet now and then keeps the round-trip estimates alive.
    pub const MOST: Micros = Micros::from_ms(400);
    /// Shortest gap: that of repetitions on the shortest round trips.
    pub const LEAST: Micros = Micros::from_ms(5);
    /// How long a queue may stay as it is at the longest gap before the path itself counts as
    /// longer. Chosen by hand: a shorter time mistakes a slowly draining queue for a longer path, a
    /// longer one leaves a path that did become longer with few packets.
    pub const PATIENCE: Micros = Micros::from_ms(10_000);
    /// Gap until the first round trips are measured.
    pub const START: Micros = Micros::from_ms(50);

    /// Creates the pacer of a path that begins at `now`. A queue of up to `queue_max` never counts
    /// as standing, because jitter looks the same.
    pub const fn new(now: Micros, queue_max: Micros) -> Self {
        Self { gap: Self::START, changed: now, slow_since: None, has_queued: false, queue_max }
    }

    /// A round trip was measured: `queue` of it was spent in queues.
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

    /// Whether the path itself has become longer: the queue did not shrink although packets have
    /// left at the longest gap for [`Self::PATIENCE`], so that this answer cannot have built it.
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

    /// Whether a queue of this length does not drain from one packet to the next. On a thin link a
    /// packet is its own queue while it is being sent; that does no harm.
    pub fn is_standing(&self, queue: Micros) -> bool {
        queue > self.gap.max(self.queue_max)
    }

    /// Minimum gap between packets.
    pub const fn gap(&self) -> Micros {
        self.gap
    }
}
