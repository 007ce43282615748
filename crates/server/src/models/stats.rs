//! Statistics of each model and their metric series.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};

/// Statistics of one model.
#[derive(Debug, Clone)]
pub struct ModelStats {
    /// The model's name in the API.
    pub name: String,
    /// Name of the model's state.
    pub state: &'static str,
    /// True if the model is in memory.
    pub is_loaded: bool,
    /// Requests using the model.
    pub uses: usize,
    /// Memory size in bytes; 0 if unknown.
    pub bytes: u64,
    /// Size of the model's file in bytes; 0 if it has none.
    pub file_bytes: u64,
    /// Fraction of the model that is loaded, 0 to 1.
    pub share: f64,
    /// Time until the model is unloaded if nobody uses it.
    pub expires_in: Option<Duration>,
    /// Counts in the order of [`COUNTERS`].
    pub(super) counts: [f64; 5],
}

impl ModelStats {
    /// Statistics of a model that is never unloaded.
    pub(super) fn of_constant(name: String) -> Self {
        Self {
            name,
            state: "loaded",
            is_loaded: true,
            uses: 0,
            bytes: 0,
            file_bytes: 0,
            share: 1.0,
            expires_in: None,
            counts: [0.0; 5],
        }
    }
}

/// Returns the statistics of all models.
type FiguresSource = Box<dyn Fn() -> Vec<ModelStats> + Send + Sync>;

/// Counts of one model.
#[derive(Debug, Default)]
pub(super) struct ModelCounts {
    uses: AtomicU64,
    loads: AtomicU64,
    load_us: AtomicU64,
    failures: AtomicU64,
    unloads: AtomicU64,
}

impl ModelCounts {
    pub(super) fn on_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn on_load(&self, took: Duration) {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.load_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn on_failure(&self) {
        self.failures.fetch_add(1, Ordering::Release);
    }

    pub(super) fn on_unload(&self) {
        self.unloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of failed loads.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Returns the counts in the order of [`COUNTERS`].
    pub(super) fn read(&self) -> [f64; 5] {
        let all = [&self.uses, &self.loads, &self.load_us, &self.failures, &self.unloads];
        let [uses, loads, load_us, failures, unloads] =
            all.map(|count| count.load(Ordering::Relaxed) as f64);
        [uses, loads, load_us / 1e6, failures, unloads]
    }
}

const COUNTERS: [(&str, &str); 5] = [
    ("model_requests_total", "Requests that used the model."),
    ("model_loads_total", "Times that the model was loaded."),
    ("model_load_seconds_total", "Time that loading it took."),
    ("model_load_failures_total", "Times that the model could not be loaded."),
    ("model_unloads_total", "Times that the model was taken out of memory."),
];

/// Name, help text and value of a gauge of a model.
type ModelGauge = (&'static str, &'static str, fn(&ModelStats) -> f64);

const GAUGES: [ModelGauge; 3] = [
    ("model_loaded", "Whether the model is in memory.", |it| f64::from(u8::from(it.is_loaded))),
    ("model_answers", "Requests that use the model.", |it| it.uses as f64),
    (
        "model_memory_bytes",
        "What its file and its cache take in memory, while it is there.",
        |it| {
            if it.is_loaded { it.bytes as f64 } else { 0.0 }
        },
    ),
];

/// Reads the models' statistics whenever metrics are gathered.
pub(super) struct ModelCollector {
    source: FiguresSource,
    descriptions: Vec<Desc>,
}

impl ModelCollector {
    pub(super) fn new(source: FiguresSource) -> Self {
        let descriptions = series(&[]).iter().flat_map(|one| one.desc()).cloned().collect();
        Self { source, descriptions }
    }
}

impl Collector for ModelCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        series(&(self.source)()).iter().flat_map(|one| one.collect()).collect()
    }
}

/// Builds all series with the values of `models`.
fn series(models: &[ModelStats]) -> Vec<Box<dyn Collector>> {
    let made = "metric options are constants";
    let mut all: Vec<Box<dyn Collector>> = Vec::new();
    for (at, (name, help)) in COUNTERS.into_iter().enumerate() {
        let counters = CounterVec::new(Opts::new(name, help), &["model"]).expect(made);
        for model in models {
            counters.with_label_values(&[&model.name]).inc_by(model.counts[at]);
        }
        all.push(Box::new(counters));
    }
    for (name, help, value) in GAUGES {
        let gauges = GaugeVec::new(Opts::new(name, help), &["model"]).expect(made);
        for model in models {
            gauges.with_label_values(&[&model.name]).set(value(model));
        }
        all.push(Box::new(gauges));
    }
    all
}
