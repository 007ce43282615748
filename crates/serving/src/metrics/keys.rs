//! Usage per owner of API keys, by name, as Prometheus metrics: read at each scrape, so that there
//! are as many series as the key file has names.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, Opts};

use crate::auth::ApiKeys;
use crate::identity::KeyUsage;

/// Name, help text and count of a counter with one series per name.
type Family = (&'static str, &'static str, fn(&KeyUsage) -> &AtomicU64);

const FAMILIES: [Family; 5] = [
    ("key_requests_total", "Requests admitted, by the API key's name.", |of| &of.requests),
    ("key_refused_total", "Requests refused by limits, by the API key's name.", |of| &of.refused),
    ("key_prompt_tokens_total", "Prompt tokens, by the API key's name.", |of| &of.prompt_tokens),
    (
        "key_cached_tokens_total",
        "Prompt tokens from the prefix cache, by the API key's name.",
        |of| &of.cached_tokens,
    ),
    ("key_generation_tokens_total", "Tokens generated, by the API key's name.", |of| {
        &of.generated_tokens
    }),
];

/// Reads the usage of each owner whenever metrics are gathered.
pub(super) struct KeyCollector {
    keys: ApiKeys,
    descriptions: Vec<Desc>,
}

impl KeyCollector {
    pub(super) fn new(keys: ApiKeys) -> Self {
        let counters = FAMILIES.each_ref().map(counters);
        let descriptions = counters.iter().flat_map(|one| one.desc()).cloned().collect();
        Self { keys, descriptions }
    }
}

impl Collector for KeyCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let named = self.keys.named();
        let mut families = Vec::with_capacity(FAMILIES.len());
        for family in &FAMILIES {
            let counters = counters(family);
            for key in &named {
                let name = key.name.as_deref().unwrap_or_default();
                let used = family.2(&key.usage).load(Ordering::Relaxed);
                counters.with_label_values(&[name]).inc_by(used);
            }
            families.extend(counters.collect());
        }
        families
    }
}

fn counters((name, help, _): &Family) -> IntCounterVec {
    IntCounterVec::new(Opts::new(*name, *help), &["key"]).expect("names and help are constants")
}

#[cfg(test)]
mod tests {
    //! There is one series for each name, and none for keys without one.
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn named_keys_are_counted_and_no_key_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "[[key]]\nname = \"team\"\nkey = \"sk-secret\"\n").unwrap();
        let keys = ApiKeys::load(&["sk-other".into()], Some(path), None).unwrap();
        keys.named()[0].usage.requests.fetch_add(3, Ordering::Relaxed);
        let metrics = Metrics::new();
        metrics.watch_keys(keys);
        let text = metrics.render();
        assert!(text.contains("loquent_key_requests_total{key=\"team\"} 3"), "{text}");
        let series = |line: &&str| line.starts_with("loquent_key_");
        assert_eq!(text.lines().filter(series).count(), FAMILIES.len());
        assert!(!text.contains("sk-"));
    }
}
