//! Congestion control for connections that carry answers: additive increase and multiplicative
//! decrease, above a floor.
//!
//! Loss-based control starves a thin stream on a lossy path at two packets of window, which is what
//! the delivery protocol exists to avoid (its loss is no sign of congestion). The datagrams of an
//! answer are bounded by its own sender: token bucket, queue guard, and silence after 10 s without
//! acknowledgement (`spec/delivery.md`, sections 7 and 8). So the window only has to bound the
//! remaining traffic, the bodies of tunnelled requests.
//!
//! The floor is lowered where most packets are lost: noise on a link never causes that, and many
//! connections with a floor each would keep a full link full.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// Smallest window in bytes. Chosen by hand: some seconds of a few answers.
const FLOOR_BYTES: u64 = 64 * 1024;
/// Minimum floor in packets: RFC 9002's minimum window (section 7.2).
const LEAST_PACKETS: u64 = 2;
/// Largest window in bytes.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// Creates a [`FlooredWindow`] for each path.
#[derive(Debug, Clone, Copy, Default)]
pub struct FlooredFactory;

impl ControllerFactory for FlooredFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(FlooredWindow {
            window: FLOOR_BYTES,
            threshold: u64::MAX,
            recovery_start: now,
            mtu: current_mtu.into(),
            floor: FLOOR_BYTES,
            acked: 0,
            lost: 0,
        })
    }
}

/// Congestion window of one path.
#[derive(Debug, Clone)]
struct FlooredWindow {
    window: u64,
    /// Slow-start threshold: below it the window about doubles per round trip, above it the
    /// window grows by one packet.
    threshold: u64,
    recovery_start: Instant,
    mtu: u64,
    /// Current floor of the window.
    floor: u64,
    /// Bytes acknowledged, and bytes lost, since the last congestion event.
    acked: u64,
    lost: u64,
}

impl FlooredWindow {
    /// Lowers the floor while most of the traffic is lost, and raises it again afterwards: loss
    /// this high is not noise but a bottleneck, which the floors of many connections would keep
    /// full.
    fn move_floor(&mut self, is_persistent: bool) {
        let least = LEAST_PACKETS * self.mtu;
        self.floor = match is_persistent || self.lost >= self.acked {
            true => (self.floor / 2).max(least),
            false => (2 * self.floor).min(FLOOR_BYTES),
        };
        (self.acked, self.lost) = (0, 0);
    }
}

impl Controller for FlooredWindow {
    fn on_ack(
        &mut self,
        _now: Instant,
        _sent: Instant,
        bytes: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.acked += bytes;
    }

    /// Handles a batch of acknowledgements, usually of two packets.
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
        lost_bytes: u64,
    ) {
        self.lost += lost_bytes;
        if sent <= self.recovery_start {
            return; // of the same round trip as the last
        }
        self.recovery_start = now;
        self.move_floor(is_persistent_congestion);
        let reduced = if is_persistent_congestion { self.floor } else { self.window / 2 };
        self.window = reduced.max(self.floor);
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

    /// Returns the window after `rounds` round trips, in each of which `lost` of 100 packets are
    /// lost.
    fn after(rounds: u64, lost: u64, mut window: FlooredWindow) -> FlooredWindow {
        for round in 1..=rounds {
            let at = window.recovery_start + Duration::from_millis(round);
            window.acked += (100 - lost) * 1200;
            window.on_congestion_event(at, at, false, lost * 1200);
        }
        window
    }

    fn fresh() -> FlooredWindow {
        let built = Arc::new(FlooredFactory).build(Instant::now(), 1200).into_any();
        *built.downcast::<FlooredWindow>().unwrap()
    }

    #[test]
    fn noise_never_pushes_the_window_below_the_floor() {
        for lost in [1, 10, 30, 45] {
            assert_eq!(after(50, lost, fresh()).window(), FLOOR_BYTES, "{lost} %");
        }
    }

    #[test]
    fn the_floor_yields_to_a_full_link_and_comes_back() {
        let full = after(20, 80, fresh());
        assert_eq!(full.window(), LEAST_PACKETS * 1200);
        let free = after(20, 5, full);
        assert_eq!(free.floor, FLOOR_BYTES);
        let mut cut = fresh();
        let at = cut.recovery_start + Duration::from_millis(1);
        cut.on_congestion_event(at, at, true, 1200);
        assert!(cut.window() < FLOOR_BYTES, "nothing came through at all");
    }
}
