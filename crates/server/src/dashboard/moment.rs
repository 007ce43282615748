//! Source data of the figures: the server's counters at one time, and at earlier ones.

use std::time::Duration;

use loquent_infer::remote::RemoteStats;

use crate::quic_links::LinkStats;
use loquent_serving::metrics::MetricsSnapshot;

/// The server's counters at one time.
#[derive(Debug, Clone)]
pub struct Moment {
    /// Time of the sample, on the server's clock.
    pub at: Duration,
    /// Values of the metrics.
    pub metrics: MetricsSnapshot,
    /// QUIC connections: plain ones, and browsers' WebTransport sessions.
    pub links: [LinkStats; 2],
    /// Total time for which the upstream server has computed; `None` if there is none.
    pub upstream_busy: Option<Duration>,
    /// The stages of a split model.
    pub stages: Option<RemoteStats>,
}

/// A moment with the earlier ones to compare it with.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// The moment.
    pub now: &'a Moment,
    /// The previous moment.
    pub before: &'a Moment,
    /// The moment at the beginning of the window.
    pub window: &'a Moment,
}

impl Stretch<'_> {
    /// Seconds since the previous moment.
    pub fn elapsed_s(&self) -> f64 {
        self.now.at.saturating_sub(self.before.at).as_secs_f64().max(1e-3)
    }
}
