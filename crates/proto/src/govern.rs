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
    /// Since when the gap is the longest.
    slow_since: Option<Micros>,
    queue_max: Micros,
}

impl Governor {
    /// Never slower than this: a packet now and then keeps the estimates alive.
    pub const MOST: Micros = Micros::from_ms(400);
    /// Never faster.
    pub const LEAST: Micros = Micros::from_ms(5);
    /// How long a queue may take to drain at the longest gap.
    pub const PATIENCE: Micros = Micros::from_ms(10_000);
    /// Before anything is known.
    pub const START: Micros = Micros::from_ms(50);

    /// A governor for a path that begins at `now`. A queue of up to `queue_max` is never
    /// held against it: jitter looks the same.
    pub const fn new(now: Micros, queue_max: Micros) -> Self {
        Self {
            gap: Self::START,
            changed: now,
            slow_since: None,
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
        let slow = self.gap == Self::MOST;
        self.slow_since = slow.then(|| self.slow_since.unwrap_or(now));
    }

    /// Whether the queue has outlasted so long a time of least sending that it cannot be
    /// this stream's: the path itself has become longer.
    pub fn is_mistaken(&self, now: Micros) -> bool {
        self.slow_since
            .is_some_and(|since| now.since(since) > Self::PATIENCE)
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
