//! The state that all requests share, from before the model is loaded until the last stream
//! has ended.

use std::net::Ipv4Addr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use axum::Router;
use http::{HeaderMap, HeaderValue};

use crate::auth::{ApiKeys, authorization};
use crate::body::{BodyLimits, RequestBodies};
use crate::clock::{Clock, unix_time_s};
use crate::dashboard::Dashboard;
use crate::dialect::chosen_ids::ChosenIds;
use crate::dialect::responses::LiveResponses;
use crate::error::ApiError;
use crate::hosts::AllowedHosts;
use crate::identity::Identity;
use crate::metrics::{MetricNames, Metrics};
use crate::models::{ModelEntry, ServedModels};
use crate::obfuscation::ObfuscationDefault;
use crate::origin::{is_page_of_app, is_page_of_this_machine};
use crate::page_file::PageFile;
use crate::peer::{PeerAddress, TrustedProxies};
use crate::places::ProbePlaces;
use crate::quic::links::QuicLinks;
use crate::request_log::RequestLog;
use crate::resumable::{ResumableAnswers, ResumableLimits};
use crate::service::Service;
use crate::store::{Store, StoreLimits};

/// Path of a browser's WebTransport session on the QUIC port.
pub const WEB_TRANSPORT_PATH: &str = "/loquent/1";

/// Configuration of the HTTP side.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Keys that clients must have; none opens the API to everybody.
    pub api_keys: ApiKeys,
    /// Proxies that are believed when they say whose request they forward.
    pub trusted_proxies: TrustedProxies,
    /// Whether `/metrics` counts by the names of keys. Whoever reaches the port can read them.
    pub metrics_by_key: bool,
    /// Whose names metrics have.
    pub metrics_names: MetricNames,
    /// Origins whose pages may use the API; `*` is all.
    pub cors_origins: Vec<String>,
    /// The names that requests may use for the server.
    pub allowed_hosts: AllowedHosts,
    /// Origins that the server's own pages may connect to besides it: `http://127.77.0.1:8080`.
    pub page_sources: Vec<String>,
    /// Where Ollama's API is served.
    pub ollama_api: OllamaApi,
    /// Largest request body in bytes; larger ones get 413.
    pub max_request_bytes: usize,
    /// Which event streams are padded unless their request decides.
    pub obfuscation: ObfuscationDefault,
    /// Most bytes of all requests' bodies together, and of what they are parsed into.
    pub max_request_memory_bytes: usize,
    /// How long a stream may be silent before a comment is sent, so that proxies keep its
    /// connection open.
    pub heartbeat: Duration,
}

/// Where Ollama's API is served. Its clients seldom send a key, and expect to find it on their own
/// machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OllamaApi {
    /// On a server for this machine alone.
    #[default]
    Local,
    /// On every server.
    Always,
    /// Nowhere.
    Never,
}

impl HttpConfig {
    /// Whether Ollama's API is served.
    pub fn offers_ollama(&self) -> bool {
        match self.ollama_api {
            OllamaApi::Local => self.allowed_hosts.is_local(),
            OllamaApi::Always => true,
            OllamaApi::Never => false,
        }
    }

    /// Whether pages of `origin` may use the API: those that the operator lists, and on a server
    /// for this machine alone, those of this machine and of its apps.
    pub fn allows_origin(&self, origin: &[u8]) -> bool {
        self.cors_origins.iter().any(|one| one == "*" || one.as_bytes() == origin)
            || self.allowed_hosts.is_local()
                && (is_page_of_this_machine(origin) || is_page_of_app(origin))
    }
}

/// What clients need to connect over QUIC (S-1.3).
#[derive(Debug, Clone, Copy)]
pub struct QuicAddress {
    /// UDP port on the host that served the page or the API.
    pub port: u16,
    /// SHA-256 of a self-signed certificate in DER; `None` if authorities vouch for it.
    pub certificate_sha256: Option<[u8; 32]>,
}

/// The state behind all routes.
pub struct App {
    /// Configuration of the HTTP side.
    pub config: HttpConfig,
    /// Gives the time of every event in this server.
    pub clock: Clock,
    /// Counts what `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// Resumable answers, which outlive their reader's connection.
    pub resumable: Arc<ResumableAnswers>,
    /// Answers by ids that clients choose.
    pub chosen_ids: ChosenIds,
    /// Receives and parses request bodies.
    pub bodies: Arc<RequestBodies>,
    /// Background responses while they are generated.
    pub responses: Arc<LiveResponses>,
    /// What clients have stored.
    pub store: Store,
    /// Routes from outside this crate, behind the same keys as the API.
    pub extension: Router,
    /// Pages from outside this crate, for everybody.
    pub pages: Vec<PageFile>,
    /// Where requests are logged when they end.
    pub request_log: RequestLog,
    /// Shows what the server does.
    pub dashboard: Arc<Dashboard>,
    /// The open QUIC connections.
    pub links: Arc<QuicLinks>,
    /// The places of streams that measure the way to a client.
    pub probe_places: ProbePlaces,
    /// The models that answer.
    pub models: Arc<ServedModels>,
    quic_address: RwLock<Option<QuicAddress>>,
}

