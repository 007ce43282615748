//! Congestion control for connections that carry answers: additive increase and
//! multiplicative decrease, above a floor.
//!
//! Loss-based control starves a thin stream on a lossy path at two packets of window, which
//! is what the delivery protocol is there to avoid (its loss is no sign of congestion). What
//! an answer sends is bounded by its own sender: token bucket, queue guard, and silence after
//! 10 s without acknowledgement (`spec/delivery.md`, sections 7 and 8). So the window only
//! has to bound what else travels here, the bodies of tunnelled requests.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory};

/// Smallest window in bytes. Chosen by hand: some seconds of a few answers.
const FLOOR_BYTES: u64 = 64 * 1024;
/// Largest window in bytes.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// Makes a [`FlooredWindow`] for each path.
#[derive(Debug, Clone, Copy, Default)]
pub struct FlooredFactory;

impl ControllerFactory for FlooredFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(FlooredWindow {
            window: FLOOR_BYTES,
            threshold: u64::MAX,
            recovery_start: now,
            mtu: current_mtu.into(),
        })
    }
}

/// The window of one path.
#[derive(Debug, Clone)]
struct FlooredWindow {
    window: u64,
    /// Slow-start threshold: below it the window about doubles per round trip, above it the
    /// window grows by one packet.
    threshold: u64,
    recovery_start: Instant,
    mtu: u64,
}

impl Controller for FlooredWindow {
    /// A batch of acknowledgements, usually of two packets.
    fn on_end_acks(
        &mut self,
        _now: Instant,
        _in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        if app_limited {
            return;
        }
        let acked = 2 * self.mtu;
        let growth =
            if self.window < self.threshold { acked } else { acked * self.mtu / self.window };
        self.window = (self.window + growth).min(MOST_BYTES);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        _lost_bytes: u64,
    ) {
        if sent <= self.recovery_start {
            return; // of the same round trip as the last
        }
        self.recovery_start = now;
        let reduced = if is_persistent_congestion { FLOOR_BYTES } else { self.window / 2 };
        self.window = reduced.max(FLOOR_BYTES);
        self.threshold = self.window;
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        FLOOR_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn losses_never_push_the_window_below_the_floor() {
        let now = Instant::now();
        let mut controller = Arc::new(FlooredFactory).build(now, 1200);
        for i in 1..20 {
            let at = now + Duration::from_millis(i);
            controller.on_congestion_event(at, at, i % 2 == 0, 1200);
            assert_eq!(controller.window(), FLOOR_BYTES);
        }
    }
}
