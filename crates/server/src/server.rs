//! The life of a server: listen, load, serve, drain, stop.
//!
//! The port is open before the model is loaded, so that `/health` and `/ready` report the progress.
//! A shutdown refuses new work, hands over unfinished answers to other replicas where possible,
//! lets the other streams end within a limit, and ends the rest with an error.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::ensure;
use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::app::{App, HttpConfig};
use crate::certificate::CertificateSource;
use crate::connections::{Connections, TcpLimits};
use crate::http::router;
use crate::models::{Keeper, ModelDownloads, ModelEntry, OnDemand};
use crate::page_file::PageFile;
use crate::quic::{QuicConfig, QuicPort};
use crate::routes::batches;
use crate::routes::dashboard::gather as dashboard;
use crate::routes::successor::AppTakeover;
use crate::start::{
    Announcement, Description, EngineStarter, KeptModels, LoadedBackend, ServiceConfig, SharedDesk,
    start_engine_at, start_upstreams_at,
};
use crate::usage_ledger::UsageLedger;
use loquent_gateway::UpstreamConfig;
use loquent_resumable::ResumableLimits;
use loquent_serving::clock::Clock;
use loquent_serving::metrics::Metrics;
use loquent_store::{Store, StoreConfig};

/// Time limit for sending error events to the streams that were ended at the drain limit.
const ERROR_EVENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which the port stays open after the engine has failed, so that a health check once a
/// second gets the reason.
const FAILURE_NOTICE: Duration = Duration::from_secs(1);
/// Time limit for clients to receive their error after the engine has failed.
const FAILED_DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for the engine's last step after the drain.
const ENGINE_END_LIMIT: Duration = Duration::from_secs(10);

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Settings of the HTTP side.
    pub http: HttpConfig,
    /// Settings of the service behind it.
    pub service: ServiceConfig,
    /// Models answered by other servers, listed after those of this process.
    pub upstreams: Vec<UpstreamConfig>,
    /// Bounds on resumable answers.
    pub kept: ResumableLimits,
    /// Location of clients' stored answers.
    pub store: StoreConfig,
    /// The QUIC port; `None` serves without QUIC.
    pub quic: Option<QuicConfig>,
    /// The certificate of HTTPS; `None` serves plain HTTP.
    pub https: Option<CertificateSource>,
    /// Bounds on TCP connections.
    pub tcp: TcpLimits,
    /// Time limit for running streams to end after a shutdown was requested.
    pub drain_limit: Duration,
    /// Routes of the program around this crate, behind the same keys as the API.
    pub extension: Router,
    /// Pages of the program around this crate, which need no key.
    pub pages: Vec<PageFile>,
}

/// Serves on `listener` until `shutdown` resolves and all streams have ended.
///
/// `load` runs on a separate thread, while the server already responds; `announce` is called once
/// requests are accepted.
///
/// # Errors
/// The error of `load`, of the operating system, or that the engine failed.
pub async fn run<B: Into<LoadedBackend> + Send + 'static>(
    listener: TcpListener,
    config: ServerConfig,
    load: impl FnOnce() -> anyhow::Result<B> + Send + 'static,
    announce: impl FnOnce(&Announcement<'_>),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let store = Store::start(&config.store).await?;
    let request_log = config.service.request_log.clone();
    let app = assemble(&listener, &config, &store)?;
    let mut ports = Ports::open(listener, &app, &config)?;
    let mut background = JoinSet::new();
    background.spawn(config.http.api_keys.clone().keep_current());
    background.spawn(store.clone().keep_current());
    let ledger = UsageLedger::new(config.http.api_keys.clone(), store.clone());
    background.spawn(ledger.clone().keep_recorded());
    background.spawn(dashboard::keep_sampled(app.clone()));
    app.models.watch(&app.metrics);
    let mut shutdown = pin!(shutdown);
    let engine = tokio::select! {
        error = ports.serve() => return Err(error),
        // Nothing runs yet that would have to drain.
        () = &mut shutdown => return Ok(()),
        loaded = tokio::task::spawn_blocking(load) => {
            open(&app, &config, loaded??.into(), announce, &mut background)?
        }
    };
    background.spawn(batches::resume_all(app.clone()));
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
    ledger.finish().await;
    store.close().await;
    let failure = app.models.failure();
    if failure.is_none() {
        join(engine.into_iter().chain(app.models.take_threads()).collect()).await;
    }
    if let Some(telemetry) = app.models.telemetry() {
        // The exporter sends the last spans before it returns.
        tokio::task::spawn_blocking(move || telemetry.stop()).await?;
    }
    request_log.flush().await;
    match failure {
        None => Ok(()),
        Some(why) => Err(anyhow::anyhow!("the engine has failed: {why}; start the server again")),
    }
}

