//! A latency as shown by `/metrics`, and recorded finely enough for percentiles of the last
//! seconds.

use std::sync::Arc;

use prometheus::Histogram;
use prometheus::local::LocalHistogram;

use super::sketch::{LocalSketch, Sketch, SketchCounts};

/// A latency that any thread observes.
#[derive(Debug)]
pub struct Latency {
    histogram: Histogram,
    sketch: Arc<Sketch>,
}

/// A latency that one thread observes and adds to the shared one from time to time.
#[derive(Debug)]
pub struct LocalLatency {
    histogram: LocalHistogram,
    sketch: LocalSketch,
    shared: Arc<Sketch>,
}

impl Latency {
    /// Creates a latency that is exported as `histogram`.
    pub fn new(histogram: Histogram) -> Self {
        Self { histogram, sketch: Arc::default() }
    }

    /// Records one observation.
    pub fn observe(&self, seconds: f64) {
        self.histogram.observe(seconds);
        self.sketch.observe(seconds);
    }

    /// Returns a local latency, for many observations by one thread.
    pub fn local(&self) -> LocalLatency {
        let sketch = LocalSketch::default();
        LocalLatency { histogram: self.histogram.local(), sketch, shared: self.sketch.clone() }
    }

    /// Returns the number of observations, and their sum in seconds.
    pub fn count_and_sum(&self) -> (u64, f64) {
        (self.histogram.get_sample_count(), self.histogram.get_sample_sum())
    }

    /// Returns the number of observations in each class.
    pub fn read(&self) -> SketchCounts {
        self.sketch.read()
    }
}

impl LocalLatency {
    /// Records one observation.
    pub fn observe(&mut self, seconds: f64) {
        self.histogram.observe(seconds);
        self.sketch.observe(seconds);
    }

    /// Adds the local observations to the shared latency.
    pub fn publish(&mut self) {
        self.histogram.flush();
        self.sketch.publish(&self.shared);
    }
}
