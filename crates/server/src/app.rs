//! What all requests share, from before the model is loaded until the last stream has ended.

use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use crate::auth::ApiKeys;
use crate::clock::Clock;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::resumable::{ResumableAnswers, ResumableLimits};
use crate::service::Service;

/// What clients are told to wait while the model loads, in seconds.
const LOADING_RETRY_S: u64 = 2;

/// Path of a browser's WebTransport session on the QUIC port.
pub const WEB_TRANSPORT_PATH: &str = "/loquent/1";

/// Settings of the HTTP side.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Keys that open the API.
    pub api_keys: ApiKeys,
    /// Origins whose pages may use the API; `*` is all.
    pub cors_origins: Vec<String>,
    /// Largest request body.
    pub max_request_bytes: usize,
    /// Silence after which a stream gets a comment.
    pub heartbeat: Duration,
}

impl HttpConfig {
    /// Whether the operator allows pages of `origin`.
    pub fn lists_origin(&self, origin: &[u8]) -> bool {
        self.cors_origins.iter().any(|one| one == "*" || one.as_bytes() == origin)
    }
}

/// What clients need to know to connect by QUIC (S-1.3).
#[derive(Debug, Clone, Copy)]
pub struct QuicAddress {
    /// UDP port.
    pub port: u16,
    /// SHA-256 of a self-signed certificate in DER.
    pub certificate_sha256: Option<[u8; 32]>,
}

/// The state behind all routes.
pub struct App {
    /// Settings.
    pub config: HttpConfig,
    /// The server's clock.
    pub clock: Clock,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
    /// Answers that outlive their reader's connection.
    pub resumable: Arc<ResumableAnswers>,
    quic_address: RwLock<Option<QuicAddress>>,
    service: OnceLock<Arc<Service>>,
}

impl App {
    /// A server whose model is still loading.
    pub fn new(
        config: HttpConfig,
        limits: ResumableLimits,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        let resumable = ResumableAnswers::new(limits, clock, metrics.clone());
        let quic_address = RwLock::default();
        Self { config, clock, metrics, resumable, quic_address, service: OnceLock::new() }
    }

    /// How to connect over QUIC; `None` while it is not served.
    pub fn quic_address(&self) -> Option<QuicAddress> {
        *self.quic_address.read().expect("nothing panics under this lock")
    }

    /// Announces the QUIC port, or its new certificate, to clients.
    pub fn set_quic_address(&self, address: QuicAddress) {
        *self.quic_address.write().expect("nothing panics under this lock") = Some(address);
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
