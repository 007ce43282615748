//! A latency as `/metrics` shows it, and finely enough for percentiles of the last seconds.

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
    /// A latency that is shown as `histogram`.
    pub fn new(histogram: Histogram) -> Self {
        Self { histogram, sketch: Arc::default() }
    }

    /// Notes one.
    pub fn observe(&self, seconds: f64) {
        self.histogram.observe(seconds);
        self.sketch.observe(seconds);
    }

    /// For many observations by one thread.
    pub fn local(&self) -> LocalLatency {
        let sketch = LocalSketch::default();
        LocalLatency { histogram: self.histogram.local(), sketch, shared: self.sketch.clone() }
    }

    /// How many there were, and their sum in seconds.
    pub fn count_and_sum(&self) -> (u64, f64) {
        (self.histogram.get_sample_count(), self.histogram.get_sample_sum())
    }

    /// How often each class of them occurred.
    pub fn read(&self) -> SketchCounts {
        self.sketch.read()
    }
}

impl LocalLatency {
    /// Notes one.
    pub fn observe(&mut self, seconds: f64) {
        self.histogram.observe(seconds);
        self.sketch.observe(seconds);
    }

    /// Adds what was noted to the shared latency.
    pub fn publish(&mut self) {
        self.histogram.flush();
        self.sketch.publish(&self.shared);
    }
}
