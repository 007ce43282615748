//! The life of a server: listen, load, serve, drain, stop.
//!
//! The port is open before the model is loaded, so that `/health` and `/ready` report the
//! progress. A shutdown refuses new work, lets running streams end within a limit, and ends
//! the rest with an error.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::app::{App, HttpConfig};
use crate::clock::Clock;
use crate::connections::{Connections, TcpLimits};
use crate::dashboard::gather as dashboard;
use crate::http::router;
use crate::metrics::Metrics;
use crate::quic::{CertificateSource, QuicConfig, QuicPort};
use crate::resumable::ResumableLimits;
use crate::start::{LoadedBackend, ServiceConfig, start_engine, start_upstream};
use crate::store::{Store, StoreConfig};

/// How long streams that were ended at the drain limit may take to send their error event.
const ERROR_EVENT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the port stays open after the engine has failed, so that whoever probes it once a
/// second learns why.
const FAILURE_NOTICE: Duration = Duration::from_secs(1);
/// How long clients may take to receive their error after the engine has failed.
const FAILED_DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How long the engine's last step may take after the drain.
const ENGINE_END_LIMIT: Duration = Duration::from_secs(10);

/// A server's configuration.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The HTTP side.
    pub http: HttpConfig,
    /// The service behind it.
    pub service: ServiceConfig,
    /// Bounds on resumable answers.
    pub kept: ResumableLimits,
    /// Where clients' stored answers are.
    pub store: StoreConfig,
    /// The QUIC port; `None` serves without QUIC.
    pub quic: Option<QuicConfig>,
    /// The certificate of HTTPS; `None` serves plain HTTP.
    pub https: Option<CertificateSource>,
    /// Bounds on TCP connections.
    pub tcp: TcpLimits,
    /// How long running streams may take to end after a shutdown was requested.
    pub drain_limit: Duration,
    /// Routes of the program around this crate, behind the same keys as the API.
    pub extension: Router,
}

/// Serves on `listener` until `shutdown` resolves and all streams have ended.
///
/// `load` runs on its own thread, while the server already answers; `announce` is called with
/// the model's name and description once requests are accepted.
///
/// # Errors
/// The error of `load`, of the operating system, or that the engine failed.
pub async fn run<B: Into<LoadedBackend> + Send + 'static>(
    listener: TcpListener,
    config: ServerConfig,
    load: impl FnOnce() -> anyhow::Result<B> + Send + 'static,
    announce: impl FnOnce(&str, &str),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let metrics = Arc::new(Metrics::new());
    let mut http = config.http.clone();
    http.allowed_hosts = http.allowed_hosts.bound_to(listener.local_addr()?.ip());
    let store_config = config.store.clone();
    let store = tokio::task::spawn_blocking(move || Store::start(&store_config)).await??;
    let app = App::new(http, config.kept, Clock::start(), metrics).with_store(store.clone());
    let app = Arc::new(app.with_extension(config.extension.clone()));
    let mut ports = Ports::open(listener, &app, &config)?;
    let mut background = JoinSet::new();
    background.spawn(config.http.api_keys.clone().keep_current());
    background.spawn(store.clone().keep_swept());
    background.spawn(dashboard::keep_sampled(app.clone()));
    let mut shutdown = pin!(shutdown);
    let engine = tokio::select! {
        error = ports.serve() => return Err(error),
        // Nothing runs yet that would have to drain.
        () = &mut shutdown => return Ok(()),
        loaded = tokio::task::spawn_blocking(load) => {
            open(&app, &config, loaded??.into(), announce)?
        }
    };
    let limit = tokio::select! {
        error = ports.serve() => return Err(error),
        () = shutdown => config.drain_limit,
        why = engine_failure(&app) => {
            tracing::error!("draining because the engine has failed: {why}");
            // Probes still find the port, and 503 behind it, for a moment.
            let _ = tokio::time::timeout(FAILURE_NOTICE, ports.serve()).await;
            config.drain_limit.min(FAILED_DRAIN_LIMIT)
        }
    };
    ports.drain(&app, limit).await;
    store.close().await;
    let failure = app.service().ok().and_then(|service| service.failure());
    if let (Some(engine), None) = (engine, &failure) {
        join(engine).await;
    }
    if let Some(telemetry) = app.service().ok().and_then(|service| service.telemetry()) {
        // The exporter sends the last spans before it returns.
        tokio::task::spawn_blocking(move || telemetry.stop()).await?;
    }
    match failure {
        None => Ok(()),
        Some(why) => Err(anyhow::anyhow!("the engine has failed: {why}; start the server again")),
    }
}

