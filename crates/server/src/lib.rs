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

mod active_request;
mod admission;
pub mod after_ready_tasks;
mod api;
mod app;
mod auth;
mod blocking_workers;
mod body;
mod cache_domain;
mod caller;
mod charged_body;
mod clock;
mod completion;
mod confine;
pub mod connection_limits;
mod connections;
mod dashboard;
mod dialect;
mod engine_thread;
mod engine_watch;
mod error;
mod event_writer;
mod flush;
mod flush_channel;
mod forecast;
mod full_answer;
pub mod full_response;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod held_answer;
mod hosts;
mod http;
mod https;
mod identity;
mod infill;
mod json_response;
pub mod loading_answer;
mod memory;
mod metrics;
mod model;
mod models;
mod obfuscation;
mod origin;
mod otel;
mod output;
mod page_file;
mod peer;
pub mod pending_deltas;
#[cfg(test)]
mod pool_law;
mod prompt_threads;
mod prompts;
mod query;
mod quic;
pub mod quic_links;
mod rate_headers;
mod records;
mod request_log;
mod request_spans;
mod resumable;
mod routes;
mod server;
mod service;
mod serving_config;
mod sse;
mod start;
mod store;
mod trace_context;
mod upstream;
mod usage;

pub use crate::identity::Owner;
pub use active_request::ActiveRequest;
pub use api::fields::Fields;
pub use api::request::{Endpoint, Prompt, Request};
pub use api::sampling::{SamplingDefaults, StatedSampling};
pub use app::{App, HttpConfig, OllamaApi};
pub use auth::ApiKeys;
pub use caller::Caller;
pub use clock::{Clock, unix_time_s};
pub use connections::TcpLimits;
pub use error::ApiError;
pub use flush::Flush;
pub use hosts::AllowedHosts;
pub use http::router;
pub use identity::{ApiKey, Identity, KeyUsage};
pub use metrics::{MetricNames, Metrics};
pub use model::{ChatFormat, GrammarSource, ModelFacts, ServedModel, end_tokens};
pub use models::{KeeperConfig, KeptModel, ModelEntry, ResidencyLimits, ServedModels};
pub use obfuscation::ObfuscationDefault;
pub use otel::{OpenSpan, Telemetry};
pub use output::StreamBounds;
pub use page_file::PageFile;
pub use peer::{PeerAddress, TrustedProxies, TrustedProxy};
pub use prompt_threads::WorkClass;
pub use quic::{ALPN, CertificateSource, QuicConfig, StreamMessage};
pub use request_log::{RequestId, RequestLog};
pub use resumable::{MUTE_LIMIT, ResumableLimits};
pub use server::{ServerConfig, run};
pub use service::{Service, StartedAnswer};
pub use serving_config::ServingConfig;
pub use start::{
    Announcement, Description, KeptModels, LoadedBackend, LoadedEngine, ModelLoader, ServiceConfig,
    start_engine, start_upstream,
};
pub use store::shared::address::SharedAddress;
pub use store::{
    Kind, ListPage, Progress, Store, StoreConfig, StoreError, StoreLimits, StoreLocation,
    StoredObject,
};
pub use trace_context::TraceParent;
pub use upstream::balancer::Routing;
pub use upstream::routes::UpstreamRoute;
pub use upstream::{PoolConfig, UpstreamConfig};