/// Creates the state shared by all routes, before there is an engine.
fn assemble(
    listener: &TcpListener,
    config: &ServerConfig,
    store: &Store,
) -> anyhow::Result<Arc<App>> {
    let mut http = config.http.clone();
    http.allowed_hosts = http.allowed_hosts.bound_to(listener.local_addr()?.ip());
    let app = App::new(http, config.kept, Clock::start(), Arc::new(Metrics::new()));
    let app = app.with_store(store.clone()).with_extension(config.extension.clone());
    let app = app.with_pages(config.pages.clone());
    let app = Arc::new(app.with_request_log(config.service.request_log.clone()));
    app.resumable.succeed_by(Arc::new(AppTakeover::of(&app)));
    Ok(app)
}

/// Waits until the engine fails.
async fn engine_failure(app: &App) -> Arc<str> {
    app.models.failed().await
}

/// Waits for engines to end their current computation, so that their memory is freed in order.
async fn join(engines: Vec<JoinHandle<()>>) {
    let join_all = || engines.into_iter().for_each(|engine| drop(engine.join()));
    let joined = tokio::task::spawn_blocking(join_all);
    if tokio::time::timeout(ENGINE_END_LIMIT, joined).await.is_err() {
        tracing::warn!("an engine still computes; the process ends without it");
    }
}

/// Models of this process, and the resources they share with those of upstream servers.
struct LocalModels {
    entries: Vec<ModelEntry>,
    desk: SharedDesk,
    description: Description,
    context_tokens: Option<u32>,
    /// Thread of an engine that is never unloaded.
    engine: Option<JoinHandle<()>>,
    on_demand: Option<OnDemand>,
}

