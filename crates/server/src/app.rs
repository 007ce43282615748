//! What all requests share, from before the model is loaded until the last stream has ended.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::auth::ApiKeys;
use crate::clock::Clock;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::service::Service;

/// What clients are told to wait while the model loads, in seconds.
const LOADING_RETRY_S: u64 = 2;

/// Settings of the HTTP side.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Keys that open the API.
    pub api_keys: ApiKeys,
    /// Origins whose pages may use the API; `*` is all.
    pub cors_origins: Vec<String>,
    /// Largest request body.
    pub max_request_bytes: usize,
    /// Silence after which a stream gets a comment.
    pub heartbeat: Duration,
}

/// The state behind all routes.
pub struct App {
    /// Settings.
    pub options: HttpOptions,
    /// The server's clock.
    pub clock: Clock,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
    service: OnceLock<Arc<Service>>,
}

impl App {
    /// A server whose model is still loading.
    pub fn new(options: HttpOptions, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self { options, clock, metrics, service: OnceLock::new() }
    }

    /// The model is loaded.
    pub fn open(&self, service: Arc<Service>) {
        assert!(self.service.set(service).is_ok(), "a server loads one model");
    }

    /// The service.
    ///
    /// # Errors
    /// 503 while the model loads.
    pub fn service(&self) -> Result<&Arc<Service>, ApiError> {
        let loading = || ApiError::unavailable("The model is loading.", LOADING_RETRY_S);
        self.service.get().ok_or_else(loading)
    }

    /// Whether new requests are taken.
    ///
    /// # Errors
    /// 503 while the model loads, the server drains, or the engine is away.
    pub fn ready(&self) -> Result<(), ApiError> {
        self.service()?.ready()
    }
}
