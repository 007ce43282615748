//! All that the figures are made of: what the server had counted at one time, and at earlier ones.

use std::time::Duration;

use loquent_infer::remote::RemoteFigures;

use crate::metrics::MetricsReading;
use crate::quic::links::LinkFigures;

/// What the server had counted at one time.
#[derive(Debug, Clone)]
pub struct Moment {
    /// When, on the server's clock.
    pub at: Duration,
    /// What the metrics held.
    pub metrics: MetricsReading,
    /// The connections over QUIC, plain ones and browsers' sessions.
    pub links: [LinkFigures; 2],
    /// How long an upstream server has computed anything, if there is one.
    pub upstream_busy: Option<Duration>,
    /// The stages of a split model.
    pub stages: Option<RemoteFigures>,
}

/// The time before a moment.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// The moment.
    pub now: &'a Moment,
    /// The one before it.
    pub before: &'a Moment,
    /// The one at the window's beginning.
    pub window: &'a Moment,
}

impl Stretch<'_> {
    /// Seconds since the moment before.
    pub fn elapsed_s(&self) -> f64 {
        self.now.at.saturating_sub(self.before.at).as_secs_f64().max(1e-3)
    }
}
