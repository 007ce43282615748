//! State shared by all requests, from before the model is loaded until the last stream has ended.

use std::net::Ipv4Addr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use axum::Router;
use http::{HeaderMap, HeaderValue};

use crate::chosen_ids::ChosenIds;
use crate::connection_limits::ProbePermits;
use crate::dashboard::Dashboard;
use crate::hosts::AllowedHosts;
use crate::live_batches::LiveBatches;
use crate::models::{ModelEntry, ServedModels};
use crate::origin::{is_page_of_app, is_page_of_this_machine};
use crate::page_file::PageFile;
use crate::quic_links::QuicLinks;
use crate::service::Service;
use loquent_openai::headers::authorization;
use loquent_responses::live::LiveResponses;
use loquent_responses::lookup::ResponseLookup;
use loquent_resumable::{ResumableAnswers, ResumableLimits};
use loquent_serving::auth::ApiKeys;
use loquent_serving::body::{BodyLimits, RequestBodies};
use loquent_serving::clock::{Clock, unix_time_s};
use loquent_serving::entropy::Entropy;
use loquent_serving::error::ApiError;
use loquent_serving::identity::{Identity, Owner};
use loquent_serving::metrics::{MetricNames, Metrics};
use loquent_serving::obfuscation::ObfuscationDefault;
use loquent_serving::peer::{PeerAddress, TrustedProxies, is_forwarded};
use loquent_serving::request_log::RequestLog;
use loquent_store::recorder::StoreTarget;
use loquent_store::{AnswerFence, Kind, Store, StoreLimits};

/// Path of a browser's WebTransport session on the QUIC port.
pub const WEB_TRANSPORT_PATH: &str = "/loquent/1";

/// Configuration of the HTTP side.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Keys of which clients must have one; without any, the API is open to everybody.
    pub api_keys: ApiKeys,
    /// Proxies that are trusted to name the client whose request they forward.
    pub trusted_proxies: TrustedProxies,
    /// True if `/metrics` has counts by key name. Anyone who reaches the port can read them.
    pub metrics_by_key: bool,
    /// Naming scheme of the metrics.
    pub metrics_names: MetricNames,
    /// Origins whose pages may use the API; `*` allows all.
    pub cors_origins: Vec<String>,
    /// Host names that requests may use for the server.
    pub allowed_hosts: AllowedHosts,
    /// Origins besides the server's own that its pages may connect to, such as
    /// `http://127.77.0.1:8080`.
    pub page_sources: Vec<String>,
    /// Availability of Ollama's API.
    pub ollama_api: OllamaApi,
    /// Largest request body in bytes; larger ones get 413.
    pub max_request_bytes: usize,
    /// Event streams that are padded unless their request decides otherwise.
    pub obfuscation: ObfuscationDefault,
    /// Maximum bytes of all request bodies together, including their parsed form.
    pub max_request_memory_bytes: usize,
    /// Maximum silence of a stream before a heartbeat is sent, so that proxies keep its connection
    /// open.
    pub heartbeat: Duration,
    /// SHA-256 of the self-signed certificate of HTTPS in DER, which people compare with what a
    /// browser shows; `None` for a certificate from an authority, or without HTTPS.
    pub https_certificate_sha256: Option<[u8; 32]>,
}

/// Availability of Ollama's API. Its clients seldom send a key, and expect to find it on their own
/// machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OllamaApi {
    /// On a server that only this machine can reach.
    #[default]
    Local,
    /// On every server.
    Always,
    /// Never.
    Never,
}

/// A server open to everybody on its own machine, with bounds for requests of any usual size.
impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            trusted_proxies: TrustedProxies::default(),
            metrics_by_key: false,
            metrics_names: MetricNames::default(),
            cors_origins: Vec::new(),
            allowed_hosts: AllowedHosts::default(),
            page_sources: Vec::new(),
            ollama_api: OllamaApi::default(),
            max_request_bytes: 8 << 20,
            obfuscation: ObfuscationDefault::default(),
            max_request_memory_bytes: 128 << 20,
            heartbeat: Duration::from_secs(10),
            https_certificate_sha256: None,
        }
    }
}

