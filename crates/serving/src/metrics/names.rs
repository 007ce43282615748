//! Names of the exported metrics: Loquent's own, those of vLLM, which dashboards, llm-d and the
//! Gateway API's inference extension look for, and those of OpenTelemetry's conventions for
//! generative AI.

use std::str::FromStr;

use prometheus::proto::{Gauge, LabelPair, MetricFamily};

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
    ("prefix_cache_queries_total", "prefix_cache_queries_total"),
    ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    ("prefix_cache_hits_total", "prefix_cache_hits_total"),
    ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
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

/// The metric whose value vLLM has among the labels of `cache_config_info`.
const CELLS: &str = "kv_cells";
/// Positions in a block, as vLLM counts its cache. Here a prefix may end anywhere.
const BLOCK_CELLS: u64 = 16;

/// Names of the metrics that OpenTelemetry's conventions have too: Loquent's without its prefix,
/// and theirs in the form for Prometheus.
const IN_OTEL: [(&str, &str); 3] = [
    ("e2e_request_latency_seconds", "gen_ai_server_request_duration_seconds"),
    ("time_to_first_token_seconds", "gen_ai_server_time_to_first_token_seconds"),
    ("inter_token_latency_seconds", "gen_ai_server_time_per_output_token_seconds"),
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
    /// Loquent's names, and OpenTelemetry's as well.
    Otel,
}

impl FromStr for MetricNames {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "loquent" => Ok(Self::Loquent),
            "vllm" => Ok(Self::Vllm),
            "both" => Ok(Self::Both),
            "otel" => Ok(Self::Otel),
            _ => Err("must be 'loquent', 'vllm', 'both' or 'otel'"),
        }
    }
}

impl MetricNames {
    /// Renames `families`, which have Loquent's names. Metrics with others' names also get the
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
            let copies = match self {
                Self::Otel => in_otel(&family, own, model),
                _ => in_vllm(&family, own, model),
            };
            let is_replaced = self == Self::Vllm && !copies.is_empty();
            named.extend(copies);
            if !is_replaced {
                named.push(family);
            }
        }
        named
    }
}

/// Returns `family`, called `own`, under each of vLLM's names.
fn in_vllm(family: &MetricFamily, own: &str, model: &str) -> Vec<MetricFamily> {
    let of_all = [label("engine", "0"), label("model_name", model)];
    if own == CELLS {
        return vec![cache_config(family, &of_all)];
    }
    let names = IN_VLLM.iter().filter(|(name, _)| *name == own);
    names.map(|(_, name)| renamed(family, format!("{VLLM}{name}"), &of_all)).collect()
}

/// Returns `family`, called `own`, under OpenTelemetry's name if there is one.
fn in_otel(family: &MetricFamily, own: &str, model: &str) -> Vec<MetricFamily> {
    let of_all = [label("gen_ai_provider_name", "loquent"), label("gen_ai_response_model", model)];
    let names = IN_OTEL.iter().filter(|(name, _)| *name == own);
    names.map(|(_, name)| renamed(family, (*name).to_owned(), &of_all)).collect()
}

fn renamed(family: &MetricFamily, name: String, more: &[LabelPair]) -> MetricFamily {
    let mut copy = family.clone();
    copy.set_name(name);
    for metric in copy.mut_metric() {
        let mut labels = metric.take_label();
        labels.extend_from_slice(more);
        // Prometheus' own client sorts labels, and some scrapers compare series as text.
        labels.sort_by(|one, other| one.name().cmp(other.name()));
        metric.set_label(labels);
    }
    copy
}

/// Returns the size of the cache as vLLM's `cache_config_info`, from which llm-d's scheduler reads
/// how many prompts' beginnings a server can hold.
fn cache_config(cells: &MetricFamily, of_all: &[LabelPair]) -> MetricFamily {
    let mut copy = cells.clone();
    copy.set_name(format!("{VLLM}cache_config_info"));
    copy.set_help("Size of the KV cache, in its labels.".to_owned());
    for metric in copy.mut_metric() {
        // Schedulers multiply both numbers; a block of one cell would be one hash for each token.
        let blocks = metric.get_gauge().get_value() as u64 / BLOCK_CELLS;
        let mut one = Gauge::default();
        one.set_value(1.0);
        metric.set_gauge(one);
        let sizes = [("block_size", BLOCK_CELLS), ("num_gpu_blocks", blocks)];
        metric.set_label(sizes.map(|(name, size)| label(name, &size.to_string())).to_vec());
    }
    let name = copy.name().to_owned();
    renamed(&copy, name, of_all)
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use loquent_infer::scheduler::Load;

    use super::*;
    use crate::metrics::Metrics;

    /// Metrics that the Gateway API's inference extension and llm-d read by default, and that
    /// vLLM's own dashboards query.
    const WANTED: [&str; 13] = [
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
        "vllm:cache_config_info{block_size=\"16\",engine=\"0\",",
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
        assert!(has(&both, "loquent_kv_cells ") && !has(&vllm, "loquent_kv_cells "));
    }

    #[test]
    fn opentelemetrys_names_stand_beside_our_own() {
        let text = shown(MetricNames::Otel);
        assert!(has(&text, "loquent_time_to_first_token_seconds_bucket{"));
        for (own, name) in IN_OTEL {
            let series = format!("{name}_bucket{{gen_ai_provider_name=\"loquent\",gen_ai_resp");
            assert!(has(&text, &series), "{own}: {text}");
        }
        assert!(!text.contains("vllm:"));
    }

    #[test]
    fn the_size_of_the_cache_is_among_the_labels() {
        let metrics = Metrics::new();
        let mut load = metrics.engine_load();
        load.note(&Load { kv_cells: 4096, ..Load::default() });
        let info = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",model_name=\"m\",\
                    num_gpu_blocks=\"256\"} 1";
        let text = metrics.render_as(MetricNames::Vllm, "m");
        assert!(text.lines().any(|line| line == info), "{text}");
        assert!(metrics.render().contains("loquent_kv_cells 4096"));
        drop(load);
        assert!(metrics.render().contains("loquent_kv_cells 0"));
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
