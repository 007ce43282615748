//! Statistics of a split model's stages as Prometheus metrics, read at each scrape.

use std::sync::Arc;

use loquent_infer::remote::{RemoteStages, RemoteStats, StageStats};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, Gauge, GaugeVec, Opts};

/// A metric with one series per stage.
struct Family {
    name: &'static str,
    help: &'static str,
    value: fn(&RemoteStats, &StageStats) -> f64,
}

const fn family(
    name: &'static str,
    help: &'static str,
    value: fn(&RemoteStats, &StageStats) -> f64,
) -> Family {
    Family { name, help, value }
}

/// Metrics of each stage. Names that end in `_total` are counters, the others gauges.
const FAMILIES: [Family; 10] = [
    family("up", "Whether the stages are connected.", |all, _| f64::from(u8::from(all.connected))),
    family("batches_total", "Native calls.", |_, stage| stage.batches as f64),
    family("batch_rows_total", "Sequences in native calls.", |_, stage| stage.batch_rows as f64),
    family("batch_rows_max", "Largest batch in sequences.", |_, stage| stage.batch_rows_max as f64),
    family("busy_seconds_total", "Time in native calls and sampling.", |_, stage| {
        stage.busy.as_secs_f64()
    }),
    family("busy_share", "Share of the time in which the stage computed, 0 to 1.", |_, stage| {
        stage.busy.as_micros() as f64 / stage.up.as_micros().max(1) as f64
    }),
    family("wait_seconds_total", "Time that batches waited for their native call.", |_, stage| {
        stage.wait.as_secs_f64()
    }),
    family("wait_seconds_max", "Longest wait of a batch for its native call.", |_, stage| {
        stage.wait_max.as_secs_f64()
    }),
    family("sent_bytes_total", "Bytes sent to the next stage.", |_, stage| stage.sent_bytes as f64),
    family("round_trip_seconds", "Latest time from a ping to its answer.", |_, stage| {
        stage.round_trip.as_secs_f64()
    }),
];

/// Reads the stages' statistics whenever metrics are gathered.
pub(super) struct StageCollector {
    stages: Arc<dyn RemoteStages>,
    descriptions: Vec<Desc>,
}

impl StageCollector {
    pub(super) fn new(stages: Arc<dyn RemoteStages>) -> Self {
        let described = families(&RemoteStats::default());
        let descriptions = described.iter().flat_map(|one| one.desc()).cloned().collect();
        Self { stages, descriptions }
    }
}

impl Collector for StageCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = families(&self.stages.figures());
        families.iter().flat_map(|family| family.collect()).collect()
    }
}

/// Builds all metrics with the values of `figures`. They are built for each scrape, since a
/// restarted stage counts from zero, which a persistent counter cannot represent.
fn families(figures: &RemoteStats) -> Vec<Box<dyn Collector>> {
    let mut all: Vec<Box<dyn Collector>> =
        FAMILIES.iter().map(|family| family.series(figures)).collect();
    for (name, help, value) in [
        (
            "link_delay_seconds",
            "Mean delay of a link between stages.",
            figures.link_delay.as_secs_f64(),
        ),
        ("pipeline_depth", "Maximum batches in flight now.", figures.pipeline_depth as f64),
    ] {
        let gauge = Gauge::with_opts(options("stages", name, help)).expect("constant options");
        gauge.set(value);
        all.push(Box::new(gauge));
    }
    all
}

impl Family {
    fn series(&self, figures: &RemoteStats) -> Box<dyn Collector> {
        let options = options("stage", self.name, self.help);
        let values = figures.stages.iter().map(|stage| (self.value)(figures, stage));
        let labelled = (1..).map(|stage: usize| stage.to_string()).zip(values);
        if self.name.ends_with("_total") {
            let counters = CounterVec::new(options, &["stage"]).expect("constant options");
            labelled.for_each(|(stage, value)| {
                counters.with_label_values(&[&stage]).inc_by(value);
            });
            Box::new(counters)
        } else {
            let gauges = GaugeVec::new(options, &["stage"]).expect("constant options");
            labelled.for_each(|(stage, value)| gauges.with_label_values(&[&stage]).set(value));
            Box::new(gauges)
        }
    }
}

/// Returns the options of a metric. The registry adds the server's own prefix to the name.
fn options(subsystem: &str, name: &str, help: &str) -> Opts {
    Opts::new(name, help).subsystem(subsystem)
}

#[cfg(test)]
mod tests {
    //! Every stage has its series, and a scrape gives the figures of its moment.
    use std::sync::Mutex;
    use std::time::Duration;

    use loquent_infer::remote::BatchTimes;

    use super::*;
    use crate::metrics::Metrics;

    struct Two(Mutex<RemoteStats>);

    impl RemoteStages for Two {
        fn outage(&self) -> Option<String> {
            None
        }

        fn figures(&self) -> RemoteStats {
            self.0.lock().unwrap().clone()
        }

        fn batch_times(&self, _: Duration, _: Duration) -> Option<BatchTimes> {
            None
        }
    }

    #[test]
    fn a_scrape_lists_every_stage() {
        let stage = StageStats {
            batches: 3,
            busy: Duration::from_millis(250),
            up: Duration::from_secs(1),
            ..StageStats::default()
        };
        let figures = RemoteStats {
            connected: true,
            link_delay: Duration::from_millis(5),
            pipeline_depth: 2,
            stages: vec![stage, stage],
        };
        let stages = Arc::new(Two(Mutex::new(figures)));
        let metrics = Metrics::new();
        metrics.watch_stages(stages.clone());
        let text = metrics.render();
        for line in [
            "# TYPE loquent_stage_batches_total counter",
            "# TYPE loquent_stage_busy_share gauge",
            "loquent_stage_up{stage=\"2\"} 1",
            "loquent_stage_batches_total{stage=\"1\"} 3",
            "loquent_stage_busy_share{stage=\"2\"} 0.25",
            "loquent_stages_link_delay_seconds 0.005",
            "loquent_stages_pipeline_depth 2",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is missing in\n{text}");
        }
        stages.0.lock().unwrap().stages[0].batches = 1;
        let text = metrics.render();
        assert!(text.contains("loquent_stage_batches_total{stage=\"1\"} 1"), "{text}");
    }
}