impl HttpConfig {
    /// Returns true if only this machine can reach the server: directly, since it is bound to a
    /// loopback address, and through no proxy that the operator names.
    pub fn is_local(&self) -> bool {
        self.allowed_hosts.is_local() && self.trusted_proxies.is_empty()
    }

    /// Returns true if Ollama's API is served.
    pub fn offers_ollama(&self) -> bool {
        match self.ollama_api {
            OllamaApi::Local => self.is_local(),
            OllamaApi::Always => true,
            OllamaApi::Never => false,
        }
    }

    /// Returns true if pages of `origin` may use the API: those that the operator lists, those of
    /// installed apps and, on a server that only this machine can reach, those of this machine.
    pub fn allows_origin(&self, origin: &[u8]) -> bool {
        self.cors_origins.iter().any(|one| one == "*" || one.as_bytes() == origin)
            || is_page_of_app(origin)
            || self.is_local() && is_page_of_this_machine(origin)
    }
}

/// Data that clients need to connect over QUIC (S-1.3).
#[derive(Debug, Clone, Copy)]
pub struct QuicAddress {
    /// UDP port on the host that served the page or the API.
    pub port: u16,
    /// SHA-256 of a self-signed certificate in DER; `None` for a certificate from an authority.
    pub certificate_sha256: Option<[u8; 32]>,
}

/// State behind all routes.
pub struct App {
    /// Configuration of the HTTP side.
    pub config: HttpConfig,
    /// Clock of this server.
    pub clock: Clock,
    /// Counters exported by `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Resumable answers, which outlive their reader's connection.
    pub resumable: Arc<ResumableAnswers>,
    /// Answers by client-chosen ids.
    pub chosen_ids: ChosenIds,
    /// Receives and parses request bodies.
    pub bodies: Arc<RequestBodies>,
    /// Background responses while they are generated.
    pub responses: Arc<LiveResponses>,
    /// Batches while they run.
    pub batches: Arc<LiveBatches>,
    /// Objects that clients have stored.
    pub store: Store,
    /// Routes from outside this crate, which need the same keys as the API.
    pub extension: Router,
    /// Pages from outside this crate, open to everybody.
    pub pages: Vec<PageFile>,
    /// Log of finished requests.
    pub request_log: RequestLog,
    /// Dashboard of the server's activity.
    pub dashboard: Arc<Dashboard>,
    /// The open QUIC connections.
    pub links: Arc<QuicLinks>,
    /// Places of the streams that measure the path to a client.
    pub probe_places: ProbePermits,
    /// The models that answer.
    pub models: Arc<ServedModels>,
    quic_address: RwLock<Option<QuicAddress>>,
}

impl App {
    /// Returns the place in the store of an answer of `owner` that is generated with `fence`.
    pub fn store_target(&self, kind: Kind, owner: Owner, fence: AnswerFence) -> StoreTarget {
        let workers = self.bodies.workers().clone();
        StoreTarget { store: self.store.clone(), workers, kind, owner, fence }
    }

