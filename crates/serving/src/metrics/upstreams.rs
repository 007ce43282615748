//! Statistics of upstreams' servers as Prometheus metrics, read at each scrape.

use std::sync::{Arc, Mutex};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};

use crate::metrics::upstream_stats::ServerStats;

/// Source of the statistics of an upstream's servers.
pub trait UpstreamSeries: Send + Sync {
    /// Returns the upstream's name, or the addresses of its servers.
    fn label(&self) -> &str;

    /// Returns each server's host and port, with its statistics.
    fn servers(&self) -> Vec<(String, ServerStats)>;

    /// Returns the number of requests waiting for a place at a server.
    fn waiting(&self) -> usize;
}

/// A metric with one series per server.
struct ServerFamily {
    name: &'static str,
    help: &'static str,
    value: fn(&ServerStats) -> f64,
}

const fn family(
    name: &'static str,
    help: &'static str,
    value: fn(&ServerStats) -> f64,
) -> ServerFamily {
    ServerFamily { name, help, value }
}

/// Metrics of each server. Names that end in `_total` are counters, the others gauges.
const FAMILIES: [ServerFamily; 8] = [
    family("up", "Whether the server gets requests.", |it| f64::from(u8::from(it.is_up))),
    family("running", "Completions under way at the server.", |it| it.running as f64),
    family("requests_total", "Requests sent to the server.", |it| it.requests as f64),
    family("affine_requests_total", "Those sent there for their prompts' beginnings.", |it| {
        it.affine as f64
    }),
    family("failures_total", "Requests in which the server failed.", |it| it.failures as f64),
    family("moved_requests_total", "Requests that left the server for another one.", |it| {
        it.moved as f64
    }),
    family("breaker_opened_total", "How often the server's circuit breaker opened.", |it| {
        it.opened as f64
    }),
    family("seconds_per_token", "Mean time between a completion's tokens, lately.", |it| {
        it.pace.unwrap_or_default().as_secs_f64()
    }),
];

const LABELS: [&str; 2] = ["upstream", "server"];

/// Reads the upstreams' statistics whenever metrics are gathered.
#[derive(Clone, Default)]
pub(super) struct UpstreamCollector {
    upstreams: Arc<Mutex<Vec<Arc<dyn UpstreamSeries>>>>,
}

impl UpstreamCollector {
    /// Adds an upstream. Returns true if it is the first one.
    pub(super) fn add(&self, upstream: Arc<dyn UpstreamSeries>) -> bool {
        let mut upstreams = self.upstreams.lock().expect("nothing panics under this lock");
        upstreams.push(upstream);
        upstreams.len() == 1
    }

    fn families(&self) -> Vec<Box<dyn Collector>> {
        let upstreams = self.upstreams.lock().expect("nothing panics under this lock");
        let servers = |one: &Arc<dyn UpstreamSeries>| {
            let label = one.label().to_owned();
            one.servers().into_iter().map(move |(server, it)| ([label.clone(), server], it))
        };
        let all: Vec<_> = upstreams.iter().flat_map(servers).collect();
        let mut families: Vec<_> = FAMILIES.iter().map(|family| family.series(&all)).collect();
        let waiting = options("waiting_requests", "Requests that wait for a place at a server.");
        let waiting = GaugeVec::new(waiting, &LABELS[..1]).expect("constant options");
        for upstream in upstreams.iter() {
            waiting.with_label_values(&[upstream.label()]).set(upstream.waiting() as f64);
        }
        families.push(Box::new(waiting));
        families
    }
}

impl std::fmt::Debug for UpstreamCollector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("UpstreamCollector")
    }
}

/// Collector in the form that the metrics' registry accepts.
pub(super) struct RegisteredUpstreams {
    collector: UpstreamCollector,
    descriptions: Vec<Desc>,
}

impl RegisteredUpstreams {
    pub(super) fn new(collector: UpstreamCollector) -> Self {
        let families = collector.families();
        let descriptions = families.iter().flat_map(|one| one.desc()).cloned().collect();
        Self { collector, descriptions }
    }
}

impl Collector for RegisteredUpstreams {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = self.collector.families();
        families.iter().flat_map(|family| family.collect()).collect()
    }
}

impl ServerFamily {
    fn series(&self, servers: &[([String; 2], ServerStats)]) -> Box<dyn Collector> {
        let options = options(self.name, self.help);
        if self.name.ends_with("_total") {
            let counters = CounterVec::new(options, &LABELS).expect("constant options");
            for (labels, figures) in servers {
                counters.with_label_values(labels).inc_by((self.value)(figures));
            }
            Box::new(counters)
        } else {
            let gauges = GaugeVec::new(options, &LABELS).expect("constant options");
            for (labels, figures) in servers {
                gauges.with_label_values(labels).set((self.value)(figures));
            }
            Box::new(gauges)
        }
    }
}

/// Returns the options of a metric. The registry adds the server's own prefix to the name.
fn options(name: &str, help: &str) -> Opts {
    Opts::new(name, help).subsystem("upstream")
}

#[cfg(test)]
mod tests {
    //! Every server of every upstream has its series.
    use std::time::Duration;

    use super::*;
    use crate::metrics::Metrics;

    struct Two(&'static str);

    impl UpstreamSeries for Two {
        fn label(&self) -> &str {
            self.0
        }

        fn servers(&self) -> Vec<(String, ServerStats)> {
            let one = ServerStats { is_up: true, requests: 3, ..ServerStats::default() };
            let pace = Some(Duration::from_millis(250));
            let other = ServerStats { running: 2, pace, ..ServerStats::default() };
            vec![("a:1".into(), one), ("b:2".into(), other)]
        }

        fn waiting(&self) -> usize {
            5
        }
    }

    #[test]
    fn a_scrape_lists_every_server_of_every_upstream() {
        let metrics = Metrics::new();
        assert!(!metrics.render().contains("loquent_upstream_"));
        metrics.watch_upstream(Arc::new(Two("big")));
        metrics.watch_upstream(Arc::new(Two("small")));
        let text = metrics.render();
        for line in [
            "# TYPE loquent_upstream_requests_total counter",
            r#"loquent_upstream_up{server="a:1",upstream="big"} 1"#,
            r#"loquent_upstream_up{server="b:2",upstream="small"} 0"#,
            r#"loquent_upstream_requests_total{server="a:1",upstream="small"} 3"#,
            r#"loquent_upstream_running{server="b:2",upstream="big"} 2"#,
            r#"loquent_upstream_waiting_requests{upstream="small"} 5"#,
            r#"loquent_upstream_seconds_per_token{server="b:2",upstream="big"} 0.25"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is missing in\n{text}");
        }
    }
}