/// Waits until the engine fails.
async fn engine_failure(app: &App) -> Arc<str> {
    match app.service() {
        Ok(service) => service.failed().await,
        Err(_) => std::future::pending().await,
    }
}

/// Waits for the engine to end what it computes, so that its memory is freed in order.
async fn join(engine: JoinHandle<()>) {
    let joined = tokio::task::spawn_blocking(|| engine.join());
    if tokio::time::timeout(ENGINE_END_LIMIT, joined).await.is_err() {
        tracing::warn!("the engine still computes; the process ends without it");
    }
}

/// Starts the backend and opens the API; returns the engine's thread if it runs here.
fn open(
    app: &App,
    config: &ServerConfig,
    backend: LoadedBackend,
    announce: impl FnOnce(&str, &str),
) -> anyhow::Result<Option<JoinHandle<()>>> {
    let (service, description, engine) = match backend {
        LoadedBackend::Engine(loaded) => {
            let description = loaded.description.clone();
            let metrics = app.metrics.clone();
            let (service, engine) = start_engine(&config.service, loaded, app.clock, metrics)?;
            (service, description, Some(engine))
        }
        LoadedBackend::Upstream(upstream) => {
            let service = start_upstream(&config.service, &upstream, app)?;
            (service, format!("upstream {}", upstream.url), None)
        }
    };
    let name = service.model().name.clone();
    app.open(service);
    announce(&name, &description);
    Ok(engine)
}

/// The TCP port and, where there is one, the QUIC port.
struct Ports {
    listener: TcpListener,
    http: Connections,
    quic: Option<Arc<QuicPort>>,
    /// The task that accepts QUIC connections; dropping it ends the task.
    quic_task: JoinSet<()>,
}

impl Ports {
    fn open(listener: TcpListener, app: &Arc<App>, config: &ServerConfig) -> anyhow::Result<Self> {
        let router = router(app.clone());
        let tls = config.https.clone();
        let http = Connections::new(router.clone(), tls, config.tcp.clone(), app.metrics.clone())?;
        let quic = bind_quic(&listener, config)?.map(Arc::new);
        let mut quic_task = JoinSet::new();
        if let Some(port) = &quic {
            // Here and not in the task, so that the first request already learns of it.
            app.set_quic_address(port.address());
            quic_task.spawn(port.clone().run(app.clone(), router));
        }
        Ok(Self { listener, http, quic, quic_task })
    }

    /// Serves both ports; returns only when one of them fails.
    async fn serve(&mut self) -> anyhow::Error {
        tokio::select! {
            error = self.http.accept(&self.listener) => error.into(),
            // Without QUIC the set is empty, and this branch is disabled.
            Some(_) = self.quic_task.join_next() => anyhow::anyhow!("the QUIC port was closed"),
        }
    }

    /// Refuses new work, waits at most `limit` for the running streams and ends the rest with
    /// an error.
    async fn drain(self, app: &App, limit: Duration) {
        // New TCP connections are refused; QUIC stays open, because its answers end over it.
        drop(self.listener);
        let Ok(service) = app.service() else { return };
        service.drain();
        app.dashboard.close();
        tracing::info!(in_flight = service.in_flight(), "draining");
        let mut ended = pin!(async {
            tokio::join!(self.http.shutdown(), app.resumable.settled());
        });
        if tokio::time::timeout(limit, &mut ended).await.is_err() {
            tracing::warn!(in_flight = service.in_flight(), "the drain limit is over");
            service.stop();
            let _ = tokio::time::timeout(ERROR_EVENT_TIMEOUT, ended).await;
        }
        service.stop();
        app.resumable.shut_down().await;
        if let Some(port) = &self.quic {
            port.close().await;
        }
    }
}

/// Binds the QUIC port. Where it is not required, the server starts without it if it cannot
/// be bound.
fn bind_quic(listener: &TcpListener, config: &ServerConfig) -> anyhow::Result<Option<QuicPort>> {
    let Some(quic) = &config.quic else { return Ok(None) };
    match QuicPort::bind(listener.local_addr()?, quic.clone()) {
        Ok(port) => Ok(Some(port)),
        Err(error) if quic.required => Err(error),
        Err(error) => {
            tracing::warn!("serving without QUIC: {error:#}");
            Ok(None)
        }
    }
}