    /// Returns what finds the responses of `/v1/responses`.
    pub fn response_lookup(&self) -> ResponseLookup<'_> {
        let Self { responses: live, resumable: answers, store, bodies, .. } = self;
        ResponseLookup { live, answers, starter: self, store, bodies }
    }

    /// Creates the state of a server whose model is still loading: requests get 503.
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
        let resumable =
            ResumableAnswers::new(limits, obfuscation, clock, metrics.clone(), Entropy::system());
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
            batches: Arc::default(),
            store: Store::in_memory(StoreLimits::default()),
            extension: Router::new(),
            pages: Vec::new(),
            request_log: RequestLog::default(),
            dashboard: Arc::default(),
            links: Arc::default(),
            probe_places: ProbePermits::default(),
            models: Arc::default(),
            quic_address: RwLock::default(),
        }
    }

    /// Replaces the in-memory store with `store`. Resumable answers are shared with the replicas
    /// that use the same store.
    pub fn with_store(self, store: Store) -> Self {
        if let Some(connection) = store.shared() {
            self.resumable.share(connection.clone());
        }
        Self { store, ..self }
    }

    /// Adds the routes of `extension`, which need a key if the server has keys.
    pub fn with_extension(self, extension: Router) -> Self {
        Self { extension, ..self }
    }

    /// Adds `pages` to the server's own.
    pub fn with_pages(self, pages: Vec<PageFile>) -> Self {
        Self { pages, ..self }
    }

    /// Logs requests to `request_log`.
    pub fn with_request_log(self, request_log: RequestLog) -> Self {
        Self { request_log, ..self }
    }

    /// Returns the bytes that are free for the bodies of further requests.
    pub fn request_memory_free_bytes(&self) -> usize {
        self.bodies.memory().free_bytes()
    }

    /// Returns the data for connecting over QUIC; `None` while it is not served.
    pub fn quic_address(&self) -> Option<QuicAddress> {
        *self.quic_address.read().expect("nothing panics under this lock")
    }

    /// Announces the QUIC port, or its new certificate, to clients.
    pub fn set_quic_address(&self, address: QuicAddress) {
        *self.quic_address.write().expect("nothing panics under this lock") = Some(address);
    }

    /// Opens the API: requests go to `service` from now on.
    pub fn open(&self, service: Arc<Service>) {
        self.models.open(vec![ModelEntry::new(service)], None);
    }

    /// Returns the identity of a request with `headers` over the connection from `peer`. Requests
    /// without a connection, as in tests, get the unspecified address.
    ///
    /// # Errors
    /// 401 for a missing or wrong key; 429 after many wrong ones.
    pub fn identify(
        &self,
        headers: &HeaderMap,
        peer: Option<PeerAddress>,
    ) -> Result<Identity, ApiError> {
        let peer = peer.unwrap_or(PeerAddress(Ipv4Addr::UNSPECIFIED.into()));
        let proxies = &self.config.trusted_proxies;
        let address = proxies.client_address(peer, headers);
        let authorization = authorization(headers);
        let authorization = authorization.as_ref().map(HeaderValue::as_bytes);
        let keys = &self.config.api_keys;
        let identity = keys.identify(authorization, address, self.clock.now(), unix_time_s())?;
        // Also a proxy on this machine that is not trusted passes on the requests of others.
        let identity = identity.local_if(!is_forwarded(headers));
        Ok(match proxies.fairness_id(peer, headers) {
            Some(name) => identity.with_fairness_id(name),
            None => identity,
        })
    }

    /// Checks that clients can be told apart, or are all on this machine: only then can they list
    /// their objects and choose ids. `what` names the refused feature in the error.
    ///
    /// # Errors
    /// 403 on a server without keys that others can reach.
    pub fn check_told_apart(&self, what: &str) -> Result<(), ApiError> {
        let told_apart = !self.config.api_keys.is_empty() || self.config.is_local();
        if told_apart { Ok(()) } else { Err(ApiError::needs_keys(what)) }
    }

    /// Returns the service for requests that name no model, if it is never unloaded.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.models.first().ok().and_then(ModelEntry::constant)
    }

    /// Checks that the process still works. A loading model is no failure: an error here means that
    /// only a restart helps.
    ///
    /// # Errors
    /// 503 after the engine has failed.
    pub fn alive(&self) -> Result<(), ApiError> {
        self.models.alive()
    }

    /// Hands over to other replicas the unfinished answers that these can continue, because this
    /// one ends, and takes no requests any more.
    pub async fn leave_to_replicas(&self) {
        if self.store.shared().is_some() && self.store.outage().is_none() {
            let others = Arc::new(self.resumable.others_offers().await);
            tokio::join!(self.resumable.hand_over(&others), self.responses.leave(&others));
        }
    }

    /// Checks that new requests are accepted.
    ///
    /// # Errors
    /// 503 while the model loads, the server drains, or its stages are not connected.
    pub fn ready(&self) -> Result<(), ApiError> {
        self.models.ready()
    }
}
