//! Names of the exported metrics: Loquent's own, or those of vLLM, which dashboards, llm-d and the
//! Gateway API's inference extension look for.

use std::str::FromStr;

use prometheus::proto::{LabelPair, MetricFamily};

/// Prefix of Loquent's own names.
const OWN: &str = "loquent_";
/// Prefix of vLLM's names.
const VLLM: &str = "vllm:";

/// Names of the metrics that both have, without prefixes: Loquent's and vLLM's. Names of older vLLM
/// versions that dashboards still query are listed next to the newer ones.
const IN_VLLM: [(&str, &str); 24] = [
    ("num_requests_running", "num_requests_running"),
    ("num_requests_waiting", "num_requests_waiting"),
    ("kv_cache_usage_perc", "kv_cache_usage_perc"),
    ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    ("prefix_cache_queries", "prefix_cache_queries_total"),
    ("prefix_cache_queries", "gpu_prefix_cache_queries_total"),
    ("prefix_cache_hits", "prefix_cache_hits_total"),
    ("prefix_cache_hits", "gpu_prefix_cache_hits_total"),
    ("num_preemptions_total", "num_preemptions_total"),
    ("prompt_tokens_total", "prompt_tokens_total"),
    ("generation_tokens_total", "generation_tokens_total"),
    ("request_success_total", "request_success_total"),
    ("request_prompt_tokens", "request_prompt_tokens"),
    ("request_generation_tokens", "request_generation_tokens"),
    ("time_to_first_token_seconds", "time_to_first_token_seconds"),
    ("inter_token_latency_seconds", "inter_token_latency_seconds"),
    ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ("e2e_request_latency_seconds", "e2e_request_latency_seconds"),
    ("request_queue_time_seconds", "request_queue_time_seconds"),
    ("request_prefill_time_seconds", "request_prefill_time_seconds"),
    ("request_decode_time_seconds", "request_decode_time_seconds"),
    ("engine_step_tokens", "iteration_tokens_total"),
    ("spec_decode_num_draft_tokens_total", "spec_decode_num_draft_tokens_total"),
    ("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_total"),
];

/// Naming scheme of exported metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetricNames {
    /// Loquent's names.
    #[default]
    Loquent,
    /// vLLM's names where it has the metric, and Loquent's for the others.
    Vllm,
    /// Loquent's names, and vLLM's as well.
    Both,
}

impl FromStr for MetricNames {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "loquent" => Ok(Self::Loquent),
            "vllm" => Ok(Self::Vllm),
            "both" => Ok(Self::Both),
            _ => Err("must be 'loquent', 'vllm' or 'both'"),
        }
    }
}

impl MetricNames {
    /// Renames `families`, which have Loquent's names. Metrics with vLLM's names also get the
    /// model's name as a label.
    pub(super) fn apply(self, families: Vec<MetricFamily>, model: &str) -> Vec<MetricFamily> {
        if self == Self::Loquent {
            return families;
        }
        // One metric may have several names there, an older version's among them.
        let mut named = Vec::with_capacity(2 * families.len());
        for family in families {
            // An empty name, for those of other prefixes, is not in the table.
            let own = family.name().strip_prefix(OWN).unwrap_or_default();
            let copies: Vec<_> =
                IN_VLLM.iter().filter(|(name, _)| *name == own).map(|(_, name)| name).collect();
            for name in &copies {
                named.push(as_vllm(&family, name, model));
            }
            if self == Self::Both || copies.is_empty() {
                named.push(family);
            }
        }
        named
    }
}

fn as_vllm(family: &MetricFamily, name: &str, model: &str) -> MetricFamily {
    let mut copy = family.clone();
    copy.set_name(format!("{VLLM}{name}"));
    for metric in copy.mut_metric() {
        let mut labels = metric.take_label();
        labels.extend([label("engine", "0"), label("model_name", model)]);
        // Prometheus' own client sorts labels, and some scrapers compare series as text.
        labels.sort_by(|one, other| one.name().cmp(other.name()));
        metric.set_label(labels);
    }
    copy
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    /// Metrics that the Gateway API's inference extension and llm-d read by default, and that
    /// vLLM's own dashboards query.
    const WANTED: [&str; 12] = [
        "vllm:num_requests_running{",
        "vllm:num_requests_waiting{",
        "vllm:kv_cache_usage_perc{",
        "vllm:gpu_cache_usage_perc{",
        "vllm:prompt_tokens_total{",
        "vllm:generation_tokens_total{",
        "vllm:time_to_first_token_seconds_bucket{",
        "vllm:e2e_request_latency_seconds_bucket{",
        "vllm:inter_token_latency_seconds_bucket{",
        "vllm:request_queue_time_seconds_sum{",
        "vllm:request_prompt_tokens_bucket{",
        "vllm:request_generation_tokens_bucket{",
    ];

    fn shown(names: MetricNames) -> String {
        let metrics = Metrics::new();
        metrics.on_abort();
        metrics.render_as(names, "tiny \"q\"")
    }

    fn has(text: &str, start: &str) -> bool {
        text.lines().any(|line| line.starts_with(start))
    }

    #[test]
    fn what_gateways_and_dashboards_look_for_is_there() {
        let text = shown(MetricNames::Vllm);
        for name in WANTED {
            assert!(has(&text, name), "{name} is not in\n{text}");
        }
        let waiting = r#"vllm:num_requests_waiting{engine="0",model_name="tiny \"q\""} 0"#;
        assert!(text.lines().any(|line| line == waiting), "{text}");
        assert!(has(&text, r#"vllm:request_success_total{engine="0",finished_reason="abort",m"#));
    }

    #[test]
    fn names_are_replaced_or_stand_beside_each_other() {
        let (own, vllm, both) =
            (shown(MetricNames::Loquent), shown(MetricNames::Vllm), shown(MetricNames::Both));
        assert!(!own.contains("vllm:"));
        assert!(!has(&vllm, "loquent_num_requests_waiting"));
        assert!(has(&vllm, "loquent_stream_pauses_total"), "vLLM has no such metric");
        assert!(own.lines().all(|line| both.contains(line)));
        assert!(has(&both, "vllm:num_requests_waiting"));
    }

    #[test]
    fn every_metric_of_the_table_exists() {
        let text = shown(MetricNames::Loquent);
        for (own, _) in IN_VLLM {
            assert!(text.contains(&format!("# TYPE loquent_{own} ")), "{own}");
        }
        assert!("other".parse::<MetricNames>().is_err());
        assert_eq!("vllm".parse(), Ok(MetricNames::Vllm));
    }
}
