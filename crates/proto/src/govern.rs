//! A floor under the gap between packets, so that a thin link is not buried.
//!
//! Delay-based, like the queue guard, but it remembers: while round trips show a standing
//! queue the floor rises, while they show none it sinks, once per round trip each. It
//! starts high, since nothing is known of the path before the first round trip.

use crate::Micros;

/// The floor and its bounds.
#[derive(Debug, Clone)]
pub struct Governor {
    gap: Micros,
    changed: Micros,
    queue_max: Micros,
}

impl Governor {
    /// Never slower than this: a packet now and then keeps the estimates alive.
    pub const MOST: Micros = Micros::from_ms(400);
    /// Never faster.
    pub const LEAST: Micros = Micros::from_ms(5);
    /// Before anything is known.
    pub const START: Micros = Micros::from_ms(50);

    /// A governor for a path that begins at `now`. A queue of up to `queue_max` is never
    /// held against it: jitter looks the same.
    pub const fn new(now: Micros, queue_max: Micros) -> Self {
        Self {
            gap: Self::START,
            changed: now,
            queue_max,
        }
    }

    /// A round trip was measured: `queue` of it was spent in queues.
    pub fn on_round_trip(&mut self, now: Micros, rtt: Micros, queue: Micros) {
        if now.since(self.changed) < rtt {
            return; // the effect of the last change is not visible yet
        }
        if self.is_standing(queue) {
            self.gap = Micros(self.gap.0 * 3 / 2).min(Self::MOST);
        } else if !self.is_standing(queue.times(2)) {
            self.gap = Micros(self.gap.0 * 7 / 10).max(Self::LEAST);
        } else {
            return;
        }
        self.changed = now;
    }

    /// Whether a queue of this length does not drain from one packet to the next. On a
    /// thin link a packet is its own queue while it is being sent; that is no harm.
    pub fn is_standing(&self, queue: Micros) -> bool {
        queue > self.gap.max(self.queue_max)
    }

    /// Least gap between packets.
    pub const fn gap(&self) -> Micros {
        self.gap
    }
}
