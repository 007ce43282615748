//! A model without weights and a configuration for it, shared by the tests.

use std::sync::Arc;
use std::time::Duration;

use loquent_engine::sim::SimVocab;
use loquent_engine::template::{CHATML, ChatTemplate};
use loquent_infer::admission::Bounds;
use loquent_infer::budget::ItlTarget;
use loquent_infer::scheduler::Limits;
use loquent_infer::speculation::Speculation;
use loquent_proto::coalesce::StreamInterval;
use loquent_server::{
    ChatFormat, ModelFacts, RequestLog, SamplingDefaults, ServedModel, ServiceConfig,
    ServingConfig, StreamBounds, end_tokens,
};

/// The simulated engine's model.
pub fn model() -> ServedModel {
    let template = ChatTemplate::new(CHATML).unwrap();
    ServedModel {
        name: "simulated".into(),
        end_tokens: end_tokens(&SimVocab),
        vocab: Arc::new(SimVocab),
        chat: Arc::new(ChatFormat::new(template)),
        context_tokens: 16_384,
        trained_context: None,
        facts: ModelFacts {
            architecture: "sim".into(),
            parameters: 134_515_008,
            quantization: "Q4_K_M".into(),
            bytes: 98_000_000,
        },
        defaults: SamplingDefaults::default(),
        created_s: 1,
        grammars: Default::default(),
        computed_by: String::new(),
    }
}

/// A service for `max_batch_size` completions at once, with bounds that no test reaches by chance.
pub fn service_config(max_batch_size: usize) -> ServiceConfig {
    ServiceConfig {
        limits: Limits {
            max_batch_size,
            prefill_max_tokens: 512,
            itl_target: ItlTarget::Unbounded,
            prefix_cache: true,
            speculation: Speculation::Off,
            queue_timeout: None,
        },
        bounds: Bounds {
            max_inflight_requests: 4 * max_batch_size,
            max_inflight_per_tenant: Some(4 * max_batch_size),
            max_queued_tokens: 100_000,
        },
        streams: StreamBounds { buffer_bytes: 32 * 1024, stall_limit: Duration::from_secs(30) },
        serving: ServingConfig {
            interval: StreamInterval::default(),
            max_delay: None,
            strict_model: false,
            share_prefix_cache: false,
            split_reasoning: true,
            force_usage: false,
        },
        engine_timeout: Duration::from_secs(60),
        engine_outage: Duration::from_secs(60),
        tokenize_workers: 2,
        otlp_endpoint: None,
        request_log: RequestLog::default(),
    }
}
