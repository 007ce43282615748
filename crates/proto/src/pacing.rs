//! A floor under the gap between packets, so that a thin link is not buried.
//!
//! Delay-based, like the queue guard, but it remembers: while round trips show a standing
//! queue the floor rises, while they show none it sinks, once per round trip each. It
//! starts high, since nothing is known of the path before the first round trip.

use crate::Micros;

/// The floor and its bounds.
#[derive(Debug, Clone)]
pub struct SendPacer {
    gap: Micros,
    changed: Micros,
    /// Since when the gap is the longest, and the queue then.
    slow_since: Option<(Micros, Micros)>,
    /// A queue was seen: this path can be buried, so care is taken.
    has_queued: bool,
    queue_max: Micros,
}

impl SendPacer {
    /// Never slower than this: a packet now and then keeps the estimates alive.
    pub const MOST: Micros = Micros::from_ms(400);
    /// Never faster.
    pub const LEAST: Micros = Micros::from_ms(5);
    /// How long a queue may stay as it is at the longest gap.
    pub const PATIENCE: Micros = Micros::from_ms(10_000);
    /// Before anything is known.
    pub const START: Micros = Micros::from_ms(50);

    /// A pacer for a path that begins at `now`. A queue of up to `queue_max` is never
    /// held against it: jitter looks the same.
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
            let percent = if self.has_queued { 85 } else { 70 };
            self.gap = Micros(self.gap.0 * percent / 100).max(Self::LEAST);
        } else {
            return;
        }
        self.changed = now;
        let slow = self.gap == Self::MOST;
        self.slow_since = slow.then(|| self.slow_since.unwrap_or((now, queue)));
    }

    /// Whether the queue did not shrink in so long a time of least sending that it cannot
    /// be this stream's: the path itself has become longer.
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