/// Starts the backend and opens the API. Returns the engine's thread if its model is never
/// unloaded. The loader of models runs in the `background`.
fn open(
    app: &App,
    config: &ServerConfig,
    backend: LoadedBackend,
    announce: impl FnOnce(&Announcement<'_>),
    background: &mut JoinSet<()>,
) -> anyhow::Result<Option<JoinHandle<()>>> {
    let local = open_local(app, config, backend, background)?;
    let LocalModels { mut entries, desk, description, context_tokens, engine, on_demand } = local;
    let upstreams = &config.upstreams;
    let services = start_upstreams_at(&desk, &config.service, upstreams, app)?;
    entries.extend(services.into_iter().map(ModelEntry::new));
    let names: Vec<_> = entries.iter().map(|entry| entry.name().to_owned()).collect();
    for name in upstreams.iter().flat_map(|upstream| &upstream.fallbacks) {
        ensure!(names.contains(name), "--upstream-fallback: there is no model '{name}'");
    }
    app.models.open(entries, on_demand);
    if let Some(connection) = app.store.shared() {
        // The other replicas learn now what this one can take over.
        connection.renew_notice();
    }
    let name = names.join(", ");
    announce(&Announcement { name: &name, description: &description, context_tokens });
    Ok(engine)
}

/// Starts the engine, or the loader of engines, in this process.
fn open_local(
    app: &App,
    config: &ServerConfig,
    backend: LoadedBackend,
    background: &mut JoinSet<()>,
) -> anyhow::Result<LocalModels> {
    let (service, clock) = (&config.service, app.clock);
    match backend {
        LoadedBackend::Engine(loaded, joining) => {
            let description = loaded.description.clone();
            let context_tokens = Some(loaded.model.context_tokens);
            let workers = service.tokenize_workers;
            let desk = SharedDesk::start(service, clock, workers, loaded.stages.clone())?;
            let metrics = app.metrics.clone();
            let (first, engine) = start_engine_at(&desk, service, *loaded, clock, metrics)?;
            let (entries, engine) = (vec![ModelEntry::new(first)], Some(engine));
            let keep = |joining| keep_models(app, service, joining, &desk, background);
            let on_demand = joining.map(keep);
            Ok(LocalModels { entries, desk, description, context_tokens, engine, on_demand })
        }
        LoadedBackend::Kept(kept) => open_kept(app, service, kept, background),
        LoadedBackend::Upstreams => {
            let urls = config.upstreams.iter().flat_map(|upstream| &upstream.pool.urls);
            let urls = urls.map(String::as_str).collect::<Vec<_>>().join(", ");
            Ok(LocalModels {
                entries: Vec::new(),
                // Prompts are tokenized by the upstreams.
                desk: SharedDesk::start(service, clock, 1, None)?,
                description: format!("upstream {urls}").into(),
                context_tokens: None,
                engine: None,
                on_demand: None,
            })
        }
    }
}

/// Starts the loader of models that are loaded on demand.
fn open_kept(
    app: &App,
    config: &ServiceConfig,
    kept: KeptModels,
    background: &mut JoinSet<()>,
) -> anyhow::Result<LocalModels> {
    let count = kept.models.len();
    let desk = SharedDesk::start(config, app.clock, config.tokenize_workers, None)?;
    let on_demand = keep_models(app, config, kept, &desk, background);
    let entries: Vec<_> = (0..count).map(|at| ModelEntry::kept(&on_demand.keeper, at)).collect();
    if let [only] = &entries[..] {
        // As without a keeper: the first request need not wait for it.
        only.preload();
    }
    let (description, on_demand) = ("loaded when they are asked for".into(), Some(on_demand));
    Ok(LocalModels { entries, desk, description, context_tokens: None, engine: None, on_demand })
}

/// Starts the keeper of `kept` in the `background`.
fn keep_models(
    app: &App,
    config: &ServiceConfig,
    kept: KeptModels,
    desk: &SharedDesk,
    background: &mut JoinSet<()>,
) -> OnDemand {
    let KeptModels { config: keeping, models, loader, downloader, downloaded } = kept;
    let (clock, metrics) = (app.clock, app.metrics.clone());
    let keeper = Keeper::new(&keeping, models, desk.keeper_context(config, clock, metrics.clone()));
    let (config, desk) = (config.clone(), desk.clone());
    let starter = EngineStarter { loader, desk, config, clock, metrics };
    background.spawn(keeper.clone().run(Arc::new(starter)));
    OnDemand { keeper, downloads: downloader.map(ModelDownloads::new), downloaded }
}

/// The TCP port and, if configured, the QUIC port.
struct Ports {
    listener: TcpListener,
    http: Connections,
    quic: Option<Arc<QuicPort>>,
    /// Task that accepts QUIC connections; dropping it ends the task.
    quic_task: JoinSet<()>,
}

impl Ports {
    fn open(listener: TcpListener, app: &Arc<App>, config: &ServerConfig) -> anyhow::Result<Self> {
        let router = router(app.clone());
        let http = Connections::new(
            router.clone(),
            config.https.clone(),
            config.tcp.clone(),
            config.http.trusted_proxies.clone(),
            app.metrics.clone(),
        )?;
        let quic = bind_quic(&listener, config)?.map(Arc::new);
        let mut quic_task = JoinSet::new();
        if let Some(port) = &quic {
            // Here and not in the task, so that the first request already learns of it.
            app.set_quic_address(port.address());
            quic_task.spawn(port.clone().run(app.clone(), router, config.tcp.clone()));
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

    /// Refuses new work, hands over answers to other replicas where possible, waits at most `limit`
    /// for the other streams and ends the rest with an error.
    async fn drain(self, app: &App, limit: Duration) {
        // New TCP connections are refused; QUIC stays open, because its answers end over it.
        drop(self.listener);
        if app.models.entries().next().is_none() {
            return;
        }
        app.models.drain();
        app.dashboard.close();
        tracing::info!(in_flight = app.models.in_flight(), "draining");
        app.leave_to_replicas().await;
        let mut ended = pin!(async {
            tokio::join!(self.http.shutdown(), app.resumable.settled());
        });
        if tokio::time::timeout(limit, &mut ended).await.is_err() {
            tracing::warn!(in_flight = app.models.in_flight(), "the drain limit is over");
            if app.resumable.is_shared() {
                // Before their generation is ended: an error would be the end at all replicas.
                tokio::join!(app.resumable.shut_down(), app.responses.leave_all());
            }
            app.models.stop();
            let _ = tokio::time::timeout(ERROR_EVENT_TIMEOUT, ended).await;
        }
        app.models.stop();
        app.resumable.shut_down().await;
        app.resumable.flush_shared().await;
        app.responses.flush().await;
        if let Some(port) = &self.quic {
            port.close().await;
        }
    }
}

/// Binds the QUIC port. If that fails and the port is not required, the server starts without it.
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
