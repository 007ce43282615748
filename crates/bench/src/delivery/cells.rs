//! Measured and simulated results of each scheme at each round-trip time.

use super::metrics::{MeanInterval, SchemeTrial, StreamMetrics, spread};
use super::plan::DeliveryScheme;

/// One scheme at one round-trip time, with its metrics.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The delivery scheme that was measured.
    pub scheme: DeliveryScheme,
    /// The recorded streams.
    pub trial: SchemeTrial,
    /// The measured metrics, by session.
    pub figures: Vec<StreamMetrics>,
    /// The simulator's metrics for the same sessions.
    pub predicted: Vec<StreamMetrics>,
}

impl Cell {
    /// Returns mean, interval and median of a metric.
    pub fn spread(&self, value: impl Fn(&StreamMetrics) -> f64) -> MeanInterval {
        spread(&self.figures, value)
    }

    /// Returns the mean stall ratio.
    pub fn full(&self) -> f64 {
        self.spread(|figures| figures.ready.full).mean
    }

    /// Returns the simulator's mean stall ratio.
    pub fn predicted_full(&self) -> f64 {
        spread(&self.predicted, |figures| figures.ready.full).mean
    }

    /// Returns the relative deviation of the measured stall ratio from the simulator's, both with
    /// the threshold for real clocks; 0.1 is 10 % above.
    pub fn off_prediction(&self) -> Option<f64> {
        let predicted = spread(&self.predicted, |figures| figures.full_205).mean;
        let measured = self.spread(|figures| figures.full_205).mean;
        (predicted > 0.0).then(|| measured / predicted - 1.0)
    }
}

/// The results of all schemes at one round-trip time.
#[derive(Debug, Clone)]
pub struct CaseResult {
    /// Round-trip time in ms.
    pub rtt_ms: f64,
    /// One cell for each scheme, in the plan's order.
    pub cells: Vec<Cell>,
}

impl CaseResult {
    /// Returns the TCP scheme that stalls least.
    pub fn better_tcp(&self) -> Option<&Cell> {
        let tcp = self.cells.iter().filter(|cell| cell.scheme.congestion().is_some());
        tcp.min_by(|a, b| a.full().total_cmp(&b.full()))
    }

    /// Returns the cells of Loquent's own schemes, which are compared with TCP.
    pub fn loquent(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.scheme.is_loquent())
    }
}