impl App {
    /// The state of a server whose model is still loading: requests get 503.
    pub fn new(
        config: HttpConfig,
        limits: ResumableLimits,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        if config.metrics_by_key {
            metrics.watch_keys(config.api_keys.clone());
        }
        let obfuscation = config.obfuscation;
        let resumable = ResumableAnswers::new(limits, obfuscation, clock, metrics.clone());
        let bodies = RequestBodies::new(BodyLimits {
            max_bytes: config.max_request_bytes,
            total_bytes: config.max_request_memory_bytes,
        });
        Self {
            config,
            clock,
            metrics,
            resumable,
            chosen_ids: ChosenIds::default(),
            bodies,
            responses: Arc::default(),
            store: Store::in_memory(StoreLimits::default()),
            extension: Router::new(),
            pages: Vec::new(),
            request_log: RequestLog::default(),
            dashboard: Arc::default(),
            links: Arc::default(),
            probe_places: ProbePlaces::default(),
            models: Arc::default(),
            quic_address: RwLock::default(),
        }
    }

    /// The same with `store` in place of one in memory. Resumable answers are shared with the
    /// replicas that share it.
    pub fn with_store(self, store: Store) -> Self {
        if let Some(connection) = store.shared() {
            self.resumable.share(connection.clone());
        }
        Self { store, ..self }
    }

    /// The same with the routes of `extension`, which only clients with a key reach where there
    /// are keys.
    pub fn with_extension(self, extension: Router) -> Self {
        Self { extension, ..self }
    }

    /// The same with `pages` beside its own.
    pub fn with_pages(self, pages: Vec<PageFile>) -> Self {
        Self { pages, ..self }
    }

    /// The same with lines of requests in `request_log`.
    pub fn with_request_log(self, request_log: RequestLog) -> Self {
        Self { request_log, ..self }
    }

    /// Bytes that are free for the bodies of further requests.
    pub fn request_memory_free_bytes(&self) -> usize {
        self.bodies.memory().free_bytes()
    }

    /// How to connect over QUIC; `None` while it is not served.
    pub fn quic_address(&self) -> Option<QuicAddress> {
        *self.quic_address.read().expect("nothing panics under this lock")
    }

    /// Announces the QUIC port, or its new certificate, to clients.
    pub fn set_quic_address(&self, address: QuicAddress) {
        *self.quic_address.write().expect("nothing panics under this lock") = Some(address);
    }

    /// Opens the API: requests go to `service` from here on.
    pub fn open(&self, service: Arc<Service>) {
        self.models.open(vec![ModelEntry::new(service)]);
    }

    /// Who sends a request with `headers` over the connection from `peer`. Requests without a
    /// connection, as tests make them, come from nowhere.
    ///
    /// # Errors
    /// 401 for a missing or wrong key; 429 after many wrong ones.
    pub fn identify(
        &self,
        headers: &HeaderMap,
        peer: Option<PeerAddress>,
    ) -> Result<Identity, ApiError> {
        let peer = peer.unwrap_or(PeerAddress(Ipv4Addr::UNSPECIFIED.into()));
        let address = self.config.trusted_proxies.client_address(peer, headers);
        let authorization = authorization(headers);
        let authorization = authorization.as_ref().map(HeaderValue::as_bytes);
        let keys = &self.config.api_keys;
        keys.identify(authorization, address, self.clock.now(), unix_time_s())
    }

    /// Whether clients can be told apart, or are all of this machine: only then are there lists of
    /// what they have, and ids that they choose. `what` says in an error what is refused.
    ///
    /// # Errors
    /// 403 on a server without keys that others can reach.
    pub fn check_told_apart(&self, what: &str) -> Result<(), ApiError> {
        let told_apart = !self.config.api_keys.is_empty() || self.config.allowed_hosts.is_local();
        if told_apart { Ok(()) } else { Err(ApiError::needs_keys(what)) }
    }

    /// The service that answers requests which name no model, where that is always there.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.models.first().ok().and_then(ModelEntry::constant)
    }

    /// Whether the process is of use. A model that loads is no failure: only a restart helps here.
    ///
    /// # Errors
    /// 503 after the engine has failed.
    pub fn alive(&self) -> Result<(), ApiError> {
        self.models.alive()
    }

    /// Leaves the answers that other replicas can go on with to them, because this one ends.
    pub async fn leave_to_replicas(&self) {
        if self.store.shared().is_some() && self.store.outage().is_none() {
            tokio::join!(self.resumable.hand_over(), self.responses.leave());
        }
    }

    /// Whether new requests are accepted.
    ///
    /// # Errors
    /// 503 while the model loads, the server drains, or its stages are not connected.
    pub fn ready(&self) -> Result<(), ApiError> {
        self.models.ready()
    }
}
