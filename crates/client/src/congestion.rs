//! Congestion control for a client: CUBIC, with a minimum window.
//!
//! A client sends little: acknowledgements of some forty bytes. On a lossy path the usual
//! controllers shrink to two packets in flight, which would delay acknowledgements by round trips.
//! So the window never falls below a few kilobytes, less than one web page.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};

/// Minimum bytes in flight: a few hundred acknowledgements of about forty bytes.
const FLOOR_BYTES: u64 = 16 * 1024;

/// Creates [`Floored`] controllers over CUBIC (RFC 9438).
#[derive(Debug, Default)]
pub struct FlooredConfig {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for FlooredConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Floored(Arc::clone(&self.cubic).build(now, current_mtu)))
    }
}

/// A controller whose window has a minimum.
struct Floored(Box<dyn Controller>);

impl Controller for Floored {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.0.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &quinn_proto::RttEstimator,
    ) {
        self.0.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.0.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.0.on_congestion_event(now, sent, persistent, lost);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.0.window().max(FLOOR_BYTES)
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Floored(self.0.clone_box()))
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window().max(FLOOR_BYTES)
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
    fn losses_never_shrink_the_window_below_its_floor() {
        let now = Instant::now();
        let mut controller = Arc::new(FlooredConfig::default()).build(now, 1200);
        for second in 1..20 {
            let now = now + Duration::from_secs(second);
            controller.on_congestion_event(now, now, true, 12_000);
        }
        assert_eq!(controller.window(), FLOOR_BYTES);
        assert_eq!(controller.clone_box().window(), FLOOR_BYTES);
    }
}
