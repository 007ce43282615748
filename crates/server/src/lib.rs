//! An OpenAI-compatible server: HTTP, server-sent events and QUIC before a batching engine or
//! before another server.
//!
//! [`run`] is the whole life of a server: it binds the ports, loads the backend
//! ([`LoadedBackend`]), serves, and drains. A [`ServerConfig`] holds all operator settings; the
//! command line only fills it in.
//!
//! [`start_engine`] starts the same [`Service`] without a port. A service takes a valid
//! [`Request`], admits, tokenizes and schedules it, and returns an [`ActiveRequest`], which yields
//! the answer's flushes. Benchmarks use it to measure what HTTP adds.
//!
//! The engine itself is not part of this crate: it is a `Runner` of `loquent-infer`, supplied by a
//! loader, which runs on a separate thread.

pub mod after_ready_tasks;
mod app;
mod certificate;
mod challenges;
mod charged_body;
mod chosen_ids;
pub mod connection_limits;
mod connections;
mod dashboard;
mod dialect_errors;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hosts;
mod http;
mod https;
mod json_response;
mod live_batches;
mod models;
mod origin;
mod paced_body;
mod page_file;
mod peer_router;
#[cfg(test)]
mod pool_law;
mod quic;
pub mod quic_links;
mod rate_headers;
mod routes;
mod server;
mod service;
mod sse;
mod start;
mod usage_ledger;

pub use app::{App, HttpConfig, OllamaApi};
pub use certificate::CertificateSource;
pub use challenges::Challenges;
pub use connections::TcpLimits;
pub use hosts::AllowedHosts;
pub use http::router;
pub use loquent_gateway::balancer::Routing;
pub use loquent_gateway::routes::UpstreamRoute;
pub use loquent_gateway::{PoolConfig, UpstreamConfig};
pub use loquent_resumable::{MUTE_LIMIT, ResumableLimits};
pub use loquent_serving::active_request::ActiveRequest;
pub use loquent_serving::api::fields::Fields;
pub use loquent_serving::api::request::{Endpoint, Prompt, Request};
pub use loquent_serving::api::sampling::{SamplingDefaults, StatedSampling};
pub use loquent_serving::auth::{ApiKeys, JwtConfig, KeySetSource, MAX_KEY_SET_BYTES};
pub use loquent_serving::caller::Caller;
pub use loquent_serving::clock::{Clock, unix_time_s};
pub use loquent_serving::error::ApiError;
pub use loquent_serving::flush::Flush;
pub use loquent_serving::identity::{ApiKey, Identity, KeyUsage, Owner};
pub use loquent_serving::metrics::{MetricNames, Metrics};
pub use loquent_serving::model::{ChatFormat, GrammarSource, ModelFacts, ServedModel, end_tokens};
pub use loquent_serving::obfuscation::ObfuscationDefault;
pub use loquent_serving::otel::{OpenSpan, Telemetry};
pub use loquent_serving::output::StreamBounds;
pub use loquent_serving::peer::{PeerAddress, TrustedProxies, TrustedProxy};
pub use loquent_serving::prefix_store::{PrefixStore, PrefixStoreConfig};
pub use loquent_serving::prompt_threads::WorkClass;
pub use loquent_serving::request_log::{RequestId, RequestLog};
pub use loquent_serving::serving_config::ServingConfig;
pub use loquent_serving::trace_context::TraceParent;
pub use loquent_store::address::SharedAddress;
pub use loquent_store::{
    Kind, ListPage, Progress, Store, StoreConfig, StoreError, StoreLimits, StoreLocation,
    StoredObject,
};
pub use models::{
    DownloadProgress, KeeperConfig, KeptModel, ModelDownloader, ModelEntry, ResidencyLimits,
    ServedModels,
};
pub use page_file::PageFile;
pub use quic::{ALPN, QuicConfig, StreamMessage};
pub use server::{ServerConfig, run};
pub use service::{Service, StartedAnswer};
pub use start::{
    Announcement, Description, KeptModels, LoadedBackend, LoadedEngine, ModelLoader, ServiceConfig,
    start_engine, start_upstream,
};
