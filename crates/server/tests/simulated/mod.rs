//! A model without weights, an engine that computes it, and configurations for a server of it,
//! shared by the tests.

use std::sync::Arc;
use std::time::Duration;

use loquent_engine::sim::{SimOptions, SimRunner};
use loquent_formats::template::{CHATML, ChatTemplate};
use loquent_infer::admission::Bounds;
use loquent_infer::budget::ItlTarget;
use loquent_infer::scheduler::Limits;
use loquent_infer::sim_vocab::SimVocab;
use loquent_infer::speculation::Speculation;
use loquent_server::{
    ChatFormat, HttpConfig, LoadedEngine, ModelFacts, RequestLog, ResumableLimits,
    SamplingDefaults, ServedModel, ServiceConfig, ServingConfig, StreamBounds, end_tokens,
};

/// A limit that no passing test comes near, however loaded the machine.
pub const FOREVER: Duration = Duration::from_secs(600);

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

/// The simulated engine, computing with `options`.
pub fn loaded(options: SimOptions) -> LoadedEngine {
    let runner = Box::new(SimRunner::new(options));
    LoadedEngine { runner, model: model(), description: "simulated".into(), stages: None }
}

/// An HTTP side without keys, whose streams have no comments, and with less room for requests than
/// a real one.
pub fn http_config() -> HttpConfig {
    HttpConfig {
        max_request_bytes: 1 << 20,
        max_request_memory_bytes: 64 << 20,
        heartbeat: FOREVER,
        ..HttpConfig::default()
    }
}

/// Limits of resumable answers that wait for their readers as long as a test lasts.
pub fn limits() -> ResumableLimits {
    ResumableLimits {
        kept_bytes: 64 << 20,
        answers_per_key: 64,
        grace: FOREVER,
        stall_limit: FOREVER,
        ..ResumableLimits::default()
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
        serving: ServingConfig::default(),
        engine_timeout: Duration::from_secs(60),
        engine_outage: Duration::from_secs(60),
        tokenize_workers: 2,
        otlp_endpoint: None,
        request_log: RequestLog::default(),
        prefix_store: None,
    }
}
